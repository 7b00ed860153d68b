/* What model.warm_start names: a folder as save_pretrained leaves it, with weights whole or in
 * pieces that an index names, or, of a trainer's model, a safetensors file.  The weights travel as
 * one file; what lies beside them goes along for the export, except with a dit. */
#ifndef CLI_USERS_WEIGHTS_H
#define CLI_USERS_WEIGHTS_H

#include <jansson.h>

#include "common/base/base.h"

struct cli;
struct job_spec;

/* Headers are read, and what lies beside the weights is measured; what the weights must be, a
 * trainer says, or model_folder_check.  Sentences name the file. */
int users_weights_check(const char *given, const struct job_spec *spec, struct err *err);
/* Blobs into the submission.  Pieces are put together in TMPDIR. */
int users_weights_upload(struct cli *cli, const char *given, const struct job_spec *spec,
                         bool progress, json_t *body, struct err *err);

#endif
