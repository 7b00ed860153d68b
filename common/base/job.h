/* The job file: what a person asks for.  job_parse checks everything that can be
 * checked without the data or a worker; afterwards every field is in range and
 * the fields agree with each other.  docs/job.md is generated from the same
 * tables.  Plain data: read-only after parsing, any thread. */
#ifndef COMMON_BASE_JOB_H
#define COMMON_BASE_JOB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/buf.h"
#include "common/base/conf.h"

struct err;

#define JOB_SPEC_MAX 32768 /* bytes of YAML; also the limit on the wire */
#define JOB_CHANNELS 3     /* pixels scaled to [-1, 1] */

enum job_model_type { JOB_MODEL_DIT };
enum job_schedule { JOB_SCHEDULE_CONSTANT, JOB_SCHEDULE_COSINE, JOB_SCHEDULE_DECAY };
enum job_precision { JOB_PRECISION_AUTO, JOB_PRECISION_BF16, JOB_PRECISION_F32 };
enum job_t { JOB_T_LOGIT_NORMAL, JOB_T_UNIFORM };
/* Same numbers as enum codec of common/outer. */
enum job_codec { JOB_CODEC_F32, JOB_CODEC_BF16, JOB_CODEC_INT8, JOB_CODEC_E3M0 };
enum job_sampler { JOB_SAMPLER_EULER, JOB_SAMPLER_HEUN };

struct job_data {
    char *path;           /* exactly one of path and url; relative to the CLI's directory */
    struct conf_strs url; /* http(s) tars */
    int image_size;       /* pixels, square */
    bool flip;
    double holdout; /* fraction */
    int shard_samples;
    int max_bad; /* images that may be broken */
};

struct job_model {
    int type;     /* enum job_model_type */
    char *preset; /* "DiT-S/2" or NULL; already applied to the fields below */
    int patch, dim, depth, heads;
    double mlp_ratio;
    double label_dropout;
};

struct job_train {
    int batch;      /* images per inner step of a replica */
    int accumulate; /* micro-batches of batch/accumulate images */
    double lr;
    int warmup;            /* steps */
    int schedule;          /* enum job_schedule */
    double decay_fraction; /* of all steps, at the end; schedule decay */
    double final_lr;       /* fraction of lr; schedule cosine */
    double weight_decay, beta1, beta2, eps;
    double clip;   /* global gradient norm; 0 off */
    double ema;    /* inner EMA decay per step; 0 off */
    int precision; /* enum job_precision */
    int t;         /* enum job_t */
    bool recompute;
};

/* What the name means is coordinator/recipe.c's business alone. */
struct job_recipe {
    char *name;
    int replicas;
};

struct job_outer {
    int rounds;
    int steps;   /* inner steps of a phase; 0 when bounded by seconds */
    int seconds; /* 0 when bounded by steps */
    double lr, momentum;
    double ema;    /* of the outer weights, per round */
    double quorum; /* fraction of the expected contributions */
    double grace;  /* seconds after the quorum; 0: wait for all that make progress */
};

struct job_wire {
    int up, down; /* enum job_codec */
};

struct job_sample {
    int every; /* rounds; 0: at the end only */
    int count, steps;
    int sampler;     /* enum job_sampler */
    double guidance; /* 1: off */
    int columns;
    uint64_t seed;
};

struct job_eval {
    int every; /* rounds; 0: at the end only, if there is a holdout */
    int samples;
};

struct job_spec {
    char *name;
    uint64_t seed;
    struct job_data data;
    struct job_model model;
    struct job_train train;
    struct job_recipe recipe;
    struct job_outer outer;
    struct job_wire wire;
    struct job_sample sample;
    struct job_eval eval;
};

/* text need not be terminated; `file` names it in messages.  On failure *ret is
 * zeroed and the sentence says file:line, key, what was expected. */
int job_parse(const char *text, size_t len, const char *file, struct job_spec *ret,
              struct err *err);
void job_release(struct job_spec *spec); /* { 0 } is fine */

/* Tokens of an image: (image_size/patch)^2. */
int job_tokens(const struct job_spec *spec);
const char *job_codec_name(int codec); /* "e3m0" */
const char *job_sampler_name(int sampler);
const char *job_precision_name(int precision);
const char *job_schedule_name(int schedule);
int job_sampler_parse(const char *name, int *ret);

/* Documentation of every key. */
int job_document(enum conf_format format, struct buf *out);

#endif
