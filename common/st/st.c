#include "common/st/st.h"

#include <fcntl.h>
#include <jansson.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/file.h"

static const struct {
    const char *name;
    size_t bytes;
} dtypes[] = {
    [ST_UNSPECIFIED] = {"?", 0}, [ST_BOOL] = {"BOOL", 1}, [ST_U8] = {"U8", 1},
    [ST_I8] = {"I8", 1},         [ST_U16] = {"U16", 2},   [ST_I16] = {"I16", 2},
    [ST_F16] = {"F16", 2},       [ST_BF16] = {"BF16", 2}, [ST_U32] = {"U32", 4},
    [ST_I32] = {"I32", 4},       [ST_F32] = {"F32", 4},   [ST_U64] = {"U64", 8},
    [ST_I64] = {"I64", 8},       [ST_F64] = {"F64", 8},
};
#define N_DTYPES (sizeof(dtypes) / sizeof(dtypes[0]))

const char *st_dtype_name(enum st_dtype dtype)
{
    return (size_t)dtype < N_DTYPES ? dtypes[dtype].name : "?";
}

size_t st_dtype_bytes(enum st_dtype dtype)
{
    return (size_t)dtype < N_DTYPES ? dtypes[dtype].bytes : 0;
}

static enum st_dtype dtype_parse(const char *name)
{
    for (size_t i = 1; i < N_DTYPES; i++)
        if (strcmp(name, dtypes[i].name) == 0)
            return (enum st_dtype)i;
    return ST_UNSPECIFIED;
}

/* The file that is being parsed, for the messages. */
struct parse {
    const char *name;
    uint64_t payload_bytes;
    struct st *st;
    struct err *err;
};

static int parse_shape(const struct parse *p, const char *key, const json_t *shape,
                       struct st_tensor *t)
{
    if (!json_is_array(shape) || json_array_size(shape) > ST_RANK_MAX)
        return err_set(p->err, -ERR_FORMAT,
                       "%s: tensor '%s': shape must be a list of at most %d dimensions", p->name,
                       key, ST_RANK_MAX);
    t->rank = (unsigned)json_array_size(shape);
    t->count = 1;
    for (unsigned i = 0; i < t->rank; i++) {
        const json_t *dim = json_array_get(shape, i);
        if (!json_is_integer(dim) || json_integer_value(dim) < 0)
            return err_set(p->err, -ERR_FORMAT,
                           "%s: tensor '%s': dimension %u is not a whole number", p->name, key, i);
        t->shape[i] = (uint64_t)json_integer_value(dim);
        if (__builtin_mul_overflow(t->count, t->shape[i], &t->count))
            return err_set(p->err, -ERR_FORMAT, "%s: tensor '%s': the shape overflows", p->name,
                           key);
    }
    if (__builtin_mul_overflow(t->count, (uint64_t)st_dtype_bytes(t->dtype), &t->bytes))
        return err_set(p->err, -ERR_FORMAT, "%s: tensor '%s': the shape overflows", p->name, key);
    return 0;
}

static int parse_offsets(const struct parse *p, const char *key, const json_t *offsets,
                         struct st_tensor *t)
{
    const json_t *from = json_array_get(offsets, 0), *to = json_array_get(offsets, 1);
    if (json_array_size(offsets) != 2 || !json_is_integer(from) || !json_is_integer(to) ||
        json_integer_value(from) < 0 || json_integer_value(to) < json_integer_value(from))
        return err_set(p->err, -ERR_FORMAT,
                       "%s: tensor '%s': data_offsets must be [begin, end] with begin <= end",
                       p->name, key);
    uint64_t begin = (uint64_t)json_integer_value(from), end = (uint64_t)json_integer_value(to);
    if (end > p->payload_bytes)
        return err_set(p->err, -ERR_FORMAT,
                       "%s: tensor '%s' ends at byte %llu of a payload of %llu: the file is cut "
                       "short or its header is wrong",
                       p->name, key, (unsigned long long)end, (unsigned long long)p->payload_bytes);
    if (end - begin != t->bytes)
        return err_set(p->err, -ERR_FORMAT,
                       "%s: tensor '%s': shape and dtype need %llu bytes but data_offsets give "
                       "%llu",
                       p->name, key, (unsigned long long)t->bytes,
                       (unsigned long long)(end - begin));
    t->offset = p->st->payload + begin;
    return 0;
}

