#include "common/outer/fold.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "common/base/err.h"
#include "common/base/file.h"
#include "common/base/mem.h"
#include "common/outer/fold_math.h"
#include "common/outer/fold_sink.h"
#include "common/outer/layout.h"
#include "common/outer/wire.h"

/* All payloads of a chunk lie in memory at once: with many contributions of a
 * wide codec the chunk gets shorter, not the memory larger. */
#define INPUT_BYTES (2u << 20)

struct flat { /* a file of one float per parameter */
    int fd;   /* -1: absent */
    const char *path;
    uint64_t payload;
};

struct fold {
    const struct fold_step *step;
    struct layout layout;
    struct fold_math math;
    struct flat full, ema, target, mom, buf, from; /* from: only when it is another version */
    struct wire inputs[FOLD_INPUTS_MAX];
    double weight[FOLD_INPUTS_MAX];
    size_t chunk; /* elements */
    /* buffers of one chunk */
    uint8_t *in_payload[FOLD_INPUTS_MAX]; /* into in_block */
    uint16_t *in_scales[FOLD_INPUTS_MAX];
    uint8_t *in_block, *delta_payload;
    uint16_t *delta_scales;
    float *theta_buf, *target_buf, *mom_buf;
    float *buf_buf, *from_buf; /* NULL where there is none */
    /* outputs */
    struct file_out full_out, delta_out, ema_out, target_out, mom_out, buf_out;
    struct wire_out delta;
    struct sink *sink;
    struct fold_squares squares;
};

/* ---- opening ---- */

static bool is_delayed(const struct fold_step *s)
{
    return s->delay > 1;
}

/* Values are subtracted from the version they began with, which may not be base. */
static bool reads_from(const struct fold_step *s)
{
    return s->from_full && s->up == CODEC_F32;
}

static int flat_open(struct flat *f, const char *path, const struct layout *like, struct err *err)
{
    struct layout l = {0};
    f->path = path;
    f->fd = open(path, O_RDONLY | O_CLOEXEC);
    if (f->fd < 0)
        return err_errno(err, "opening %s", path);
    int rc = layout_read(f->fd, path, &l, err);
    if (rc == 0)
        rc = layout_same(like, &l, path, err);
    f->payload = l.st.payload;
    layout_release(&l);
    return rc;
}

static int open_state(struct fold *f, struct err *err)
{
    const struct fold_step *s = f->step;
    int rc = layout_open(s->full, &f->layout, err);
    if (rc == 0)
        rc = flat_open(&f->full, s->full, &f->layout, err);
    if (rc == 0 && s->ema_out)
        rc = flat_open(&f->ema, s->ema ? s->ema : s->full, &f->layout, err);
    if (rc == 0)
        rc = flat_open(&f->target, s->target ? s->target : s->full, &f->layout, err);
    if (rc == 0 && s->mom)
        rc = flat_open(&f->mom, s->mom, &f->layout, err);
    if (rc == 0 && s->buf && is_delayed(s))
        rc = flat_open(&f->buf, s->buf, &f->layout, err);
    if (rc == 0 && reads_from(s))
        rc = flat_open(&f->from, s->from_full, &f->layout, err);
    return rc;
}

static int open_inputs(struct fold *f, struct err *err)
{
    const struct fold_step *s = f->step;
    struct wire_info want = {.kind = WIRE_CONTRIBUTION,
                             .codec = s->up,
                             .module_id = s->module_id,
                             .base = s->from_full ? s->from : s->base};
    if (!s->n_inputs || s->n_inputs > FOLD_INPUTS_MAX)
        return err_set(err, -EINVAL, "%zu contributions, expected 1 to %d", s->n_inputs,
                       FOLD_INPUTS_MAX);
    for (size_t i = 0; i < s->n_inputs; i++) {
        if (!isfinite(s->inputs[i].weight) || s->inputs[i].weight <= 0)
            return err_set(err, -EINVAL, "%s has weight %g, expected a positive number",
                           s->inputs[i].path, s->inputs[i].weight);
        int rc = wire_open(s->inputs[i].path, &want, &f->layout, &f->inputs[i], err);
        if (rc < 0)
            return rc;
        f->weight[i] = s->inputs[i].weight;
        f->math.nesterov.total += s->inputs[i].weight;
    }
    return 0;
}

