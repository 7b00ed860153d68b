/* Drawing samples with a job's model, from more than one command. */
#ifndef CLI_SAMPLE_H
#define CLI_SAMPLE_H

#include <jansson.h>

#include "common/base/base.h"

struct cli;

/* Asks for a grid (the body of POST /v1/jobs/N/sample), waits for it, writes the PNG. */
int sample_to_file(struct cli *cli, uint64_t job, const json_t *ask, const char *file,
                   struct err *err);

#endif
