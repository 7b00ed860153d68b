/* The families of models, one row each: through it model.c gets sizes, tensors and initial values
 * without knowing the family.  model_dit.c (DIT and ROUTER) and model_llama.c fill the rows; the
 * network of a family on a device is a row in net.c.  For model*.c and flops.c. */
#ifndef WORKER_MODEL_FAMILY_H
#define WORKER_MODEL_FAMILY_H

#include "worker/model/model.h"

struct model_family {
    bool text;    /* reads rows of tokens; else noised images */
    bool teaches; /* a model can learn from others (worker/net/distill.h) */
    /* Do the sizes that only this family has fit each other?  Errors as in model_spec_from_job. */
    int (*check)(const struct model_spec *s, struct err *err);
    void (*sizes)(const struct job_spec *job, const struct model_facts *facts,
                  struct model_spec *ret);
    int (*tokens)(const struct model_spec *s); /* model_tokens */
    /* tensors: their number in the table; fill adds them (model_table.h). */
    size_t (*tensors)(const struct model_spec *s);
    void (*fill)(struct model *m);
    /* The table index of the first block's tensors, and the number of tensors of each block. */
    void (*blocks)(const struct model_spec *s, int *first, int *each);
    /* p: zeros, or initial values drawn from the tensor's stream. */
    void (*init)(const struct model_tensor *t, const struct model_spec *s, uint64_t seed,
                 uint64_t stream, float *p);
    /* Multiply-adds of a forward of one sample; texts: one text of `tokens` tokens. */
    double (*macs)(const struct model_spec *s, double tokens);
};

extern const struct model_family model_dit, model_router, model_llama;

/* The family of a model's kind. */
const struct model_family *model_family(const struct model_spec *s);

#endif
