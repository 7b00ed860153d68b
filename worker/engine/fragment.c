#include "worker/engine/fragment.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "worker/engine/residual.h"
#include "worker/order/modules.h"
#include "worker/order/task_check.h"
#include "worker/link/uplink.h"
#include "worker/order/work.h"

#define CALL_MS 30000
#define ASK_WAIT_MS 20000
#define ASK_DEADLINE_MS (ASK_WAIT_MS + 10000)
#define ASK_AGAIN_NS CLOCK_NS_PER_S /* if nobody works on the version */
#define BLOBS_MAX 17                /* an older version, its deltas */

enum stage {
    PART_TRAINS,  /* not contributed yet */
    PART_SENDS,   /* the blob is uploaded */
    PART_REPORTS, /* the coordinator is told */
    PART_ASKS,    /* asks for the next version */
    PART_FETCHES, /* fetches the blobs of which it is made */
    PART_READY,   /* ready to be merged */
    PART_MERGED,
};

/* One level. */
struct part {
    const Skerry__V1__ModuleRef *base;
    uint32_t step, merge;
    enum stage stage;
    bool made, told; /* the contribution exists; the coordinator has it */
    bool whole;      /* deltas failed: fetch the full version */
    bool failed;     /* its report failed: it goes with the report at the end */
    bool later;      /* nobody works on the version: do not wait for it */
    uint64_t asked_ns;
    struct work_output out;
    uint32_t steps;         /* steps of the contribution, whenever its report leaves */
    struct uplink_job *job; /* the job for which the stage waits; from ASKS on with its answer */
    struct uplink_job *ask; /* REPORTS: the request for the next version, sent after the report */
    struct uplink_job *blobs[BLOBS_MAX];
    size_t n_blobs;
};

struct fragments {
    struct fragments_options opt;
    const Skerry__V1__TrainTask *t;
    struct part *parts; /* by level */
    uint32_t n;
    uint64_t samples; /* so far */
    uint32_t steps;
    uint64_t waited_ns;
};

/* ---- life ---- */

struct fragments *fragments_open(const struct fragments_options *opt)
{
    const Skerry__V1__Task *task = opt->w->task;
    const Skerry__V1__TrainTask *t = task->train;
    struct fragments *f = mem_alloc(sizeof(*f));
    f->opt = *opt;
    f->t = t;
    f->n = (uint32_t)task->n_modules;
    f->parts = mem_alloc_array(f->n, sizeof(*f->parts));
    for (size_t i = 0; i < t->n_fragments; i++) { /* each level once: task_check.h */
        uint32_t level = t->fragments[i]->level;
        struct part *p = &f->parts[level];
        p->base = task->modules[level];
        p->step = t->fragments[i]->step;
        p->merge = p->step + t->delay;
        p->told = t->fragments[i]->done;
        p->stage = p->told ? PART_ASKS : PART_TRAINS;
    }
    return f;
}

static void drop_blobs(struct part *p)
{
    for (size_t i = 0; i < p->n_blobs; i++)
        uplink_free(p->blobs[i]);
    p->n_blobs = 0;
}

static void drop_jobs(struct part *p)
{
    uplink_free(p->job);
    uplink_free(p->ask);
    p->job = p->ask = NULL;
    drop_blobs(p);
}

void fragments_close(struct fragments *f)
{
    if (!f)
        return;
    for (uint32_t l = 0; l < f->n; l++)
        drop_jobs(&f->parts[l]);
    mem_free(f->parts);
    mem_free(f);
}

uint64_t fragments_waited_ms(const struct fragments *f)
{
    return f->waited_ns / 1000000;
}

/* ---- weights ---- */

static int merge_file(struct fragments *f, uint32_t level, const uint8_t sha256[32], double mix,
                      struct err *err)
{
    char path[CACHE_PATH_MAX];
    work_blob_path(f->opt.w, sha256, path);
    return f->opt.merge(f->opt.arg, level, path, mix, err);
}

int fragments_load(struct fragments *f, bool own, struct err *err)
{
    int rc = 0;
    for (uint32_t l = 0; l < f->n && rc == 0; l++) {
        const Skerry__V1__ModuleRef *ref = f->parts[l].base;
        if (own && f->opt.met[l] != ref->version) {
            bool next = f->opt.met[l] + 1 == ref->version;
            rc = merge_file(f, l, ref->sha256.data, next ? (double)f->t->mix : 0, err);
        }
        f->opt.met[l] = ref->version;
    }
    return rc;
}

