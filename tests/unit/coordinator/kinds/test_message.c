/* What is in a task's message: which versions, by which way, which samples, and nothing if there is
 * no room. */
#include "tests/unit/coordinator/kinds/by_hand.h"

#include "common/net/http/blob_http.h"
#include "coordinator/state/access.h"

#define DIT                                                                                        \
    "name: q\ndata: {path: x, image_size: 16}\n"                                                   \
    "model: {type: dit, patch: 4, dim: 32, depth: 4, heads: 2}\ntrain: {batch: 6}\n"

static const char diloco[] = DIT "recipe: {name: diloco, replicas: 2}\n"
                                 "outer: {rounds: 9, steps: 2}\n";
static const char async[] = DIT "recipe: {name: diloco, replicas: 3}\n"
                                "outer: {rounds: 9, seconds: 100, async: true}\n";
static const char streams[] = DIT "recipe: {name: diloco, replicas: 2}\n"
                                  "outer: {rounds: 9, steps: 8, fragments: 2}\n";
static const char ddm[] = DIT "recipe: {name: ddm, experts: 3}\nouter: {rounds: 9, steps: 2}\n";
static const char distill[] =
    DIT "recipe: {name: distill, teacher: 1}\nouter: {rounds: 9, steps: 2}\n";

static void hold(struct worker *w, const struct job *j, uint64_t version)
{
    w->held[w->n_held].module_id = j->modules[0].id;
    w->held[w->n_held++].version = version;
}

/* Of the first path, over what data there are, or ten samples. */
static struct task *phase(struct rig *r, struct job *j, uint32_t round)
{
    if (j->n_shards == 0)
        add_shard(j, 99, 10);
    if (j->ledgers[job_ledger(j, j->comp.paths[0].partition)] == NULL)
        make_ledger(j);
    struct task *t = add_task(r, j, TASK_TRAIN);
    t->train.round = round;
    return t;
}

static struct task *eval(struct rig *r, const struct job *j, uint32_t version)
{
    struct task *t = add_task(r, j, TASK_EVAL);
    t->draw.version = version;
    return t;
}

static const Skerry__V1__ModuleRef *first_module(struct rig *r, struct job *j, const struct task *t,
                                                 const struct worker *w)
{
    const Skerry__V1__Task *m = message_of(r, j, t, w);
    assert_true(m->n_modules >= 1);
    return m->modules[0];
}

static bool is_sha(const ProtobufCBinaryData *b, uint8_t n)
{
    const struct blob_ref ref = ref_of(n);
    return b->len == 32 && memcmp(b->data, ref.sha256, 32) == 0;
}

/* ---- by which way ---- */

/* The whole file, or the deltas that lead to it from what the worker holds; the hash is that of the
 * whole file in any case. */
static void test_whole_or_deltas(void **state)
{
    static const struct {
        uint64_t held; /* 9: nothing */
        size_t deltas;
    } cases[] = {{9, 0}, {0, 3}, {1, 2}, {2, 1}, {3, 0}, {4, 0}};
    struct rig *r = *state;
    struct job *j = add_job(r, diloco);
    add_versions(j, 0, 3);
    const struct task *t = phase(r, j, 3);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct worker *w = add_worker(r);
        if (cases[i].held < 9)
            hold(w, j, cases[i].held);
        const Skerry__V1__ModuleRef *m = first_module(r, j, t, w);
        assert_true(m->module_id == j->modules[0].id && m->level == 0 && m->index == 0);
        assert_int_equal(m->version, 3);
        assert_true(is_sha(&m->sha256, 30));
        assert_int_equal(m->n_deltas, cases[i].deltas);
        assert_true(cases[i].deltas > 0 ? m->full == NULL : is_ref(m->full, 30));
        for (size_t d = 0; d < m->n_deltas; d++) {
            assert_int_equal(m->deltas[d]->from, cases[i].held + d);
            assert_int_equal(m->deltas[d]->to, cases[i].held + d + 1);
            assert_true(is_ref(m->deltas[d]->blob, (uint8_t)(10 * (cases[i].held + d + 1) + 2)));
        }
    }
}

