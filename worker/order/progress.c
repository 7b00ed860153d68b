#include "worker/order/progress.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"

#define RATE_WINDOW_NS (CLOCK_NS_PER_S / 2)
#define RATE_SMOOTH 0.3f

void progress_init(struct progress *p)
{
    memset(p, 0, sizeof(*p));
    pthread_mutex_init(&p->lock, NULL);
}

void progress_release(struct progress *p)
{
    pthread_mutex_destroy(&p->lock);
}

void progress_activity(struct progress *p, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    pthread_mutex_lock(&p->lock);
    vsnprintf(p->view.activity, sizeof(p->view.activity), fmt, ap);
    pthread_mutex_unlock(&p->lock);
    va_end(ap);
}

void progress_total(struct progress *p, uint32_t steps_total)
{
    pthread_mutex_lock(&p->lock);
    p->view.steps_total = steps_total;
    pthread_mutex_unlock(&p->lock);
}

void progress_units(struct progress *p, uint32_t done, uint32_t total)
{
    pthread_mutex_lock(&p->lock);
    p->view.steps_done = done;
    p->view.steps_total = total;
    pthread_mutex_unlock(&p->lock);
}

/* Averages pairs of points, so that half of the places are free again. */
static void thin(struct progress_view *v)
{
    size_t n = v->n_points / 2;
    for (size_t i = 0; i < n; i++) {
        const struct progress_point *a = &v->points[2 * i], *b = a + 1;
        v->points[i] = (struct progress_point){b->step, (a->loss + b->loss) / 2, b->lr};
    }
    v->n_points = n;
}

static void measure(struct progress *p, uint64_t samples)
{
    uint64_t now = clock_now_ns();
    if (p->rate_ns == 0 || samples < p->rate_samples) {
        p->rate_ns = now;
        p->rate_samples = samples;
    } else if (now - p->rate_ns >= RATE_WINDOW_NS) {
        float rate = (float)(samples - p->rate_samples) * 1e9f / (float)(now - p->rate_ns);
        float *smooth = &p->view.samples_per_second;
        *smooth = *smooth > 0 ? *smooth + RATE_SMOOTH * (rate - *smooth) : rate;
        p->rate_ns = now;
        p->rate_samples = samples;
    }
}

void progress_step(struct progress *p, const struct progress_point *point, float grad_norm,
                   uint64_t samples)
{
    pthread_mutex_lock(&p->lock);
    struct progress_view *v = &p->view;
    v->steps_done++;
    v->samples_done = samples;
    v->grad_norm = grad_norm;
    p->loss_sum += (double)point->loss;
    p->loss_n++;
    if (v->n_points == PROGRESS_POINTS_MAX)
        thin(v);
    v->points[v->n_points++] = *point;
    measure(p, samples);
    pthread_mutex_unlock(&p->lock);
}

void progress_rates(struct progress *p, double flops, double peak_flops)
{
    pthread_mutex_lock(&p->lock);
    p->view.flops = flops;
    p->view.peak_flops = peak_flops;
    pthread_mutex_unlock(&p->lock);
}

void progress_take(struct progress *p, struct progress_view *ret)
{
    pthread_mutex_lock(&p->lock);
    if (p->loss_n > 0)
        p->view.loss = (float)(p->loss_sum / p->loss_n);
    p->loss_sum = 0;
    p->loss_n = 0;
    *ret = p->view;
    p->view.n_points = 0;
    pthread_mutex_unlock(&p->lock);
}
