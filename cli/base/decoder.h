/* What config.json says of a language model in the form of transformers (a LlamaForCausalLM),
 * beside its tokenizer; and whether a job may start from it.  For model_folder.c, which has the
 * rest of the folder. */
#ifndef CLI_DECODER_H
#define CLI_DECODER_H

#include <jansson.h>

#include "cli/base/model_folder.h"
#include "common/base/base.h"
#include "common/job/job.h"

/* As model_folder_check, of config.json and the folder's tokenizer. */
int decoder_check(const char *dir, const json_t *config, const struct job_spec *spec,
                  const struct model_folder_facts *facts, struct err *err);

/* As model_folder_sizes. */
int decoder_sizes(const char *dir, const json_t *config, struct job_model *ret,
                  char **ret_tokenizer, struct err *err);

#endif
