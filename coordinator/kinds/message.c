#include "coordinator/kinds/message.h"

#include "common/net/http/blob_http.h"
#include "coordinator/state/blobs.h"
#include "coordinator/work/ahead.h"
#include "coordinator/work/query.h"

void *message_need(struct message *b, size_t size)
{
    static uint64_t nowhere[512]; /* lets the builders go on; the message is thrown away */
    ProtobufCAllocator *a = pbmem_allocator(b->mem);
    void *p = a->alloc(a->allocator_data, size ? size : 1);
    if (p != NULL)
        return p;
    b->failed = true;
    return size <= sizeof(nowhere) ? nowhere : NULL;
}

void *message_new(struct message *b, const ProtobufCMessageDescriptor *d)
{
    void *m = message_need(b, d->sizeof_message);
    d->message_init(m);
    return m;
}

Skerry__V1__Blob *message_blob(struct message *b, const struct blob_ref *ref)
{
    Skerry__V1__Blob *m = message_need(b, sizeof(*m));
    char path[TICKET_PATH_MAX];
    blob_http_ticket(b->co->blob_http, TICKET_GET, &ref->id, ref->size,
                     access_holder_worker(b->worker->id), path);
    const size_t len = strlen(path) + 1;
    char *url = message_need(b, len);
    if (b->failed)
        return m;
    memcpy(url, path, len);
    skerry__v1__blob__init(m);
    m->sha256.data = (uint8_t *)ref->sha256;
    m->sha256.len = 32;
    m->size = ref->size;
    m->url = url;
    return m;
}

Skerry__V1__Blob *message_blob_or_null(struct message *b, const struct blob_ref *ref)
{
    return blob_ref_is_set(ref) ? message_blob(b, ref) : NULL;
}

/* ---- modules ------------------------------------------------------------- */

static void add_deltas(struct message *b, const struct module_rec *m, Skerry__V1__ModuleRef *ref,
                       uint64_t from, uint64_t to)
{
    ref->n_deltas = (size_t)(to - from);
    ref->deltas = message_need(b, ref->n_deltas * sizeof(*ref->deltas));
    for (uint64_t d = from + 1; d <= to && !b->failed; d++) {
        Skerry__V1__Delta *delta = message_need(b, sizeof(*delta));
        if (b->failed)
            return;
        skerry__v1__delta__init(delta);
        delta->from = d - 1;
        delta->to = d;
        delta->blob = message_blob(b, &module_version(m, d)->delta);
        ref->deltas[d - from - 1] = delta;
    }
}

/* Full EMA weights for drawing; version 0 has none and is its own mean. */
static void add_weights(struct message *b, const struct module_rec *m, const struct version_rec *v,
                        bool mean, Skerry__V1__ModuleRef *ref)
{
    uint64_t base = 0;
    bool ema = mean && blob_ref_is_set(&v->ema);
    const struct blob_ref *full = ema ? &v->ema : &v->full;
    ref->version = v->version;
    ref->sha256.data = (uint8_t *)full->sha256;
    ref->sha256.len = 32;
    if (!ema && ahead_base(b->worker, m, v->version, &base) && base < v->version)
        add_deltas(b, m, ref, base, v->version);
    else
        ref->full = message_blob(b, full);
}

/* Phases begin at the version of their round, and evaluations and samples of a path are of the
 * version that they say; other tasks take the newest where theirs is gone, and so do those of a
 * path's newest version from a module that is too far ahead to keep it.  If versions are no rounds
 * all begin at the newest, and so do phases where versions come within rounds. */
