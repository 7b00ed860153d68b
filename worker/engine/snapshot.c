#include "worker/engine/snapshot.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/outer/version.h"
#include "worker/engine/contribute.h"
#include "worker/link/uplink.h"
#include "worker/order/task_check.h"
#include "worker/order/work.h"

#define CALL_MS 30000
#define MADE_SHARE 50 /* at most 1/50 of the time is spent on making them */
/* In a snapshot, as the coordinator bounds them. */
#define SECONDS_MAX 1e9f

enum stage { IDLE, SENDS, REPORTS };

struct snapshots {
    struct snapshots_options opt;
    struct work *w;
    const Skerry__V1__TrainTask *t;
    enum stage stage;
    struct replica_cursor at; /* the position of the snapshot being sent */
    uint32_t saved;           /* steps in the coordinator's snapshot */
    size_t n;
    struct work_output outs[MODEL_LEVELS_MAX];
    struct uplink_job *puts[MODEL_LEVELS_MAX];
    struct uplink_job *call;
    uint64_t begun_ns, made_ns, sent_ns; /* when the last one began; its times to make and send */
    uint64_t seen_ns, apart_ns;          /* when the step began; the longest time of one */
    struct log_change trouble;
};

uint64_t snapshots_pause_ns(uint32_t least_ms, uint64_t made_ns, uint64_t sent_ns)
{
    uint64_t ns = (uint64_t)least_ms * 1000000;
    if (ns < MADE_SHARE * made_ns)
        ns = MADE_SHARE * made_ns;
    return ns < JOB_SNAPSHOT_SENT_SHARE * sent_ns ? JOB_SNAPSHOT_SENT_SHARE * sent_ns : ns;
}

bool snapshots_pays(uint64_t left_ns, uint64_t pause_ns, uint64_t sent_ns)
{
    return left_ns >= sent_ns && left_ns - sent_ns >= pause_ns / 2;
}

/* What remains of the phase, at the speed that it has had. */
static uint64_t left_ns(const struct snapshots *s, const struct replica_cursor *at)
{
    const double left_s = s->t->steps ? (s->t->steps - at->steps) * at->seconds / at->steps
                                      : (double)s->t->seconds - at->seconds;
    return left_s > 0 ? (uint64_t)(left_s * 1e9) : 0;
}

struct snapshots *snapshots_open(const struct snapshots_options *opt)
{
    struct work *w = opt->w;
    if (w->task->train->snapshot_ms == 0 || w->uplink == NULL ||
        w->task->n_modules > MODEL_LEVELS_MAX)
        return NULL;
    struct snapshots *s = mem_alloc(sizeof(*s));
    *s = (struct snapshots){.opt = *opt,
                            .w = w,
                            .t = w->task->train,
                            .n = w->task->n_modules,
                            .begun_ns = clock_now_ns()};
    return s;
}

static void drop(struct snapshots *s)
{
    for (size_t i = 0; i < s->n; i++) {
        uplink_free(s->puts[i]);
        s->puts[i] = NULL;
    }
    uplink_free(s->call);
    s->call = NULL;
    s->stage = IDLE;
}

void snapshots_close(struct snapshots *s)
{
    if (s == NULL)
        return;
    drop(s);
    mem_free(s);
}

/* ---- sending ---- */

static void give_up(struct snapshots *s, const struct err *err)
{
    drop(s);
    s->sent_ns = clock_now_ns() - s->begun_ns;
    if (err->code != -ERR_CANCELLED)
        log_on_change(&s->trouble, LOG_LEVEL_WARN, "snapshot",
                      "the phase is not saved at step %u: %s", s->at.steps, err->msg);
}

int snapshot_net_make(void *net, uint64_t samples, struct work_output *outs, struct err *err)
{
    const struct snapshot_net *n = net;
    struct contribute c = {
        .w = n->w,
        .model = n->r->model,
        .weights = contribute_there(trainer_net(n->r->trainer)),
        .flat = n->r->flat,
        .samples = samples,
        .snapshot = true,
    };
    int rc = c.weights ? 0 : trainer_get(n->r->trainer, n->r->flat, err);
    for (size_t i = 0; i < n->w->task->n_modules && rc == 0; i++) {
        c.base = n->w->task->modules[i];
        rc = contribute(&c, &outs[i], err);
    }
    return rc;
}

