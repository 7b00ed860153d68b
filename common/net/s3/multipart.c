/* Uploads in parts, for objects that are too large for one PUT or too large to begin anew after a
 * cut. */
#include "common/net/s3/client_impl.h"

#include "common/net/s3/xml.h"

#define ID_MAX 1024
#define PAGE "1000"

struct upload {
    struct s3 *c;
    const char *key;
    char id[ID_MAX];
    uint64_t size, part_bytes;
    unsigned n;         /* parts */
    char (*etags)[128]; /* by part; "": the store does not have it */
    /* results of a listing */
    char found[ID_MAX], name[S3_KEY_MAX + 1], etag[128];
    uint64_t number, bytes, next;
    bool more;
};

static uint64_t size_of(const struct upload *u, unsigned part)
{
    const uint64_t from = (uint64_t)part * u->part_bytes;
    return u->size - from < u->part_bytes ? u->size - from : u->part_bytes;
}

/* ---- an upload that was cut ---- */

static int on_upload(void *arg, const char *parent, const char *name, const char *text)
{
    struct upload *u = arg;
    if (strcmp(parent, "Upload") == 0 && text && strcmp(name, "Key") == 0)
        (void)str_copy(u->name, sizeof(u->name), text);
    else if (strcmp(parent, "Upload") == 0 && text && strcmp(name, "UploadId") == 0)
        (void)str_copy(u->found, sizeof(u->found), text);
    else if (strcmp(name, "Upload") == 0 && strcmp(u->name, u->key) == 0)
        return str_copy(u->id, sizeof(u->id), u->found) ? 1 : 0;
    return 0;
}

static int on_part(void *arg, const char *parent, const char *name, const char *text)
{
    struct upload *u = arg;
    if (strcmp(parent, "Part") == 0 && text) {
        if (strcmp(name, "PartNumber") == 0)
            (void)str_parse_u64(text, &u->number); /* on failure 0 stays, which is no part */
        else if (strcmp(name, "Size") == 0)
            (void)str_parse_u64(text, &u->bytes);
        else if (strcmp(name, "ETag") == 0 && !str_copy(u->etag, sizeof(u->etag), text))
            u->etag[0] = '\0'; /* as if there were none: the part is sent again */
    } else if (strcmp(name, "Part") == 0) {
        if (u->number >= 1 && u->number <= u->n && u->bytes == size_of(u, (unsigned)u->number - 1))
            memcpy(u->etags[u->number - 1], u->etag, sizeof(u->etag));
        u->number = u->bytes = 0;
        u->etag[0] = '\0'; /* it must not keep that of the part before */
    } else if (strcmp(name, "IsTruncated") == 0 && text) {
        u->more = strcmp(text, "true") == 0;
    } else if (strcmp(name, "NextPartNumberMarker") == 0 && text) {
        (void)str_parse_u64(text, &u->next);
    }
    return 0;
}

/* Lists the parts of u->id that the store has. */
static int list_parts(struct upload *u, struct err *err)
{
    uint64_t from = 0;
    int rc = 0;
    do {
        char marker[24];
        struct s3_request r;
        u->next = from;
        (void)snprintf(marker, sizeof(marker), "%" PRIu64, from);
        s3_request_init(&r, "GET", u->key);
        r.query[0] = (struct s3_pair){"uploadId", u->id};
        r.query[1] = (struct s3_pair){"max-parts", PAGE};
        if (from > 0)
            r.query[2] = (struct s3_pair){"part-number-marker", marker};
        u->more = false;
        rc = s3_request_run(u->c, &r, err);
        if (rc == 0)
            rc = s3_xml_read(buf_str(&r.answer), r.answer.len, on_part, u);
        if (rc == -ERR_FORMAT)
            rc = err_set(err, -ERR_REMOTE,
                         "%s lists the parts of an upload in a form that is not "
                         "S3's",
                         u->c->where);
        s3_request_release(&r);
        u->more = u->more && u->next > from; /* else it would never end */
        from = u->next;
    } while (rc == 0 && u->more);
    return rc;
}

static int find(struct upload *u, struct err *err)
{
    struct s3_request r;
    s3_request_init(&r, "GET", "");
    r.query[0] = (struct s3_pair){"uploads", ""};
    r.query[1] = (struct s3_pair){"prefix", u->key};
    int rc = s3_request_run(u->c, &r, err);
    if (rc == 0)
        (void)s3_xml_read(buf_str(&r.answer), r.answer.len, on_upload, u); /* or begin anew */
    s3_request_release(&r);
    if (rc == 0 && *u->id && (rc = list_parts(u, err)) == -ERR_NOTFOUND) {
        u->id[0] = '\0'; /* the upload has just ended */
        rc = 0;
    }
    return rc;
}

/* ---- a new one ---- */

static int begin(struct upload *u, struct err *err)
{
    struct s3_request r;
    s3_request_init(&r, "POST", u->key);
    r.query[0] = (struct s3_pair){"uploads", ""};
    int rc = s3_request_run(u->c, &r, err);
    if (rc == 0 && !s3_xml_find(buf_str(&r.answer), r.answer.len, "UploadId", u->id, sizeof(u->id)))
        rc = err_set(err, -ERR_REMOTE,
                     "%s answers the beginning of an upload in parts in a form that is not S3's",
                     u->c->where);
    s3_request_release(&r);
    return rc;
}

