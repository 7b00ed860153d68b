#include "worker/fit/partitioner.h"

#include "common/base/file.h"
#include "common/base/rng.h"
#include "common/st/st.h"
#include "worker/fit/affine.h"
#include "worker/fit/fit.h"
#include "worker/fit/partitioner_impl.h"

#define BLOCK_SCORES (4u << 20) /* scores of one block */
#define CHUNK_ROWS 8192         /* rows projected at a time */
#define STREAM_RANDOM 0x72616e64ULL
#define FORMAT "skerry.partitioner.1"
#define RADIX_TEXT (PARTITION_LEVELS_MAX * 6 + 1)

static const char *const names[PARTITION_KINDS] = {"kmeans", "two_level", "product", "linear",
                                                   "random"};

static const char *kind_name(enum partition_kind kind)
{
    return kind < PARTITION_KINDS ? names[kind] : "unknown";
}

static int parse_kind(const char *name, enum partition_kind *ret)
{
    for (unsigned i = 0; i < PARTITION_KINDS; i++)
        if (strcmp(name, names[i]) == 0) {
            *ret = (enum partition_kind)i;
            return 0;
        }
    return -EINVAL;
}

struct partitioner *partitioner_new(enum partition_kind kind, uint32_t n_levels,
                                    const uint32_t *radix, uint64_t seed)
{
    struct partitioner *p = mem_alloc(sizeof(*p));
    p->kind = kind;
    p->seed = seed;
    p->n_levels = n_levels;
    p->k = 1;
    for (uint32_t l = 0; l < n_levels; l++) {
        p->radix[l] = radix[l];
        p->k *= radix[l];
    }
    return p;
}

int partitioner_level(struct partitioner *p, uint32_t l, uint32_t k, uint32_t at, uint32_t d)
{
    struct partition_level *v = &p->level[l];
    *v = (struct partition_level){.k = k, .at = at, .d = d};
    v->weight = mem_try_array((size_t)k * d, sizeof(float));
    v->intercept = mem_try_array(k, sizeof(float));
    p->n_fitted = p->n_fitted > l + 1 ? p->n_fitted : l + 1;
    return v->weight && v->intercept ? 0 : -ENOMEM;
}

void partitioner_free(struct partitioner *p)
{
    if (!p)
        return;
    for (uint32_t l = 0; l < p->n_fitted; l++) {
        mem_free(p->level[l].weight);
        mem_free(p->level[l].intercept);
    }
    pca_release(&p->input);
    mem_free(p->group);
    mem_free(p->bias);
    mem_free(p);
}

void partition_report_release(struct partition_report *r)
{
    if (!r)
        return;
    mem_free(r->sizes);
    *r = (struct partition_report){0};
}

/* ---- scores of projected rows ---- */

int scorer_open(struct scorer *s, const struct partitioner *p, struct device *dev, struct err *err)
{
    *s = (struct scorer){.p = p, .rows = BLOCK_SCORES / p->k};
    s->rows = s->rows > CHUNK_ROWS ? CHUNK_ROWS : s->rows;
    int rc = 0;
    for (uint32_t l = 0; rc == 0 && l < p->n_fitted; l++) {
        const struct partition_level *v = &p->level[l];
        if ((rc = affine_new(dev, v->d, v->k, &s->level[l], err)) == 0)
            rc = affine_set(s->level[l], v->weight, v->intercept, err);
        if (rc == 0 && affine_rows(s->level[l]) < s->rows)
            s->rows = affine_rows(s->level[l]);
    }
    if (rc < 0)
        return rc;
    s->piece = mem_arrays_add(&s->arrays, (size_t)s->rows * p->input.r, sizeof(float));
    s->y = mem_arrays_add(&s->arrays, (size_t)s->rows * p->k, sizeof(float));
    s->spare = mem_arrays_add(&s->arrays, p->k, sizeof(float));
    if (s->arrays.failed)
        return err_set(err, -ENOMEM, "no memory for scores of %u partitions", p->k);
    return 0;
}

void scorer_close(struct scorer *s)
{
    for (uint32_t l = 0; l < PARTITION_LEVELS_MAX; l++)
        affine_free(s->level[l]);
    mem_arrays_free(&s->arrays);
    *s = (struct scorer){0};
}

/* Columns at..at+d-1 of z, dense. */
static const float *piece_of(struct scorer *s, const float *z, uint32_t rows, uint32_t l)
{
    const struct partition_level *v = &s->p->level[l];
    const uint32_t r = s->p->input.r;
    if (v->d == r)
        return z;
    for (uint32_t i = 0; i < rows; i++)
        memcpy(s->piece + (size_t)i * v->d, z + (size_t)i * r + v->at, v->d * sizeof(float));
    return s->piece;
}

