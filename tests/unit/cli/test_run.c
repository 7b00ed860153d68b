/* `skerry run` before its swarm works: what is refused before anything starts, and what is left of
 * a start that fails.  (Whole runs: tests/integration/test_run.py.) */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/base/file.h"
#include "tests/unit/cli/beside.h"
#include "tests/unit/cli/ran.h"

#define HELD                                                                                       \
    "name: a\ndata: {path: texts, holdout_path: out/unfinished/held.txt}\n" REST                   \
    "recipe: {name: diloco}\n"
#define REST                                                                                       \
    "model: {type: llama, dim: 32, depth: 1, heads: 2, context: 16}\n"                             \
    "train: {batch: 2, lr: 1e-3}\nouter: {rounds: 1, steps: 1}\n"
#define TRAINER                                                                                    \
    "name: a\ndata: {kind: texts, path: texts, holdout: 0}\nmodel: {type: external, context: "     \
    "16}\n"                                                                                        \
    "trainer: {command: ./t, files: program}\ntrain: {batch: 2}\n"                                 \
    "recipe: {name: diloco}\nouter: {rounds: 1, steps: 1}\n"
#define ONE "name: a\ndata: {path: texts, holdout: 0}\n" REST "recipe: {name: diloco}\n"

static char dir[64], said[4096];

static void put(const char *name, const char *text)
{
    char *path = file_join(dir, name);
    struct err err = {0};
    if (file_mkdirs_for(path, 0700, &err) < 0 ||
        file_write_atomic(path, text, strlen(text), 0600, &err) < 0)
        fail_msg("%s", err.msg);
    mem_free(path);
}

static int make(void **state)
{
    (void)snprintf(dir, sizeof dir, "/tmp/skerry-run.XXXXXX");
    assert_non_null(mkdtemp(dir));
    beside_link("coordinatord");
    for (int i = 0; i < 12; i++) {
        char name[32];
        (void)snprintf(name, sizeof name, "texts/%d.txt", i);
        put(name, "abcdefghijklmnopqrst");
    }
    return 0;
}

static int unmake(void **state)
{
    *(const char **)flag(&command_run, "strategies") = NULL;
    return file_remove_tree(dir, NULL);
}

static bool is_there(const char *name)
{
    char *path = file_join(dir, name);
    const bool there = file_exists(path);
    mem_free(path);
    return there;
}

/* Runs a job with its results in this folder; the exit status, or a code with *err. */
static int run_to(const char *yaml, const char *out, struct err *err)
{
    struct cli cli = {0};
    put("job.yaml", yaml);
    char *job = file_join(dir, "job.yaml"), *folder = file_join(dir, out);
    const struct args args = {.program = "skerry run", .n_rest = 1, .rest = {job}};
    const int had = dup(STDERR_FILENO), to = memfd_create("err", MFD_CLOEXEC);
    *(const char **)flag(&command_run, "out") = folder;
    assert_true(dup2(to, STDERR_FILENO) >= 0);
    const int rc = command_run.run(&cli, &args, err);
    assert_true(dup2(had, STDERR_FILENO) >= 0);
    const ssize_t n = pread(to, said, sizeof said - 1, 0);
    assert_true(n >= 0);
    said[n] = '\0';
    close(had);
    close(to);
    mem_free(folder);
    mem_free(job);
    return rc;
}

static void expect(const char *yaml, const char *out, int status, const char *words)
{
    struct err err = {0};
    const int rc = run_to(yaml, out, &err);
    if (rc != status || !strstr(rc < 0 ? err.msg : said, words))
        fail_msg("%d: %s %s, expected %d with '%s'", rc, said, err.msg, status, words);
}

static void what_is_refused_starts_nothing(void **state)
{
    const char **strategies = flag(&command_run, "strategies");
    expect("name: a\n", "out", -ERR_CONFIG, "job.yaml");
    *strategies = "full";
    expect(ONE, "out", -ERR_USAGE, "--strategies is for a mixture of experts, and recipe.name is");
    *strategies = NULL;
    assert_false(is_there("out"));
    expect(ONE, "texts", -ERR_USAGE, "is in the folder of the data, ");
    assert_false(is_there("texts/logs"));
    put("out/unfinished/held.txt", "abcdefghijklmnopqrstabcdefghijklmnopqrst");
    expect(HELD, "out", -ERR_USAGE, "data.holdout_path is ");
    expect(HELD, "out", -ERR_USAGE,
           "/out/unfinished/held.txt, and the results of this run would replace it: give");
    expect(HELD, "out/unfinished", CLI_FAILED, "coordinatord ended at its start");
    put("program/t", "#!/bin/sh\n");
    expect(TRAINER, "program", -ERR_USAGE, "program is the folder of trainer.files: give another");
    assert_false(is_there("program/logs"));
    put("out/model/diffusion_pytorch_model.safetensors", "");
    expect(ONE, "out", CLI_FAILED, "is of another kind of model");
    assert_false(is_there("out/logs"));
}

/* Texts are not searched for in subfolders; the state goes and the logs stay. */
static void a_start_that_fails(void **state)
{
    expect(ONE, "texts/out", CLI_FAILED, "skerry: coordinatord ended at its start: no room (");
    assert_true(is_there("texts/out/logs/coordinatord.log"));
    assert_false(is_there("texts/out/.swarm"));
}

static void an_interrupted_start(void **state)
{
    cli_interrupted = SIGINT;
    expect(ONE, "out", CLI_INTERRUPTED,
           "skerry: interrupted; the swarm is stopped and its state removed\n");
    cli_interrupted = 0;
    assert_null(strstr(said, "coordinatord"));
    assert_false(is_there("out/.swarm"));
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, make, unmake)

int main(int argc, char **argv)
{
    if (beside_is(argv[0], "coordinatord")) {
        puts("no room");
        return 1;
    }
    const struct CMUnitTest tests[] = {
        TEST(what_is_refused_starts_nothing),
        TEST(a_start_that_fails),
        TEST(an_interrupted_start),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
