/* Counts a chain's bytes by the layer and by the stage, for the planner of pipelines, as plan_train
 * counts those of a part (worker/train/plan.h): a plan that fits by these costs is not refused.
 *
 * Where S(i,j) are the bytes of a sample in a slot of blocks [i, j), a stage has
 * S(0,1) + S(1,2) - S(0,2) beside its layers, and layer i has S(i,i+2) - S(i+1,i+2); so a stage's
 * sum is S of its blocks.  What is there once, not in each slot, is that of one block, since blocks
 * share it, and more at the chain's ends.
 *
 * Sums are exact, except that too much counts: what the sizes of buffers could be rounded up; a
 * language model's logits, as of the most rows made at a time; what a backward with W in it has for
 * itself, also where W runs apart; and the frozen networks' weights, twice, where both chains begin
 * on one device.  Pure. */
#ifndef WORKER_PLAN_CHAIN_H
#define WORKER_PLAN_CHAIN_H

#include "worker/model/model.h"
#include "worker/pipe/costs.h"
#include "worker/train/train_options.h"

/* Sets all bytes of ret, whose layers are the blocks of this chain of m, but out_bytes.  opt: for
 * the whole step; its frozen networks' weights count as the first layer's, unless they are `apart`,
 * with costs of their own. */
int plan_chain(const struct model *m, int chain, const struct train_options *opt, bool apart,
               enum dtype dt, struct costs_chain *ret, struct err *err);

#endif
