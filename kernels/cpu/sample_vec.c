/* Tables, features, time embeddings and the loss of a sample, once per instruction set. */

#include "common/base/base.h"
#include "kernels/cpu/state.h"
#include "kernels/cpu/team.h"
#include "kernels/cpu/ref.h"
#include "kernels/cpu/vec.h"

static int blocks_of(int64_t n, int64_t size)
{
    return (int)((n + size - 1) / size);
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* ---- rows of a table ---- */

enum { GATHER_ROWS = 64, SCATTER_COLS = 64 };

struct embed_job {
    float *out;
    const float *in;
    const int32_t *ids;
    int B, C;
    bool accumulate;
};

static void gather_task(void *arg, int task, int thread)
{
    const struct embed_job *j = arg;
    for (int64_t b = task * GATHER_ROWS; b < least((task + 1) * GATHER_ROWS, j->B); b++) {
        const float *from = j->in + (int64_t)j->ids[b] * j->C;
        float *to = j->out + b * j->C;
        for (int c = 0; c < j->C; c += VL) {
            vmask m = v_mask(j->C - c);
            vf x = v_load(from + c, m);
            v_store(to + c, m, j->accumulate ? v_add(v_load(to + c, m), x) : x);
        }
    }
}

static int embed_fwd(struct device *dev, float *out, const float *table, const int32_t *ids, int B,
                     int C, int rows, bool accumulate, struct stream *s)
{
    struct embed_job j = {out, table, ids, B, C, accumulate};
    cpu_team_run(cpu_state(dev)->team, gather_task, &j, blocks_of(B, GATHER_ROWS));
    return 0;
}

/* A task owns some columns of the table, so that equal ids meet in one thread, in order. */
static void scatter_task(void *arg, int task, int thread)
{
    const struct embed_job *j = arg;
    const int end = (int)least((task + 1) * SCATTER_COLS, j->C);
    for (int64_t b = 0; b < j->B; b++) {
        float *to = j->out + (int64_t)j->ids[b] * j->C;
        for (int c = task * SCATTER_COLS; c < end; c += VL) {
            vmask m = v_mask(end - c);
            v_store(to + c, m, v_add(v_load(to + c, m), v_load(j->in + b * j->C + c, m)));
        }
    }
}

static int embed_bwd(struct device *dev, float *dtable, const float *dout, const int32_t *ids,
                     int B, int C, int rows, struct stream *s)
{
    struct embed_job j = {dtable, dout, ids, B, C, true};
    cpu_team_run(cpu_state(dev)->team, scatter_task, &j, blocks_of(C, SCATTER_COLS));
    return 0;
}

/* ---- mean over tokens ---- */

struct mean_job {
    float *out;
    const void *x;
    const int32_t *len;
    int T, C, begin, end;
    enum dtype dt;
};

static void mean_task(void *arg, int b, int thread)
{
    const struct mean_job *j = arg;
    const int last = j->len && j->len[b] < j->end ? j->len[b] : j->end;
    const vf count = v_set(last > j->begin ? (float)(last - j->begin) : 1);
    for (int c = 0; c < j->C; c += VL) {
        vmask m = v_mask(j->C - c);
        vf sum = v_zero();
        for (int64_t t = j->begin; t < last; t++)
            sum = v_add(sum, v_load_dt(j->x, j->dt, ((int64_t)b * j->T + t) * j->C + c, m));
        v_store(j->out + (int64_t)b * j->C + c, m, v_div(sum, count));
    }
}

static int mean_tokens(struct device *dev, float *out, const void *x, int B, int T, int C,
                       int begin, int end, const int32_t *len, enum dtype dt, struct stream *s)
{
    struct mean_job j = {out, x, len, T, C, begin, end, dt};
    cpu_team_run(cpu_state(dev)->team, mean_task, &j, B);
    return 0;
}

/* ---- time embedding ---- */

struct time_job {
    void *out;
    const float *t, *freq;
    int dim;
    enum dtype dt;
};

static void time_task(void *arg, int b, int thread)
{
    const struct time_job *j = arg;
    const int half = j->dim / 2;
    const int64_t row = (int64_t)b * j->dim;
    for (int i = 0; i < half; i += VL) {
        vmask m = v_mask(half - i);
        vf sine, cosine = v_cos_sin(v_mul(v_set(j->t[b]), v_load(j->freq + i, m)), &sine);
        v_store_dt(j->out, j->dt, row + i, m, cosine);
        v_store_dt(j->out, j->dt, row + half + i, m, sine);
    }
    if (j->dim % 2)
        dtype_set(j->out, j->dt, (size_t)(row + j->dim - 1), 0);
}

static int timestep_embed(struct device *dev, void *out, const float *t, int B, int dim,
                          enum dtype dt, struct stream *s)
{
    struct cpu_state *st = cpu_state(dev);
    int half = dim / 2;
    float *freq = cpu_scratch(st, SCRATCH_PACKED, (size_t)(half + 1) * sizeof *freq);
    if (!freq)
        return -ENOMEM;
    for (int i = 0; i < half; i++)
        freq[i] = ref_time_freq(i, half);
    struct time_job j = {out, t, freq, dim, dt};
    cpu_team_run(st->team, time_task, &j, B);
    return 0;
}

/* ---- mean squared error ---- */

enum { MSE_PART = 1024 };

struct mse_job {
    float *loss, *dpred;
    const float *pred, *target, *w;
    float grad_scale;
    int64_t n;
};

static void mse_task(void *arg, int b, int thread)
{
    const struct mse_job *j = arg;
    const vf g = v_set(2.0f * j->grad_scale * (j->w ? j->w[b] : 1.0f) / (float)j->n);
    double sum = 0;
    for (int64_t i = 0; i < j->n; i += MSE_PART) {
        float diff[MSE_PART];
        int64_t at = (int64_t)b * j->n + i, n = least(MSE_PART, j->n - i);
        for (int64_t k = 0; k < n; k += VL) {
            vmask m = v_mask(n - k);
            vf d = v_sub(v_load(j->pred + at + k, m), v_load(j->target + at + k, m));
            v_store(diff + k, m, d);
            if (j->dpred)
                v_store(j->dpred + at + k, m, v_mul(g, d));
        }
        sum += v_sumsq_f64(diff, n);
    }
    j->loss[b] = (float)(sum / (double)j->n);
}

static int mse(struct device *dev, float *loss, float *dpred, const float *pred,
               const float *target, const float *w, float grad_scale, int B, int64_t n,
               struct stream *s)
{
    struct mse_job j = {loss, dpred, pred, target, w, grad_scale, n};
    cpu_team_run(cpu_state(dev)->team, mse_task, &j, B);
    return 0;
}

void FOR_ISA(sample_install)(struct kernel_ops *ops)
{
    ops->embed_fwd = embed_fwd;
    ops->embed_bwd = embed_bwd;
    ops->mean_tokens = mean_tokens;
    ops->timestep_embed = timestep_embed;
    ops->mse = mse;
}