/* Combines a row's scores so far, one per prefix, with the next level's digits: y (prefixes*k). */
static void expand(struct scorer *s, float *y, uint32_t prefixes, const float *digit, uint32_t k)
{
    memcpy(s->spare, y, prefixes * sizeof(float));
    for (uint32_t i = 0; i < prefixes; i++)
        for (uint32_t j = 0; j < k; j++)
            y[(size_t)i * k + j] = s->spare[i] + digit[j];
}

/* The best fine centroid of each partition. */
static void gather(const struct partitioner *p, const float *fine, float *y)
{
    for (uint32_t k = 0; k < p->k; k++)
        y[k] = -3.4e38f;
    for (uint32_t f = 0; f < p->level[0].k; f++)
        if (fine[f] > y[p->group[f]])
            y[p->group[f]] = fine[f];
}

int scorer_block(struct scorer *s, const float *z, uint32_t rows, bool priced, const float **ret_y,
                 struct err *err)
{
    const struct partitioner *p = s->p;
    uint32_t prefixes = 1;
    for (uint32_t l = 0; l < p->n_fitted; l++) {
        const uint32_t k = p->level[l].k;
        const float *score;
        int rc = affine_block(s->level[l], piece_of(s, z, rows, l), rows, &score, err);
        if (rc < 0)
            return rc;
        for (uint32_t i = 0; i < rows; i++) {
            float *y = s->y + (size_t)i * p->k;
            const float *row = score + (size_t)i * k;
            if (p->kind == PARTITION_TWO_LEVEL)
                gather(p, row, y);
            else if (l == 0)
                memcpy(y, row, k * sizeof(float));
            else
                expand(s, y, prefixes, row, k);
        }
        prefixes *= k;
    }
    for (size_t i = 0; priced && i < rows; i++)
        for (uint32_t k = 0; k < p->k; k++)
            s->y[i * p->k + k] += p->bias[k];
    *ret_y = s->y;
    return 0;
}

/* ---- features in, partitions out ---- */

/* A window of a source: the rows projected at a time. */
struct window {
    const struct fit_source *x;
    uint64_t at;
};

static int read_window(const struct fit_source *s, uint64_t first, uint32_t count, float *out,
                       struct err *err)
{
    const struct window *w = s->arg;
    return w->x->read(w->x, w->at + first, count, out, err);
}

typedef void take_fn(void *arg, uint64_t row, const float *y, uint32_t k);

static int each_row(const struct partitioner *p, struct device *dev, const struct fit_source *x,
                    take_fn *take, void *arg, struct err *err)
{
    if (p->kind == PARTITION_RANDOM || x->d != p->input.d)
        return err_set(err, -ERR_CONFIG,
                       "features of %u columns where this %s partitioner knows %u", x->d,
                       kind_name(p->kind), p->input.d);
    struct scorer s = {0};
    float *z = mem_try_array((size_t)CHUNK_ROWS * p->input.r, sizeof(float));
    int rc = z ? scorer_open(&s, p, dev, err) : err_set(err, -ENOMEM, "no memory for features");
    for (uint64_t at = 0; rc == 0 && at < x->n; at += CHUNK_ROWS) {
        uint32_t count = x->n - at < CHUNK_ROWS ? (uint32_t)(x->n - at) : CHUNK_ROWS;
        const struct window w = {.x = x, .at = at};
        const struct fit_source chunk = {.n = count, .d = x->d, .read = read_window, .arg = &w};
        rc = pca_apply(&p->input, dev, &chunk, z, err);
        for (uint32_t done = 0; rc == 0 && done < count; done += s.rows) {
            uint32_t rows = count - done < s.rows ? count - done : s.rows;
            const float *y;
            rc = scorer_block(&s, z + (size_t)done * p->input.r, rows, true, &y, err);
            for (uint32_t i = 0; rc == 0 && i < rows; i++)
                take(arg, at + done + i, y + (size_t)i * p->k, p->k);
        }
    }
    scorer_close(&s);
    mem_free(z);
    return rc;
}

struct tops {
    uint32_t top;
    uint32_t *index;
};

static void take_top(void *arg, uint64_t row, const float *y, uint32_t k)
{
    const struct tops *t = arg;
    affine_top(y, k, t->top, t->index + row * t->top, NULL);
}