static const struct version_rec *wanted_version(const struct message *b, const struct module_rec *m)
{
    const struct snapshot *s = b->phase ? b->task->train.snapshot : NULL;
    for (size_t i = 0; s != NULL && i < s->n; i++) /* a continued phase began with this */
        if (s->modules[i].module_id == m->id)
            return module_version(m, s->modules[i].base_version);
    if (b->job->spec.outer.async || (b->phase && query_streams(b->job)))
        return module_version(m, m->version);
    const struct version_rec *v = module_version(m, task_round(b->task));
    if (v != NULL && task_drawing(b->task) != NULL && !blob_ema_stays(b->job, m, v->version))
        v = NULL;
    const bool path = task_drawing(b->task) != NULL && !b->task->draw.mixture &&
                      task_round(b->task) < query_path_version(b->job, b->task->path);
    return v != NULL || b->phase || path ? v : module_version(m, m->version);
}

Skerry__V1__ModuleRef *message_bare_module(struct message *b, const struct module_rec *m)
{
    Skerry__V1__ModuleRef *ref = message_need(b, sizeof(*ref));
    if (b->failed)
        return ref;
    skerry__v1__module_ref__init(ref);
    ref->module_id = m->id;
    ref->level = m->level;
    ref->index = m->index;
    return ref;
}

static void add_best(struct message *b, const struct best_module *best, Skerry__V1__ModuleRef *ref)
{
    ref->version = best->version;
    ref->sha256.data = (uint8_t *)best->full.sha256;
    ref->sha256.len = 32;
    ref->full = message_blob(b, &best->full);
}

/* The path's best version where the task wants that; a version that is measured again for it may be
 * kept nowhere else, or be gone from one of its modules. */
static const struct best_module *best_of(const struct message *b, const struct job *j,
                                         uint32_t path)
{
    const struct composition_path *p = &j->comp.paths[path];
    if (b->best || j != b->job)
        return j->paths[path].best;
    if (b->task->kind != TASK_EVAL || b->task->id != j->paths[path].hope.task)
        return NULL;
    for (uint32_t l = 0; l < composition_levels(&j->comp, path); l++)
        if (module_version(&j->modules[p->modules[l]], b->task->draw.version) == NULL)
            return j->paths[path].hope.best;
    return NULL;
}

/* References to the modules of a path, by level; j may be another job than the task's. */
static Skerry__V1__ModuleRef **path_modules(struct message *b, const struct job *j, uint32_t path,
                                            size_t *ret_n)
{
    const struct best_module *best = best_of(b, j, path);
    size_t n = composition_levels(&j->comp, path);
    Skerry__V1__ModuleRef **list = message_need(b, n * sizeof(*list));
    bool mean = j == b->job ? task_wants_ema(b->task) : j->spec.outer.ema > 0;
    *ret_n = n;
    for (size_t l = 0; l < n && !b->failed; l++) {
        const struct module_rec *m = &j->modules[j->comp.paths[path].modules[l]];
        const struct version_rec *v =
            j == b->job ? wanted_version(b, m) : module_version(m, m->version);
        list[l] = message_bare_module(b, m);
        if (b->failed)
            break;
        if (best != NULL)
            add_best(b, &best[l], list[l]);
        else if (v != NULL)
            add_weights(b, m, v, mean, list[l]);
        else
            b->failed = true;
    }
    return list;
}

int message_module(struct coordinator *co, const struct job *j, const struct task *t,
                   const struct worker *w, const struct module_rec *m, struct pbmem *mem,
                   Skerry__V1__ModuleRef **ret, struct err *err)
{
    struct message b = {.co = co, .job = j, .task = t, .worker = w, .mem = mem};
    const struct version_rec *v = module_version(m, m->version);
    Skerry__V1__ModuleRef *ref = message_bare_module(&b, m);
    if (v == NULL)
        b.failed = true;
    if (!b.failed)
        add_weights(&b, m, v, false, ref);
    if (b.failed)
        return err_set(err, -ENOMEM, "no memory for a version of module %llu",
                       (unsigned long long)m->id);
    *ret = ref;
    return 0;
}

/* ---- networks ------------------------------------------------------------ */

