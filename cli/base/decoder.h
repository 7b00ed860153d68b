/* The classes of transformers whose models our llama can be: what their config.json says, beside
 * their tokenizer, and whether a job may start from it.  For model_folder.c, which has the rest of
 * the folder, and for exports. */
#ifndef CLI_DECODER_H
#define CLI_DECODER_H

#include <jansson.h>

#include "cli/base/model_folder.h"
#include "common/base/base.h"
#include "common/job/job.h"

/* A class, and what its models have besides. */
struct decoder {
    const char *type, *class; /* model_type and architectures of config.json */
    bool qkv_bias, qk_norm, no_rope;
    /* What a config.json says that lacks the key. */
    int context;      /* max_position_embeddings */
    int kv_heads;     /* num_key_value_heads; 0: as many as heads */
    int head_dim;     /* 0: hidden_size / num_attention_heads */
    double theta;     /* rope_theta; 0: 10000 */
    bool tied;        /* tie_word_embeddings */
    long long window; /* sliding_window; 0: the class has none */
    bool asks;        /* it has the window only with use_sliding_window */
};
/* The one that a job's llama is exported as. */
const struct decoder *decoder_of(const struct job_model *m);

/* Rows of the job's embedding. */
long long decoder_vocab(const struct job_model *m, const struct tokenizer *t);

/* As model_folder_check, of config.json and the folder's tokenizer. */
int decoder_check(const char *dir, const json_t *config, const struct job_spec *spec,
                  const struct model_folder_facts *facts, struct err *err);

/* As model_folder_sizes. */
int decoder_sizes(const char *dir, const json_t *config, struct job_model *ret,
                  char **ret_tokenizer, struct err *err);

#endif
