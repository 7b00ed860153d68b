/* model.warm_start of a trainer's model: a safetensors file, or a folder as save_pretrained
 * leaves it, with weights whole or in pieces that an index names.  What the weights must be, the
 * trainer says; they travel as one file.  Of a folder what lies beside the weights goes along, for
 * the export. */
#ifndef CLI_USERS_WEIGHTS_H
#define CLI_USERS_WEIGHTS_H

#include <jansson.h>

#include "common/base/base.h"

struct cli;

/* Headers are read.  Sentences name the file. */
int users_weights_check(const char *given, struct err *err);
/* Blobs into the submission.  Pieces are put together in TMPDIR. */
int users_weights_upload(struct cli *cli, const char *given, bool progress, json_t *body,
                         struct err *err);

#endif
