#include "libskerry/skerry.h"

#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "common/base/base.h"
#include "common/trainer/channel.h"
#include "proto/trainer.pb-c.h"

#define NUMBERS_MAX 16
#define NUMBER_NAME_MAX 65

typedef Skerry__Trainer__V1__FromWorker from_worker;
typedef Skerry__Trainer__V1__FromTrainer from_trainer;

/* Samples that the worker sent. */
struct portion {
    uint8_t *data;
    size_t bytes;
    from_worker *message;
    size_t next; /* the next one for the program */
};

struct skerry {
    int fd; /* -1: alone */
    uint8_t *shared;
    uint64_t shared_bytes;
    uint64_t *offset; /* by tensor, in shared; 0: not synchronised */
    uint32_t *level;  /* by synchronised tensor */
    size_t n;
    struct skerry_options opt; /* its callbacks */

    from_worker *order; /* the order being carried out, or NULL */
    enum skerry_order_kind kind;
    bool busy, stopping, ended, ran_alone;
    uint32_t steps; /* done in this phase */
    uint32_t pause; /* step after which it waits for the worker; 0: none */
    uint64_t begun_ms;
    int state_fd;
    struct portion portion;
    bool no_more;

    struct {
        char name[NUMBER_NAME_MAX];
        double value;
    } numbers[NUMBERS_MAX];
    size_t n_numbers;
};

static __thread struct err last;

const char *skerry_error(void)
{
    return last.msg;
}

static uint64_t now_ms(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* ---- messages ---- */

static int tell(struct skerry *s, Skerry__Trainer__V1__FromTrainer__WhatCase what, void *m,
                int passed)
{
    from_trainer f = SKERRY__TRAINER__V1__FROM_TRAINER__INIT;
    f.what_case = what;
    f.hello = m; /* all members of the union are pointers */
    return channel_send(s->fd, &f.base, passed, CHANNEL_FOREVER, &last);
}

/* Receives a message: 1; 0: none came within wait_ms. */
static int hear(struct skerry *s, int wait_ms, from_worker **ret, int *ret_passed)
{
    struct channel_frame f;
    int rc = channel_receive(s->fd, wait_ms, CHANNEL_FOREVER, &f, &last);
    if (rc <= 0)
        return rc;
    *ret = skerry__trainer__v1__from_worker__unpack(NULL, f.len, f.data);
    mem_free(f.data);
    if (!*ret) {
        if (f.passed >= 0)
            (void)close(f.passed);
        return err_set(&last, -EPROTO, "the worker sent something that is no message");
    }
    *ret_passed = f.passed;
    return 1;
}

static void forget(from_worker *m)
{
    if (m)
        skerry__trainer__v1__from_worker__free_unpacked(m, NULL);
}

static void take_stop(struct skerry *s, const from_worker *m)
{
    s->stopping = true;
    s->ended |= m->stop->last;
}

/* ---- joining ---- */

static size_t bytes_of(const struct skerry_tensor *t)
{
    size_t n = t->dtype == SKERRY_I64                              ? 8
               : t->dtype == SKERRY_BF16 || t->dtype == SKERRY_F16 ? 2
                                                                   : 4;
    for (unsigned i = 0; i < t->rank; i++)
        n *= t->shape[i];
    return n;
}

static int check_tensors(const struct skerry_tensor *tensors, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!tensors[i].name || tensors[i].rank > SKERRY_RANK_MAX ||
            tensors[i].dtype < SKERRY_F32 || tensors[i].dtype > SKERRY_I32)
            return err_set(&last, -EINVAL,
                           "tensor %zu (%s) has no name, or a dtype or rank that "
                           "is not known",
                           i, tensors[i].name ? tensors[i].name : "");
    return n > 0 ? 0 : err_set(&last, -EINVAL, "a model without tensors cannot join");
}

