/* Folders of models in the form in which everybody has them: a config.json and safetensors, as
 * transformers' and diffusers' save_pretrained write them.  What `skerry export` writes, and
 * model.warm_start against the job that wants to start from it. */
#ifndef CLI_MODEL_FOLDER_H
#define CLI_MODEL_FOLDER_H

#include <jansson.h>

#include "common/base/base.h"
#include "common/base/file.h"
#include "common/job/job.h"

struct tokenizer;

/* What the data say of the model. */
struct model_folder_facts {
    const struct tokenizer *tokenizer; /* texts */
    uint64_t classes;                  /* images; 0: not known yet */
    const char *const *class_names;    /* (classes); NULL: not known */
    /* What frozen networks make the model see, 0 where it is not known yet. */
    uint32_t channels, side;          /* of latents */
    uint32_t caption, caption_tokens; /* channels of a caption's states, and most of these */
};

/* -ERR_CONFIG with one sentence on the first thing that does not fit: the numbers of
 * config.json, all that differ, the vocabulary, a tensor's name, shape or type; also after Ctrl-C.
 * Says on stderr how far it is, if that takes long, and warns of classes with other names. */
int model_folder_check(const char *dir, const struct job_spec *spec,
                       const struct model_folder_facts *facts, struct err *err);

/* Appends the files of weights of a folder: one, or the pieces that an index names.  A diffusers
 * pipeline's root stands for its transformer/.  A trainer's weights may also be given as a file or
 * as an index.  That they are there is not checked. */
int model_folder_weights(const char *given, const struct job_spec *spec, struct file_names *ret,
                         struct err *err);

/* What a job file says of the sizes of a folder's language model, in *ret, which has as its
 * context the most tokens that the model takes; and the path of its tokenizer (mem_free), NULL: it
 * has none. Whether a job may have them, job_parse and model_folder_check say. */
int model_folder_sizes(const char *dir, struct job_model *ret, char **ret_tokenizer,
                       struct err *err);

/* Its config.json, an object; a new reference. */
int model_folder_config(const char *dir, json_t **ret, struct err *err);

/* Is it a file of weights by its name, of whatever form, or a list of their pieces? */
bool model_folder_is_weights(const char *name);

/* config.json of a model with captions: of diffusers' PixArtTransformer2DModel, and under _skerry
 * `about` (taken over), which is nobody's; an upscaler's, of the same form, under `upscaler`.  A
 * new reference. */
json_t *model_folder_pixart(const struct job_spec *spec, const struct model_folder_facts *facts,
                            json_t *about);

#endif
