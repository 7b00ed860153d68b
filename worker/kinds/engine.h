/* What computes: the device, the replicas whose optimiser state lives here, and
 * the kinds of work that use them.
 *
 *   engine_plan    which blobs does the task need?           (modules.h, work.h)
 *   engine_run     does it, fills w->result
 *   engine_after   what may wait until the result is on its way: the local checkpoint
 *
 * Everything but engine_device_text runs on the compute thread, one task at a
 * time.  Long work looks at work_stopped() once per step. */
#ifndef WORKER_ENGINE_H
#define WORKER_ENGINE_H

#include <stddef.h>
#include <stdint.h>

#include "worker/order/work.h"

struct cache;
struct data_cache;
struct device;
struct err;
struct island;
struct modules;
struct replicas;
struct velocity_kept;

struct engine_options {
    const char *device;      /* of island_open: "auto", "cpu", "cuda:N", "cuda:0,cuda:1" */
    int threads;             /* of all devices together */
    unsigned decode_threads; /* of the image pipeline */
    uint64_t memory_bytes;   /* that replicas kept between phases may take */
    size_t image_cache_bytes;
    double throttle;         /* a training step takes so many times as long; 0 and 1: as it is */
    const char *state_dir;   /* residuals, checkpoints; copied */
    struct cache *cache;     /* kept until close */
    struct modules *modules; /* kept until close */
    uint64_t started_ns;     /* of the process, for "first step after" */
};

struct engine {
    struct engine_options opt;
    char *state_dir;
    struct island *island; /* what trains */
    struct device *dev;    /* its first: what does everything else */
    struct data_cache *images;
    struct replicas *replicas;
    struct velocity_kept *velocity; /* work_velocity.c; NULL: none */
    double peak[2];                 /* by enum dtype, worker/train/peak.h; 0: not asked for yet */
    bool stepped;                   /* the first training step of this process is done */
};

int engine_open(const struct engine_options *opt, struct engine **ret, struct err *err);
void engine_close(struct engine *e); /* accepts NULL */

/* "cpu: CPU, 2 threads, ...", "cuda:0,cuda:1: 2 x NVIDIA H200, ..." */
void engine_device_text(const struct engine *e, char *out, size_t size);

int engine_plan(struct engine *e, struct work *w, struct err *err);
int engine_run(struct engine *e, struct work *w, struct err *err);
void engine_after(struct engine *e, struct work *w);

/* The kinds, each in a file of its own (phase.c: TRAIN). */
int phase_run(struct engine *e, struct work *w, struct err *err);
int work_init_run(struct engine *e, struct work *w, struct err *err);
int work_eval_run(struct engine *e, struct work *w, struct err *err);
int work_sample_run(struct engine *e, struct work *w, struct err *err);
int work_ingest_run(struct engine *e, struct work *w, struct err *err);
int work_feature_run(struct engine *e, struct work *w, struct err *err);
int work_cluster_run(struct engine *e, struct work *w, struct err *err);
int work_split_run(struct engine *e, struct work *w, struct err *err);
int work_score_run(struct engine *e, struct work *w, struct err *err);
int work_velocity_run(struct engine *e, struct work *w, struct err *err);

/* What of them needs blobs beyond the modules that modules_plan finds (Task.modules, the
 * mixture's, the teachers'): adds them with work_need_*. */
int phase_plan(struct engine *e, struct work *w, struct err *err);
int work_init_plan(struct engine *e, struct work *w, struct err *err);
/* Of any task: version 0 of its modules, where the cache lacks it, drawn from the seed into the
 * cache.  What cannot be had so is left to be fetched. */
void work_init_here(struct work *w);
int work_eval_plan(struct engine *e, struct work *w, struct err *err);
int work_feature_plan(struct engine *e, struct work *w, struct err *err);
int work_cluster_plan(struct engine *e, struct work *w, struct err *err);
int work_split_plan(struct engine *e, struct work *w, struct err *err);
int work_score_plan(struct engine *e, struct work *w, struct err *err);
int work_velocity_plan(struct engine *e, struct work *w, struct err *err);

/* SAMPLE of a language model. */
int work_text_plan(struct work *w, struct err *err);
int work_text_run(struct engine *e, struct work *w, struct err *err);

/* The task's tokenizer, whose blob is in the cache: its tokenizer.json, or bytes. */
struct tokenizer;
int work_tokenizer(const struct work *w, struct tokenizer **ret, struct err *err);
/* Of a file that the job brought and whose hash is right: if it is malformed, no worker will
 * ever read it.  Such an rc becomes -ERR_CONFIG, which is not tried again; rc is returned. */
int work_own_file(int rc, struct err *err);

#endif
