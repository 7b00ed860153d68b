/* The job file that `skerry new` writes: how large a model, how long, and every key with a comment.
 *
 *     for (size = 0; size < new_job_sizes(); size++)      // as long as new_job_affords() says so
 *     new_job_length(&job, seconds of a step)
 *     new_job_write(&job, out)
 *
 * Rules of thumb, of the project's own runs: a diffusion model of this kind
 * draws something after a tenth of an image for each parameter, and what it has seen a hundred
 * times has no more to teach it; a language model wants twenty tokens for each parameter
 * (Hoffmann et al., "Training Compute-Optimal Large Language Models", 2022), and ten passes at
 * most, but three if it starts from a trained one.  Pure. */
#ifndef CLI_NEW_JOB_H
#define CLI_NEW_JOB_H

#include "common/base/base.h"
#include "common/job/job.h"

#define NEW_PROMPTS 4
#define NEW_PROMPT_BYTES 256

/* Of the data. */
enum new_kind { NEW_IMAGES, NEW_TEXT, NEW_CAPTIONS };

struct new_job {
    const char *name, *path, *encoders; /* encoders: of NEW_CAPTIONS */
    const char *field;                  /* of a line of NEW_TEXT; NULL: the usual one */
    enum new_kind kind;
    /* Of NEW_TEXT: the folder with a model to start from, which has the sizes of `model` and
     * perhaps a tokenizer; NULL: a fresh model. */
    const char *from, *tokenizer;
    bool endless; /* the tokenizer has no token that begins or ends a text */
    struct job_model model;
    int image_size, workers;
    bool here; /* the workers share the machine, as those of `skerry run` do; else one is all of it
                */
    bool runs; /* `skerry run` starts as many */
    double minutes;

    uint64_t samples, tokens;                    /* to train on: images, or tokens of texts */
    char prompts[NEW_PROMPTS][NEW_PROMPT_BYTES]; /* captions of the data; "" from the last on */
    uint32_t vocab;                              /* of texts, once they are read */
    bool keeps;          /* enough of them to keep a part, which the model is judged by */
    uint64_t parameters; /* of the model of this size */
    const char *device;  /* what it was measured on */

    size_t size; /* the model's, from the smallest on */
    int rounds, steps;
    double seconds; /* predicted for all of it */
    int passes;     /* that the data end it after, well before its time; 0: its time does */
};

size_t new_job_sizes(void);
/* Does its model to start from take fewer tokens than others would be trained on? */
bool new_job_is_short(const struct new_job *job);
/* Samples of a step. */
int new_job_batch(const struct new_job *job);
/* Is a model of job->parameters worth training on these data in this time, when a step of it
 * takes step_s on each worker? */
bool new_job_affords(const struct new_job *job, double step_s);
/* Sets rounds, steps, seconds and passes: the time is filled unless the data are seen often enough
 * before. */
void new_job_length(struct new_job *job, double step_s);
/* Pixels of a side of a token: eight tokens a side or more, if it can be.  0: no patch cuts such a
 * side into few enough; one of 8, 16, 24 pixels and so on always has one. */
int new_job_patch(int side);
/* Can a job file hold the text?  YAML does not take characters such as U+0092. */
bool new_job_holds(const char *utf8);
void new_job_write(const struct new_job *job, FILE *out);

#endif