/* `top` distinct partitions from a hash of the id: equivalent to drawing without replacement. */
static void random_top(const struct partitioner *p, uint64_t id, uint32_t top, uint32_t *index)
{
    struct rng r;
    rng_init(&r, p->seed, rng_mix(STREAM_RANDOM, id));
    for (uint32_t i = 0; i < top;) {
        uint32_t k = (uint32_t)rng_below(&r, p->k), j = 0;
        while (j < i && index[j] != k)
            j++;
        if (j == i)
            index[i++] = k;
    }
}

int partitioner_assign(const struct partitioner *p, struct device *dev, const struct fit_source *x,
                       const uint64_t *ids, uint64_t n, uint32_t top, uint32_t *index,
                       struct err *err)
{
    if (top == 0 || top > p->k)
        return err_set(err, -ERR_CONFIG, "an overlap of %u: there are %u partitions", top, p->k);
    if (p->kind == PARTITION_RANDOM) {
        if (!ids)
            return err_set(err, -EINVAL, "a random partition needs the ids of the samples");
        for (uint64_t i = 0; i < n; i++)
            random_top(p, ids[i], top, index + i * top);
        return 0;
    }
    if (!x || x->n != n)
        return err_set(err, -EINVAL, "features of %" PRIu64 " rows for %" PRIu64 " samples",
                       x ? x->n : 0, n);
    struct tops t = {.top = top, .index = index};
    return each_row(p, dev, x, take_top, &t, err);
}

/* ---- writing ---- */

static int declare(struct st_writer *w, const struct partitioner *p, struct err *err)
{
    const uint64_t d = p->input.d, r = p->input.r, k = p->k;
    char name[64];
    int rc = st_writer_add(w, "mean", ST_F32, 1, &d, err);
    if (rc == 0)
        rc = st_writer_add(w, "scale", ST_F32, 1, &r, err);
    if (rc == 0 && p->input.basis)
        rc = st_writer_add(w, "basis", ST_F32, 2, (uint64_t[]){r, d}, err);
    for (uint32_t l = 0; rc == 0 && l < p->n_fitted; l++) {
        const uint64_t shape[2] = {p->level[l].k, p->level[l].d};
        snprintf(name, sizeof(name), "level.%u.weight", l);
        if ((rc = st_writer_add(w, name, ST_F32, 2, shape, err)) < 0)
            break;
        snprintf(name, sizeof(name), "level.%u.intercept", l);
        rc = st_writer_add(w, name, ST_F32, 1, shape, err);
    }
    if (rc == 0 && p->group)
        rc = st_writer_add(w, "group", ST_U32, 1, &(uint64_t){p->level[0].k}, err);
    return rc < 0 ? rc : st_writer_add(w, "bias", ST_F32, 1, &k, err);
}

static int put(struct st_writer *w, const void *values, size_t n, struct err *err)
{
    return st_writer_write(w, values, n * sizeof(float), err);
}

static int payload(struct st_writer *w, const struct partitioner *p, struct err *err)
{
    int rc = put(w, p->input.mean, p->input.d, err);
    if (rc == 0)
        rc = put(w, p->input.scale, p->input.r, err);
    if (rc == 0 && p->input.basis)
        rc = put(w, p->input.basis, (size_t)p->input.r * p->input.d, err);
    for (uint32_t l = 0; rc == 0 && l < p->n_fitted; l++) {
        const struct partition_level *v = &p->level[l];
        if ((rc = put(w, v->weight, (size_t)v->k * v->d, err)) == 0)
            rc = put(w, v->intercept, v->k, err);
    }
    if (rc == 0 && p->group)
        rc = put(w, p->group, p->level[0].k, err);
    return rc < 0 ? rc : put(w, p->bias, p->k, err);
}

int partitioner_write(const struct partitioner *p, const char *path, uint8_t sha256[HASH_BYTES],
                      uint64_t *ret_bytes, struct err *err)
{
    struct st_writer *w = st_writer_new();
    char radix[RADIX_TEXT] = "", number[32];
    for (uint32_t l = 0, at = 0; l < p->n_levels; l++)
        at += (uint32_t)snprintf(radix + at, sizeof(radix) - at, "%s%u", l ? "," : "", p->radix[l]);
    snprintf(number, sizeof(number), "%" PRIu64, p->seed);
    st_writer_meta(w, "format", FORMAT);
    st_writer_meta(w, "kind", kind_name(p->kind));
    st_writer_meta(w, "radix", radix);
    st_writer_meta(w, "seed", number);
    st_writer_meta(w, "feature", p->feature);
    int rc = p->kind == PARTITION_RANDOM ? 0 : declare(w, p, err);
    if (rc == 0)
        rc = st_writer_open(w, path, err);
    if (rc == 0 && p->kind != PARTITION_RANDOM)
        rc = payload(w, p, err);
    if (rc == 0)
        rc = st_writer_commit(w, sha256, ret_bytes, err);
    st_writer_free(w);
    return rc;
}

