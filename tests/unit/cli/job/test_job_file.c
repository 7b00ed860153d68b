/* A job file and what it names: found beside it, or refused with a sentence before anything is
 * sent. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "cli/base/cli.h"
#include "cli/job/job_file.h"
#include "cli/job/upload.h"
#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/data/tar.h"
#include "common/data/tokenizer.h"
#include "tests/unit/cli/script.h"

#define TEXT_MODEL "model: {type: llama, dim: 32, depth: 1, heads: 2, context: 16}\n"

static char dir[64];

static int open_dir(void **state)
{
    (void)snprintf(dir, sizeof dir, "/tmp/skerry-job.XXXXXX");
    return mkdtemp(dir) && !setenv("TMPDIR", dir, 1) ? 0 : -1;
}

static int remove_dir(void **state)
{
    return file_remove_tree(dir, NULL);
}

/* In place of upload.c's: a link on which each half of a file takes so many seconds. */
static uint64_t half_s;

int upload_blob(struct cli *cli, const char *path, const uint8_t sha256[HASH_BYTES], uint64_t size,
                const char *what, xfer_progress_fn tell, void *arg, uint64_t *ret_sent,
                struct err *err)
{
    for (uint64_t i = 0; i < 3; i++) {
        clock_fake_advance(i ? half_s * 1000000000 : 0);
        if (tell)
            tell(arg, size * i / 2, size);
    }
    if (ret_sent)
        *ret_sent = size;
    return 0;
}

int upload_file(struct cli *cli, const char *path, const char *what, bool progress, json_t **ret,
                struct err *err)
{
    *ret = json_object();
    return 0;
}

static char *write_text(const char *name, const char *text)
{
    struct err err = {0};
    char *path = file_join(dir, name);
    assert_int_equal(file_mkdirs_for(path, 0700, &err), 0);
    assert_int_equal(file_write_atomic(path, text, strlen(text), 0600, &err), 0);
    return path;
}

/* A job of these lines in the directory, opened. */
static int open_job(const char *yaml, struct job_file *job, struct err *err)
{
    char *path = write_text("job.yaml", yaml);
    *err = (struct err){0};
    int rc = job_file_open(path, job, err);
    mem_free(path);
    return rc;
}

static void refused(const char *yaml, const char *why)
{
    struct job_file job = {0};
    struct err err;
    int rc = open_job(yaml, &job, &err);
    if (rc != -ERR_CONFIG || err.code != -ERR_CONFIG || !strstr(err.msg, why))
        fail_msg("%d \"%s\", expected \"%s\"", rc, err.msg, why);
    assert_null(job.dataset);
    assert_null(job.tokenizer);
}

/* `n` documents of so many letters. */
static void write_documents(const char *name, unsigned n, unsigned letters)
{
    char text[4096] = "";
    size_t at = 0;
    for (unsigned i = 0; i < n; i++)
        at += (size_t)snprintf(text + at, sizeof text - at, "{\"text\":\"%.*s\"}\n", (int)letters,
                               "abcdefghijklmnopqrstuvwxyz");
    assert_true(at < sizeof text);
    mem_free(write_text(name, text));
}

static void a_text_beside_the_job_file_is_read(void **state)
{
    struct job_file job;
    struct err err;
    write_documents("t.jsonl", 12, 20);
    if (open_job("name: a\ndata: {path: t.jsonl, holdout: 0}\n" TEXT_MODEL
                 "train: {batch: 2, lr: 1e-3}\nrecipe: {name: diloco}\n"
                 "outer: {rounds: 1, steps: 1}\n",
                 &job, &err) < 0)
        fail_msg("%s", err.msg);
    assert_non_null(job.dataset);
    assert_non_null(job.tokenizer); /* bytes, as none is given */
    assert_null(job.tokenizer_path);
    assert_int_equal(job.partitions, 1);
    char *text = NULL;
    size_t len;
    struct job_file_size size;
    FILE *out = open_memstream(&text, &len);
    assert_int_equal(job_file_read_all(&job, false, out, &size, &err), 0);
    fclose(out);
    assert_int_equal(strncmp(text, "12 documents, ", 14), 0);
    assert_true(size.samples >= 12 && size.tokens > 12 * 2 && size.vocab == 257);
    assert_null(strstr(text, "held out")); /* none is */
    free(text);
    job_file_close(&job);
    assert_null(job.dataset);
}