static int alloc_inputs(struct fold *f, struct err *err)
{
    size_t k = f->step->n_inputs;
    size_t per_strip = codec_payload_bytes(f->step->up, FOLD_STRIP);
    size_t strips = INPUT_BYTES / (k * per_strip);
    f->chunk = strips * FOLD_STRIP < FOLD_CHUNK ? strips * FOLD_STRIP : FOLD_CHUNK;
    size_t payload = codec_payload_bytes(f->step->up, f->chunk);
    size_t scales = codec_scales(f->step->up, f->chunk) * sizeof(uint16_t);
    f->in_block = mem_try_aligned(64, k * (payload + scales));
    if (!f->in_block)
        return err_set(err, -ENOMEM, "no memory for the outer step");
    for (size_t i = 0; i < k; i++) {
        f->in_payload[i] = f->in_block + i * payload;
        f->in_scales[i] = (uint16_t *)(void *)(f->in_block + k * payload + i * scales);
    }
    return 0;
}

static int alloc_buffers(struct fold *f, struct err *err)
{
    int rc = alloc_inputs(f, err);
    if (rc < 0)
        return rc;
    size_t bytes = f->chunk * sizeof(float);
    f->theta_buf = mem_try_aligned(64, bytes);
    f->target_buf = mem_try_aligned(64, bytes);
    f->mom_buf = mem_try_aligned(64, bytes);
    f->delta_payload = mem_try_aligned(64, bytes); /* of the widest codec */
    f->delta_scales = mem_try_array(f->chunk / CODEC_BLOCK, sizeof(uint16_t));
    bool all = true;
    if (is_delayed(f->step))
        all = (f->buf_buf = mem_try_aligned(64, bytes)) != NULL;
    if (reads_from(f->step))
        all = (f->from_buf = mem_try_aligned(64, bytes)) != NULL && all;
    if (!f->theta_buf || !f->target_buf || !f->mom_buf || !f->delta_payload || !f->delta_scales ||
        !all)
        return err_set(err, -ENOMEM, "no memory for the outer step");
    return 0;
}

/* A file that starts with the module's header. */
static int flat_create(struct file_out *out, const char *path, const struct layout *layout,
                       struct err *err)
{
    int rc = file_out_open(out, path, 0600, err);
    return rc < 0 ? rc : file_out_pwrite(out, layout->header, (size_t)layout->st.payload, 0, err);
}

static int open_outputs(struct fold *f, struct err *err)
{
    const struct fold_step *s = f->step;
    struct wire_info info = {.kind = WIRE_DELTA,
                             .codec = s->down,
                             .module_id = s->module_id,
                             .base = s->base,
                             .version = s->base + 1};
    int rc = flat_create(&f->target_out, s->target_out, &f->layout, err);
    if (rc == 0)
        rc = flat_create(&f->mom_out, s->mom_out, &f->layout, err);
    if (rc == 0 && is_delayed(s))
        rc = flat_create(&f->buf_out, s->buf_out, &f->layout, err);
    if (rc == 0)
        rc = file_out_open(&f->full_out, s->full_out, 0600, err);
    if (rc == 0 && s->ema_out)
        rc = file_out_open(&f->ema_out, s->ema_out, 0600, err);
    if (rc == 0)
        rc = file_out_open(&f->delta_out, s->delta_out, 0600, err);
    if (rc == 0)
        rc = wire_out_open(&f->delta, &f->delta_out, &info, &f->layout, err);
    if (rc == 0)
        rc = sink_new(&f->layout, &f->full_out, s->ema_out ? &f->ema_out : NULL, &f->sink, err);
    return rc;
}

