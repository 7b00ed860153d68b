/* What happens while a SAMPLE task runs, and versions while a TRAIN task does. */
#ifndef COORDINATOR_LIVE_H
#define COORDINATOR_LIVE_H

struct Skerry__V1__EvaluateRequest;
struct Skerry__V1__StreamRequest;
struct Skerry__V1__VersionRequest;
struct coordinator;
struct err;
struct rpc_request;
struct worker;

/* Answers req when the version is there, when nobody works on it, or in the end. */
void live_version(struct coordinator *co, struct worker *w, struct rpc_request *req,
                  const struct Skerry__V1__VersionRequest *m);

/* Text as it is generated. */
int live_stream(struct coordinator *co, struct worker *w, const struct Skerry__V1__StreamRequest *m,
                struct err *err);
/* Answers req, now or later. */
void live_evaluate(struct coordinator *co, struct worker *w, struct rpc_request *req,
                   const struct Skerry__V1__EvaluateRequest *m);
/* VELOCITY tasks whose sampler has ended are cancelled and forgotten.  Once in each turn. */
void live_turn(struct coordinator *co);

#endif
