/* What a finished job leaves in a folder: pictures, metrics, the model. */
#ifndef CLI_ARTIFACTS_H
#define CLI_ARTIFACTS_H

#include <jansson.h>

#include "common/base/base.h"

struct cli;
struct job_spec;

/* DIR/metrics.jsonl (every loss point and round) and DIR/loss.svg. */
int artifacts_metrics(struct cli *cli, uint64_t job, const char *dir, struct err *err);

/* The newest sample: a grid as DIR/samples.png, a text (with its prompt) as DIR/sample.txt; of a
 * mixture its own, and DIR/samples-expert-PATH.png for each expert drawn alone.
 * -ERR_NOTFOUND when there is none. */
int artifacts_samples(struct cli *cli, uint64_t job, const char *dir, struct err *err);

/* DIR/report.json with "job", "modules" and "workers" as the HTTP API gives them. */
int artifacts_report(struct cli *cli, uint64_t job, const char *dir, struct err *err);

/* Has DIR files of another kind of model, which this job's would not replace, so that whoever opens
 * the folder would find two?  -EEXIST; a folder that is not there is fine. */
int artifacts_check_folder(const struct job_spec *spec, const char *dir, struct err *err);

/* One path's model: DIR/model.safetensors, and beside it
 *
 *   dit     config.json with the names of the original code
 *   llama   config.json and generation_config.json as transformers reads them
 *           (LlamaForCausalLM), tokenizer.json or .model and tokenizer_config.json: the
 *           job's own, or for byte tokens a byte-level BPE without merges that has our ids
 *   others  the files of the warm start that are no weights
 *
 * `ema`: the average of the outer weights, or what the path stopped at early; else the newest
 * version.  DIR is made when missing, and refused by artifacts_check_folder.  -EEXIST, unless
 * `replace`: a file of the warm start is there with other bytes, or a tokenizer is there and the
 * job names none. */
int artifacts_model(struct cli *cli, uint64_t job, uint32_t path, bool ema, const char *dir,
                    bool replace, struct err *err);

/* The files beside model.safetensors alone, of a model that is no trainer's, which the tests
 * compare with PyTorch's.  about: GET /v1/jobs/ID; ema: the weights are the average. */
int artifacts_files(struct cli *cli, const json_t *about, const char *dir, bool ema,
                    struct err *err);

/* Downloads a blob, verified, to a file. */
int artifacts_blob(struct cli *cli, const char *sha256_hex, const char *path, struct err *err);

#endif
