#include "common/data/shard.h"

#include <ctype.h>
#include <zstd.h>

#include "common/base/buf.h"
#include "common/data/captions.h"
#include "common/data/moments.h"
#include "common/data/tar.h"

#define BLOCK 512

/* What a sample's first member holds, by its extension; false: none of ours. */
static bool ext_kind(const char *ext, enum shard_kind *ret)
{
    bool text = strcmp(ext, "tok") == 0, latents = strcmp(ext, "lat") == 0;
    *ret = text ? SHARD_TEXT : latents ? SHARD_LATENTS : SHARD_IMAGES;
    return text || latents || strcmp(ext, "jpg") == 0 || strcmp(ext, "png") == 0 ||
           strcmp(ext, "webp") == 0;
}

/* ---- unpacking ---- */

#define FIRST_BYTES (64u << 10)

static bool is_packed(const void *data, size_t len)
{
    static const uint8_t magic[] = {0x28, 0xb5, 0x2f, 0xfd};
    return len >= sizeof(magic) && memcmp(data, magic, sizeof(magic)) == 0;
}

static int grow_out(ZSTD_outBuffer *out, const char *name, struct err *err)
{
    if (out->size == SHARD_UNPACKED_MAX)
        return err_set(err, -ERR_LIMIT, "shard %s unpacks to more than %u MiB", name,
                       SHARD_UNPACKED_MAX >> 20);
    const size_t size = out->size ? 2 * out->size : FIRST_BYTES;
    void *more = mem_try_realloc_array(out->dst, size, 1);
    if (!more)
        return err_set(err, -ENOMEM, "out of memory while unpacking shard %s", name);
    out->dst = more;
    out->size = size;
    return 0;
}

static int unpack(ZSTD_DCtx *z, ZSTD_inBuffer *in, ZSTD_outBuffer *out, const char *name,
                  struct err *err)
{
    size_t left = 1; /* 0: a frame is complete, and all of it was handed out */
    while (left > 0 || in->pos < in->size) {
        int rc = out->pos == out->size ? grow_out(out, name, err) : 0;
        if (rc < 0)
            return rc;
        left = ZSTD_decompressStream(z, out, in);
        if (ZSTD_isError(left))
            return err_set(err, -ERR_FORMAT, "shard %s, byte %zu: %s", name, in->pos,
                           ZSTD_getErrorName(left));
        if (left > 0 && in->pos == in->size && out->pos < out->size)
            return err_set(err, -ERR_FORMAT, "shard %s, byte %zu: cut short", name, in->pos);
    }
    return 0;
}

static int unpack_all(const void *data, size_t len, const char *name, uint8_t **ret,
                      size_t *ret_len, struct err *err)
{
    ZSTD_inBuffer in = {.src = data, .size = len};
    ZSTD_outBuffer out = {0};
    ZSTD_DCtx *z = ZSTD_createDCtx();
    int rc = z ? unpack(z, &in, &out, name, err)
               : err_set(err, -ENOMEM, "out of memory while unpacking shard %s", name);
    ZSTD_freeDCtx(z);
    if (rc < 0) {
        mem_free(out.dst);
        return rc;
    }
    *ret = out.dst;
    *ret_len = out.pos;
    return 0;
}

/* ---- reading ---- */

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
    bool have; /* `ahead` holds a member that is still to be taken */
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

static int take_captions(struct scan *s, struct shard_sample *out)
{
    struct member m;
    int rc = take(s, out->key, "txt", &m);
    if (rc <= 0)
        return rc;
    if (!captions_are_valid((const char *)m.data, (size_t)m.len))
        return broken(s, "captions are not lines of UTF-8");
    out->captions = (const char *)m.data;
    out->captions_len = (size_t)m.len;
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
    struct moments moments;
    enum shard_kind kind;
    if (!ext_kind(m->ext, &kind) || (shard->n && kind != shard->kind))
        return broken(s, "expected all images (KEY.jpg .png .webp), all latents (KEY.lat) or all "
                         "text (KEY.tok)");
    *out = (struct shard_sample){.data = m->data, .len = (size_t)m->len};
    (void)str_copy(out->key, sizeof(out->key), m->name);
    (void)str_copy(out->ext, sizeof(out->ext), m->ext);
    s->have = false;
    shard->kind = kind;
    rc = kind == SHARD_TEXT ? count_tokens(s, out) : take_class(s, out);
    if (rc == 0 && kind == SHARD_LATENTS && !moments_parse(out->data, out->len, &moments))
        rc = broken(s, "latents are damaged");
    if (rc == 0 && kind != SHARD_TEXT)
        rc = take_captions(s, out);
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

static const void *keep(uint8_t *kept, size_t *at, const void *data, size_t len)
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
        size += s->samples[i].len + s->samples[i].captions_len + floats;
    s->unpacked = mem_try(size);
    if (!s->unpacked) {
        s->unpacked = plain; /* more than is needed, but it is there */
        return;
    }
    for (size_t i = 0; i < s->n; i++) {
        struct shard_sample *x = &s->samples[i];
        x->data = keep(s->unpacked, &at, x->data, x->len);
        if (x->captions)
            x->captions = keep(s->unpacked, &at, x->captions, x->captions_len);
        if (x->feature)
            x->feature = keep(s->unpacked, &at, x->feature, floats);
    }
    mem_free(plain);
}

