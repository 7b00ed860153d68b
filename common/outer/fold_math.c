#include "common/outer/fold_math.h"

struct strip {
    double acc[FOLD_STRIP], more[FOLD_STRIP]; /* more: of a further group */
    float diff[FOLD_STRIP], q[FOLD_STRIP];
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
                       size_t first, size_t n, struct strip *strip)
{
    accumulate_group(m, &groups[0], first, n, strip, strip->acc);
    for (size_t g = 1; g < n_groups; g++) {
        accumulate_group(m, &groups[g], first, n, strip, strip->more);
        for (size_t i = 0; i < n; i++)
            strip->acc[i] += strip->more[i];
    }
}

double fold_math_square(const struct fold_math *m, const struct fold_group *groups, size_t n_groups,
                        size_t n)
{
    struct strip strip;
    double sum = 0;
    for (size_t first = 0; first < n; first += FOLD_STRIP) {
        size_t part = n - first < FOLD_STRIP ? n - first : FOLD_STRIP;
        accumulate(m, groups, n_groups, first, part, &strip);
        sum += m->arith->square_f64(part, strip.acc);
    }
    return sum;
}

/* mom, target (and buf) after the step; diff = target - theta. */
static void outer_step(const struct fold_math *m, const struct fold_span *s, size_t first, size_t n,
                       struct strip *strip)
{
    const struct arith *k = m->arith;
    const float *theta = s->theta + first;
    float *mom = s->mom + first, *target = s->target + first;
    if (s->buf)
        k->delayed(n, &m->nesterov, strip->acc, theta, mom, s->buf + first, target, strip->diff);
    else
        k->nesterov(n, &m->nesterov, strip->acc, theta, mom, target, strip->diff);
}

/* Codes the way down: payload, scales, theta_new. */
static bool encode(const struct fold_math *m, const struct fold_span *s, size_t first, size_t n,
                   struct strip *strip, struct fold_squares *squares)
{
    const struct arith *k = m->arith;
    uint8_t *payload = (uint8_t *)s->delta + codec_payload_bytes(m->down, first);
    if (m->down == CODEC_F32) {
        squares->step += k->square_f32(n, strip->diff);
        if (!k->encode[CODEC_F32](n, s->target + first, payload, NULL, strip->q))
            return false;
        k->decode[CODEC_F32](n, payload, NULL, s->theta_new + first);
        return true;
    }
    uint16_t *scales = codec_has_scale(m->down) ? s->delta_scales + first / CODEC_BLOCK : NULL;
    if (!k->encode[m->down](n, strip->diff, payload, scales, strip->q))
        return false;
    k->settle(n, s->theta + first, strip->diff, strip->q, s->theta_new + first, &squares->step,
              &squares->residual);
    return true;
}

bool fold_math_span(const struct fold_math *m, const struct fold_span *s,
                    struct fold_squares *squares)
{
    const struct arith *k = m->arith;
    struct strip strip;
    for (size_t first = 0; first < s->n; first += FOLD_STRIP) {
        size_t n = s->n - first < FOLD_STRIP ? s->n - first : FOLD_STRIP;
        accumulate(m, s->groups, s->n_groups, first, n, &strip);
        squares->delta += k->square_f64(n, strip.acc);
        outer_step(m, s, first, n, &strip);
        if (!encode(m, s, first, n, &strip, squares))
            return false;
        if (s->ema)
            k->ema(n, m->ema_decay, s->theta_new + first, s->ema + first);
    }
    return true;
}

/* The mean of value i of the inputs. */
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
