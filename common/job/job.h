/* The job file, by which a person asks for a job.  job_parse checks everything that
 * can be checked without the data or a worker; afterwards every field is in range
 * and the fields agree with each other.  docs/job.md is generated from the same
 * tables, which explain every key.  Plain data: read-only after parsing, any thread. */
#ifndef COMMON_JOB_JOB_H
#define COMMON_JOB_JOB_H

#include "common/base/base.h"
#include "common/base/buf.h"
#include "common/base/codec.h"
#include "common/job/conf.h"

#define JOB_SPEC_MAX 32768 /* bytes of YAML; also the limit on the wire */
#define JOB_NAME_MAX 64
#define JOB_PRIORITY_MIN (-100)
#define JOB_PRIORITY_MAX 100
#define JOB_SHARE_MIN 0.01
#define JOB_SHARE_MAX 100
#define JOB_BUDGET_MAX 1e9 /* dollars */
#define JOB_CHANNELS 3     /* pixels scaled to [-1, 1] */

enum job_model_type { JOB_MODEL_DIT, JOB_MODEL_LLAMA, JOB_MODEL_EXTERNAL };
/* The kind of the samples; AUTO: that of the model's family. */
enum job_data_kind { JOB_KIND_AUTO, JOB_KIND_IMAGES, JOB_KIND_TEXTS, JOB_KIND_NONE };
enum job_schedule { JOB_SCHEDULE_CONSTANT, JOB_SCHEDULE_COSINE, JOB_SCHEDULE_DECAY };
enum job_precision { JOB_PRECISION_AUTO, JOB_PRECISION_BF16, JOB_PRECISION_F32 };
enum job_t { JOB_T_LOGIT_NORMAL, JOB_T_UNIFORM };
enum job_late { JOB_LATE_DISCOUNT, JOB_LATE_DROP };
enum job_where { JOB_WHERE_AUTO, JOB_WHERE_COORDINATOR, JOB_WHERE_WORKER };
enum job_sampler { JOB_SAMPLER_EULER, JOB_SAMPLER_HEUN };
enum job_moments { JOB_MOMENTS_RESTART, JOB_MOMENTS_TRAVEL };
enum job_features {
    JOB_FEATURES_AUTO, /* see job_features() */
    JOB_FEATURES_PIXELS,
    JOB_FEATURES_NGRAMS,
    JOB_FEATURES_MODEL,
    JOB_FEATURES_COLUMN,
    JOB_FEATURES_LATENTS,
};
enum job_method {
    JOB_METHOD_AUTO, /* product if there are several levels, else two_level */
    JOB_METHOD_KMEANS,
    JOB_METHOD_TWO_LEVEL,
    JOB_METHOD_PRODUCT,
    JOB_METHOD_RANDOM,
};
/* How the experts of a mixture are combined at sampling (papers: DDM, section 3).  Messages and
 * databases hold the numbers: only add at the end. */
enum job_strategy {
    JOB_STRATEGY_TOP1,
    JOB_STRATEGY_TOPK,
    JOB_STRATEGY_FULL,
    JOB_STRATEGY_NUCLEUS,
    JOB_STRATEGY_THRESHOLD,
    JOB_STRATEGY_ORACLE,
};

/* Where the frozen networks run; databases do not hold the numbers. */
enum job_encode {
    JOB_ENCODE_AUTO,   /* JOB as the coordinator predicts, else as each worker does */
    JOB_ENCODE_FLY,    /* in each step */
    JOB_ENCODE_WORKER, /* in each step, and latents are kept on the worker's disk */
    JOB_ENCODE_JOB,    /* an ENCODE task per shard, before the training */
};

/* Pixels. */
struct job_shape {
    int width, height;
};

#define JOB_BUCKETS_MAX 16
#define JOB_HEAD_WIDTH_MAX 128 /* limit of the attention kernels */

/* The part of a model's state that an island's devices divide: nothing; the optimiser's state;
 * AUTO: the latter if it would not fit otherwise. */
