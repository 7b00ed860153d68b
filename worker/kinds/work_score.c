/* SCORE: how well one path predicts each sample of the ranges, by which samples are routed to
 * paths (DiPaCo, discriminative routing): of texts the sum of the log-probabilities, in columns
 * of `chunk` tokens or in one; of images the loss on fixed draws, its sign turned. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/base/mem.h"
#include "common/data/tokenizer.h"
#include "worker/kinds/engine.h"
#include "worker/train/eval.h"
#include "worker/kinds/features.h"
#include "worker/kinds/forward.h"
#include "worker/kinds/stage.h"
#include "worker/data/text.h"
#include "worker/kinds/kinds.h"
#include "worker/order/task_check.h"

#define IMAGES 64

struct run {
    struct engine *e;
    struct work *w;
    struct data_range *ranges;
    size_t n_ranges;
    uint32_t n, at; /* rows; the next one that a sample may be */
    uint32_t chunk, columns;
    uint64_t *ids;   /* (n) */
    float *logp;     /* (n,columns) */
    int32_t *tokens; /* (n,columns) */
    int32_t *bytes;  /* (n) */
    struct forward net;
    float *losses; /* of one batch */
};

static int run_open(struct run *r, struct err *err)
{
    const Skerry__V1__ScoreTask *t = r->w->task->score;
    int rc = work_ranges(r->w, t->ranges, t->n_ranges, &r->ranges, err);
    if (rc < 0)
        return rc;
    r->n_ranges = t->n_ranges;
    uint64_t n = 0;
    for (size_t i = 0; i < r->n_ranges; i++)
        n += r->ranges[i].count;
    if (n > DATA_SAMPLES_MAX)
        return err_set(err, -ERR_LIMIT, "%" PRIu64 " samples are too many to score", n);
    r->n = (uint32_t)n;
    const bool text = r->w->spec.model.type == JOB_MODEL_LLAMA;
    r->chunk = text ? t->chunk : 0;
    r->columns = r->chunk ? stage_columns(r->w, r->chunk) : 1;
    const size_t losses =
        text ? (size_t)stage_rows(r->w) * (size_t)r->w->spec.model.context : IMAGES;
    r->ids = mem_try_array(n, sizeof(*r->ids));
    r->logp = mem_try_array(n * r->columns, sizeof(*r->logp));
    r->tokens = mem_try_array(n * r->columns, sizeof(*r->tokens));
    r->bytes = mem_try_array(n, sizeof(*r->bytes));
    r->losses = mem_try_array(losses, sizeof(*r->losses));
    if (!r->ids || !r->logp || !r->tokens || !r->bytes || !r->losses)
        return err_set(err, -ENOMEM, "no memory for scores of %u samples", r->n);
    uint32_t at = 0;
    for (size_t i = 0; i < r->n_ranges; i++)
        for (uint32_t j = 0; j < r->ranges[i].count; j++)
            r->ids[at++] = data_sample_id(r->ranges[i].sha256, r->ranges[i].start + j);
    return forward_open(r->e, r->w, text ? (int)stage_rows(r->w) : IMAGES, &r->net, err);
}

static void run_close(struct run *r)
{
    forward_close(&r->net);
    mem_free(r->ranges);
    mem_free(r->ids);
    mem_free(r->logp);
    mem_free(r->tokens);
    mem_free(r->bytes);
    mem_free(r->losses);
}

/* As work_feature.c: samples come in order, the bad ones are left out and score 0. */
static int find_row(struct run *r, uint64_t id, uint32_t *ret, struct err *err)
{
    while (r->at < r->n && r->ids[r->at] != id)
        r->at++;
    if (r->at == r->n)
        return err_set(err, -EINVAL, "a sample that the task does not name");
    *ret = r->at++;
    return 0;
}

static int step(struct run *r, struct err *err)
{
    progress_units(&r->w->progress, r->at, r->n);
    return work_stopped(r->w, err) ? -ERR_CANCELLED : 0;
}

static int add(struct run *r, uint32_t row, uint32_t column, float loss, struct err *err)
{
    if (!isfinite(loss))
        return err_set(err, -ERR_FORMAT, "path %u: a loss is not a number",
                       r->w->task->score->path);
    r->logp[(size_t)row * r->columns + column] -= loss;
    r->tokens[(size_t)row * r->columns + column]++;
    return 0;
}

