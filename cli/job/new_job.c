#include "cli/job/new_job.h"

#include <jansson.h>

#include "common/data/tokenizer.h"
#include "common/job/family.h"
#include "common/job/yaml.h"

#define CONTEXT 256
#define FROM_CONTEXT 512 /* of a model that is trained already, if it takes as many */
#define SIDE_TOKENS_MAX 64
#define ROUNDS 30  /* rounds of a job that is long enough */
#define PHASE_S 10 /* seconds of a shorter job's phase, long beside a round's other costs */
#define IMAGES_A_PARAMETER 0.1
#define TOKENS_A_PARAMETER 20
#define IMAGE_PASSES 100
#define TEXT_PASSES 10
#define FROM_PASSES 3
#define WELL_BEFORE 0.8 /* of the time: then it is said */
#define ROOM 0.85       /* the steps' share of the time */

static const struct {
    int dim, depth, heads;
} sizes[] = {
    {64, 3, 4},   {96, 5, 4},   {128, 6, 4},   {192, 8, 6},    {256, 8, 8},
    {384, 12, 6}, {512, 12, 8}, {768, 12, 12}, {1024, 24, 16},
};

size_t new_job_sizes(void)
{
    return sizeof sizes / sizeof *sizes;
}

static int width(const struct new_job *job)
{
    return job->from ? job->model.dim : sizes[job->size].dim;
}

bool new_job_is_short(const struct new_job *job)
{
    const int most = job->model.context; /* 0: a config.json that does not know */
    return job->from && most > 0 && most < FROM_CONTEXT;
}

static int context(const struct new_job *job)
{
    if (!job->from)
        return CONTEXT;
    return new_job_is_short(job) ? job->model.context : FROM_CONTEXT;
}

int new_job_batch(const struct new_job *job)
{
    const uint64_t wanted = job->kind == NEW_TEXT ? 8 : 32;
    const uint64_t there =
        job->kind == NEW_TEXT ? job->tokens / (uint64_t)context(job) : job->samples;
    return (int)(there / 2 > wanted ? wanted : there > 2 ? there / 2 : 1);
}

/* The units of a sample: one for an image, or the tokens of a row. */
static double units(const struct new_job *job)
{
    return job->kind == NEW_TEXT ? context(job) : 1;
}

static int most_passes(const struct new_job *job)
{
    if (job->kind != NEW_TEXT)
        return IMAGE_PASSES;
    return job->from ? FROM_PASSES : TEXT_PASSES;
}

static double most_units(const struct new_job *job)
{
    return most_passes(job) * (double)(job->kind == NEW_TEXT ? job->tokens : job->samples);
}

/* The units that all workers together train on in the time. */
static double units_in_time(const struct new_job *job, double step_s)
{
    return ROOM * 60 * job->minutes / step_s * job->workers * new_job_batch(job) * units(job);
}

bool new_job_affords(const struct new_job *job, double step_s)
{
    const double a_parameter = job->kind == NEW_TEXT ? TOKENS_A_PARAMETER : IMAGES_A_PARAMETER;
    const double wanted = a_parameter * (double)job->parameters;
    return wanted <= most_units(job) && wanted <= units_in_time(job, step_s);
}

void new_job_length(struct new_job *job, double step_s)
{
    const double all = fmin(most_units(job), units_in_time(job, step_s));
    const double steps = all / units(job) / new_job_batch(job) / job->workers;
    const double phases = fmin(steps, steps * step_s / PHASE_S);
    job->rounds = (int)fmin(fmax(phases, steps < 3 ? 1 : 3), ROUNDS);
    job->steps = (int)fmax(steps / job->rounds, 1);
    job->seconds = job->rounds * job->steps * step_s / ROOM;
    job->passes = most_units(job) < WELL_BEFORE * units_in_time(job, step_s) ? most_passes(job) : 0;
}

int new_job_patch(int side)
{
    int patch = side >= 16 ? side / 8 : 1;
    while (side % patch != 0)
        patch--;
    return side / patch <= SIDE_TOKENS_MAX ? patch : 0;
}

/* Writes a key with its comment. */
__attribute__((format(printf, 3, 4))) static void line(FILE *out, const char *comment,
                                                       const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    (void)fprintf(out, "  %-24s # %s\n", text, comment);
}

/* A text as a quoted YAML string; free(). */
static char *yaml_text(const char *utf8)
{
    json_t *text = json_string(utf8);
    char *quoted = json_dumps(text, JSON_ENCODE_ANY);
    json_decref(text);
    return quoted;
}

bool new_job_holds(const char *utf8)
{
    struct yaml_doc doc;
    char *quoted = yaml_text(utf8), *text = str_printf("text: %s\n", quoted);
    const bool holds = yaml_parse(text, strlen(text), "", &doc, NULL) == 0;
    if (holds)
        yaml_release(&doc);
    mem_free(text);
    free(quoted);
    return holds;
}

