/* Writing shards: what dataset_cut makes and what a split copies. */
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/base/mem.h"
#include "common/data/shard_internal.h"
#include "common/base/str.h"
#include "common/data/tar.h"

#define KEY_TAIL 80 /* bytes of a name that are kept */
#define NUMBER_DIGITS 6
#define MEMBER_BYTES 1024      /* of a member beside its content, at most */
#define SPARE_BYTES (1u << 20) /* for a feature, and the end of the archive */

struct shard_writer {
    struct tar_writer *tar; /* NULL until the first sample says of what kind it is */
    char *path;
    enum shard_kind kind;
    uint32_t dim, samples;
    uint64_t tokens, unpacked; /* bytes, about */
};

bool shard_ext_kind(const char *ext, enum shard_kind *ret)
{
    bool text = strcmp(ext, "tok") == 0;
    *ret = text ? SHARD_TEXT : SHARD_IMAGES;
    return text || strcmp(ext, "jpg") == 0 || strcmp(ext, "png") == 0 || strcmp(ext, "webp") == 0;
}

struct shard_writer *shard_writer_new(const char *path)
{
    struct shard_writer *w = mem_alloc(sizeof(*w));
    w->path = str_dup(path);
    return w;
}

void shard_writer_free(struct shard_writer *w)
{
    if (!w)
        return;
    tar_writer_free(w->tar);
    mem_free(w->path);
    mem_free(w);
}

uint32_t shard_writer_samples(const struct shard_writer *w)
{
    return w->samples;
}

/* A name without the number that another shard put before it. */
static const char *bare_name(const char *key)
{
    size_t digits = strspn(key, "0123456789");
    return digits >= NUMBER_DIGITS && key[digits] == '-' ? key + digits + 1 : key;
}

/* The key inside a shard: unique there, and a name a person recognises. */
static void make_key(uint32_t number, const char *key, char out[SHARD_KEY_MAX])
{
    const char *name = bare_name(key);
    size_t n = strlen(name);
    const char *tail = n > KEY_TAIL ? name + n - KEY_TAIL : name;
    int at = snprintf(out, SHARD_KEY_MAX, "%0*u-", NUMBER_DIGITS, number);
    for (; *tail; tail++) {
        unsigned char c = (unsigned char)*tail;
        bool plain = c < 0x80 && (isalnum(c) || strchr("_-#", c));
        out[at++] = plain ? (char)c : '_';
    }
    out[at] = '\0';
}

static int add_member(struct shard_writer *w, const char *key, const char *ext, const void *data,
                      size_t len, struct err *err)
{
    char name[SHARD_KEY_MAX + 8];
    (void)snprintf(name, sizeof(name), "%s.%s", key, ext);
    w->unpacked += len + MEMBER_BYTES;
    return tar_writer_add(w->tar, name, data, len, err);
}

static int check(const struct shard_writer *w, const struct shard_sample *s, uint32_t dim,
                 enum shard_kind *ret, struct err *err)
{
    if (!shard_ext_kind(s->ext, ret))
        return err_set(err, -EINVAL, "'%s': a shard holds no .%s", s->key, s->ext);
    if (w->samples && (*ret != w->kind || dim != w->dim))
        return err_set(err, -EINVAL,
                       "'%s': a shard holds samples of one kind with features of one length",
                       s->key);
    if (dim > SHARD_FEATURE_MAX)
        return err_set(err, -ERR_LIMIT, "'%s': a feature has %u numbers, at most %d are possible",
                       s->key, dim, SHARD_FEATURE_MAX);
    if (w->samples == SHARD_SAMPLES_MAX)
        return err_set(err, -ERR_LIMIT, "shard %s would have more than %d samples", w->path,
                       SHARD_SAMPLES_MAX);
    if (*ret == SHARD_TEXT && w->unpacked + s->len > SHARD_UNPACKED_MAX - SPARE_BYTES)
        return err_set(err, -ERR_LIMIT,
                       "'%s': a shard would have more than %u MiB of text; lower "
                       "data.shard_samples",
                       s->key, SHARD_UNPACKED_MAX >> 20);
    return 0;
}

int shard_writer_add(struct shard_writer *w, const struct shard_sample *s, uint32_t dim,
                     struct err *err)
{
    char key[SHARD_KEY_MAX], cls[16];
    enum shard_kind kind;
    int rc = check(w, s, dim, &kind, err);
    if (rc < 0)
        return rc;
    if (!w->tar) /* images are compressed already, and are read here and there */
        rc = (kind == SHARD_TEXT ? tar_writer_open_zstd : tar_writer_open)(w->path, &w->tar, err);
    if (rc < 0)
        return rc;
    make_key(w->samples, s->key, key);
    rc = add_member(w, key, s->ext, s->data, s->len, err);
    int n = snprintf(cls, sizeof(cls), "%u", s->cls);
    if (rc == 0 && kind == SHARD_IMAGES)
        rc = add_member(w, key, "cls", cls, (size_t)n, err);
    if (rc == 0 && dim)
        rc = add_member(w, key, "f32", s->feature, dim * sizeof(float), err);
    if (rc < 0)
        return rc;
    w->kind = kind;
    w->dim = dim;
    w->samples++;
    w->tokens += s->tokens;
    return 0;
}

int shard_writer_finish(struct shard_writer *w, struct shard_info *ret, struct err *err)
{
    struct shard_info info = {.samples = w->samples, .tokens = w->tokens};
    if (w->samples == 0)
        return err_set(err, -EINVAL, "shard %s would be empty", w->path);
    int rc = tar_writer_commit(w->tar, info.sha256, &info.bytes, err);
    if (rc == 0)
        *ret = info;
    return rc;
}

int shard_encode_tokens(const uint32_t *ids, size_t n, struct buf *out)
{
    uint32_t all = 0;
    uint8_t *p;
    for (size_t i = 0; i < n; i++)
        all |= ids[i];
    unsigned width = all < 1u << 8 ? 1 : all < 1u << 16 ? 2 : 4;
    int rc = buf_reserve(out, 1 + n * width, &p);
    if (rc < 0)
        return rc;
    *p++ = (uint8_t)width;
    for (size_t i = 0; i < n; i++)
        for (unsigned b = 0; b < width; b++)
            *p++ = (uint8_t)(ids[i] >> 8 * b);
    buf_commit(out, 1 + n * width);
    return 0;
}
