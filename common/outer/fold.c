#include "common/outer/fold.h"

#include <fcntl.h>
#include <unistd.h>

#include "common/base/file.h"
#include "common/outer/fold_math.h"
#include "common/outer/layout.h"
#include "common/outer/fold_sink.h"
#include "common/outer/wire.h"

/* Memory for all payloads of a chunk together: with many contributions of a
 * wide codec the chunk gets shorter, not the memory larger. */
#define INPUT_BYTES (2u << 20)

/* ---- the step ---- */

struct flat { /* a file of one float per parameter */
    int fd;   /* -1: absent */
    const char *path;
    uint64_t payload;
    const uint8_t *is; /* the hash that it should have; NULL: it is not hashed */
    struct hash read;  /* of what is read of it */
};

/* The files that are read: the state at version v. */
enum { FULL, EMA, TARGET, MOM, BUF, INS };
/* The files that are written, in the order in which they get their names: the state first and full
 * last, so that a version with a full file is complete. */
enum { MOM_OUT, BUF_OUT, TARGET_OUT, EMA_OUT, DELTA_OUT, FULL_OUT, OUTS };

/* An older version, from which the values of a group are subtracted. */
struct start {
    struct flat file;
    float *buf;
};

struct fold {
    const struct fold_step *step;
    struct layout layout;
    struct fold_math math;
    struct flat in[INS];
    /* The inputs by group: order[0 .. n_inputs) are their numbers in the step. */
    size_t order[FOLD_INPUTS_MAX];
    struct fold_group groups[FOLD_STARTS_MAX];
    struct start starts[FOLD_STARTS_MAX]; /* by group; fd -1: the group needs none */
    size_t n_groups;
    enum codec widest;
    struct wire inputs[FOLD_INPUTS_MAX];
    double weight[FOLD_INPUTS_MAX], plain[FOLD_INPUTS_MAX]; /* plain: not shrunk, for buffers */
    size_t chunk;                                           /* elements */
    /* buffers of one chunk */
    uint8_t *in_payload[FOLD_INPUTS_MAX]; /* into in_block */
    uint16_t *in_scales[FOLD_INPUTS_MAX];
    uint8_t *in_block, *delta_payload;
    uint16_t *delta_scales;
    float *full; /* other inputs are read into slots of the sinks */
    /* outputs */
    const char *out_path[OUTS]; /* NULL: not made */
    const char *spare[OUTS];    /* NULL: none */
    struct file_out out[OUTS];
    struct wire_out delta;
    struct fold_sink *version, *state;
    struct fold_squares squares;
    struct hash read;    /* of what is read of the inputs; not begun: it is not wanted */
    double cell;         /* the square of the mean's cell so far */
    uint64_t cells_done; /* cells written */
};

/* ---- opening ---- */

