/* A module and its versions: written once, the last ones have blobs.  Fields marked (m) live in
 * memory alone.  Loop thread. */
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
    struct blob_ref target, momentum; /* (m) the optimiser's state after it, as its provenance says,
                                         where that is in the blob store; else size 0 */
    int64_t at_unix_ms;
    bool saved;    /* (m) its row is queued: versions do not change */
    bool restored; /* (m) an older one once more (job/rollback.h): nothing leads here, and nothing
                      that began before it goes into a later one */
};

struct module_rec {
    uint64_t id;
    uint32_t network, level, index;
    uint64_t version; /* newest; meaningful when n_versions > 0 */
    uint64_t params;
    struct version_rec versions[VERSIONS_KEPT_MAX]; /* oldest first */
    unsigned n_versions;
    unsigned kept;   /* at most: from the composition */
    unsigned untold; /* (m) of the newest versions: no commit has them yet, nobody is shown them */
    unsigned handed; /* (m) the older ones of those: the commit that is under way has them */
    /* Contributions folded, and how many versions older than the newest they began. */
    uint64_t folded, stale_sum, stale_max;
    uint64_t bytes_from_others;   /* contributions of other paths than the first that crosses it */
    uint64_t outer_task;          /* (m) the OUTER task that runs now; 0: none */
    struct outer_step *at_worker; /* (m) its step, while that is for a worker; NULL: it is not */
    uint64_t folded_by;           /* (m) worker that made the newest version, and has kept what the
                                     next step begins with; 0: none did */
    uint64_t fold_for;            /* (m) worker that at_worker is kept for; 0: for none */
    uint64_t retry_ms;            /* (m) no outer step before it */
    uint32_t outer_failures;      /* (m) in a row */
    bool outer_broken; /* (m) the last one found something of ours damaged: a person is needed */
    char outer_error[REASON_MAX];  /* (m) why the last one failed; "": it did not */
    char outer_reason[REASON_MAX]; /* (m) of the quorum, or the last failure */
    uint64_t quorum_ms;            /* (m) since when the grace runs; 0: there is no quorum yet */
    uint64_t asked_ms;             /* (m) when that was last looked at */
    struct row_mark row;
};

/* For fields marked (m), and no others: nothing is marked as edited. */
static inline struct module_rec *module_memory(const struct module_rec *m)
{
    return (struct module_rec *)m;
}

const struct version_rec *module_version(const struct module_rec *m, uint64_t version);
/* The oldest version, when there is no room for one more; NULL: there is. */
const struct version_rec *module_oldest(const struct module_rec *m);
/* How many versions a commit has, from the oldest on. */
unsigned module_told(const struct module_rec *m);
/* Takes v->provenance; the oldest makes room.  It is untold. */
void module_add_version(struct module_rec *m, const struct version_rec *v);
/* May the contribution still go into a version, or did it go into one that is kept? */
bool module_keeps(const struct module_rec *m, const struct contribution *c);
/* Was it kept until the newest version came? */
bool module_lets_go(const struct module_rec *m, const struct contribution *c);

void module_release(struct module_rec *m);

#endif
