/* model.warm_start: a folder with config.json and model.safetensors, as `skerry export`
 * or transformers' save_pretrained writes it, against the job that wants to start
 * from it. */
#ifndef CLI_MODEL_FOLDER_H
#define CLI_MODEL_FOLDER_H

#include "common/base/base.h"
#include "common/job/job.h"

struct tokenizer;

/* What the data say of the model. */
struct model_folder_facts {
    const struct tokenizer *tokenizer; /* texts */
    uint64_t classes;                  /* images; 0: not known yet */
};

/* -ERR_CONFIG with one sentence on the first thing that does not fit: a key of
 * config.json, the vocabulary, a tensor's name, shape or type. */
int model_folder_check(const char *dir, const struct job_spec *spec,
                       const struct model_folder_facts *facts, struct err *err);

/* DIR/model.safetensors; mem_free. */
char *model_folder_weights(const char *dir);

#endif
