/* A partitioner as a safetensors file. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/base/err.h"
#include "common/base/file.h"
#include "common/base/mem.h"
#include "common/st/st.h"
#include "common/base/str.h"
#include "worker/fit/fit.h"
#include "worker/fit/partitioner_impl.h"

#define FORMAT "skerry.partitioner.1"
#define RADIX_TEXT (PARTITION_LEVELS_MAX * 6 + 1)

/* ---- writing ------------------------------------------------------------------- */

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
    st_writer_meta(w, "kind", partition_kind_name(p->kind));
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

/* ---- reading: nothing in the file is believed ------------------------------------ */

struct reader {
    const char *name;
    const uint8_t *data;
    struct st st;
    struct partitioner *p;
    size_t tensors; /* taken: at the end, all of them */
};

static int bad(const struct reader *r, struct err *err, const char *what)
{
    return err_set(err, -ERR_FORMAT, "%s: not a partitioner: %s", r->name, what);
}

/* Copies a tensor of `count` 4-byte values to *ret, new. */
static int take(struct reader *r, const char *name, enum st_dtype dtype, unsigned rank,
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
        return bad(r, err, "its metadata do not say \"format\": \"" FORMAT "\"");
    if (!kind || partition_kind_parse(kind, &parsed) < 0)
        return bad(r, err, "its kind is not one of kmeans, two_level, product, linear, random");
    if (!seed || str_parse_u64(seed, &value) < 0)
        return bad(r, err, "its seed is not a number");
    if (!feature || strlen(feature) > PARTITION_FEATURE_MAX)
        return bad(r, err, "the name of its feature is missing or too long");
    for (const char *s = radix; s && *s; n++) {
        char digits[8];
        size_t len = strcspn(s, ",");
        uint64_t part;
        if (n == PARTITION_LEVELS_MAX || len >= sizeof(digits))
            return bad(r, err, "its radix is too long");
        memcpy(digits, s, len);
        digits[len] = 0;
        if (str_parse_u64(digits, &part) < 0 || part == 0 || part > PARTITION_K_MAX ||
            (k *= part) > PARTITION_K_MAX)
            return bad(r, err, "its radix is not a list of small numbers");
        parts[n] = (uint32_t)part;
        s += len + (s[len] == ',');
    }
    if (n == 0)
        return bad(r, err, "its radix is missing");
    r->p = partitioner_new(parsed, n, parts, value);
    (void)str_copy(r->p->feature, sizeof(r->p->feature), feature); /* length checked */
    return 0;
}

static int read_input(struct reader *r, struct err *err)
{
    struct pca *in = &r->p->input;
    const struct st_tensor *mean = st_find(&r->st, "mean"), *scale = st_find(&r->st, "scale");
    if (!mean || mean->rank != 1 || mean->count == 0 || mean->count > PCA_DIM_MAX)
        return bad(r, err, "its mean is missing or not a row of feature columns");
    if (!scale || scale->rank != 1 || scale->count == 0 || scale->count > PCA_OUT_MAX)
        return bad(r, err, "its scale is missing or not a row of dimensions");
    const uint64_t d = mean->count, dims = scale->count;
    in->d = (uint32_t)d;
    in->r = (uint32_t)dims;
    int rc = take(r, "mean", ST_F32, 1, &d, &in->mean, err);
    if (rc == 0)
        rc = take(r, "scale", ST_F32, 1, &dims, &in->scale, err);
    if (rc < 0)
        return rc;
    if (st_find(&r->st, "basis"))
        return take(r, "basis", ST_F32, 2, (uint64_t[]){dims, d}, &in->basis, err);
    return d == dims ? 0 : bad(r, err, "it has no basis, yet other dimensions than columns");
}

/* Level l, which has k rows, or as many as there are when k is 0. */
static int read_level(struct reader *r, uint32_t l, uint64_t k, uint32_t at, struct err *err)
{
    struct partition_level *v = &r->p->level[l];
    char name[64];
    snprintf(name, sizeof(name), "level.%u.weight", l);
    const struct st_tensor *t = st_find(&r->st, name);
    if (!t || t->rank != 2 || t->shape[0] == 0 || t->shape[0] > PARTITION_FINE_MAX ||
        t->shape[1] == 0 || t->shape[1] > r->p->input.r - at)
        return bad(r, err, "the weight of a level is missing or of an impossible shape");
    const uint64_t shape[2] = {k ? k : t->shape[0], t->shape[1]};
    *v = (struct partition_level){.k = (uint32_t)shape[0], .at = at, .d = (uint32_t)shape[1]};
    r->p->n_fitted = l + 1;
    int rc = take(r, name, ST_F32, 2, shape, &v->weight, err);
    snprintf(name, sizeof(name), "level.%u.intercept", l);
    return rc < 0 ? rc : take(r, name, ST_F32, 1, shape, &v->intercept, err);
}

static int read_group(struct reader *r, struct err *err)
{
    struct partitioner *p = r->p;
    const uint64_t fine = p->level[0].k;
    int rc = take(r, "group", ST_U32, 1, &fine, &p->group, err);
    if (rc < 0)
        return rc;
    bool *used = mem_alloc_array(p->k, sizeof(bool));
    uint32_t n = 0;
    for (uint64_t f = 0; rc == 0 && f < fine; f++) {
        if (p->group[f] >= p->k) {
            rc = bad(r, err, "a fine cluster lies in a partition that there is not");
            break;
        }
        n += !used[p->group[f]];
        used[p->group[f]] = true;
    }
    mem_free(used);
    return rc < 0 || n == p->k ? rc : bad(r, err, "a partition has no fine cluster");
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
            return bad(r, err, "its levels have more columns than its features");
        rc = read_level(r, l, rows, at, err);
        at += p->level[l].d;
    }
    if (rc == 0 && at != p->input.r)
        rc = bad(r, err, "the columns of its levels do not add up");
    if (rc == 0 && p->kind == PARTITION_TWO_LEVEL)
        rc = read_group(r, err);
    return rc < 0 ? rc : take(r, "bias", ST_F32, 1, &k, &p->bias, err);
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
        rc = bad(&r, err, "it holds tensors of other things");
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
