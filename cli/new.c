/* skerry new: a commented job file that fits data and machine. */
#include <unistd.h>

#include "cli/base/model_folder.h"
#include "cli/command.h"
#include "cli/job/job_file.h"
#include "cli/job/new_job.h"
#include "cli/job/predict.h"
#include "cli/swarm.h"
#include "common/base/base.h"
#include "common/base/file.h"
#include "common/data/captions.h"
#include "common/data/shard.h"
#include "common/data/tokenizer.h"

static const char *new_images, *new_text, *new_text_field, *new_captions, *new_encoders, *new_from;
static int new_image_size = 32, new_workers, new_minutes = 40;
static bool new_here;

/* A job file is UTF-8, and so are the paths in it. */
static int check_path(const char *path, struct err *err)
{
    return !path || str_is_utf8(path, strlen(path))
               ? 0
               : err_set(err, -ERR_USAGE,
                         "'%.200s' is not UTF-8, so no job file can hold it: rename it, or give a "
                         "symbolic link to it that has a plain name",
                         path);
}

/* The name of the job: "flowers" for "flowers.yaml". */
static const char *job_name(const char *given)
{
    static char name[80];
    str_copy(name, sizeof name, given);
    if (str_ends(name, ".yaml"))
        name[strlen(name) - strlen(".yaml")] = '\0';
    return name;
}

/* Makes an error about the file at `path`, which is not there, name the flags. */
static void say_flags(const char *path, struct err *err)
{
    const struct {
        const char *key, *flag;
    } names[] = {
        {"data.path", new_images ? "--images"
                      : new_text ? "--text"
                                 : "--captions"},
        {"encoders.path", "--encoders"},
        {"model.warm_start", "--from"},
        {"data.tokenizer", "--from"},
        {"data.image_size", "--image-size"},
        {"model.patch", "--image-size"}, /* which it does not divide */
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char *said = str_printf("%s: %s", path, names[i].key);
        if (str_starts(err->msg, said)) {
            const size_t len = strlen(said);
            const bool wraps = err->msg[len] == ':'; /* else the key begins the sentence */
            char *rest = str_dup(err->msg + (wraps ? len + 2 : strlen(path) + 2));
            (void)err_set(err, err->code, "%s: %s", names[i].flag, rest);
            mem_free(rest);
        }
        mem_free(said);
    }
    const char *size = new_from ? strstr(err->msg, ": model.") : NULL; /* which a job cannot have */
    if (size) {
        char *rest = str_dup(size);
        (void)err_set(err, err->code, "--from%s", rest);
        mem_free(rest);
    }
}

/* Reads the command line. */
static int wanted(const struct args *args, struct new_job *ret, struct err *err)
{
    const int kinds = !!new_images + !!new_text + !!new_captions;
    if (kinds != 1)
        return err_set(err, -ERR_USAGE,
                       "expected one of --images DIR, --text FILE, --captions DIR");
    if (new_text_field && (!new_text || !str_is_utf8(new_text_field, strlen(new_text_field))))
        return err_set(err, -ERR_USAGE,
                       "--text-field goes with --text, and must be UTF-8, as JSON is");
    if (new_from && !new_text)
        return err_set(err, -ERR_USAGE, "--from goes with --text: it is a language model's folder");
    const char *name = job_name(args->rest[0]);
    char rule[JOB_NAME_RULE_MAX];
    if (!str_is_name(name, JOB_NAME_MAX))
        return err_set(err, -ERR_USAGE, "'%.80s' is not a name for a job: %s", args->rest[0],
                       job_name_rule(name, rule));
    if (!new_captions != !new_encoders)
        return err_set(err, -ERR_USAGE,
                       new_captions ? "--captions needs --encoders DIR: a diffusers pipeline whose "
                                      "text encoder reads the captions"
                                    : "--encoders is for --captions");
    if (check_path(new_encoders, err) < 0 || check_path(new_from, err) < 0 ||
        check_path(new_images ? new_images
                   : new_text ? new_text
                              : new_captions,
                   err) < 0)
        return err->code;
    if (new_images && new_job_patch(new_image_size) == 0)
        return err_set(err, -ERR_USAGE,
                       "--image-size is %d, which no patch cuts into few enough tokens: give a "
                       "multiple of 8, images are scaled to it",
                       new_image_size);
    if (new_here && new_workers > SWARM_WORKERS_MAX)
        return err_set(err, -ERR_USAGE, "--here with %d workers: expected at most %d", new_workers,
                       SWARM_WORKERS_MAX);
    *ret = (struct new_job){
        .name = name,
        .path = new_images ? new_images
                : new_text ? new_text
                           : new_captions,
        .field = new_text_field,
        .encoders = new_encoders,
        .from = new_from,
        .kind = new_images ? NEW_IMAGES
                : new_text ? NEW_TEXT
                           : NEW_CAPTIONS,
        .image_size = new_image_size,
        .workers = new_workers ? new_workers : PREDICT_WORKERS,
        .here = new_here || !new_workers,
        .runs = new_workers <= SWARM_WORKERS_MAX,
        .minutes = new_minutes,
        .rounds = 1,
        .steps = 1,
        .device = "",
    };
    return 0;
}

