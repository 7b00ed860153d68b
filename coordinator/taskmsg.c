#include "coordinator/taskmsg.h"

#include "common/base/err.h"
#include "common/net/blob_http.h"
#include "coordinator/core.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DELTAS_MAX 16 /* as ModuleRef.deltas */

struct building {
    struct coordinator *co;
    const struct job *job;
    const struct task *task;
    const struct worker *worker;
    struct pbmem *mem;
    bool failed; /* the arena is used up */
};

static void *need(struct building *b, size_t size)
{
    static uint64_t nowhere[512]; /* lets the builders go on; the result is thrown away */
    ProtobufCAllocator *a = pbmem_allocator(b->mem);
    void *p = a->alloc(a->allocator_data, size ? size : 1);
    if (p != NULL)
        return p;
    b->failed = true;
    return size <= sizeof(nowhere) ? nowhere : NULL;
}

static Skerry__V1__Blob *blob(struct building *b, const struct blob_ref *ref)
{
    Skerry__V1__Blob *m = need(b, sizeof(*m));
    char path[TICKET_PATH_MAX];
    struct blob_id id;
    memcpy(id.sha256, ref->sha256, 32);
    blob_http_ticket(b->co->blob_http, TICKET_GET, &id, ref->size, CORE_TICKET_S, path);
    size_t len = strlen(b->co->http_url) + strlen(path) + 1;
    char *url = need(b, len);
    if (b->failed)
        return m;
    (void)snprintf(url, len, "%s%s", b->co->http_url, path);
    skerry__v1__blob__init(m);
    m->sha256.data = (uint8_t *)ref->sha256;
    m->sha256.len = 32;
    m->size = ref->size;
    m->url = url;
    return m;
}

/* ---- modules ------------------------------------------------------------- */

/* The version from which the worker can come by deltas that are all kept. */
static bool held_base(const struct building *b, const struct module_rec *m, uint64_t version,
                      uint64_t *ret)
{
    bool found = false;
    for (unsigned i = 0; i < b->worker->n_held; i++) {
        uint64_t v = b->worker->held[i].version;
        if (b->worker->held[i].module_id != m->id || v > version || (found && v <= *ret) ||
            version - v > DELTAS_MAX)
            continue;
        bool all = true;
        for (uint64_t d = v + 1; d <= version && all; d++) {
            const struct version_rec *r = module_version(m, d);
            all = r != NULL && blob_ref_is_set(&r->delta);
        }
        if (all) {
            *ret = v;
            found = true;
        }
    }
    return found;
}

static void add_deltas(struct building *b, const struct module_rec *m, Skerry__V1__ModuleRef *ref,
                       uint64_t from, uint64_t to)
{
    ref->n_deltas = (size_t)(to - from);
    ref->deltas = need(b, ref->n_deltas * sizeof(*ref->deltas));
    for (uint64_t d = from + 1; d <= to && !b->failed; d++) {
        Skerry__V1__Delta *delta = need(b, sizeof(*delta));
        if (b->failed)
            return;
        skerry__v1__delta__init(delta);
        delta->from = d - 1;
        delta->to = d;
        delta->blob = blob(b, &module_version(m, d)->delta);
        ref->deltas[d - from - 1] = delta;
    }
}

/* Whole EMA weights for drawing; version 0 has none and is its own mean. */
static void add_weights(struct building *b, const struct module_rec *m, const struct version_rec *v,
                        Skerry__V1__ModuleRef *ref)
{
    uint64_t base = 0;
    bool ema = b->task->kind != TASK_TRAIN && b->task->draw.ema && blob_ref_is_set(&v->ema);
    const struct blob_ref *full = ema ? &v->ema : &v->full;
    ref->version = v->version;
    ref->sha256.data = (uint8_t *)full->sha256;
    ref->sha256.len = 32;
    if (!ema && held_base(b, m, v->version, &base) && base < v->version)
        add_deltas(b, m, ref, base, v->version);
    else
        ref->full = blob(b, full);
}

/* Phases begin at the version of their round; evaluations of one that is gone take the
 * newest.  Where versions are no rounds, or come within them, all begin at the newest. */
static const struct version_rec *wanted_version(const struct job *j, const struct task *t,
                                                const struct module_rec *m)
{
    bool train = t->kind == TASK_TRAIN;
    if (j->spec.outer.async || (train && rounds_stream(j)))
        return module_version(m, m->version);
    const struct version_rec *v = module_version(m, t->round);
    return v != NULL || train ? v : module_version(m, m->version);
}