static void begin(struct snapshots *s, const struct replica_cursor *at)
{
    struct err err = {0};
    s->begun_ns = clock_now_ns();
    s->at = *at;
    atomic_store(&s->w->save, false);
    const int rc = s->opt.make(s->opt.arg, at->samples, s->outs, &err);
    s->made_ns = clock_now_ns() - s->begun_ns;
    if (rc < 0) {
        give_up(s, &err);
        return;
    }
    for (size_t i = 0; i < s->n; i++)
        s->puts[i] = uplink_put(s->w->uplink, s->w, s->outs[i].path, s->outs[i].sha256,
                                s->outs[i].size, false);
    s->stage = SENDS;
}

static void report(struct snapshots *s)
{
    Skerry__V1__ReportRequest r = SKERRY__V1__REPORT_REQUEST__INIT;
    Skerry__V1__Snapshot saved = SKERRY__V1__SNAPSHOT__INIT;
    Skerry__V1__Contribution parts[MODEL_LEVELS_MAX], *list[MODEL_LEVELS_MAX];
    Skerry__V1__Blob blobs[MODEL_LEVELS_MAX];
    for (size_t i = 0; i < s->n; i++) {
        skerry__v1__blob__init(&blobs[i]);
        blobs[i].sha256 = (ProtobufCBinaryData){32, s->outs[i].sha256};
        blobs[i].size = s->outs[i].size;
        skerry__v1__contribution__init(&parts[i]);
        parts[i].module_id = s->outs[i].module_id;
        parts[i].base_version = s->outs[i].base_version;
        parts[i].blob = &blobs[i];
        list[i] = &parts[i];
    }
    saved.modules = list;
    saved.n_modules = s->n;
    saved.steps = s->at.steps;
    saved.samples = s->at.samples;
    saved.position = s->at.position;
    saved.loss_sum = s->at.loss_sum;
    saved.loss_first = s->at.loss_first;
    saved.loss_last = s->at.loss_last;
    saved.skipped = s->at.skipped;
    saved.skipped_row = s->at.skipped_row;
    saved.seconds = (float)s->at.seconds;
    saved.used = s->opt.window ? s->at.position - s->at.position % s->opt.window : 0;
    r.task_id = s->w->task->id;
    r.attempt = s->w->task->attempt;
    r.snapshot = true;
    r.saved = &saved;
    s->call = uplink_call(s->w->uplink, s->w, SKERRY__V1__METHOD__METHOD_REPORT, &r.base,
                          &skerry__v1__report_reply__descriptor, CALL_MS);
    s->stage = REPORTS;
}

static bool all_sent(const struct snapshots *s)
{
    bool done = true;
    for (size_t i = 0; i < s->n; i++)
        done &= uplink_done(s->puts[i]);
    return done;
}

/* The running stage is over: takes its result, and begins the next one. */
static int next(struct snapshots *s, struct err *err)
{
    int rc = 0;
    for (size_t i = 0; i < s->n && rc == 0 && s->stage == SENDS; i++)
        rc = uplink_wait_saving(s->puts[i], err);
    if (rc == 0 && s->stage == SENDS) {
        report(s);
        return 0;
    }
    if (rc == 0)
        rc = uplink_wait_saving(s->call, err);
    if (rc < 0)
        return rc;
    const Skerry__V1__ReportReply *reply =
        (const Skerry__V1__ReportReply *)(const void *)uplink_reply(s->call);
    if (!reply->accepted)
        return err_set(err, -ERR_STALE, "%.200s", reply->reason);
    s->saved = s->at.steps;
    s->trouble.hash = 0;
    s->sent_ns = clock_now_ns() - s->begun_ns;
    if (s->opt.took_ns)
        atomic_store(s->opt.took_ns, s->apart_ns + s->sent_ns);
    log_debug("snapshot", "task=%" PRIu64 " is saved at step %u", s->w->task->id, s->saved);
    drop(s);
    return 0;
}

/* Goes to the next stage if this one is over; with `wait` waits for the end of all. */
static void pump(struct snapshots *s, bool wait)
{
    struct err err = {0};
    while (s->stage != IDLE && (wait || (s->stage == SENDS ? all_sent(s) : uplink_done(s->call))))
        if (next(s, &err) < 0)
            give_up(s, &err);
}

void snapshots_travel(struct snapshots *s)
{
    if (s != NULL)
        pump(s, false);
}

static bool is_due(const struct snapshots *s, const struct replica_cursor *at)
{
    const uint64_t pause = snapshots_pause_ns(s->t->snapshot_ms, s->made_ns, s->sent_ns);
    return clock_now_ns() - s->begun_ns >= pause &&
           snapshots_pays(left_ns(s, at), pause, s->sent_ns);
}

void snapshots_go_on(struct snapshots *s)
{
    if (s != NULL)
        s->seen_ns = clock_now_ns();
}

