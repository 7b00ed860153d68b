/* The folder of a job's trainer, as one tar that travels to the workers. */
#ifndef CLI_TRAINER_FILES_H
#define CLI_TRAINER_FILES_H

#include <jansson.h>

#include "common/base/base.h"

struct cli;

#define TRAINER_FILES_MAX 4096
#define TRAINER_BYTES_MAX (64u << 20)

/* Can it be sent?  -ERR_CONFIG with a sentence: no folder, too many or too large files. */
int trainer_files_check(const char *folder, struct err *err);
/* Packs and sends it; the blob goes into the submission.  -ERR_CONFIG when a file changes
 * meanwhile.  Hidden files, __pycache__ and links are left out. */
int trainer_files_upload(struct cli *cli, const char *folder, bool progress, json_t *body,
                         struct err *err);

#endif
