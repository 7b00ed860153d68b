/* Fragments: modules that are synchronised during their phase (Streaming DiLoCo,
 * Douillard et al. 2025, 2501.18512).
 *
 *   step s_f of the phase    the contribution is written, sent, reported      ┐ in the
 *                            the next version is asked for and fetched        ┘ background
 *   step s_f + delay         theta <- mix theta + (1 - mix) version
 *
 * Only the merge waits, if the version is not there by then; that time is counted.
 * It does not wait where that could take for ever (the version needs a replica that no
 * worker has: `later`), nor at the end of the phase: then the merge happens at the next
 * step at which the version is there, or when the replica's next phase begins.
 *
 * WEIGHTS.  Between two merges a fragment trains on across phases, so a replica that
 * stays here continues with its own weights.  met[l] is the version of level l with
 * which they were last merged:
 *
 *   phase begins with version v of l:   met[l] == v      its own weights
 *                                       met[l] == v - 1  merged with v
 *                                       otherwise        v
 *
 * A contribution that could not be sent in time goes with the report at the end.
 *
 * The caller holds the weights; for those of our networks see fragment_net.h.
 * Compute thread. */
#ifndef WORKER_FRAGMENT_H
#define WORKER_FRAGMENT_H

#include "common/base/base.h"
#include "proto/skerry.pb-c.h"

struct fragments;
struct modules;
struct work;
struct work_output;

/* In met: the level has not been merged with any version yet. */
#define NO_VERSION UINT64_MAX

/* All pointers are kept until fragments_close. */
struct fragments_options {
    struct work *w; /* a TRAIN task with fragments, and an uplink */
    struct modules *modules;
    uint64_t *met;         /* by level; updated */
    const char *state_dir; /* residuals: those of what was sent are marked */
    /* The contribution of a level's weights as they are now (worker/engine/contribute.h). */
    int (*contribute)(void *arg, const Skerry__V1__ModuleRef *base, uint64_t samples,
                      struct work_output *ret, struct err *err);
    /* theta <- mix theta + (1 - mix) version, for the tensors of the version's file, those of the
     * level: in double, rounded once; with mix 0 the file's bits. */
    int (*merge)(void *arg, uint32_t level, const char *path, double mix, struct err *err);
    void *arg;
};

struct fragments *fragments_open(const struct fragments_options *opt);
/* Drops transfers under way.  Accepts NULL. */
void fragments_close(struct fragments *f);

/* The weights at the beginning of a phase.  own: the replica's, merged with what has come
 * since; else the caller has set those of the task's modules. */
int fragments_load(struct fragments *f, bool own, struct err *err);

/* After `steps` steps of the phase with `samples`: contributes and merges what is due. */
int fragments_step(struct fragments *f, uint32_t steps, uint64_t samples, struct err *err);

/* For weights that are not at hand at every step: the next one after which fragments_step() has
 * something to do with them, 0: none before the last one.  At others fragments_travel() is enough,
 * which has what travels go on. */
uint32_t fragments_next(const struct fragments *f);
int fragments_travel(struct fragments *f, uint32_t steps, struct err *err);

/* After the last step: merges what is there, and adds to w's outputs what the
 * coordinator does not have yet. */
int fragments_finish(struct fragments *f, uint64_t samples, struct err *err);

/* Time spent waiting for versions, ms. */
uint64_t fragments_waited_ms(const struct fragments *f);

#endif
