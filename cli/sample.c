/* skerry sample, export: draw with a model, and save the model itself. */
#include <libgen.h>
#include <unistd.h>

#include "common/base/base.h"
#include "cli/show/artifacts.h"
#include "cli/show/models.h"
#include "cli/command.h"
#include "cli/sample.h"
#include "common/base/buf.h"
#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/job/job.h"

#define PENDING_POLLS 10 /* polls between two requests for the reason of a wait */

struct sample_options {
    uint64_t count, steps, seed, columns;
    double guidance;
    uint64_t path, top, tokens;
    double nucleus, threshold, temperature, top_p;
    bool guidance_given, seed_given, raw, remote, path_given, temperature_given;
    const char *sampler, *labels, *out, *strategy;
    struct args_list prompts;
};

/* Checks names here, because the job's or the coordinator's messages would not name the flags. */
static int check_names(const struct sample_options *o, struct err *err)
{
    int number;
    if (o->sampler && job_sampler_parse(o->sampler, &number) < 0)
        return err_set(err, -ERR_USAGE, "--sampler is '%.80s', expected euler or heun", o->sampler);
    if (o->strategy && job_strategy_parse(o->strategy, &number) < 0)
        return err_set(err, -ERR_USAGE,
                       "--strategy is '%.80s', expected top1, topk, full, nucleus, threshold or "
                       "oracle",
                       o->strategy);
    return 0;
}

/* Turns "3,1,4" into an array; NULL with an error if it is not a list of numbers. */
static json_t *label_list(const char *text, struct err *err)
{
    json_t *list = json_array();
    char part[24];

    while (*text) {
        uint64_t label;
        size_t len = strcspn(text, ",");
        if (len >= sizeof part ||
            (memcpy(part, text, len), part[len] = '\0', str_parse_u64(part, &label) < 0)) {
            json_decref(list);
            err_set(err, -ERR_USAGE,
                    "--labels takes class numbers with commas, as in 0,3,3; not '%s'", text);
            return NULL;
        }
        json_array_append_new(list, json_integer((json_int_t)label));
        text += len + (text[len] == ',');
    }
    return list;
}

static json_t *integer(uint64_t value, bool given)
{
    return given ? json_integer((json_int_t)value) : NULL;
}

static json_t *real(double value, bool given)
{
    return given ? json_real(value) : NULL;
}

/* Takes value; NULL: the field is left out. */
static void set(json_t *object, const char *key, json_t *value)
{
    if (value)
        json_object_set_new(object, key, value);
}

/* A line for each --prompt. */
static json_t *prompt_text(const struct args_list *prompts)
{
    struct buf text;
    buf_init(&text, 1 << 20); /* the coordinator takes less */
    int rc = 0;
    for (size_t i = 0; i < prompts->n && rc == 0; i++)
        rc = buf_printf(&text, "%s%s", i ? "\n" : "", prompts->items[i]);
    json_t *ret = rc == 0 ? json_string(buf_str(&text)) : NULL;
    buf_release(&text);
    return ret;
}

static json_t *sample_body(const struct sample_options *o, struct err *err)
{
    json_t *prompt = o->prompts.n ? prompt_text(&o->prompts) : NULL;
    if (o->prompts.n && !prompt) {
        err_set(err, -ERR_USAGE, "--prompt is not UTF-8 text");
        return NULL;
    }
    json_t *body = json_object();
    set(body, "count", integer(o->count, o->count > 0));
    set(body, "steps", integer(o->steps, o->steps > 0));
    set(body, "columns", integer(o->columns, o->columns > 0));
    set(body, "seed", integer(o->seed, o->seed_given));
    set(body, "guidance", real(o->guidance, o->guidance_given));
    set(body, "sampler", o->sampler ? json_string(o->sampler) : NULL);
    set(body, "ema", o->raw ? json_false() : NULL);
    set(body, "strategy", o->strategy ? json_string(o->strategy) : NULL);
    set(body, "top", integer(o->top, o->top > 0));
    set(body, "nucleus", real(o->nucleus, o->nucleus > 0));
    set(body, "threshold", real(o->threshold, o->threshold > 0));
    set(body, "remote", o->remote ? json_true() : NULL);
    set(body, "path", integer(o->path, o->path_given));
    set(body, "prompt", prompt);
    set(body, "tokens", integer(o->tokens, o->tokens > 0));
    set(body, "temperature", real(o->temperature, o->temperature_given));
    set(body, "top_p", real(o->top_p, o->top_p > 0));
    if (o->labels) {
        json_t *labels = label_list(o->labels, err);
        if (!labels) {
            json_decref(body);
            return NULL;
        }
        json_object_set_new(body, "labels", labels);
    }
    return body;
}