/* Whose mean is wanted gets it whole; version 0 is its own mean. */
static void test_mean(void **state)
{
    struct rig *r = *state;
    struct job *j = add_job(r, diloco);
    struct worker *w = add_worker(r);
    add_versions(j, 0, 3);
    hold(w, j, 0);
    struct task *t = eval(r, j, 3);
    t->draw.ema = true;
    const Skerry__V1__ModuleRef *m = first_module(r, j, t, w);
    assert_true(is_sha(&m->sha256, 31) && is_ref(m->full, 31) && m->n_deltas == 0);
    t->draw.ema = false;
    m = first_module(r, j, t, w);
    assert_true(is_sha(&m->sha256, 30) && m->full == NULL && m->n_deltas == 3);
    t->draw.ema = true;
    t->draw.version = 0;
    m = first_module(r, j, t, w);
    assert_true(m->version == 0 && is_sha(&m->sha256, 0) && is_ref(m->full, 0));
}

/* ---- which version ---- */

static uint64_t version_in(struct rig *r, struct job *j, const struct task *t)
{
    return first_module(r, j, t, add_worker(r))->version;
}

/* A phase begins at its round or not at all, and a path is evaluated at the version that the result
 * will be of; paths of a mixture are at several, so theirs may be newer. */
static void test_versions_of_rounds(void **state)
{
    struct rig *r = *state;
    struct job *j = add_job(r, diloco);
    add_versions(j, 1, 4);
    assert_int_equal(version_in(r, j, phase(r, j, 2)), 2);
    assert_int_equal(version_in(r, j, eval(r, j, 2)), 2);
    assert_null(message_within(r, j, eval(r, j, 0), add_worker(r), MESSAGE_BYTES_MAX));
    assert_null(message_within(r, j, phase(r, j, 0), add_worker(r), MESSAGE_BYTES_MAX));
    assert_null(message_within(r, j, phase(r, j, 5), add_worker(r), MESSAGE_BYTES_MAX));
}

/* A module that others share may be so far ahead of a path that it has none of its versions. */
static void test_versions_far_apart(void **state)
{
    static const char paths[] =
        "name: q\ndata: {path: x}\n"
        "model: {type: llama, dim: 32, depth: 4, heads: 2, context: 64}\n"
        "train: {batch: 6}\nrecipe: {name: dipaco, levels: [2, 1]}\nouter: {rounds: 3, steps: 2}\n";
    struct rig *r = *state;
    struct job *j = add_job(r, paths);
    add_versions(j, 1, 4);
    const uint64_t ahead = j->comp.paths[0].modules[1];
    for (uint64_t v = 7; v <= 10; v++)
        module_add_version(module_memory(&j->modules[ahead]), &(struct version_rec){.version = v});
    const Skerry__V1__Task *m = message_of(r, j, eval(r, j, 4), add_worker(r));
    assert_int_equal(m->modules[0]->version, 4);
    assert_int_equal(m->modules[1]->version, 10);
    assert_null(message_within(r, j, eval(r, j, 3), add_worker(r), MESSAGE_BYTES_MAX));
}

static void test_versions_of_a_mixture(void **state)
{
    struct rig *r = *state;
    struct job *j = add_job(r, ddm);
    add_versions(j, 1, 4);
    struct task *t = eval(r, j, 0);
    t->draw.mixture = true;
    t->path = (uint32_t)j->comp.router_path;
    const Skerry__V1__Mixture *m = message_of(r, j, t, add_worker(r))->mixture;
    assert_int_equal(m->router[0]->version, 4);
    assert_int_equal(m->experts->expert[2]->modules[0]->version, 4);
}

