/* The frozen networks that a job file names: opened and checked, their files uploaded. */
#ifndef CLI_ENCODERS_H
#define CLI_ENCODERS_H

#include <jansson.h>

#include "common/base/base.h"
#include "common/job/job.h"

struct cli;
struct component;
struct caption_tokenizer;

/* NULL and zeros: the job has none. */
struct encoders {
    struct component *vae, *text;
    char *tokenizer_path; /* a folder */
    struct caption_tokenizer *tokenizer;
    /* What the model sees, as NetworkInput of skerry.proto. */
    int channels, side, caption, caption_tokens;
};

/* Opens what spec->encoders names, in folders as `find` makes of them (mem_free), and checks that
 * it fits the job; says on stderr how far it is, if that takes long.  -ERR_CONFIG; -ERR_CANCELLED:
 * Ctrl-C. */
int encoders_open(const struct job_spec *spec, char *(*find)(void *arg, const char *given),
                  void *arg, struct encoders *ret, struct err *err);
/* Says on stderr which of sample.prompts are longer than the text encoder reads. */
void encoders_say_cut(const struct encoders *e, const struct job_spec *spec);
void encoders_close(struct encoders *e); /* { 0 } is fine */
/* Of the networks' files, without a tokenizer's. */
uint64_t encoders_bytes(const struct encoders *e);
/* Of the latents of so many pictures, at most, with those of their mirrored sides; 0: no VAE. */
uint64_t encoders_latents_bytes(const struct encoders *e, const struct job_spec *spec,
                                uint64_t pictures);

/* Sends the files and puts "encoders" and "input" into the body of a submission. */
int encoders_upload(struct cli *cli, const struct encoders *e, bool progress, json_t *body,
                    struct err *err);

#endif
