#include "common/data/shard.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "common/base/err.h"
#include "common/base/mem.h"
#include "common/data/shard_internal.h"
#include "common/base/str.h"

#define BLOCK 512

/* A member of the archive, inside the bytes. */
struct member {
    char name[SHARD_KEY_MAX + 1]; /* KEY.EXT; after split_name the key alone */
    char ext[8];
    const uint8_t *data;
    uint64_t len;
};

struct scan {
    const uint8_t *data;
    size_t len, at;
    const char *name;
    struct err *err;
    struct member ahead;
    bool have; /* `ahead` holds a member that nobody took yet */
};

static int broken(const struct scan *s, const char *why)
{
    return err_set(s->err, -ERR_FORMAT, "shard %s, byte %zu: %s", s->name, s->at, why);
}

/* An octal field, ended by NUL or space. */
static int octal(const uint8_t *field, size_t n, uint64_t *ret)
{
    uint64_t v = 0;
    size_t i = 0;
    while (i < n && field[i] == ' ')
        i++;
    size_t start = i;
    for (; i < n && field[i] >= '0' && field[i] <= '7'; i++)
        v = v << 3 | (uint64_t)(field[i] - '0');
    bool digits = i > start;
    while (i < n && (field[i] == '\0' || field[i] == ' '))
        i++;
    if (!digits || i < n)
        return -EINVAL;
    *ret = v;
    return 0;
}

static bool checksum_holds(const uint8_t *h)
{
    uint64_t stored, sum = 0;
    for (int i = 0; i < BLOCK; i++)
        sum += i >= 148 && i < 156 ? ' ' : h[i];
    return octal(h + 148, 8, &stored) == 0 && stored == sum;
}

/* 1 with the next member, 0 at the end marker. */
static int next_member(struct scan *s, struct member *m)
{
    static const uint8_t zeros[BLOCK];
    uint64_t size;
    if (s->len - s->at < BLOCK)
        return broken(s, "cut short");
    const uint8_t *h = s->data + s->at;
    if (memcmp(h, zeros, BLOCK) == 0)
        return 0;
    if (!checksum_holds(h) || memcmp(h + 257, "ustar", 5) != 0)
        return broken(s, "not a ustar header");
    if (h[156] != '0' || octal(h + 124, 12, &size) < 0 || h[345] != '\0')
        return broken(s, "not a plain file with a short name");
    memcpy(m->name, h, 100);
    m->name[100] = '\0';
    s->at += BLOCK;
    if (size > s->len - s->at)
        return broken(s, "cut short");
    m->data = s->data + s->at;
    m->len = size;
    size_t padded = ((size_t)size + BLOCK - 1) / BLOCK * BLOCK;
    if (padded > s->len - s->at)
        return broken(s, "cut short");
    s->at += padded;
    return 1;
}

/* Splits "KEY.EXT" at its only dot. */
static int split_name(struct scan *s, struct member *m)
{
    char *dot = strchr(m->name, '.');
    if (!dot || dot == m->name || !dot[1] || strchr(dot + 1, '.') ||
        !str_copy(m->ext, sizeof(m->ext), dot + 1))
        return broken(s, "expected KEY.EXT as the name of a member");
    *dot = '\0';
    return 1;
}

/* The next member stays in s->ahead until it is taken. */
static int peek(struct scan *s)
{
    if (s->have)
        return 1;
    int rc = next_member(s, &s->ahead);
    if (rc > 0)
        rc = split_name(s, &s->ahead);
    s->have = rc > 0;
    return rc;
}

/* Takes member KEY.ext if it comes next: 1, else 0. */
static int take(struct scan *s, const char *key, const char *ext, struct member *out)
{
    int rc = peek(s);
    if (rc <= 0)
        return rc;
    if (strcmp(s->ahead.name, key) != 0 || strcmp(s->ahead.ext, ext) != 0)
        return 0;
    *out = s->ahead;
    s->have = false;
    return 1;
}

static int take_class(struct scan *s, struct shard_sample *out)
{
    struct member cls;
    char text[16] = "";
    uint64_t value;
    int rc = take(s, out->key, "cls", &cls);
    if (rc <= 0)
        return rc < 0 ? rc : broken(s, "expected KEY.EXT followed by KEY.cls");
    if (cls.len == 0 || cls.len >= sizeof(text))
        return broken(s, "a class is not a number");
    memcpy(text, cls.data, cls.len);
    if (strlen(text) != cls.len || str_parse_u64(text, &value) < 0 || value > INT32_MAX)
        return broken(s, "a class is not a number");
    out->cls = (uint32_t)value;
    return 0;
}

static int count_tokens(struct scan *s, struct shard_sample *out)
{
    unsigned width = out->len ? out->data[0] : 0;
    if ((width != 1 && width != 2 && width != 4) || (out->len - 1) % width != 0 || out->len == 1 ||
        (out->len - 1) / width > SHARD_TOKENS_MAX)
        return broken(s, "a piece of text is not made of ids of 1, 2 or 4 bytes");
    out->tokens = (uint32_t)((out->len - 1) / width);
    for (uint32_t i = 0; width == 4 && i < out->tokens; i++)
        if (out->data[1 + 4 * (size_t)i + 3] & 0x80)
            return broken(s, "a token id is above 2^31");
    return 0;
}