static void text_line(FILE *out, const char *comment, const char *key, const char *text)
{
    char *quoted = yaml_text(text);
    (void)fprintf(out, "  # %s\n  %s: %s\n", comment, key, quoted);
    free(quoted);
}

static void write_head(const struct new_job *job, FILE *out)
{
    char time[STR_HUMAN_MAX], size[STR_HUMAN_MAX], run[256] = "";
    if (job->runs)
        (void)snprintf(run, sizeof run,
                       "#   skerry run %s.yaml --workers %d --out %s.out   # all of it on this "
                       "machine\n",
                       job->name, job->workers, job->name);
    (void)fprintf(out,
                  "# A job for skerry: a model of %s M parameters, for about %s on %d "
                  "worker%s %s the\n# machine it was measured on (%s).\n#\n"
                  "#   skerry check %s.yaml %s--workers %d   # what it takes\n"
                  "%s"
                  "#   skerry submit %s.yaml --watch   # on the workers of a coordinator\n#\n"
                  "# `skerry keys` explains every key, including those left out here.\n",
                  str_human_number((double)job->parameters / 1e6, size),
                  str_human_duration((uint64_t)(fmax(job->seconds, 1) * 1000), time), job->workers,
                  str_plural((uint64_t)job->workers), job->here ? "on" : "like", job->device,
                  job->name, job->here ? "--here " : "", job->workers, run, job->name);
}

static void write_data(const struct new_job *job, FILE *out)
{
    (void)fprintf(out, "\nname: %s\n\ndata:\n", job->name);
    if (job->kind == NEW_TEXT) {
        text_line(out, "a .txt, .jsonl or .bin, or a folder of them", "path", job->path);
        if (job->field)
            text_line(out, "field of a line of .jsonl that holds the text", "text_field",
                      job->field);
        if (job->tokenizer)
            text_line(out, "that of the model", "tokenizer", job->tokenizer);
    } else {
        text_line(out,
                  job->kind == NEW_CAPTIONS ? "a folder of images with captions, or WebDataset tars"
                                            : "a folder of class folders, or WebDataset tars",
                  "path", job->path);
        line(out, "side in pixels of the square that images are scaled and cropped to",
             "image_size: %d", job->image_size);
        line(out, "true: mirror each image with probability 0.5", "flip: false");
    }
    line(out,
         job->keeps ? "share of the data kept for the held-out loss"
                    : "too few data to hold out a part",
         "holdout: %s", job->keeps ? "0.05" : "0");
    if (job->kind == NEW_CAPTIONS) {
        (void)fprintf(out, "\nencoders:\n");
        text_line(out, "frozen networks: a diffusers pipeline with vae, text_encoder, tokenizer",
                  "path", job->encoders);
    }
}

static void write_prompts(const struct new_job *job, FILE *out)
{
    if (job->prompts[0][0])
        line(out, "captions to draw, in turn; these are from the data", "prompts:");
    for (size_t i = 0; i < NEW_PROMPTS && job->prompts[i][0]; i++) {
        char *quoted = yaml_text(job->prompts[i]);
        (void)fprintf(out, "    - %s\n", quoted);
        free(quoted);
    }
}

/* A model whose sizes its weights have chosen. */
static void write_from(const struct new_job *job, FILE *out)
{
    const struct job_model *m = &job->model;
    text_line(out,
              "folder with the weights to start from; all but context is as its config.json says",
              "warm_start", job->from);
    line(out, "a language model", "type: llama");
    line(out,
         new_job_is_short(job) ? "tokens that it sees at once in training; all that it takes"
                               : "tokens that it sees at once in training",
         "context: %d", context(job));
    line(out, "width", "dim: %d", m->dim);
    line(out, "blocks", "depth: %d", m->depth);
    line(out, "attention heads", "heads: %d", m->heads);
    line(out, "heads of keys and values", "kv_heads: %d", m->kv_heads);
    if (m->head_dim > 0 && (int64_t)m->head_dim * m->heads != m->dim)
        line(out, "width of a head", "head_dim: %d", m->head_dim);
    if (m->qkv_bias)
        line(out, "queries, keys and values have biases", "qkv_bias: true");
    if (m->qk_norm)
        line(out, "each head of the queries and keys has a norm", "qk_norm: true");
    if (m->no_rope_layer_interval)
        line(out, "every so many blocks one has no rotary positions", "no_rope_layer_interval: %d",
             m->no_rope_layer_interval);
    if (m->vocab > (int)job->vocab)
        line(out, "rows of the embedding, more than the tokenizer has ids", "vocab: %d", m->vocab);
    line(out, "hidden width of a block's SwiGLU", "ffn: %d", m->ffn);
    line(out, "base of the rotary positions", "rope_theta: %.10g", m->rope_theta);
    const struct job_rope *r = &m->rope_scaling;
    const bool linear = r->rope_type == JOB_ROPE_LINEAR;
    if (r->rope_type != JOB_ROPE_DEFAULT) {
        line(out, "how they are scaled beyond the original context", "rope_scaling:");
        line(out, linear ? "all alike" : "as in Llama 3.1", "  rope_type: %s",
             job_rope_name(r->rope_type));
        line(out,
             linear ? "how many times as slowly they turn"
                    : "how many times as slowly the slow ones turn",
             "  factor: %.10g", r->factor);
    }
    if (r->rope_type == JOB_ROPE_LLAMA3) {
        line(out, "turns in the original context that are slow", "  low_freq_factor: %.10g",
             r->low_freq_factor);
        line(out, "turns that are not scaled", "  high_freq_factor: %.10g", r->high_freq_factor);
        line(out, "in tokens", "  original_max_position_embeddings: %d",
             r->original_max_position_embeddings);
    }
    line(out, "epsilon of the norms", "norm_eps: %.10g", m->norm_eps);
    line(out, "true: the head has the embedding's weights", "tied: %s", m->tied ? "true" : "false");
}