/* ---- reading: the file is untrusted ---- */

struct reader {
    const char *name;
    const uint8_t *data;
    struct st st;
    struct partitioner *p;
    size_t tensors; /* tensors taken; at the end it must be all */
};

static int no_partitioner(const struct reader *r, struct err *err, const char *what)
{
    return err_set(err, -ERR_FORMAT, "%s: not a partitioner: %s", r->name, what);
}

/* Copies a tensor of `count` 4-byte values to *ret, new. */
static int take_tensor(struct reader *r, const char *name, enum st_dtype dtype, unsigned rank,
                       const uint64_t *shape, void *ret, struct err *err)
{
    const struct st_tensor *t;
    int rc = st_expect(&r->st, name, dtype, rank, shape, &t, err);
    if (rc < 0)
        return rc;
    void *to = mem_try_array(t->count, sizeof(float));
    if (!to)
        return err_set(err, -ENOMEM, "%s: no memory for %s", r->name, name);
    memcpy(to, r->data + t->offset, t->count * sizeof(float));
    memcpy(ret, &to, sizeof(to)); /* the caller frees it, whatever is in it */
    r->tensors++;
    if (dtype == ST_F32 && fit_not_finite(to, t->count) < t->count)
        return err_set(err, -ERR_FORMAT, "%s: %s holds a value that is not a number", r->name,
                       name);
    return 0;
}

static int read_head(struct reader *r, struct err *err)
{
    const char *format = st_meta_get(&r->st, "format"), *kind = st_meta_get(&r->st, "kind");
    const char *radix = st_meta_get(&r->st, "radix"), *seed = st_meta_get(&r->st, "seed");
    const char *feature = st_meta_get(&r->st, "feature");
    enum partition_kind parsed;
    uint32_t parts[PARTITION_LEVELS_MAX], n = 0;
    uint64_t k = 1, value;
    if (!format || strcmp(format, FORMAT) != 0)
        return no_partitioner(r, err, "its metadata do not say \"format\": \"" FORMAT "\"");
    if (!kind || parse_kind(kind, &parsed) < 0)
        return no_partitioner(r, err,
                              "its kind is not one of kmeans, two_level, product, linear, random");
    if (!seed || str_parse_u64(seed, &value) < 0)
        return no_partitioner(r, err, "its seed is not a number");
    if (!feature || strlen(feature) > PARTITION_FEATURE_MAX)
        return no_partitioner(r, err, "the name of its feature is missing or too long");
    for (const char *s = radix; s && *s; n++) {
        char digits[8];
        size_t len = strcspn(s, ",");
        uint64_t part;
        if (n == PARTITION_LEVELS_MAX || len >= sizeof(digits))
            return no_partitioner(r, err, "its radix is too long");
        memcpy(digits, s, len);
        digits[len] = 0;
        if (str_parse_u64(digits, &part) < 0 || part == 0 || part > PARTITION_K_MAX ||
            (k *= part) > PARTITION_K_MAX)
            return no_partitioner(r, err, "its radix is not a list of small numbers");
        parts[n] = (uint32_t)part;
        s += len + (s[len] == ',');
    }
    if (n == 0)
        return no_partitioner(r, err, "its radix is missing");
    r->p = partitioner_new(parsed, n, parts, value);
    (void)str_copy(r->p->feature, sizeof(r->p->feature), feature); /* length checked */
    return 0;
}

static int read_input(struct reader *r, struct err *err)
{
    struct pca *in = &r->p->input;
    const struct st_tensor *mean = st_find(&r->st, "mean"), *scale = st_find(&r->st, "scale");
    if (!mean || mean->rank != 1 || mean->count == 0 || mean->count > PCA_DIM_MAX)
        return no_partitioner(r, err, "its mean is missing or not a row of feature columns");
    if (!scale || scale->rank != 1 || scale->count == 0 || scale->count > PCA_OUT_MAX)
        return no_partitioner(r, err, "its scale is missing or not a row of dimensions");
    const uint64_t d = mean->count, dims = scale->count;
    in->d = (uint32_t)d;
    in->r = (uint32_t)dims;
    int rc = take_tensor(r, "mean", ST_F32, 1, &d, &in->mean, err);
    if (rc == 0)
        rc = take_tensor(r, "scale", ST_F32, 1, &dims, &in->scale, err);
    if (rc < 0)
        return rc;
    if (st_find(&r->st, "basis"))
        return take_tensor(r, "basis", ST_F32, 2, (uint64_t[]){dims, d}, &in->basis, err);
    return d == dims ? 0
                     : no_partitioner(r, err, "it has no basis, yet other dimensions than columns");
}