static Skerry__V1__Level *level(struct message *b, const struct composition_level *l)
{
    Skerry__V1__Level *m = message_need(b, sizeof(*m));
    uint32_t *blocks = message_need(b, COMPOSITION_BLOCKS_MAX * sizeof(*blocks));
    if (b->failed)
        return m;
    skerry__v1__level__init(m);
    for (uint32_t i = 0; i < l->n_blocks; i++)
        blocks[i] = l->blocks[i];
    m->blocks = blocks;
    m->n_blocks = l->n_blocks;
    m->embedders = l->embedders;
    m->head = l->head;
    return m;
}

static Skerry__V1__Level **levels(struct message *b, const struct composition_network *n,
                                  size_t *ret_n)
{
    Skerry__V1__Level **list = message_need(b, n->n_levels * sizeof(*list));
    *ret_n = n->n_levels;
    for (uint32_t l = 0; l < n->n_levels && !b->failed; l++)
        list[l] = level(b, &n->levels[l]);
    return list;
}

Skerry__V1__Expert **message_experts(struct message *b, const struct job *j, bool modules,
                                     size_t *ret_n)
{
    size_t n = 0;
    Skerry__V1__Expert **list = message_need(b, j->comp.n_paths * sizeof(*list));
    for (uint32_t p = 0; p < j->comp.n_paths && !b->failed; p++) {
        if (j->comp.paths[p].network != 0)
            continue;
        Skerry__V1__Expert *e = message_need(b, sizeof(*e));
        if (b->failed)
            break;
        skerry__v1__expert__init(e);
        e->path = p;
        e->partition = j->comp.paths[p].partition;
        if (modules)
            e->modules = path_modules(b, j, p, &e->n_modules);
        list[n++] = e;
    }
    *ret_n = n;
    return list;
}

static void add_mixture(struct message *b, Skerry__V1__Task *msg)
{
    const struct job *j = b->job;
    const struct task_draw *d = &b->task->draw;
    Skerry__V1__Mixture *m = message_need(b, sizeof(*m));
    Skerry__V1__Experts *all = message_need(b, sizeof(*all));
    if (b->failed)
        return;
    skerry__v1__mixture__init(m);
    skerry__v1__experts__init(all);
    all->expert = message_experts(b, j, !d->remote, &all->n_expert);
    m->experts = all;
    m->router = path_modules(b, j, (uint32_t)j->comp.router_path, &m->n_router);
    m->router_levels = levels(b, &j->comp.networks[1], &m->n_router_levels);
    m->strategy = d->strategy;
    m->top = d->top;
    m->nucleus = d->nucleus;
    m->threshold = d->threshold;
    m->remote = d->remote;
    msg->mixture = m;
}

void message_networks(struct message *b, Skerry__V1__Task *msg)
{
    if (task_is_mixture(b->task))
        add_mixture(b, msg);
    else
        msg->modules = path_modules(b, b->job, b->task->path, &msg->n_modules);
}

/* ---- fields of all kinds -------------------------------------------------- */

Skerry__V1__Range **message_ranges(struct message *b, size_t *ret_n)
{
    const struct task *t = b->task;
    Skerry__V1__Range **list = message_need(b, t->n_ranges * sizeof(*list));
    *ret_n = t->n_ranges;
    for (size_t i = 0; i < t->n_ranges && !b->failed; i++) {
        const struct shard_rec *s = &b->job->shards[t->ranges[i].shard];
        Skerry__V1__Range *r = message_need(b, sizeof(*r));
        if (b->failed)
            break;
        skerry__v1__range__init(r);
        r->start = t->ranges[i].start;
        r->count = t->ranges[i].count;
        r->partition = s->partition;
        /* Ranges of the same shard share one ticket. */
        for (size_t k = i; k-- > 0 && i - k < 8;)
            if (t->ranges[k].shard == t->ranges[i].shard)
                r->shard = list[k]->shard;
        if (r->shard == NULL)
            r->shard = message_blob(b, &s->blob);
        list[i] = r;
    }
    return list;
}