static Skerry__V1__ModuleRef *module_ref(struct building *b, const struct module_rec *m)
{
    Skerry__V1__ModuleRef *ref = need(b, sizeof(*ref));
    if (b->failed)
        return ref;
    skerry__v1__module_ref__init(ref);
    ref->module_id = m->id;
    ref->level = m->level;
    ref->index = m->index;
    if (b->task->kind == TASK_INIT)
        return ref;
    const struct version_rec *v = wanted_version(b->job, b->task, m);
    if (v == NULL)
        b->failed = true;
    else
        add_weights(b, m, v, ref);
    return ref;
}

static void add_modules(struct building *b, Skerry__V1__Task *msg)
{
    const struct composition *c = &b->job->comp;
    bool init = b->task->kind == TASK_INIT;
    msg->n_modules = init ? c->n_modules : composition_levels(c, b->task->path);
    msg->modules = need(b, msg->n_modules * sizeof(*msg->modules));
    for (uint32_t i = 0; i < msg->n_modules && !b->failed; i++) {
        uint32_t n = init ? i : c->paths[b->task->path].modules[i];
        msg->modules[i] = module_ref(b, &b->job->modules[n]);
    }
}

/* ---- kinds --------------------------------------------------------------- */

static Skerry__V1__Range **ranges(struct building *b, size_t *ret_n)
{
    const struct task *t = b->task;
    Skerry__V1__Range **list = need(b, t->n_ranges * sizeof(*list));
    *ret_n = t->n_ranges;
    for (size_t i = 0; i < t->n_ranges && !b->failed; i++) {
        Skerry__V1__Range *r = need(b, sizeof(*r));
        if (b->failed)
            break;
        skerry__v1__range__init(r);
        r->start = t->ranges[i].start;
        r->count = t->ranges[i].count;
        /* A shard that repeats shares one ticket. */
        for (size_t k = i; k-- > 0 && i - k < 8;)
            if (t->ranges[k].shard == t->ranges[i].shard)
                r->shard = list[k]->shard;
        if (r->shard == NULL)
            r->shard = blob(b, &b->job->shards[t->ranges[i].shard].blob);
        list[i] = r;
    }
    return list;
}

static uint64_t total_steps(const struct job *j, const struct task *t)
{
    uint64_t rounds = (uint64_t)j->spec.outer.rounds, left = rounds - t->round;
    if (j->spec.outer.async) { /* its share of the phases to come */
        uint64_t k = j->comp.paths[t->path].replicas;
        left = (rounds * k - j->paths[t->path].phases + k - 1) / k;
    } else if (j->spec.outer.steps > 0) {
        return rounds * (uint64_t)j->spec.outer.steps;
    }
    if (j->spec.outer.steps > 0)
        return t->first_step + left * (uint64_t)j->spec.outer.steps;
    /* Bounded by time: as many in each phase to come as the last one would have done in full. */
    uint64_t phase =
        j->paths[t->path].replicas[t->replica].samples_last / (uint64_t)j->spec.train.batch;
    return phase > 0 ? t->first_step + left * phase : 0;
}

static int by_step(const void *a, const void *b)
{
    const Skerry__V1__Fragment *const *x = a, *const *y = b;
    return (*x)->step != (*y)->step ? ((*x)->step > (*y)->step ? 1 : -1)
                                    : ((*x)->level > (*y)->level) - ((*x)->level < (*y)->level);
}

/* Fragment f of F contributes after ceil((f+1)(H-delay)/F) of the H steps, so that
 * what is sent is spread evenly over the phase and the last merge is at its end. */
static void add_fragments(struct building *b, Skerry__V1__TrainTask *m)
{
    const struct job *j = b->job;
    const struct composition_path *path = &j->comp.paths[b->task->path];
    const struct composition_network *n = &j->comp.networks[path->network];
    uint32_t delay = (uint32_t)j->spec.outer.delay, f = j->comp.fragments;
    m->delay = delay < m->steps ? delay : m->steps - 1;
    m->mix = (float)j->spec.outer.mix;
    m->n_fragments = n->n_levels;
    m->fragments = need(b, n->n_levels * sizeof(*m->fragments));
    for (uint32_t l = 0; l < n->n_levels && !b->failed; l++) {
        const struct module_rec *module = &j->modules[path->modules[l]];
        const struct contribution *c = task_contribution(b->task, module->id, b->task->round);
        Skerry__V1__Fragment *part = need(b, sizeof(*part));
        if (b->failed)
            return;
        skerry__v1__fragment__init(part);
        part->level = l;
        part->step = ((n->levels[l].fragment + 1) * (m->steps - m->delay) + f - 1) / f;
        part->done = module->version > b->task->round || (c != NULL && !c->refused);
        m->fragments[l] = part;
    }
    if (!b->failed)
        qsort(m->fragments, m->n_fragments, sizeof(*m->fragments), by_step);
}