/* ---- folding ---- */

static int flat_read(const struct flat *flat, uint64_t first, size_t n, float *out, struct err *err)
{
    if (flat->fd < 0) {
        memset(out, 0, n * sizeof *out);
        return 0;
    }
    return file_pread_all(flat->fd, out, n * sizeof *out, flat->payload + first * sizeof *out,
                          flat->path, err);
}

static int read_chunk(struct fold *f, size_t t, uint64_t first, size_t n, float *ema,
                      struct err *err)
{
    uint64_t at = layout_first(&f->layout, t) + first;
    int rc = flat_read(&f->full, at, n, f->theta_buf, err);
    if (rc == 0)
        rc = flat_read(&f->target, at, n, f->target_buf, err);
    if (rc == 0)
        rc = flat_read(&f->mom, at, n, f->mom_buf, err);
    if (rc == 0 && f->buf_buf)
        rc = flat_read(&f->buf, at, n, f->buf_buf, err);
    if (rc == 0 && f->from_buf)
        rc = flat_read(&f->from, at, n, f->from_buf, err);
    if (rc == 0 && ema)
        rc = flat_read(&f->ema, at, n, ema, err);
    for (size_t i = 0; rc == 0 && i < f->step->n_inputs; i++)
        rc = wire_read(&f->inputs[i], t, first, n, f->in_payload[i], f->in_scales[i], err);
    return rc;
}

static int write_chunk(struct fold *f, size_t t, uint64_t first, size_t n, struct err *err)
{
    uint64_t at = f->layout.st.payload + (layout_first(&f->layout, t) + first) * sizeof(float);
    int rc = file_out_pwrite(&f->target_out, f->target_buf, n * sizeof(float), at, err);
    if (rc == 0)
        rc = file_out_pwrite(&f->mom_out, f->mom_buf, n * sizeof(float), at, err);
    if (rc == 0 && f->buf_buf)
        rc = file_out_pwrite(&f->buf_out, f->buf_buf, n * sizeof(float), at, err);
    if (rc == 0)
        rc = wire_out_write(&f->delta, t, first, n, f->delta_payload, f->delta_scales, err);
    return rc;
}

static int fold_chunk(struct fold *f, size_t t, uint64_t first, size_t n, struct err *err)
{
    struct sink_slot slot;
    int rc = sink_slot(f->sink, &slot, err);
    if (rc == 0)
        rc = read_chunk(f, t, first, n, slot.ema, err);
    if (rc < 0)
        return rc;
    struct fold_span span = {
        .n = n,
        .in = {.k = f->step->n_inputs,
               .payload = (const void *const *)f->in_payload,
               .scales = (const uint16_t *const *)f->in_scales,
               .weight = f->weight},
        .start = f->from_buf ? f->from_buf : f->theta_buf,
        .theta = f->theta_buf,
        .theta_new = slot.theta,
        .mom = f->mom_buf,
        .target = f->target_buf,
        .buf = f->buf_buf,
        .ema = slot.ema,
        .delta = f->delta_payload,
        .delta_scales = f->delta_scales,
    };
    if (!fold_math_span(&f->math, &span, &f->squares))
        return err_set(err, -ERR_FORMAT,
                       "module %llu: tensor %s is not finite after the outer step",
                       (unsigned long long)f->step->module_id, f->layout.st.tensors[t].name);
    rc = write_chunk(f, t, first, n, err);
    if (rc == 0)
        sink_push(f->sink, n);
    return rc;
}

