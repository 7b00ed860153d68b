/* SAMPLE: one worker generates pictures or text.  VELOCITY: another worker evaluates an expert for
 * it. */
#ifndef COORDINATOR_KINDS_SAMPLE_H
#define COORDINATOR_KINDS_SAMPLE_H

#include "coordinator/state/core.h"
#include "proto/skerry.pb-c.h"

/* Takes a piece of text while it is generated. */
int sample_stream(struct coordinator *co, struct worker *w, const Skerry__V1__StreamRequest *m,
                  struct err *err);
/* Has x_t evaluated by a path at another worker.  Answers req later; negative: the caller answers.
 */
int sample_evaluate(struct coordinator *co, struct worker *w, struct rpc_request *req,
                    const Skerry__V1__EvaluateRequest *m, struct err *err);
/* VELOCITY tasks whose sampler has ended are cancelled and forgotten.  Once in each turn. */
void sample_turn(struct coordinator *co);

#endif