/* Writes the text that came since the last poll to stdout, unchanged. */
static void show_text(struct cli *cli, const json_t *task, size_t *shown)
{
    const char *text = cli_str(task, "text", "");
    size_t len = strlen(text);
    if (cli->json || len <= *shown)
        return;
    fwrite(text + *shown, 1, len - *shown, stdout);
    fflush(stdout);
    *shown = len;
}

/* True if the answer is no longer wanted: after Ctrl-C, or if the pipe was closed. */
static bool unwanted(void)
{
    return cli_interrupted || ferror(stdout);
}

/* Cancels the task, because its result is no longer wanted. */
static int give_up(struct cli *cli, uint64_t task, struct err *err)
{
    struct err why = {0};
    int rc =
        cli_call(cli, "POST", NULL, NULL, &why, "/v1/tasks/%llu/cancel", (unsigned long long)task);
    if (rc < 0)
        return err_set(err, -ERR_CANCELLED, "interrupted; task %llu was not cancelled: %s",
                       (unsigned long long)task, why.msg);
    return err_set(err, -ERR_CANCELLED, "interrupted; task %llu is cancelled",
                   (unsigned long long)task);
}

/* The reason why no worker has begun with the task, "" if not known. */
static void why_pending(struct cli *cli, const json_t *task, char out[256])
{
    json_t *job = NULL;
    const json_t *item;
    size_t i;
    out[0] = '\0';
    if (cli_call(cli, "GET", NULL, &job, NULL, "/v1/jobs/%lld?history=0&samples=0",
                 cli_int(task, "job", 0)) < 0)
        return; /* the next poll of the task fails, too */
    json_array_foreach(json_object_get(job, "waiting_for"), i, item)
    {
        if (cli_int(item, "task", 0) == cli_int(task, "id", 0))
            str_copy(out, 256, cli_str(item, "why", ""));
    }
    json_decref(job);
}

/* Follows the task to its end; *ret_task (owned by the caller) is its last state. */
static int wait_for_task(struct cli *cli, uint64_t task, json_t **ret_task, struct err *err)
{
    char shown[256] = "", why[256];
    size_t text = 0;
    unsigned polls = 0;
    struct cli_away away = {.seen_ms = clock_now_ms()};

    for (;; cli_sleep_ms(100)) {
        json_t *t = NULL;
        int rc = unwanted() ? -ERR_CANCELLED
                            : cli_call(cli, "GET", NULL, &t, err, "/v1/tasks/%llu",
                                       (unsigned long long)task);
        if (rc == -ERR_CANCELLED)
            return give_up(cli, task, err);
        if (rc < 0 && !cli_may_come_back(rc, away.seen_ms))
            return rc;
        if (rc < 0) {
            cli_say_away(&away, err->msg);
            continue;
        }
        cli_say_back(&away);
        const char *state = cli_str(t, "state", "");
        show_text(cli, t, &text);
        if (!strcmp(state, "done")) {
            *ret_task = t;
            return 0;
        }
        if (!strcmp(state, "failed") || !strcmp(state, "cancelled")) {
            rc = err_set(err, -ERR_REMOTE, "the sample task %s: %s", state,
                         cli_str(t, "reason", ""));
            json_decref(t);
            return rc;
        }
        const char *news =
            *cli_str(t, "activity", "") ? cli_str(t, "activity", "") : cli_str(t, "reason", "");
        if (!cli->json && !strcmp(state, "pending") && polls++ % PENDING_POLLS == 1) {
            why_pending(cli, t, why);
            news = why;
        }
        if (!cli->json && text == 0 && *news && strcmp(news, shown)) {
            fprintf(stderr, "task %llu: %s\n", (unsigned long long)task, news);
            str_copy(shown, sizeof shown, news);
        }
        json_decref(t);
    }
}

/* Asks for samples and waits; the caller owns the task's last state. */
static int draw(struct cli *cli, uint64_t job, const json_t *ask, json_t **ret_task,
                struct err *err)
{
    json_t *answer = NULL;
    int rc =
        cli_call(cli, "POST", ask, &answer, err, "/v1/jobs/%llu/sample", (unsigned long long)job);
    if (rc == 0)
        rc = wait_for_task(cli, (uint64_t)cli_int(answer, "task", 0), ret_task, err);
    json_decref(answer);
    return rc;
}

int sample_to_file(struct cli *cli, uint64_t job, const json_t *ask, const char *file,
                   struct err *err)
{
    json_t *task = NULL;
    int rc = draw(cli, job, ask, &task, err);
    if (rc == 0)
        rc = artifacts_blob(cli, cli_str(task, "output", ""), file, err);
    json_decref(task);
    return rc;
}

