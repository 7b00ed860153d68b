#include "coordinator/outer/outer_exec.h"

#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/list.h"
#include "common/base/log.h"
#include "common/net/blobstore.h"
#include "common/net/loop.h"
#include "common/outer/fold_check.h"
#include "common/outer/layout.h"
#include "coordinator/outer/outer_claim.h"
#include "coordinator/outer/outer_early.h"
#include "coordinator/outer/outer_run.h"
#include "coordinator/outer/outer_share.h"
#include "coordinator/outer/outer_verify.h"

/* ---- checks of contributions (executor thread) ---- */

/* Is a failed check the sender's fault, not our disk's or memory's? */
static bool senders_fault(int rc)
{
    switch (-rc) {
    case ERR_FORMAT:
    case ERR_STALE:
    case ERR_LIMIT:
    case ERR_VERSION:
        return true;
    default:
        return false;
    }
}

static void refuse(struct outer_contribution *c, const char *reason)
{
    c->refused = true;
    (void)str_copy(c->reason, sizeof c->reason, reason); /* cut to fit: it is for people */
}

/* Has our disk damaged the contribution, or the version at which its values began?  A damaged one
 * is removed, so that the same bytes may be sent again. */
static int check_intact(struct outer_run *r, size_t i, struct err *err)
{
    struct outer_step *s = r->step;
    struct outer_contribution *c = &s->contributions[i];
    int rc = -ERR_HASH;
    if (r->blobs[i])
        rc = outer_verify_blob(r->exec->seen, r->exec->store, r->blobs[i], &c->blob, "it", err);
    if (rc == 0 && r->froms[i])
        rc =
            outer_verify_blob(r->exec->seen, r->exec->store, r->froms[i], &c->from_full, "it", err);
    if (rc != -ERR_HASH)
        return rc;
    c->damaged = true;
    refuse(c, "it was damaged on the coordinator's disk");
    return r->exec->store->ops->remove(r->exec->store, &c->blob.id, err);
}

static int check_one(struct outer_run *r, size_t i, struct err *err)
{
    struct outer_step *s = r->step;
    struct outer_contribution *c = &s->contributions[i];
    struct fold_norm norm;
    struct err why = {0};
    int rc = check_intact(r, i, err);
    if (rc < 0 || c->refused)
        return rc;
    const struct fold_origin origin = outer_run_origin(r, i);
    rc = fold_check(r->blobs[i], &origin, s->module_id, &norm, &why);
    if (rc == 0) {
        c->norm = norm.norm;
        r->params = norm.params;
        return 0; /* the caller decides its weight, not the blob */
    }
    if (!senders_fault(rc))
        return err_set(err, rc, "checking a contribution: %s", why.msg);
    const char *const from[] = {origin.from_full};
    if ((rc = outer_verify_finite(from, 1, err)) < 0)
        return rc;
    /* The path is ours and means nothing to the sender. */
    char *p = why.msg;
    size_t n = strlen(r->blobs[i]);
    if (!strncmp(p, r->blobs[i], n))
        p += n + strspn(p + n, ": ");
    refuse(c, p);
    return 0;
}

/* The weighted mean of a contribution's cosines with its large peers, or with the others; *ret_any:
 * there is such a peer. */
static int cos_peers(struct outer_run *r, const struct fold_judged *judged, size_t i, bool large,
                     double *ret, bool *ret_any, struct err *err)
{
    const struct outer_step *s = r->step;
    const struct fold_origin origin = outer_run_origin(r, i);
    double dot = 0, square = 0, sum = 0, weights = 0;
    int rc = 0;
    for (size_t k = 0; k < s->n_contributions && rc == 0; k++) {
        if (k == i || judged[k].norm <= 0 || judged[k].refused || judged[k].large != large)
            continue;
        const struct fold_origin other = outer_run_origin(r, k);
        rc = fold_dot(r->blobs[i], &origin, r->blobs[k], &other, s->module_id, &dot, &square, err);
        sum += s->contributions[k].weight * dot / (judged[i].norm * judged[k].norm);
        weights += s->contributions[k].weight;
    }
    *ret_any = weights > 0;
    *ret = *ret_any ? sum / weights : 0;
    return rc;
}

