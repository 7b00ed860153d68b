/* SAMPLE: pictures or a text, drawn by one worker. */
#ifndef COORDINATOR_KINDS_SAMPLE_H
#define COORDINATOR_KINDS_SAMPLE_H

#include "coordinator/kinds/kind.h"

#include <stdint.h>

struct Skerry__V1__StreamRequest;
struct worker;

extern const struct kind kind_sample;

/* The task, if this attempt of it is leased to w; else NULL, and why. */
struct task *sample_leased(struct coordinator *co, const struct worker *w, uint64_t task_id,
                           uint32_t attempt, struct err *err);
/* Text as it is generated. */
int sample_stream(struct coordinator *co, struct worker *w,
                  const struct Skerry__V1__StreamRequest *m, struct err *err);

#endif
