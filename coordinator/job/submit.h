/* Submits a job: it is recorded, or refused with one sentence.  Nothing of it runs before flow.c
 * takes it up in the next turn. */
#ifndef COORDINATOR_SUBMIT_H
#define COORDINATOR_SUBMIT_H

#include "common/base/base.h"
#include "coordinator/state/record.h"

struct coordinator;
struct encoder_file;
struct network_input;

#define SUBMIT_SHARDS_MAX 32768 /* equal to DATASET_SHARDS_MAX */

struct submit_shard {
    uint8_t sha256[32];
    uint64_t size;
    uint32_t samples;
    uint64_t tokens; /* texts */
    bool holdout;
};

/* Everything is borrowed for the call.  classes and counts have n_classes
 * entries; all zero when the job's data comes by URL. */
struct submit {
    const char *spec; /* YAML, terminated */
    const char *const *classes;
    const uint64_t *counts;
    size_t n_classes;
    const struct submit_shard *shards; /* must be in the blob store already */
    size_t n_shards;
    const struct bad_sample *bad; /* found while cutting */
    size_t n_bad;
    uint32_t vocab;                      /* texts: token ids; 0: images */
    const struct blob_ref *tokenizer;    /* tokenizer.json, uploaded; NULL: bytes */
    const struct blob_ref *warm_start;   /* safetensors, uploaded; NULL: from the seed */
    const struct encoder_file *encoders; /* files of the frozen networks, uploaded */
    size_t n_encoders;
    const struct network_input *input; /* the output of those; NULL: pixels and classes */
    uint64_t holder;                   /* who submits it (access.h); 0: unknown */
};

/* At JOBS_MAX the oldest ended job without a model makes room, which an event says; where each has
 * one or is active, -ERR_LIMIT: no model is removed for another job.
 * 0 and the job's id: the job is complete in memory, and its rows are queued. */
int submit_job(struct coordinator *co, const struct submit *s, uint64_t *ret_id, struct err *err);

#endif