/* The text of the job file (buf_release, also on failure). */
static int write_text(const struct new_job *job, struct buf *ret, struct err *err)
{
    char *text = NULL;
    size_t len = 0;
    buf_init(ret, JOB_SPEC_MAX);
    FILE *out = open_memstream(&text, &len);
    if (!out)
        return err_errno(err, "no memory");
    new_job_write(job, out);
    (void)fclose(out);
    int rc = buf_append(ret, text, len);
    free(text);
    return rc < 0 ? err_set(err, rc, "no memory for a job file of %zu bytes", len) : 0;
}

/* Nobody's file is replaced; this is found before all the measuring, and once more after it. */
static int check_place(const char *path, struct err *err)
{
    if (file_exists(path))
        return err_set(err, -EEXIST, "%s is there already; choose another name", path);
    return access(".", W_OK) == 0
               ? 0
               : err_errno(err, "writing %s in this folder (go to one that you may write to)",
                           path);
}

static int write_file(const struct new_job *job, const char *path, struct err *err)
{
    struct buf text;
    int rc = write_text(job, &text, err);
    if (rc == 0)
        rc = check_place(path, err);
    if (rc == 0)
        rc = file_write_atomic(path, text.data, text.len, 0666, err);
    buf_release(&text);
    return rc;
}

/* Takes the first captions of the first shard's samples, each once. */
static int take_prompts(void *arg, const struct dataset_shard *cut, struct err *err)
{
    struct new_job *job = arg;
    struct shard shard;
    size_t n = 0;
    int rc = shard_open(cut->path, &shard, err);
    for (size_t i = 0; rc == 0 && i < shard.n && n < NEW_PROMPTS; i++) {
        const struct shard_sample *s = &shard.samples[i];
        size_t len = 0, same = 0;
        const char *text = s->captions ? captions_get(s->captions, s->captions_len, 0, &len) : "";
        if (len == 0 || len >= NEW_PROMPT_BYTES)
            continue;
        (void)snprintf(job->prompts[n], NEW_PROMPT_BYTES, "%.*s", (int)len, text);
        while (strcmp(job->prompts[same], job->prompts[n]) != 0)
            same++;
        if (same == n && new_job_holds(job->prompts[n]))
            n++;
        else
            job->prompts[n][0] = '\0';
    }
    if (rc == 0)
        shard_close(&shard);
    return rc == 0 && n > 0 ? -ERR_CANCELLED : rc; /* enough */
}

/* Takes prompts for samples from the data's captions; without short ones sets none. */
static void find_prompts(const struct job_file *file, struct new_job *job)
{
    struct dataset_report report = {0};
    char *dir = NULL;
    if (cli_temporary(&dir, NULL) < 0)
        return;
    const struct dataset_cut how = {.shard_samples = 8 * NEW_PROMPTS,
                                    .max_bad = UINT32_MAX,
                                    .look = true,
                                    .dir = dir,
                                    .on_shard = take_prompts,
                                    .ctx = job};
    (void)dataset_cut(file->dataset, &how, &report, NULL);
    dataset_report_release(&report);
    (void)file_remove_tree(dir, NULL); /* in the temporary directory */
    mem_free(dir);
}

