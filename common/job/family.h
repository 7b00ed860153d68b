/* The families of models that a job may train, one row each: coordinator, worker and CLI ask the
 * row, so that none of them tests for the name in model.type.  The keys of a job file that belong
 * to a family, and their rules, are in family.c.  A new family is a row there, one in
 * worker/model/model_family.h, one in worker/net/net.c and one in cli/base/model_folder.h.
 *
 * Pure, any thread. */
#ifndef COMMON_JOB_FAMILY_H
#define COMMON_JOB_FAMILY_H

#include "common/base/base.h"
#include "common/job/job.h"

struct yaml_doc;

struct job_family {
    const char *name; /* model.type */
    /* Samples are pieces of text: tokens of a vocabulary, packed into rows of model.context; the
     * loss is in nats per token (also bits per byte), and generated text continues a prompt.  Else
     * images with classes: the loss is per image, and images of classes are drawn. */
    bool texts;
    bool external;              /* trained by a program of the user */
    bool data;                  /* it learns from the job's data; else its trainer reads its own */
    bool packs;                 /* pieces of text fill rows of model.context */
    const char *what;           /* "images", "texts" */
    const char *samples;        /* name of a shard's samples: "images", "pieces of text" */
    bool mixes;                 /* a router can mix networks of this family */
    bool chunks;                /* a sample's parts can be routed separately */
    enum job_features features; /* features for partitions, without a model */
    const char *keys;           /* keys that not all families have, in one text (str_has_word) */
    const char *without;        /* keys that all the others have; NULL: none */
    int (*tokens)(const struct job_spec *s); /* job_tokens */
    /* Completes the sections model and router and checks them. */
    int (*complete)(const struct yaml_doc *doc, struct job_spec *s, struct err *err);
};

/* The family of model.type, and of data.kind for an external model. */
const struct job_family *job_family(const struct job_spec *spec);

/* Family i; NULL after the last. */
const struct job_family *job_family_at(int i);

/* The default of train.lr: AdamW's learning rate for a model of this width.  The best rate for
 * matrices is proportional to 1 / width (Yang et al., "Tensor Programs V", 2022); measured at
 * widths 64, 128 and 256, depths 2 and 8, 180 to 1200 steps of small batches, on two datasets each
 * (docs/figures.md).  A llama's grows with the cube root of the tokens of a step, from 512 of them
 * to eight times as many.  warm: half of it, for trained weights. */
double job_lr(bool texts, bool warm, int dim, double tokens);
#define JOB_LR_MEASURED 256 /* the widest model for which it was measured */
/* The default of train.schedule (enum job_schedule).  A fresh llama's is a decay from 5000 steps
 * on: it lowered the held-out loss after 7500 steps, and not after 1200 (docs/figures.md).  steps:
 * of a replica in the whole job; 0: not known. */
int job_schedule(bool texts, bool warm, double steps);

/* What is clustered: enum job_features, with auto resolved. */
int job_features(const struct job_spec *spec);

/* Has the job data, or does a trainer read its own? */
static inline bool job_has_data(const struct job_spec *spec)
{
    return job_family(spec)->data;
}

/* Are the samples texts?  Else images. */
static inline bool job_is_text(const struct job_spec *spec)
{
    return job_family(spec)->texts;
}

#endif
