/* skerry sample, export */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/artifacts.h"
#include "cli/cli.h"
#include "cli/sample.h"
#include "common/base/err.h"
#include "common/base/str.h"

struct sample_options {
    uint64_t count, steps, seed, columns;
    double guidance;
    uint64_t path, top, tokens;
    double nucleus, threshold, temperature, top_p;
    bool guidance_given, seed_given, raw, remote, path_given, temperature_given;
    const char *sampler, *labels, *out, *strategy, *prompt;
};

/* "3,1,4" to an array; NULL with a sentence when it is none. */
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
            err_set(err, -EINVAL, "--labels takes class numbers with commas, as in 0,3,3; not '%s'",
                    text);
            return NULL;
        }
        json_array_append_new(list, json_integer((json_int_t)label));
        text += len + (text[len] == ',');
    }
    return list;
}

static json_t *sample_body(const struct sample_options *o, struct err *err)
{
    json_t *prompt = o->prompt ? json_string(o->prompt) : NULL;
    if (o->prompt && !prompt) {
        err_set(err, -EINVAL, "--prompt is not UTF-8 text");
        return NULL;
    }
    json_t *body = json_object();
    if (o->count)
        json_object_set_new(body, "count", json_integer((json_int_t)o->count));
    if (o->steps)
        json_object_set_new(body, "steps", json_integer((json_int_t)o->steps));
    if (o->columns)
        json_object_set_new(body, "columns", json_integer((json_int_t)o->columns));
    if (o->seed_given)
        json_object_set_new(body, "seed", json_integer((json_int_t)o->seed));
    if (o->guidance_given)
        json_object_set_new(body, "guidance", json_real(o->guidance));
    if (o->sampler)
        json_object_set_new(body, "sampler", json_string(o->sampler));
    if (o->raw)
        json_object_set_new(body, "ema", json_false());
    if (o->strategy)
        json_object_set_new(body, "strategy", json_string(o->strategy));
    if (o->top)
        json_object_set_new(body, "top", json_integer((json_int_t)o->top));
    if (o->nucleus > 0)
        json_object_set_new(body, "nucleus", json_real(o->nucleus));
    if (o->threshold > 0)
        json_object_set_new(body, "threshold", json_real(o->threshold));
    if (o->remote)
        json_object_set_new(body, "remote", json_true());
    if (o->path_given)
        json_object_set_new(body, "path", json_integer((json_int_t)o->path));
    if (prompt)
        json_object_set_new(body, "prompt", prompt);
    if (o->tokens)
        json_object_set_new(body, "tokens", json_integer((json_int_t)o->tokens));
    if (o->temperature_given)
        json_object_set_new(body, "temperature", json_real(o->temperature));
    if (o->top_p > 0)
        json_object_set_new(body, "top_p", json_real(o->top_p));
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

/* Text that came since the last look, to stdout as it is. */
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

/* Is who asked still there?  A closed pipe is as good as Ctrl-C. */
static bool unwanted(void)
{
    return cli_interrupted || ferror(stdout);
}

/* Nobody waits for the task any more: it must not go on. */
static int give_up(struct cli *cli, uint64_t task, struct err *err)
{
    struct err why = {0};
    char path[64];

    snprintf(path, sizeof path, "/v1/tasks/%llu/cancel", (unsigned long long)task);
    int rc = cli_call(cli, "POST", path, NULL, NULL, &why);
    if (rc < 0)
        return err_set(err, -ERR_CANCELLED, "interrupted; task %llu was not cancelled: %s",
                       (unsigned long long)task, why.msg);
    return err_set(err, -ERR_CANCELLED, "interrupted; task %llu is cancelled",
                   (unsigned long long)task);
}

/* Follows the task to its end; *ret_task (owned by the caller) is its last state. */
static int wait_for_task(struct cli *cli, uint64_t task, json_t **ret_task, struct err *err)
{
    char path[64], shown[256] = "";
    size_t text = 0;

    snprintf(path, sizeof path, "/v1/tasks/%llu", (unsigned long long)task);
    for (;; cli_sleep_ms(100)) {
        json_t *t = NULL;
        int rc = unwanted() ? -ERR_CANCELLED : cli_call(cli, "GET", path, NULL, &t, err);
        if (rc == -ERR_CANCELLED)
            return give_up(cli, task, err);
        if (rc < 0)
            return rc;
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
        if (!cli->json && text == 0 && *news && strcmp(news, shown)) {
            fprintf(stderr, "task %llu: %s\n", (unsigned long long)task, news);
            str_copy(shown, sizeof shown, news);
        }
        json_decref(t);
    }
}

/* Asks for samples and waits; the task's last state is the caller's. */
static int draw(struct cli *cli, uint64_t job, const json_t *ask, json_t **ret_task,
                struct err *err)
{
    char path[64];
    json_t *answer = NULL;
    snprintf(path, sizeof path, "/v1/jobs/%llu/sample", (unsigned long long)job);
    int rc = cli_call(cli, "POST", path, ask, &answer, err);
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

static void print_sample(struct cli *cli, const json_t *task, bool text, const char *file)
{
    if (cli->json) {
        json_t *done = text ? json_pack("{s:I,s:s}", "task", (json_int_t)cli_int(task, "id", 0),
                                        "text", cli_str(task, "text", ""))
                            : json_pack("{s:I,s:s,s:s}", "task", (json_int_t)cli_int(task, "id", 0),
                                        "blob", cli_str(task, "output", ""), "file", file);
        cli_print_json(done);
        json_decref(done);
    } else {
        printf("%s\n", text ? "" : file);
    }
}

static int sample(struct cli *cli, uint64_t job, const struct sample_options *o)
{
    struct err err = {0};
    json_t *task = NULL;

    json_t *ask = sample_body(o, &err);
    if (!ask)
        return cli_fail(&err);
    int rc = draw(cli, job, ask, &task, &err);
    json_decref(ask);
    /* A picture is a blob; a text is in the task itself. */
    bool text = rc == 0 && *cli_str(task, "output", "") == '\0';
    if (rc == 0 && !text)
        rc = artifacts_blob(cli, cli_str(task, "output", ""), o->out, &err);
    if (rc == 0)
        print_sample(cli, task, text, o->out);
    json_decref(task);
    return rc < 0 ? cli_fail(&err) : CLI_OK;
}

int cmd_sample(int argc, char **argv)
{
    struct cli cli = {0};
    struct err err = {0};
    struct sample_options o = {.out = "samples.png"};
    uint64_t job = 0;
    const struct args_flag flags[] = {
        CLI_FLAG_SERVER(&cli),
        CLI_FLAG_JSON(&cli),
        {"out", 'o', ARGS_STR, &o.out, "FILE", "where the PNG goes"},
        {"count", 'n', ARGS_U64, &o.count, "N", "samples", .min = 1, .max = 1024},
        {"labels", 0, ARGS_STR, &o.labels, "A,B,..", "class numbers, cycled"},
        {"steps", 0, ARGS_U64, &o.steps, "N", "steps of the ODE solver", .min = 1, .max = 1000},
        {"sampler", 0, ARGS_STR, &o.sampler, "NAME", "euler or heun"},
        {"guidance", 0, ARGS_DOUBLE, &o.guidance, "X", "classifier-free guidance; 1 is off",
         .max = 100, .given = &o.guidance_given},
        {"seed", 0, ARGS_U64, &o.seed, "N", "of the noise, of the choice of tokens", .max = 9e18,
         .given = &o.seed_given},
        {"columns", 0, ARGS_U64, &o.columns, "N", "of the grid", .min = 1, .max = 1024},
        {"raw", 0, ARGS_BOOL, &o.raw, NULL, "the newest weights instead of their average"},
        {"strategy", 0, ARGS_STR, &o.strategy, "NAME",
         "mixtures: top1, topk, full, nucleus, threshold or oracle"},
        {"top", 0, ARGS_U64, &o.top, "N", "experts of strategy topk", .min = 1, .max = 256},
        {"nucleus", 0, ARGS_DOUBLE, &o.nucleus, "P", "of strategy nucleus", .min = 0.01, .max = 1},
        {"threshold", 0, ARGS_DOUBLE, &o.threshold, "P", "of strategy threshold", .min = 0.001,
         .max = 1},
        {"remote", 0, ARGS_BOOL, &o.remote, NULL, "mixtures: experts stay on their workers"},
        {"path", 0, ARGS_U64, &o.path, "N", "draw from this path alone", .max = 1023,
         .given = &o.path_given},
        {"prompt", 'p', ARGS_STR, &o.prompt, "TEXT", "texts: what to go on from"},
        {"tokens", 0, ARGS_U64, &o.tokens, "N", "texts: how many to generate", .min = 1,
         .max = 4096},
        {"temperature", 0, ARGS_DOUBLE, &o.temperature, "T", "texts: 0 takes the likeliest",
         .max = 10, .given = &o.temperature_given},
        {"top-p", 0, ARGS_DOUBLE, &o.top_p, "P", "texts: nucleus of tokens", .min = 0.01, .max = 1},
        {0},
    };
    struct args args = {.program = "skerry sample",
                        .usage = "[JOB]",
                        .flags = flags,
                        .about = "Draws with a job's newest version on one of the workers: a grid "
                                 "of images into a PNG, or text that is printed as it comes.  What "
                                 "is not given is as in the job file.  Ctrl-C cancels the task.",
                        .rest_max = 1};

    int rc = args_parse(&args, argc, argv, &err);
    if (rc)
        return args_exit(&args, rc, &err);
    cli_catch_signals();
    (void)signal(SIGPIPE, SIG_IGN); /* text goes to a pipe as it comes: see unwanted() */
    int status = cli_connect(&cli, &err) < 0 || cli_job_id(&cli, &args, &job, &err) < 0
                     ? cli_fail(&err)
                     : sample(&cli, job, &o);
    cli_close(&cli);
    return status;
}

int cmd_export(int argc, char **argv)
{
    struct cli cli = {0};
    struct err err = {0};
    const char *out = "model";
    bool raw = false;
    int number = 0;
    uint64_t job = 0;
    const struct args_flag flags[] = {
        CLI_FLAG_SERVER(&cli),
        CLI_FLAG_JSON(&cli),
        {"out", 'o', ARGS_STR, &out, "DIR", "the folder"},
        {"path", 0, ARGS_INT, &number, "N", "of a job with several: the expert, the path",
         .max = 1023},
        {"raw", 0, ARGS_BOOL, &raw, NULL, "the newest weights instead of their average"},
        {0},
    };
    struct args args = {.program = "skerry export",
                        .usage = "[JOB] [--path N] [--out DIR]",
                        .flags = flags,
                        .about = "Downloads a job's model: model.safetensors and config.json with "
                                 "the names of the original DiT code; of a language model with "
                                 "those of transformers, and its tokenizer.",
                        .rest_max = 1};

    int rc = args_parse(&args, argc, argv, &err);
    if (rc)
        return args_exit(&args, rc, &err);
    cli_catch_signals(); /* parts are removed */
    int status = CLI_OK;
    if (cli_connect(&cli, &err) < 0 || cli_job_id(&cli, &args, &job, &err) < 0 ||
        artifacts_model(&cli, job, (uint32_t)number, !raw, out, &err) < 0) {
        status = cli_fail(&err);
    } else if (cli.json) {
        json_t *done = json_pack("{s:I,s:s}", "job", (json_int_t)job, "folder", out);
        cli_print_json(done);
        json_decref(done);
    } else {
        printf("the model is in %s/\n", out);
    }
    cli_close(&cli);
    return status;
}
