/* SAMPLE: pictures or a text, drawn by one worker; VELOCITY: what its experts elsewhere say. */
#ifndef COORDINATOR_KINDS_SAMPLE_H
#define COORDINATOR_KINDS_SAMPLE_H

#include "coordinator/kinds/kind.h"

extern const struct kind kind_sample, kind_velocity;

/* Text as it is generated. */
int sample_stream(struct coordinator *co, struct worker *w, const Skerry__V1__StreamRequest *m,
                  struct err *err);
/* Has x_t evaluated by a path elsewhere: answers req later, or (negative) the caller does. */
int sample_evaluate(struct coordinator *co, struct worker *w, struct rpc_request *req,
                    const Skerry__V1__EvaluateRequest *m, struct err *err);
/* VELOCITY tasks whose sampler has ended are cancelled and forgotten.  Once in each turn. */
void sample_turn(struct coordinator *co);

#endif