static int take_feature(struct scan *s, struct shard *shard, struct shard_sample *out)
{
    struct member f;
    int rc = take(s, out->key, "f32", &f);
    if (rc < 0)
        return rc;
    if (rc > 0 && (f.len == 0 || f.len % 4 || f.len / 4 > SHARD_FEATURE_MAX))
        return broken(s, "a feature is not a row of floats");
    uint32_t dim = rc > 0 ? (uint32_t)(f.len / 4) : 0;
    if (shard->n && dim != shard->dim)
        return broken(s, "features of different lengths");
    shard->dim = dim;
    out->feature = dim ? f.data : NULL;
    return 0;
}

/* All members of a key make a sample.  1 with a sample, 0 at the end. */
static int next_sample(struct scan *s, struct shard *shard, struct shard_sample *out)
{
    int rc = peek(s);
    if (rc <= 0)
        return rc;
    const struct member *m = &s->ahead;
    enum shard_kind kind;
    if (!shard_ext_kind(m->ext, &kind) || (shard->n && kind != shard->kind))
        return broken(s, "expected all images (KEY.jpg .png .webp) or all text (KEY.tok)");
    *out = (struct shard_sample){.data = m->data, .len = (size_t)m->len};
    (void)str_copy(out->key, sizeof(out->key), m->name);
    (void)str_copy(out->ext, sizeof(out->ext), m->ext);
    s->have = false;
    shard->kind = kind;
    rc = kind == SHARD_TEXT ? count_tokens(s, out) : take_class(s, out);
    if (rc == 0)
        rc = take_feature(s, shard, out);
    return rc < 0 ? rc : 1;
}

static int grow(const struct scan *s, struct shard *shard, size_t *cap)
{
    if (shard->n == SHARD_SAMPLES_MAX)
        return err_set(s->err, -ERR_LIMIT, "shard %s has more than %d samples", s->name,
                       SHARD_SAMPLES_MAX);
    if (shard->n < *cap)
        return 0;
    *cap = *cap ? *cap * 2 : 128;
    struct shard_sample *more = mem_try_realloc_array(shard->samples, *cap, sizeof(*more));
    if (!more)
        return err_set(s->err, -ENOMEM, "out of memory while opening shard %s", s->name);
    shard->samples = more;
    return 0;
}

static int parse(const void *data, size_t len, const char *name, struct shard *ret, struct err *err)
{
    struct scan s = {.data = data, .len = len, .name = name, .err = err};
    struct shard shard = {0};
    struct shard_sample sample;
    size_t cap = 0;
    int rc;
    while ((rc = next_sample(&s, &shard, &sample)) > 0) {
        rc = grow(&s, &shard, &cap);
        if (rc < 0)
            break;
        shard.samples[shard.n++] = sample;
        shard.tokens += sample.tokens;
    }
    if (rc == 0 && shard.n == 0)
        rc = broken(&s, "no samples");
    if (rc < 0)
        shard_close(&shard);
    else
        *ret = shard;
    return rc;
}

static const uint8_t *keep(uint8_t *kept, size_t *at, const uint8_t *data, size_t len)
{
    uint8_t *to = kept + *at;
    memcpy(to, data, len);
    *at += len;
    return to;
}

/* Only the contents of what was unpacked, without headers and padding.  Takes plain. */
static void keep_contents(struct shard *s, uint8_t *plain)
{
    const size_t floats = s->dim * sizeof(float);
    size_t size = 1, at = 0;
    for (size_t i = 0; i < s->n; i++)
        size += s->samples[i].len + floats;
    s->unpacked = mem_try(size);
    if (!s->unpacked) {
        s->unpacked = plain; /* more than is needed, but it is there */
        return;
    }
    for (size_t i = 0; i < s->n; i++) {
        struct shard_sample *x = &s->samples[i];
        x->data = keep(s->unpacked, &at, x->data, x->len);
        if (x->feature)
            x->feature = keep(s->unpacked, &at, x->feature, floats);
    }
    mem_free(plain);
}

int shard_parse(const void *data, size_t len, const char *name, struct shard *ret, struct err *err)
{
    uint8_t *plain;
    size_t size;
    if (!shard_is_packed(data, len))
        return parse(data, len, name, ret, err);
    int rc = shard_unpack(data, len, name, &plain, &size, err);
    if (rc < 0)
        return rc;
    rc = parse(plain, size, name, ret, err);
    if (rc < 0)
        mem_free(plain);
    else
        keep_contents(ret, plain);
    return rc;
}

int shard_open(const char *path, struct shard *ret, struct err *err)
{
    struct file_map map;
    int rc = file_map_open(path, &map, err);
    if (rc < 0)
        return rc;
    rc = shard_parse(map.data, map.len, path, ret, err);
    if (rc < 0 || ret->unpacked)
        file_map_close(&map);
    else
        ret->map = map;
    return rc;
}

void shard_close(struct shard *s)
{
    mem_free(s->samples);
    mem_free(s->unpacked);
    file_map_close(&s->map);
    *s = (struct shard){0};
}

void shard_tokens(const struct shard_sample *s, int32_t *out)
{
    const uint8_t *p = s->data + 1;
    switch (s->data[0]) {
    case 1:
        for (uint32_t i = 0; i < s->tokens; i++)
            out[i] = p[i];
        break;
    case 2:
        for (uint32_t i = 0; i < s->tokens; i++)
            out[i] = p[2 * (size_t)i] | p[2 * (size_t)i + 1] << 8;
        break;
    default:
        for (uint32_t i = 0; i < s->tokens; i++, p += 4)
            out[i] =
                (int32_t)(p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24);
    }
}

void shard_feature(const struct shard *shard, const struct shard_sample *s, float *out)
{
    const uint8_t *p = s->feature;
    for (uint32_t i = 0; i < shard->dim; i++, p += 4) {
        uint32_t bits = p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
        memcpy(&out[i], &bits, 4);
    }
}
