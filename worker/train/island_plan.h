/* The plan of an island's training without measurements, and a rank's part of a plan.
 *
 *     island_even_plan(is, model, 2, 8, JOB_PIPELINE_AUTO, &plan, err);
 *     island_place_parts(&plan, place, parts);            // model_part_new
 *     island_place_options(is, &plan, place, &opt);       // trainer_make
 *
 * Places are those of worker/pipe/schedule.h: the stages of a pipeline or, with two chains, the
 * devices of a copy.  Pure. */
#ifndef WORKER_ISLAND_PLAN_H
#define WORKER_ISLAND_PLAN_H

#include "common/base/base.h"
#include "worker/model/model.h"
#include "worker/pipe/schedule.h"
#include "worker/train/island.h"
#include "worker/train/train_options.h"

/* The options of a rank's trainer: its copy's share of the batch, in as many micro-batches. */
void island_share_options(const struct train_options *opt, int copies, struct train_options *ret);

/* The most stages of a pipeline of this order. */
int island_most_stages(const struct model_spec *s, enum job_pipeline order);

/* R = size / stages copies of a pipeline whose stages have about equally many blocks.  If stages do
 * not divide the size: one copy, whose stages have a device more or less, and blocks in
 * proportion.  Warm-ups and slots are 1F1B's for `micros` micro-batches.  With two chains, stages
 * must divide the size, and each device has a stage of both chains (joined, bidirectional) or of
 * one (divided), where the chains get devices in proportion to their FLOPs; JOB_PIPELINE_AUTO
 * divides if one chain has fewer blocks than there are stages.  -ENOMEM: it cannot have so many
 * stages; err says why. */
int island_even_plan(const struct island *is, const struct model *m, int stages, int micros,
                     enum job_pipeline order, struct pipe_plan *ret, struct err *err);

/* For the devices of a place: their parts of the model's chains (model_part_new), and the options
 * of their trainers, with slots for the micro-batches in flight and on a card for one more, which
 * arrives while another is computed. */
void island_place_parts(const struct pipe_plan *plan, int place,
                        struct model_part ret[MODEL_CHAINS]);
void island_place_options(const struct island *is, const struct pipe_plan *plan, int place,
                          struct train_options *opt);

#endif