/* ---- contributing ---- */

static int make(struct fragments *f, uint32_t level, struct err *err)
{
    struct part *p = &f->parts[level];
    const int rc = f->opt.contribute(f->opt.arg, p->base, f->samples, &p->out, err);
    p->out.samples = f->samples;
    p->made = rc == 0;
    p->steps = f->steps;
    return rc;
}

static void report(struct fragments *f, struct part *p)
{
    Skerry__V1__Blob blob = SKERRY__V1__BLOB__INIT;
    Skerry__V1__Contribution c = SKERRY__V1__CONTRIBUTION__INIT, *list[1] = {&c};
    Skerry__V1__ReportRequest r = SKERRY__V1__REPORT_REQUEST__INIT;
    blob.sha256 = (ProtobufCBinaryData){32, p->out.sha256};
    blob.size = p->out.size;
    c.module_id = p->out.module_id;
    c.base_version = p->out.base_version;
    c.blob = &blob;
    r.task_id = f->opt.w->task->id;
    r.attempt = f->opt.w->task->attempt;
    r.snapshot = true;
    r.contributions = list;
    r.n_contributions = 1;
    r.steps = p->steps;
    r.samples = c.samples = p->out.samples;
    r.waited_ms = fragments_waited_ms(f);
    p->job = uplink_call(f->opt.w->uplink, f->opt.w, SKERRY__V1__METHOD__METHOD_REPORT, &r.base,
                         &skerry__v1__report_reply__descriptor, CALL_MS);
    p->stage = PART_REPORTS;
}

static int begin_sending(struct fragments *f, uint32_t level, struct err *err)
{
    struct part *p = &f->parts[level];
    int rc = make(f, level, err);
    if (rc < 0)
        return rc;
    p->job = uplink_put(f->opt.w->uplink, f->opt.w, p->out.path, p->out.sha256, p->out.size, true);
    p->stage = PART_SENDS;
    return 0;
}

/* ---- the next version ---- */

static struct uplink_job *ask(struct fragments *f, struct part *p)
{
    Skerry__V1__VersionRequest r = SKERRY__V1__VERSION_REQUEST__INIT;
    r.task_id = f->opt.w->task->id;
    r.attempt = f->opt.w->task->attempt;
    r.module_id = p->base->module_id;
    r.version = (uint64_t)f->t->round + 1;
    r.held = p->whole ? NO_VERSION : p->base->version;
    r.wait_ms = ASK_WAIT_MS;
    p->asked_ns = clock_now_ns();
    return uplink_call(f->opt.w->uplink, f->opt.w, SKERRY__V1__METHOD__METHOD_VERSION, &r.base,
                       &skerry__v1__version_reply__descriptor, ASK_DEADLINE_MS);
}

static const Skerry__V1__ModuleRef *answer_of(const struct part *p)
{
    const ProtobufCMessage *m = p->job ? uplink_reply(p->job) : NULL;
    return m ? ((const Skerry__V1__VersionReply *)(const void *)m)->module : NULL;
}

struct fetching {
    struct fragments *f;
    struct part *p;
};

static int fetch_blob(void *arg, const uint8_t sha256[32], uint64_t size, const char *url,
                      const char *what, struct err *err)
{
    struct fetching *g = arg;
    if (g->p->n_blobs == BLOBS_MAX)
        return err_set(err, -ERR_LIMIT, "a version is made of more than %d blobs", BLOBS_MAX);
    g->p->blobs[g->p->n_blobs++] =
        uplink_get(g->f->opt.w->uplink, g->f->opt.w, sha256, size, url, what, true);
    return 0;
}

static int begin_fetching(struct fragments *f, struct part *p, struct err *err)
{
    struct fetching g = {f, p};
    p->stage = PART_FETCHES;
    return modules_needs(f->opt.modules, answer_of(p), p->whole, fetch_blob, &g, err);
}

/* ---- from stage to stage ---- */

static void start_over(struct part *p, bool whole)
{
    drop_jobs(p);
    p->whole = whole;
    p->stage = PART_ASKS;
}

