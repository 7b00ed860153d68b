/* EVAL: the held-out loss of a path, on fixed draws. */

#include "common/base/base.h"
#include "common/data/tokenizer.h"
#include "worker/engine/engine.h"
#include "worker/train/eval.h"
#include "worker/engine/feed.h"
#include "worker/engine/forward.h"
#include "worker/engine/rows.h"
#include "worker/kinds/kinds.h"
#include "worker/engine/mixture.h"
#include "worker/order/task_check.h"

#define EVAL_BATCH 64    /* images */
#define EVAL_TOKENS 8192 /* texts */

struct evaluation {
    struct work *w;
    struct forward forward;
    struct tokenizer *tokenizer; /* NULL: the bytes of tokens are unknown */
    struct eval_sum sum;
    uint64_t samples, bytes;
};

static int check(const Skerry__V1__Task *task, struct err *err)
{
    const Skerry__V1__EvalTask *t = task->eval;
    int rc = task_check_tokens(t->skip, "eval.skip", err);
    return rc < 0 ? rc : task_check_ranges(t->ranges, t->n_ranges, "eval.ranges", err);
}

static int plan(struct engine *e, struct work *w, struct err *err)
{
    const Skerry__V1__EvalTask *t = w->task->eval;
    return work_need_ranges(w, t->ranges, t->n_ranges, err);
}

static int batch_of(const struct work *w)
{
    if (!rows_are_texts(w))
        return EVAL_BATCH;
    const int rows = EVAL_TOKENS / w->spec.model.context;
    return rows > 1 ? rows : 1;
}

/* Bytes that the predicted tokens stand for. */
static uint64_t target_bytes(const struct tokenizer *t, const struct batch *b)
{
    uint64_t n = 0;
    for (size_t i = 0; i < (size_t)b->count * b->seq; i++)
        n += b->target[i] >= 0 ? tokenizer_token_bytes(t, (uint32_t)b->target[i]) : 0;
    return n;
}

static int take(void *arg, struct batch *b, struct err *err)
{
    struct evaluation *ev = arg;
    int rc = eval_batch(ev->forward.net, b, &ev->sum, err);
    if (rc == 0 && ev->tokenizer)
        ev->bytes += target_bytes(ev->tokenizer, b);
    return rc;
}

static void report(const struct evaluation *ev)
{
    struct work_result *r = &ev->w->result;
    const struct eval_sum *s = &ev->sum;
    r->samples = ev->samples;
    r->loss_sum = s->loss;
    r->units = s->units;
    r->bytes = ev->bytes;
    /* Texts that end within the skipped tokens have no loss. */
    r->loss_mean = s->units ? (float)(s->loss / (double)s->units) : NAN;
    if (s->units && net_model(ev->forward.net)->spec.kind == MODEL_ROUTER)
        work_row(ev->w, (double)s->hits / (double)s->units, "", "accuracy");
    if (s->units && ev->forward.net->d_base) {
        work_row(ev->w, s->base / (double)s->units, "", "base's loss");
        work_row(ev->w, (s->loss - s->base) / (double)s->units, "", "upscaler's loss");
    }
}

static int run_path(struct engine *e, struct work *w, struct err *err)
{
    const Skerry__V1__EvalTask *t = w->task->eval;
    const struct feed_options opt = {
        .batch = (unsigned)batch_of(w), .skip = t->skip, .most = t->samples, .tell_bad = true};
    struct evaluation ev = {.w = w};
    progress_activity(&w->progress, "evaluating");
    int rc = forward_open(e, w, (int)opt.batch, &ev.forward, err);
    if (rc == 0 && rows_are_texts(w))
        rc = work_tokenizer(w, &ev.tokenizer, err);
    if (rc == 0)
        rc = feed_each(e, w, t->ranges, t->n_ranges, &opt, take, &ev, &ev.samples, err);
    if (rc == 0 && ev.samples == 0)
        rc = err_set(err, -ERR_FORMAT, "no held-out sample can be read");
    if (rc == 0)
        report(&ev);
    tokenizer_free(ev.tokenizer);
    forward_close(&ev.forward);
    return rc;
}

static int run(struct engine *e, struct work *w, struct err *err)
{
    return w->task->mixture ? mixture_eval(e, w, err) : run_path(e, w, err);
}

const struct kind kind_eval = {
    .id = SKERRY__V1__TASK_KIND__TASK_KIND_EVAL,
    .name = "eval",
    .part = offsetof(Skerry__V1__Task, eval),
    .encoders = true,
    .modules = KIND_MODULES_OR_MIXTURE,
    .labels = true,
    .check = check,
    .plan = plan,
    .run = run,
};
