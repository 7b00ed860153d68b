/* What a finished job leaves in a folder: pictures, metrics, and the files beside a model's weights
 * (cli/show/models.h). */
#ifndef CLI_ARTIFACTS_H
#define CLI_ARTIFACTS_H

#include <jansson.h>

#include "common/base/base.h"

struct cli;
struct moving;

/* DIR/metrics.jsonl (every loss point and round) and DIR/loss.svg. */
int artifacts_metrics(struct cli *cli, uint64_t job, const char *dir, struct err *err);

/* The newest sample: a grid as DIR/samples.png, a text (with its prompt) as DIR/sample.txt; of a
 * mixture its own, and DIR/samples-expert-PATH.png for each expert drawn alone.
 * -ERR_NOTFOUND when there is none. */
int artifacts_samples(struct cli *cli, uint64_t job, const char *dir, struct err *err);

/* DIR/report.json with "job", "modules" and "workers" as the HTTP API gives them. */
int artifacts_report(struct cli *cli, uint64_t job, const char *dir, struct err *err);

/* The files beside model.safetensors alone, of a model that is no trainer's, which the tests
 * compare with PyTorch's.  about: GET /v1/jobs/ID; ema: the weights are the average. */
int artifacts_files(struct cli *cli, const json_t *about, const char *dir, bool ema,
                    struct err *err);

/* The same of a mixture's router. */
int artifacts_router_files(const json_t *about, const char *dir, bool ema, struct err *err);

/* Makes a llama's config.json fit the weights where it is that of its warm start: they are F32 now,
 * and may know longer texts.  Nothing for other models. */
int artifacts_keep_config(const json_t *about, const char *dir, struct err *err);

/* False if the ids belong to a tokenizer that the job does not name. */
bool artifacts_has_tokenizer(const json_t *about);

/* Downloads a blob, verified, to a file.  show: NULL for none. */
int artifacts_blob(struct cli *cli, const char *sha256_hex, const char *path, struct err *err);
int artifacts_blob_shown(struct cli *cli, const char *sha256_hex, const char *path,
                         struct moving *show, struct err *err);

#endif