static int parse_tensor(const struct parse *p, const char *key, const json_t *value)
{
    struct st_tensor *t = &p->st->tensors[p->st->n_tensors];
    size_t length = strlen(key);
    if (length == 0 || length > ST_NAME_MAX)
        return err_set(p->err, -ERR_FORMAT, "%s: a tensor's name must have 1 to %d bytes", p->name,
                       ST_NAME_MAX);
    if (!json_is_object(value) || json_object_size(value) != 3)
        return err_set(p->err, -ERR_FORMAT,
                       "%s: tensor '%s' must have exactly dtype, shape and data_offsets", p->name,
                       key);
    const char *dtype = json_string_value(json_object_get(value, "dtype"));
    t->dtype = dtype ? dtype_parse(dtype) : ST_UNSPECIFIED;
    if (t->dtype == ST_UNSPECIFIED)
        return err_set(p->err, -ERR_FORMAT, "%s: tensor '%s': unknown dtype '%s'", p->name, key,
                       dtype ? dtype : "(none)");
    int rc = parse_shape(p, key, json_object_get(value, "shape"), t);
    if (rc == 0)
        rc = parse_offsets(p, key, json_object_get(value, "data_offsets"), t);
    if (rc == 0) {
        t->name = str_dup(key);
        p->st->n_tensors++;
    }
    return rc;
}

static int parse_meta(const struct parse *p, json_t *map)
{
    if (!json_is_object(map) || json_object_size(map) > ST_META_MAX)
        return err_set(p->err, -ERR_FORMAT, "%s: __metadata__ must be a map of at most %d strings",
                       p->name, ST_META_MAX);
    p->st->meta = mem_try_array(json_object_size(map), sizeof(*p->st->meta));
    if (!p->st->meta)
        return err_set(p->err, -ENOMEM, "out of memory while reading %s", p->name);
    const char *key;
    json_t *value;
    json_object_foreach(map, key, value)
    {
        if (!json_is_string(value))
            return err_set(p->err, -ERR_FORMAT, "%s: __metadata__ '%s' is not a string", p->name,
                           key);
        p->st->meta[p->st->n_meta++] =
            (struct st_meta){.key = str_dup(key), .value = str_dup(json_string_value(value))};
    }
    return 0;
}

static int by_offset(const void *a, const void *b)
{
    const struct st_tensor *x = a, *y = b;
    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    /* Empty tensors come before the one that starts at the same place. */
    if (x->bytes != y->bytes)
        return x->bytes < y->bytes ? -1 : 1;
    return strcmp(x->name, y->name);
}

/* The tensors must tile the payload: no overlap, no gap, nothing after. */
static int check_tiling(const struct parse *p)
{
    struct st *st = p->st;
    if (st->n_tensors)
        qsort(st->tensors, st->n_tensors, sizeof(*st->tensors), by_offset);
    uint64_t at = st->payload;
    for (size_t i = 0; i < st->n_tensors; i++) {
        const struct st_tensor *t = &st->tensors[i];
        if (t->offset != at)
            return err_set(p->err, -ERR_FORMAT, "%s: tensor '%s' %s", p->name, t->name,
                           t->offset < at ? "overlaps the one before it"
                                          : "leaves a gap before it");
        at += t->bytes;
    }
    if (at != st->file_bytes)
        return err_set(p->err, -ERR_FORMAT, "%s has %llu bytes after its last tensor", p->name,
                       (unsigned long long)(st->file_bytes - at));
    return 0;
}

static int parse_root(const struct parse *p, json_t *root)
{
    if (!json_is_object(root))
        return err_set(p->err, -ERR_FORMAT, "%s: the header is not a JSON map", p->name);
    size_t n = json_object_size(root);
    if (n > ST_TENSORS_MAX)
        return err_set(p->err, -ERR_LIMIT, "%s has %zu tensors, at most %d are allowed", p->name, n,
                       ST_TENSORS_MAX);
    p->st->tensors = mem_try_array(n, sizeof(*p->st->tensors));
    if (!p->st->tensors)
        return err_set(p->err, -ENOMEM, "out of memory while reading %s", p->name);
    const char *key;
    json_t *value;
    json_object_foreach(root, key, value)
    {
        int rc =
            strcmp(key, "__metadata__") == 0 ? parse_meta(p, value) : parse_tensor(p, key, value);
        if (rc < 0)
            return rc;
    }
    return check_tiling(p);
}

static uint64_t read_le64(const uint8_t *p)
{
    uint64_t v = 0;
    for (int i = 7; i >= 0; i--)
        v = v << 8 | p[i];
    return v;
}

