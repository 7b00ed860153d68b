#include "cli/dataset_upload.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/mem.h"
#include "common/base/str.h"
#include "common/net/transfer.h"

/* data.path as the user means it: absolute, beside the job file, or from here. */
static char *data_path(const char *job_path, const char *given)
{
    const char *slash = strrchr(job_path, '/');
    if (given[0] == '/' || !slash)
        return str_dup(given);
    char *dir = str_ndup(job_path, (size_t)(slash - job_path));
    char *beside = file_join(dir, given);
    mem_free(dir);
    if (file_exists(beside) || strpbrk(given, "*?{"))
        return beside;
    mem_free(beside);
    return str_dup(given);
}

static int open_dataset(const char *job_path, struct job_file *job, struct err *err)
{
    char *path = data_path(job_path, job->spec.data.path);
    int rc = dataset_open(&(struct dataset_options){.path = path}, &job->dataset, err);
    if (rc < 0)
        rc = err_wrap(err, "%s: data.path", job_path);
    mem_free(path);
    if (rc == 0 && dataset_samples(job->dataset) < (uint64_t)job->spec.train.batch)
        rc = err_set(err, -ERR_CONFIG,
                     "%s: train.batch is %d but the dataset has only %llu images; lower the batch "
                     "or add images",
                     job_path, job->spec.train.batch,
                     (unsigned long long)dataset_samples(job->dataset));
    uint64_t shards =
        rc == 0 ? dataset_samples(job->dataset) / (uint64_t)job->spec.data.shard_samples + 2 : 0;
    if (shards > DATASET_SHARDS_MAX) /* the last ones, held out or not, may be short */
        rc = err_set(err, -ERR_CONFIG,
                     "%s: %llu images make up to %llu shards of %d, at most %d are possible; "
                     "raise data.shard_samples",
                     job_path, (unsigned long long)dataset_samples(job->dataset),
                     (unsigned long long)shards, job->spec.data.shard_samples, DATASET_SHARDS_MAX);
    return rc;
}

int job_file_open(const char *path, struct job_file *ret, struct err *err)
{
    struct job_file job = {0};

    int rc = file_read(path, JOB_SPEC_MAX, &job.text, err);
    if (rc < 0) {
        err_wrap(err, "reading the job file");
        goto refused;
    }
    rc = job_parse(buf_str(&job.text), job.text.len, path, &job.spec, err);
    if (rc == 0 && job.spec.data.path)
        rc = open_dataset(path, &job, err);
    if (rc < 0)
        goto refused;
    *ret = job;
    return 0;
refused:
    job_file_close(&job);
    err->code = -ERR_CONFIG;
    return -ERR_CONFIG;
}

void job_file_close(struct job_file *job)
{
    dataset_close(job->dataset);
    job_release(&job->spec);
    buf_release(&job->text);
    memset(job, 0, sizeof *job);
}

struct upload {
    struct cli *cli;
    json_t *shards;
    bool progress;
    bool to_terminal;
    uint64_t shown_ms;
    uint64_t bytes_sent, bytes_there;
};

/* At most five times a second on a terminal, every five seconds elsewhere. */
static int show_cut(void *ctx, uint64_t done, uint64_t total)
{
    struct upload *up = ctx;
    char sent[STR_HUMAN_MAX];
    uint64_t now = clock_now_ms();

    if (cli_interrupted)
        return -ERR_CANCELLED;
    if (!up->progress || (done < total && now - up->shown_ms < (up->to_terminal ? 200 : 5000)))
        return 0;
    up->shown_ms = now;
    fprintf(stderr, "%scutting the data into shards: %llu of %llu images, %s uploaded%s",
            up->to_terminal ? "\r\033[K" : "", (unsigned long long)done, (unsigned long long)total,
            str_human_bytes(up->bytes_sent, sent), up->to_terminal ? "" : "\n");
    fflush(stderr);
    return 0;
}

/* Uploads a finished shard unless it is there, and removes the local file. */
static int take_shard(void *ctx, const struct dataset_shard *shard, struct err *err)
{
    struct upload *up = ctx;
    char hex[HASH_HEX_MAX];
    json_t *answer;

    hash_hex(shard->sha256, HASH_BYTES, hex);
    json_t *ask = json_pack("{s:s,s:I}", "sha256", hex, "size", (json_int_t)shard->bytes);
    int rc = cli_call(up->cli, "POST", "/v1/uploads", ask, &answer, err);
    json_decref(ask);
    if (rc < 0)
        return err_wrap(err, "asking to upload a shard");
    if (json_is_true(json_object_get(answer, "have"))) {
        up->bytes_there += shard->bytes;
    } else {
        rc = http_put_file(up->cli->http, cli_str(answer, "url", ""), shard->path, NULL, NULL, err);
        if (rc < 0)
            err_wrap(err, "uploading a shard");
        up->bytes_sent += shard->bytes;
    }
    json_decref(answer);
    if (rc == 0)
        json_array_append_new(up->shards,
                              json_pack("{s:s,s:I,s:i,s:b}", "sha256", hex, "size",
                                        (json_int_t)shard->bytes, "samples", (int)shard->samples,
                                        "holdout", (int)shard->holdout));
    (void)unlink(shard->path); /* in a temporary directory that goes anyway */
    return rc;
}