static void add_train(struct building *b, Skerry__V1__Task *msg)
{
    const struct task *t = b->task;
    Skerry__V1__TrainTask *m = need(b, sizeof(*m));
    if (b->failed)
        return;
    skerry__v1__train_task__init(m);
    m->round = t->round;
    m->path = t->path;
    m->replica = t->replica;
    m->steps = (uint32_t)b->job->spec.outer.steps;
    m->seconds = (uint32_t)b->job->spec.outer.seconds;
    uint64_t samples = 0;
    for (size_t i = 0; i < t->n_ranges; i++)
        samples += t->ranges[i].count;
    uint64_t fit = samples / (uint64_t)b->job->spec.train.batch;
    if (m->steps > fit) /* a tiny dataset does not fill the phase */
        m->steps = fit > 0 ? (uint32_t)fit : 1;
    m->first_step = t->first_step;
    m->total_steps = total_steps(b->job, t);
    m->ranges = ranges(b, &m->n_ranges);
    m->epoch = t->n_ranges ? t->ranges[0].epoch : 0;
    if (rounds_stream(b->job))
        add_fragments(b, m);
    msg->train = m;
}

static void add_eval(struct building *b, Skerry__V1__Task *msg)
{
    Skerry__V1__EvalTask *m = need(b, sizeof(*m));
    if (b->failed)
        return;
    skerry__v1__eval_task__init(m);
    m->path = b->task->path;
    m->version_round = b->task->round;
    m->samples = b->task->draw.count;
    m->ema = b->task->draw.ema;
    m->ranges = ranges(b, &m->n_ranges);
    msg->eval = m;
}

static void add_sample(struct building *b, Skerry__V1__Task *msg)
{
    const struct task_draw *d = &b->task->draw;
    Skerry__V1__SampleTask *m = need(b, sizeof(*m));
    if (b->failed)
        return;
    skerry__v1__sample_task__init(m);
    m->path = b->task->path;
    m->steps = d->steps;
    m->heun = d->heun;
    m->guidance = d->guidance;
    m->seed = d->seed;
    m->n_labels = d->count;
    m->labels = d->labels;
    m->columns = d->columns < d->count ? d->columns : d->count;
    m->ema = d->ema;
    msg->sample = m;
}

static void add_ingest(struct building *b, Skerry__V1__Task *msg)
{
    Skerry__V1__IngestTask *m = need(b, sizeof(*m));
    if (b->failed)
        return;
    skerry__v1__ingest_task__init(m);
    m->url = b->job->spec.data.url.items[b->task->round];
    msg->ingest = m;
}

int taskmsg_build(struct coordinator *co, const struct job *j, const struct task *t,
                  const struct worker *w, struct pbmem *mem, Skerry__V1__Task **ret,
                  struct err *err)
{
    struct building b = {co, j, t, w, mem, false};
    Skerry__V1__Task *m = need(&b, sizeof(*m));
    if (b.failed)
        return err_set(err, -ENOMEM, "no memory for a task");
    skerry__v1__task__init(m);
    m->id = t->id;
    m->attempt = t->attempt;
    m->kind = (Skerry__V1__TaskKind)t->kind;
    m->job_id = j->id;
    m->lease_ms = co->opt.lease_ms;
    m->spec = j->yaml;
    m->classes = j->classes;
    m->n_classes = j->n_classes;
    if (t->kind != TASK_INGEST)
        add_modules(&b, m);
    if (t->kind == TASK_TRAIN)
        add_train(&b, m);
    else if (t->kind == TASK_EVAL)
        add_eval(&b, m);
    else if (t->kind == TASK_SAMPLE)
        add_sample(&b, m);
    else if (t->kind == TASK_INGEST)
        add_ingest(&b, m);
    if (b.failed)
        return err_set(err, -ERR_LIMIT,
                       "task %llu does not fit a message, or its module versions "
                       "are gone",
                       (unsigned long long)t->id);
    *ret = m;
    return 0;
}