int shard_parse(const void *data, size_t len, const char *name, struct shard *ret, struct err *err)
{
    uint8_t *plain;
    size_t size;
    if (!is_packed(data, len))
        return parse(data, len, name, ret, err);
    int rc = unpack_all(data, len, name, &plain, &size, err);
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

/* ---- names ---- */

#define KEY_TAIL 80 /* bytes of a name that are kept, with its hash */
#define HASH_TAIL 9 /* bytes of "-" and the hash */
#define NUMBER_DIGITS 6

static bool is_ascii(const char *name, size_t len)
{
    size_t i = 0;
    while (i < len && !(name[i] & 0x80))
        i++;
    return i == len;
}

/* Gives a name that is in this form already as it is. */
static void make_key(uint32_t number, const char *name, size_t len, char out[SHARD_KEY_MAX])
{
    const bool whole = len <= KEY_TAIL && is_ascii(name, len);
    const size_t most = whole ? KEY_TAIL : KEY_TAIL - HASH_TAIL;
    int at = snprintf(out, SHARD_KEY_MAX, "%0*u-", NUMBER_DIGITS, number);
    for (size_t i = len > most ? len - most : 0; i < len; i++) {
        unsigned char c = (unsigned char)name[i];
        bool plain = c < 0x80 && c && (isalnum(c) || strchr("_-#", c));
        out[at++] = plain ? (char)c : '_';
    }
    out[at] = '\0';
    if (!whole) {
        uint8_t sum[HASH_BYTES];
        char hex[HASH_HEX_MAX];
        hash_sha256(name, len, sum);
        (void)snprintf(out + at, SHARD_KEY_MAX - (size_t)at, "-%s", hash_hex(sum, 4, hex));
    }
}

void shard_key(const char *name, size_t len, char out[SHARD_KEY_MAX])
{
    make_key(0, name, len, out);
}

/* A name without the number that a shard put before it. */
static const char *bare_name(const char *key)
{
    size_t digits = strspn(key, "0123456789");
    return digits >= NUMBER_DIGITS && key[digits] == '-' ? key + digits + 1 : key;
}

const char *shard_name(const struct shard_sample *s)
{
    return bare_name(s->key);
}

/* ---- writing ---- */

#define MEMBER_BYTES 1024      /* a member beside its content, at most */
#define SPARE_BYTES (1u << 20) /* for a feature, and the end of the archive */

struct shard_writer {
    struct tar_writer *tar; /* NULL until the first sample says of what kind it is */
    char *path;
    enum shard_kind kind;
    uint32_t dim, samples;
    uint64_t tokens, unpacked; /* bytes, about */
};

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
    if (!ext_kind(s->ext, ret))
        return err_set(err, -EINVAL, "'%s': a shard holds no .%s", s->key, s->ext);
    if (w->samples && (*ret != w->kind || dim != w->dim))
        return err_set(err, -EINVAL,
                       "'%s': a shard holds samples of one kind with features of one length",
                       s->key);
    if (dim > SHARD_FEATURE_MAX)
        return err_set(err, -ERR_LIMIT, "'%s': a feature has %u numbers, at most %d are possible",
                       s->key, dim, SHARD_FEATURE_MAX);
    if (s->captions && (*ret == SHARD_TEXT || !captions_are_valid(s->captions, s->captions_len)))
        return err_set(err, -EINVAL, "'%s': captions are lines of UTF-8 that come with an image",
                       s->key);
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
    const char *name = bare_name(s->key);
    make_key(w->samples, name, strlen(name), key);
    rc = add_member(w, key, s->ext, s->data, s->len, err);
    int n = snprintf(cls, sizeof(cls), "%u", s->cls);
    if (rc == 0 && kind != SHARD_TEXT)
        rc = add_member(w, key, "cls", cls, (size_t)n, err);
    if (rc == 0 && s->captions)
        rc = add_member(w, key, "txt", s->captions, s->captions_len, err);
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