static void too_little_text_for_a_batch_is_refused(void **state)
{
    struct job_file job;
    struct job_file_size size;
    struct err err;
    write_documents("t.jsonl", 1, 4);
    assert_int_equal(open_job("name: a\ndata: {path: t.jsonl, holdout: 0}\n" TEXT_MODEL
                              "train: {batch: 50, lr: 1e-3}\nrecipe: {name: diloco}\n"
                              "outer: {rounds: 1, steps: 1}\n",
                              &job, &err),
                     0);
    assert_int_equal(job_file_read_all(&job, false, stderr, &size, &err), -ERR_CONFIG);
    assert_non_null(strstr(err.msg, "train.batch is 50 but the text has only 1 piece of at most 17 "
                                    "tokens; lower the batch or add text"));
    job_file_close(&job);
}

static void of_many_images_some_are_read(void **state)
{
    struct job_file job;
    struct job_file_size size;
    struct err err;
    char name[32];
    mem_free(write_text("images/a/0.png", "\x89PNG\r\n\x1a\n"));
    char *first = file_join(dir, "images/a/0.png");
    for (int i = 1; i < 5000; i++) {
        (void)snprintf(name, sizeof name, "images/a/%d.png", i);
        char *more = file_join(dir, name);
        assert_int_equal(link(first, more), 0);
        mem_free(more);
    }
    mem_free(first);
    if (open_job("name: a\ndata: {path: images, image_size: 16, holdout: 0.5}\n"
                 "model: {type: dit, dim: 32, depth: 1, heads: 2}\n"
                 "train: {batch: 2, lr: 1e-3}\nrecipe: {name: diloco}\n"
                 "outer: {rounds: 1, steps: 1}\n",
                 &job, &err) < 0)
        fail_msg("%s", err.msg);
    assert_int_equal(job_file_read_some(&job, &size, &err), 0);
    assert_true(size.samples > 2250 && size.samples < 2750); /* half of all, about */
    assert_in_range(size.samples + size.holdout, 4998, 5000);
    job_file_close(&job);
}

static void an_interrupted_reading_is_no_fault_of_the_data(void **state)
{
    struct job_file job;
    struct job_file_size size;
    struct err err;
    write_documents("t.jsonl", 12, 20);
    assert_int_equal(open_job("name: a\ndata: {path: t.jsonl, holdout: 0}\n" TEXT_MODEL
                              "train: {batch: 2, lr: 1e-3}\nrecipe: {name: diloco}\n"
                              "outer: {rounds: 1, steps: 1}\n",
                              &job, &err),
                     0);
    cli_interrupted = SIGINT;
    int rc = job_file_read_all(&job, false, stderr, &size, &err);
    cli_interrupted = 0;
    assert_int_equal(rc, -ERR_CANCELLED);
    assert_string_equal(err.msg, "interrupted; nothing was submitted");
    job_file_close(&job);
}

/* Tars are read whole when they are opened. */
static void an_interrupted_look_is_no_fault_of_the_data(void **state)
{
    struct tar_writer *tar;
    struct job_file job;
    struct err err = {0};
    char *path = file_join(dir, "t.tar");
    assert_int_equal(tar_writer_open(path, &tar, &err), 0);
    assert_int_equal(tar_writer_add(tar, "a.png", "a", 1, &err), 0);
    assert_int_equal(tar_writer_add(tar, "a.cls", "0", 1, &err), 0);
    assert_int_equal(tar_writer_commit(tar, NULL, NULL, &err), 0);
    tar_writer_free(tar);
    mem_free(path);
    cli_interrupted = SIGINT;
    int rc = open_job("name: a\ndata: {path: t.tar, image_size: 16}\n"
                      "model: {dim: 32, depth: 1, heads: 2}\ntrain: {batch: 1}\n"
                      "outer: {rounds: 1, steps: 1}\n",
                      &job, &err);
    cli_interrupted = 0;
    assert_int_equal(rc, -ERR_CANCELLED);
    assert_string_equal(err.msg, "interrupted");
}

