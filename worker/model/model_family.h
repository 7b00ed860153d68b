/* The families of models, each a row: what model.c asks about sizes, tensors and initial values
 * without knowing which it is.  model_dit.c (DIT and ROUTER) and model_llama.c fill the rows; the
 * network of a family on a device is a row in net.c.  For model*.c and flops.c. */
#ifndef WORKER_MODEL_FAMILY_H
#define WORKER_MODEL_FAMILY_H

#include "worker/model/model.h"

struct model_family {
    bool text;    /* reads rows of tokens; else noised images */
    bool teaches; /* one can learn from others (worker/net/distill.h) */
    /* Do the sizes that only this family has fit each other?  As model_spec_from_job. */
    int (*check)(const struct model_spec *s, struct err *err);
    void (*sizes)(const struct job_spec *job, const struct model_facts *facts,
                  struct model_spec *ret);
    int (*tokens)(const struct model_spec *s); /* as model_tokens */
    /* Tensors in the table, and these, put there through model_table.h. */
    size_t (*tensors)(const struct model_spec *s);
    void (*fill)(struct model *m);
    /* Where the first block's stand in the table, and how many each block has. */
    void (*blocks)(const struct model_spec *s, int *first, int *each);
    /* p: zeros, or initial values drawn from the tensor's stream. */
    void (*init)(const struct model_tensor *t, const struct model_spec *s, uint64_t seed,
                 uint64_t stream, float *p);
    /* Multiply-adds of a forward of one sample; texts: of `tokens` tokens. */
    double (*macs)(const struct model_spec *s, double tokens);
};

extern const struct model_family model_dit, model_router, model_llama;

/* That of a model's kind. */
const struct model_family *model_family(const struct model_spec *s);

#endif