/* The report's answer.  What was not taken is no matter of this phase: the coordinator
 * says by and by whether the task is still ours. */
static void on_reported(const struct fragments *f, struct part *p)
{
    const Skerry__V1__ReportReply *r =
        (const Skerry__V1__ReportReply *)(const void *)uplink_reply(p->job);
    const struct residual_word word = {f->opt.w->task->id, p->base->module_id, RESIDUAL_SENT, 0};
    struct err err = {0};
    p->told = r->accepted;
    p->failed = !r->accepted;
    if (!r->accepted)
        log_warn("fragment", "the contribution to module %" PRIu64 " was not taken: %s",
                 p->base->module_id, r->reason);
    else if (residual_hear(f->opt.state_dir, &word, &err) < 0)
        log_warn("fragment", "error feedback of module %" PRIu64 ": %s", p->base->module_id,
                 err.msg);
}

static int on_asked(struct fragments *f, struct part *p, struct err *err)
{
    const Skerry__V1__VersionReply *r =
        (const Skerry__V1__VersionReply *)(const void *)uplink_reply(p->job);
    if (r->module) {
        int rc = task_check_module(r->module, err);
        if (rc == 0 &&
            (r->module->module_id != p->base->module_id || r->module->version <= f->t->round))
            rc = err_set(err, -ERR_FORMAT, "version %" PRIu64 " of module %" PRIu64 " came",
                         r->module->version, r->module->module_id);
        return rc < 0 ? rc : begin_fetching(f, p, err);
    }
    p->later = r->later;
    start_over(p, p->whole);
    return 0;
}

static bool blobs_done(const struct part *p)
{
    for (size_t i = 0; i < p->n_blobs; i++)
        if (!uplink_done(p->blobs[i]))
            return false;
    return true;
}

static int on_fetched(struct part *p, struct err *err)
{
    int rc = 0;
    for (size_t i = 0; i < p->n_blobs && rc == 0; i++)
        rc = uplink_wait(p->blobs[i], err);
    if (rc == 0)
        p->stage = PART_READY;
    return rc;
}

/* The stage is over; rc is its job's. */
static int next_stage(struct fragments *f, struct part *p, struct err *err)
{
    int rc = p->job ? uplink_wait(p->job, err) : 0;
    if (rc < 0)
        return rc;
    switch (p->stage) {
    case PART_SENDS:
        drop_jobs(p);
        report(f, p);
        p->ask = ask(f, p);
        return 0;
    case PART_REPORTS:
        on_reported(f, p);
        uplink_free(p->job);
        p->job = p->ask;
        p->ask = NULL;
        p->stage = PART_ASKS;
        return 0;
    case PART_ASKS:
        return on_asked(f, p, err);
    case PART_FETCHES:
        return on_fetched(p, err);
    default:
        return 0;
    }
}

/* Advances a part as far as possible without waiting.  Trouble on the line puts a part
 * back, and does not end the phase. */
static int advance(struct fragments *f, struct part *p, struct err *err)
{
    while (p->stage > PART_TRAINS && p->stage < PART_READY) {
        if (p->stage == PART_ASKS && !p->job) {
            if (p->later && clock_now_ns() - p->asked_ns < ASK_AGAIN_NS)
                return 0;
            p->job = ask(f, p);
        }
        if (!(p->stage == PART_FETCHES ? blobs_done(p) : uplink_done(p->job)))
            return 0;
        struct err why = {0};
        int rc = next_stage(f, p, &why);
        if (rc == -ERR_CANCELLED)
            return err_set(err, rc, "%s", why.msg);
        if (rc < 0) {
            log_warn("fragment", "module %" PRIu64 ": %s", p->base->module_id, why.msg);
            p->failed |= !p->told;
            start_over(p, p->stage == PART_FETCHES);
            p->later = true; /* it will be asked for again */
            p->asked_ns = clock_now_ns();
        }
    }
    return 0;
}