/* If versions are no rounds, or come within them, a phase begins at the newest. */
static void test_versions_between_rounds(void **state)
{
    struct rig *r = *state;
    struct job *a = add_job(r, async), *f = add_job(r, streams);
    add_versions(a, 1, 4);
    add_versions(f, 1, 3);
    assert_int_equal(version_in(r, a, phase(r, a, 2)), 4);
    assert_int_equal(version_in(r, a, eval(r, a, 2)), 4);
    assert_int_equal(version_in(r, f, phase(r, f, 2)), 3);
    assert_int_equal(version_in(r, f, eval(r, f, 2)), 2);
}

/* A phase that another worker began goes on from where that one did. */
static void test_version_of_a_snapshot(void **state)
{
    struct rig *r = *state;
    struct job *j = add_job(r, async);
    add_versions(j, 1, 4);
    struct task *t = phase(r, j, 4);
    struct snapshot *s = snapshot_new(1);
    s->modules[0].module_id = j->modules[0].id;
    s->modules[0].base_version = 2;
    s->modules[0].blob = ref_of(200);
    task_set_snapshot(t, s);
    assert_int_equal(version_in(r, j, t), 2);
    s->modules[0].module_id++;
    assert_int_equal(version_in(r, j, t), 4);
}

/* A path's best is drawn from, and a mixture is evaluated with it; a path alone is evaluated as it
 * is. */
static void test_best(void **state)
{
    struct rig *r = *state;
    struct job *j = add_job(r, ddm);
    struct worker *w = add_worker(r);
    add_versions(j, 0, 2);
    struct path_rec *p = job_edit_path(j, 1);
    p->best = mem_alloc_array(1, sizeof(*p->best));
    p->best[0].version = 1;
    p->best[0].full = ref_of(250);
    struct task *t = add_task(r, j, TASK_SAMPLE), *e = eval(r, j, 2);
    t->path = e->path = 1;
    t->draw.version = 2;
    const Skerry__V1__ModuleRef *m = first_module(r, j, t, w);
    assert_true(m->version == 1 && is_sha(&m->sha256, 250) && is_ref(m->full, 250));
    assert_int_equal(first_module(r, j, e, w)->version, 2);
    e->draw.mixture = true;
    e->path = (uint32_t)j->comp.router_path;
    const Skerry__V1__Mixture *mix = message_of(r, j, e, w)->mixture;
    assert_int_equal(mix->experts->n_expert, 3);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(mix->experts->expert[i]->path, i);
        assert_int_equal(mix->experts->expert[i]->partition, i);
        assert_int_equal(mix->experts->expert[i]->n_modules, 1);
        assert_int_equal(mix->experts->expert[i]->modules[0]->version, i == 1 ? 1 : 2);
    }
    assert_int_equal(mix->n_router, 1);
    assert_int_equal(mix->router[0]->module_id,
                     j->modules[j->comp.paths[j->comp.router_path].modules[0]].id);
    assert_int_equal(mix->n_router_levels, 1);
}

/* What is measured again is one version, also where one of its modules keeps it no more. */
static void test_version_in_question(void **state)
{
    struct rig *r = *state;
    struct job *j = add_job(r, streams);
    struct worker *w = add_worker(r);
    add_versions(j, 1, VERSIONS_KEPT);
    struct task *t = eval(r, j, 1);
    struct eval_hope *hope = &job_edit_path(j, 0)->hope;
    *hope = (struct eval_hope){.best = mem_alloc_array(2, sizeof(*hope->best)), .version = 1};
    for (uint32_t l = 0; l < 2; l++)
        hope->best[l] = (struct best_module){1, j->modules[l].versions[0].full};
    hope->task = t->id;
    for (uint32_t newer = 0; newer < 2; newer++) {
        const struct version_rec next = {.version = VERSIONS_KEPT + 1, .full = ref_of(200)};
        module_add_version(module_memory(&j->modules[1 - newer]), &next);
        const Skerry__V1__Task *m = message_of(r, j, t, w);
        assert_int_equal(m->n_modules, 2);
        for (uint32_t l = 0; l < 2; l++)
            assert_true(m->modules[l]->version == 1 && is_ref(m->modules[l]->full, 40 * l + 10));
    }
}

