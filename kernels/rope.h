/* Frequencies of rotary positions (Su et al.), of pair i of the D/2 that a head has: theta^(-2i/D),
 * or scaled as in Llama 3.1, whose pairs that turn less than `low` times within `context` positions
 * turn `factor` times as slowly, and those that turn more than `high` times as before; in between
 * the two are mixed, as in transformers' rope_type "llama3".  One expression for the reference and
 * every variant, on the host. */
#ifndef KERNELS_ROPE_H
#define KERNELS_ROPE_H

#include <math.h>

struct rope_scaling {
    float factor; /* 0: none */
    float low, high;
    float context; /* positions that the model was first trained on */
};

/* In radians per position. */
static inline float rope_freq(float theta, const struct rope_scaling *s, int i, int D)
{
    const double freq = pow((double)theta, -2.0 * i / D);
    if (!(s->factor > 0))
        return (float)freq;
    const double turns = (double)s->context * freq / 6.283185307179586;
    const double fast = (turns - (double)s->low) / ((double)s->high - (double)s->low);
    const double kept = fast < 0 ? 0 : fast > 1 ? 1 : fast;
    return (float)(freq * (kept + (1 - kept) / (double)s->factor));
}

#endif