enum job_shard { JOB_SHARD_AUTO, JOB_SHARD_NONE, JOB_SHARD_OPTIMIZER };
/* How the devices of a worker divide a step. */
enum job_parallel { JOB_PARALLEL_AUTO, JOB_PARALLEL_DATA, JOB_PARALLEL_PIPELINE };
/* The order of work in a pipeline. */
enum job_pipeline {
    JOB_PIPELINE_AUTO,
    JOB_PIPELINE_1F1B, /* with two chains: joined, one after the other */
    JOB_PIPELINE_SPLIT,
    /* From here on: only for two chains. */
    JOB_PIPELINE_DIVIDED, /* each on devices of its own */
    JOB_PIPELINE_BIDIRECTIONAL,
};
enum job_crop { JOB_CROP_CENTER, JOB_CROP_RANDOM };

struct job_data {
    int kind;                 /* enum job_data_kind; only for external models */
    char *path;               /* exactly one of path and url; relative to the CLI's directory */
    struct conf_strs url;     /* http(s) tars */
    int image_size;           /* pixels, square */
    struct conf_strs buckets; /* "WIDTHxHEIGHT" each; none: all are image_size square */
    int crop;                 /* enum job_crop: where images of another aspect are cropped */
    bool flip;
    double holdout; /* fraction */
    int shard_samples;
    int max_bad;        /* most broken samples */
    char *text_field;   /* the field of a JSON line with the text */
    char *tokenizer;    /* a tokenizer.json; NULL: bytes */
    char *holdout_path; /* a second source, all held out; NULL: none */
};

/* Frozen networks before the model, as folders of diffusers and transformers; paths are relative
 * to the CLI's directory.  All NULL: the model reads pixels and classes. */
struct job_encoders {
    char *path; /* a pipeline with vae/, text_encoder/ and tokenizer/, in place of the others */
    char *vae;  /* an AutoencoderKL: the model reads latents */
    char *text; /* a CLIPTextModel or T5EncoderModel: the model reads captions */
    char *tokenizer; /* NULL: beside text, or in it */
    int tokens;      /* most tokens of a caption; 0: the tokenizer's length, at most 120 */
    int layer;       /* CLIP: -1, or -2 for the last but one */
    int run;         /* enum job_encode */
    int cache;       /* MiB of latents on a worker's disk, with run: worker */
};

/* How a llama's rotary positions are scaled, with the names of transformers; rope_type default: not
 * at all; linear: all by factor, and the other numbers mean nothing (kernels/rope.h). */
enum job_rope_type { JOB_ROPE_DEFAULT, JOB_ROPE_LLAMA3, JOB_ROPE_LINEAR };
struct job_rope {
    int rope_type;
    double factor, low_freq_factor, high_freq_factor;
    int original_max_position_embeddings;
};

struct job_model {
    int type;     /* enum job_model_type */
    char *preset; /* "DiT-S/2" or NULL; already applied to the fields below */
    int patch, dim, depth, heads;
    double mlp_ratio;
    double label_dropout;
    double self_condition; /* share of the steps with an estimate; 0: the model reads none */
    /* llama */
    /* 0 in the file: heads; dim / heads; 8/3 dim rounded up to 32; always set here */
    int kv_heads, head_dim, ffn;
    int vocab; /* rows of a padded embedding; 0: as many as the data have token ids */
    bool qkv_bias, qk_norm;
    int no_rope_layer_interval; /* 0: none.  At most one of these three */
    int context;                /* tokens of a row */
    double rope_theta, norm_eps;
    struct job_rope rope_scaling;
    bool tied;        /* the head shares the embedding */
    char *warm_start; /* a folder with model.safetensors and config.json; NULL: from the seed */
};

/* A second chain of blocks, which draws large images from the small ones of the model
 * (docs/cascades.md).  A zero in the file means the model's value; here all are set if low_side is.
 */
struct job_upscaler {
    int low_side; /* side in pixels of the model's images; 0: there is no upscaler */
    int patch, dim, depth, heads;
    double noise; /* share of noise in the small image that it reads, in [0,1) */
};

