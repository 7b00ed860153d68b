/* Jobs and tasks made by hand in a whole coordinator (rig.h) whose loop stands still: what its
 * workers would be sent, and what it takes of a result. */
#ifndef TESTS_UNIT_COORDINATOR_KINDS_BY_HAND_H
#define TESTS_UNIT_COORDINATOR_KINDS_BY_HAND_H

#include "tests/unit/coordinator/rig.h"

#include "coordinator/kinds/kinds.h"
#include "coordinator/kinds/message.h"

/* A blob that nobody has. */
static inline struct blob_ref ref_of(uint8_t n)
{
    struct blob_ref ref = {.size = 1000u + n};
    memset(ref.sha256, n, sizeof(ref.sha256));
    return ref;
}

static inline bool is_ref(const Skerry__V1__Blob *b, uint8_t n)
{
    const struct blob_ref ref = ref_of(n);
    return b != NULL && b->sha256.len == 32 && memcmp(b->sha256.data, ref.sha256, 32) == 0 &&
           b->size == ref.size && str_starts(b->url, "/v1/blobs/");
}

static inline struct job *add_job(struct rig *r, const char *spec)
{
    struct err err = {0};
    struct state *s = &r->co->state;
    struct job *j = state_add_job(s, 0);
    j->yaml = str_dup(spec);
    if (job_parse(spec, strlen(spec), "t", &j->spec, &err) < 0 ||
        recipe_check(&j->spec, &j->comp, &err) < 0)
        fail_msg("%s", err.msg);
    job_build(j, &s->next_module);
    j->state = JOB_RUNNING;
    return j;
}

/* Version v of each module: of module m, full and ema are ref_of(40 * m + 10 * v) and one more,
 * the delta two more; version 0 has the first alone. */
static inline void add_versions(struct job *j, uint64_t first, uint64_t last)
{
    for (uint32_t m = 0; m < j->comp.n_modules; m++)
        for (uint64_t v = first; v <= last; v++) {
            const uint8_t n = (uint8_t)(40 * m + 10 * v);
            struct version_rec rec = {.version = v, .full = ref_of(n)};
            if (v > 0) {
                rec.ema = ref_of((uint8_t)(n + 1));
                rec.delta = ref_of((uint8_t)(n + 2));
            }
            module_add_version(module_memory(&j->modules[m]), &rec);
        }
}

static inline struct shard_rec *add_shard(struct job *j, uint8_t n, uint32_t samples)
{
    struct shard_rec *s = job_add_shard(j);
    s->blob = ref_of(n);
    s->samples = samples;
    return s;
}

/* A ledger over all that its first path trains on. */
static inline void make_ledger(struct job *j)
{
    struct err err = {0};
    if (job_make_ledger(j, j->comp.paths[0].partition, &err) < 0)
        fail_msg("%s", err.msg);
}

static inline struct task *add_task(struct rig *r, const struct job *j, enum task_kind kind)
{
    return state_add_task(&r->co->state, 0, j->id, kind);
}

/* It is of so many samples of each of these shards. */
static inline void give(struct task *t, const uint32_t *shards, size_t n, uint32_t count)
{
    t->ranges = mem_alloc_array(n, sizeof(*t->ranges));
    t->n_ranges = n;
    for (size_t i = 0; i < n; i++)
        t->ranges[i] = (struct ledger_range){.shard = shards[i], .start = 0, .count = count};
}

static inline struct worker *add_worker(struct rig *r)
{
    return state_add_worker(&r->co->state, 0);
}

static struct pbmem by_hand_mem; /* holds the newest message */

/* The message of a task to this worker, in an arena of so many bytes; NULL: it does not fit. */
static inline Skerry__V1__Task *message_within(struct rig *r, struct job *j, const struct task *t,
                                               const struct worker *w, size_t bytes)
{
    Skerry__V1__Task *m = NULL;
    struct err err = {0};
    pbmem_release(&by_hand_mem);
    pbmem_init(&by_hand_mem, bytes);
    const int rc = kinds_message(r->co, j, t, w, &by_hand_mem, &m, &err);
    assert_true(rc == 0 || (rc == -ERR_LIMIT && m == NULL && *err.msg));
    if (rc == 0) /* all of it is there */
        assert_true(protobuf_c_message_get_packed_size(&m->base) > 0);
    return m;
}

static inline Skerry__V1__Task *message_of(struct rig *r, struct job *j, const struct task *t,
                                           const struct worker *w)
{
    Skerry__V1__Task *m = message_within(r, j, t, w, MESSAGE_BYTES_MAX);
    assert_non_null(m);
    return m;
}

static inline int begin_by_hand(void **state)
{
    const int rc = begin(state);
    settle(*state);
    return rc;
}

/* What was made by hand is not saved. */
static inline int end_by_hand(void **state)
{
    struct rig *r = *state;
    pbmem_release(&by_hand_mem);
    state_release(&r->co->state);
    state_init(&r->co->state);
    return end(state);
}

#endif
