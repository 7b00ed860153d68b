/* VELOCITY: a path looks at x_t for a sampler elsewhere. */
#ifndef COORDINATOR_KINDS_VELOCITY_H
#define COORDINATOR_KINDS_VELOCITY_H

#include "coordinator/kinds/kind.h"

struct Skerry__V1__EvaluateRequest;
struct rpc_request;
struct worker;

extern const struct kind kind_velocity;

/* Answers req, now or later. */
void velocity_evaluate(struct coordinator *co, struct worker *w, struct rpc_request *req,
                       const struct Skerry__V1__EvaluateRequest *m);
/* Tasks whose sampler has ended are cancelled and forgotten.  Once in each turn. */
void velocity_turn(struct coordinator *co);

#endif
