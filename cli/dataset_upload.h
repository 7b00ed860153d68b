/* From a job file to a job: reads the specification, opens and checks the data
 * it names, cuts it into shards, uploads those that the coordinator lacks. */
#ifndef CLI_DATASET_UPLOAD_H
#define CLI_DATASET_UPLOAD_H

#include <stdbool.h>

#include <jansson.h>

#include "common/base/buf.h"
#include "common/base/dataset.h"
#include "common/base/job.h"

struct cli;
struct err;

/* A job file that was read and found sound. */
struct job_file {
    struct buf text; /* YAML as the user wrote it */
    struct job_spec spec;
    struct dataset *dataset; /* NULL for data.url */
};

/* Reads `path` and opens its dataset.  A relative data.path is relative to the
 * job file, then to the current directory.  Errors are -ERR_CONFIG. */
int job_file_open(const char *path, struct job_file *ret, struct err *err);
void job_file_close(struct job_file *job);

/* Cuts, uploads and posts the job.  With `progress`, says on stderr how far it is. */
int job_file_submit(struct cli *cli, struct job_file *job, bool progress, uint64_t *ret_id,
                    struct err *err);

#endif
