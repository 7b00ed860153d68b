/* EVAL and SAMPLE by a user's trainer: losses of held-out samples, and texts and pictures that it
 * makes. */

#include <sys/stat.h>
#include <unistd.h>

#include "common/base/file.h"
#include "common/base/hash.h"
#include "common/base/log.h"
#include "common/job/family.h"
#include "worker/engine/engine.h"
#include "worker/engine/external_feed.h"
#include "worker/kinds/kinds.h"
#include "worker/engine/trainers.h"
#include "worker/order/task_check.h"

#define PICTURE_MAX (64u << 20)
#define EVAL_BATCH 64

static int plan(struct engine *e, struct work *w, struct err *err)
{
    const Skerry__V1__EvalTask *t = w->task->eval;
    engine_rest(e); /* a trainer may need the room */
    int rc = trainers_need(w, err);
    return rc == 0 && t ? work_need_ranges(w, t->ranges, t->n_ranges, err) : rc;
}

/* The trainer with the task's weights loaded. */
static int open_trainer(struct engine *e, struct work *w, struct external **ret, struct err *err)
{
    int rc = trainers_get(e, w, ret, err);
    return rc < 0 ? rc : trainers_load(e, *ret, w, err);
}

/* ---- EVAL ---- */

struct evaluation {
    struct work *w;
    struct external_feed *feed;
    uint64_t samples;
};

static int on_progress(void *arg, const Skerry__Trainer__V1__Progress *m, struct err *err)
{
    struct evaluation *ev = arg;
    ev->samples += m->samples;
    progress_units(&ev->w->progress, (uint32_t)ev->samples,
                   (uint32_t)external_feed_total(ev->feed));
    return 0;
}

static int on_samples(void *arg, Skerry__Trainer__V1__Samples *m, int *ret_fd, struct err *err)
{
    struct evaluation *ev = arg;
    return external_feed_next(ev->feed, m, ret_fd, err);
}

static bool eval_stopped(void *arg)
{
    const struct evaluation *ev = arg;
    return work_stopped(ev->w, NULL);
}

static void eval_goes_on(void *arg)
{
    const struct evaluation *ev = arg;
    progress_sign(&ev->w->progress);
}

static int ask_evaluate(struct engine *e, struct evaluation *ev, struct external_done *done,
                        struct err *err)
{
    const struct external_events events = {.progress = on_progress,
                                           .samples = on_samples,
                                           .stopped = eval_stopped,
                                           .goes_on = eval_goes_on,
                                           .arg = ev};
    Skerry__Trainer__V1__FromWorker m = SKERRY__TRAINER__V1__FROM_WORKER__INIT;
    Skerry__Trainer__V1__Evaluate order = SKERRY__TRAINER__V1__EVALUATE__INIT;
    order.kind = external_feed_kind(ev->w);
    order.samples = external_feed_total(ev->feed);
    order.batch = EVAL_BATCH;
    m.what_case = SKERRY__TRAINER__V1__FROM_WORKER__WHAT_EVALUATE;
    m.evaluate = &order;
    progress_activity(&ev->w->progress, "evaluating");
    return trainers_ask(e, ev->w, &m, -1, &events, done, err);
}

static int take_loss(struct evaluation *ev, const struct external_done *done, struct err *err)
{
    struct work_result *r = &ev->w->result;
    if (done->units == 0 || !isfinite(done->loss_sum))
        return err_set(err, -ERR_TRAINER,
                       "the trainer's held-out loss is %g over %" PRIu64 " losses", done->loss_sum,
                       done->units);
    r->samples = external_feed_position(ev->feed);
    r->loss_sum = done->loss_sum;
    r->units = done->units;
    r->loss_mean = (float)(done->loss_sum / (double)done->units);
    return 0;
}

/* A number with an invalid name or value is left out, which is logged once: the loss counts without
 * it. */
static void take_numbers(struct work *w, const struct external_done *done)
{
    struct work_result *r = &w->result;
    struct err err = {0};
    for (size_t i = 0; i < done->n_numbers; i++) {
        const bool said = err.msg[0] != '\0';
        const int at = progress_number(&w->progress, done->numbers[i].name, &err);
        if (at < 0 && !said)
            log_warn("eval", "%s; it is left out", err.msg);
        if (at < 0)
            continue;
        for (; r->n_numbers <= (size_t)at; r->n_numbers++)
            r->numbers[r->n_numbers] = (double)NAN;
        r->numbers[at] = done->numbers[i].value;
    }
}