static void write_model(const struct new_job *job, FILE *out)
{
    (void)fprintf(out, "\nmodel:\n");
    if (job->from) {
        write_from(job, out);
        return;
    }
    if (job->kind == NEW_TEXT) {
        line(out,
             job->vocab > TOKENIZER_BYTES_VOCAB ? "a language model of the data's token ids"
                                                : "a language model; its tokens are bytes",
             "type: llama");
        line(out, "tokens that it sees at once", "context: %d", context(job));
    } else if (job->kind == NEW_IMAGES) {
        line(out, "side of a token in pixels; half of it draws finer, 4 times as slowly",
             "patch: %d", new_job_patch(job->image_size));
    } else {
        line(out, "latents of a side of a token", "patch: 2");
    }
    line(out, "width; a multiple of heads", "dim: %d", width(job));
    line(out, "blocks", "depth: %d", sizes[job->size].depth);
    line(out, "attention heads", "heads: %d", sizes[job->size].heads);
}

static void write_train(const struct new_job *job, FILE *out)
{
    const bool texts = job->kind == NEW_TEXT;
    (void)fprintf(out, "\ntrain:\n");
    line(out, texts ? "rows of context tokens in a step" : "images in a step", "batch: %d",
         new_job_batch(job));
    line(out,
         width(job) > JOB_LR_MEASURED
             ? "peak learning rate of AdamW; measured up to width 256, a guess beyond it: lower it "
               "if the loss jumps"
             : "peak learning rate of AdamW; lower it if the loss jumps",
         "lr: %.1e",
         job_lr(texts, job->from != NULL, width(job), (double)new_job_batch(job) * context(job)));
    line(out, "decay: down to 0 over the last fifth; or cosine", "schedule: %s",
         job_schedule(texts, job->from != NULL, (double)job->rounds * job->steps) ==
                 JOB_SCHEDULE_DECAY
             ? "decay"
             : "constant");
    (void)fprintf(out, "\nrecipe:\n");
    line(out,
         "copies of the model that train at the same time; other recipes: "
         "docs/paths.md",
         "replicas: %d", job->workers);
    (void)fprintf(out, "\nouter:\n");
    line(out, "times that the replicas synchronise", "rounds: %d", job->rounds);
    line(out, "steps of each replica in a round; or seconds: N instead", "steps: %d", job->steps);
    (void)fprintf(out, "\nwire:\n");
    line(out, "bits per parameter on the network: e3m0 4, int8 8, bf16 16, f32 32", "up: e3m0");
    line(out, "and new versions", "down: e3m0");
}

static void write_rest(const struct new_job *job, FILE *out)
{
    const int every = job->rounds >= 10 ? job->rounds / 5 : 1;
    (void)fprintf(out, "\nsample:\n");
    line(out, "rounds between samples", "every: %d", every);
    if (job->kind == NEW_TEXT) {
        line(out, "of a sample", "tokens: 200");
        if (job->endless)
            line(out, "to continue, as the tokenizer has no token that begins a text",
                 "prompt: The");
    } else {
        line(out, "of a grid", "count: %d", 16);
        line(out, "strength of classifier-free guidance; 1: off", "guidance: %d",
             job->kind == NEW_CAPTIONS ? JOB_GUIDANCE_CAPTIONS : 2);
    }
    write_prompts(job, out);
    if (!job->keeps)
        return;
    (void)fprintf(out, "\neval:\n");
    line(out, "rounds between held-out losses", "every: %d", every);
    line(out, "held-out samples that are judged", "samples: 200");
}

void new_job_write(const struct new_job *job, FILE *out)
{
    write_head(job, out);
    write_data(job, out);
    write_model(job, out);
    write_train(job, out);
    write_rest(job, out);
}
