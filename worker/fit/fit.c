#include "worker/fit/fit.h"

static int read_memory(const struct fit_source *s, uint64_t first, uint32_t count, float *out,
                       struct err *err)
{
    memcpy(out, (const float *)s->arg + first * s->d, (size_t)count * s->d * sizeof(float));
    return 0;
}

void fit_source_memory(struct fit_source *ret, const float *x, uint64_t n, uint32_t d)
{
    *ret = (struct fit_source){.n = n, .d = d, .read = read_memory, .arg = x};
}

int fit_tick(const struct fit_watch *w, const char *what, uint32_t done, uint32_t total,
             struct err *err)
{
    return w && w->tick ? w->tick(w->arg, what, done, total, err) : 0;
}

uint64_t fit_not_finite(const float *x, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        if (!isfinite(x[i]))
            return i;
    return n;
}