/* Experts that stay with their workers have no modules here. */
static void test_remote(void **state)
{
    struct rig *r = *state;
    struct job *j = add_job(r, ddm);
    add_versions(j, 0, 0);
    struct task *t = add_task(r, j, TASK_SAMPLE);
    t->path = (uint32_t)j->comp.router_path;
    t->draw.mixture = t->draw.remote = true;
    t->draw.strategy = 2;
    t->draw.top = 3;
    t->draw.nucleus = 0.5f;
    t->draw.threshold = 0.25f;
    const Skerry__V1__Task *m = message_of(r, j, t, add_worker(r));
    assert_int_equal(m->network, 0); /* the experts', though the path is the router's */
    assert_int_equal(m->n_modules, 0);
    assert_true(m->mixture->remote && m->mixture->strategy == 2 && m->mixture->top == 3);
    assert_true(m->mixture->nucleus == 0.5f && m->mixture->threshold == 0.25f);
    assert_int_equal(m->mixture->n_router, 1);
    for (size_t i = 0; i < m->mixture->experts->n_expert; i++)
        assert_int_equal(m->mixture->experts->expert[i]->n_modules, 0);
    t->draw.mixture = false;
    assert_int_equal(message_of(r, j, t, add_worker(r))->network, 1);
}

/* ---- what it learns from ---- */

/* Another job's experts: its best, or its newest mean if it has one. */
static void test_teachers(void **state)
{
    struct rig *r = *state;
    struct job *teacher = add_job(r, ddm), *j = add_job(r, distill);
    struct worker *w = add_worker(r);
    assert_int_equal(teacher->id, 1);
    add_versions(teacher, 0, 2);
    add_versions(j, 0, 0);
    teacher->spec.outer.ema = 0.9;
    struct path_rec *p = job_edit_path(teacher, 2);
    p->best = mem_alloc_array(1, sizeof(*p->best));
    p->best[0].version = 1;
    p->best[0].full = ref_of(250);
    const struct task *t = phase(r, j, 0);
    hold(w, teacher, 1);
    const Skerry__V1__Task *m = message_of(r, j, t, w);
    assert_int_equal(m->partitions, 3);
    assert_int_equal(m->train->n_teachers, 3);
    assert_true(is_ref(m->train->teachers[0]->modules[0]->full, 21));
    assert_true(is_ref(m->train->teachers[2]->modules[0]->full, 250));
    teacher->spec.outer.ema = 0;
    m = message_of(r, j, t, w);
    assert_int_equal(m->train->teachers[0]->modules[0]->n_deltas, 1);
    assert_true(is_ref(m->train->teachers[1]->modules[0]->full, 60));
    assert_int_equal(message_of(r, teacher, phase(r, teacher, 2), w)->partitions, 3);
}

/* Ranges of a shard share its ticket, if they are near to each other: a task may have thousands. */
static void test_ranges(void **state)
{
    static const uint32_t shards[] = {0, 1, 0, 1, 1, 1, 1, 1, 1, 0, 0};
    struct rig *r = *state;
    struct job *j = add_job(r, diloco);
    add_versions(j, 0, 0);
    add_shard(j, 100, 10);
    add_shard(j, 101, 10)->partition = 5;
    struct task *t = eval(r, j, 0);
    give(t, shards, 11, 3);
    t->ranges[3].start = 7;
    const Skerry__V1__EvalTask *e = message_of(r, j, t, add_worker(r))->eval;
    assert_int_equal(e->n_ranges, 11);
    for (size_t i = 0; i < 11; i++) {
        assert_true(is_ref(e->ranges[i]->shard, (uint8_t)(100 + shards[i])));
        assert_int_equal(e->ranges[i]->partition, shards[i] * 5);
        assert_int_equal(e->ranges[i]->count, 3);
    }
    assert_int_equal(e->ranges[3]->start, 7);
    assert_ptr_equal(e->ranges[2]->shard, e->ranges[0]->shard);
    assert_ptr_equal(e->ranges[9]->shard, e->ranges[2]->shard); /* 7 places before */
    assert_ptr_equal(e->ranges[10]->shard, e->ranges[9]->shard);
    e = NULL;
    t->ranges[2].shard = 1; /* the next one is 9 places before */
    e = message_of(r, j, t, add_worker(r))->eval;
    assert_true(e->ranges[9]->shard != e->ranges[0]->shard);
    assert_true(is_ref(e->ranges[9]->shard, 100));
}