static json_t *describe(const struct job_file *job, const struct dataset_report *report,
                        json_t *shards)
{
    json_t *classes = json_array(), *counts = json_array(), *bad = json_array();
    for (size_t i = 0; i < report->classes; i++) {
        json_array_append_new(classes, json_string(dataset_class(job->dataset, i)));
        json_array_append_new(counts, json_integer((json_int_t)report->counts[i]));
    }
    for (size_t i = 0; i < DATASET_BAD_NAMED && report->bad[i]; i++)
        json_array_append_new(bad, json_pack("{s:s,s:s}", "key", report->bad[i], "reason",
                                             "not a JPEG, PNG or WebP image"));
    return json_pack("{s:o,s:o,s:O,s:o}", "classes", classes, "counts", counts, "shards", shards,
                     "bad", bad);
}

static void say_report(const struct upload *up, const struct dataset_report *report)
{
    char sent[STR_HUMAN_MAX], there[STR_HUMAN_MAX];
    fprintf(stderr, "%s%llu images in %zu classes, %zu shards: %s uploaded, %s were there\n",
            up->to_terminal ? "\r\033[K" : "", (unsigned long long)report->samples, report->classes,
            json_array_size(up->shards), str_human_bytes(up->bytes_sent, sent),
            str_human_bytes(up->bytes_there, there));
    if (report->bad_count)
        fprintf(stderr, "%u files are no images we read and were left out, the first: %s\n",
                report->bad_count, report->bad[0]);
}

/* Cuts and uploads; *ret_dataset is the `dataset` of the submission. */
static int upload_dataset(struct cli *cli, struct job_file *job, bool progress,
                          json_t **ret_dataset, struct err *err)
{
    const char *tmp = getenv("TMPDIR");
    char *dir = str_printf("%s/skerry-shards-XXXXXX", tmp && tmp[0] ? tmp : "/tmp");
    struct dataset_report report = {0};
    struct upload up = {.cli = cli,
                        .shards = json_array(),
                        .progress = progress,
                        .to_terminal = isatty(STDERR_FILENO)};
    int rc;

    if (!mkdtemp(dir)) {
        rc =
            err_errno(err, "making the temporary directory %s (set TMPDIR to one with space)", dir);
        goto out;
    }
    struct dataset_cut cut = {
        .seed = job->spec.seed,
        .holdout = job->spec.data.holdout,
        .shard_samples = (uint32_t)job->spec.data.shard_samples,
        .max_bad = (uint32_t)job->spec.data.max_bad,
        .dir = dir,
        .on_shard = take_shard,
        .on_progress = show_cut,
        .ctx = &up,
    };
    rc = dataset_cut(job->dataset, &cut, &report, err);
    if (rc == 0) {
        if (progress)
            say_report(&up, &report);
        *ret_dataset = describe(job, &report, up.shards);
    } else if (cli_interrupted) {
        rc = err_set(err, -ERR_CANCELLED, "interrupted while uploading; nothing was submitted");
    }
    dataset_report_release(&report);
    (void)file_remove_tree(dir, NULL); /* leftovers in a temporary directory */
out:
    json_decref(up.shards);
    mem_free(dir);
    return rc;
}

int job_file_submit(struct cli *cli, struct job_file *job, bool progress, uint64_t *ret_id,
                    struct err *err)
{
    json_t *dataset = NULL, *answer = NULL;

    if (job->dataset) {
        int rc = upload_dataset(cli, job, progress, &dataset, err);
        if (rc < 0)
            return rc;
    }
    json_t *body = json_pack("{s:s,s:o*}", "spec", buf_str(&job->text), "dataset", dataset);
    int rc = cli_call(cli, "POST", "/v1/jobs", body, &answer, err);
    json_decref(body);
    if (rc == -EINVAL || rc == -EBUSY) /* the coordinator's own word about the job */
        err->code = -ERR_CONFIG;
    if (rc < 0)
        return err_wrap(err, "submitting the job");
    *ret_id = (uint64_t)cli_int(answer, "id", 0);
    json_decref(answer);
    return 0;
}
