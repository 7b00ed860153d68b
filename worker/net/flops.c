#include "worker/net/flops.h"

#include "worker/net/net.h"

/* Multiply-adds of a block per token, but for attention. */
static double dit_block(double C, double M)
{
    return C * 3 * C + C * C + 2 * C * M;
}

/* Of one image. */
static double image_macs(const struct model_spec *s)
{
    const double C = s->dim, T = model_tokens(s), N = model_patches(s);
    const double P = model_patch_values(s);
    const double time = MODEL_FREQS * C + C * C;
    const double block = T * dit_block(C, s->mlp) + 2 * T * T * C + 6 * C * C;
    const double head = s->kind == MODEL_ROUTER ? C * s->classes : N * C * P;
    return N * P * C + time + s->depth * block + 2 * C * C + head;
}

/* Of one text of T tokens. */
static double text_macs(const struct model_spec *s, double T)
{
    const double C = s->dim, kv = C / s->heads * s->kv_heads;
    const double block = 2 * C * C + 2 * C * kv + 3 * C * s->mlp + 2 * T * C;
    return T * (s->depth * block + C * s->vocab);
}

double flops_forward(const struct model *m, uint64_t samples, uint64_t tokens)
{
    const struct model_spec *s = &m->spec;
    double macs = model_is_text(s) ? text_macs(s, (double)tokens) : image_macs(s);
    return 2 * macs * (double)samples;
}

/* Texts of a row are runs of one first key; padding sees itself alone. */
static double row_flops(const struct model *m, const int32_t *start, unsigned seq)
{
    double sum = 0;
    for (unsigned from = 0, i = 1; i <= seq; i++) {
        if (i < seq && start[i] == start[from])
            continue;
        if (i - from > 1)
            sum += flops_forward(m, 1, i - from);
        from = i;
    }
    return sum;
}

double flops_step(const struct model *m, const struct batch *b)
{
    if (!b->tokens)
        return 3 * flops_forward(m, b->count, 0);
    double forward = 0;
    for (unsigned r = 0; r < b->count; r++)
        forward += row_flops(m, b->start + (size_t)r * b->seq, b->seq);
    return 3 * forward;
}
