#include "worker/order/progress.h"

#include "common/base/clock.h"
#include "common/base/pieces.h"

#define RATE_WINDOW_NS (CLOCK_NS_PER_S / 2)
#define RATE_SMOOTH 0.3f
#define PIECES_NS (3600 * CLOCK_NS_PER_S) /* most in which pieces alone are signs */

void progress_init(struct progress *p)
{
    memset(p, 0, sizeof(*p));
    skerry__v1__progress__init(&p->view.told);
    skerry__v1__step_plan__init(&p->view.plan.told);
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
    p->view.told.steps_total = steps_total;
    pthread_mutex_unlock(&p->lock);
}

void progress_units(struct progress *p, uint32_t done, uint32_t total)
{
    pthread_mutex_lock(&p->lock);
    Skerry__V1__Progress *told = &p->view.told;
    told->samples_done += done >= told->steps_done ? done - told->steps_done : done;
    told->steps_done = done;
    told->steps_total = total;
    p->moved_ns = clock_now_ns();
    pthread_mutex_unlock(&p->lock);
}

void progress_sign(struct progress *p)
{
    pthread_mutex_lock(&p->lock);
    p->view.told.signs++;
    pthread_mutex_unlock(&p->lock);
}

uint64_t progress_signs(struct progress *p)
{
    pthread_mutex_lock(&p->lock);
    const uint64_t signs = p->view.told.signs;
    pthread_mutex_unlock(&p->lock);
    return signs;
}

static void hear_piece(void *arg)
{
    struct progress *p = arg;
    pthread_mutex_lock(&p->lock);
    p->view.told.signs += clock_now_ns() - p->moved_ns < PIECES_NS;
    pthread_mutex_unlock(&p->lock);
}

void progress_hear(struct progress *p)
{
    pthread_mutex_lock(&p->lock);
    p->moved_ns = clock_now_ns();
    pthread_mutex_unlock(&p->lock);
    pieces_hear(hear_piece, p);
}

static void hear_beside(void *arg)
{
    atomic_fetch_add(&((struct progress_beside *)arg)->pieces, 1);
}

void progress_hear_beside(struct progress_beside *b)
{
    pieces_hear(hear_beside, b);
}

void progress_tell_beside(struct progress_beside *b, struct progress *to)
{
    const unsigned pieces = atomic_load(&b->pieces);
    if (to && pieces != b->told)
        progress_sign(to);
    b->told = pieces;
}

/* The mean of those that are not NaN. */
static double mean_of(double a, double b)
{
    return isnan(a) ? b : isnan(b) ? a : (a + b) / 2;
}

/* Averages pairs of points, so that half of the places are free again. */
static void thin(struct progress_view *v)
{
    v->told.n_points /= 2;
    for (size_t i = 0; i < v->told.n_points; i++) {
        const Skerry__V1__LossPoint *a = &v->points[2 * i], *b = a + 1;
        const float loss = (a->loss + b->loss) / 2;
        v->points[i] = *b;
        v->points[i].loss = loss;
        for (size_t k = 0; k < PROGRESS_NUMBERS_MAX; k++)
            v->numbers[i][k] = mean_of(v->numbers[2 * i][k], v->numbers[2 * i + 1][k]);
    }
}

static void measure(struct progress *p, uint64_t samples)
{
    uint64_t now = clock_now_ns();
    if (p->rate_ns == 0 || samples < p->rate_samples) {
        p->rate_ns = now;
        p->rate_samples = samples;
    } else if (now - p->rate_ns >= RATE_WINDOW_NS) {
        float rate = (float)(samples - p->rate_samples) * 1e9f / (float)(now - p->rate_ns);
        float *smooth = &p->view.told.samples_per_second;
        *smooth = *smooth > 0 ? *smooth + RATE_SMOOTH * (rate - *smooth) : rate;
        p->rate_ns = now;
        p->rate_samples = samples;
    }
}

