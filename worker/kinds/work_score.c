/* SCORE: how well one path predicts each text of the ranges, for routing texts to paths (DiPaCo,
 * discriminative routing): the sum of the log-probabilities, in columns of `chunk` tokens or in
 * one. */

#include "common/base/base.h"
#include "common/data/tokenizer.h"
#include "worker/engine/engine.h"
#include "worker/engine/task_files.h"
#include "worker/engine/forward.h"
#include "worker/engine/rows.h"
#include "worker/kinds/kinds.h"
#include "worker/order/task_check.h"

struct run {
    struct engine *e;
    struct work *w;
    struct rows rows;
    uint32_t chunk, columns;
    float *logp;     /* (n,columns) */
    int32_t *tokens; /* (n,columns) */
    int32_t *bytes;  /* (n) */
    struct forward net;
    struct tokenizer *tokenizer; /* NULL: bytes of tokens are not known */
    float *losses;               /* one batch's */
};

static int run_open(struct run *r, struct err *err)
{
    const Skerry__V1__ScoreTask *t = r->w->task->score;
    const size_t batch = rows_of_call(r->w);
    if (!rows_are_texts(r->w))
        return err_set(err, -EINVAL, "only texts are scored");
    int rc = rows_open(&r->rows, r->w, t->ranges, t->n_ranges, err);
    if (rc < 0)
        return rc;
    const uint64_t n = r->rows.n;
    if (n > DATA_SAMPLES_MAX)
        return err_set(err, -ERR_LIMIT, "%" PRIu64 " samples are too many to score", n);
    r->chunk = t->chunk;
    r->columns = r->chunk ? rows_columns(r->w, r->chunk) : 1;
    r->logp = mem_try_array(n * r->columns, sizeof(*r->logp));
    r->tokens = mem_try_array(n * r->columns, sizeof(*r->tokens));
    r->bytes = mem_try_array(n, sizeof(*r->bytes));
    r->losses = mem_try_array(batch * (size_t)r->w->spec.model.context, sizeof(*r->losses));
    if (!r->logp || !r->tokens || !r->bytes || !r->losses)
        return err_set(err, -ENOMEM, "no memory for scores of %" PRIu64 " samples", n);
    rc = work_tokenizer(r->w, &r->tokenizer, err);
    return rc < 0 ? rc : forward_open(r->e, r->w, (int)batch, &r->net, err);
}

static void run_close(struct run *r)
{
    rows_close(&r->rows);
    forward_close(&r->net);
    tokenizer_free(r->tokenizer);
    mem_free(r->logp);
    mem_free(r->tokens);
    mem_free(r->bytes);
    mem_free(r->losses);
}

/* Adds the losses of one text to the columns of its predicted tokens. */
static int add_text(struct run *r, const int32_t *target, const float *losses, uint64_t row,
                    struct err *err)
{
    const uint32_t seq = (uint32_t)r->w->spec.model.context;
    for (uint32_t i = 0; i < seq; i++) {
        if (target[i] < 0)
            continue;
        if (!isfinite(losses[i]))
            return err_set(err, -ERR_FORMAT, "path %u: a loss is not a number",
                           r->w->task->score->path);
        const uint32_t c = r->chunk ? (i + 1) / r->chunk : 0;
        const uint64_t at = row * r->columns + (c < r->columns ? c : r->columns - 1);
        r->logp[at] -= losses[i];
        r->tokens[at]++;
        if (r->tokenizer)
            r->bytes[row] += (int32_t)tokenizer_token_bytes(r->tokenizer, (uint32_t)target[i]);
    }
    return 0;
}

static int take(void *arg, struct batch *b, struct err *err)
{
    struct run *r = arg;
    struct net_result result = {.losses = r->losses};
    b->keys = b->ids;
    int rc = net_loss(r->net.net, b, false, 0, false, &result, err);
    for (size_t i = 0; rc == 0 && i < b->count; i++) {
        uint64_t row = 0;
        if ((rc = rows_find(&r->rows, b->ids[i], &row, err)) == 0)
            rc = add_text(r, b->target + i * b->seq, r->losses + i * b->seq, row, err);
    }
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
    const struct feed_options opt = {.skip = w->task->score->skip};
    struct run r = {.e = e, .w = w};
    struct work_output *o = NULL;
    progress_activity(&w->progress, "scoring for path %u", w->task->score->path);
    int rc = run_open(&r, err);
    if (rc == 0)
        rc = rows_each(&r.rows, e, &opt, take, &r, err);
    if (rc == 0)
        rc = work_output_new(w, WORK_RESULT, "scores", &o, err);
    if (rc == 0)
        rc = scores_write(o->path, r.logp, r.tokens, r.bytes, (uint32_t)r.rows.n, r.columns,
                          o->sha256, &o->size, err);
    w->result.samples = r.rows.n;
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
