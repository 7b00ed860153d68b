/* The writing half of st.h. */
#include "common/st/st.h"

#include <errno.h>
#include <jansson.h>
#include <string.h>

#include "common/base/err.h"
#include "common/base/file.h"
#include "common/base/mem.h"
#include "common/base/str.h"

struct st_writer {
    struct st_tensor *tensors;
    size_t n, cap;
    struct st_meta meta[ST_META_MAX];
    size_t n_meta;
    uint64_t payload; /* bytes declared */
    uint64_t written; /* payload bytes written */
    int sticky;       /* first failure of st_writer_meta */
    struct file_out out;
    struct hash hash;
};

struct st_writer *st_writer_new(void)
{
    struct st_writer *w = mem_alloc(sizeof(*w));
    w->out.fd = -1;
    return w;
}

void st_writer_free(struct st_writer *w)
{
    if (!w)
        return;
    file_out_abort(&w->out);
    hash_release(&w->hash);
    for (size_t i = 0; i < w->n; i++)
        mem_free(w->tensors[i].name);
    for (size_t i = 0; i < w->n_meta; i++) {
        mem_free(w->meta[i].key);
        mem_free(w->meta[i].value);
    }
    mem_free(w->tensors);
    mem_free(w);
}

void st_writer_meta(struct st_writer *w, const char *key, const char *value)
{
    bool known = false;
    for (size_t i = 0; i < w->n_meta; i++)
        known = known || strcmp(w->meta[i].key, key) == 0;
    if (known || w->n_meta == ST_META_MAX || !str_is_utf8(key, strlen(key)) ||
        !str_is_utf8(value, strlen(value))) {
        w->sticky = w->sticky ? w->sticky : known ? -EEXIST : -EINVAL;
        return;
    }
    w->meta[w->n_meta++] = (struct st_meta){.key = str_dup(key), .value = str_dup(value)};
}

int st_writer_add(struct st_writer *w, const char *name, enum st_dtype dtype, unsigned rank,
                  const uint64_t *shape, struct err *err)
{
    struct st_tensor t = {.dtype = dtype, .rank = rank, .count = 1, .offset = w->payload};
    size_t length = strlen(name);
    if (length == 0 || length > ST_NAME_MAX || !str_is_utf8(name, length) ||
        strcmp(name, "__metadata__") == 0 || rank > ST_RANK_MAX || !st_dtype_bytes(dtype))
        return err_set(err, -EINVAL, "tensor '%s': impossible name, dtype or rank %u", name, rank);
    for (size_t i = 0; i < w->n; i++)
        if (strcmp(w->tensors[i].name, name) == 0)
            return err_set(err, -EINVAL, "tensor '%s' is declared twice", name);
    bool over = false;
    for (unsigned i = 0; i < rank; i++) {
        t.shape[i] = shape[i];
        over = over || __builtin_mul_overflow(t.count, shape[i], &t.count);
    }
    over = over || __builtin_mul_overflow(t.count, (uint64_t)st_dtype_bytes(dtype), &t.bytes);
    uint64_t payload;
    if (over || __builtin_add_overflow(w->payload, t.bytes, &payload) || payload > INT64_MAX)
        return err_set(err, -EINVAL, "tensor '%s': the shape overflows", name);
    if (w->n == ST_TENSORS_MAX)
        return err_set(err, -ERR_LIMIT, "more than %d tensors", ST_TENSORS_MAX);
    if (w->n == w->cap) {
        size_t cap = w->cap ? w->cap * 2 : 64;
        struct st_tensor *more = mem_try_realloc_array(w->tensors, cap, sizeof(*more));
        if (!more)
            return err_set(err, -ENOMEM, "out of memory while declaring tensors");
        w->tensors = more;
        w->cap = cap;
    }
    t.name = str_dup(name);
    w->tensors[w->n++] = t;
    w->payload = payload;
    return 0;
}

static int append_json(const char *data, size_t size, void *ctx)
{
    return buf_append(ctx, data, size) < 0 ? -1 : 0;
}

static int append_string(struct buf *b, const char *s)
{
    json_t *value = json_string(s);
    if (!value)
        return -ENOMEM;
    int rc = json_dump_callback(value, append_json, b, JSON_ENCODE_ANY) < 0 ? -ERR_LIMIT : 0;
    json_decref(value);
    return rc;
}