static Skerry__V1__EncoderFile **encoders(struct message *b, size_t *ret_n)
{
    const struct job *j = b->job;
    Skerry__V1__EncoderFile **list = message_need(b, j->n_encoders * sizeof(*list));
    size_t n = 0;
    for (size_t i = 0; i < j->n_encoders && !b->failed; i++) {
        if (j->encoders[i].part == ENCODER_COMPANIONS)
            continue;
        Skerry__V1__EncoderFile *f = message_new(b, &skerry__v1__encoder_file__descriptor);
        f->part = (Skerry__V1__EncoderPart)j->encoders[i].part;
        f->name = j->encoders[i].name;
        f->blob = message_blob(b, &j->encoders[i].blob);
        list[n++] = f;
    }
    *ret_n = n;
    return list;
}

/* The number of the data's partitions; with teachers it is theirs. */
static uint32_t partitions(const struct message *b)
{
    const struct job *teacher = state_job(&b->co->state, b->job->comp.teacher_job);
    return teacher ? teacher->comp.n_partitions : b->job->comp.n_partitions;
}

void message_job(struct message *b, Skerry__V1__Task *m)
{
    const struct job *j = b->job;
    bool mixture = task_is_mixture(b->task);
    uint32_t network = mixture ? 0 : j->comp.paths[b->task->path].network;
    m->job_id = j->id;
    m->spec = j->yaml;
    m->classes = j->classes;
    m->n_classes = j->n_classes;
    m->network = (Skerry__V1__Network)network;
    m->levels = levels(b, &j->comp.networks[network], &m->n_levels);
    m->partitions = partitions(b);
    m->vocab = j->vocab;
    m->tokenizer = message_blob_or_null(b, &j->tokenizer);
    m->encoders = encoders(b, &m->n_encoders);
    if (j->n_encoders == 0)
        return;
    m->input = message_new(b, &skerry__v1__network_input__descriptor);
    m->input->channels = j->input.channels;
    m->input->side = j->input.side;
    m->input->caption = j->input.caption;
    m->input->caption_tokens = j->input.caption_tokens;
}

/* ---- fetching ahead -------------------------------------------------------- */

int message_ahead(struct coordinator *co, const struct worker *w, struct pbmem *mem,
                  Skerry__V1__Ahead **ret, struct err *err)
{
    const struct job *j = state_job(&co->state, w->ahead.job_id);
    struct message b = {.co = co, .job = j, .worker = w, .mem = mem};
    *ret = NULL;
    if (!w->ahead.due || j == NULL || j->state != JOB_RUNNING)
        return 0;
    Skerry__V1__Ahead *m = message_new(&b, &skerry__v1__ahead__descriptor);
    const size_t n = composition_levels(&j->comp, w->ahead.path);
    size_t files = 0;
    m->modules = message_need(&b, n * sizeof(*m->modules));
    for (size_t l = 0; l < n && !b.failed; l++) {
        const struct module_rec *module = &j->modules[j->comp.paths[w->ahead.path].modules[l]];
        const struct version_rec *v = ahead_version(w, module);
        m->modules[m->n_modules++] = message_bare_module(&b, module);
        if (v != NULL && !b.failed)
            add_weights(&b, module, v, false, m->modules[l]);
        b.failed |= v == NULL;
    }
    Skerry__V1__EncoderFile **list = encoders(&b, &files);
    m->blobs = message_need(&b, (files + 1) * sizeof(*m->blobs));
    for (size_t i = 0; i < files && !b.failed; i++)
        m->blobs[m->n_blobs++] = list[i]->blob;
    if (blob_ref_is_set(&j->tokenizer) && !b.failed)
        m->blobs[m->n_blobs++] = message_blob(&b, &j->tokenizer);
    if (b.failed)
        return err_set(err, -ENOMEM, "no memory for what worker %llu could fetch ahead",
                       (unsigned long long)w->id);
    *ret = m;
    return 0;
}
