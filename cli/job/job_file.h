/* From a job file to a job: reads the specification, opens and checks the data,
 * the tokenizer and the warm start that it names, cuts the data into shards, and
 * uploads what the coordinator lacks. */
#ifndef CLI_JOB_FILE_H
#define CLI_JOB_FILE_H

#include <jansson.h>

#include "cli/job/encoders.h"
#include "common/base/base.h"
#include "common/base/buf.h"
#include "common/data/dataset.h"
#include "common/job/job.h"

struct cli;
struct tokenizer;

/* A job file that was read and found sound. */
struct job_file {
    struct buf text; /* YAML as the user wrote it */
    struct job_spec spec;
    char *data_path;             /* data.path, found; NULL: no data are read here */
    char *tokenizer_path;        /* NULL: none is given */
    struct tokenizer *tokenizer; /* of text: that file, else bytes; NULL for images */
    char *warm_start;            /* the folder, NULL: none */
    char *trainer_files;         /* the folder, NULL: none */
    struct encoders encoders;    /* frozen networks in front of the model */
    uint32_t partitions;         /* that the recipe makes of the data */
    struct dataset *dataset;     /* NULL for data.url, and for the data of a teacher */
};

/* Reads `path`, composes its recipe and opens what it names.  Relative paths are relative to the
 * job file, then to the current directory.  Says on stderr how far it is, if that takes long.
 * Errors are -ERR_CONFIG; -ERR_CANCELLED: Ctrl-C. */
int job_file_open(const char *path, struct job_file *ret, struct err *err);
/* The same of a text that is not in the file yet; takes its bytes, also on failure. */
int job_file_take(const char *path, struct buf *text, struct job_file *ret, struct err *err);
void job_file_close(struct job_file *job);

/* Where a path lies that a job file gives (mem_free): beside the job file or, if nothing is there,
 * in the current directory. */
char *job_file_find(const char *job_path, const char *given);

/* What there is to train on, where it is read here. */
struct job_file_size {
    uint64_t documents; /* of text */
    uint64_t samples;   /* images or pieces of text; 0: not read here */
    uint64_t holdout;   /* of those that are kept from training */
    uint64_t tokens;    /* of texts */
    uint32_t vocab;     /* of texts */
    uint64_t bytes;     /* of the shards */
};

/* Reads all the data as job_file_submit would, keeps nothing, and says on `out` how much
 * there is (without an end of line; nothing where the data are not read here).  Once for a
 * job file, and instead of submitting it.  -ERR_CONFIG when the data are no good.  With
 * `progress`, says on stderr how far it is. */
int job_file_read_all(struct job_file *job, bool progress, FILE *out, struct job_file_size *ret,
                      struct err *err);
/* The same at the beginning of much work: of many images it reads some, and says so on stderr; *ret
 * is then an estimate. */
int job_file_read_some(struct job_file *job, struct job_file_size *ret, struct err *err);

/* Cuts, uploads and posts the job, once.  -ERR_CONFIG when the data are no good or the
 * coordinator refuses the job.  With `progress`, says on stderr how far it is. */
int job_file_submit(struct cli *cli, struct job_file *job, bool progress, uint64_t *ret_id,
                    struct err *err);

#endif
