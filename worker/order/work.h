/* A task at this worker, from its message to its report.
 *
 *   loop thread:     work_new ─► plan ─► fetch ─► run ─► upload ─► report ─► work_free
 *   compute thread:              plan    prepare  run
 *
 * Between the hand-over to the compute thread and its answer, the loop touches only `stop` and
 * `progress`.  While the compute thread prepares, both threads read the task, and the loop owns
 * `times` and `result`. */
#ifndef WORKER_WORK_H
#define WORKER_WORK_H

#include <stdatomic.h>

#include "common/base/base.h"
#include "common/base/buf.h"
#include "common/job/job.h"
#include "common/net/pbmem.h"
#include "proto/skerry.pb-c.h"
#include "worker/order/cache.h"
#include "worker/data/data.h"
#include "worker/order/kind.h"
#include "worker/order/progress.h"
#include "worker/order/times.h"

struct tokenizer;
struct uplink;

#define WORK_OUTPUTS_MAX 4096
#define WORK_ROWS_MAX 256
#define WORK_MESSAGE_MAX (16u << 20) /* bytes of an unpacked task */
#define WORK_STATE_FILES_MAX 65536   /* of a state directory, of which more are not looked at */

/* Why the compute thread should stop, if it should. */
enum work_stop {
    WORK_GO,
    WORK_SAVING,  /* the process ends in a while: send a snapshot for another worker */
    WORK_REVOKED, /* the result is no longer wanted */
    WORK_LEAVING, /* the process ends: save a local checkpoint for a restart */
};

/* A blob that the task reads.  url is borrowed from the task. */
struct work_need {
    uint8_t sha256[32];
    uint64_t size;
    const char *url;
    char what[64]; /* "shard 3", "module 7 version 2" */
    bool missing;  /* not in the cache: fetch it */
};

/* Where the report puts an output. */
enum work_role {
    WORK_RESULT,       /* the one output of the task */
    WORK_CONTRIBUTION, /* to a module, or its first version */
    WORK_SHARD,
    WORK_ASSIGNMENT, /* beside the partitioner */
    WORK_MOMENTS,
};

/* A file that the task made. */
struct work_output {
    enum work_role role;
    char path[CACHE_PATH_MAX];
    uint8_t sha256[32];
    uint64_t size;
    uint64_t module_id, base_version; /* TRAIN and INIT */
    uint64_t samples;                 /* INGEST, SPLIT; TRAIN: behind a fragment, else 0 */
    uint64_t tokens;                  /* INGEST, SPLIT: of texts */
    uint32_t partition;               /* SPLIT */
    bool holdout;                     /* INGEST, SPLIT */
};

/* A named figure. */
struct work_row {
    char name[65];
    double value;
    char unit[17];
};

struct work_result {
    struct work_output *outputs; /* room for cap */
    size_t n_outputs, cap;
    uint32_t steps, skipped;
    uint64_t samples;
    float loss_first, loss_last, loss_mean;
    float seconds;   /* of computing, without waited_ms */
    double loss_sum; /* EVAL: over units; bytes: of the text behind the tokens */
    uint64_t units, bytes;
    double numbers[PROGRESS_NUMBERS_MAX]; /* EVAL: by progress_number, NAN: none */
    size_t n_numbers;
    struct work_row *rows; /* EVAL, CLUSTER */
    size_t n_rows;
    struct data_bad bad[DATA_BAD_MAX];
    unsigned n_bad, bad_count;
    char **classes; /* INGEST */
    size_t n_classes;
    uint64_t uncaptioned; /* INGEST: images without a caption */
    char *text;           /* SAMPLE of texts; NULL: none */
    struct buf trace;     /* TRAIN on several devices: the trace of a step, or empty */
    uint64_t *sizes;      /* CLUSTER: samples of each of n_sizes partitions; freed with the work */
    size_t n_sizes;       /* at most TASK_PARTITIONS_MAX */
    uint64_t waited_ms;   /* for the network: before, during and after computing */
};