/* Checks the length word against the limits and the file's size. */
static int check_length(const uint8_t *word, uint64_t file_bytes, const char *name, uint64_t *ret,
                        struct err *err)
{
    if (file_bytes < 8)
        return err_set(err, -ERR_FORMAT, "%s is not a safetensors file: it has only %llu bytes",
                       name, (unsigned long long)file_bytes);
    uint64_t n = read_le64(word);
    int rc = file_check_placeholder(name, word, 8, err);
    if (rc < 0)
        return rc;
    if (n > ST_HEADER_MAX)
        return err_set(err, -ERR_FORMAT,
                       "%s is not a safetensors file: its header would have %llu bytes", name,
                       (unsigned long long)n);
    if (n > file_bytes - 8)
        return err_set(err, -ERR_FORMAT, "%s is cut short: header of %llu bytes, file of %llu",
                       name, (unsigned long long)n, (unsigned long long)file_bytes);
    *ret = n;
    return 0;
}

/* As many values as the most tensors need. */
#define LISTS_MAX (3u * ST_TENSORS_MAX + 2u)             /* lists and maps */
#define VALUES_MAX ((ST_RANK_MAX + 8u) * ST_TENSORS_MAX) /* commas and colons */

int st_parse(const void *data, size_t len, uint64_t file_bytes, const char *name, struct st *ret,
             struct err *err)
{
    const uint8_t *bytes = data;
    uint64_t n;
    int rc = check_length(bytes, len < 8 ? len : file_bytes, name, &n, err);
    if (rc < 0)
        return rc;
    if (len - 8 < n)
        return err_set(err, -ERR_FORMAT, "%s: %zu bytes do not hold its header", name, len);
    if (n == 0 || bytes[8] != '{')
        return err_set(err, -ERR_FORMAT, "%s: the header is not a JSON map", name);
    const char *json = (const char *)bytes + 8;
    if (str_json_exceeds(json, (size_t)n, LISTS_MAX, VALUES_MAX))
        return err_set(err, -ERR_LIMIT, "%s: its header holds more than %d tensors do", name,
                       ST_TENSORS_MAX);
    json_error_t fault;
    json_t *root = json_loadb(json, (size_t)n, JSON_REJECT_DUPLICATES, &fault);
    if (!root)
        return err_set(err, -ERR_FORMAT, "%s: header byte %d: %s", name, fault.position,
                       fault.text);
    struct st st = {.payload = 8 + n, .file_bytes = file_bytes};
    struct parse p = {name, file_bytes - 8 - n, &st, err};
    rc = parse_root(&p, root);
    json_decref(root);
    if (rc < 0)
        st_release(&st);
    else
        *ret = st;
    return rc;
}

int st_read(int fd, const char *path, struct st *ret, struct err *err)
{
    struct stat info;
    if (fstat(fd, &info) < 0)
        return err_errno(err, "cannot look at %s", path);
    return st_read_part(fd, path, (uint64_t)info.st_size, ret, err);
}

int st_header_end(int fd, const char *path, uint64_t file_bytes, uint64_t *ret, struct err *err)
{
    uint64_t n;
    uint8_t word[8] = {0};
    int rc = file_bytes < 8 ? 0 : file_pread_all(fd, word, 8, 0, path, err);
    if (rc == 0)
        rc = check_length(word, file_bytes, path, &n, err);
    if (rc == 0)
        *ret = n + 8;
    return rc;
}

int st_read_part(int fd, const char *path, uint64_t file_bytes, struct st *ret, struct err *err)
{
    uint64_t end;
    int rc = st_header_end(fd, path, file_bytes, &end, err);
    if (rc < 0)
        return rc;
    uint8_t *head = mem_try((size_t)end);
    if (!head)
        return err_set(err, -ENOMEM, "out of memory while reading %s", path);
    rc = file_pread_all(fd, head, (size_t)end, 0, path, err);
    if (rc == 0)
        rc = st_parse(head, (size_t)end, file_bytes, path, ret, err);
    mem_free(head);
    return rc;
}

int st_open(const char *path, struct st *ret, struct err *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return err_errno(err, "cannot open %s", path);
    int rc = st_read(fd, path, ret, err);
    close(fd);
    return rc;
}

void st_release(struct st *st)
{
    if (!st)
        return;
    for (size_t i = 0; i < st->n_tensors; i++)
        mem_free(st->tensors[i].name);
    for (size_t i = 0; i < st->n_meta; i++) {
        mem_free(st->meta[i].key);
        mem_free(st->meta[i].value);
    }
    mem_free(st->tensors);
    mem_free(st->meta);
    *st = (struct st){0};
}

