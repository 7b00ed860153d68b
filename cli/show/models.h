/* The models of a job in folders: safetensors, and what libraries want beside it. */
#ifndef CLI_MODELS_H
#define CLI_MODELS_H

#include "common/base/base.h"

struct cli;
struct file_names;
struct job_spec;

/* Has a folder in which models_take puts the job's models files of another kind of model, which
 * this job's would not replace, so that whoever opens the folder would find two?  -EEXIST; a folder
 * that is not there is fine. */
int models_check_folders(const struct job_spec *spec, const char *dir, struct err *err);

/* The models of all paths, or of path `only` unless it is negative.  One model is in DIR; several
 * are in DIR-0, DIR-1 .., and a mixture's router in DIR-router (where DIR ends in . or .., that is
 * DIR/model-0 ..).  Each has model.safetensors, and beside it
 *
 *   dit     config.json with the names of the original code
 *   llama   config.json and generation_config.json as transformers reads them
 *           (of its class), tokenizer.json or .model and tokenizer_config.json: the
 *           job's own, or for byte tokens a byte-level BPE without merges that has our ids;
 *           but a file of its warm start's folder stands, config.json with the present dtype
 *   others  the files of the warm start that are no weights
 *   all but others  README.md, a model card, unless one is there that a person has edited, or
 *           that came with the warm start
 *   router  config.json with the names of the original code; num_classes are the experts
 *
 * `ema`: the average of the outer weights, or what the path stopped at early; else the newest
 * version.  A module that several paths cross is fetched once.  The folders are made when missing,
 * and *ret has their names (file_names_release); those of another kind of model are refused.  A
 * hidden file in each, .skerry, says whose model it is.
 * -EEXIST, unless `replace`: a folder has files and no such word, or that of another job; a file of
 * the warm start is there with other bytes; or a tokenizer is there and the job names none.  After
 * a failure the folders of earlier paths are complete. */
int models_take(struct cli *cli, uint64_t job, int only, bool ema, const char *dir, bool replace,
                struct file_names *ret, struct err *err);

#endif
