#include "worker/train/moments.h"

#include <fcntl.h>
#include <unistd.h>

#include "common/base/file.h"
#include "common/base/pieces.h"
#include "common/st/st.h"
#include "worker/train/train.h"

enum { BLOCK = 256 };

#define FORMAT "skerry.moments.1"

/* m is coded with its sign, v as its square root. */
static const struct vector {
    enum trainer_vector which;
    const char *codes, *scales;
} vectors[2] = {
    {TRAINER_ADAM_M, "m", "ms"},
    {TRAINER_ADAM_V, "v", "vs"},
};

static uint64_t blocks_of(uint64_t count)
{
    return (count + BLOCK - 1) / BLOCK;
}

/* A blob's contents, on the host. */
struct coded {
    uint8_t *codes; /* (2, params): m of all tensors in table order, then v */
    float *scales;  /* (2, blocks) */
    float *values;  /* room for the largest tensor */
    uint64_t params, blocks;
    struct mem_arrays memory; /* the three */
};

static int coded_init(struct coded *c, const struct model *m, struct err *err)
{
    *c = (struct coded){.params = m->params};
    for (size_t i = 0; i < m->n; i++)
        c->blocks += blocks_of(m->tensors[i].count);
    c->codes = mem_arrays_add(&c->memory, 2 * c->params, sizeof *c->codes);
    c->scales = mem_arrays_add(&c->memory, 2 * c->blocks, sizeof *c->scales);
    c->values = mem_arrays_add(&c->memory, model_largest(m), sizeof *c->values);
    if (c->memory.failed)
        return err_set(err, -ENOMEM, "no memory for the moments of %" PRIu64 " parameters",
                       c->params);
    return 0;
}

static float encode_m(const float *m, size_t n, uint8_t *code)
{
    float most = 0;
    for (size_t i = 0; i < n; i++)
        most = fmaxf(most, fabsf(m[i]));
    for (size_t i = 0; i < n; i++)
        code[i] = most > 0 ? (uint8_t)(128 + (int)lrintf(m[i] / most * 127.0f)) : 128;
    return most;
}

/* Rounded up: too small a root would make too long a step. */
static float encode_v(const float *v, size_t n, uint8_t *code)
{
    float most = 0;
    for (size_t i = 0; i < n; i++)
        most = fmaxf(most, sqrtf(v[i]));
    for (size_t i = 0; i < n; i++)
        code[i] = most > 0 ? (uint8_t)fminf(255.0f, ceilf(sqrtf(v[i]) / most * 255.0f)) : 0;
    return most;
}

/* The most that |m| / sqrt(v) can be, whatever the gradients were (Cauchy-Schwarz on the two sums).
 */
static float most_ratio(const struct train_options *o)
{
    const double left = 1 - o->beta1 * o->beta1 / o->beta2;
    const double most = (1 - o->beta1) / sqrt((1 - o->beta2) * left);
    return left > 0 && isfinite(most) ? (float)most : INFINITY;
}

static int encode_all(struct trainer *t, struct coded *c, struct err *err)
{
    const struct model *m = trainer_model(t);
    uint8_t *code = c->codes;
    float *scale = c->scales;
    for (size_t v = 0; v < 2; v++) {
        for (size_t i = 0; i < m->n; i++) {
            const uint64_t count = m->tensors[i].count;
            int rc = trainer_read(t, vectors[v].which, &m->tensors[i], c->values, err);
            if (rc < 0)
                return rc;
            for (uint64_t at = 0; at < count; at += BLOCK) {
                const size_t n = count - at < BLOCK ? (size_t)(count - at) : BLOCK;
                *scale++ =
                    v == 0 ? encode_m(c->values + at, n, code) : encode_v(c->values + at, n, code);
                code += n;
            }
            pieces_done();
        }
    }
    return 0;
}

static void name_of(char out[ST_NAME_MAX], const struct model_tensor *t, const char *suffix)
{
    (void)snprintf(out, ST_NAME_MAX, "%s.%s", t->name, suffix);
}

/* The scales of all tensors come first, so that they are aligned. */
static int declare(struct st_writer *w, const struct model *m, uint64_t adam_step, struct err *err)
{
    char name[ST_NAME_MAX];
    st_writer_meta(w, "format", FORMAT);
    st_writer_number(w, "adam_step", adam_step);
    int rc = 0;
    for (int codes = 0; codes < 2; codes++) {
        for (size_t v = 0; v < 2; v++) {
            for (size_t i = 0; i < m->n && rc == 0; i++) {
                const uint64_t count = m->tensors[i].count, blocks = blocks_of(count);
                name_of(name, &m->tensors[i], codes ? vectors[v].codes : vectors[v].scales);
                rc = st_writer_add(w, name, codes ? ST_U8 : ST_F32, 1, codes ? &count : &blocks,
                                   err);
            }
        }
    }
    return rc;
}

int moments_save(struct trainer *t, const char *path, uint8_t sha256[HASH_BYTES],
                 uint64_t *ret_bytes, struct err *err)
{
    struct coded c;
    struct st_writer *w = st_writer_new();
    int rc = coded_init(&c, trainer_model(t), err);
    if (rc == 0)
        rc = encode_all(t, &c, err);
    if (rc == 0)
        rc = declare(w, trainer_model(t), trainer_adam_step(t), err);
    if (rc == 0)
        rc = st_writer_open(w, path, err);
    if (rc == 0)
        rc = st_writer_write(w, c.scales, 2 * c.blocks * sizeof *c.scales, err);
    if (rc == 0)
        rc = st_writer_write(w, c.codes, 2 * c.params, err);
    if (rc == 0)
        rc = st_writer_commit(w, sha256, ret_bytes, err);
    st_writer_free(w);
    mem_arrays_free(&c.memory);
    return rc < 0 ? err_wrap(err, "writing the optimiser's moments") : 0;
}