const struct st_tensor *st_find(const struct st *st, const char *name)
{
    for (size_t i = 0; i < st->n_tensors; i++)
        if (strcmp(st->tensors[i].name, name) == 0)
            return &st->tensors[i];
    return NULL;
}

bool st_is_leftover(const char *name, bool texts, bool captioned)
{
    if (texts)
        return str_ends(name, "rotary_emb.inv_freq");
    return captioned && (strcmp(name, "caption_projection.y_embedding") == 0 ||
                         strcmp(name, "pos_embed.pos_embed") == 0);
}

const char *st_meta_get(const struct st *st, const char *key)
{
    for (size_t i = 0; i < st->n_meta; i++)
        if (strcmp(st->meta[i].key, key) == 0)
            return st->meta[i].value;
    return NULL;
}

const char *st_shape_text(unsigned rank, const uint64_t *shape, char out[ST_SHAPE_TEXT])
{
    int at = snprintf(out, ST_SHAPE_TEXT, "(");
    for (unsigned i = 0; i < rank; i++)
        at += snprintf(out + at, ST_SHAPE_TEXT - (size_t)at, "%s%llu", i ? ", " : "",
                       (unsigned long long)shape[i]);
    (void)snprintf(out + at, ST_SHAPE_TEXT - (size_t)at, ")");
    return out;
}

int st_meta_number(const struct st *st, const char *path, const char *key, uint64_t *ret,
                   struct err *err)
{
    const char *text = st_meta_get(st, key);
    char *end = NULL;
    errno = 0;
    const unsigned long long value =
        text && *text >= '0' && *text <= '9' ? strtoull(text, &end, 10) : 0;
    if (!end || *end || errno)
        return err_set(err, -ERR_FORMAT, "%s: metadata %s is %s, expected a number", path, key,
                       text ? text : "missing");
    *ret = value;
    return 0;
}

int st_expect(const struct st *st, const char *name, enum st_dtype dtype, unsigned rank,
              const uint64_t *shape, const struct st_tensor **ret, struct err *err)
{
    const struct st_tensor *t = st_find(st, name);
    if (!t)
        return err_set(err, -ERR_FORMAT, "tensor '%s' is missing", name);
    bool same = t->dtype == dtype && t->rank == rank;
    for (unsigned i = 0; same && i < rank; i++)
        same = t->shape[i] == shape[i];
    if (same) {
        *ret = t;
        return 0;
    }
    char has[ST_SHAPE_TEXT], wants[ST_SHAPE_TEXT];
    return err_set(err, -ERR_FORMAT, "tensor '%s' is %s %s, expected %s %s", name,
                   st_dtype_name(t->dtype), st_shape_text(t->rank, t->shape, has),
                   st_dtype_name(dtype), st_shape_text(rank, shape, wants));
}

/* ---- values as f32 ---- */

static float from_bits(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static float from_f16(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exponent = (h >> 10) & 31u,
                   man = h & 1023u;
    if (exponent == 31)
        return from_bits(sign | 0x7f800000u | man << 13);
    if (exponent == 0) {
        float f = ldexpf((float)man, -24);
        return sign ? -f : f;
    }
    return from_bits(sign | (exponent + 112) << 23 | man << 13);
}

/* values holds count 16-bit words in its second half; widens them in place, front to back. */
static void widen(float *values, uint64_t count, enum st_dtype dtype)
{
    const char *words = (const char *)values + count * 2;
    for (uint64_t i = 0; i < count; i++) {
        uint16_t h;
        memcpy(&h, words + i * 2, sizeof h);
        values[i] = dtype == ST_BF16 ? from_bits((uint32_t)h << 16) : from_f16(h);
    }
}

static bool is_integer(enum st_dtype dtype)
{
    return dtype == ST_I64 || dtype == ST_I32;
}

static void integers_to_f32(enum st_dtype dtype, const uint8_t *in, size_t n, float *out)
{
    for (size_t i = 0; i < n; i++) {
        int64_t wide = 0;
        int32_t narrow = 0;
        if (dtype == ST_I64)
            memcpy(&wide, in + 8 * i, sizeof(wide));
        else
            memcpy(&narrow, in + 4 * i, sizeof(narrow));
        out[i] = dtype == ST_I64 ? (float)wide : (float)narrow;
    }
}

void st_to_f32(enum st_dtype dtype, const void *in, size_t n, float *out)
{
    const uint8_t *at = in;
    if (dtype == ST_F32) {
        memcpy(out, in, n * sizeof(*out));
        return;
    }
    if (is_integer(dtype)) {
        integers_to_f32(dtype, at, n, out);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        uint16_t h;
        memcpy(&h, at + 2 * i, sizeof(h));
        out[i] = dtype == ST_BF16 ? from_bits((uint32_t)h << 16) : from_f16(h);
    }
}

/* Rounds to the nearest value, ties to even; values too large become infinite. */
static uint16_t to_f16(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof(u));
    const uint16_t sign = (uint16_t)(u >> 16 & 0x8000);
    u &= 0x7fffffffu;
    if (u > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00);
    if (u >= 0x477ff000u)
        return (uint16_t)(sign | 0x7c00);
    if (u < 0x38800000u) /* subnormal: multiples of 2^-24 */
        return (uint16_t)(sign | (uint16_t)lrintf(from_bits(u) * 16777216.0f));
    return (uint16_t)(sign | (u - 0x38000000u + 0xfff + (u >> 13 & 1)) >> 13);
}

