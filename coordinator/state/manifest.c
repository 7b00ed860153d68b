#include "coordinator/state/manifest.h"

#include "common/base/hash.h"

#define FIRST "skerry-backup "
#define OLD "1" /* without a hash */
#define THIS "2"

static bool path_ok(const char *path)
{
    const size_t len = strlen(path);
    if (len == 0 || len >= MANIFEST_PATH_MAX || path[len - 1] == '/')
        return false;
    for (const char *p = path; *p; p++) {
        const bool begins = p == path || p[-1] == '/';
        if (begins && (*p == '.' || *p == '/'))
            return false;
        if (!(*p >= 'a' && *p <= 'z') && !(*p >= 'A' && *p <= 'Z') && !(*p >= '0' && *p <= '9') &&
            strchr("._-/", *p) == NULL)
            return false;
    }
    return true;
}

int manifest_add(struct manifest *m, const uint8_t sha256[32], uint64_t size, const char *path,
                 struct err *err)
{
    if (!path_ok(path))
        return err_set(err, -EINVAL, "'%.80s' is not a valid path in a backup", path);
    if (m->n == MANIFEST_FILES_MAX)
        return err_set(err, -ERR_LIMIT, "a backup has at most %u files", MANIFEST_FILES_MAX);
    if (m->n == m->cap) {
        m->cap = m->cap ? 2 * m->cap : 64;
        m->files = mem_realloc(m->files, m->cap * sizeof(*m->files));
    }
    struct manifest_file *f = &m->files[m->n++];
    memcpy(f->sha256, sha256, sizeof(f->sha256));
    f->size = size;
    f->path = str_dup(path);
    return 0;
}

int manifest_format(const struct manifest *m, struct buf *out, struct err *err)
{
    char hex[HASH_HEX_MAX];
    uint8_t sha256[HASH_BYTES];
    int rc =
        buf_printf(out, FIRST THIS "\nrelease %s\nat %lld\n", m->release, (long long)m->at_unix_ms);
    for (size_t i = 0; rc == 0 && i < m->n; i++)
        rc = buf_printf(out, "%s %llu %s\n", hash_hex(m->files[i].sha256, 32, hex),
                        (unsigned long long)m->files[i].size, m->files[i].path);
    hash_sha256(out->data, out->len, sha256);
    if (rc == 0)
        rc = buf_printf(out, "end %zu %s\n", m->n, hash_hex(sha256, HASH_BYTES, hex));
    return rc < 0 ? err_set(err, rc, "the manifest has no room for %zu files", m->n) : 0;
}

/* The next line without its end, at most size - 1 bytes; NULL: there is none, or it is longer. */
static const char *next_line(const char *text, char *out, size_t size)
{
    const char *end = strchr(text, '\n');
    if (end == NULL || (size_t)(end - text) >= size)
        return NULL;
    memcpy(out, text, (size_t)(end - text));
    out[end - text] = '\0';
    return end + 1;
}

static int take_file(struct manifest *m, char *line, struct err *err)
{
    uint8_t sha256[32];
    uint64_t size;
    char *hex = line, *number = strchr(line, ' ');
    char *path = number ? strchr(number + 1, ' ') : NULL;
    if (path == NULL)
        return -ERR_FORMAT;
    *number++ = *path++ = '\0';
    if (strlen(hex) != 64 || hash_unhex(hex, sha256, sizeof(sha256)) < 0 ||
        str_parse_u64(number, &size) < 0 || manifest_add(m, sha256, size, path, err) < 0)
        return -ERR_FORMAT;
    return 0;
}

/* Line n (from 1 on) of the first three. */
static int take_head(struct manifest *m, unsigned n, const char *line)
{
    static const char release[] = "release ", at[] = "at ";
    bool ok;
    if (n == 1)
        ok = strcmp(line, FIRST OLD) == 0 || strcmp(line, FIRST THIS) == 0;
    else if (n == 2)
        ok = str_starts(line, release) &&
             str_copy(m->release, sizeof(m->release), line + strlen(release));
    else
        ok = str_starts(line, at) && str_parse_i64(line + strlen(at), &m->at_unix_ms) == 0;
    return ok ? 0 : -ERR_FORMAT;
}

/* Checks the last line, after `len` bytes of others. */
static int take_end(const struct manifest *m, const char *text, size_t len, char *line)
{
    uint8_t sha256[HASH_BYTES], said[HASH_BYTES];
    uint64_t count;
    char *hex = strchr(line, ' ');
    if (hex)
        *hex++ = '\0';
    if (str_parse_u64(line, &count) < 0 || count != m->n || !hex != str_starts(text, FIRST OLD))
        return -ERR_FORMAT;
    hash_sha256(text, len, sha256);
    const bool right = !hex || (strlen(hex) == 64 && hash_unhex(hex, said, HASH_BYTES) == 0 &&
                                hash_equal(said, sha256, HASH_BYTES));
    return right ? 0 : -ERR_HASH;
}

int manifest_parse(const char *text, struct manifest *ret, struct err *err)
{
    static const char end[] = "end ";
    const char *const all = text;
    char line[64 + 1 + 20 + 1 + MANIFEST_PATH_MAX];
    unsigned n = 0;
    *ret = (struct manifest){0};
    while (*text != '\0') {
        const char *const begins = text;
        int rc = -ERR_FORMAT;
        n++;
        if ((text = next_line(text, line, sizeof(line))) == NULL)
            return err_set(err, rc, "line %u of the manifest is too long or cut off", n);
        if (n <= 3)
            rc = take_head(ret, n, line);
        else if (!str_starts(line, end))
            rc = take_file(ret, line, NULL);
        else if (*text == '\0' &&
                 (rc = take_end(ret, all, (size_t)(begins - all), line + strlen(end))) == 0)
            return 0;
        if (rc == -ERR_HASH)
            return err_set(err, -ERR_FORMAT,
                           "the manifest is damaged: its lines do not match its hash");
        if (rc < 0)
            return err_set(err, rc, "line %u of the manifest makes no sense", n);
    }
    return err_set(err, -ERR_FORMAT, "the manifest is cut off after line %u", n);
}

void manifest_release(struct manifest *m)
{
    for (size_t i = 0; i < m->n; i++)
        mem_free(m->files[i].path);
    mem_free(m->files);
    *m = (struct manifest){0};
}
