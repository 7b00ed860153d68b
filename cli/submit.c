/* skerry submit, check, keys: from a job file to a job. */

#include "common/base/base.h"
#include "cli/command.h"
#include "cli/follow.h"
#include "cli/job_file.h"

static bool submit_watch;

static int run_submit(struct cli *cli, const struct args *args, struct err *err)
{
    struct job_file job;
    uint64_t id = 0;

    int rc = job_file_open(args->rest[0], &job, err);
    if (rc < 0)
        return rc;
    rc = cli_connect(cli, err);
    if (rc == 0)
        rc = job_file_submit(cli, &job, !cli->json, &id, err);
    if (rc == 0 && cli->json)
        cli_print_taken(json_pack("{s:I}", "id", (json_int_t)id));
    else if (rc == 0)
        printf("job %llu (%s) is submitted; follow it with `skerry watch %llu`\n",
               (unsigned long long)id, job.spec.name, (unsigned long long)id);
    job_file_close(&job);
    return rc == 0 && submit_watch ? follow_apart(cli, id) : rc;
}

const struct command command_submit = {
    .name = "submit",
    .what = "check a job file and its data, upload them, start the job",
    .usage = "job.yaml [--watch]",
    .about = "Checks the job file and the data it names, uploads the data as shards (those that "
             "are there already are not sent again) and starts the job.  Nothing runs when "
             "anything is wrong.",
    .flags =
        (const struct args_flag[]){
            {"watch", 'w', ARGS_BOOL, &submit_watch, NULL, "follow the job to its end"},
            {0},
        },
    .rest_min = 1,
    .rest_max = 1,
    .needs = COMMAND_SERVER | COMMAND_JSON | COMMAND_SIGNALS,
    .run = run_submit,
};

static int run_check(struct cli *cli, const struct args *args, struct err *err)
{
    struct job_file job;
    char *size = NULL;
    size_t len = 0;

    int rc = job_file_open(args->rest[0], &job, err);
    if (rc < 0)
        return rc;
    FILE *out = open_memstream(&size, &len);
    rc = out ? job_file_read_all(&job, out, err) : err_errno(err, "no memory");
    if (out)
        fclose(out);
    if (rc == 0)
        printf("%s: fine%s%s\n", args->rest[0], len ? "; " : "", size);
    free(size);
    job_file_close(&job);
    return rc;
}

const struct command command_check = {
    .name = "check",
    .what = "check a job file and its data without submitting",
    .usage = "job.yaml",
    .about = "Says whether `skerry submit` would accept this job file and its data; reads all of "
             "them and sends nothing.",
    .rest_min = 1,
    .rest_max = 1,
    .needs = COMMAND_SIGNALS,
    .run = run_check,
};

static bool keys_markdown;

static int run_keys(struct cli *cli, const struct args *args, struct err *err)
{
    struct buf text;
    buf_init(&text, 1 << 20);
    if (job_document(keys_markdown ? CONF_MARKDOWN : CONF_TEXT, &text) == 0)
        fputs(buf_str(&text), stdout);
    buf_release(&text);
    return CLI_OK;
}

const struct command command_keys = {
    .name = "keys",
    .what = "every key of a job file, with its default",
    .usage = "[--markdown]",
    .about = "Prints every key of a job file: type, range, default, meaning.",
    .flags =
        (const struct args_flag[]){
            {"markdown", 0, ARGS_BOOL, &keys_markdown, NULL, "as a table in Markdown"},
            {0},
        },
    .run = run_keys,
};
