/* A coordinator made of a few arrays that folds with common/outer, behind the functions of
 * worker/link/uplink.h: fragments of several replicas talk to it, each from a thread of its own.
 * Included by one test; the linker then leaves the real uplink out. */
#ifndef TESTS_UNIT_WORKER_FAKE_UPLINK_H
#define TESTS_UNIT_WORKER_FAKE_UPLINK_H

#include "tests/unit/common/base/util.h"

#include <math.h>
#include <pthread.h>

#include "common/base/hash.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/base/str.h"
#include "common/outer/fold.h"
#include "worker/order/cache.h"
#include "worker/engine/fragment.h"
#include "worker/engine/fragment_net.h"
#include "worker/model/model.h"
#include "worker/order/modules.h"
#include "worker/link/uplink.h"
#include "worker/order/work.h"

#define K 2      /* replicas */
#define LEVELS 3 /* of the model, one fragment each */
#define ROUNDS 3
#define STEPS 12
#define MODULE 70 /* id of level 0's module */
#define SAMPLES 8 /* of a step */

#define SPEC                                                                                       \
    "name: tiny\nseed: 3\n"                                                                        \
    "data: {path: x, image_size: 8}\n"                                                             \
    "model: {type: dit, patch: 2, dim: 12, depth: 3, heads: 3}\n"                                  \
    "train: {batch: 8, lr: 1e-3, precision: f32}\n"                                                \
    "outer: {rounds: 3, steps: 12}\nwire: {up: f32, down: f32}\n"

/* ---- the coordinator: versions of every level ---- */

struct version {
    uint8_t full[32], delta[32];
    uint64_t full_bytes, delta_bytes;
};

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    char *dir; /* blobs by name, and the state of the folds */
    struct model *model;
    struct version versions[LEVELS][ROUNDS + 1];
    unsigned n[LEVELS];           /* newest version */
    uint8_t given[LEVELS][K][32]; /* to the next one */
    bool has[LEVELS][K];
    unsigned puts, snapshots, whole; /* requests that came */
    bool nobody;                     /* the other replicas have no worker */
    bool refuse;                     /* snapshots are not taken */
    bool broken_delta;               /* deltas arrive with other bits */
    bool lost_delta;                 /* deltas cannot be had */
    bool slow_puts;                  /* a look at one comes too early */
    uint32_t reported[LEVELS];       /* steps of the last snapshot */
} co = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static char *blob_path(const uint8_t sha256[32])
{
    char hex[HASH_HEX_MAX];
    return file_join(co.dir, hash_hex(sha256, 32, hex));
}

static void store(const char *path, uint8_t ret[32], uint64_t *ret_bytes)
{
    struct buf b;
    OK(hash_file(path, ret, ret_bytes, err));
    OK(file_read(path, 1 << 24, &b, err));
    char *to = blob_path(ret);
    OK(file_write_atomic(to, b.data, b.len, 0600, err));
    buf_release(&b);
    mem_free(to);
}

static char *state_path(unsigned level, const char *what, unsigned version)
{
    return str_printf("%s/%s-%u-%u", co.dir, what, level, version);
}

/* All contributions to the level are in. */
static void fold_level(unsigned level)
{
    static const char *const what[] = {"full", "delta", "target", "mom"};
    unsigned v = co.n[level];
    struct fold_input in[K];
    struct fold_result r;
    char *out[4], *at[4];
    for (unsigned i = 0; i < 4; i++) {
        out[i] = state_path(level, what[i], v + 1);
        at[i] = state_path(level, what[i], v);
    }
    char *full = blob_path(co.versions[level][v].full);
    for (unsigned k = 0; k < K; k++)
        in[k] = (struct fold_input){.path = blob_path(co.given[level][k]),
                                    .weight = SAMPLES,
                                    .origin = {CODEC_F32, v, full}};
    struct fold_step step = {.module_id = MODULE + level,
                             .base = v,
                             .full = full,
                             .target = v ? at[2] : NULL,
                             .mom = v ? at[3] : NULL,
                             .inputs = in,
                             .n_inputs = K,
                             .down = CODEC_F32,
                             .lr = 0.7,
                             .momentum = 0.9,
                             .scale = 1,
                             .full_out = out[0],
                             .delta_out = out[1],
                             .target_out = out[2],
                             .mom_out = out[3]};
    OK(fold_run(&step, &r, err));
    struct version *new = &co.versions[level][v + 1];
    store(out[0], new->full, &new->full_bytes);
    store(out[1], new->delta, &new->delta_bytes);
    for (unsigned i = 0; i < 4; i++) {
        mem_free(out[i]);
        mem_free(at[i]);
    }
    for (unsigned k = 0; k < K; k++) {
        mem_free((char *)(uintptr_t)in[k].path);
        co.has[level][k] = false;
    }
    mem_free(full);
    co.n[level]++;
    pthread_cond_broadcast(&co.changed);
}