/* ---- the job ---- */

static void add_encoders(struct job *j)
{
    static const uint32_t parts[] = {1, ENCODER_COMPANIONS, 2};
    j->encoders = mem_alloc_array(3, sizeof(*j->encoders));
    j->n_encoders = 3;
    for (uint8_t i = 0; i < 3; i++) {
        j->encoders[i].part = parts[i];
        (void)snprintf(j->encoders[i].name, ENCODER_NAME_MAX, "file%u", i);
        j->encoders[i].blob = ref_of((uint8_t)(210 + i));
    }
}

static void test_job(void **state)
{
    struct rig *r = *state;
    struct job *j = add_job(r, streams);
    struct worker *w = add_worker(r);
    add_versions(j, 0, 0);
    job_add_class(j, "cat", 1);
    job_add_class(j, "dog", 1);
    j->vocab = 300;
    struct task *t = phase(r, j, 0);
    t->attempt = 4;
    const Skerry__V1__Task *m = message_of(r, j, t, w);
    assert_true(m->id == t->id && m->attempt == 4 && m->job_id == j->id);
    assert_int_equal(m->kind, TASK_TRAIN);
    assert_int_equal(m->lease_ms, r->co->opt.lease_ms);
    assert_string_equal(m->spec, streams);
    assert_int_equal(m->n_classes, 2);
    assert_string_equal(m->classes[1], "dog");
    assert_int_equal(m->vocab, 300);
    assert_int_equal(m->partitions, 1);
    assert_null(m->tokenizer);
    assert_null(m->input);
    assert_int_equal(m->n_encoders, 0);
    assert_int_equal(m->n_levels, 2);
    for (uint32_t l = 0; l < 2; l++) { /* strided: 0 2, and 1 3 */
        assert_int_equal(m->levels[l]->n_blocks, 2);
        assert_int_equal(m->levels[l]->blocks[0], l);
        assert_int_equal(m->levels[l]->blocks[1], l + 2);
        assert_int_equal(m->levels[l]->embedders, j->comp.networks[0].levels[l].embedders);
        assert_int_equal(m->levels[l]->head, j->comp.networks[0].levels[l].head);
    }
    add_encoders(j);
    j->tokenizer = ref_of(220);
    j->input = (struct network_input){4, 8, 16, 77};
    m = message_of(r, j, t, w);
    assert_true(is_ref(m->tokenizer, 220));
    assert_int_equal(m->n_encoders, 2);
    assert_int_equal(m->encoders[1]->part, 2);
    assert_string_equal(m->encoders[1]->name, "file2");
    assert_true(is_ref(m->encoders[0]->blob, 210) && is_ref(m->encoders[1]->blob, 212));
    assert_true(m->input->channels == 4 && m->input->side == 8);
    assert_true(m->input->caption == 16 && m->input->caption_tokens == 77);
}

/* Only a worker that may keep latents needs to know how often pictures come again. */
static void test_epoch(void **state)
{
    struct rig *r = *state;
    struct job *plain = add_job(r, streams);
    struct job *j = add_job(r, "encoders: {vae: v}\n" DIT "recipe: {name: diloco, replicas: 3}\n"
                               "outer: {rounds: 2, steps: 4}\n");
    struct worker *w = add_worker(r);
    add_versions(plain, 0, 0);
    add_versions(j, 0, 0);
    add_shard(plain, 100, 50);
    add_shard(j, 101, 50);
    add_shard(j, 102, 30);
    const Skerry__V1__Task *m = message_of(r, j, phase(r, j, 0), w);
    assert_int_equal(m->train->epoch_samples, 80);
    assert_int_equal(m->train->replicas, 3);
    m = message_of(r, plain, phase(r, plain, 0), w);
    assert_true(m->train->epoch_samples == 0 && m->train->replicas == 0);
}