/* The cosine with the momentum, unless that is zero. */
static int cos_momentum(struct outer_run *r, const struct fold_judged *judged, size_t i,
                        double *ret, bool *ret_any, struct err *err)
{
    const struct fold_origin origin = outer_run_origin(r, i);
    double dot = 0, square = 0;
    if (r->in[OUTER_MOMENTUM] == NULL)
        return 0;
    int rc = fold_dot(r->blobs[i], &origin, r->in[OUTER_MOMENTUM], NULL, r->step->module_id, &dot,
                      &square, err);
    *ret_any = square > 0;
    *ret = *ret_any ? dot / (judged[i].norm * sqrt(square)) : 0;
    return rc;
}

/* Does a large contribution point away from the others: from this step's peers that are not large,
 * else from the momentum?  If all are large and point the same way, they have turned together.  If
 * only one other defines what is usual, or a module's norms have changed, it must only not point
 * against them. */
static int find_astray(struct outer_run *r, const struct fold_judged *judged, size_t i, bool *ret,
                       struct err *err)
{
    const double least = judged[i].known && !r->step->lenient ? FOLD_COS_MIN : 0;
    double cos = 0, large = 0;
    bool peers = false, any = false, turned = false;
    int rc = cos_peers(r, judged, i, false, &cos, &peers, err);
    any = peers;
    if (rc == 0 && !peers)
        rc = cos_momentum(r, judged, i, &cos, &any, err);
    const bool astray = any && cos < least;
    if (rc == 0 && !peers && astray)
        rc = cos_peers(r, judged, i, true, &large, &turned, err);
    *ret = astray && !(turned && large > 0 && large >= least);
    return rc;
}

static int apply_verdict(struct outer_run *r, const struct fold_judged *judged, size_t i,
                         struct err *err)
{
    struct outer_contribution *c = &r->step->contributions[i];
    const struct fold_judged *j = &judged[i];
    char text[128];
    bool astray = false;
    int rc = j->large && !j->refused ? find_astray(r, judged, i, &astray, err) : 0;
    if (rc < 0)
        return rc;
    c->shrink = j->shrink;
    c->weight *= j->doubt;
    if (j->refused && j->large)
        (void)snprintf(text, sizeof text, "its norm %.4g is more than %g times the usual %.4g",
                       j->norm, FOLD_NORM_REFUSE, j->usual);
    else if (j->refused)
        (void)snprintf(text, sizeof text, "its norm %.4g is more than %.4g, the most of its steps",
                       j->norm, j->most);
    else if (astray)
        (void)snprintf(text, sizeof text,
                       "its norm %.4g is more than %g times the usual %.4g, and it does not point "
                       "with the others",
                       j->norm, FOLD_NORM_CLIP, j->usual);
    if (j->refused || astray)
        refuse(c, text);
    return 0;
}

/* The norm of the other waiting contribution, as a past; if it cannot be read, none: its own step
 * judges it. */
static struct fold_past word_of(struct outer_run *r)
{
    const struct outer_step *s = r->step;
    const struct fold_origin origin = {s->word.codec, s->base, r->in[OUTER_FULL]};
    struct fold_norm norm;
    struct err err = {0};
    char *path = NULL;
    if (!blob_ref_is_set(&s->word.blob))
        return (struct fold_past){s->word.norm, (double)s->word.samples};
    int rc = outer_run_blob(r->exec, &s->word.blob, &path, &err);
    if (rc == 0 && path != NULL)
        rc = fold_check(path, &origin, s->module_id, &norm, &err);
    const bool is_read = rc == 0 && path != NULL;
    outer_let_go(r->exec->store, &s->word.blob, path);
    return is_read ? (struct fold_past){norm.norm, (double)s->word.samples} : (struct fold_past){0};
}

/* Judges the contributions that are not refused yet only by their norms; all has one entry for each
 * contribution. */
static void judge_norms(struct outer_run *r, struct fold_judged *all)
{
    const struct outer_step *s = r->step;
    struct fold_judged good[OUTER_CONTRIBUTIONS_MAX];
    size_t index[OUTER_CONTRIBUTIONS_MAX], n = 0;
    for (size_t i = 0; i < s->n_contributions; i++) {
        const struct outer_contribution *c = &s->contributions[i];
        if (c->refused)
            continue;
        index[n] = i;
        good[n++] = (struct fold_judged){
            .norm = c->norm,
            .samples = (double)c->samples,
            .most = c->most * sqrt((double)r->params),
        };
    }
    const struct fold_known known = {s->past, s->n_past, word_of(r), s->lenient};
    fold_judge(&known, good, n);
    for (size_t k = 0; k < n; k++)
        all[index[k]] = good[k];
}