static int run_eval(struct engine *e, struct work *w, struct err *err)
{
    const Skerry__V1__EvalTask *t = w->task->eval;
    const struct data_order order = {0};
    struct evaluation ev = {.w = w};
    struct external_done done = {.passed = -1};
    struct external *x = NULL;
    int rc = open_trainer(e, w, &x, err);
    if (rc == 0 && !external_evaluates(x))
        rc = err_set(err, -ERR_CONFIG, "the job's trainer does not evaluate");
    if (rc == 0)
        rc = external_feed_open(w, t->ranges, t->n_ranges, &order, EVAL_BATCH, t->samples, &ev.feed,
                                err);
    if (rc == 0)
        rc = ask_evaluate(e, &ev, &done, err);
    if (rc == 0)
        rc = take_loss(&ev, &done, err);
    if (rc == 0)
        take_numbers(w, &done);
    external_done_release(&done);
    external_feed_close(ev.feed);
    return rc;
}

/* ---- SAMPLE ---- */

static int take_picture(struct work *w, int fd, struct err *err)
{
    static const uint8_t png[] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};
    struct stat st;
    struct work_output *o;
    if (fd < 0 || fstat(fd, &st) < 0 || st.st_size < (off_t)sizeof(png) ||
        st.st_size > (off_t)PICTURE_MAX)
        return err_set(err, -ERR_TRAINER, "the trainer drew no picture of at most %u MiB",
                       PICTURE_MAX >> 20);
    uint8_t *data = mem_try((size_t)st.st_size);
    int rc = data ? file_pread_all(fd, data, (size_t)st.st_size, 0, "the trainer's picture", err)
                  : err_set(err, -ENOMEM, "no memory for a picture");
    if (rc == 0 && memcmp(data, png, sizeof(png)) != 0)
        rc = err_set(err, -ERR_TRAINER, "the trainer drew something that is no PNG");
    if (rc == 0)
        rc = work_output_new(w, WORK_RESULT, "samples.png", &o, err);
    if (rc == 0)
        rc = file_write_atomic(o->path, data, (size_t)st.st_size, 0600, err);
    if (rc == 0)
        rc = hash_file(o->path, o->sha256, &o->size, err);
    mem_free(data);
    return rc;
}

static int take_drawn(struct work *w, struct external_done *done, struct err *err)
{
    const bool either = !job_has_data(&w->spec);
    if (either ? done->text[0] == '\0' : w->task->sample->tokens == 0)
        return take_picture(w, done->passed, err);
    const size_t len = strlen(done->text);
    if (len > TASK_TEXT_MAX || !str_is_utf8(done->text, len))
        return err_set(err, -ERR_TRAINER,
                       "the trainer wrote a text of %zu bytes, expected UTF-8 of at most %d", len,
                       TASK_TEXT_MAX);
    w->result.text = done->text;
    done->text = NULL;
    return 0;
}

static int run_sample(struct engine *e, struct work *w, struct err *err)
{
    const Skerry__V1__SampleTask *t = w->task->sample;
    const struct external_events events = {
        .stopped = trainers_stopped, .goes_on = trainers_goes_on, .arg = w};
    Skerry__Trainer__V1__FromWorker m = SKERRY__TRAINER__V1__FROM_WORKER__INIT;
    Skerry__Trainer__V1__Draw order = SKERRY__TRAINER__V1__DRAW__INIT;
    struct external_done done = {.passed = -1};
    struct external *x = NULL;
    int rc = open_trainer(e, w, &x, err);
    if (rc == 0 && !external_draws(x))
        rc = err_set(err, -ERR_CONFIG, "the job's trainer does not draw");
    order.prompt = t->prompt;
    order.tokens = t->tokens;
    order.temperature = t->temperature;
    order.top_p = t->top_p;
    order.seed = t->seed;
    order.labels = t->labels;
    order.n_labels = t->n_labels;
    order.columns = t->columns;
    m.what_case = SKERRY__TRAINER__V1__FROM_WORKER__WHAT_DRAW;
    m.draw = &order;
    progress_activity(&w->progress, "drawing samples");
    if (rc == 0)
        rc = trainers_ask(e, w, &m, -1, &events, &done, err);
    if (rc == 0)
        rc = take_drawn(w, &done, err);
    external_done_release(&done);
    w->result.samples = t->n_labels;
    return rc;
}

const struct kind kind_external_eval = {
    .id = SKERRY__V1__TASK_KIND__TASK_KIND_EVAL,
    .name = "eval",
    .external = true,
    .part = offsetof(Skerry__V1__Task, eval),
    .modules = KIND_MODULES_NEEDED,
    .plan = plan,
    .run = run_eval,
};

const struct kind kind_external_sample = {
    .id = SKERRY__V1__TASK_KIND__TASK_KIND_SAMPLE,
    .name = "sample",
    .external = true,
    .part = offsetof(Skerry__V1__Task, sample),
    .modules = KIND_MODULES_NEEDED,
    .plan = plan,
    .run = run_sample,
};