/* Saves the result: a picture is a blob, a text is in the task itself. */
static int keep(struct cli *cli, const json_t *task, const char *out, struct err *err)
{
    const char *blob = cli_str(task, "output", "");
    if (*blob)
        return artifacts_blob(cli, blob, out ? out : "samples.png", err);
    if (!out)
        return 0;
    char *line = str_printf("%s\n", cli_str(task, "text", ""));
    int rc = file_write_atomic(out, line, strlen(line), 0666, err);
    mem_free(line);
    return rc;
}

static void print_sample(struct cli *cli, const json_t *task, bool text, const char *file)
{
    json_int_t id = cli_int(task, "id", 0);
    if (!cli->json)
        puts(text ? "" : file);
    else if (text)
        cli_print_taken(json_pack("{s:I,s:s}", "task", id, "text", cli_str(task, "text", "")));
    else
        cli_print_taken(json_pack("{s:I,s:s,s:o}", "task", id, "blob", cli_str(task, "output", ""),
                                  "file", cli_text(file)));
}

/* Checks before anything is drawn that the file can be written, and that its ending fits the
 * result. */
static int check_out(const char *file, struct err *err)
{
    static const char *const others[] = {".jpg", ".jpeg", ".jpe", ".jfif", ".webp",
                                         ".gif", ".bmp",  ".tif", ".tiff"};
    const char *dot = strrchr(file, '.');
    if (!file[0])
        return err_set(err, -ERR_USAGE, "--out is empty, expected a file");
    for (size_t i = 0; dot && i < sizeof others / sizeof *others; i++)
        if (!strcasecmp(dot, others[i]))
            return err_set(err, -ERR_USAGE,
                           "--out %s: pictures are written as PNG: name it %.*s.png", file,
                           (int)(dot - file), file);
    if (file_is_dir(file))
        return err_set(err, -EISDIR, "--out %s is a directory, expected a file", file);
    if (file_check_place(file, err) < 0)
        return -EINVAL;
    char *path = str_dup(file);
    const char *folder = dirname(path);
    const int rc = access(folder, W_OK | X_OK) == 0
                       ? 0
                       : err_errno(err, "--out %s: nothing can be written to %s", file, folder);
    mem_free(path);
    return rc;
}

static struct sample_options options;

static int run_sample(struct cli *cli, const struct args *args, struct err *err)
{
    const struct sample_options *o = &options;
    json_t *task = NULL;
    uint64_t job = 0;

    (void)signal(SIGPIPE, SIG_IGN); /* text is written to a pipe as it comes: see unwanted() */
    int rc = check_names(o, err);
    if (rc < 0)
        return rc;
    if (o->out)
        rc = check_out(o->out, err);
    if (rc == 0)
        rc = cli_job_id(cli, args, &job, err);
    json_t *ask = rc == 0 ? sample_body(o, err) : NULL;
    if (!ask)
        return err->code;
    rc = draw(cli, job, ask, &task, err);
    json_decref(ask);
    const bool text = rc == 0 && *cli_str(task, "output", "") == '\0';
    if (rc == 0)
        rc = keep(cli, task, o->out, err);
    if (rc == 0)
        print_sample(cli, task, text, o->out ? o->out : "samples.png");
    json_decref(task);
    return rc;
}

