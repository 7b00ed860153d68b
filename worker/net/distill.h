/* Learning from experts (distillation in McAllister et al., 2025): in place of the data's velocity
 * a DiT regresses the velocity of the expert of the sample's partition,
 *
 *    loss of an image = mean over its values of (student(x_t, t, c) - expert_k(x_t, t, c))²
 *
 * with x_t, t and c (label dropout included) drawn as for flow matching.  A student of two chains
 * (cascade.h) learns each from the same chain of the expert; an upscaler's expert is told what the
 * upscaler is told.  A struct net like any other (net_options.distill); its teachers are set
 * before the first loss and may be changed: each phase sets its own.
 *
 * Compute thread. */
#ifndef WORKER_DISTILL_H
#define WORKER_DISTILL_H

#include "common/base/base.h"
#include "worker/net/mix.h"
#include "worker/net/net.h"

struct image_net;

extern const struct net_ops distill_net_ops;

/* teachers (by partition) is copied and its arg kept until the next call; NULL: none, and then
 * net_loss fails.  -EINVAL for a net of another kind. */
int distill_teach(struct net *n, const struct mix_experts *teachers, struct err *err);

/* For networks with a student inside.  begin: from now on n learns from that chain of its teachers.
 * end, before n is freed; n may have no lesson.  bytes: what teachers take on the
 * device besides experts.h, for a student of m. */
void distill_begin(struct image_net *n, int chain);
void distill_end(struct image_net *n);
uint64_t distill_bytes(const struct model *m, const struct net_options *opt, int chain);

#endif