static bool is_delayed(const struct fold_step *s)
{
    return s->delay > 1;
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

static void flat_close(struct flat *f)
{
    if (f->fd >= 0)
        (void)close(f->fd); /* read only: nothing to lose */
    hash_release(&f->read);
}

/* Begins to hash the file, with all that is before its payload. */
static int flat_hash(struct flat *f, const uint8_t *is, struct err *err)
{
    const size_t n = (size_t)f->payload;
    uint8_t *head = mem_try(n);
    int rc = head ? file_pread_all(f->fd, head, n, 0, f->path, err)
                  : err_set(err, -ENOMEM, "no memory for the outer step");
    if (rc == 0) {
        f->is = is;
        hash_init(&f->read);
        hash_update(&f->read, head, n);
    }
    mem_free(head);
    return rc;
}

/* All of it was read: was it what it should be? */
static int flat_expect(struct flat *f, struct err *err)
{
    uint8_t got[HASH_BYTES];
    if (!f->is)
        return 0;
    hash_final(&f->read, got);
    return hash_equal(got, f->is, HASH_BYTES)
               ? 0
               : err_set(err, -ERR_HASH, "%s is not what it was when it was written", f->path);
}

static int open_state(struct fold *f, struct err *err)
{
    const struct fold_step *s = f->step;
    const char *const paths[INS] = {
        [FULL] = s->full,
        [EMA] = !s->ema_out ? NULL
                : s->ema    ? s->ema
                            : s->full,
        [TARGET] = s->target ? s->target : s->full,
        [MOM] = s->mom,
        [BUF] = is_delayed(s) ? s->buf : NULL,
    };
    const uint8_t *const is[INS] = {s->full_is, s->ema_is, s->target_is, s->mom_is, s->buf_is};
    int rc = layout_open(s->full, &f->layout, err);
    for (int i = 0; rc == 0 && i < INS; i++) {
        if (paths[i])
            rc = flat_open(&f->in[i], paths[i], &f->layout, err);
        if (rc == 0 && paths[i] && is[i])
            rc = flat_hash(&f->in[i], is[i], err);
    }
    return rc;
}

/* ---- inputs ---- */

static bool is_alike(const struct fold_origin *a, const struct fold_origin *b)
{
    return a->codec == b->codec && (a->codec != CODEC_F32 || a->from == b->from);
}

/* Groups the inputs by codec, those in f32 also by version; a group keeps their order. */
static int group_inputs(struct fold *f, struct err *err)
{
    const struct fold_step *s = f->step;
    bool taken[FOLD_INPUTS_MAX] = {false};
    size_t at = 0;
    for (size_t i = 0; i < s->n_inputs; i++) {
        if (taken[i])
            continue;
        if (f->n_groups == FOLD_STARTS_MAX)
            return err_set(err, -EINVAL, "contributions start from more than %d versions",
                           FOLD_STARTS_MAX);
        struct fold_group *g = &f->groups[f->n_groups++];
        *g = (struct fold_group){.codec = s->inputs[i].origin.codec,
                                 .in = {.payload = (const void *const *)f->in_payload + at,
                                        .scales = (const uint16_t *const *)f->in_scales + at,
                                        .weight = f->weight + at}};
        for (size_t k = i; k < s->n_inputs; k++)
            if (!taken[k] && is_alike(&s->inputs[i].origin, &s->inputs[k].origin)) {
                taken[k] = true;
                f->order[at++] = k;
                g->in.k++;
            }
        if (codec_payload_bytes(g->codec, FOLD_STRIP) > codec_payload_bytes(f->widest, FOLD_STRIP))
            f->widest = g->codec;
    }
    return 0;
}

static double weight_of(const struct fold_input *in)
{
    return in->weight * (in->shrink > 0 ? in->shrink : 1);
}

static int open_input(struct fold *f, size_t at, struct err *err)
{
    const struct fold_step *s = f->step;
    const struct fold_input *in = &s->inputs[f->order[at]];
    const struct wire_info want = {.kind = WIRE_CONTRIBUTION,
                                   .codec = in->origin.codec,
                                   .module_id = s->module_id,
                                   .base = in->origin.from};
    if (!isfinite(in->weight) || in->weight <= 0)
        return err_set(err, -EINVAL, "%s has weight %g, expected a positive number", in->path,
                       in->weight);
    f->weight[at] = weight_of(in);
    f->plain[at] = in->weight;
    f->math.nesterov.total += in->weight;
    return in->source
               ? wire_open_source(in->source, in->path, &want, &f->layout, &f->inputs[at], err)
               : wire_open(in->path, &want, &f->layout, &f->inputs[at], err);
}

/* Opens the older versions from which the values of groups are subtracted. */
static int open_starts(struct fold *f, struct err *err)
{
    int rc = 0;
    for (size_t g = 0, at = 0; g < f->n_groups && rc == 0; at += f->groups[g++].in.k) {
        const struct fold_origin *o = &f->step->inputs[f->order[at]].origin;
        if (o->codec == CODEC_F32 && o->from != f->step->base)
            rc = flat_open(&f->starts[g].file, o->from_full, &f->layout, err);
    }
    return rc;
}

static int open_inputs(struct fold *f, struct err *err)
{
    const struct fold_step *s = f->step;
    if (!s->n_inputs || s->n_inputs > FOLD_INPUTS_MAX)
        return err_set(err, -EINVAL, "%zu contributions, expected 1 to %d", s->n_inputs,
                       FOLD_INPUTS_MAX);
    for (size_t i = 0; i < s->n_inputs; i++)
        if ((unsigned)s->inputs[i].origin.codec >= CODEC_COUNT)
            return err_set(err, -EINVAL, "unknown codec");
    int rc = group_inputs(f, err);
    for (size_t at = 0; at < s->n_inputs && rc == 0; at++)
        rc = open_input(f, at, err);
    return rc == 0 ? open_starts(f, err) : rc;
}

static int alloc_inputs(struct fold *f, struct err *err)
{
    size_t k = f->step->n_inputs;
    const enum codec widest = f->layout.buffers ? CODEC_F32 : f->widest;
    size_t per_strip = codec_payload_bytes(widest, FOLD_STRIP);
    size_t strips = INPUT_BYTES / (k * per_strip);
    f->chunk = strips * FOLD_STRIP < FOLD_CHUNK ? strips * FOLD_STRIP : FOLD_CHUNK;
    size_t payload = codec_payload_bytes(widest, f->chunk);
    size_t scales = f->chunk / CODEC_BLOCK * sizeof(uint16_t);
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
    f->delta_payload = mem_try_aligned(64, bytes); /* room for the widest codec */
    f->delta_scales = mem_try_array(f->chunk / CODEC_BLOCK, sizeof(uint16_t));
    bool all = f->delta_payload && f->delta_scales;
    all = all && (f->full = mem_try_aligned(64, bytes)) != NULL;
    for (size_t g = 0; all && g < f->n_groups; g++) {
        const bool older = f->starts[g].file.fd >= 0;
        all = !older || (f->starts[g].buf = mem_try_aligned(64, bytes)) != NULL;
        f->groups[g].start = older ? f->starts[g].buf : f->full;
    }
    return all ? 0 : err_set(err, -ENOMEM, "no memory for the outer step");
}

static struct file_out *out_of(struct fold *f, int out)
{
    return f->out_path[out] ? &f->out[out] : NULL;
}

static int open_outputs(struct fold *f, struct err *err)
{
    const struct fold_step *s = f->step;
    const struct layout *l = &f->layout;
    struct wire_info info = {.kind = WIRE_DELTA,
                             .codec = s->down,
                             .module_id = s->module_id,
                             .base = s->base,
                             .version = s->base + 1};
    struct file_out *const version[FOLD_SINK_FILES] = {out_of(f, FULL_OUT), out_of(f, EMA_OUT)};
    struct file_out *const state[FOLD_SINK_FILES] = {out_of(f, TARGET_OUT), out_of(f, MOM_OUT),
                                                     out_of(f, BUF_OUT)};
    int rc = 0;
    for (int i = 0; rc == 0 && i < OUTS; i++)
        if (f->out_path[i] && f->spare[i])
            rc = file_out_open_again(&f->out[i], f->out_path[i], f->spare[i], 0600, err);
        else if (f->out_path[i])
            rc = file_out_open(&f->out[i], f->out_path[i], 0600, err);
    if (rc == 0)
        rc = wire_out_open(&f->delta, &f->out[DELTA_OUT], &info, l, err);
    if (rc == 0)
        rc = fold_sink_new(l, version, &f->version, err);
    if (rc == 0)
        rc = fold_sink_new(l, state, &f->state, err);
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

static int input_read(struct fold *f, size_t i, size_t t, uint64_t first, size_t n, struct err *err)
{
    const enum codec codec = f->inputs[i].at[t].codec;
    int rc = wire_read(&f->inputs[i], t, first, n, f->in_payload[i], f->in_scales[i], err);
    if (rc < 0 || !f->read.impl)
        return rc;
    hash_update(&f->read, f->in_payload[i], codec_payload_bytes(codec, n));
    if (codec_has_scale(codec))
        hash_update(&f->read, f->in_scales[i], codec_scales(codec, n) * sizeof(uint16_t));
    return 0;
}

/* Reads the same elements of each older version and of each input. */
static int read_inputs(struct fold *f, size_t t, uint64_t first, size_t n, struct err *err)
{
    const uint64_t at = layout_first(&f->layout, t) + first;
    int rc = 0;
    for (size_t g = 0; rc == 0 && g < f->n_groups; g++)
        if (f->starts[g].buf)
            rc = flat_read(&f->starts[g].file, at, n, f->starts[g].buf, err);
    for (size_t i = 0; rc == 0 && i < f->step->n_inputs; i++)
        rc = input_read(f, i, t, first, n, err);
    return rc;
}

static int read_chunk(struct fold *f, size_t t, uint64_t first, size_t n, float *const to[INS],
                      struct err *err)
{
    uint64_t at = layout_first(&f->layout, t) + first;
    int rc = 0;
    for (int i = 0; rc == 0 && i < INS; i++) {
        if (to[i])
            rc = flat_read(&f->in[i], at, n, to[i], err);
        if (rc == 0 && f->in[i].is)
            hash_update(&f->in[i].read, to[i], n * sizeof(float));
    }
    return rc == 0 ? read_inputs(f, t, first, n, err) : rc;
}

/* Gives the groups their inputs' weights. */
static void weigh(struct fold *f, const double *weight)
{
    for (size_t g = 0, at = 0; g < f->n_groups; at += f->groups[g++].in.k)
        f->groups[g].in.weight = weight + at;
}

/* Makes the step of n elements of tensor t that were read: updates at[], makes theta_new. */
static int make_span(struct fold *f, size_t t, size_t n, float *const at[INS], float *theta_new,
                     struct err *err)
{
    const struct fold_span span = {
        .n = n,
        .groups = f->groups,
        .n_groups = f->n_groups,
        .theta = at[FULL],
        .theta_new = theta_new,
        .mom = at[MOM],
        .target = at[TARGET],
        .buf = at[BUF],
        .ema = at[EMA],
        .delta = f->delta_payload,
        .delta_scales = f->delta_scales,
    };
    const bool buffer = layout_is_buffer(&f->layout, t);
    weigh(f, buffer ? f->plain : f->weight);
    if (buffer ? fold_math_buffer(&f->math, &span, f->layout.role[t] == LAYOUT_FIRST)
               : fold_math_span(&f->math, &span, &f->squares))
        return 0;
    return err_set(err, -ERANGE, "module %llu: tensor %s is not finite after the outer step",
                   (unsigned long long)f->step->module_id, f->layout.st.tensors[t].name);
}

/* Payloads are the end of the delta's file, in the order in which they are made. */
static void tell_written(const struct fold *f, uint64_t reached)
{
    const struct fold_written w = {f->out[DELTA_OUT].fd, f->delta.at[0].payload, reached,
                                   f->delta.bytes};
    if (f->step->written)
        f->step->written(f->step->written_arg, &w);
}

static int fold_chunk(struct fold *f, size_t t, uint64_t first, size_t n, struct err *err)
{
    float *made[FOLD_SINK_FILES], *state[FOLD_SINK_FILES];
    int rc = fold_sink_slot(f->version, made, err);
    if (rc == 0)
        rc = fold_sink_slot(f->state, state, err);
    if (rc < 0)
        return rc;
    float *const at[INS] = {
        [FULL] = f->full, [EMA] = made[1], [TARGET] = state[0], [MOM] = state[1], [BUF] = state[2]};
    rc = read_chunk(f, t, first, n, at, err);
    if (rc == 0)
        rc = make_span(f, t, n, at, made[0], err);
    if (rc < 0)
        return rc;
    fold_sink_push(f->version, n);
    fold_sink_push(f->state, n);
    rc = wire_out_write(&f->delta, t, first, n, f->delta_payload, f->delta_scales, err);
    const struct wire_place *p = &f->delta.at[t];
    if (rc == 0)
        tell_written(f, p->payload + codec_payload_bytes(p->codec, (size_t)first + n));
    return rc;
}

static int write_cells(struct fold *f, const double *cells, size_t n, struct err *err)
{
    const struct fold_cells *to = f->step->mean;
    const uint64_t at = f->cells_done * sizeof(*cells);
    f->cells_done += n;
    return to ? file_pwrite_all(to->fd, cells, n * sizeof(*cells), to->at + at, "squares", err) : 0;
}

/* Adds the squares of total * (weighted mean) of a chunk.  The sum goes over the strips of a cell
 * (layout.h), and then over cells, so that it does not depend on the ends of chunks. */
static int norm_chunk(struct fold *f, size_t t, uint64_t first, size_t n, struct err *err)
{
    const uint64_t at = layout_first(&f->layout, t) + first, count = f->layout.st.tensors[t].count;
    const bool buffer = layout_is_buffer(&f->layout, t);
    double cells[FOLD_CHUNK / LAYOUT_CELL + 1];
    size_t k = 0;
    int rc = !buffer && f->widest == CODEC_F32 ? flat_read(&f->in[FULL], at, n, f->full, err) : 0;
    if (rc == 0 && !buffer)
        rc = read_inputs(f, t, first, n, err);
    for (size_t from = 0; from < n && rc == 0; from += FOLD_STRIP) {
        const size_t part = n - from < FOLD_STRIP ? n - from : FOLD_STRIP;
        const uint64_t end = first + from + part;
        if (!buffer)
            f->cell += fold_math_square(&f->math, f->groups, f->n_groups, from, part);
        if (end % LAYOUT_CELL != 0 && end != count)
            continue;
        f->squares.delta += f->cell;
        cells[k++] = f->cell;
        f->cell = 0;
    }
    return rc == 0 ? write_cells(f, cells, k, err) : rc;
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

double fold_kept_scale(const struct fold_step *s, double squares)
{
    const double mean = sqrt(squares);
    double parts = 0;
    for (size_t i = 0; i < s->n_inputs; i++)
        parts += weight_of(&s->inputs[i]) * s->inputs[i].norm;
    if (parts >= s->scale * mean)
        return s->scale;
    return parts > mean ? parts / mean : 1; /* only rounding makes the mean longer than its parts */
}

/* Sets the factor that gives the mean the norm of its parts. */
static int keep_norm(struct fold *f, struct err *err)
{
    const int rc = each_chunk(f, norm_chunk, err);
    f->math.nesterov.scale = fold_kept_scale(f->step, f->squares.delta);
    f->squares.delta = 0;
    return rc;
}

/* ---- the end ---- */

/* All files are on the disk before the first gets its name; they are written next to each other. */
static int commit_all(struct fold *f, struct err *err)
{
    int rc = 0;
    for (int i = 0; i < OUTS; i++)
        if (f->out_path[i])
            file_out_begin_sync(&f->out[i]);
    for (int i = 0; rc == 0 && i < OUTS; i++)
        if (f->out_path[i])
            rc = file_out_sync(&f->out[i], err);
    for (int i = 0; rc == 0 && i < OUTS; i++)
        if (f->out_path[i])
            rc = file_out_put(&f->out[i], err);
    return rc < 0 ? rc : file_sync_parents(f->out_path, OUTS, err);
}

static int finish(struct fold *f, struct fold_result *r, struct err *err)
{
    int rc = 0;
    for (int i = 0; rc == 0 && i < INS; i++)
        rc = flat_expect(&f->in[i], err);
    /* The scales of a tensor are complete after its payload only, so the delta
     * is hashed when it is whole; it is small and still in the page cache. */
    if (rc == 0)
        rc = hash_file(f->out[DELTA_OUT].temp, r->delta.sha256, &r->delta.bytes, err);
    if (f->read.impl)
        hash_final(&f->read, r->inputs);
    struct fold_file *const version[FOLD_SINK_FILES] = {&r->full, &r->ema};
    struct fold_file *const state[FOLD_SINK_FILES] = {&r->target, &r->mom, &r->buf};
    if (rc == 0)
        rc = fold_sink_finish(f->version, version, err);
    if (rc == 0)
        rc = fold_sink_finish(f->state, state, err);
    if (rc == 0)
        rc = commit_all(f, err);
    if (rc < 0)
        return rc;
    r->params = f->layout.count;
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
        .arith = arith_best(),
        .down = step->down,
        .nesterov = {.lr = step->lr,
                     .mu = step->momentum,
                     .scale = step->scale,
                     .parts = step->delay ? step->delay : 1,
                     .due = is_delayed(step) && (step->base + 1) % step->delay == 0},
        .ema_decay = step->ema_decay};
    f->out_path[MOM_OUT] = step->mom_out;
    f->out_path[BUF_OUT] = is_delayed(step) ? step->buf_out : NULL;
    f->out_path[TARGET_OUT] = step->target_out;
    f->out_path[EMA_OUT] = step->ema_out;
    f->out_path[DELTA_OUT] = step->delta_out;
    f->out_path[FULL_OUT] = step->full_out;
    f->spare[MOM_OUT] = step->mom_spare;
    f->spare[BUF_OUT] = step->buf_spare;
    f->spare[TARGET_OUT] = step->target_spare;
    f->widest = CODEC_E3M0;
    for (int i = 0; i < INS; i++)
        f->in[i].fd = -1;
    for (int i = 0; i < FOLD_STARTS_MAX; i++)
        f->starts[i].file.fd = -1;
    for (int i = 0; i < OUTS; i++)
        f->out[i].fd = -1;
    for (size_t i = 0; i < FOLD_INPUTS_MAX; i++)
        f->inputs[i].fd = -1;
    if (step->hash_inputs)
        hash_init(&f->read);
    return f;
}

static void fold_free(struct fold *f)
{
    fold_sink_free(f->version); /* before the files they write */
    fold_sink_free(f->state);
    wire_out_release(&f->delta);
    for (int i = 0; i < OUTS; i++)
        file_out_abort(&f->out[i]);
    for (size_t i = 0; i < FOLD_INPUTS_MAX; i++)
        wire_close(&f->inputs[i]);
    for (int i = 0; i < INS; i++)
        flat_close(&f->in[i]);
    for (int i = 0; i < FOLD_STARTS_MAX; i++) {
        flat_close(&f->starts[i].file);
        mem_free(f->starts[i].buf);
    }
    hash_release(&f->read);
    mem_free(f->full);
    mem_free(f->in_block);
    mem_free(f->delta_payload);
    mem_free(f->delta_scales);
    layout_release(&f->layout);
    mem_free(f);
}

static int check_step(const struct fold_step *s, struct err *err)
{
    if ((unsigned)s->down >= CODEC_COUNT)
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

static int open_all(struct fold *f, struct err *err)
{
    int rc = open_state(f, err);
    if (rc == 0)
        rc = open_inputs(f, err);
    return rc == 0 ? alloc_buffers(f, err) : rc;
}

int fold_run(const struct fold_step *step, struct fold_result *ret, struct err *err)
{
    struct fold_result result = {0};
    int rc = check_step(step, err);
    if (rc < 0)
        return rc;
    struct fold *f = fold_new(step);
    rc = open_all(f, err);
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

int fold_hash_inputs(const struct fold_step *step, uint8_t ret[HASH_BYTES], struct err *err)
{
    struct fold *f = fold_new(step);
    int rc = open_all(f, err);
    if (!f->read.impl)
        hash_init(&f->read);
    if (rc == 0)
        rc = each_chunk(f, read_inputs, err);
    if (rc == 0)
        hash_final(&f->read, ret);
    fold_free(f);
    return rc;
}

/* ---- a step that another process made ---- */

/* The other process's files, and their expected content for a piece. */
struct again {
    struct flat flat[OUTS]; /* not DELTA_OUT */
    struct wire delta;
    float *made[OUTS], *his;
    uint16_t *scales;
};

static int again_open(struct fold *f, struct again *a, struct err *err)
{
    const struct wire_info want = {.kind = WIRE_DELTA,
                                   .codec = f->step->down,
                                   .module_id = f->step->module_id,
                                   .base = f->step->base,
                                   .version = f->step->base + 1};
    int rc = wire_open(f->out_path[DELTA_OUT], &want, &f->layout, &a->delta, err);
    for (int i = 0; i < OUTS && rc == 0; i++) {
        if (!f->out_path[i])
            continue;
        if (i != DELTA_OUT)
            rc = flat_open(&a->flat[i], f->out_path[i], &f->layout, err);
        a->made[i] = mem_try_aligned(64, f->chunk * sizeof(float));
        if (rc == 0 && !a->made[i])
            rc = err_set(err, -ENOMEM, "no memory for a look at an outer step");
    }
    a->his = mem_try_aligned(64, f->chunk * sizeof(float));
    a->scales = mem_try_array(f->chunk / CODEC_BLOCK, sizeof(*a->scales));
    if (rc == 0 && (!a->his || !a->scales))
        rc = err_set(err, -ENOMEM, "no memory for a look at an outer step");
    return rc;
}

static void again_close(struct again *a)
{
    wire_close(&a->delta);
    for (int i = 0; i < OUTS; i++) {
        flat_close(&a->flat[i]);
        mem_free(a->made[i]);
    }
    mem_free(a->his);
    mem_free(a->scales);
}

static int other_bits(const struct fold *f, const char *what, struct err *err)
{
    return err_set(err, -ERR_HASH, "module %llu: %s has other bits than the outer step gives",
                   (unsigned long long)f->step->module_id, what);
}

/* Checks that the header of each file is the expected one. */
static int same_headers(const struct fold *f, struct again *a, struct err *err)
{
    const size_t n = (size_t)f->layout.st.payload;
    uint8_t *his = mem_try(n);
    int rc = his ? 0 : err_set(err, -ENOMEM, "no memory for a look at an outer step");
    for (int i = 0; i < OUTS && rc == 0; i++) {
        if (a->flat[i].fd < 0)
            continue;
        rc = a->flat[i].payload == n
                 ? file_pread_all(a->flat[i].fd, his, n, 0, a->flat[i].path, err)
                 : -ERR_HASH;
        if (rc == -ERR_HASH || (rc == 0 && memcmp(his, f->layout.header, n) != 0))
            rc = other_bits(f, "a header", err);
    }
    mem_free(his);
    return rc;
}

static int compare(const struct fold *f, struct again *a, size_t t, uint64_t first, size_t n,
                   struct err *err)
{
    static const char *const names[OUTS] = {"the momentum", "the buffer", "the target",
                                            "the average",  "the delta",  "the version"};
    const enum codec codec = a->delta.at[t].codec;
    const uint64_t at = layout_first(&f->layout, t) + first;
    int rc = wire_read(&a->delta, t, first, n, a->his, a->scales, err);
    if (rc == 0 && (memcmp(a->his, f->delta_payload, codec_payload_bytes(codec, n)) != 0 ||
                    (codec_has_scale(codec) &&
                     memcmp(a->scales, f->delta_scales, codec_scales(codec, n) * 2) != 0)))
        rc = other_bits(f, names[DELTA_OUT], err);
    for (int i = 0; i < OUTS && rc == 0; i++) {
        if (a->flat[i].fd < 0)
            continue;
        rc = flat_read(&a->flat[i], at, n, a->his, err);
        if (rc == 0 && memcmp(a->his, a->made[i], n * sizeof(float)) != 0)
            rc = other_bits(f, names[i], err);
    }
    return rc;
}

static int again_piece(struct fold *f, struct again *a, size_t t, uint64_t first, size_t n,
                       struct err *err)
{
    float *const at[INS] = {[FULL] = f->full,
                            [EMA] = a->made[EMA_OUT],
                            [TARGET] = a->made[TARGET_OUT],
                            [MOM] = a->made[MOM_OUT],
                            [BUF] = a->made[BUF_OUT]};
    int rc = read_chunk(f, t, first, n, at, err);
    if (rc == 0)
        rc = make_span(f, t, n, at, a->made[FULL_OUT], err);
    return rc == 0 ? compare(f, a, t, first, n, err) : rc;
}

/* Makes a cell again; with many inputs a cell may be longer than a chunk. */
static int again_cell(struct fold *f, struct again *a, const struct layout_cell *c, struct err *err)
{
    int rc = 0;
    for (size_t from = 0; from < c->n && rc == 0; from += f->chunk)
        rc = again_piece(f, a, c->tensor, c->first + from,
                         c->n - from < f->chunk ? c->n - from : f->chunk, err);
    return rc;
}

int fold_compare(const struct fold_step *step, const struct layout_cell *cells, size_t n,
                 struct err *err)
{
    struct again a = {.delta = {.fd = -1}};
    for (int i = 0; i < OUTS; i++)
        a.flat[i].fd = -1;
    int rc = check_step(step, err);
    if (rc < 0)
        return rc;
    struct fold *f = fold_new(step);
    rc = open_all(f, err);
    if (rc == 0)
        rc = again_open(f, &a, err);
    if (rc == 0)
        rc = same_headers(f, &a, err);
    for (size_t i = 0; i < n && rc == 0; i++)
        rc = again_cell(f, &a, &cells[i], err);
    again_close(&a);
    fold_free(f);
    return rc;
}

int fold_mean_cell(const struct fold_step *step, const struct layout_cell *c, double *ret,
                   struct err *err)
{
    struct fold *f = fold_new(step);
    int rc = open_all(f, err);
    for (size_t from = 0; from < c->n && rc == 0; from += f->chunk)
        rc = norm_chunk(f, c->tensor, c->first + from,
                        c->n - from < f->chunk ? c->n - from : f->chunk, err);
    *ret = f->squares.delta;
    fold_free(f);
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
