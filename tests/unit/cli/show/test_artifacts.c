/* A model of a job that goes on while it is fetched, or whose folder has files of another, and
 * metrics for which there is no room. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "cli/show/artifacts.h"
#include "common/base/file.h"
#include "common/base/hash.h"
#include "common/data/tar.h"
#include "tests/unit/cli/script.h"

#define SHA "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
#define MODULES                                                                                    \
    "{\"items\":[{\"id\":1,\"versions\":[{\"version\":3,\"full\":{\"sha256\":\"" SHA "\"}}]}]}"
#define SPEC                                                                                       \
    "name: a\\ndata: {kind: none}\\nmodel: {type: external}\\ntrainer: {command: x}\\n"            \
    "train: {batch: 1}\\nouter: {rounds: 9, steps: 1}\\n"
#define JOB                                                                                        \
    "{\"id\":7,\"state\":\"running\",\"spec\":\"" SPEC                                             \
    "\",\"path_list\":[{\"path\":0,\"network\":\"main\",\"round\":3,\"modules\":[1]}]}"
#define GONE "{\"error\":{\"code\":\"not_found\",\"message\":\"it is gone\"}}"
#define TRY MODULES, JOB, GONE

static int take_to(const char *dir, bool replace, const char *const *answers, struct err *err)
{
    struct script s;
    struct cli cli = {0};
    *err = (struct err){0};
    connect_to(&s, &cli, answers);
    const int rc = artifacts_model(&cli, 7, 0, true, dir, replace, err);
    disconnect(&s, &cli);
    return rc;
}

static int take(const char *const *answers, struct err *err)
{
    char dir[] = "/tmp/test_artifacts-XXXXXX";
    assert_non_null(mkdtemp(dir));
    const int rc = take_to(dir, false, answers, err);
    assert_int_equal(file_remove_tree(dir, NULL), 0);
    return rc;
}

static void put(const char *dir, const char *name, const char *text)
{
    char *path = file_join(dir, name);
    assert_int_equal(file_write_atomic(path, text, strlen(text), 0600, NULL), 0);
    mem_free(path);
}

/* text: NULL for a file that is not there. */
static void expect(const char *dir, const char *name, const char *text)
{
    char *path = file_join(dir, name);
    struct buf b;
    const int rc = file_read(path, 1000, &b, NULL);
    if (rc != (text ? 0 : -ENOENT))
        fail_msg("%s: %d", name, rc);
    if (text)
        assert_string_equal(buf_str(&b), text);
    buf_release(&b);
    mem_free(path);
}

/* The version that was the newest may be collected before it is fetched: then another one is. */
static void a_version_that_is_gone_is_not_the_newest(void **state)
{
    static const char *const once[] = {TRY, "{\"items\":[]}", JOB, NULL};
    static const char *const always[] = {TRY, TRY, TRY, TRY, TRY, NULL};
    struct err err = {0};
    assert_int_equal(take(once, &err), -ERR_NOTFOUND);
    assert_non_null(strstr(err.msg, "the job has no model yet, because version 0 is still to be"));
    assert_int_equal(take(always, &err), -ERR_STALE);
    assert_non_null(strstr(err.msg, "`skerry pause 7` lets it rest meanwhile: it is gone"));
}

/* The other files of a warm start lie beside the weights: never another job's, and no more comes
 * when one is there.  `skerry run` replaces what is there of an earlier run. */