/* Finds the amount of data, and whether they can be read; reads all texts. */
static int look_at_data(struct job_file *file, struct new_job *job, struct err *err)
{
    struct job_file_size size = {0};
    if (job->kind == NEW_CAPTIONS)
        find_prompts(file, job);
    int rc = job_file_read_some(file, &size, err);
    job->samples = size.samples;
    job->tokens = size.tokens;
    job->vocab = size.vocab;
    job->keeps = job->kind != NEW_TEXT
                     ? size.samples > 1
                     : size.documents > 1 || size.tokens > DATASET_SPAN * DATASET_WHOLE_SPANS;
    return rc;
}

/* Opens the job as the file at `path` would have it, and looks at its data; *ret is to be closed,
 * also on failure. */
static int open_file(struct new_job *job, const char *path, struct job_file *ret, struct err *err)
{
    struct buf text;
    *ret = (struct job_file){0};
    int rc = write_text(job, &text, err);
    if (rc < 0) {
        buf_release(&text);
        return rc;
    }
    rc = job_file_take(path, &text, ret, err);
    return rc < 0 ? rc : look_at_data(ret, job, err);
}

/* Gives the open file the job's present text; what the file names is the same, and stays open. */
static int rewrite(struct job_file *file, const struct new_job *job, const char *path,
                   struct err *err)
{
    struct job_spec spec;
    struct buf text;
    int rc = write_text(job, &text, err);
    if (rc == 0)
        rc = job_parse(buf_str(&text), text.len, path, &spec, err);
    if (rc < 0) {
        buf_release(&text);
        return rc;
    }
    job_release(&file->spec);
    buf_release(&file->text);
    file->spec = spec;
    file->text = text;
    return 0;
}

/* Measures a step of a model of this size. */
static int measure(const struct new_job *job, const char *path, struct job_file *file,
                   struct measured *at, struct err *err)
{
    struct composition c;
    int rc = rewrite(file, job, path, err);
    if (rc == 0)
        rc = recipe_compose(&file->spec, &c, err);
    if (rc < 0)
        return rc;
    struct predict_way way = {0};
    if (job->here)
        way = (struct predict_way){.together = job->workers,
                                   .threads = cli_threads_each(job->workers)};
    rc = predict_measure(file, &c, job->vocab, &way, at, err);
    composition_release(&c);
    return rc;
}

/* Chooses the largest model that data and time allow, and writes its file. */
static int choose(struct new_job *job, const char *path, struct err *err)
{
    struct new_job best = *job;
    struct job_file file;
    struct measured at = {0};
    static char device[sizeof at.device];
    double step_s = 0;
    const size_t sizes = job->from ? 1 : new_job_sizes();
    int rc = open_file(job, path, &file, err);
    for (job->size = 0; rc == 0 && job->size < sizes; job->size++) {
        rc = measure(job, path, &file, &at, err);
        const double s = at.networks[0].step_s;
        job->parameters = at.networks[0].parameters;
        if (rc < 0 || at.refused[0] || (job->size > 0 && !new_job_affords(job, s)))
            break;
        best = *job;
        step_s = s;
    }
    job_file_close(&file);
    if (rc == 0 && step_s <= 0)
        rc = err_set(err, -ERR_LIMIT, "%s", at.refused);
    if (rc < 0)
        return rc;
    str_copy(device, sizeof device, at.device);
    best.device = device;
    new_job_length(&best, step_s);
    *job = best;
    return write_file(job, path, err);
}

/* Tells what a folder of --from has decided that its owner may not expect. */
static void say_from(const struct new_job *job)
{
    if (new_job_is_short(job))
        fprintf(stderr,
                "--from: model.context is %d, as %s/config.json has no more "
                "(max_position_embeddings, or its sliding_window)\n",
                job->model.context, job->from);
    if (job->endless)
        fprintf(stderr,
                "--from: no token of %s begins or ends a text, as <s> or <|endoftext|> do, so the "
                "model sees no ends of documents, and samples continue a sample.prompt\n",
                job->tokenizer);
    if (!job->tokenizer && job->vocab <= TOKENIZER_BYTES_VOCAB)
        fprintf(stderr,
                "--from: %s has no tokenizer.json and no tokenizer.model, so the tokens are "
                "bytes; if it was trained with others, put its tokenizer there and run this "
                "again\n",
                job->from);
}