/* ---- aside from a task ---- */

static Skerry__V1__Ahead *ahead_of(struct rig *r, const struct worker *w, size_t bytes, int *ret_rc)
{
    Skerry__V1__Ahead *m = NULL;
    struct err err = {0};
    pbmem_release(&by_hand_mem);
    pbmem_init(&by_hand_mem, bytes);
    *ret_rc = message_ahead(r->co, w, &by_hand_mem, &m, &err);
    return m;
}

/* Whoever waits is told what a phase of the path needs, while it has not got that and the job runs.
 */
static void test_ahead(void **state)
{
    struct rig *r = *state;
    struct job *j = add_job(r, streams);
    struct worker *w = add_worker(r);
    int rc;
    add_versions(j, 0, 2);
    w->ahead.job_id = j->id;
    assert_null(ahead_of(r, w, 65536, &rc));
    assert_int_equal(rc, 0);
    w->ahead.due = true;
    const Skerry__V1__Ahead *m = ahead_of(r, w, 65536, &rc);
    assert_int_equal(m->n_modules, 2);
    assert_true(m->modules[0]->version == 2 && m->modules[1]->level == 1);
    assert_true(is_ref(m->modules[0]->full, 20) && is_ref(m->modules[1]->full, 60));
    assert_int_equal(m->n_blobs, 0);
    add_encoders(j);
    m = ahead_of(r, w, 65536, &rc);
    assert_int_equal(m->n_blobs, 2);
    j->tokenizer = ref_of(220);
    hold(w, j, 1);
    m = ahead_of(r, w, 65536, &rc);
    assert_int_equal(m->n_blobs, 3);
    assert_true(is_ref(m->blobs[1], 212) && is_ref(m->blobs[2], 220));
    assert_int_equal(m->modules[0]->n_deltas, 1);
    size_t bytes = 0;
    for (; ahead_of(r, w, bytes, &rc) == NULL; bytes += 16)
        assert_int_equal(rc, -ENOMEM);
    assert_true(bytes > 100);
    j->state = JOB_FINISHING;
    assert_null(ahead_of(r, w, 65536, &rc));
    assert_int_equal(rc, 0);
    j->state = JOB_RUNNING;
    w->ahead.job_id = 99;
    assert_null(ahead_of(r, w, 65536, &rc));
    assert_int_equal(rc, 0);
}

/* The newest version of a module for a phase under way, whatever its round. */
static void test_newest_of_a_module(void **state)
{
    struct rig *r = *state;
    struct job *j = add_job(r, streams);
    struct worker *w = add_worker(r);
    struct err err = {0};
    Skerry__V1__ModuleRef *m = NULL;
    add_versions(j, 0, 2);
    const struct task *t = phase(r, j, 0);
    pbmem_init(&by_hand_mem, 65536);
    assert_int_equal(message_module(r->co, j, t, w, &j->modules[1], &by_hand_mem, &m, &err), 0);
    assert_true(m->version == 2 && m->level == 1 && is_ref(m->full, 60));
    struct module_rec none = {.id = 5};
    m = NULL;
    assert_int_equal(message_module(r->co, j, t, w, &none, &by_hand_mem, &m, &err), -ENOMEM);
    assert_null(m);
    pbmem_release(&by_hand_mem);
    pbmem_init(&by_hand_mem, 64);
    assert_int_equal(message_module(r->co, j, t, w, &j->modules[1], &by_hand_mem, &m, &err),
                     -ENOMEM);
    assert_null(m);
}

