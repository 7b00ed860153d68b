/* What a job file leaves to its submission: outer.fragments: auto (docs/outer.md, "How auto chooses
 * fragments"). */
#ifndef CLI_SETTLE_H
#define CLI_SETTLE_H

#include "cli/job/fragments.h"
#include "cli/job/job_file.h"
#include "common/base/base.h"

struct cli;

struct settled {
    bool asked; /* by the key, or because a job such as this one may have them */
    struct fragments_choice choice;
    char why[384]; /* a sentence for people and for the record */
};

/* Writes what is chosen into the job's text and spec.  Measures a step here and, where bytes_per_s
 * is 0, the link to the coordinator: seconds, and only for a job that may have fragments.  What is
 * not known makes none; nothing here is an error of the job. */
void settle_fragments(struct cli *cli, struct job_file *job, uint64_t bytes_per_s,
                      struct settled *ret);

#endif
