#include "common/outer/fold_judge.h"

#include "common/outer/fold.h"

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* A norm after one number of samples, scaled to another number. */
static double scaled(double norm, double samples, double to)
{
    return samples > 0 && to > samples ? norm * (to / samples) : norm;
}

/* The usual norm by earlier rounds; 0: there are too few. */
static double usual_of_past(const struct fold_past *past, size_t n, double samples)
{
    double norms[FOLD_HISTORY_MAX];
    size_t m = 0;
    for (size_t i = 0; i < n && m < FOLD_HISTORY_MAX; i++)
        if (past[i].norm > 0)
            norms[m++] = scaled(past[i].norm, past[i].samples, samples);
    if (m < FOLD_HISTORY_MIN)
        return 0;
    qsort(norms, m, sizeof *norms, by_value);
    return norms[(m - 1) / 2];
}

/* The median of the other norms; without any the norm in word; 0: neither is known. */
static double usual_of_peers(const struct fold_past *word, const struct fold_judged *c, size_t n,
                             size_t own)
{
    double norms[FOLD_INPUTS_MAX + 1];
    size_t m = 0;
    for (size_t i = 0; i < n && m < FOLD_INPUTS_MAX; i++)
        if (i != own)
            norms[m++] = scaled(c[i].norm, c[i].samples, c[own].samples);
    if (m == 0 && word->norm > 0)
        norms[m++] = scaled(word->norm, word->samples, c[own].samples);
    if (m == 0)
        return 0;
    qsort(norms, m, sizeof *norms, by_value);
    return m % 2 ? norms[m / 2] : (norms[m / 2 - 1] + norms[m / 2]) / 2;
}

static void judge_one(const struct fold_known *k, struct fold_judged *c, size_t n, size_t i)
{
    const double before = usual_of_past(k->past, k->n, c[i].samples);
    const double peers = usual_of_peers(&k->word, c, n, i);
    c[i].usual = n > 2 && peers > before ? peers : before;
    if (before <= 0)
        c[i].usual = peers;
    c[i].known = before > 0 || n > 2;
    c[i].shrink = c[i].doubt = 1;
    c[i].large = (c[i].usual > 0 || n > 2) && c[i].norm > FOLD_NORM_CLIP * c[i].usual;
    c[i].refused =
        (c[i].most > 0 && c[i].norm > c[i].most) ||
        (c[i].large && c[i].known && !k->lenient && c[i].norm > FOLD_NORM_REFUSE * c[i].usual);
    if (!c[i].large || c[i].refused || c[i].usual <= 0)
        return;
    const double times = c[i].usual / c[i].norm;
    c[i].shrink = c[i].known ? FOLD_NORM_CLIP * times : n == 1 ? times * times : times;
    c[i].doubt = c[i].known || n == 1 ? 1 : times;
}

void fold_judge(const struct fold_known *known, struct fold_judged *c, size_t n)
{
    for (size_t i = 0; i < n; i++)
        judge_one(known, c, n, i);
}

double fold_norm_most(double lr, double beta1, double beta2, double steps, uint64_t params)
{
    const double sparse = beta2 < 1 ? (1 - beta1) / sqrt(1 - beta2) : 1;
    return 2 * lr * (sparse > 1 ? sparse : 1) * steps * sqrt((double)params);
}