/* How a trainer's buffers are synchronised: not at all, by their mean, or by taking the first
 * replica's. */
enum job_buffers { JOB_BUFFERS_OWN, JOB_BUFFERS_MEAN, JOB_BUFFERS_FIRST };

/* A user's program that trains in place of our own networks (docs/trainers.md). */
struct job_trainer {
    char *command; /* a shell's command line, run in the folder of files */
    char *files;   /* a folder, relative to the CLI's directory; NULL: none */
    struct conf_strs env;
    char *setup;              /* run once per state of files and setup; NULL: nothing */
    struct conf_strs tensors; /* patterns of names; none: all */
    enum job_buffers buffers;
    struct conf_strs levels; /* patterns of each level, separated by blanks: a block of the model */
};

/* The classifier that mixes experts: a small DiT.  A zero in the file means the
 * model's or the training's value; here all are set. */
struct job_router {
    int patch, dim, depth, heads;
    double mlp_ratio;
    int batch;
    double lr;
    int classes; /* 0: as many as there are experts */
};

struct job_train {
    int batch;      /* images per inner step of a replica */
    int accumulate; /* micro-batches of batch/accumulate images; 0: the fewest that fit */
    double lr;
    int warmup;            /* steps */
    int schedule;          /* enum job_schedule */
    double decay_fraction; /* share of all steps, at the end; schedule decay */
    double final_lr;       /* fraction of lr; schedule cosine */
    double weight_decay, beta1, beta2, eps;
    double clip;   /* global gradient norm; 0 off */
    double ema;    /* of an average in older releases; only tells checkpoints apart */
    int precision; /* enum job_precision */
    int t;         /* enum job_t */
    double shift;  /* of the times (worker/net/flow_matching.h) */
    bool recompute, fill;
    int parallel; /* enum job_parallel */
    int pipeline; /* enum job_pipeline */
    int shard;    /* enum job_shard */
    int stages;   /* stages of a pipeline; 0: auto, by prediction */
};

/* Only common/job/recipe.c knows what the name means. */
struct job_recipe {
    char *name;
    int replicas; /* 0: auto, composition.elastic */
    int experts;
    struct conf_ints levels;         /* modules of each level */
    struct conf_ints private_blocks; /* blocks that each path has for itself */
    bool private_embeddings;
    bool divide_batch;        /* train.batch is the batch of all experts together */
    int top;                  /* partitions to which a training sample belongs */
    struct conf_ints reshard; /* rounds before which paths are routed anew */
    bool early_stop;
    int moments;        /* enum job_moments: when a path moves to another worker */
    int moments_warmup; /* steps after a restart of the moments */
    int teacher;        /* id of the job to learn from; 0: none */
};

/* How the data are divided into partitions. */
struct job_partition {
    int features;           /* enum job_features */
    char *column;           /* name of a feature column of the dataset */
    int dims;               /* dimensions that PCA keeps; 0: all */
    int method;             /* enum job_method */
    int fine;               /* clusters of the first level, with two_level */
    double balance;         /* most of the largest partition over the mean; 0: no bound */
    int chunk;              /* tokens between re-routings at evaluation; 0: once per sample */
    double router_fraction; /* share of the samples that is kept for fitting routers */
};

struct job_outer {
    int rounds;
    int steps;   /* inner steps of a phase; 0: it is bounded by seconds */
    int seconds; /* seconds of a phase; 0: it is bounded by steps */
    double lr, momentum;
    int warmup;         /* rounds over which the momentum grows from 0; 0: none */
    double ema;         /* decay of the outer weights' average, per round */
    double quorum;      /* fraction of the expected contributions */
    double grace;       /* seconds after the quorum; 0: wait for all that make progress */
    double share_cap;   /* most that one worker's contributions weigh in a step; 1: no cap */
    bool spot_check;    /* first phases of new workers are repeated by others */
    int late;           /* enum job_late: for contributions after their round is closed */
    int where;          /* enum job_where: who makes the outer steps */
    double snapshot;    /* least seconds between two snapshots of a phase; 0: none; < 0: auto */
    int fragments;      /* parts of a module, synchronised one after the other; 0: auto, as 1 */
    int delay;          /* inner steps between a fragment's contribution and its merge */
    double mix;         /* share of the local weights that a merge keeps */
    bool async;         /* fold each contribution when it comes */
    double alone_lr;    /* not a key: lr of a round with one contribution, without momentum; or 0 */
    int nesterov_delay; /* contributions between two momentum steps; async */
};

