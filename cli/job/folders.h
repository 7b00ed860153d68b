/* Folders of the user's that travel as one tar each: that of the trainer, and what lies beside the
 * weights that a trainer's model or a llama starts from, such as config.json, a tokenizer and its
 * chat template, which an export puts beside its weights again. */
#ifndef CLI_FOLDERS_H
#define CLI_FOLDERS_H

#include <jansson.h>

#include "common/base/base.h"

struct cli;

enum folder_kind {
    FOLDER_TRAINER,
    FOLDER_COMPANIONS, /* without weights, of whatever form */
    FOLDER_MODEL,      /* the same, without the folders in it */
};

/* Can it be sent?  -ERR_CONFIG with a sentence: no folder, more files or bytes than the tar of one
 * may have (common/data/tar.h).  *ret_files (may be NULL) is how many there are. */
int folder_check(enum folder_kind kind, const char *folder, size_t *ret_files, struct err *err);
/* Packs and sends it; the blob goes into the submission.  -ERR_CONFIG when a file changes
 * meanwhile.  Hidden files, __pycache__ and links are left out, but for links to files beside
 * weights. */
int folder_upload(struct cli *cli, enum folder_kind kind, const char *folder, bool progress,
                  json_t *body, struct err *err);

#endif
