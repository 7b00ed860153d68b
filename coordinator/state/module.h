/* A module and its versions.  A version never changes; only the newest ones keep their blobs.
 * Fields marked (m) live only in memory.  Loop thread. */
#ifndef COORDINATOR_MODULE_H
#define COORDINATOR_MODULE_H

#include "coordinator/state/mark.h"
#include "coordinator/state/record.h"

struct contribution;
struct outer_step;

#define VERSIONS_KEPT 4 /* more where contributions may start from older ones */
#define VERSIONS_KEPT_MAX 32

struct version_rec {
    uint64_t version;
    struct blob_ref full, delta, ema; /* delta: from version - 1 */
    char *provenance;                 /* JSON */
    struct blob_ref target, momentum; /* (m) the optimiser's state after it, by its provenance;
                                         size 0: not in the blob store */
    int64_t at_unix_ms;
    bool saved;    /* (m) its row is queued: versions do not change */
    bool restored; /* (m) it repeats an older one (job/rollback.h): no delta leads to it, and no
                      contribution from before it goes into a later one */
};

struct module_rec {
    uint64_t id;
    uint32_t network, level, index;
    uint64_t version; /* newest; meaningful when n_versions > 0 */
    uint64_t params;
    struct version_rec versions[VERSIONS_KEPT_MAX]; /* oldest first */
    unsigned n_versions;
    unsigned kept;   /* versions kept at most: from the composition */
    unsigned untold; /* (m) newest versions in no finished commit: they must not be shown yet */
    unsigned handed; /* (m) the older ones of these: they are in the commit under way */
    /* Contributions folded, and how many versions before the newest they began. */
    uint64_t folded, stale_sum, stale_max;
    uint64_t bytes_from_others;   /* of contributions by paths other than the first across it */
    uint64_t outer_task;          /* (m) the OUTER task under way; 0: none */
    struct outer_step *at_worker; /* (m) its step, while a worker shall make it; NULL: none shall */
    uint64_t folded_by;           /* (m) worker that made the newest version and has kept the files
                                     for the next step; 0: none */
    uint64_t fold_for;            /* (m) worker for which at_worker is reserved; 0: none */
    uint64_t retry_ms;            /* (m) no outer step before this */
    uint32_t outer_failures;      /* (m) failed steps in a row */
    bool outer_broken; /* (m) the last step found a file of ours damaged: a person is needed */
    char outer_error[REASON_MAX];  /* (m) why the last step failed; "": it did not */
    char outer_reason[REASON_MAX]; /* (m) of the quorum, or the last failure */
    uint64_t quorum_ms;            /* (m) when the grace began; 0: there is no quorum yet */
    uint64_t asked_ms;             /* (m) when the quorum was last considered */
    struct row_mark row;
};

/* For writing fields marked (m) only: nothing is marked as edited. */
static inline struct module_rec *module_memory(const struct module_rec *m)
{
    return (struct module_rec *)m;
}

const struct version_rec *module_version(const struct module_rec *m, uint64_t version);
/* The oldest version if there is no room for another one; else NULL. */
const struct version_rec *module_oldest(const struct module_rec *m);
/* Forgets its only version, in whose place another one comes. */
void module_drop_first(struct module_rec *m);
/* How many versions are in a finished commit, from the oldest on. */
unsigned module_told(const struct module_rec *m);
/* Adds a version, which is untold; the oldest makes room.  Takes v->provenance. */
void module_add_version(struct module_rec *m, const struct version_rec *v);
/* Whether the contribution may still go into a version, or went into the newest one: only that step
 * can be made again.  A refused one stays as long as the version into which it would have gone. */
bool module_keeps(const struct module_rec *m, const struct contribution *c);
/* Whether it was kept until the newest version was added. */
bool module_lets_go(const struct module_rec *m, const struct contribution *c);

void module_release(struct module_rec *m);

#endif