static void add_point(struct progress *p, const struct progress_point *point)
{
    Skerry__V1__Progress *told = &p->view.told;
    p->loss_sum += (double)point->loss;
    p->loss_n++;
    if (told->n_points == PROGRESS_POINTS_MAX)
        thin(&p->view);
    double *numbers = p->view.numbers[told->n_points];
    Skerry__V1__LossPoint *to = &p->view.points[told->n_points++];
    skerry__v1__loss_point__init(to);
    to->step = point->step;
    to->loss = point->loss;
    to->lr = point->lr;
    for (size_t i = 0; i < PROGRESS_NUMBERS_MAX; i++)
        numbers[i] = point->numbers && i < told->n_number_names ? point->numbers[i] : (double)NAN;
}

void progress_step(struct progress *p, const struct progress_point *point, float grad_norm,
                   uint32_t steps, uint64_t samples)
{
    pthread_mutex_lock(&p->lock);
    Skerry__V1__Progress *told = &p->view.told;
    told->steps_done = steps;
    told->samples_done = samples;
    told->skipped = point->skipped;
    p->moved_ns = clock_now_ns();
    if (!isnan(point->loss)) {
        told->grad_norm = grad_norm;
        add_point(p, point);
    }
    measure(p, samples);
    pthread_mutex_unlock(&p->lock);
}

int progress_number(struct progress *p, const char *name, struct err *err)
{
    size_t i = 0, n = p->view.told.n_number_names;
    while (i < n && strcmp(p->view.number_names[i], name) != 0)
        i++;
    if (i < n)
        return (int)i;
    if (!str_is_name(name, PROGRESS_NUMBER_NAME_MAX - 1))
        return err_set(
            err, -ERR_TRAINER,
            "the trainer calls a number '%.80s', expected 1 to %d of A-Z a-z 0-9 . _ -, and "
            "neither . nor - first",
            name, PROGRESS_NUMBER_NAME_MAX - 1);
    if (n == PROGRESS_NUMBERS_MAX)
        return err_set(err, -ERR_TRAINER,
                       "the trainer tells a number '%s' beside %d others, which is one more than a "
                       "task can have",
                       name, PROGRESS_NUMBERS_MAX);
    pthread_mutex_lock(&p->lock);
    (void)str_copy(p->view.number_names[n], PROGRESS_NUMBER_NAME_MAX, name);
    p->view.told.n_number_names = n + 1;
    pthread_mutex_unlock(&p->lock);
    return (int)n;
}

void progress_rates(struct progress *p, double flops, double peak_flops)
{
    pthread_mutex_lock(&p->lock);
    p->view.flops = flops;
    p->view.peak_flops = peak_flops;
    pthread_mutex_unlock(&p->lock);
}

void progress_step_plan(struct progress *p, const struct progress_plan *plan)
{
    pthread_mutex_lock(&p->lock);
    p->view.plan = *plan;
    pthread_mutex_unlock(&p->lock);
}

void progress_take(struct progress *p, struct progress_view *ret)
{
    pthread_mutex_lock(&p->lock);
    if (p->loss_n > 0)
        p->view.told.loss = (float)(p->loss_sum / p->loss_n);
    p->loss_sum = 0;
    p->loss_n = 0;
    *ret = p->view;
    pthread_mutex_unlock(&p->lock);
    for (size_t i = 0; i < ret->told.n_points; i++) {
        ret->list[i] = &ret->points[i];
        ret->points[i].numbers = ret->numbers[i];
        ret->points[i].n_numbers = ret->told.n_number_names;
    }
    for (size_t i = 0; i < ret->told.n_number_names; i++)
        ret->names[i] = ret->number_names[i];
    ret->told.points = ret->list;
    ret->told.number_names = ret->names;
    ret->told.activity = ret->activity;
}

/* One that was averaged with a newer one has the step of that. */
void progress_heard(struct progress *p, uint64_t next)
{
    size_t heard = 0;
    pthread_mutex_lock(&p->lock);
    struct progress_view *v = &p->view;
    while (heard < v->told.n_points && v->points[heard].step < next)
        heard++;
    v->told.n_points -= heard;
    memmove(v->points, v->points + heard, v->told.n_points * sizeof(*v->points));
    memmove(v->numbers, v->numbers + heard, v->told.n_points * sizeof(*v->numbers));
    pthread_mutex_unlock(&p->lock);
}