/* Adds the square of total * (weighted mean) of a chunk. */
static int norm_chunk(struct fold *f, size_t t, uint64_t first, size_t n, struct err *err)
{
    uint64_t at = layout_first(&f->layout, t) + first;
    const struct flat *start = f->from_buf ? &f->from : &f->full;
    int rc = f->step->up == CODEC_F32 ? flat_read(start, at, n, f->theta_buf, err) : 0;
    for (size_t i = 0; rc == 0 && i < f->step->n_inputs; i++)
        rc = wire_read(&f->inputs[i], t, first, n, f->in_payload[i], f->in_scales[i], err);
    if (rc < 0)
        return rc;
    const struct kernel_inputs in = {.k = f->step->n_inputs,
                                     .payload = (const void *const *)f->in_payload,
                                     .scales = (const uint16_t *const *)f->in_scales,
                                     .weight = f->weight};
    f->squares.delta += fold_math_square(&f->math, &in, f->theta_buf, n);
    return 0;
}

typedef int (*chunk_fn)(struct fold *f, size_t t, uint64_t first, size_t n, struct err *err);

static int each_chunk(struct fold *f, chunk_fn chunk, struct err *err)
{
    for (size_t t = 0; t < f->layout.st.n_tensors; t++) {
        uint64_t count = f->layout.st.tensors[t].count;
        for (uint64_t first = 0; first < count; first += f->chunk) {
            size_t n = count - first < f->chunk ? (size_t)(count - first) : f->chunk;
            if (f->step->stop && f->step->stop(f->step->stop_arg))
                return err_set(err, -ERR_CANCELLED, "the outer step was stopped");
            int rc = chunk(f, t, first, n, err);
            if (rc < 0)
                return rc;
        }
    }
    return 0;
}

/* The factor that gives the mean the norm of its parts, at most step->scale. */
static int keep_norm(struct fold *f, struct err *err)
{
    double parts = 0;
    int rc = each_chunk(f, norm_chunk, err);
    if (rc < 0)
        return rc;
    for (size_t i = 0; i < f->step->n_inputs; i++)
        parts += f->weight[i] * f->step->inputs[i].norm;
    double mean = sqrt(f->squares.delta), most = f->step->scale;
    if (parts < most * mean) /* the mean is never longer than its parts but by rounding */
        f->math.nesterov.scale = parts > mean ? parts / mean : 1;
    f->squares.delta = 0;
    return 0;
}

/* ---- the end ---- */

/* state first and full last: a version whose full file is there is complete. */
static int commit_all(struct fold *f, struct err *err)
{
    int rc = file_out_commit(&f->mom_out, err);
    if (rc == 0 && f->buf_buf)
        rc = file_out_commit(&f->buf_out, err);
    if (rc == 0)
        rc = file_out_commit(&f->target_out, err);
    if (rc == 0 && f->step->ema_out)
        rc = file_out_commit(&f->ema_out, err);
    if (rc == 0)
        rc = file_out_commit(&f->delta_out, err);
    if (rc == 0)
        rc = file_out_commit(&f->full_out, err);
    return rc;
}

static int finish(struct fold *f, struct fold_result *r, struct err *err)
{
    /* The scales of a tensor are complete after its payload only, so the delta
     * is hashed when it is whole; it is small and still in the page cache. */
    int rc = hash_file(f->delta_out.temp, r->delta.sha256, &r->delta.bytes, err);
    if (rc == 0)
        rc = sink_finish(f->sink, r->full.sha256, r->ema.sha256, err);
    if (rc == 0)
        rc = commit_all(f, err);
    if (rc < 0)
        return rc;
    r->params = f->layout.count;
    r->full.bytes = f->layout.st.payload + f->layout.count * sizeof(float);
    r->ema.bytes = f->step->ema_out ? r->full.bytes : 0;
    r->delta_norm = sqrt(f->squares.delta) / f->math.nesterov.total * f->math.nesterov.scale;
    r->scale = f->math.nesterov.scale;
    r->step_norm = sqrt(f->squares.step);
    r->residual_norm = sqrt(f->squares.residual);
    return 0;
}