struct work {
    struct pbmem mem; /* holds task */
    const Skerry__V1__Task *task;
    const struct kind *kind;
    struct job_spec spec;
    char *temp_dir;    /* this task's own; removed by work_free */
    char *source_path; /* INGEST: the fetched archive */
    struct cache *cache;
    struct uplink *uplink; /* to the coordinator while it runs; NULL without one */

    struct work_need *needs;
    size_t n_needs;
    bool full_only; /* deltas failed: take the full blobs */
    bool anew;      /* the coordinator has refused what was made of it: that is not sent again */

    atomic_int stop;         /* enum work_stop */
    atomic_bool job_goes_on; /* when revoked: the job's next task will use what this one prepares */
    atomic_bool save;        /* send a snapshot soon */
    struct progress progress;
    struct times times;
    struct work_result result;
};

/* Checks the message by the list of kinds, copies it, parses the job in it, and makes temp_dir
 * below tmp_root.  Keeps cache until work_free. */
int work_new(const struct kind *const *kinds, const Skerry__V1__Task *task, struct cache *cache,
             const char *tmp_root, struct work **ret, struct err *err);
/* Without a task, only needs and a temp_dir of that name: for prefetching. */
int work_new_bare(struct cache *cache, const char *tmp_root, const char *name, struct work **ret,
                  struct err *err);
/* Unpins the needed blobs and removes temporary files.  Accepts NULL. */
void work_free(struct work *w);

/* True when the compute thread should stop; then `err`, unless NULL, says -ERR_CANCELLED. */
bool work_stopped(struct work *w, struct err *err);
/* The same for preparations that outlast the task and may take longer than it: they continue while
 * the job does; otherwise they would start over with each task and never finish. */
bool work_abandoned(struct work *w);

/* Adds a blob to read; pinned until work_free; adding it twice has no effect. */
int work_need(struct work *w, const uint8_t sha256[32], uint64_t size, const char *url,
              const char *what, struct err *err);
/* The same for a blob of the message, and for the shards of ranges. */
int work_need_blob(struct work *w, const Skerry__V1__Blob *blob, const char *what, struct err *err);
int work_need_ranges(struct work *w, Skerry__V1__Range *const *ranges, size_t n, struct err *err);
/* Sets `missing` of every need that is not verified in the cache, and makes room for those.  Slow:
 * compute thread.  Ends early when the task is stopped. */
void work_check_needs(struct work *w);
/* The path of a needed blob. */
void work_blob_path(const struct work *w, const uint8_t sha256[32], char ret[CACHE_PATH_MAX]);

/* A new output whose fields the caller fills; NULL beyond the maximum. */
struct work_output *work_output(struct work *w);
/* The same with a role and the path "TEMP_DIR/name", or -ENOMEM, -ERR_LIMIT. */
int work_output_new(struct work *w, enum work_role role, const char *name, struct work_output **ret,
                    struct err *err);
/* Keeps an output, whose hash is known, in the cache for later tasks: by a link, which takes no
 * room on the disk.  A file for which the cache has no room would be fetched again. */
void work_keep_output(const struct work *w, const struct work_output *o);
/* Adds a row; beyond WORK_ROWS_MAX they are dropped. */
void work_row(struct work *w, double value, const char *unit, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* "TEMP_DIR/name". */
void work_temp_path(const struct work *w, const char *name, char ret[CACHE_PATH_MAX]);

/* Ranges of the task with the local paths of their shards; mem_free. */
int work_ranges(const struct work *w, Skerry__V1__Range *const *ranges, size_t n,
                struct data_range **ret, struct err *err);

/* The task's tokenizer, whose blob is in the cache: its tokenizer.json, or bytes.  NULL: the ids
 * are of one that the job does not name. */
int work_tokenizer(const struct work *w, struct tokenizer **ret, struct err *err);
/* A file that the job brought and whose hash is right: if it is malformed, no worker will ever
 * read it.  Such an rc becomes -ERR_CONFIG, which is not tried again; rc is returned. */
int work_own_file(int rc, struct err *err);

#endif
