/* The families of models that a job may train, each a row: what coordinator, worker and CLI ask
 * of model.type, so that none of them tests for its name.  The keys of a job file that are of one
 * family, and what ties them together, are in family.c.  A new family is a row there, one in
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
     * loss is nats a token (also bits per byte), what is drawn goes on from a prompt.  Else images
     * with classes: the loss is of an image, what is drawn is of classes. */
    bool texts;
    bool external;       /* trained by a program of the user's */
    bool data;           /* it learns from data that the job has; else its trainer reads its own */
    bool packs;          /* pieces of text fill rows of model.context */
    const char *what;    /* "images", "texts" */
    const char *samples; /* what a shard holds: "images", "pieces of text" */
    const char *drawn;   /* file of what was drawn last: "samples.png" */
    bool mixes;          /* a router can mix networks of it */
    bool chunks;         /* a sample's parts can be routed apart */
    enum job_features features;              /* what samples are told apart by, without a model */
    const char *const *keys;                 /* that not all families have; NULL ends them */
    const char *const *without;              /* that all the others have */
    int (*tokens)(const struct job_spec *s); /* as job_tokens */
    /* Completes the sections model and router and checks them. */
    int (*complete)(const struct yaml_doc *doc, struct job_spec *s, struct err *err);
};

/* That of model.type, and of data.kind where that says more. */
const struct job_family *job_family(const struct job_spec *spec);

/* The families one by one; NULL after the last. */
const struct job_family *job_family_at(int i);

/* The learning rate of AdamW that suits a fresh model of this width: what train.lr is without the
 * key.  The best rate of matrices goes with 1 / width (Yang et al., "Tensor Programs V", 2022);
 * measured at widths 64, 128 and 256, depths 2 and 8, 180 to 1200 steps of small batches, two data
 * sets each (docs/figures.md).  Half of it for a dit with model.warm_start, of which nothing is
 * measured. */
double job_lr(bool texts, int dim);

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