/* Reads level l, which must have k rows; k 0: any number. */
static int read_level(struct reader *r, uint32_t l, uint64_t k, uint32_t at, struct err *err)
{
    struct partition_level *v = &r->p->level[l];
    char name[64];
    snprintf(name, sizeof(name), "level.%u.weight", l);
    const struct st_tensor *t = st_find(&r->st, name);
    if (!t || t->rank != 2 || t->shape[0] == 0 || t->shape[0] > PARTITION_FINE_MAX ||
        t->shape[1] == 0 || t->shape[1] > r->p->input.r - at)
        return no_partitioner(r, err, "the weight of a level is missing or of an impossible shape");
    const uint64_t shape[2] = {k ? k : t->shape[0], t->shape[1]};
    *v = (struct partition_level){.k = (uint32_t)shape[0], .at = at, .d = (uint32_t)shape[1]};
    r->p->n_fitted = l + 1;
    int rc = take_tensor(r, name, ST_F32, 2, shape, &v->weight, err);
    snprintf(name, sizeof(name), "level.%u.intercept", l);
    return rc < 0 ? rc : take_tensor(r, name, ST_F32, 1, shape, &v->intercept, err);
}

static int read_group(struct reader *r, struct err *err)
{
    struct partitioner *p = r->p;
    const uint64_t fine = p->level[0].k;
    int rc = take_tensor(r, "group", ST_U32, 1, &fine, &p->group, err);
    if (rc < 0)
        return rc;
    bool *used = mem_alloc_array(p->k, sizeof(bool));
    uint32_t n = 0;
    for (uint64_t f = 0; rc == 0 && f < fine; f++) {
        if (p->group[f] >= p->k) {
            rc = no_partitioner(r, err, "a fine cluster lies in a partition that there is not");
            break;
        }
        n += !used[p->group[f]];
        used[p->group[f]] = true;
    }
    mem_free(used);
    return rc < 0 || n == p->k ? rc : no_partitioner(r, err, "a partition has no fine cluster");
}

static int read_body(struct reader *r, struct err *err)
{
    struct partitioner *p = r->p;
    const uint64_t k = p->k;
    if (p->kind == PARTITION_RANDOM)
        return 0;
    int rc = read_input(r, err);
    uint32_t at = 0, levels = p->kind == PARTITION_PRODUCT ? p->n_levels : 1;
    for (uint32_t l = 0; rc == 0 && l < levels; l++) {
        uint64_t rows = p->kind == PARTITION_PRODUCT     ? p->radix[l]
                        : p->kind == PARTITION_TWO_LEVEL ? 0
                                                         : k;
        if (at >= p->input.r)
            return no_partitioner(r, err, "its levels have more columns than its features");
        rc = read_level(r, l, rows, at, err);
        at += p->level[l].d;
    }
    if (rc == 0 && at != p->input.r)
        rc = no_partitioner(r, err, "the columns of its levels do not add up");
    if (rc == 0 && p->kind == PARTITION_TWO_LEVEL)
        rc = read_group(r, err);
    return rc < 0 ? rc : take_tensor(r, "bias", ST_F32, 1, &k, &p->bias, err);
}

int partitioner_parse(const void *data, size_t len, const char *name, struct partitioner **ret,
                      struct err *err)
{
    struct reader r = {.name = name, .data = data};
    int rc = st_parse(data, len, len, name, &r.st, err);
    if (rc == 0)
        rc = read_head(&r, err);
    if (rc == 0)
        rc = read_body(&r, err);
    if (rc == 0 && r.tensors != r.st.n_tensors)
        rc = no_partitioner(&r, err, "it holds tensors of other things");
    st_release(&r.st);
    if (rc < 0) {
        partitioner_free(r.p);
        return rc;
    }
    *ret = r.p;
    return 0;
}

int partitioner_read(const char *path, struct partitioner **ret, struct err *err)
{
    struct file_map map;
    int rc = file_map_open(path, &map, err);
    if (rc < 0)
        return rc;
    rc = partitioner_parse(map.data, map.len, path, ret, err);
    file_map_close(&map);
    return rc;
}