static int read_step(const struct st *st, const char *path, uint64_t *ret, struct err *err)
{
    const char *format = st_meta_get(st, "format");
    uint64_t n = 0;
    if (!format || strcmp(format, FORMAT) != 0)
        return err_set(err, -ERR_FORMAT, "%s: metadata format is %s, expected %s", path,
                       format ? format : "missing", FORMAT);
    int rc = st_meta_number(st, path, "adam_step", &n, err);
    if (rc == 0 && n >= INT64_MAX)
        rc = err_set(err, -ERR_FORMAT, "%s: metadata adam_step is %" PRIu64 ", expected a number",
                     path, n);
    if (rc == 0)
        *ret = n;
    return rc;
}

static int read_tensor(int fd, const struct st *st, const char *path, const struct model_tensor *t,
                       const struct vector *v, uint8_t *code, float *scale, struct err *err)
{
    const uint64_t count = t->count, blocks = blocks_of(count);
    const struct st_tensor *codes, *scales;
    char name[ST_NAME_MAX];
    name_of(name, t, v->codes);
    int rc = st_expect(st, name, ST_U8, 1, &count, &codes, err);
    name_of(name, t, v->scales);
    if (rc == 0)
        rc = st_expect(st, name, ST_F32, 1, &blocks, &scales, err);
    if (rc == 0)
        rc = file_pread_all(fd, code, codes->bytes, codes->offset, path, err);
    if (rc == 0)
        rc = file_pread_all(fd, scale, scales->bytes, scales->offset, path, err);
    for (uint64_t i = 0; i < blocks && rc == 0; i++)
        if (!isfinite(scale[i] * scale[i]) || scale[i] < 0)
            rc = err_set(err, -ERR_FORMAT, "%s: %s holds %g at %" PRIu64 ", which is no scale",
                         path, name, (double)scale[i], i);
    return rc;
}

static int read_all(int fd, const struct st *st, const char *path, const struct model *m,
                    struct coded *c, struct err *err)
{
    uint8_t *code = c->codes;
    float *scale = c->scales;
    if (st->n_tensors != 4 * m->n)
        return err_set(err, -ERR_FORMAT, "%s holds %zu tensors, the moments of this model are %zu",
                       path, st->n_tensors, 4 * m->n);
    for (size_t v = 0; v < 2; v++) {
        for (size_t i = 0; i < m->n; i++) {
            int rc = read_tensor(fd, st, path, &m->tensors[i], &vectors[v], code, scale, err);
            if (rc < 0)
                return rc;
            code += m->tensors[i].count;
            scale += blocks_of(m->tensors[i].count);
        }
    }
    return 0;
}

/* Root of v of a tensor's value. */
static float root_of(const uint8_t *code, const float *scale, uint64_t at)
{
    return (float)code[at] / 255.0f * scale[at / BLOCK];
}

/* m and v of a tensor: no m is larger than Adam's can be beside its v, or a step would be, too. */
static int decode_tensor(struct trainer *t, const struct model_tensor *m,
                         const uint8_t *const code[2], const float *const scale[2], float *values,
                         struct err *err)
{
    const float ratio = most_ratio(trainer_options(t));
    for (uint64_t j = 0; j < m->count; j++) {
        const float root = root_of(code[1], scale[1], j), most = root > 0 ? ratio * root : 0;
        const float v = (float)((int)code[0][j] - 128) / 127.0f * scale[0][j / BLOCK];
        values[j] = fmaxf(-most, fminf(v, most));
    }
    int rc = trainer_write(t, TRAINER_ADAM_M, m, values, err);
    for (uint64_t j = 0; j < m->count; j++) {
        const float root = root_of(code[1], scale[1], j);
        values[j] = root * root;
    }
    return rc < 0 ? rc : trainer_write(t, TRAINER_ADAM_V, m, values, err);
}

static int decode_all(struct trainer *t, const struct coded *c, struct err *err)
{
    const struct model *m = trainer_model(t);
    const uint8_t *code[2] = {c->codes, c->codes + c->params};
    const float *scale[2] = {c->scales, c->scales + c->blocks};
    for (size_t i = 0; i < m->n; i++) {
        int rc = decode_tensor(t, &m->tensors[i], code, scale, c->values, err);
        if (rc < 0)
            return rc;
        for (int v = 0; v < 2; v++) {
            code[v] += m->tensors[i].count;
            scale[v] += blocks_of(m->tensors[i].count);
        }
        pieces_done();
    }
    return 0;
}

int moments_load(struct trainer *t, const char *path, struct err *err)
{
    struct coded c;
    struct st st = {0};
    uint64_t step = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return err_errno(err, "opening the moments %s", path);
    int rc = coded_init(&c, trainer_model(t), err);
    if (rc == 0)
        rc = st_read(fd, path, &st, err);
    if (rc == 0)
        rc = read_step(&st, path, &step, err);
    if (rc == 0)
        rc = read_all(fd, &st, path, trainer_model(t), &c, err);
    if (rc == 0)
        rc = trainer_reset_moments(t, err);
    if (rc == 0)
        rc = decode_all(t, &c, err);
    if (rc == 0)
        trainer_set_adam_step(t, step);
    st_release(&st);
    mem_arrays_free(&c.memory);
    (void)close(fd); /* read only: nothing to lose */
    return rc < 0 ? err_wrap(err, "reading the optimiser's moments") : 0;
}