/* Under the lock. */
static void give(unsigned replica, uint64_t module, uint64_t base, const uint8_t sha256[32])
{
    unsigned level = (unsigned)(module - MODULE);
    assert_true(level < LEVELS && base == co.n[level] && !co.has[level][replica]);
    memcpy(co.given[level][replica], sha256, 32);
    co.has[level][replica] = true;
    for (unsigned k = 0; k < K; k++)
        if (!co.has[level][k])
            return;
    fold_level(level);
}

/* ---- the uplink, in the thread that asks ---- */

struct uplink {
    unsigned replica;
    struct cache *cache;
};

struct uplink_job {
    struct uplink *u;
    uint64_t module, version, held; /* VERSION that is not answered yet; module 0: another job */
    uint8_t pinned[32];
    bool pins, early;
    int rc;
    const ProtobufCMessage *answer;
    Skerry__V1__ReportReply report;
    Skerry__V1__VersionReply reply;
    Skerry__V1__ModuleRef ref;
    Skerry__V1__Blob full, blob;
    Skerry__V1__Delta delta, *deltas[1];
};

static struct uplink_job *job_new(struct uplink *u)
{
    struct uplink_job *j = mem_alloc(sizeof(*j));
    j->u = u;
    skerry__v1__report_reply__init(&j->report);
    skerry__v1__version_reply__init(&j->reply);
    skerry__v1__module_ref__init(&j->ref);
    skerry__v1__blob__init(&j->full);
    skerry__v1__blob__init(&j->blob);
    skerry__v1__delta__init(&j->delta);
    return j;
}

static void set_blob(Skerry__V1__Blob *b, uint8_t *sha256, uint64_t bytes)
{
    b->sha256 = (ProtobufCBinaryData){32, sha256};
    b->size = bytes;
    b->url = (char *)"/v1/blobs/x";
}

/* Under the lock: answers if the version is there, or nobody works on it. */
static void answer_version(struct uplink_job *j)
{
    unsigned level = (unsigned)(j->module - MODULE);
    if (j->answer || (co.n[level] < j->version && !co.nobody))
        return;
    j->answer = &j->reply.base;
    if (co.n[level] < j->version) {
        j->reply.later = true;
        return;
    }
    struct version *v = &co.versions[level][j->version];
    j->reply.module = &j->ref;
    j->ref.module_id = j->module;
    j->ref.level = level;
    j->ref.version = j->version;
    j->ref.sha256 = (ProtobufCBinaryData){32, v->full};
    if (j->held == j->version - 1) {
        set_blob(&j->blob, v->delta, v->delta_bytes);
        j->delta.from = j->held;
        j->delta.to = j->version;
        j->delta.blob = &j->blob;
        j->deltas[0] = &j->delta;
        j->ref.deltas = j->deltas;
        j->ref.n_deltas = 1;
    } else {
        co.whole++;
        set_blob(&j->full, v->full, v->full_bytes);
        j->ref.full = &j->full;
    }
}