static uint16_t to_bf16(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof(u));
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

static void integers_from_f32(enum st_dtype dtype, const float *in, size_t n, uint8_t *out)
{
    for (size_t i = 0; i < n; i++) {
        const float most = ST_EXACT_MAX, low = in[i] > -most ? in[i] : -most; /* also for a NaN */
        const int64_t wide = llrintf(low < most ? low : most);
        const int32_t narrow = (int32_t)wide;
        if (dtype == ST_I64)
            memcpy(out + 8 * i, &wide, sizeof(wide));
        else
            memcpy(out + 4 * i, &narrow, sizeof(narrow));
    }
}

void st_from_f32(enum st_dtype dtype, const float *in, size_t n, void *out)
{
    uint8_t *at = out;
    if (dtype == ST_F32) {
        memcpy(out, in, n * sizeof(*in));
        return;
    }
    if (is_integer(dtype)) {
        integers_from_f32(dtype, in, n, at);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        const uint16_t h = dtype == ST_BF16 ? to_bf16(in[i]) : to_f16(in[i]);
        memcpy(at + 2 * i, &h, sizeof(h));
    }
}

/* True if the name is a line of the text. */
static bool has_line(const char *text, const char *name)
{
    const size_t len = strlen(name);
    for (const char *p = text; p && *p; p = strchr(p, '\n') ? strchr(p, '\n') + 1 : NULL)
        if (strncmp(p, name, len) == 0 && (p[len] == '\n' || p[len] == '\0'))
            return true;
    return false;
}

enum st_dtype st_dtype_at_home(const struct st *st, const struct st_tensor *t)
{
    static const enum st_dtype others[] = {ST_BF16, ST_F16, ST_I64, ST_I32};
    for (size_t i = 0; t->dtype == ST_F32 && i < sizeof(others) / sizeof(*others); i++) {
        char key[32];
        (void)snprintf(key, sizeof(key), "skerry.%s", st_dtype_name(others[i]));
        if (has_line(st_meta_get(st, key), t->name))
            return others[i];
    }
    return t->dtype;
}

/* Without branches and in lanes, because it runs over every weight. */
static bool all_finite(const float *values, uint64_t n)
{
    uint32_t odd[16] = {0}, bits[16], any = 0;
    uint64_t at = 0;
    for (; at + 16 <= n; at += 16) {
        memcpy(bits, values + at, sizeof(bits));
        for (int i = 0; i < 16; i++)
            odd[i] |= (bits[i] & 0x7fffffffu) + 0x00800000u; /* the sign bit: all exponent bits */
    }
    for (; at < n; at++) {
        memcpy(bits, values + at, sizeof(*bits));
        any |= (bits[0] & 0x7fffffffu) + 0x00800000u;
    }
    for (int i = 0; i < 16; i++)
        any |= odd[i];
    return !(any & 0x80000000u);
}

