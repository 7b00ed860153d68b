/* The experts and the router of a Task.mixture on this machine: the router stays on the
 * device, and the experts share a given amount of memory.
 *
 * If not all experts fit, the least recently used weights make room: of the experts that
 * a step needs, the loaded ones run first, then the others one after the other, reread
 * from their files in the cache.
 *
 * Experts of two chains (docs/cascades.md) are mixed in each: the base's velocities as those of any
 * expert; the upscaler's by weights that a sample keeps in all steps, those of the router at the
 * small image, made as noisy as the upscaler is told it.
 *
 * With Mixture.remote no expert is loaded: groups of points go to other workers
 * (METHOD_EVALUATE), all experts of a step at the same time.
 *
 * Compute thread. */
#ifndef WORKER_MIXTURE_H
#define WORKER_MIXTURE_H

#include "common/base/base.h"
#include "worker/net/cascade_sample.h"
#include "worker/net/sample.h"

struct engine;
struct mixture;
struct net_captions;
struct work;

struct mixture_options {
    int rows;          /* points of one evaluation, at most */
    int most;          /* experts of a point, at most; 0: as the rule says */
    const char *doing; /* "drawing": the activity shown to people, with the expert */
};

/* Points of one evaluation of w's mixture: `want`, or fewer when there are so many experts or
 * pixels that their velocities would take too much memory. */
int mixture_rows(const struct work *w, int want);

/* w->task->mixture with all its blobs in the cache. */
int mixture_open(struct engine *e, struct work *w, const struct mixture_options *opt,
                 struct mixture **ret, struct err *err);
void mixture_close(struct mixture *m); /* accepts NULL */

/* The captions that labels number, for experts with captions; must live as long. */
void mixture_captions(struct mixture *m, const struct net_captions *captions);

/* For sample_run.  The router sees x_t alone, so both branches of guidance have the
 * weights of their common point.  Without a reference image the oracle's partition of a
 * sample is drawn once, from the router's weights at t = 1 (the prior). */
struct sample_source mixture_source(struct mixture *m);
/* For cascade_sample_from, if the experts have two chains; low (count,s,s,3): the small images of
 * its samples, there before the upscaler's first call. */
struct cascade_source mixture_cascade(struct mixture *m, const uint8_t *low);
/* Bytes of a small image; 0: the experts have one chain. */
size_t mixture_low_bytes(const struct mixture *m);

/* How often an expert's weights were read; for tests. */
unsigned mixture_loads(const struct mixture *m);

/* EVAL of a mixture: one pass over the held-out samples gives the held-out loss of flow matching
 * with the experts combined in several ways, and the routing, into w->result; of experts of two
 * chains the sum of both chains' losses, as in every evaluation, and each by itself.  Time and
 * noise of a sample are those of every evaluation of the job (worker/train/eval.h), so the rows
 * compare with each other and with a monolith's loss.  Each batch runs every expert once; the ways
 * only combine. */
int mixture_eval(struct engine *e, struct work *w, struct err *err);

#endif