void snapshots_step(struct snapshots *s, const struct replica_cursor *at)
{
    if (s == NULL)
        return;
    const uint64_t now = clock_now_ns(), apart = s->seen_ns ? now - s->seen_ns : 0;
    s->apart_ns = apart > s->apart_ns ? apart : s->apart_ns;
    pump(s, false);
    if (s->stage == IDLE && at->steps > s->saved && (atomic_load(&s->w->save) || is_due(s, at)))
        begin(s, at);
    snapshots_go_on(s);
}

void snapshots_last(struct snapshots *s, const struct replica_cursor *at)
{
    if (s == NULL)
        return;
    pump(s, true);
    if (at->steps > s->saved && atomic_load(&s->w->stop) == WORK_SAVING) {
        progress_activity(&s->w->progress, "sending a snapshot for the next worker");
        begin(s, at);
        pump(s, true);
    }
    log_info("snapshot", "task=%" PRIu64 " is saved at step %u of %u steps made", s->w->task->id,
             s->saved, at->steps);
}

/* ---- going on ---- */

int snapshot_check(const Skerry__V1__Task *task, struct err *err)
{
    const Skerry__V1__Snapshot *s = task->train->resume;
    if (s->n_modules != task->n_modules || s->n_modules > MODEL_LEVELS_MAX)
        return err_set(err, -ERR_FORMAT, "task: train.resume has %zu modules, expected %zu",
                       s->n_modules, task->n_modules);
    if (s->steps == 0 || s->skipped > s->steps || s->skipped_row > s->skipped || s->samples == 0 ||
        !isfinite(s->loss_sum) || !(s->seconds >= 0 && s->seconds < SECONDS_MAX) ||
        (task->train->steps > 0 && s->steps > task->train->steps))
        return err_set(err, -ERR_FORMAT, "task: train.resume is at step %u of %u after %g s",
                       s->steps, task->train->steps, (double)s->seconds);
    for (size_t i = 0; i < s->n_modules; i++) {
        const Skerry__V1__Contribution *c = s->modules[i];
        const Skerry__V1__ModuleRef *m = task->modules[i];
        if (c->module_id != m->module_id || c->base_version != m->version)
            return err_set(err, -ERR_FORMAT,
                           "task: train.resume.modules[%zu] is of version %" PRIu64
                           " of module %" PRIu64 ", not of what the phase begins with",
                           i, c->base_version, c->module_id);
        if (!c->blob)
            return err_set(err, -ERR_FORMAT, "task: train.resume.modules[%zu] has no blob", i);
        int rc = task_check_blob(c->blob, "train.resume", err);
        if (rc < 0)
            return rc;
    }
    return 0;
}

int snapshot_need(struct work *w, struct err *err)
{
    const Skerry__V1__Snapshot *s = w->task->train->resume;
    int rc = 0;
    for (size_t i = 0; s != NULL && i < s->n_modules && rc == 0; i++)
        rc = work_need_blob(w, s->modules[i]->blob, "the phase's snapshot", err);
    return rc;
}

struct replica_cursor snapshot_cursor(const struct work *w)
{
    const Skerry__V1__Snapshot *s = w->task->train->resume;
    return (struct replica_cursor){.steps = s->steps,
                                   .samples = s->samples,
                                   .position = s->position,
                                   .loss_sum = s->loss_sum,
                                   .loss_first = s->loss_first,
                                   .loss_last = s->loss_last,
                                   .seconds = (double)s->seconds,
                                   .skipped = s->skipped,
                                   .skipped_row = s->skipped_row};
}

int snapshot_module(struct work *w, size_t i, const char *out_path, struct err *err)
{
    const Skerry__V1__ModuleRef *ref = w->task->modules[i];
    char base[CACHE_PATH_MAX], diff[CACHE_PATH_MAX];
    work_blob_path(w, ref->sha256.data, base);
    work_blob_path(w, w->task->train->resume->modules[i]->blob->sha256.data, diff);
    return version_apply_contribution(base, diff, ref->module_id, ref->version, out_path, err);
}

int snapshot_load(struct work *w, const struct model *m, float *flat, struct replica_cursor *ret,
                  struct err *err)
{
    char made[CACHE_PATH_MAX];
    const char *list[1] = {made};
    int rc = 0;
    work_temp_path(w, "resumed", made);
    for (size_t i = 0; i < w->task->train->resume->n_modules && rc == 0; i++) {
        rc = snapshot_module(w, i, made, err);
        if (rc == 0)
            rc = model_load(m, (int)i, list, 1, flat, err);
    }
    if (rc == 0)
        *ret = snapshot_cursor(w);
    return rc;
}
