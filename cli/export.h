/* The files beside model.safetensors in an exported folder.
 *
 *   dit     config.json with the names of the original code
 *   llama   config.json and generation_config.json as transformers reads them
 *           (LlamaForCausalLM), tokenizer.json and tokenizer_config.json: the job's own, or
 *           for byte tokens a byte-level BPE without merges that has our ids */
#ifndef CLI_EXPORT_H
#define CLI_EXPORT_H

#include <stdbool.h>

#include <jansson.h>

struct cli;
struct err;

/* job: GET /v1/jobs/ID.  ema: the weights are the average. */
int export_write(struct cli *cli, const json_t *job, const char *dir, bool ema, struct err *err);

/* A tokenizer.json with ids 0..255 for the bytes and 256, <|endoftext|>, before a text. */
json_t *export_byte_tokenizer(void);

#endif
