/* The plan of an island's training where nothing was measured, and a rank's part of a plan.
 *
 *     island_even_plan(is, model, 2, 8, JOB_PIPELINE_AUTO, &plan, err);
 *     island_place_parts(&plan, place, parts);            // model_part_new
 *     island_place_options(is, &plan, place, &opt);       // trainer_make
 *
 * Places are those of worker/pipe/schedule.h: the stages of a pipeline, of two chains the devices
 * of a copy.  Pure. */
#ifndef WORKER_ISLAND_PLAN_H
#define WORKER_ISLAND_PLAN_H

#include "common/base/base.h"
#include "worker/model/model.h"
#include "worker/pipe/schedule.h"
#include "worker/train/island.h"
#include "worker/train/train_options.h"

/* The options of a rank's trainer: its copy's share of the batch, in as many micro-batches. */
void island_share_options(const struct train_options *opt, int copies, struct train_options *ret);

/* The most stages that a pipeline of the order has. */
int island_most_stages(const struct model_spec *s, enum job_pipeline order);

/* R = size / stages copies of a pipeline whose stages have about as many blocks each; where stages
 * do not divide the size one copy, whose stages have a device more or less, and blocks in
 * proportion.  With the warm-ups and slots of 1F1B for `micros` micro-batches.  Of two chains each
 * device has a stage of both, joined or bidirectional, or of one, divided, where each chain has
 * devices in proportion to its FLOPs (JOB_PIPELINE_AUTO: where one chain has fewer blocks than
 * there are stages); and stages must divide the size.  -ENOMEM: it cannot have so many stages, with
 * the reason. */
int island_even_plan(const struct island *is, const struct model *m, int stages, int micros,
                     enum job_pipeline order, struct pipe_plan *ret, struct err *err);

/* What the devices of a place have: parts of the model's chains (model_part_new), and what their
 * trainers are made with: room for the micro-batches in flight, and on a card for one more, which
 * comes while another is computed. */
void island_place_parts(const struct pipe_plan *plan, int place,
                        struct model_part ret[MODEL_CHAINS]);
void island_place_options(const struct island *is, const struct pipe_plan *plan, int place,
                          struct train_options *opt);

#endif