static int join_alone(struct skerry *s, const struct skerry_tensor *tensors)
{
    uint64_t at = 64; /* 0 would mean: not synchronised */
    for (size_t i = 0; i < s->n; i++) {
        s->offset[i] = at;
        at += (bytes_of(&tensors[i]) + 63) / 64 * 64;
    }
    s->shared_bytes = at;
    s->shared = mmap(NULL, at, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (s->shared == MAP_FAILED) {
        s->shared = NULL;
        return err_errno(&last, "no memory for the weights");
    }
    return 0;
}

static int say_hello(struct skerry *s, const struct skerry_options *opt,
                     const struct skerry_tensor *tensors)
{
    Skerry__Trainer__V1__Hello hello = SKERRY__TRAINER__V1__HELLO__INIT;
    Skerry__Trainer__V1__Tensor *items = mem_try_array(s->n, sizeof(*items));
    Skerry__Trainer__V1__Tensor **list = mem_try_array(s->n, sizeof(*list));
    int rc = items && list ? 0 : err_set(&last, -ENOMEM, "no memory for %zu tensors", s->n);
    for (size_t i = 0; i < s->n && rc == 0; i++) {
        list[i] = &items[i];
        skerry__trainer__v1__tensor__init(&items[i]);
        items[i].name = (char *)(uintptr_t)tensors[i].name; /* only read */
        items[i].dtype = (Skerry__Trainer__V1__Dtype)tensors[i].dtype;
        items[i].shape = (uint64_t *)(uintptr_t)tensors[i].shape;
        items[i].n_shape = tensors[i].rank;
        items[i].buffer = tensors[i].buffer;
    }
    hello.protocol = CHANNEL_PROTOCOL;
    hello.library = (char *)(uintptr_t)(opt->library ? opt->library : "libskerry " SKERRY_VERSION);
    hello.evaluates = opt->evaluates;
    hello.draws = opt->draws;
    hello.keeps_state = opt->keeps_state;
    hello.exchanges = opt->give && opt->take;
    hello.tensors = list;
    hello.n_tensors = s->n;
    if (rc == 0)
        rc = tell(s, SKERRY__TRAINER__V1__FROM_TRAINER__WHAT_HELLO, &hello, -1);
    mem_free(items);
    mem_free(list);
    return rc;
}

/* Takes the worker's answer: the places of the weights. */
static int take_weights(struct skerry *s, const from_worker *m, int passed,
                        const struct skerry_tensor *tensors)
{
    if (m->what_case == SKERRY__TRAINER__V1__FROM_WORKER__WHAT_STOP)
        return err_set(&last, -ECANCELED, "the worker does not want this trainer");
    const Skerry__Trainer__V1__Weights *w =
        m->what_case == SKERRY__TRAINER__V1__FROM_WORKER__WHAT_WEIGHTS ? m->weights : NULL;
    if (!w || passed < 0 || w->n_places != s->n)
        return err_set(&last, -EPROTO, "the worker did not answer with the place of the weights");
    for (size_t i = 0; i < s->n; i++) {
        s->offset[i] = w->places[i]->offset;
        s->level[i] = w->places[i]->level;
        if (s->offset[i] > w->bytes ||
            (s->offset[i] > 0 && bytes_of(&tensors[i]) > w->bytes - s->offset[i]))
            return err_set(&last, -EPROTO, "the worker has no room for tensor %s", tensors[i].name);
    }
    s->shared_bytes = w->bytes;
    s->shared = mmap(NULL, w->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, passed, 0);
    if (s->shared == MAP_FAILED) {
        s->shared = NULL;
        return err_errno(&last, "mapping the weights");
    }
    return 0;
}

static int join_worker(struct skerry *s, const struct skerry_options *opt,
                       const struct skerry_tensor *tensors)
{
    from_worker *m = NULL;
    int passed = -1;
    int rc = say_hello(s, opt, tensors);
    if (rc == 0 && (rc = hear(s, CHANNEL_FOREVER, &m, &passed)) == 1)
        rc = take_weights(s, m, passed, tensors);
    forget(m);
    if (passed >= 0)
        (void)close(passed);
    return rc;
}

int skerry_join(const struct skerry_options *opt, const struct skerry_tensor *tensors, size_t n,
                struct skerry **ret)
{
    const char *inherited = getenv("SKERRY_TRAINER_FD");
    int rc = check_tensors(tensors, n);
    if (rc < 0)
        return rc;
    struct skerry *s = mem_alloc(sizeof(*s));
    s->fd = inherited ? atoi(inherited) : -1;
    s->state_fd = -1;
    s->n = n;
    s->opt = *opt;
    s->offset = mem_alloc_array(n, sizeof(*s->offset));
    s->level = mem_alloc_array(n, sizeof(*s->level));
    rc = s->fd < 0 ? join_alone(s, tensors) : join_worker(s, opt, tensors);
    if (rc < 0) {
        skerry_leave(s);
        return rc;
    }
    *ret = s;
    return 0;
}

/* ---- samples ---- */

static void drop_portion(struct skerry *s)
{
    if (s->portion.data)
        (void)munmap(s->portion.data, s->portion.bytes);
    forget(s->portion.message);
    s->portion = (struct portion){0};
}

void skerry_leave(struct skerry *s)
{
    if (!s)
        return;
    drop_portion(s);
    forget(s->order);
    if (s->state_fd >= 0)
        (void)close(s->state_fd);
    if (s->shared)
        (void)munmap(s->shared, s->shared_bytes);
    if (s->fd >= 0)
        (void)close(s->fd);
    mem_free(s->offset);
    mem_free(s->level);
    mem_free(s);
}

bool skerry_alone(const struct skerry *s)
{
    return s->fd < 0;
}

void *skerry_weights(const struct skerry *s, size_t i)
{
    return i < s->n && s->offset[i] > 0 ? s->shared + s->offset[i] : NULL;
}

/* Takes m, a message with samples. */
static int take_samples(struct skerry *s, from_worker *m, int passed)
{
    const Skerry__Trainer__V1__Samples *p = m->samples;
    uint64_t end = 0;
    s->portion.message = m;
    s->no_more = p->last;
    for (size_t i = 0; i < p->n_ends; i++) {
        if (p->ends[i] < end)
            return err_set(&last, -EPROTO, "the worker's samples overlap");
        end = p->ends[i];
    }
    if (end == 0)
        return 0;
    s->portion.bytes = end;
    s->portion.data = passed < 0 ? MAP_FAILED : mmap(NULL, end, PROT_READ, MAP_SHARED, passed, 0);
    if (s->portion.data == MAP_FAILED) {
        s->portion.data = NULL;
        return err_set(&last, -EPROTO, "the worker's samples cannot be mapped");
    }
    return 0;
}

static int fetch(struct skerry *s)
{
    Skerry__Trainer__V1__SamplesWanted wanted = SKERRY__TRAINER__V1__SAMPLES_WANTED__INIT;
    drop_portion(s);
    int rc = tell(s, SKERRY__TRAINER__V1__FROM_TRAINER__WHAT_SAMPLES_WANTED, &wanted, -1);
    while (rc == 0 && !s->portion.message && !s->stopping) { /* after a stop nothing comes */
        from_worker *m = NULL;
        int passed = -1;
        rc = hear(s, CHANNEL_FOREVER, &m, &passed);
        if (rc != 1)
            return rc;
        rc = 0;
        if (m->what_case == SKERRY__TRAINER__V1__FROM_WORKER__WHAT_SAMPLES) {
            rc = take_samples(s, m, passed);
        } else {
            if (m->what_case == SKERRY__TRAINER__V1__FROM_WORKER__WHAT_STOP)
                take_stop(s, m);
            forget(m);
        }
        if (passed >= 0)
            (void)close(passed);
    }
    return rc;
}

int skerry_samples(struct skerry *s, struct skerry_sample *ret, int max)
{
    const bool reads = s->kind == SKERRY_PHASE || s->kind == SKERRY_EVALUATE;
    if (s->fd < 0 || !s->busy || !reads)
        return 0;
    while (!s->portion.message || s->portion.next == s->portion.message->samples->n_ends) {
        if (s->no_more || s->stopping)
            return 0;
        int rc = fetch(s);
        if (rc < 0)
            return rc;
    }
    const Skerry__Trainer__V1__Samples *p = s->portion.message->samples;
    int n = 0;
    for (; n < max && s->portion.next < p->n_ends; n++, s->portion.next++) {
        const size_t i = s->portion.next;
        const uint64_t from = i > 0 ? p->ends[i - 1] : 0;
        ret[n] = (struct skerry_sample){
            .data = s->portion.data + from,
            .bytes = p->ends[i] - from,
            .cls = i < p->n_classes ? p->classes[i] : 0,
        };
    }
    return n;
}

/* ---- orders ---- */

static void fill_phase(const Skerry__Trainer__V1__Phase *p, struct skerry_order *o)
{
    o->samples_kind = (enum skerry_sample_kind)p->kind;
    o->samples = p->samples;
    o->batch = p->batch;
    o->round = p->round;
    o->path = p->path;
    o->replica = p->replica;
    o->replicas = p->replicas;
    o->steps = p->steps;
    o->seconds = p->seconds;
    o->first_step = p->first_step;
    o->total_steps = p->total_steps;
    o->seed = p->seed;
    o->goes_on = p->goes_on;
    o->wants_state = p->wants_state;
    o->precision = p->precision;
}

static void fill_draw(const Skerry__Trainer__V1__Draw *d, struct skerry_order *o)
{
    o->prompt = d->prompt;
    o->tokens = d->tokens;
    o->temperature = d->temperature;
    o->top_p = d->top_p;
    o->seed = d->seed;
    o->labels = d->labels;
    o->n_labels = d->n_labels;
    o->columns = d->columns;
}

static int begin(struct skerry *s, from_worker *m, int passed, struct skerry_order *o)
{
    s->order = m;
    s->state_fd = passed;
    s->busy = true;
    s->stopping = s->no_more = false;
    s->steps = s->pause = 0;
    s->begun_ms = now_ms();
    o->state_fd = passed;
    switch (m->what_case) {
    case SKERRY__TRAINER__V1__FROM_WORKER__WHAT_BEGIN:
        s->kind = SKERRY_BEGIN;
        break;
    case SKERRY__TRAINER__V1__FROM_WORKER__WHAT_PHASE:
        s->kind = SKERRY_PHASE;
        s->pause = m->phase->pause;
        fill_phase(m->phase, o);
        break;
    case SKERRY__TRAINER__V1__FROM_WORKER__WHAT_EVALUATE:
        s->kind = SKERRY_EVALUATE;
        o->samples_kind = (enum skerry_sample_kind)m->evaluate->kind;
        o->samples = m->evaluate->samples;
        o->batch = m->evaluate->batch;
        break;
    case SKERRY__TRAINER__V1__FROM_WORKER__WHAT_DRAW:
        s->kind = SKERRY_DRAW;
        fill_draw(m->draw, o);
        break;
    default:
        return err_set(&last, -EPROTO, "the worker asked for something that is not known (%d)",
                       (int)m->what_case);
    }
    return (int)(o->kind = s->kind);
}

static void end(struct skerry *s)
{
    drop_portion(s);
    forget(s->order);
    s->order = NULL;
    if (s->state_fd >= 0)
        (void)close(s->state_fd);
    s->state_fd = -1;
    s->busy = false;
    s->n_numbers = 0;
}

/* The orders without a worker: one phase. */
static int next_alone(struct skerry *s, struct skerry_order *o)
{
    if (s->ran_alone)
        return SKERRY_END;
    s->ran_alone = s->busy = true;
    s->kind = o->kind = SKERRY_PHASE;
    s->begun_ms = now_ms();
    o->replicas = 1;
    o->precision = "auto";
    return SKERRY_PHASE;
}

int skerry_next(struct skerry *s, struct skerry_order *ret)
{
    *ret = (struct skerry_order){.state_fd = -1};
    if (s->busy)
        return err_set(&last, -EBUSY, "skerry_next is called before skerry_done");
    if (s->fd < 0)
        return next_alone(s, ret);
    while (!s->ended) {
        from_worker *m = NULL;
        int passed = -1, rc = hear(s, CHANNEL_FOREVER, &m, &passed);
        if (rc == -EPIPE)
            break; /* the worker is gone */
        if (rc < 0)
            return rc;
        if (m->what_case != SKERRY__TRAINER__V1__FROM_WORKER__WHAT_STOP)
            return begin(s, m, passed, ret);
        take_stop(s, m); /* a stop of an earlier order */
        forget(m);
    }
    return SKERRY_END;
}

bool skerry_more(const struct skerry *s)
{
    if (!s->busy || s->stopping || s->kind != SKERRY_PHASE)
        return false;
    if (s->fd < 0)
        return true;
    const Skerry__Trainer__V1__Phase *p = s->order->phase;
    if (p->steps > 0)
        return s->steps < p->steps;
    if (s->steps == 0) /* the first one may come late, as the weights and a batch are loaded */
        return true;
    const double spent = (double)(now_ms() - s->begun_ms), half = spent / s->steps / 2;
    return spent + half < 1e3 * p->seconds;
}

double skerry_lr_scale(const struct skerry *s)
{
    if (!s->busy || s->kind != SKERRY_PHASE || s->fd < 0)
        return 1;
    const Skerry__Trainer__V1__Phase *p = s->order->phase;
    const double spent = (double)(now_ms() - s->begun_ms);
    const double at = p->seconds > 0 ? spent / (1e3 * p->seconds)
                      : p->steps > 1 ? (double)s->steps / (p->steps - 1)
                                     : 0;
    const double step = (double)(p->first_step + s->steps);
    const double warm = step < (double)p->warmup ? (step + 1) / (double)p->warmup : 1;
    return warm *
           ((double)p->lr_first + ((double)p->lr_last - (double)p->lr_first) * (at < 1 ? at : 1));
}

int skerry_number(struct skerry *s, const char *name, double value)
{
    for (size_t i = 0; i < s->n_numbers; i++) {
        if (strcmp(s->numbers[i].name, name) == 0) {
            s->numbers[i].value = value;
            return 0;
        }
    }
    if (s->n_numbers == NUMBERS_MAX)
        return err_set(&last, -ENOSPC,
                       "'%.80s' is one number more than the %d that a step can have", name,
                       NUMBERS_MAX);
    if (!str_is_name(name, NUMBER_NAME_MAX - 1))
        return err_set(&last, -EINVAL,
                       "'%.80s' is no name of a number: expected 1 to 64 of "
                       "A-Z a-z 0-9 . _ -, and neither . nor - first",
                       name);
    str_copy(s->numbers[s->n_numbers].name, NUMBER_NAME_MAX, name);
    s->numbers[s->n_numbers++].value = value;
    return 0;
}

/* Fills the storage of the caller, NUMBERS_MAX items each. */
static size_t put_numbers(struct skerry *s, Skerry__Trainer__V1__Number *items,
                          Skerry__Trainer__V1__Number **list)
{
    const size_t n = s->n_numbers;
    for (size_t i = 0; i < n; i++) {
        list[i] = &items[i];
        skerry__trainer__v1__number__init(&items[i]);
        items[i].name = s->numbers[i].name;
        items[i].value = s->numbers[i].value;
    }
    s->n_numbers = 0;
    return n;
}

/* Exchanges the tensors of a level by the program's callback. */
static int exchange(struct skerry *s, int (*one)(void *arg, size_t i), uint32_t level)
{
    if (!one)
        return err_set(&last, -EPROTO, "the worker exchanges weights, which this program cannot");
    for (size_t i = 0; i < s->n; i++)
        if (s->offset[i] > 0 && s->level[i] == level && one(s->opt.arg, i) < 0)
            return err_set(&last, -ECANCELED, "the program did not exchange tensor %zu", i);
    return 0;
}

/* Follows a message of the worker at the end of a step. */
static int obey(struct skerry *s, const from_worker *m)
{
    Skerry__Trainer__V1__Given given = SKERRY__TRAINER__V1__GIVEN__INIT;
    int rc = 0;
    switch (m->what_case) {
    case SKERRY__TRAINER__V1__FROM_WORKER__WHAT_STOP:
        take_stop(s, m);
        return 0;
    case SKERRY__TRAINER__V1__FROM_WORKER__WHAT_GIVE:
        rc = exchange(s, s->opt.give, m->give->level);
        return rc < 0 ? rc : tell(s, SKERRY__TRAINER__V1__FROM_TRAINER__WHAT_GIVEN, &given, -1);
    case SKERRY__TRAINER__V1__FROM_WORKER__WHAT_TAKE:
        return exchange(s, s->opt.take, m->take->level);
    case SKERRY__TRAINER__V1__FROM_WORKER__WHAT_GO_ON:
        s->pause = m->go_on->pause;
        return 0;
    default:
        return err_set(&last, -EPROTO, "the worker sent message %d in mid-phase",
                       (int)m->what_case);
    }
}

/* Reads messages of the worker, and waits for one if the worker asked for it. */
static int listen_to(struct skerry *s)
{
    const bool waits = s->pause > 0 && s->steps == s->pause && !s->stopping;
    int rc;
    do {
        from_worker *m = NULL;
        int passed = -1;
        rc = hear(s, waits ? CHANNEL_FOREVER : 0, &m, &passed);
        if (rc != 1)
            break;
        rc = obey(s, m);
        if (passed >= 0)
            (void)close(passed);
        forget(m);
    } while (rc == 0 && waits && s->pause == s->steps && !s->stopping);
    return rc;
}

int skerry_step(struct skerry *s, const struct skerry_progress *p)
{
    Skerry__Trainer__V1__Progress m = SKERRY__TRAINER__V1__PROGRESS__INIT;
    Skerry__Trainer__V1__Number items[NUMBERS_MAX], *list[NUMBERS_MAX];
    if (!s->busy || s->kind == SKERRY_BEGIN)
        return err_set(&last, -EINVAL, "skerry_step is called outside of a phase");
    s->steps++;
    if (s->kind != SKERRY_EVALUATE) { /* its numbers go with skerry_done() */
        m.numbers = list;
        m.n_numbers = put_numbers(s, items, list);
    }
    if (s->fd < 0)
        return 0;
    m.loss = p->loss;
    m.samples = p->samples;
    m.lr = p->lr;
    m.grad_norm = p->grad_norm;
    const int rc = tell(s, SKERRY__TRAINER__V1__FROM_TRAINER__WHAT_PROGRESS, &m, -1);
    return rc < 0 ? rc : listen_to(s);
}

int skerry_done(struct skerry *s, const struct skerry_result *r)
{
    Skerry__Trainer__V1__Done m = SKERRY__TRAINER__V1__DONE__INIT;
    Skerry__Trainer__V1__Number items[NUMBERS_MAX], *list[NUMBERS_MAX];
    int passed = -1;
    if (!s->busy)
        return err_set(&last, -EINVAL, "skerry_done is called, but nothing was asked for");
    if (s->kind == SKERRY_EVALUATE) {
        m.numbers = list;
        m.n_numbers = put_numbers(s, items, list);
    }
    if (r) {
        m.loss_sum = r->loss_sum;
        m.units = r->units;
        m.text = (char *)(uintptr_t)(r->text ? r->text : "");
        m.has_state = s->kind == SKERRY_PHASE && r->state_fd >= 0;
        m.has_picture = s->kind == SKERRY_DRAW && r->picture_fd >= 0;
        passed = m.has_state ? r->state_fd : m.has_picture ? r->picture_fd : -1;
    }
    const int rc =
        s->fd < 0 ? 0 : tell(s, SKERRY__TRAINER__V1__FROM_TRAINER__WHAT_DONE, &m, passed);
    end(s);
    return rc;
}

static int fail(struct skerry *s, const char *reason, bool memory)
{
    Skerry__Trainer__V1__Failed m = SKERRY__TRAINER__V1__FAILED__INIT;
    char text[512];
    (void)str_copy(text, sizeof(text), reason);
    m.reason = text;
    m.memory = memory;
    const int rc = s->fd < 0 ? 0 : tell(s, SKERRY__TRAINER__V1__FROM_TRAINER__WHAT_FAILED, &m, -1);
    end(s);
    return rc;
}

int skerry_fail(struct skerry *s, const char *reason)
{
    return fail(s, reason, false);
}

int skerry_lack_memory(struct skerry *s, const char *reason)
{
    return fail(s, reason, true);
}