static int judge_all(struct outer_run *r, struct err *err)
{
    struct fold_judged all[OUTER_CONTRIBUTIONS_MAX] = {0};
    bool before[OUTER_CONTRIBUTIONS_MAX];
    int rc = 0;
    for (size_t i = 0; i < r->step->n_contributions; i++)
        before[i] = r->step->contributions[i].refused;
    judge_norms(r, all);
    for (size_t i = 0; i < r->step->n_contributions && rc == 0; i++)
        if (!before[i])
            rc = apply_verdict(r, all, i, err);
    return rc;
}

/* Bounds the weights of contributions that are not refused (fold_share.h). */
static int share_out(struct outer_step *s, struct err *err)
{
    double total = 0.0;
    bool damaged = false;
    (void)outer_cap_shares(s);
    s->accepted = 0;
    for (size_t i = 0; i < s->n_contributions; i++) {
        damaged |= s->contributions[i].damaged;
        if (!s->contributions[i].refused) {
            total += s->contributions[i].weight;
            s->accepted++;
        }
    }
    for (size_t i = 0; i < s->n_contributions; i++) {
        struct outer_contribution *c = &s->contributions[i];
        c->share = c->refused ? 0 : c->weight / total;
    }
    if (damaged)
        return err_set(err, -ERR_LIMIT, "the coordinator's disk has lost %zu of %zu contributions",
                       s->n_contributions - s->accepted, s->n_contributions);
    if (s->accepted >= s->min_accepted)
        return 0;
    return err_set(err, -ERR_LIMIT, "%u of %zu contributions are good, at least %u are needed",
                   s->accepted, s->n_contributions, s->min_accepted);
}

static int check_contributions(struct outer_run *r, struct err *err)
{
    struct outer_step *s = r->step;
    for (size_t i = 0; i < s->n_contributions; i++) {
        if (pool_stopping(r->exec->pool))
            return err_set(err, -ERR_CANCELLED, "the coordinator is stopping");
        int rc = check_one(r, i, err);
        if (rc < 0)
            return rc;
    }
    int rc = judge_all(r, err);
    return rc < 0 ? rc : share_out(s, err);
}

/* ---- the fold (executor thread) ---- */

static bool stopping(void *arg)
{
    const struct outer_run *r = arg;
    return pool_stopping(r->exec->pool);
}

/* Removes result files that did not become blobs; blobs without a name are garbage. */
static void remove_made(const struct outer_run *r)
{
    for (int i = 0; i < outer_blobs(r->step->to_store); i++)
        (void)file_remove(r->out[i], NULL);
}

static struct fold_step fold_of(struct outer_run *r,
                                struct fold_input inputs[OUTER_CONTRIBUTIONS_MAX])
{
    struct fold_step step = outer_run_fold(r, inputs);
    step.stop = stopping;
    step.stop_arg = r;
    r->step->used_ema_decay = step.ema_decay;
    return step;
}

static int fold(struct outer_run *r, struct fold_result *result, struct err *err)
{
    struct fold_input inputs[OUTER_CONTRIBUTIONS_MAX];
    const struct fold_step step = fold_of(r, inputs);
    return fold_run(&step, result, err);
}

/* Finite contributions may have a sum that is not finite: then the largest one is refused, and the
 * others are folded without it. */
static int fold_finite(struct outer_run *r, struct fold_result *result, struct err *err)
{
    struct outer_step *s = r->step;
    int rc = fold(r, result, err);
    if (rc == -ERANGE) {
        const char *const from[] = {r->in[OUTER_FULL], r->in[OUTER_TARGET], r->in[OUTER_MOMENTUM],
                                    r->in[OUTER_BUFFER]};
        const int ours = outer_verify_finite(from, 4, err);
        rc = ours < 0 ? ours : rc;
    }
    while (rc == -ERANGE) {
        struct outer_contribution *worst = NULL;
        for (size_t i = 0; i < s->n_contributions; i++) {
            struct outer_contribution *c = &s->contributions[i];
            if (!c->refused && (worst == NULL || c->norm > worst->norm))
                worst = c;
        }
        refuse(worst, "the outer step is not finite with it, the largest");
        rc = share_out(s, err);
        if (rc == 0)
            rc = fold(r, result, err);
    }
    return rc;
}

/* Puts the files of the next version in their places, with their hashes noted for the next step,
 * which reads them. */
