#include "worker/model/model.h"

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
    bool finite = true; /* no early end, so that the loop is vectorised */
    for (uint64_t i = 0; i < t->count; i++)
        finite &= isfinite(out[i]) != 0;
    for (uint64_t i = 0; !finite && i < t->count; i++)
        if (!isfinite(out[i]))
            return err_set(err, -ERR_FORMAT, "%s: %s holds a value that is not finite at %llu",
                           path, t->name, (unsigned long long)i);
    return 0;
}

/* Loads one of several files: each of its tensors must be the model's, and not seen before. */
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

/* ---- other programs' weights, in other types ---- */

/* PixArt's released models also predict a variance: the second half of each pixel's outputs. */
static bool has_variance(const struct model *m, const struct model_tensor *t,
                         const struct st_tensor *src)
{
    return model_captioned(&m->spec) && strncmp(t->name, "proj_out.", 9) == 0 &&
           src->rank == t->rank && src->count == 2 * t->count && src->shape[0] == 2 * t->shape[0];
}

/* Is it the patch embedding of a model that reads no estimate, unlike this one?  It has the first
 * half of the inputs of each output. */
static bool has_no_estimate(const struct model *m, const struct model_tensor *t,
                            const struct st_tensor *src)
{
    return m->spec.self_condition && t->rank == 4 && src->rank == 4 &&
           src->shape[0] == t->shape[0] && 2 * src->shape[1] == t->shape[1] &&
           src->shape[2] == t->shape[2] && src->shape[3] == t->shape[3];
}

static int read_without_estimate(int fd, const char *path, const struct st_tensor *src,
                                 const struct model_tensor *t, float *out, struct err *err)
{
    const uint64_t wide = t->count / t->shape[0], run = wide / 2;
    int rc = st_read_f32(fd, path, src, out, err);
    for (uint64_t i = t->shape[0]; i-- > 0 && rc == 0;) { /* from the last, in place */
        memmove(out + i * wide, out + i * run, run * sizeof *out);
        memset(out + i * wide + run, 0, run * sizeof *out);
    }
    return rc;
}

/* Reads the outputs without the variance. */
static int read_velocity(int fd, const char *path, const struct st_tensor *src,
                         const struct model *m, const struct model_tensor *t, float *out,
                         struct err *err)
{
    const uint64_t row = t->count / t->shape[0], run = (uint64_t)m->spec.channels * row;
    float *both = mem_try_array(src->count, sizeof *both);
    if (!both)
        return err_set(err, -ENOMEM, "no memory for %s of %s", t->name, path);
    int rc = st_read_f32(fd, path, src, both, err);
    for (uint64_t i = 0; i < t->count && rc == 0; i += run)
        memcpy(out + i, both + 2 * i, run * sizeof *out);
    mem_free(both);
    return rc;
}

static int check_tensor(const struct st *st, const struct model *m, const struct model_tensor *t,
                        const char *path, const struct st_tensor **ret, struct err *err)
{
    const struct st_tensor *src = st_find(st, t->name);
    if (!src)
        return err_set(err, -ERR_CONFIG, "%s has no tensor %s, which this model needs", path,
                       t->name);
    if (has_variance(m, t, src) || has_no_estimate(m, t, src)) {
        *ret = src;
        return 0;
    }
    if (src->rank != t->rank || memcmp(src->shape, t->shape, t->rank * sizeof *t->shape) != 0) {
        char theirs[ST_SHAPE_TEXT], ours[ST_SHAPE_TEXT];
        return err_set(err, -ERR_CONFIG,
                       "%s: %s is %s, this model has %s: set the sizes under "
                       "model: to those of the file",
                       path, t->name, st_shape_text(src->rank, src->shape, theirs),
                       st_shape_text(t->rank, t->shape, ours));
    }
    *ret = src;
    return 0;
}

/* Is it one of those that nothing reads?  A tied head is the embedding again. */
static bool is_spare(const struct model *m, const char *name)
{
    return st_is_leftover(name, model_is_text(&m->spec), model_captioned(&m->spec)) ||
           (m->spec.tied && strcmp(name, "lm_head.weight") == 0);
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
        rc = check_tensor(&st, m, &m->tensors[i], path, &src, err);
    for (size_t i = 0; i < st.n_tensors && rc == 0; i++)
        if (!model_find(m, st.tensors[i].name) && !is_spare(m, st.tensors[i].name))
            rc = err_set(err, -ERR_CONFIG, "%s holds the tensor %s, which this model has not", path,
                         st.tensors[i].name);
    for (size_t i = 0; i < m->n && rc == 0; i++) {
        const struct model_tensor *t = &m->tensors[i];
        rc = check_tensor(&st, m, t, path, &src, err);
        if (rc == 0 && has_variance(m, t, src))
            rc = read_velocity(fd, path, src, m, t, flat + t->offset, err);
        else if (rc == 0 && has_no_estimate(m, t, src))
            rc = read_without_estimate(fd, path, src, t, flat + t->offset, err);
        else if (rc == 0)
            rc = st_read_f32(fd, path, src, flat + t->offset, err);
    }
    st_release(&st);
    (void)close(fd); /* read only: nothing to lose */
    return rc;
}