/* A ticket is of the worker that gets the task. */
static void test_tickets(void **state)
{
    struct rig *r = *state;
    struct job *j = add_job(r, diloco);
    add_versions(j, 0, 0);
    const struct task *t = eval(r, j, 0);
    char *urls[2];
    for (size_t i = 0; i < 2; i++)
        urls[i] = str_dup(first_module(r, j, t, add_worker(r))->full->url);
    assert_string_not_equal(urls[0], urls[1]);
    char path[TICKET_PATH_MAX];
    const struct blob_ref ref = ref_of(0);
    struct blob_id id;
    memcpy(id.sha256, ref.sha256, 32);
    blob_http_ticket(r->co->blob_http, TICKET_GET, &id, ref.size,
                     access_holder_worker(r->co->state.workers[1]->id), path);
    assert_string_equal(urls[1], path);
    mem_free(urls[0]);
    mem_free(urls[1]);
}

/* ---- no room ---- */

/* Each message, in arenas from none to one that suffices: it is whole, or refused. */
static void fits_or_not(struct rig *r, struct job *j, const struct task *t)
{
    struct worker *w = add_worker(r);
    hold(w, j, 0);
    size_t bytes = 0;
    while (message_within(r, j, t, w, bytes) == NULL) {
        bytes += 16;
        assert_true(bytes < 100000);
    }
    assert_true(bytes > 200);
}

static void test_no_room(void **state)
{
    static const uint32_t shards[] = {0, 1};
    struct rig *r = *state;
    struct job *experts = add_job(r, ddm), *j = add_job(r, distill), *f = add_job(r, streams);
    for (uint8_t i = 0; i < 2; i++) {
        add_shard(experts, (uint8_t)(100 + i), 10)->features = ref_of((uint8_t)(110 + i));
        add_shard(j, (uint8_t)(100 + i), 10);
        add_shard(f, (uint8_t)(100 + i), 10);
    }
    add_versions(experts, 0, 1);
    add_versions(j, 0, 0);
    add_versions(f, 0, 1);
    add_encoders(f);
    experts->assignment = ref_of(230);
    struct task *mixed = eval(r, experts, 1), *t = phase(r, j, 0);
    mixed->draw.mixture = true;
    mixed->path = (uint32_t)experts->comp.router_path;
    give(mixed, shards, 2, 3);
    give(t, shards, 2, 3);
    fits_or_not(r, experts, mixed);
    fits_or_not(r, j, t);
    fits_or_not(r, f, phase(r, f, 1));
    fits_or_not(r, experts, add_task(r, experts, TASK_CLUSTER));
    fits_or_not(r, experts, add_task(r, experts, TASK_INIT));
    fits_or_not(r, experts, add_task(r, experts, TASK_VELOCITY));
    for (int kind = TASK_FEATURE; kind <= TASK_SCORE; kind++) {
        if (kind == TASK_CLUSTER)
            continue;
        t = add_task(r, experts, (enum task_kind)kind);
        give(t, shards, 2, 10);
        fits_or_not(r, experts, t);
    }
}

int main(void)
{
#define LIVE(f) cmocka_unit_test_setup_teardown(f, begin_by_hand, end_by_hand)
    const struct CMUnitTest tests[] = {
        LIVE(test_whole_or_deltas),
        LIVE(test_mean),
        LIVE(test_versions_of_rounds),
        LIVE(test_versions_far_apart),
        LIVE(test_versions_of_a_mixture),
        LIVE(test_versions_between_rounds),
        LIVE(test_version_of_a_snapshot),
        LIVE(test_best),
        LIVE(test_version_in_question),
        LIVE(test_remote),
        LIVE(test_teachers),
        LIVE(test_ranges),
        LIVE(test_job),
        LIVE(test_epoch),
        LIVE(test_ahead),
        LIVE(test_newest_of_a_module),
        LIVE(test_tickets),
        LIVE(test_no_room),
    };
    log_set_level(LOG_LEVEL_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