static int keep(struct outer_run *r, const struct fold_result *f, struct err *err)
{
    const struct fold_file *const files[OUTER_FILES] = {&f->full,   &f->delta, &f->ema,
                                                        &f->target, &f->mom,   &f->buf};
    struct outer_step *s = r->step;
    struct blobstore *store = r->exec->store;
    struct blob_ref made[OUTER_FILES];
    struct blob_file blobs[OUTER_FILES];
    for (int i = 0; i < OUTER_FILES; i++) {
        made[i].size = files[i]->bytes;
        memcpy(made[i].sha256, files[i]->sha256, sizeof made[i].sha256);
        if (i != OUTER_DELTA && blob_ref_is_set(&made[i]))
            seen_note(r->exec->seen, r->out[i], made[i].sha256);
        blobs[i] = (struct blob_file){r->out[i], made[i].id, made[i].size};
    }
    int rc = store->ops->adopt(store, blobs, (size_t)outer_blobs(s->to_store), err);
    if (rc == 0 && !s->to_store)
        rc = outer_run_save_state(r, made, err);
    if (rc < 0)
        return rc;
    memcpy(s->made, made, sizeof s->made);
    s->used_scale = f->scale;
    s->delta_norm = f->delta_norm;
    s->step_norm = f->step_norm;
    s->residual_norm = f->residual_norm;
    s->params = f->params;
    return 0;
}

/* Takes what was begun early, if `good`.  Where it hashes what it starts from, only its result says
 * that this is intact, so without the result nothing counts that is found here. */
static bool take_early(struct outer_run *r, bool good, struct fold_result *result)
{
    struct outer_step *s = r->step;
    const size_t bytes = s->n_contributions * sizeof *s->contributions;
    struct outer_contribution *before = mem_alloc(bytes);
    struct fold_input inputs[OUTER_CONTRIBUTIONS_MAX];
    struct err why = {0};
    memcpy(before, s->contributions, bytes);
    good = good && (outer_early_hashes(r) || outer_run_is_intact(r)) &&
           check_contributions(r, &why) == 0;
    const struct fold_step step = fold_of(r, inputs);
    s->early = outer_early_take(r, good ? &step : NULL, result, &why) == 0;
    if (!s->early)
        memcpy(s->contributions, before, bytes);
    mem_free(before);
    return s->early;
}

static int make(struct outer_run *r, struct fold_result *result, struct err *err)
{
    int rc = stopping(r) ? err_set(err, -ERR_CANCELLED, "the coordinator is stopping")
                         : outer_run_check_ours(r, err);
    if (rc == 0)
        rc = check_contributions(r, err);
    return rc == 0 ? fold_finite(r, result, err) : rc;
}

static int run_step(struct outer_run *r, struct err *err)
{
    struct fold_result f = {0};
    const bool early = outer_early_await_open(r);
    int rc = outer_run_open(r, err);
    if (rc < 0)
        return rc;
    if (!r->early || !take_early(r, early, &f))
        rc = make(r, &f, err);
    if (rc == 0)
        rc = keep(r, &f, err);
    if (rc < 0)
        remove_made(r);
    return rc;
}

/* ---- a step that a worker has made (executor thread) ---- */

/* A worker's step is acceptable only if all contributions would be folded as they are. */
static int judge_claim(struct outer_run *r, struct err *err)
{
    struct fold_judged all[OUTER_CONTRIBUTIONS_MAX] = {0};
    judge_norms(r, all);
    for (size_t i = 0; i < r->step->n_contributions; i++)
        if (all[i].large || all[i].refused)
            return err_set(err, -ERR_LIMIT,
                           "the norm of a contribution is %.4g, the usual one %.4g", all[i].norm,
                           all[i].usual);
    return share_out(r->step, err);
}

static int believe(struct outer_run *r, struct err *err)
{
    struct outer_step *s = r->step;
    const struct fold_step like = outer_fold_step(s);
    struct outer_look look;
    int rc = outer_claim_look(r->exec->store, s, &like, &look, err);
    if (rc < 0)
        return rc;
    r->params = look.params;
    if ((rc = judge_claim(r, err)) < 0)
        return rc;
    memcpy(s->made, s->claim.made, sizeof s->made);
    s->used_ema_decay = like.ema_decay;
    s->used_scale = look.scale;
    s->delta_norm = s->claim.delta_norm;
    s->step_norm = s->claim.step_norm;
    s->residual_norm = s->claim.residual_norm;
    s->params = look.params;
    return 0;
}

static void clear_verdicts(struct outer_step *s)
{
    s->accepted = 0;
    for (size_t i = 0; i < s->n_contributions; i++) {
        struct outer_contribution *c = &s->contributions[i];
        c->refused = c->damaged = false;
        c->norm = c->share = 0.0;
        c->shrink = 1.0;
        c->reason[0] = '\0';
    }
}