int st_read_f32(int fd, const char *path, const struct st_tensor *t, float *out, struct err *err)
{
    const bool wide = t->dtype == ST_F32;
    if (!wide && t->dtype != ST_BF16 && t->dtype != ST_F16)
        return err_set(err, -ERR_CONFIG, "%s: %s is of type %s, expected F32, BF16 or F16", path,
                       t->name, st_dtype_name(t->dtype));
    int rc =
        file_pread_all(fd, (char *)out + (wide ? 0 : t->count * 2), t->bytes, t->offset, path, err);
    if (rc < 0)
        return rc;
    if (!wide)
        widen(out, t->count, t->dtype);
    const bool fine = all_finite(out, t->count);
    for (uint64_t i = 0; !fine && i < t->count; i++)
        if (!isfinite(out[i]))
            return err_set(err, -ERR_CONFIG, "%s: %s holds a value that is not finite at %llu",
                           path, t->name, (unsigned long long)i);
    return 0;
}

/* ---- writing ---- */

struct st_writer {
    struct st_tensor *tensors;
    size_t n, cap;
    uint32_t *places; /* (2 cap) hash table of tensor numbers from 1, by name; 0: free */
    struct st_meta meta[ST_META_MAX];
    size_t n_meta;
    uint64_t payload; /* bytes declared */
    uint64_t written; /* payload bytes written */
    int sticky;       /* first failure of st_writer_meta */
    struct file_out out;
    bool local;
    struct hash hash; /* unless local */
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
    mem_free(w->places);
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

void st_writer_number(struct st_writer *w, const char *key, uint64_t value)
{
    char text[24];
    (void)snprintf(text, sizeof text, "%" PRIu64, value); /* always fits */
    st_writer_meta(w, key, text);
}

/* The place of the tensor of that name, or the free place for it. */
static uint32_t *place_of(const struct st_writer *w, const char *name)
{
    uint64_t h = 0xcbf29ce484222325u; /* FNV-1a */
    for (const char *c = name; *c; c++)
        h = (h ^ (uint8_t)*c) * 0x100000001b3u;
    size_t at = (h ^ h >> 32) % (2 * w->cap);
    while (w->places[at] && strcmp(w->tensors[w->places[at] - 1].name, name) != 0)
        at = (at + 1) % (2 * w->cap);
    return &w->places[at];
}

/* Makes room for one more tensor. */
static int make_room(struct st_writer *w, struct err *err)
{
    if (w->n == ST_TENSORS_MAX)
        return err_set(err, -ERR_LIMIT, "more than %d tensors", ST_TENSORS_MAX);
    if (w->n < w->cap)
        return 0;
    const size_t cap = w->cap ? w->cap * 2 : 64;
    uint32_t *places = mem_try_array(2 * cap, sizeof(*places));
    struct st_tensor *more = places ? mem_try_realloc_array(w->tensors, cap, sizeof(*more)) : NULL;
    if (!more) {
        mem_free(places);
        return err_set(err, -ENOMEM, "out of memory while declaring tensors");
    }
    mem_free(w->places);
    w->tensors = more;
    w->places = places;
    w->cap = cap;
    for (size_t i = 0; i < w->n; i++)
        *place_of(w, more[i].name) = (uint32_t)i + 1;
    return 0;
}

int st_writer_add(struct st_writer *w, const char *name, enum st_dtype dtype, unsigned rank,
                  const uint64_t *shape, struct err *err)
{
    struct st_tensor t = {.dtype = dtype, .rank = rank, .count = 1, .offset = w->payload};
    size_t length = strlen(name);
    if (length == 0 || length > ST_NAME_MAX || !str_is_utf8(name, length) ||
        strcmp(name, "__metadata__") == 0 || rank > ST_RANK_MAX || !st_dtype_bytes(dtype))
        return err_set(err, -EINVAL, "tensor '%s': impossible name, dtype or rank %u", name, rank);
    int rc = make_room(w, err);
    if (rc < 0)
        return rc;
    uint32_t *place = place_of(w, name);
    if (*place)
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
    t.name = str_dup(name);
    w->tensors[w->n++] = t;
    *place = (uint32_t)w->n;
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

void st_writer_local(struct st_writer *w)
{
    w->local = true;
}

int st_writer_open(struct st_writer *w, const char *path, struct err *err)
{
    struct buf head;
    buf_init(&head, ST_HEADER_MAX + 8);
    int rc = st_writer_header(w, &head, NULL, err);
    if (rc == 0)
        rc = w->local ? file_out_open_again(&w->out, path, NULL, 0644, err)
                      : file_out_open(&w->out, path, 0644, err);
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
    if (!w->local)
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
    int rc = w->local ? file_out_put(&w->out, err) : file_out_commit(&w->out, err);
    if (rc < 0)
        return rc;
    if (sha256)
        hash_final(&w->hash, sha256);
    if (ret_bytes)
        *ret_bytes = size;
    return 0;
}