const struct command command_sample = {
    .name = "sample",
    .what = "draw samples with a job's model",
    .usage = "[JOB]",
    .about = "Draws with a job's newest version on one of the workers: a grid of "
             "images into a PNG, or text, printed as it is generated.  Options that "
             "are not given are as in the job file.  Ctrl-C cancels the drawing.",
    .flags =
        (const struct args_flag[]){
            {"out", 'o', ARGS_STR, &options.out, "FILE",
             "file for the PNG (default: samples.png), or for the text, which is printed, too"},
            {"count", 'n', ARGS_U64, &options.count, "N", "number of samples", .min = 1,
             .max = 1024},
            {"labels", 0, ARGS_STR, &options.labels, "A,B,..",
             "class numbers to draw, repeated in turn"},
            {"steps", 0, ARGS_U64, &options.steps, "N", "steps of the ODE solver", .min = 1,
             .max = 1000},
            {"sampler", 0, ARGS_STR, &options.sampler, "NAME", "euler or heun"},
            {"guidance", 0, ARGS_DOUBLE, &options.guidance, "X",
             "classifier-free guidance; 1 is off", .max = 100, .given = &options.guidance_given},
            {"seed", 0, ARGS_U64, &options.seed, "N",
             "seed of the noise, or of the choice of tokens", .max = 9e18,
             .given = &options.seed_given},
            {"columns", 0, ARGS_U64, &options.columns, "N", "columns of the grid", .min = 1,
             .max = 1024},
            {"raw", 0, ARGS_BOOL, &options.raw, NULL,
             "the newest weights instead of their average"},
            {"strategy", 0, ARGS_STR, &options.strategy, "NAME",
             "mixtures: top1, topk, full, nucleus, threshold or oracle"},
            {"top", 0, ARGS_U64, &options.top, "N", "number of experts of strategy topk", .min = 1,
             .max = 256},
            {"nucleus", 0, ARGS_DOUBLE, &options.nucleus, "P",
             "probability that strategy nucleus must reach", .min = 0.01, .max = 1},
            {"threshold", 0, ARGS_DOUBLE, &options.threshold, "P",
             "least probability of an expert, strategy threshold", .min = 0.001, .max = 1},
            {"remote", 0, ARGS_BOOL, &options.remote, NULL,
             "mixtures: experts stay on their workers"},
            {"path", 0, ARGS_U64, &options.path, "N", "draw from this path alone", .max = 1023,
             .given = &options.path_given},
            {"prompt", 'p', ARGS_LIST, &options.prompts, "TEXT",
             "texts: the beginning to continue; captioned images: captions to draw, "
             "one a line or one each time the option is given"},
            {"tokens", 0, ARGS_U64, &options.tokens, "N", "texts: number of tokens to generate",
             .min = 1, .max = 4096},
            {"temperature", 0, ARGS_DOUBLE, &options.temperature, "T",
             "texts: 0 takes the likeliest token", .max = 10, .given = &options.temperature_given},
            {"top-p", 0, ARGS_DOUBLE, &options.top_p, "P",
             "texts: probability of the nucleus that tokens are drawn from", .min = 0.01, .max = 1},
            {0},
        },
    .rest_max = 1,
    .needs = COMMAND_CONNECT | COMMAND_JSON | COMMAND_SIGNALS,
    .run = run_sample,
};

static const char *export_dir = "model";
static bool export_raw, export_replace;
static int export_path;
static bool export_path_given;

static int run_export(struct cli *cli, const struct args *args, struct err *err)
{
    uint64_t job = 0;
    struct file_names folders = {0};
    int rc = cli_job_id(cli, args, &job, err);
    if (rc == 0)
        rc = models_take(cli, job, export_path_given ? export_path : -1, !export_raw, export_dir,
                         export_replace, &folders, err);
    if (rc < 0)
        return rc;
    json_t *list = json_array();
    for (size_t i = 0; i < folders.n; i++) {
        json_array_append_new(list, cli_text(folders.items[i]));
        if (!cli->json)
            printf("the model is in %s/\n", folders.items[i]);
    }
    if (cli->json && folders.n == 1)
        cli_print_taken(
            json_pack("{s:I,s:O}", "job", (json_int_t)job, "folder", json_array_get(list, 0)));
    else if (cli->json)
        cli_print_taken(json_pack("{s:I,s:O}", "job", (json_int_t)job, "folders", list));
    json_decref(list);
    file_names_release(&folders);
    return CLI_OK;
}

const struct command command_export = {
    .name = "export",
    .what = "download the model, or those of all paths, as safetensors",
    .usage = "[JOB] [--path N] [--out DIR]",
    .about = "Downloads a job's model as model.safetensors and config.json.  A DiT "
             "has the tensor names of the original DiT code; diffusers opens a model"
             " with captions, transformers a language model, with its tokenizer.  A "
             "trainer's model has the trainer's names and types, and the other files"
             " of its warm start.  Of a job with several paths each has a folder: "
             "DIR-0, DIR-1 and so on, and DIR-router for the router that mixes "
             "experts.",
    .flags =
        (const struct args_flag[]){
            {"out", 'o', ARGS_STR, &export_dir, "DIR", "folder to write"},
            {"path", 0, ARGS_INT, &export_path, "N", "only this expert or path, in DIR itself",
             .max = 1023, .given = &export_path_given},
            {"raw", 0, ARGS_BOOL, &export_raw, NULL, "the newest weights instead of their average"},
            {"replace", 0, ARGS_BOOL, &export_replace, NULL,
             "write into a folder that holds another job's model, or other files"},
            {0},
        },
    .rest_max = 1,
    .needs = COMMAND_CONNECT | COMMAND_JSON | COMMAND_SIGNALS, /* parts are removed */
    .run = run_export,
};
