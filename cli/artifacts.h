/* What a finished job leaves in a folder: pictures, metrics, the model. */
#ifndef CLI_ARTIFACTS_H
#define CLI_ARTIFACTS_H

#include <stdbool.h>
#include <stdint.h>

struct cli;
struct err;

/* DIR/metrics.jsonl (every loss point and round) and DIR/loss.svg. */
int artifacts_metrics(struct cli *cli, uint64_t job, const char *dir, struct err *err);

/* The newest sample: a grid as DIR/samples.png, a text (with its prompt) as DIR/sample.txt; of a
 * mixture its own, and DIR/samples-expert-PATH.png for each expert drawn alone.
 * -ERR_NOTFOUND when there is none. */
int artifacts_samples(struct cli *cli, uint64_t job, const char *dir, struct err *err);

/* DIR/model.safetensors and what cli/export.h names, of one path.  `ema`: the average of the
 * outer weights, or what the path stopped at early; else the newest version.  DIR is made
 * when missing. */
int artifacts_model(struct cli *cli, uint64_t job, uint32_t path, bool ema, const char *dir,
                    struct err *err);

/* Downloads a blob, verified, to a file. */
int artifacts_blob(struct cli *cli, const char *sha256_hex, const char *path, struct err *err);

#endif
