#include "common/base/shard.h"

#include <errno.h>
#include <string.h>

#include "common/base/err.h"
#include "common/base/mem.h"
#include "common/base/str.h"

#define BLOCK 512

/* A member of the archive, inside the bytes. */
struct member {
    char name[SHARD_KEY_MAX + 1];
    const uint8_t *data;
    uint64_t len;
};

struct scan {
    const uint8_t *data;
    size_t len, at;
    const char *name;
    struct err *err;
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

/* KEY.ext and KEY.cls make a sample. */
static int make_sample(const struct scan *s, const struct member *image, const struct member *cls,
                       struct shard_sample *out)
{
    char text[16] = "";
    uint64_t value;
    const char *dot = strrchr(image->name, '.');
    size_t key = dot ? (size_t)(dot - image->name) : 0;
    if (key == 0 || strncmp(cls->name, image->name, key + 1) != 0 ||
        strcmp(cls->name + key, ".cls") != 0)
        return broken(s, "expected KEY.EXT followed by KEY.cls");
    if (cls->len == 0 || cls->len >= sizeof(text))
        return broken(s, "a class is not a number");
    memcpy(text, cls->data, cls->len);
    if (strlen(text) != cls->len || str_parse_u64(text, &value) < 0 || value > INT32_MAX)
        return broken(s, "a class is not a number");
    memcpy(out->key, image->name, key);
    out->key[key] = '\0';
    out->cls = (uint32_t)value;
    out->data = image->data;
    out->len = (size_t)image->len;
    return 0;
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

int shard_parse(const void *data, size_t len, const char *name, struct shard *ret, struct err *err)
{
    struct scan s = {.data = data, .len = len, .name = name, .err = err};
    struct shard shard = {0};
    size_t cap = 0;
    int rc;
    for (;;) {
        struct member image, cls;
        rc = next_member(&s, &image);
        if (rc <= 0)
            break;
        rc = next_member(&s, &cls);
        if (rc == 0)
            rc = broken(&s, "expected KEY.EXT followed by KEY.cls");
        if (rc > 0)
            rc = grow(&s, &shard, &cap);
        if (rc == 0)
            rc = make_sample(&s, &image, &cls, &shard.samples[shard.n]);
        if (rc < 0)
            break;
        shard.n++;
    }
    if (rc == 0 && shard.n == 0)
        rc = broken(&s, "no samples");
    if (rc < 0)
        shard_close(&shard);
    else
        *ret = shard;
    return rc;
}

int shard_open(const char *path, struct shard *ret, struct err *err)
{
    struct file_map map;
    int rc = file_map_open(path, &map, err);
    if (rc < 0)
        return rc;
    rc = shard_parse(map.data, map.len, path, ret, err);
    if (rc < 0)
        file_map_close(&map);
    else
        ret->map = map;
    return rc;
}

void shard_close(struct shard *s)
{
    mem_free(s->samples);
    file_map_close(&s->map);
    *s = (struct shard){0};
}
