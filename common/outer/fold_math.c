#include "common/outer/fold_math.h"

#define FOLD_PIECE CODEC_BLOCK

struct strip {
    double acc[FOLD_STRIP], more[FOLD_STRIP]; /* more: sums of a further group */
    float diff[FOLD_STRIP], q[FOLD_STRIP];
    double step[ARITH_LANES], residual[ARITH_LANES]; /* partial sums of squares */
    const void *payload[ARITH_INPUTS_MAX];
    const uint16_t *scales[ARITH_INPUTS_MAX];
};

static void accumulate_group(const struct fold_math *m, const struct fold_group *g, size_t first,
                             size_t n, struct strip *strip, double *acc)
{
    size_t skip = codec_payload_bytes(g->codec, first), blocks = first / CODEC_BLOCK;
    for (size_t c = 0; c < g->in.k; c++) {
        strip->payload[c] = (const uint8_t *)g->in.payload[c] + skip;
        strip->scales[c] = codec_has_scale(g->codec) ? g->in.scales[c] + blocks : NULL;
    }
    struct arith_inputs in = {
        .k = g->in.k, .payload = strip->payload, .scales = strip->scales, .weight = g->in.weight};
    m->arith->accumulate[g->codec](n, &in, g->start + first, acc);
}

static void accumulate(const struct fold_math *m, const struct fold_group *groups, size_t n_groups,
                       size_t first, size_t n, struct strip *strip, double *acc)
{
    accumulate_group(m, &groups[0], first, n, strip, acc);
    for (size_t g = 1; g < n_groups; g++) {
        accumulate_group(m, &groups[g], first, n, strip, strip->more);
        for (size_t i = 0; i < n; i++)
            acc[i] += strip->more[i];
    }
}

double fold_math_square(const struct fold_math *m, const struct fold_group *groups, size_t n_groups,
                        size_t first, size_t n)
{
    struct strip strip;
    accumulate(m, groups, n_groups, first, n, &strip, strip.acc);
    return m->arith->square_f64(n, strip.acc);
}

/* Makes the step: mom, target (and buf) after it; diff = target - theta. */
static void outer_step(const struct fold_math *m, const struct fold_span *s, size_t first, size_t n,
                       const double *acc, float *diff)
{
    const struct arith *k = m->arith;
    const float *theta = s->theta + first;
    float *mom = s->mom + first, *target = s->target + first;
    if (s->buf)
        k->delayed(n, &m->nesterov, acc, theta, mom, s->buf + first, target, diff);
    else
        k->nesterov(n, &m->nesterov, acc, theta, mom, target, diff);
}

/* Codes the delta: payload and scales; q gets the values that they mean. */
static bool encode(const struct fold_math *m, const struct fold_span *s, size_t first, size_t n,
                   const float *diff, float *q)
{
    uint8_t *payload = (uint8_t *)s->delta + codec_payload_bytes(m->down, first);
    uint16_t *scales = codec_has_scale(m->down) ? s->delta_scales + first / CODEC_BLOCK : NULL;
    const bool values = m->down == CODEC_F32;
    return m->arith->encode[m->down](n, values ? s->target + first : diff, payload, scales, q);
}

/* Updates theta_new and ema by the coded values. */
static void settle(const struct fold_math *m, const struct fold_span *s, size_t first, size_t n,
                   const float *diff, const float *q, struct strip *strip)
{
    const struct arith *k = m->arith;
    float *new = s->theta_new + first;
    if (m->down == CODEC_F32)
        k->decode[CODEC_F32](n, (float *)s->delta + first, NULL, new);
    else
        k->settle(n, s->theta + first, diff, q, new, strip->step, strip->residual);
    if (s->ema)
        k->ema(n, m->ema_decay, new, s->ema + first);
}

/* After the sums works in pieces: during each pass the processor has computations left while it
 * waits for the reads of the next. */
static bool fold_strip(const struct fold_math *m, const struct fold_span *s, size_t first, size_t n,
                       struct strip *strip)
{
    accumulate(m, s->groups, s->n_groups, first, n, strip, strip->acc);
    for (size_t at = 0; at < n; at += FOLD_PIECE) {
        const size_t part = n - at < FOLD_PIECE ? n - at : FOLD_PIECE, i = first + at;
        const size_t bytes = part * sizeof(float);
        float *diff = strip->diff + at, *q = strip->q + at;
        arith_fetch_next(s->mom + i, bytes);
        arith_fetch_next(s->target + i, bytes);
        outer_step(m, s, i, part, strip->acc + at, diff);
        arith_fetch_next(s->theta + i, bytes);
        if (!encode(m, s, i, part, diff, q))
            return false;
        if (s->ema)
            arith_fetch_next(s->ema + i, bytes);
        settle(m, s, i, part, diff, q, strip);
    }
    return true;
}

bool fold_math_span(const struct fold_math *m, const struct fold_span *s,
                    struct fold_squares *squares)
{
    const struct arith *k = m->arith;
    struct strip strip;
    for (size_t first = 0; first < s->n; first += FOLD_STRIP) {
        size_t n = s->n - first < FOLD_STRIP ? s->n - first : FOLD_STRIP;
        memset(strip.step, 0, sizeof strip.step);
        memset(strip.residual, 0, sizeof strip.residual);
        if (!fold_strip(m, s, first, n, &strip))
            return false;
        squares->delta += k->square_f64(n, strip.acc);
        squares->step +=
            m->down == CODEC_F32 ? k->square_f32(n, strip.diff) : arith_sum(strip.step);
        squares->residual += arith_sum(strip.residual);
    }
    return true;
}

/* The weighted mean of value i of the inputs. */
static double mean_at(const struct fold_math *m, const struct fold_span *s, size_t i)
{
    double sum = 0;
    for (size_t g = 0; g < s->n_groups; g++) {
        const struct arith_inputs *in = &s->groups[g].in;
        for (size_t c = 0; c < in->k; c++)
            sum += in->weight[c] * (double)((const float *)in->payload[c])[i];
    }
    return sum / m->nesterov.total;
}

bool fold_math_buffer(const struct fold_math *m, const struct fold_span *s, bool first)
{
    const float *one = s->groups[0].in.payload[0];
    float *values = s->target;
    for (size_t i = 0; i < s->n; i++) {
        const double theta = (double)s->theta[i], mean = mean_at(m, s, i);
        const bool whole = m->nesterov.parts <= 1;
        values[i] =
            first ? one[i] : (float)(whole ? mean : theta + (mean - theta) / m->nesterov.parts);
    }
    memset(s->mom, 0, s->n * sizeof(*s->mom));
    if (s->buf)
        memset(s->buf, 0, s->n * sizeof(*s->buf));
    if (!m->arith->encode[CODEC_F32](s->n, values, s->delta, NULL, s->theta_new))
        return false;
    if (s->ema)
        memcpy(s->ema, s->theta_new, s->n * sizeof(*s->ema));
    return true;
}