static int run_claimed(struct outer_run *r, struct err *err)
{
    struct outer_step *s = r->step;
    struct err why = {0};
    int rc = believe(r, &why);
    if (rc == 0)
        return 0;
    s->doubt = rc;
    (void)str_copy(s->why, sizeof(s->why), why.msg); /* cut to fit: it is for people */
    clear_verdicts(s);
    rc = run_step(r, err);
    s->false_claim = rc == 0 && outer_claim_is_false(s);
    return rc;
}

static int work(void *arg)
{
    struct outer_run *r = arg;
    struct outer_step *s = r->step;
    struct err err = {0};
    uint64_t begin = clock_now_ms();
    int rc = s->claimed ? run_claimed(r, &err) : run_step(r, &err);
    s->elapsed_ms = clock_now_ms() - begin;
    if (rc < 0)
        (void)snprintf(s->reason, sizeof s->reason,
                       "outer step of module %llu, version %llu: %.900s",
                       (unsigned long long)s->module_id, (unsigned long long)s->base + 1, err.msg);
    return rc;
}

/* ---- the loop thread ---- */

static void finished(void *arg, int rc)
{
    struct outer_run *r = arg;
    struct outer_step *step = r->step;
    outer_done_fn done = r->done;
    step->rc = rc;
    if (rc < 0 && !step->reason[0])
        (void)str_copy(step->reason, sizeof step->reason, "the coordinator is stopping");
    list_remove(&r->link);
    outer_run_close(r);
    outer_early_let_go(r->early);
    mem_free(r);
    done(step);
}

int outer_exec_new(struct loop *loop, struct blobstore *store, unsigned threads,
                   struct outer_exec **ret, struct err *err)
{
    ASSERT_LOOP_THREAD(loop);
    struct outer_exec *e = mem_alloc(sizeof *e);
    e->loop = loop;
    e->store = store;
    e->seen = seen_new();
    (void)sem_init(&e->computing, 0, OUTER_EARLY_COMPUTING); /* a valid value: cannot fail */
    list_init(&e->running);
    list_init(&e->earlies);
    int rc = pool_new(loop, "outer", threads ? threads : 1, OUTER_QUEUE_MAX, &e->pool, err);
    if (rc == 0)
        rc = pool_new(loop, "early", OUTER_EARLY_MAX, 2 * OUTER_EARLY_MAX, &e->early, err);
    if (rc < 0)
        outer_exec_free(e);
    else
        *ret = e;
    return rc;
}

void outer_exec_free(struct outer_exec *exec)
{
    if (!exec)
        return;
    outer_early_stop_all(exec); /* for which steps may wait */
    pool_free(exec->pool);
    pool_free(exec->early);
    (void)sem_destroy(&exec->computing); /* nobody waits */
    seen_free(exec->seen);
    mem_free(exec);
}

static int check_contribution(const struct outer_step *s, size_t i, struct err *err)
{
    const struct outer_contribution *c = &s->contributions[i];
    if (!isfinite(c->weight) || c->weight <= 0)
        return err_set(err, -EINVAL, "contribution %zu has weight %g, expected more than 0", i,
                       c->weight);
    if (c->from > s->base || (unsigned)c->codec >= CODEC_COUNT)
        return err_set(err, -EINVAL,
                       "contribution %zu starts from version %llu, which is out of range", i,
                       (unsigned long long)c->from);
    return 0;
}

static int check_step(const struct outer_exec *e, const struct outer_step *s, struct err *err)
{
    if (!s->n_contributions || s->n_contributions > OUTER_CONTRIBUTIONS_MAX)
        return err_set(err, -EINVAL, "%zu contributions, expected 1 to %d", s->n_contributions,
                       OUTER_CONTRIBUTIONS_MAX);
    for (size_t i = 0; i < s->n_contributions; i++) {
        int rc = check_contribution(s, i, err);
        if (rc < 0)
            return rc;
    }
    if (!isfinite(s->scale) || s->scale <= 0)
        return err_set(err, -EINVAL, "scale %g: out of range", s->scale);
    if (!s->min_accepted || s->min_accepted > s->n_contributions)
        return err_set(err, -EINVAL, "min_accepted %u, expected 1 to %zu", s->min_accepted,
                       s->n_contributions);
    if ((unsigned)s->down >= CODEC_COUNT)
        return err_set(err, -EINVAL, "unknown codec");
    if (!isfinite(s->lr) || !isfinite(s->momentum) || !(s->ema_decay >= 0 && s->ema_decay <= 1))
        return err_set(err, -EINVAL, "lr %g, momentum %g, EMA decay %g: out of range", s->lr,
                       s->momentum, s->ema_decay);
    const struct list *i;
    for (i = e->running.next; i != &e->running; i = i->next) {
        const struct outer_run *r = list_entry(i, const struct outer_run, link);
        if (!strcmp(r->step->state_dir, s->state_dir))
            return err_set(err, -EBUSY, "module %llu has an outer step running",
                           (unsigned long long)s->module_id);
    }
    return 0;
}