struct job_wire {
    int up, down; /* enum codec */
};

struct job_sample {
    int every; /* rounds; 0: only at the end */
    int count, steps;
    int sampler;     /* enum job_sampler */
    double guidance; /* 1: off */
    int columns;
    uint64_t seed;
    int strategy;             /* enum job_strategy: mixtures */
    int top;                  /* strategy topk */
    double nucleus;           /* strategy nucleus: smallest set with this much probability */
    double threshold;         /* strategy threshold: experts at least this probable */
    bool remote;              /* experts stay on their workers, and only x_t and v travel */
    char *prompt;             /* llama */
    struct conf_strs prompts; /* captions that are drawn, in turn; none: the empty one */
    int tokens;               /* llama: tokens to generate */
    double temperature;
    double top_p;
};

struct job_eval {
    int every; /* rounds; 0: only at the end, if there is a holdout */
    int samples;
    double guard; /* most of the held-out loss over the best recent one; 0: no bound */
};

/* The job's share of workers and money (docs/sharing.md). */
struct job_swarm {
    int priority;  /* among the jobs of a coordinator; the highest goes first */
    double share;  /* weight in dividing the workers among jobs of its priority */
    double budget; /* dollars; 0: no bound */
};

/* A job file, read and checked. */
struct job_spec {
    bool taken; /* read from a coordinator's record (job_parse_taken), not from a new file */
    char *name;
    uint64_t seed;
    struct job_data data;
    struct job_encoders encoders;
    struct job_model model;
    struct job_upscaler upscaler;
    struct job_trainer trainer;
    struct job_router router;
    struct job_train train;
    struct job_recipe recipe;
    struct job_partition partition;
    struct job_outer outer;
    struct job_wire wire;
    struct job_sample sample;
    struct job_eval eval;
    struct job_swarm swarm;
};

/* text need not be terminated; `file` names it in messages.  On failure *ret is
 * zeroed, and err says file:line, the key, and what was expected. */
int job_parse(const char *text, size_t len, const char *file, struct job_spec *ret,
              struct err *err);
/* As job_parse, for a coordinator's text of a job.  Defaults that may change between releases are
 * written into it (job_keep_defaults); if one is missing, the job was taken by a release that did
 * not write it, and gets that release's default. */
int job_parse_taken(const char *text, size_t len, const char *file, struct job_spec *ret,
                    struct err *err);
/* As job_parse_taken, for a job that was accepted once.  1: a newer rule refuses it, and err says
 * which; only those fields of *ret that define the model and its composition are reliable.
 * Negative: not even those can be read. */
int job_parse_saved(const char *text, size_t len, const char *file, struct job_spec *ret,
                    struct err *err);
void job_release(struct job_spec *spec); /* { 0 } is fine */
/* For a new job, besides job_parse: -ERR_CONFIG for a key that has no effect in a job of this
 * kind, such as model.tied of a dit.  Saved jobs are not checked. */
int job_check_scope(const char *text, size_t len, const char *file, const struct job_spec *spec,
                    struct err *err);

/* The text of a job file, with the missing ones of the keys whose defaults are a release's choice
 * (train.lr, train.schedule, train.warmup, outer.warmup, outer.momentum, recipe.replicas,
 * sample.guidance) added from spec, so that another release reads the same job.  *ret is
 * allocated.  -ERR_CONFIG: there is no room or place for them. */
int job_keep_defaults(const char *text, const struct job_spec *spec, char **ret, struct err *err);
/* The text of a job file whose outer.fragments is auto, with these values in its place and a
 * comment `why` at its end.  *ret is allocated.  -ERR_CONFIG as above. */