/* Waits until the version is there, or cannot be had. */
static int wait_for(struct fragments *f, struct part *p, struct err *err)
{
    uint64_t begun = clock_now_ns();
    int rc = advance(f, p, err);
    while (rc == 0 && p->stage < PART_READY && !p->later) {
        struct uplink_job *job = p->job;
        for (size_t i = 0; p->stage == PART_FETCHES && i < p->n_blobs; i++)
            if (!uplink_done(p->blobs[i]))
                job = p->blobs[i];
        progress_activity(&f->opt.w->progress, "waiting for version %u of module %" PRIu64,
                          f->t->round + 1, p->base->module_id);
        struct err ignored = {0}; /* advance() sees it again */
        if (uplink_wait(job, &ignored) == -ERR_CANCELLED)
            rc = err_set(err, -ERR_CANCELLED, "%s", ignored.msg);
        else
            rc = advance(f, p, err);
    }
    f->waited_ns += clock_now_ns() - begun;
    progress_activity(&f->opt.w->progress, "training");
    return rc;
}

static int merge(struct fragments *f, uint32_t level, struct err *err)
{
    struct part *p = &f->parts[level];
    const Skerry__V1__ModuleRef *ref = answer_of(p);
    int rc = modules_make(f->opt.modules, f->opt.w, ref, err);
    if (rc == -ERR_HASH && !p->whole) {
        log_warn("fragment", "%s; taking the whole version", err->msg);
        start_over(p, true);
        return 0;
    }
    if (rc == 0)
        rc = merge_file(f, level, ref->sha256.data, (double)f->t->mix, err);
    if (rc < 0)
        return rc;
    f->opt.met[level] = ref->version;
    drop_jobs(p);
    p->stage = PART_MERGED;
    return 0;
}

static int step_part(struct fragments *f, uint32_t level, struct err *err)
{
    struct part *p = &f->parts[level];
    bool due = f->steps >= p->merge;
    bool waits = f->steps < f->t->steps && !p->failed; /* else fragments_finish() does it */
    if (f->opt.met[level] > f->t->round)
        p->stage = PART_MERGED; /* it began with the new version */
    int rc = advance(f, p, err);
    while (rc == 0 && due && p->stage > PART_TRAINS && p->stage < PART_MERGED) {
        if (p->stage < PART_READY && waits && !p->later)
            rc = wait_for(f, p, err);
        if (rc < 0 || p->stage < PART_READY)
            break;
        rc = merge(f, level, err);
    }
    return rc;
}

int fragments_step(struct fragments *f, uint32_t steps, uint64_t samples, struct err *err)
{
    int rc = 0;
    f->steps = steps;
    f->samples = samples;
    /* All due contributions leave before any wait. */
    for (uint32_t l = 0; l < f->n && rc == 0; l++)
        if (f->parts[l].stage == PART_TRAINS && steps >= f->parts[l].step && steps < f->t->steps)
            rc = begin_sending(f, l, err);
    for (uint32_t l = 0; l < f->n && rc == 0; l++)
        rc = step_part(f, l, err);
    return rc;
}

uint32_t fragments_next(const struct fragments *f)
{
    uint32_t next = 0;
    for (uint32_t l = 0; l < f->n; l++) {
        const struct part *p = &f->parts[l];
        const uint32_t due = p->stage == PART_TRAINS ? p->step : p->merge;
        const uint32_t at = due > f->steps ? due : f->steps + 1;
        if (p->stage < PART_MERGED && at < f->t->steps && (next == 0 || at < next))
            next = at;
    }
    return next;
}

int fragments_travel(struct fragments *f, uint32_t steps, struct err *err)
{
    int rc = 0;
    f->steps = steps;
    for (uint32_t l = 0; l < f->n && rc == 0; l++)
        rc = advance(f, &f->parts[l], err);
    return rc;
}

int fragments_finish(struct fragments *f, uint64_t samples, struct err *err)
{
    int rc = 0;
    f->samples = samples;
    for (uint32_t l = 0; l < f->n && rc == 0; l++) {
        struct part *p = &f->parts[l];
        if (p->stage == PART_TRAINS)
            rc = make(f, l, err);
        struct work_output *o = rc == 0 && p->made && !p->told ? work_output(f->opt.w) : NULL;
        if (o)
            *o = p->out;
        else if (rc == 0 && p->made && !p->told)
            rc = err_set(err, -ENOMEM, "out of memory for %u contributions", f->n);
        drop_jobs(p);
    }
    return rc;
}