/* Also where there are no data to cut, and all files are at the coordinator. */
static void an_interrupted_submission_starts_nothing(void **state)
{
    static const char *const answers[] = {"{\"id\": 1}", NULL};
    struct script s;
    struct cli cli = {0};
    struct job_file job;
    struct err err;
    uint64_t id = 0;
    assert_int_equal(open_job("name: a\ndata: {kind: none}\nmodel: {type: external}\n"
                              "trainer: {command: x}\ntrain: {batch: 1}\n"
                              "outer: {rounds: 1, steps: 1}\n",
                              &job, &err),
                     0);
    connect_to(&s, &cli, answers);
    cli_interrupted = SIGINT;
    int rc = job_file_submit(&cli, &job, false, &id, &err);
    cli_interrupted = 0;
    disconnect(&s, &cli);
    assert_int_equal(rc, -ERR_CANCELLED);
    assert_string_equal(err.msg, "interrupted; nothing was submitted");
    assert_string_equal(s.asked, "");
    job_file_close(&job);
}

/* What a submission of a text says on stderr while its shards are on their way; a shard has so many
 * pieces. */
static void submit_slowly(const char *shard_samples, char said[8192])
{
    static const char *const answers[] = {"{\"id\": 1}", NULL};
    char path[] = "/tmp/skerry-said.XXXXXX", yaml[512];
    const int file = mkstemp(path), kept = dup(STDERR_FILENO);
    struct script s;
    struct cli cli = {0};
    struct job_file job;
    struct err err;
    uint64_t id = 0;
    write_documents("t.jsonl", 100, 20);
    (void)snprintf(yaml, sizeof yaml,
                   "name: a\ndata: {path: t.jsonl, holdout: 0, shard_samples: %s}\n" TEXT_MODEL
                   "train: {batch: 2, lr: 1e-3}\nrecipe: {name: diloco}\n"
                   "outer: {rounds: 1, steps: 1}\n",
                   shard_samples);
    if (open_job(yaml, &job, &err) < 0)
        fail_msg("%s", err.msg);
    connect_to(&s, &cli, answers);
    clock_fake_set(1000000000);
    half_s = 6;
    assert_true(file >= 0 && kept >= 0 && dup2(file, STDERR_FILENO) >= 0);
    const int rc = job_file_submit(&cli, &job, true, &id, &err);
    (void)fflush(stderr);
    assert_true(dup2(kept, STDERR_FILENO) >= 0);
    clock_fake_clear();
    disconnect(&s, &cli);
    if (rc < 0)
        fail_msg("%s", err.msg);
    const ssize_t n = pread(file, said, 8191, 0);
    assert_true(n > 0);
    said[n] = '\0';
    close(kept);
    close(file);
    assert_int_equal(unlink(path), 0);
    job_file_close(&job);
}

static double bytes(double n, const char *unit)
{
    return strcmp(unit, "KiB") == 0 ? n * 1024 : n;
}

/* How much of all shards, also while not all of them are cut. */
static void an_upload_says_how_far_it_is(void **state)
{
    char said[8192], *line;
    double sent, of, last = 0;
    unsigned lines = 0;
    submit_slowly("25", said);
    for (line = strtok(said, "\n"); line; line = strtok(NULL, "\n")) {
        char unit[8], units[8], rate[8], left[32] = "";
        if (!str_starts(line, "uploading the data: "))
            continue;
        (void)sscanf(line, "uploading the data: %lf %7s of %lf %7[^,], %*u %7[^,], %31s left",
                     &sent, unit, &of, units, rate, left);
        sent = bytes(sent, unit);
        of = bytes(of, units);
        if (sent <= last || sent > of * 1.05 || strcmp(rate, "B/s") != 0 ||
            (sent < of * 0.95 && !left[0]))
            fail_msg("%s", line);
        last = sent;
        lines++;
    }
    assert_int_equal(lines, 2 * 8); /* of each shard two */
    assert_true(last > of * 0.95);
}