static void clear_results(struct outer_step *s)
{
    s->rc = 0;
    s->reason[0] = '\0';
    memset(s->made, 0, sizeof s->made);
    s->doubt = 0;
    s->early = s->false_claim = false;
    clear_verdicts(s);
}

int outer_submit(struct outer_exec *exec, struct outer_step *step, outer_done_fn done,
                 struct err *err)
{
    ASSERT_LOOP_THREAD(exec->loop);
    int rc = check_step(exec, step, err);
    if (rc < 0)
        return rc;
    struct outer_run *r = mem_alloc(sizeof *r);
    r->exec = exec;
    r->step = step;
    r->done = done;
    r->early = outer_early_of(exec, step);
    clear_results(step);
    list_push(&exec->running, &r->link);
    rc = pool_submit(exec->pool, work, finished, r);
    if (rc < 0) {
        list_remove(&r->link);
        outer_early_let_go(r->early);
        mem_free(r);
        return err_set(err, rc, "%d outer steps wait already", OUTER_QUEUE_MAX);
    }
    return 0;
}

unsigned outer_pending(const struct outer_exec *exec)
{
    return pool_pending(exec->pool);
}

/* "target.12.safetensors" -> 12.  Temporary files of a killed process
 * ("target.12.safetensors.tmp.x1y2z3") count as their version. */
static bool version_of(const char *name, uint64_t *ret)
{
    static const char *const kinds[] = {"target.", "momentum.", "buffer.",
                                        "full.",   "delta.",    "ema."};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (!str_starts(name, kinds[i]))
            continue;
        char *end = NULL;
        *ret = strtoull(name + strlen(kinds[i]), &end, 10);
        return str_starts(end, ".safetensors");
    }
    return false;
}

static const char *const spared[] = {"target", "momentum", "buffer"};

#define SPARED (sizeof(spared) / sizeof(spared[0]))

/* Renames what has lost its version's name to the spare.  Only now can it be written over: a power
 * cut brings back no version of a name that the disk has forgotten. */
static int make_spares(const char *state_dir, struct err *err)
{
    int rc = file_sync_dir(state_dir, err);
    for (size_t i = 0; i < SPARED && rc == 0; i++) {
        char *freed = str_printf("%s/%s.freed", state_dir, spared[i]);
        char *spare = outer_state_spare(state_dir, spared[i]);
        if (file_exists(freed))
            rc = file_move(freed, spare, err);
        mem_free(spare);
        mem_free(freed);
    }
    return rc;
}

/* A finished file of the state is to become the spare; others go. */
static int let_go(const char *state_dir, const char *name, bool *any_freed, struct err *err)
{
    char *path = file_join(state_dir, name), *freed = NULL;
    for (size_t i = 0; i < SPARED && freed == NULL; i++)
        if (str_starts(name, spared[i]) && str_ends(name, ".safetensors"))
            freed = str_printf("%s/%s.freed", state_dir, spared[i]);
    const int rc = freed ? file_move(path, freed, err) : file_remove(path, err);
    *any_freed |= freed != NULL;
    mem_free(freed);
    mem_free(path);
    return rc;
}

int outer_state_prune(const char *state_dir, uint64_t keep, uint64_t newest, struct err *err)
{
    struct file_names names = {0};
    bool any_freed = false;
    int rc = file_is_dir(state_dir) ? file_list(state_dir, 4096, &names, err) : 0;
    for (size_t i = 0; rc == 0 && i < names.n; i++) {
        uint64_t version = 0;
        if (!version_of(names.items[i], &version) || (version >= keep && version <= newest))
            continue;
        rc = let_go(state_dir, names.items[i], &any_freed, err);
    }
    file_names_release(&names);
    return rc == 0 && any_freed ? make_spares(state_dir, err) : rc;
}