/* Has the folder's tokenizer tokens for the ends of a text? */
static int look_at_ends(struct new_job *job, struct err *err)
{
    struct tokenizer *t = NULL;
    if (!job->tokenizer)
        return 0;
    int rc = tokenizer_open(job->tokenizer, &t, err);
    job->endless = rc == 0 && tokenizer_bos(t) < 0 && tokenizer_eos(t) < 0;
    tokenizer_free(t);
    return rc;
}

static int run_new(struct cli *cli, const struct args *args, struct err *err)
{
    struct new_job job;
    char time[STR_HUMAN_MAX], size[STR_HUMAN_MAX];
    int rc = wanted(args, &job, err);
    if (rc < 0)
        return rc;
    char *path = str_printf("%s.yaml", job.name), *tokenizer = NULL;
    rc = check_place(path, err);
    if (rc == 0 && job.from)
        rc = model_folder_sizes(job.from, &job.model, &tokenizer, err);
    job.tokenizer = tokenizer;
    if (rc == 0 && job.from)
        rc = look_at_ends(&job, err);
    if (rc < 0 && job.from)
        (void)err_wrap(err, "--from");
    if (rc == 0 && (rc = choose(&job, path, err)) < 0)
        say_flags(path, err);
    if (rc == 0 && job.from)
        say_from(&job);
    char workers[32] = "", few[80] = "";
    if (job.passes > 0)
        (void)snprintf(few, sizeof few, " (each %s %d times; more of them would fill the time)",
                       job.kind == NEW_TEXT ? "text" : "image", job.passes);
    if (job.here && job.workers != PREDICT_WORKERS)
        (void)snprintf(workers, sizeof workers, " --workers %d", job.workers);
    if (rc == 0)
        printf("%s: a model of %s M parameters, %d round%s of %d step%s, about %s%s on %d "
               "worker%s %s this machine; `skerry %s %s%s` starts it\n",
               path, str_human_number((double)job.parameters / 1e6, size), job.rounds,
               str_plural((uint64_t)job.rounds), job.steps, str_plural((uint64_t)job.steps),
               str_human_duration((uint64_t)(fmax(job.seconds, 1) * 1000), time), few, job.workers,
               str_plural((uint64_t)job.workers), job.here ? "on" : "like",
               job.here ? "run" : "submit", path, workers);
    mem_free(tokenizer);
    mem_free(path);
    return rc;
}

const struct command command_new = {
    .name = "new",
    .what = "write a commented job file for your data and this machine",
    .usage = "NAME --images DIR | --text FILE [--text-field NAME] [--from DIR] | --captions DIR "
             "--encoders DIR",
    .about = "Writes NAME.yaml, with a comment on every key.  Measures models of "
             "several sizes on this machine, and takes the largest that has enough "
             "data and learns something in the given time; with --from, a model that is trained "
             "already.",
    .flags =
        (const struct args_flag[]){
            {"images", 0, ARGS_STR, &new_images, "DIR", "class folders of images, or tars"},
            {"text", 0, ARGS_STR, &new_text, "FILE", "a .txt, .jsonl or .bin, or a folder of them"},
            {"text-field", 0, ARGS_STR, &new_text_field, "NAME",
             "field of a .jsonl line that holds the text (default: text)"},
            {"from", 0, ARGS_STR, &new_from, "DIR",
             "a Llama, Mistral, Qwen2, Qwen3 or SmolLM3 of transformers to start from: its "
             "weights, sizes and tokenizer"},
            {"captions", 0, ARGS_STR, &new_captions, "DIR", "images with captions"},
            {"encoders", 0, ARGS_STR, &new_encoders, "DIR",
             "a diffusers pipeline that reads the captions"},
            {"image-size", 0, ARGS_INT, &new_image_size, "N", "side of the images in pixels",
             .min = 8, .max = 1024},
            {"workers", 'w', ARGS_INT, &new_workers, "N",
             "number of machines like this one (default: two that share this one)", .min = 1,
             .max = 256},
            {"here", 0, ARGS_BOOL, &new_here, NULL,
             "the workers share this machine, as those of `skerry run` do"},
            {"minutes", 0, ARGS_INT, &new_minutes, "N", "minutes that training may take", .min = 1,
             .max = 1e6},
            {0},
        },
    .rest_min = 1,
    .rest_max = 1,
    .needs = COMMAND_SIGNALS,
    .run = run_new,
};