int job_write_fragments(const char *text, int fragments, int delay, double mix, const char *why,
                        char **ret, struct err *err);
/* The text of a job file for those who may watch the job, but not use its data: trainer.env has its
 * names without their values, and data.url neither queries nor what is before an @.  Empty if the
 * text cannot be read.  The caller frees it. */
char *job_without_secrets(const char *text);
/* Shortens one address in the same way, in place. */
void job_blank_url(char *url);

/* Does the model read latents, rather than pixels?  Captions, rather than classes or neither? */
static inline bool job_has_latents(const struct job_spec *s)
{
    return s->encoders.path != NULL || s->encoders.vae != NULL;
}
/* Does each worker decide whether to keep latents of pictures that it encodes in its steps? */
static inline bool job_may_keep_latents(const struct job_spec *s)
{
    return job_has_latents(s) && s->encoders.run == JOB_ENCODE_AUTO &&
           s->data.crop != JOB_CROP_RANDOM;
}
static inline bool job_has_captions(const struct job_spec *s)
{
    return s->encoders.path != NULL || s->encoders.text != NULL;
}

/* Do modules, or parts of them, travel during a phase? */
static inline bool job_streams(const struct job_spec *s)
{
    return s->outer.fragments > 1 || s->outer.delay > 0 || s->outer.mix > 0;
}

/* Least seconds between two snapshots of a phase of a path of so many parameters; 0: there are
 * none.  With outer.snapshot: auto it grows with the square root of a snapshot's bytes, as between
 * checkpoints that cost as much as their bytes (Young, A first order approximation to the optimum
 * checkpoint interval, 1974): docs/spot.md. */
double job_snapshot_s(const struct job_spec *s, uint64_t parameters);
/* Sending them takes at most one part in so many of the time: on a slow link they are rarer. */
#define JOB_SNAPSHOT_SENT_SHARE 4

/* Does the model have two chains?  Its blocks are then the model's followed by the upscaler's. */
static inline bool job_has_upscaler(const struct job_spec *s)
{
    return s->upscaler.low_side > 0;
}
static inline int job_blocks(const struct job_spec *s)
{
    return s->model.depth + (job_has_upscaler(s) ? s->upscaler.depth : 0);
}

/* Shape i of data.buckets; width 0: its text is no shape. */
struct job_shape job_bucket(const struct job_spec *s, size_t i);

/* Tokens of a sample: (image_size/patch)^2, or model.context; 0 with latents, whose side is not in
 * the job file.  For tests. */
int job_tokens(const struct job_spec *spec);

/* Most tokens of a piece of text: the inputs of a row, and one more, which is only predicted.  The
 * user's trainer gets no more than model.context. */
int job_piece(const struct job_spec *spec);

/* The names of choices in a job file, "?" for other numbers; and the numbers of names, or -EINVAL.
 */
const char *job_features_name(int features);
const char *job_rope_name(int type);
int job_rope_parse(const char *name, int *ret);
const char *job_strategy_name(int strategy);
int job_strategy_parse(const char *name, int *ret);
int job_sampler_parse(const char *name, int *ret);

/* What the name of a job may be, for an error about one that is not: "expected 1 to 64 of ..; did
 * you mean 'flowers'?"  Returns out. */
#define JOB_NAME_RULE_MAX 192
char *job_name_rule(const char *name, char out[JOB_NAME_RULE_MAX]);

/* A grid of samples is one picture, whose sides have at most this many pixels. */
#define JOB_GRID_SIDE_MAX 16384
#define JOB_GUIDANCE_CAPTIONS 3 /* the default where captions are read */
#define JOB_GRID_GAP 1          /* pixels between samples, and around them */
/* -ERR_LIMIT: the grid would be too large; err says how many columns would do. */
int job_check_grid(const struct job_spec *spec, uint32_t count, uint32_t columns, struct err *err);

/* Documents every key. */
int job_document(enum conf_format format, struct buf *out);

#endif