static int append_meta(const struct st_writer *w, struct buf *b)
{
    int rc = buf_append_str(b, "\"__metadata__\":{");
    for (size_t i = 0; rc == 0 && i < w->n_meta; i++) {
        rc = i ? buf_append_byte(b, ',') : 0;
        rc = rc ? rc : append_string(b, w->meta[i].key);
        rc = rc ? rc : buf_append_byte(b, ':');
        rc = rc ? rc : append_string(b, w->meta[i].value);
    }
    return rc ? rc : buf_append_byte(b, '}');
}

static int append_tensor(const struct st_tensor *t, struct buf *b)
{
    int rc = append_string(b, t->name);
    rc = rc ? rc : buf_printf(b, ":{\"dtype\":\"%s\",\"shape\":[", st_dtype_name(t->dtype));
    for (unsigned i = 0; rc == 0 && i < t->rank; i++)
        rc = buf_printf(b, "%s%llu", i ? "," : "", (unsigned long long)t->shape[i]);
    return rc ? rc
              : buf_printf(b, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)t->offset,
                           (unsigned long long)(t->offset + t->bytes));
}

static int build(const struct st_writer *w, struct buf *json)
{
    int rc = buf_append_byte(json, '{');
    if (w->n_meta)
        rc = rc ? rc : append_meta(w, json);
    for (size_t i = 0; rc == 0 && i < w->n; i++) {
        rc = i || w->n_meta ? buf_append_byte(json, ',') : 0;
        rc = rc ? rc : append_tensor(&w->tensors[i], json);
    }
    rc = rc ? rc : buf_append_byte(json, '}');
    while (rc == 0 && json->len % 8)
        rc = buf_append_byte(json, ' ');
    return rc;
}

int st_writer_header(struct st_writer *w, struct buf *out, uint64_t *ret_file_bytes,
                     struct err *err)
{
    if (w->sticky)
        return err_set(err, w->sticky,
                       "the metadata of a safetensors file has a duplicate key, "
                       "too many keys or text that is not UTF-8");
    struct buf json;
    buf_init(&json, ST_HEADER_MAX);
    int rc = build(w, &json);
    uint8_t word[8];
    for (int i = 0; i < 8; i++)
        word[i] = (uint8_t)((uint64_t)json.len >> (8 * i));
    rc = rc ? rc : buf_append(out, word, sizeof(word));
    rc = rc ? rc : buf_append(out, json.data, json.len);
    if (rc < 0)
        (void)err_set(err, rc, "cannot build a safetensors header of %zu tensors", w->n);
    else if (ret_file_bytes)
        *ret_file_bytes = 8 + json.len + w->payload;
    buf_release(&json);
    return rc;
}

int st_writer_open(struct st_writer *w, const char *path, struct err *err)
{
    struct buf head;
    buf_init(&head, ST_HEADER_MAX + 8);
    int rc = st_writer_header(w, &head, NULL, err);
    if (rc == 0)
        rc = file_out_open(&w->out, path, 0644, err);
    if (rc == 0)
        rc = file_out_write(&w->out, head.data, head.len, err);
    if (rc == 0) {
        hash_init(&w->hash);
        hash_update(&w->hash, head.data, head.len);
    } else {
        file_out_abort(&w->out);
    }
    buf_release(&head);
    return rc;
}

int st_writer_write(struct st_writer *w, const void *data, size_t len, struct err *err)
{
    if (len > w->payload - w->written)
        return err_set(err, -EINVAL, "%s: more payload than its tensors hold", w->out.path);
    int rc = file_out_write(&w->out, data, len, err);
    if (rc < 0)
        return rc;
    hash_update(&w->hash, data, len);
    w->written += len;
    return 0;
}

int st_writer_commit(struct st_writer *w, uint8_t sha256[HASH_BYTES], uint64_t *ret_bytes,
                     struct err *err)
{
    if (w->written != w->payload)
        return err_set(err, -EINVAL, "%s: %llu of %llu payload bytes were written", w->out.path,
                       (unsigned long long)w->written, (unsigned long long)w->payload);
    uint64_t size = w->out.written;
    int rc = file_out_commit(&w->out, err);
    if (rc < 0)
        return rc;
    uint8_t digest[HASH_BYTES];
    hash_final(&w->hash, digest);
    if (sha256)
        memcpy(sha256, digest, HASH_BYTES);
    if (ret_bytes)
        *ret_bytes = size;
    return 0;
}
