#include "worker/net/model.h"

#include <fcntl.h>
#include <unistd.h>

#include "common/base/base.h"
#include "common/base/file.h"
#include "common/st/st.h"

static bool in_level(const struct model_tensor *t, int level)
{
    return level < 0 || t->level == level;
}

int model_save(const struct model *m, int level, const float *flat, const char *path,
               uint8_t sha256[HASH_BYTES], uint64_t *ret_bytes, struct err *err)
{
    int rc = 0;
    struct st_writer *w = st_writer_new();
    st_writer_meta(w, "format", "pt");
    for (size_t i = 0; i < m->n && rc == 0; i++) {
        const struct model_tensor *t = &m->tensors[i];
        if (in_level(t, level))
            rc = st_writer_add(w, t->name, ST_F32, t->rank, t->shape, err);
    }
    if (rc == 0)
        rc = st_writer_open(w, path, err);
    for (size_t i = 0; i < m->n && rc == 0; i++) {
        const struct model_tensor *t = &m->tensors[i];
        if (in_level(t, level))
            rc = st_writer_write(w, flat + t->offset, t->count * sizeof *flat, err);
    }
    if (rc == 0)
        rc = st_writer_commit(w, sha256, ret_bytes, err);
    st_writer_free(w);
    return rc;
}

static int load_tensor(int fd, const struct st *st, const struct model_tensor *t, const char *path,
                       float *out, struct err *err)
{
    const struct st_tensor *src;
    int rc = st_expect(st, t->name, ST_F32, t->rank, t->shape, &src, err);
    if (rc == 0)
        rc = file_pread_all(fd, out, src->bytes, src->offset, path, err);
    if (rc < 0)
        return rc;
    for (uint64_t i = 0; i < t->count; i++) {
        if (!isfinite(out[i]))
            return err_set(err, -ERR_FORMAT, "%s: %s holds a value that is not finite at %llu",
                           path, t->name, (unsigned long long)i);
    }
    return 0;
}

/* One file of several: each tensor in it is one of the model's, not seen before. */
static int load_part(const struct model *m, int level, const char *path, float *flat, bool *seen,
                     struct err *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return err_errno(err, "opening the model file %s", path);
    struct st st = {0};
    int rc = st_read(fd, path, &st, err);
    for (size_t i = 0; i < st.n_tensors && rc == 0; i++) {
        const struct model_tensor *t = model_find(m, st.tensors[i].name);
        if (!t || !in_level(t, level))
            rc = err_set(err, -ERR_FORMAT, "%s holds %s, which this model has not", path,
                         st.tensors[i].name);
        else if (seen[t - m->tensors])
            rc = err_set(err, -ERR_FORMAT, "%s holds %s, which another file held already", path,
                         t->name);
        else
            rc = load_tensor(fd, &st, t, path, flat + t->offset, err);
        if (rc == 0)
            seen[t - m->tensors] = true;
    }
    st_release(&st);
    (void)close(fd); /* read only: nothing to lose */
    return rc;
}

int model_load(const struct model *m, int level, const char *const *paths, size_t n, float *flat,
               struct err *err)
{
    bool *seen = mem_try_array(m->n, sizeof *seen);
    if (!seen)
        return err_set(err, -ENOMEM, "no memory for a table of %zu tensors", m->n);
    int rc = 0;
    for (size_t i = 0; i < n && rc == 0; i++)
        rc = load_part(m, level, paths[i], flat, seen, err);
    for (size_t i = 0; i < m->n && rc == 0; i++)
        if (!seen[i] && in_level(&m->tensors[i], level))
            rc = err_set(err, -ERR_FORMAT, "no file of the model holds %s", m->tensors[i].name);
    mem_free(seen);
    if (rc < 0)
        (void)err_wrap(err, "loading model weights");
    return rc;
}

/* ---- weights that were not made here: other types, other people's files ---- */

enum { SHAPE_TEXT = 96 };

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

static void shape_text(unsigned rank, const uint64_t *shape, char out[SHAPE_TEXT])
{
    size_t at = 0;
    out[0] = 0;
    for (unsigned i = 0; i < rank && at < SHAPE_TEXT - 24; i++)
        at += (size_t)snprintf(out + at, SHAPE_TEXT - at, "%s%llu", i ? "x" : "",
                               (unsigned long long)shape[i]);
}

static int check_tensor(const struct st *st, const struct model_tensor *t, const char *path,
                        const struct st_tensor **ret, struct err *err)
{
    const struct st_tensor *src = st_find(st, t->name);
    if (!src)
        return err_set(err, -ERR_CONFIG, "%s has no tensor %s, which this model needs", path,
                       t->name);
    if (src->rank != t->rank || memcmp(src->shape, t->shape, t->rank * sizeof *t->shape) != 0) {
        char theirs[SHAPE_TEXT], ours[SHAPE_TEXT];
        shape_text(src->rank, src->shape, theirs);
        shape_text(t->rank, t->shape, ours);
        return err_set(err, -ERR_CONFIG,
                       "%s: %s is %s, this model has %s: set the sizes under "
                       "model: to those of the file",
                       path, t->name, theirs, ours);
    }
    if (src->dtype != ST_F32 && src->dtype != ST_BF16 && src->dtype != ST_F16)
        return err_set(err, -ERR_CONFIG, "%s: %s is of type %s, expected F32, BF16 or F16", path,
                       t->name, st_dtype_name(src->dtype));
    *ret = src;
    return 0;
}

static int read_tensor(int fd, const struct st_tensor *src, const char *path, float *out,
                       struct err *err)
{
    const bool wide = src->dtype == ST_F32;
    int rc = file_pread_all(fd, (char *)out + (wide ? 0 : src->count * 2), src->bytes, src->offset,
                            path, err);
    if (rc < 0)
        return rc;
    if (!wide)
        widen(out, src->count, src->dtype);
    for (uint64_t i = 0; i < src->count; i++)
        if (!isfinite(out[i]))
            return err_set(err, -ERR_CONFIG, "%s: %s holds a value that is not finite at %llu",
                           path, src->name, (unsigned long long)i);
    return 0;
}

int model_load_foreign(const struct model *m, const char *path, float *flat, struct err *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return err_errno(err, "opening the weights %s", path);
    struct st st = {0};
    const struct st_tensor *src;
    int rc = st_read(fd, path, &st, err);
    for (size_t i = 0; i < m->n && rc == 0; i++)
        rc = check_tensor(&st, &m->tensors[i], path, &src, err);
    for (size_t i = 0; i < st.n_tensors && rc == 0; i++)
        if (!model_find(m, st.tensors[i].name))
            rc = err_set(err, -ERR_CONFIG, "%s holds the tensor %s, which this model has not", path,
                         st.tensors[i].name);
    for (size_t i = 0; i < m->n && rc == 0; i++) {
        const struct model_tensor *t = &m->tensors[i];
        rc = check_tensor(&st, t, path, &src, err);
        if (rc == 0)
            rc = read_tensor(fd, src, path, flat + t->offset, err);
    }
    st_release(&st);
    (void)close(fd); /* read only: nothing to lose */
    return rc;
}