/* The losses of one text to the columns of the tokens that were predicted. */
static int take_text(struct run *r, const struct tokenizer *t, const int32_t *target,
                     const float *losses, uint32_t row, struct err *err)
{
    const uint32_t seq = (uint32_t)r->w->spec.model.context;
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && i < seq; i++) {
        if (target[i] < 0)
            continue;
        uint32_t c = r->chunk ? (i + 1) / r->chunk : 0;
        rc = add(r, row, c < r->columns ? c : r->columns - 1, losses[i], err);
        r->bytes[row] += (int32_t)stage_token_bytes(t, target[i]);
    }
    return rc;
}

static int score_texts(struct run *r, struct err *err)
{
    const size_t seq = (size_t)r->w->spec.model.context;
    const struct text_options opt = {
        .seq = (unsigned)seq,
        .rows = stage_rows(r->w),
        .vocab = r->w->task->vocab,
        .skip = r->w->task->score->skip,
    };
    struct tokenizer *tokenizer = NULL;
    struct text *text = NULL;
    struct batch b;
    int rc = work_tokenizer(r->w, &tokenizer, err);
    if (rc == 0)
        rc = text_open(&opt, r->ranges, r->n_ranges, &text, err);
    while (rc == 0) {
        if ((rc = step(r, err)) < 0 || (rc = text_next(text, 0, &b, err)) < 0 || b.count == 0)
            break;
        struct net_result result = {.losses = r->losses};
        rc = net_loss(r->net.net, &b, false, 0, false, &result, err);
        for (unsigned i = 0; rc == 0 && i < b.count; i++) {
            uint32_t row = 0;
            if ((rc = find_row(r, b.ids[i], &row, err)) == 0)
                rc = take_text(r, tokenizer, b.target + i * seq, r->losses + i * seq, row, err);
        }
    }
    text_free(text);
    tokenizer_free(tokenizer);
    return rc;
}

static int score_images(struct run *r, struct err *err)
{
    const struct data_options opt = {
        .image_size = (unsigned)r->w->spec.data.image_size,
        .batch = IMAGES,
        .threads = r->e->opt.decode_threads,
        .classes = (unsigned)r->w->task->n_classes,
        .cache = r->e->images,
    };
    struct data *data = NULL;
    struct batch b;
    int rc = data_open(&opt, r->ranges, r->n_ranges, &data, err);
    while (rc == 0) {
        if ((rc = step(r, err)) < 0 || (rc = data_next(data, &b, err)) < 0 || b.count == 0)
            break;
        b.seed = eval_seed(r->w->spec.seed);
        b.keys = b.ids;
        struct net_result result = {.losses = r->losses};
        rc = net_loss(r->net.net, &b, false, 0, false, &result, err);
        for (unsigned i = 0; rc == 0 && i < b.count; i++) {
            uint32_t row = 0;
            if ((rc = find_row(r, b.ids[i], &row, err)) == 0)
                rc = add(r, row, 0, r->losses[i], err);
        }
    }
    data_free(data);
    return rc;
}

static int check(const Skerry__V1__Task *task, struct err *err)
{
    const Skerry__V1__ScoreTask *t = task->score;
    int rc = task_check_tokens(t->chunk, "score.chunk", err);
    if (rc == 0)
        rc = task_check_tokens(t->skip, "score.skip", err);
    return rc < 0 ? rc : task_check_ranges(t->ranges, t->n_ranges, "score.ranges", err);
}

static int plan(struct engine *e, struct work *w, struct err *err)
{
    return work_need_ranges(w, w->task->score->ranges, w->task->score->n_ranges, err);
}

static int run(struct engine *e, struct work *w, struct err *err)
{
    struct run r = {.e = e, .w = w};
    struct work_output *o = NULL;
    const uint64_t begun = clock_now_ns();
    progress_activity(&w->progress, "scoring for path %u", w->task->score->path);
    int rc = run_open(&r, err);
    if (rc == 0)
        rc = w->spec.model.type == JOB_MODEL_LLAMA ? score_texts(&r, err) : score_images(&r, err);
    if (rc == 0)
        rc = work_output_new(w, WORK_RESULT, "scores", &o, err);
    if (rc == 0)
        rc = scores_write(o->path, r.logp, r.tokens, r.bytes, r.n, r.columns, o->sha256, &o->size,
                          err);
    w->result.samples = r.n;
    w->result.seconds = (float)(clock_now_ns() - begun) / 1e9F;
    run_close(&r);
    return rc;
}

const struct kind kind_score = {
    .id = SKERRY__V1__TASK_KIND__TASK_KIND_SCORE,
    .name = "score",
    .part = offsetof(Skerry__V1__Task, score),
    .modules = KIND_MODULES_NEEDED,
    .check = check,
    .plan = plan,
    .run = run,
};