static void what_a_job_names_must_be_there_and_fit(void **state)
{
#define REST "train: {batch: 2, lr: 1e-3}\nrecipe: {name: diloco}\nouter: {rounds: 1, steps: 1}\n"
    write_documents("t.jsonl", 12, 20);
    refused("name: a\ndata: {path: absent.jsonl}\n" TEXT_MODEL REST, "absent.jsonl");
    refused("name: a\ndata: {path: t.jsonl, image_size: 16, tokenizer: t.json}\n"
            "model: {dim: 32, depth: 1, heads: 2}\n" REST,
            "data.tokenizer");
    refused("name: a\ndata: {path: t.jsonl, tokenizer: absent.json}\n" TEXT_MODEL REST,
            "data.tokenizer");
    refused("name: a\ndata: {path: x, image_size: 16, holdout_path: t.jsonl}\n"
            "model: {dim: 32, depth: 1, heads: 2}\n" REST,
            "data.holdout");
    refused(
        "name: a\ndata: {path: ~/x, image_size: 16}\nmodel: {dim: 32, depth: 1, heads: 2}\n" REST,
        "/~/x: ~ and $ are a shell's");
    refused("name: a\ndata: {path: $HOME/t.txt}\n" TEXT_MODEL REST, "~ and $ are a shell's");
    refused("name: a\ndata: {path: t.jsonl, tokenizer: ~/tokenizer.json}\n" TEXT_MODEL REST,
            "~/tokenizer.json: No such file or directory: ~ and $ are a shell's");
    refused("name: a\ndata: {path: t.jsonl, holdout_path: $A/b.jsonl}\n" TEXT_MODEL REST,
            "~ and $ are a shell's");
    refused("name: a\ndata: {path: t.jsonl}\n" TEXT_MODEL REST "nonsense: 1\n", "nonsense");
    struct job_file job;
    struct err err = {0};
    char *absent = file_join(dir, "absent.yaml");
    assert_int_equal(job_file_open(absent, &job, &err), -ERR_CONFIG);
    assert_non_null(strstr(err.msg, "reading the job file"));
    mem_free(absent);
    assert_int_equal(job_file_open(dir, &job, &err), -ERR_CONFIG);
    assert_non_null(strstr(err.msg, " is a folder, expected a job file; `skerry new` writes one"));
    char *short_name = file_join(dir, "job"); /* of job.yaml, as `skerry new` takes it */
    assert_int_equal(job_file_open(short_name, &job, &err), -ERR_CONFIG);
    assert_non_null(strstr(err.msg, "/job.yaml?"));
    mem_free(short_name);
}

/* One of two letters, whose texts begin with nothing. */
static void a_text_begins_with_what_the_tokenizer_has(void **state)
{
#define MUTE "name: a\ndata: {path: t.jsonl, tokenizer: mute.json}\n" TEXT_MODEL REST
    struct job_file job;
    struct job_file_size size;
    struct err err;
    write_documents("t.jsonl", 12, 20);
    mem_free(write_text("mute.json",
                        "{\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},"
                        "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1},\"merges\":[]}}"));
    refused(MUTE, "sample.prompt: is empty, but data.tokenizer has no token that begins a text");
    refused(MUTE "sample: {prompt: c}\n", "sample.prompt: the tokenizer has no token for the byte");
    if (open_job(MUTE "sample: {prompt: ab}\n", &job, &err) < 0)
        fail_msg("%s", err.msg);
    assert_int_equal(job_file_read_all(&job, false, stderr, &size, &err), -ERR_CONFIG);
    assert_non_null(
        strstr(err.msg, "document 't/0': the tokenizer has no token for the byte 0x63"));
    job_file_close(&job);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_text_beside_the_job_file_is_read),
        cmocka_unit_test(too_little_text_for_a_batch_is_refused),
        cmocka_unit_test(of_many_images_some_are_read),
        cmocka_unit_test(an_interrupted_reading_is_no_fault_of_the_data),
        cmocka_unit_test(an_interrupted_look_is_no_fault_of_the_data),
        cmocka_unit_test(an_interrupted_submission_starts_nothing),
        cmocka_unit_test(an_upload_says_how_far_it_is),
        cmocka_unit_test(what_a_job_names_must_be_there_and_fit),
        cmocka_unit_test(a_text_begins_with_what_the_tokenizer_has),
    };
    return cmocka_run_group_tests(tests, open_dir, remove_dir);
}