static struct fold *fold_new(const struct fold_step *step)
{
    struct fold *f = mem_alloc(sizeof *f);
    f->step = step;
    f->math = (struct fold_math){
        .kernels = kernels_best(),
        .up = step->up,
        .down = step->down,
        .nesterov = {.lr = step->lr,
                     .mu = step->momentum,
                     .scale = step->scale,
                     .parts = step->delay ? step->delay : 1,
                     .due = is_delayed(step) && (step->base + 1) % step->delay == 0},
        .ema_decay = step->ema_decay};
    f->full.fd = f->ema.fd = f->target.fd = f->mom.fd = f->buf.fd = f->from.fd = -1;
    for (size_t i = 0; i < FOLD_INPUTS_MAX; i++)
        f->inputs[i].fd = -1;
    f->full_out.fd = f->delta_out.fd = f->ema_out.fd = -1;
    f->target_out.fd = f->mom_out.fd = f->buf_out.fd = -1;
    return f;
}

static void flat_close(struct flat *f)
{
    if (f->fd >= 0)
        (void)close(f->fd); /* read only: nothing to lose */
}

static void fold_free(struct fold *f)
{
    sink_free(f->sink); /* before the files it writes */
    wire_out_release(&f->delta);
    file_out_abort(&f->full_out);
    file_out_abort(&f->delta_out);
    file_out_abort(&f->ema_out);
    file_out_abort(&f->target_out);
    file_out_abort(&f->mom_out);
    file_out_abort(&f->buf_out);
    for (size_t i = 0; i < FOLD_INPUTS_MAX; i++)
        wire_close(&f->inputs[i]);
    flat_close(&f->full);
    flat_close(&f->ema);
    flat_close(&f->target);
    flat_close(&f->mom);
    flat_close(&f->buf);
    flat_close(&f->from);
    mem_free(f->in_block);
    mem_free(f->theta_buf);
    mem_free(f->target_buf);
    mem_free(f->mom_buf);
    mem_free(f->buf_buf);
    mem_free(f->from_buf);
    mem_free(f->delta_payload);
    mem_free(f->delta_scales);
    layout_release(&f->layout);
    mem_free(f);
}

static int check_step(const struct fold_step *s, struct err *err)
{
    if ((unsigned)s->up >= CODEC_COUNT || (unsigned)s->down >= CODEC_COUNT)
        return err_set(err, -EINVAL, "unknown codec");
    if (!isfinite(s->lr) || !isfinite(s->momentum))
        return err_set(err, -EINVAL, "outer lr %g, momentum %g: expected finite numbers", s->lr,
                       s->momentum);
    if (!isfinite(s->scale) || s->scale <= 0)
        return err_set(err, -EINVAL, "scale %g, expected a positive number", s->scale);
    if (!(s->ema_decay >= 0 && s->ema_decay <= 1))
        return err_set(err, -EINVAL, "EMA decay %g, expected 0 to 1", s->ema_decay);
    return 0;
}

int fold_run(const struct fold_step *step, struct fold_result *ret, struct err *err)
{
    struct fold_result result = {0};
    int rc = check_step(step, err);
    if (rc < 0)
        return rc;
    struct fold *f = fold_new(step);
    rc = open_state(f, err);
    if (rc == 0)
        rc = open_inputs(f, err);
    if (rc == 0)
        rc = alloc_buffers(f, err);
    if (rc == 0 && step->keep_norm)
        rc = keep_norm(f, err);
    if (rc == 0)
        rc = open_outputs(f, err);
    if (rc == 0)
        rc = each_chunk(f, fold_chunk, err);
    if (rc == 0)
        rc = finish(f, &result, err);
    fold_free(f);
    if (rc == 0)
        *ret = result;
    return rc;
}

double fold_momentum(double mu, uint64_t base, uint64_t warmup)
{
    return base >= warmup ? mu : mu * ((double)base / (double)warmup);
}

double fold_ema_decay(double d, uint64_t base)
{
    double young = (1.0 + (double)base) / (10.0 + (double)base);
    return d < young ? d : young;
}