static int send_part(struct upload *u, int fd, unsigned part, struct err *err)
{
    struct s3_request r;
    char number[16];
    (void)snprintf(number, sizeof(number), "%u", part + 1);
    s3_request_init(&r, "PUT", u->key);
    r.query[0] = (struct s3_pair){"partNumber", number};
    r.query[1] = (struct s3_pair){"uploadId", u->id};
    r.fd = fd;
    r.offset = (uint64_t)part * u->part_bytes;
    r.size = size_of(u, part);
    int rc = s3_request_run(u->c, &r, err);
    if (rc == 0 && !*r.etag)
        rc = err_set(err, -ERR_REMOTE, "%s took a part of an upload, but its answer has no ETag",
                     u->c->where);
    memcpy(u->etags[part], r.etag, sizeof(r.etag));
    s3_request_release(&r);
    return rc;
}

/* Writes the XML of the end; fails for ETags that are not hexadecimal in quotes. */
static int write_end(const struct upload *u, struct buf *text)
{
    int rc = buf_append_str(text, "<CompleteMultipartUpload>");
    for (unsigned i = 0; i < u->n && rc == 0; i++) {
        if (strpbrk(u->etags[i], "<>&"))
            return -ERR_FORMAT;
        rc = buf_printf(text, "<Part><PartNumber>%u</PartNumber><ETag>%s</ETag></Part>", i + 1,
                        u->etags[i]);
    }
    return rc < 0 ? rc : buf_append_str(text, "</CompleteMultipartUpload>");
}

/* Aborts the upload, so that the next try begins anew.  If the key may not do that, the bucket's
 * rules remove it. */
static void give_up(const struct upload *u)
{
    struct s3_request r;
    s3_request_init(&r, "DELETE", u->key);
    r.query[0] = (struct s3_pair){"uploadId", u->id};
    (void)s3_request_run(u->c, &r, NULL);
    s3_request_release(&r);
}

/* True if the store refuses the end, as it always would: its parts are not those that were
 * named. */
static bool is_refused(int rc, const char *code)
{
    return rc == -ERR_REMOTE || str_starts(code, "InvalidPart") ||
           strcmp(code, "EntityTooSmall") == 0;
}

/* Ends the upload.  -ERR_NOTFOUND: there is no such upload, or its outcome is unknown. */
static int finish(struct upload *u, struct err *err)
{
    struct s3_request r;
    struct buf text;
    char code[64] = "", etag[128];
    buf_init(&text, S3_ANSWER_MAX);
    s3_request_init(&r, "POST", u->key);
    r.query[0] = (struct s3_pair){"uploadId", u->id};
    int rc = write_end(u, &text);
    if (rc < 0)
        rc = err_set(err, -ERR_REMOTE, "%s gave ETags of parts that are not valid", u->c->where);
    r.text = buf_str(&text);
    r.size = text.len;
    if (rc == 0)
        rc = s3_request_run(u->c, &r, err);
    /* The status was sent before the work was done. */
    if (rc == 0 && s3_xml_find(buf_str(&r.answer), r.answer.len, "Code", code, sizeof(code)))
        rc = err_set(err, -EAGAIN, "%s could not put an upload together: %s", u->c->where, code);
    else if (rc == 0 && !s3_xml_find(buf_str(&r.answer), r.answer.len, "ETag", etag, sizeof(etag)))
        rc = -ERR_NOTFOUND; /* the answer says neither, so the object is checked */
    if (rc < 0 && is_refused(rc, code))
        give_up(u);
    s3_request_release(&r);
    buf_release(&text);
    return rc;
}

/* True if the store has the whole object: after an end whose answer was lost there is no upload. */
static bool is_there(const struct upload *u)
{
    struct s3_request r;
    s3_request_init(&r, "HEAD", u->key);
    r.once = true;
    const bool there = s3_request_run(u->c, &r, NULL) == 0 && r.length == u->size;
    s3_request_release(&r);
    return there;
}

int s3_put_parts(struct s3 *c, const char *key, int fd, uint64_t size, struct err *err)
{
    struct upload *u = mem_alloc(sizeof(*u));
    *u = (struct upload){.c = c, .key = key, .size = size, .part_bytes = c->part_bytes};
    while (size / u->part_bytes >= S3_PARTS_MAX)
        u->part_bytes *= 2;
    u->n = (unsigned)((size + u->part_bytes - 1) / u->part_bytes);
    u->etags = mem_alloc_array(u->n, sizeof(*u->etags));
    int rc = find(u, err);
    if (rc == 0 && !*u->id)
        rc = begin(u, err);
    for (unsigned i = 0; i < u->n && rc == 0; i++)
        if (!*u->etags[i])
            rc = send_part(u, fd, i, err);
    if (rc == 0 && (rc = finish(u, err)) == -ERR_NOTFOUND && is_there(u))
        rc = 0;
    if (rc == -ERR_NOTFOUND)
        rc = err_set(err, -EAGAIN, "%s has ended an upload in parts, but does not have the object",
                     c->where);
    mem_free(u->etags);
    mem_free(u);
    return rc;
}
