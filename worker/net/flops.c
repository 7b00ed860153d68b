#include "worker/net/flops.h"

#include "worker/net/batch.h"
#include "worker/model/model_family.h"

double flops_forward(const struct model *m, uint64_t samples, uint64_t tokens)
{
    if (model_has_upscaler(&m->spec))
        return flops_forward(m->chains[0], samples, tokens) +
               flops_forward(m->chains[1], samples, tokens);
    return 2 * model_family(&m->spec)->macs(&m->spec, (double)tokens) * (double)samples;
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
