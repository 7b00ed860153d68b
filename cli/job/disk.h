/* What a job will hold on disks, before it is submitted: which files are kept is in docs/outer.md
 * ("Which are kept"), what has been measured in docs/deploy.md ("Disks").  Pure. */
#ifndef CLI_DISK_H
#define CLI_DISK_H

#include "common/base/base.h"
#include "common/job/job.h"
#include "common/job/recipe.h"

struct disk_options {
    uint64_t parameters[COMPOSITION_NETWORKS]; /* of a path of each network */
    int workers;                               /* that share the phases; 0: predict_workers() */
    double phase_s;         /* 0: not known, then long enough for snapshots and checkpoints */
    uint64_t shard_bytes;   /* that the coordinator gets; 0: it has them, or they are not known */
    double phase_share;     /* of the shards, that a phase reads */
    uint64_t files_bytes;   /* of frozen networks, which the coordinator and each worker get */
    uint64_t latents_bytes; /* of all pictures, at most; 0: not known */
};

/* In bytes.  Not counted: the database, samples, and what a worker keeps for later while there is
 * room: its cache, and latents.  With encoders.run: auto nobody knows before the submission where
 * latents will be, so those are apart. */
struct disk_need {
    uint64_t peak;  /* of the coordinator's blobs and outer states, at an outer step */
    uint64_t outer; /* the part of it that is on its own disk if blobs are in an object store */
    uint64_t end;   /* when the job has ended */
    uint64_t worker;
    uint64_t latents; /* the most that a worker may choose to keep beside that */
    uint64_t made;    /* what latents made before the training take beside that; 0: not known */
};

/* Of a composition whose networks have parameters. */
void disk_predict(const struct job_spec *spec, const struct composition *c,
                  const struct disk_options *opt, struct disk_need *ret);

/* For a person: a line. */
void disk_show(const struct disk_need *need, FILE *out);

#endif
