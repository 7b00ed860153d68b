/* skerry submit, check, keys */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/dataset_upload.h"
#include "cli/follow.h"

int cmd_submit(int argc, char **argv)
{
    struct cli cli = {0};
    struct err err = {0};
    struct job_file job;
    bool watch = false;
    uint64_t id;
    const struct args_flag flags[] = {
        CLI_FLAG_SERVER(&cli),
        CLI_FLAG_JSON(&cli),
        {"watch", 'w', ARGS_BOOL, &watch, NULL, "follow the job to its end"},
        {0},
    };
    struct args args = {.program = "skerry submit",
                        .usage = "job.yaml [--watch]",
                        .flags = flags,
                        .about = "Checks the job file and the data it names, uploads the data as "
                                 "shards (those that are there already are not sent again) and "
                                 "starts the job.  Nothing runs when anything is wrong.",
                        .rest_min = 1,
                        .rest_max = 1};

    int rc = args_parse(&args, argc, argv, &err);
    if (rc)
        return args_exit(&args, rc, &err);
    cli_catch_signals();
    if (job_file_open(args.rest[0], &job, &err) < 0)
        return cli_fail(&err);
    int status = CLI_OK;
    if (cli_connect(&cli, &err) < 0 || job_file_submit(&cli, &job, !cli.json, &id, &err) < 0) {
        status = cli_fail(&err);
        goto out;
    }
    if (cli.json) {
        json_t *answer = json_pack("{s:I}", "id", (json_int_t)id);
        cli_print_json(answer);
        json_decref(answer);
    } else {
        printf("job %llu (%s) is submitted; follow it with `skerry watch %llu`\n",
               (unsigned long long)id, job.spec.name, (unsigned long long)id);
    }
    if (watch)
        status = follow_apart(&cli, id);
out:
    cli_close(&cli);
    job_file_close(&job);
    return status;
}

int cmd_check(int argc, char **argv)
{
    struct err err = {0};
    struct job_file job;
    const struct args_flag flags[] = {{0}};
    struct args args = {.program = "skerry check",
                        .usage = "job.yaml",
                        .flags = flags,
                        .about = "Says whether `skerry submit` would accept this job file and "
                                 "its data; reads all of them and sends nothing.",
                        .rest_min = 1,
                        .rest_max = 1};

    int rc = args_parse(&args, argc, argv, &err);
    if (rc)
        return args_exit(&args, rc, &err);
    cli_catch_signals();
    if (job_file_open(args.rest[0], &job, &err) < 0)
        return cli_fail(&err);
    int status = CLI_OK;
    char *size = NULL;
    size_t len = 0;
    FILE *out = open_memstream(&size, &len);
    rc = out ? job_file_read_all(&job, out, &err) : err_errno(&err, "no memory");
    if (out)
        fclose(out);
    if (rc < 0)
        status = cli_fail(&err);
    else
        printf("%s: fine%s%s\n", args.rest[0], len ? "; " : "", size);
    free(size);
    job_file_close(&job);
    return status;
}

int cmd_keys(int argc, char **argv)
{
    struct err err = {0};
    bool markdown = false;
    const struct args_flag flags[] = {
        {"markdown", 0, ARGS_BOOL, &markdown, NULL, "as a table in Markdown"},
        {0},
    };
    struct args args = {.program = "skerry keys",
                        .usage = "[--markdown]",
                        .flags = flags,
                        .about = "Prints every key of a job file: type, range, default, meaning."};
    struct buf text;

    int rc = args_parse(&args, argc, argv, &err);
    if (rc)
        return args_exit(&args, rc, &err);
    buf_init(&text, 1 << 20);
    if (job_document(markdown ? CONF_MARKDOWN : CONF_TEXT, &text) == 0)
        fputs(buf_str(&text), stdout);
    buf_release(&text);
    return CLI_OK;
}