static void companions_are_all_of_one_job(void **state)
{
    char dir[] = "/tmp/test_artifacts-XXXXXX", hex[HASH_HEX_MAX];
    uint8_t sha256[HASH_BYTES];
    struct tar_writer *w;
    struct err err;
    assert_non_null(mkdtemp(dir));
    char *tar = file_join(dir, "a.tar"), *model = file_join(dir, "model");
    char *file = str_printf("@%s", tar);
    assert_int_equal(tar_writer_open(tar, &w, &err), 0);
    assert_int_equal(tar_writer_add(w, "a.json", "first", 5, &err), 0);
    assert_int_equal(tar_writer_add(w, "config.json", "second", 6, &err), 0);
    assert_int_equal(tar_writer_commit(w, sha256, NULL, &err), 0);
    tar_writer_free(w);
    char *job = str_printf("{\"companions\":{\"sha256\":\"%s\"},%s",
                           hash_hex(sha256, sizeof sha256, hex), &JOB[1]);
    const char *const refused[] = {MODULES, job, file, NULL};
    const char *const goes_on[] = {MODULES, job, file, GONE, "{\"items\":[]}", job, NULL};
    assert_int_equal(take_to(model, false, goes_on, &err), -ERR_NOTFOUND);
    assert_int_equal(take_to(model, false, goes_on, &err), -ERR_NOTFOUND); /* the same again */
    expect(model, "a.json", "first");
    expect(model, "config.json", "second");
    put(model, "config.json", "another's");
    char *first = file_join(model, "a.json");
    assert_int_equal(file_remove(first, NULL), 0);
    assert_int_equal(take_to(model, false, refused, &err), -EEXIST);
    if (!strstr(err.msg, "/model/config.json is there already, with other bytes") ||
        !strstr(err.msg, "--out"))
        fail_msg("%s", err.msg);
    expect(model, "a.json", NULL);
    expect(model, "config.json", "another's");
    assert_int_equal(take_to(model, true, goes_on, &err), -ERR_NOTFOUND);
    expect(model, "config.json", "second");
    const char *const without[] = {MODULES, JOB, GONE, "{\"items\":[]}", JOB, NULL};
    assert_int_equal(take_to(model, false, without, &err), -ERR_NOTFOUND);
    expect(model, "config.json", "second"); /* a person may have put it there: it is named */
    assert_int_equal(take_to(model, true, without, &err), -ERR_NOTFOUND);
    expect(model, "config.json", NULL);
    mem_free(first);
    mem_free(job);
    mem_free(file);
    mem_free(model);
    mem_free(tar);
    assert_int_equal(file_remove_tree(dir, NULL), 0);
}

/* Of ids whose tokenizer the job does not name, an earlier job's is not the one. */
static void a_tokenizer_is_not_anothers(void **state)
{
    static const char about[] =
        "{\"id\":7,\"vocab\":9000,\"state\":\"running\",\"spec\":\"name: a\\ndata: {path: x.bin}\\n"
        "model: {type: llama, dim: 32, depth: 1, heads: 2, context: 16}\\ntrain: {batch: 1}\\n"
        "outer: {rounds: 9, steps: 1}\\n\",\"path_list\":[{\"path\":0,\"modules\":[1]}]}";
    static const char *const refused[] = {MODULES, about, NULL};
    static const char *const goes_on[] = {MODULES, about, GONE, "{\"items\":[]}", about, NULL};
    static const char *const names[] = {"tokenizer.json", "tokenizer.model",
                                        "tokenizer_config.json"};
    for (size_t i = 0; i < 3; i++) {
        char dir[] = "/tmp/test_artifacts-XXXXXX";
        struct err err;
        assert_non_null(mkdtemp(dir));
        put(dir, names[i], "another's");
        assert_int_equal(take_to(dir, false, refused, &err), -EEXIST);
        if (!strstr(err.msg, names[i]) || !strstr(err.msg, "--out"))
            fail_msg("%s", err.msg);
        expect(dir, names[i], "another's");
        assert_int_equal(take_to(dir, true, goes_on, &err), -ERR_NOTFOUND);
        expect(dir, names[i], NULL);
        assert_int_equal(file_remove_tree(dir, NULL), 0);
    }
}

static void a_full_disk_is_said_to_be_full(void **state)
{
    char dir[] = "/tmp/test_artifacts-XXXXXX", page[2][4000];
    const char *const answers[] = {JOB, page[0], page[1], NULL};
    struct script s;
    struct cli cli = {0};
    struct err err = {0};
    for (int i = 0; i < 2; i++) /* together more than a buffer of stdio holds */
        (void)snprintf(page[i], sizeof page[i], "{\"n\":%d,\"kind\":\"%03500d\"}\n", i + 1, 0);
    assert_non_null(mkdtemp(dir));
    char *part = file_join(dir, "metrics.jsonl.part");
    assert_int_equal(symlink("/dev/full", part), 0);
    connect_to(&s, &cli, answers);
    assert_int_equal(artifacts_metrics(&cli, 7, dir, &err), -ENOSPC);
    disconnect(&s, &cli);
    assert_non_null(strstr(err.msg, "/metrics.jsonl: No space left on device"));
    assert_false(file_exists(part));
    assert_int_equal(file_remove_tree(dir, NULL), 0);
    mem_free(part);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_version_that_is_gone_is_not_the_newest),
        cmocka_unit_test(companions_are_all_of_one_job),
        cmocka_unit_test(a_tokenizer_is_not_anothers),
        cmocka_unit_test(a_full_disk_is_said_to_be_full),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