struct uplink_job *uplink_call(struct uplink *u, struct work *w, uint16_t method,
                               const ProtobufCMessage *msg, const ProtobufCMessageDescriptor *reply,
                               uint32_t deadline_ms)
{
    struct uplink_job *j = job_new(u);
    pthread_mutex_lock(&co.lock);
    if (method == SKERRY__V1__METHOD__METHOD_REPORT) {
        const Skerry__V1__ReportRequest *r = (const Skerry__V1__ReportRequest *)(const void *)msg;
        assert_true(r->snapshot && r->n_contributions == 1);
        assert_int_equal(r->samples, r->steps * SAMPLES);
        co.snapshots++;
        co.reported[r->contributions[0]->module_id - MODULE] = r->steps;
        j->report.accepted = !co.refuse;
        j->report.reason = (char *)"";
        if (!co.refuse)
            give(u->replica, r->contributions[0]->module_id, r->contributions[0]->base_version,
                 r->contributions[0]->blob->sha256.data);
        j->answer = &j->report.base;
    } else {
        const Skerry__V1__VersionRequest *r = (const Skerry__V1__VersionRequest *)(const void *)msg;
        assert_int_equal(method, SKERRY__V1__METHOD__METHOD_VERSION);
        j->module = r->module_id;
        j->version = r->version;
        j->held = r->held;
        answer_version(j);
    }
    pthread_mutex_unlock(&co.lock);
    (void)w;
    return j;
}

struct uplink_job *uplink_put(struct uplink *u, struct work *w, const char *path,
                              const uint8_t sha256[32], uint64_t size, bool in_order)
{
    uint8_t got[32];
    uint64_t bytes = 0;
    pthread_mutex_lock(&co.lock);
    store(path, got, &bytes);
    co.puts++;
    pthread_mutex_unlock(&co.lock);
    assert_memory_equal(got, sha256, 32);
    assert_int_equal(bytes, size);
    (void)w;
    struct uplink_job *j = job_new(u);
    j->early = co.slow_puts;
    return j;
}

struct uplink_job *uplink_get(struct uplink *u, struct work *w, const uint8_t sha256[32],
                              uint64_t size, const char *url, const char *what, bool in_order)
{
    struct uplink_job *j = job_new(u);
    char to[CACHE_PATH_MAX];
    (void)w;
    (void)url;
    memcpy(j->pinned, sha256, 32);
    j->pins = true;
    cache_pin(u->cache, sha256);
    if (cache_has(u->cache, sha256))
        return j;
    if (co.lost_delta && str_starts(what, "delta")) {
        j->rc = -ERR_NOTFOUND;
        return j;
    }
    struct buf b;
    char *from = blob_path(sha256);
    assert_true(size > 0);
    OK(file_read(from, 1 << 24, &b, err));
    if (co.broken_delta && str_starts(what, "delta"))
        b.data[b.len - 1] ^= 1;
    cache_path(u->cache, sha256, to);
    OK(file_write_atomic(to, b.data, b.len, 0600, err));
    OK(cache_added(u->cache, sha256, err));
    buf_release(&b);
    mem_free(from);
    return j;
}

bool uplink_done(struct uplink_job *j)
{
    if (j->module == 0) {
        const bool early = j->early;
        j->early = false;
        return !early;
    }
    pthread_mutex_lock(&co.lock);
    answer_version(j);
    pthread_mutex_unlock(&co.lock);
    return j->answer != NULL;
}

int uplink_wait(struct uplink_job *j, struct err *err)
{
    pthread_mutex_lock(&co.lock);
    while (j->module != 0 && j->answer == NULL) {
        answer_version(j);
        if (j->answer == NULL)
            pthread_cond_wait(&co.changed, &co.lock);
    }
    pthread_mutex_unlock(&co.lock);
    return j->rc < 0 ? err_set(err, j->rc, "as told") : 0;
}

int uplink_wait_saving(struct uplink_job *j, struct err *err)
{
    return uplink_wait(j, err);
}

const ProtobufCMessage *uplink_reply(const struct uplink_job *j)
{
    return j->answer;
}

void uplink_free(struct uplink_job *j)
{
    if (j && j->pins)
        cache_unpin(j->u->cache, j->pinned);
    mem_free(j);
}

#endif
