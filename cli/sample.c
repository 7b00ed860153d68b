/* skerry sample, export */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/artifacts.h"
#include "cli/cli.h"
#include "common/base/str.h"

struct sample_options {
    uint64_t count, steps, seed, columns;
    double guidance;
    bool guidance_given, seed_given, raw;
    const char *sampler, *labels, *out;
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

/* Waits for the task; returns the exit status and the PNG's hash. */
static int wait_for_task(struct cli *cli, uint64_t task, char ret_blob[72])
{
    char path[64], shown[256] = "";
    struct err err = {0};

    snprintf(path, sizeof path, "/v1/tasks/%llu", (unsigned long long)task);
    for (;; cli_sleep_ms(200)) {
        json_t *t = NULL;
        if (cli_interrupted)
            return CLI_INTERRUPTED;
        if (cli_call(cli, "GET", path, NULL, &t, &err) < 0)
            return cli_fail(&err);
        const char *state = cli_str(t, "state", "");
        if (!strcmp(state, "done")) {
            str_copy(ret_blob, 72, cli_str(t, "output", ""));
            json_decref(t);
            return CLI_OK;
        }
        if (!strcmp(state, "failed") || !strcmp(state, "cancelled")) {
            fprintf(stderr, "skerry: the sample task %s: %s\n", state, cli_str(t, "reason", ""));
            json_decref(t);
            return CLI_FAILED;
        }
        const char *news =
            *cli_str(t, "activity", "") ? cli_str(t, "activity", "") : cli_str(t, "reason", "");
        if (!cli->json && *news && strcmp(news, shown)) {
            fprintf(stderr, "task %llu: %s\n", (unsigned long long)task, news);
            str_copy(shown, sizeof shown, news);
        }
        json_decref(t);
    }
}

static int sample(struct cli *cli, uint64_t job, const struct sample_options *o)
{
    char path[64], blob[72];
    struct err err = {0};
    json_t *answer = NULL;

    json_t *body = sample_body(o, &err);
    if (!body)
        return cli_fail(&err);
    snprintf(path, sizeof path, "/v1/jobs/%llu/sample", (unsigned long long)job);
    int rc = cli_call(cli, "POST", path, body, &answer, &err);
    json_decref(body);
    if (rc < 0)
        return cli_fail(&err);
    uint64_t task = (uint64_t)cli_int(answer, "task", 0);
    json_decref(answer);
    int status = wait_for_task(cli, task, blob);
    if (status != CLI_OK)
        return status;
    if (artifacts_blob(cli, blob, o->out, &err) < 0)
        return cli_fail(&err);
    if (cli->json) {
        json_t *done =
            json_pack("{s:I,s:s,s:s}", "task", (json_int_t)task, "blob", blob, "file", o->out);
        cli_print_json(done);
        json_decref(done);
    } else {
        printf("%s\n", o->out);
    }
    return CLI_OK;
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
        {"seed", 0, ARGS_U64, &o.seed, "N", "of the noise", .given = &o.seed_given},
        {"columns", 0, ARGS_U64, &o.columns, "N", "of the grid", .min = 1, .max = 1024},
        {"raw", 0, ARGS_BOOL, &o.raw, NULL, "the newest weights instead of their average"},
        {0},
    };
    struct args args = {.program = "skerry sample",
                        .usage = "[JOB]",
                        .flags = flags,
                        .about = "Draws a grid of samples with a job's newest version on one of "
                                 "the workers.  What is not given is as in the job file.",
                        .rest_max = 1};

    int rc = args_parse(&args, argc, argv, &err);
    if (rc)
        return args_exit(&args, rc, &err);
    cli_catch_signals();
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
    uint64_t job = 0;
    const struct args_flag flags[] = {
        CLI_FLAG_SERVER(&cli),
        CLI_FLAG_JSON(&cli),
        {"out", 'o', ARGS_STR, &out, "DIR", "the folder"},
        {"raw", 0, ARGS_BOOL, &raw, NULL, "the newest weights instead of their average"},
        {0},
    };
    struct args args = {.program = "skerry export",
                        .usage = "[JOB] [--out DIR]",
                        .flags = flags,
                        .about = "Downloads a job's model: model.safetensors with the tensor names "
                                 "of the original DiT code, and config.json.",
                        .rest_max = 1};

    int rc = args_parse(&args, argc, argv, &err);
    if (rc)
        return args_exit(&args, rc, &err);
    int status = CLI_OK;
    if (cli_connect(&cli, &err) < 0 || cli_job_id(&cli, &args, &job, &err) < 0 ||
        artifacts_model(&cli, job, !raw, out, &err) < 0) {
        status = cli_fail(&err);
    } else if (cli.json) {
        json_t *done = json_pack("{s:I,s:s}", "job", (json_int_t)job, "folder", out);
        cli_print_json(done);
        json_decref(done);
    } else {
        printf("%s/model.safetensors\n%s/config.json\n", out, out);
    }
    cli_close(&cli);
    return status;
}
