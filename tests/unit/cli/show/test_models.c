/* Models of a job that goes on while they are fetched, or whose folder has files of another. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "cli/show/models.h"
#include "common/base/file.h"
#include "common/base/hash.h"
#include "common/data/tar.h"
#include "common/job/job.h"
#include "common/st/st.h"
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
    struct file_names folders = {0};
    *err = (struct err){0};
    connect_to(&s, &cli, answers);
    const int rc = models_take(&cli, 7, 0, true, dir, replace, &folders, err);
    disconnect(&s, &cli);
    file_names_release(&folders);
    return rc;
}

static int take(const char *const *answers, struct err *err)
{
    char dir[] = "/tmp/test_models-XXXXXX";
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

/* Writes a safetensors file of one tensor; "@PATH" (mem_free), and its SHA-256. */
static char *put_weights(const char *dir, const char *name, char hex[HASH_HEX_MAX])
{
    char *path = file_join(dir, name), *file = str_printf("@%s", path);
    struct st_writer *w = st_writer_new();
    uint8_t sha256[HASH_BYTES];
    const uint64_t shape[] = {1};
    const float one = 1;
    assert_int_equal(st_writer_add(w, name, ST_F32, 1, shape, NULL), 0);
    assert_int_equal(st_writer_open(w, path, NULL), 0);
    assert_int_equal(st_writer_write(w, &one, sizeof one, NULL), 0);
    assert_int_equal(st_writer_commit(w, sha256, NULL, NULL), 0);
    st_writer_free(w);
    mem_free(path);
    hash_hex(sha256, sizeof sha256, hex);
    return file;
}

#define MODULE "{\"id\":%d,\"versions\":[{\"version\":3,\"full\":{\"sha256\":\"%s\"}}]}"

/* The other files of a warm start lie beside the weights: never another job's, and no more comes
 * when one is there.  `skerry run` replaces what is there of an earlier run. */
static void companions_are_all_of_one_job(void **state)
{
    char dir[] = "/tmp/test_models-XXXXXX", hex[HASH_HEX_MAX];
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
    char *weights = put_weights(dir, "w", hex);
    char *modules = str_printf("{\"items\":[" MODULE "]}", 1, hex);
    const char *const refused[] = {modules, job, file, NULL};
    const char *const goes_on[] = {modules, job, file, weights, NULL};
    assert_int_equal(take_to(model, false, goes_on, &err), 0);
    assert_int_equal(take_to(model, false, goes_on, &err), 0); /* the same again */
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
    assert_int_equal(take_to(model, true, goes_on, &err), 0);
    expect(model, "config.json", "second");
    const char *const without[] = {MODULES, JOB, GONE, "{\"items\":[]}", JOB, NULL};
    assert_int_equal(take_to(model, false, without, &err), -ERR_NOTFOUND);
    expect(model, "config.json", "second"); /* a person may have put it there: it is named */
    assert_int_equal(take_to(model, true, without, &err), -ERR_NOTFOUND);
    expect(model, "config.json", NULL);
    mem_free(modules);
    mem_free(weights);
    mem_free(first);
    mem_free(job);
    mem_free(file);
    mem_free(model);
    mem_free(tar);
    assert_int_equal(file_remove_tree(dir, NULL), 0);
}

/* Peft finds the weights of an adapter by their name. */
static void an_adapter_has_the_name_of_its_weights(void **state)
{
    char dir[] = "/tmp/test_models-XXXXXX", hex[HASH_HEX_MAX];
    uint8_t sha256[HASH_BYTES];
    struct tar_writer *w;
    struct err err;
    assert_non_null(mkdtemp(dir));
    char *tar = file_join(dir, "a.tar"), *model = file_join(dir, "model");
    char *file = str_printf("@%s", tar), *weights = put_weights(dir, "w", hex);
    char *modules = str_printf("{\"items\":[" MODULE "]}", 1, hex);
    assert_int_equal(tar_writer_open(tar, &w, &err), 0);
    assert_int_equal(tar_writer_add(w, "adapter_config.json", "{}", 2, &err), 0);
    assert_int_equal(tar_writer_commit(w, sha256, NULL, &err), 0);
    tar_writer_free(w);
    char *job = str_printf("{\"companions\":{\"sha256\":\"%s\"},%s",
                           hash_hex(sha256, sizeof sha256, hex), &JOB[1]);
    const char *const answers[] = {modules, job, file, weights, NULL};
    struct file_names names = {0};
    if (take_to(model, false, answers, &err) < 0)
        fail_msg("%s", err.msg);
    assert_int_equal(file_list(model, 9, &names, &err), 0);
    assert_int_equal(names.n, 2);
    assert_string_equal(names.items[0], "adapter_config.json");
    assert_string_equal(names.items[1], "adapter_model.safetensors");
    file_names_release(&names);
    mem_free(modules);
    mem_free(weights);
    mem_free(job);
    mem_free(file);
    mem_free(model);
    mem_free(tar);
    assert_int_equal(file_remove_tree(dir, NULL), 0);
}

/* A model that has learned more is who it was: what the export makes itself gives way, but for the
 * type and the context of the weights; another's file is as little replaced. */
static void a_llama_keeps_its_companions(void **state)
{
    char dir[] = "/tmp/test_models-XXXXXX", hex[HASH_HEX_MAX];
    static const char *const files[][2] = {{"config.json",
                                            "{\"dtype\":\"bfloat16\",\"eos_token_id\":7,"
                                            "\"max_position_embeddings\":8}"},
                                           {"tokenizer_config.json", "{\"chat_template\":\"x\"}"},
                                           {"special_tokens_map.json", "{}"},
                                           {"model.safetensors", "never"}};
    uint8_t sha256[HASH_BYTES];
    struct tar_writer *w;
    struct err err;
    assert_non_null(mkdtemp(dir));
    char *tar = file_join(dir, "a.tar"), *model = file_join(dir, "model");
    char *file = str_printf("@%s", tar);
    assert_int_equal(tar_writer_open(tar, &w, &err), 0);
    for (size_t i = 0; i < 4; i++)
        assert_int_equal(tar_writer_add(w, files[i][0], files[i][1], strlen(files[i][1]), &err), 0);
    assert_int_equal(tar_writer_commit(w, sha256, NULL, &err), 0);
    tar_writer_free(w);
    char *job = str_printf(
        "{\"companions\":{\"sha256\":\"%s\"},\"id\":7,\"vocab\":257,\"state\":\"done\",\"spec\":"
        "\"name: a\\ndata: {path: x.txt}\\nmodel: {type: llama, dim: 32, depth: 1, heads: 2, "
        "context: 16}\\ntrain: {batch: 1}\\nouter: {rounds: 9, steps: 1}\\n\",\"path_list\":[{"
        "\"path\":0,\"round\":1,\"modules\":[1]}]}",
        hash_hex(sha256, sizeof sha256, hex));
    char *weights = put_weights(dir, "w", hex);
    char *modules = str_printf("{\"items\":[" MODULE "]}", 1, hex);
    const char *const goes_on[] = {modules, job, file, weights, NULL};
    for (int i = 0; i < 2; i++) { /* over what was there, and over its own */
        if (take_to(model, false, goes_on, &err) < 0)
            fail_msg("%s", err.msg);
        expect(model, "config.json",
               "{\n  \"eos_token_id\": 7,\n  \"max_position_embeddings\": 16,\n  "
               "\"torch_dtype\": \"float32\"\n}");
        expect(model, "tokenizer_config.json", files[1][1]);
        expect(model, "special_tokens_map.json", "{}");
        char *made = file_join(model, "generation_config.json"); /* the folder had none */
        assert_true(file_exists(made));
        mem_free(made);
        put(model, "tokenizer_config.json", "another's");
    }
    put(model, "special_tokens_map.json", "another's");
    const char *const refused[] = {modules, job, file, NULL};
    assert_int_equal(take_to(model, false, refused, &err), -EEXIST);
    assert_non_null(strstr(err.msg, "/model/special_tokens_map.json is there already"));
    char *plain = str_printf("{%s", strstr(job, "\"id\"")); /* a run of the job without its start */
    const char *const without[] = {modules, plain, weights, NULL};
    assert_int_equal(take_to(model, false, without, &err), 0);
    expect(model, "special_tokens_map.json", "another's"); /* it is named */
    assert_int_equal(take_to(model, true, without, &err), 0);
    expect(model, "special_tokens_map.json", NULL);
    mem_free(plain);
    mem_free(modules);
    mem_free(weights);
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
                                        "tokenizer_config.json", "chat_template.jinja"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char dir[] = "/tmp/test_models-XXXXXX";
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

static void expect_refused(const char *dir, const char *const *answers, const char *words)
{
    struct err err;
    assert_int_equal(take_to(dir, false, answers, &err), -EEXIST);
    if (!strstr(err.msg, words) || !strstr(err.msg, "--out") || !strstr(err.msg, "--replace"))
        fail_msg("%s", err.msg);
}

/* A folder is this job's alone, unless its owner says so: pictures, and another job's model, though
 * it has the same number at another coordinator. */
static void a_folder_of_somebody_else(void **state)
{
    char dir[] = "/tmp/test_models-XXXXXX", hex[HASH_HEX_MAX];
    struct err err;
    assert_non_null(mkdtemp(dir));
    char *weights = put_weights(dir, "w", hex), *model = file_join(dir, "model");
    char *modules = str_printf("{\"items\":[" MODULE "]}", 1, hex);
    char *other = str_printf("{\"created_at\":\"2026-01-01\",\"name\":\"b\",%s", &JOB[1]);
    const char *const looks[] = {modules, JOB, NULL}, *const looks_too[] = {modules, other, NULL};
    const char *const takes[] = {modules, JOB, weights, NULL};
    const char *const takes_too[] = {modules, other, weights, NULL};
    expect_refused(dir, looks, " holds files that are not of this job's export, such as w: ");
    assert_int_equal(file_mkdirs(model, 0700, NULL), 0);
    put(model, ".gitattributes", "");
    assert_int_equal(take_to(model, false, takes, &err), 0);
    assert_int_equal(take_to(model, false, takes, &err), 0);
    expect_refused(model, looks_too, "/model holds the model of job 7 (), submitted : ");
    assert_int_equal(take_to(model, true, takes_too, &err), 0);
    expect_refused(model, looks, "/model holds the model of job 7 (b), submitted 2026-01-01: ");
    assert_int_equal(take_to(model, false, takes_too, &err), 0);
    mem_free(other);
    mem_free(modules);
    mem_free(model);
    mem_free(weights);
    assert_int_equal(file_remove_tree(dir, NULL), 0);
}

#define PATH(number, own)                                                                          \
    "{\"path\":" number ",\"network\":\"main\",\"round\":3,\"modules\":[1," own "]}"

/* Both paths cross module 1, and each has another one for itself. */
static void a_module_of_several_paths_is_fetched_once(void **state)
{
    static const char about[] = "{\"id\":7,\"state\":\"done\",\"spec\":\"" SPEC
                                "\",\"path_list\":[" PATH("0", "2") "," PATH("1", "3") "]}";
    char dir[] = "/tmp/test_models-XXXXXX", hex[3][HASH_HEX_MAX], *file[3];
    static const char *const names[] = {"a", "b", "c"};
    struct file_names folders = {0};
    struct script s;
    struct cli cli = {0};
    struct err err = {0};
    assert_non_null(mkdtemp(dir));
    for (int i = 0; i < 3; i++)
        file[i] = put_weights(dir, names[i], hex[i]);
    char *modules = str_printf("{\"items\":[" MODULE "," MODULE "," MODULE "]}", 1, hex[0], 2,
                               hex[1], 3, hex[2]);
    const char *const answers[] = {modules, about, file[0], file[1], file[2], GONE, GONE, NULL};
    char *model = file_join(dir, "model");
    connect_to(&s, &cli, answers);
    if (models_take(&cli, 7, -1, true, model, false, &folders, &err) < 0)
        fail_msg("%s", err.msg);
    disconnect(&s, &cli);
    assert_int_equal(folders.n, 2);
    for (size_t i = 0; i < 2; i++) {
        char *weights = str_printf("%s-%zu/model.safetensors", model, i);
        char *parts = str_printf("%s-%zu/.parts", model, i);
        struct st st;
        assert_int_equal(st_open(weights, &st, &err), 0);
        assert_int_equal(st.n_tensors, 2);
        assert_non_null(st_find(&st, "a"));
        assert_non_null(st_find(&st, names[i + 1]));
        st_release(&st);
        assert_true(str_starts(weights, folders.items[i]));
        assert_false(file_exists(parts));
        mem_free(parts);
        mem_free(weights);
    }
    file_names_release(&folders);
    for (int i = 0; i < 3; i++)
        mem_free(file[i]);
    mem_free(model);
    mem_free(modules);
    assert_int_equal(file_remove_tree(dir, NULL), 0);
}

static void check(const char *dir, const char *out, const char *there)
{
    static const char yaml[] =
        "name: a\ndata: {path: x.jsonl}\nmodel: {type: llama, dim: 32, depth: 1, heads: 2, "
        "context: 16}\ntrain: {batch: 2, lr: 1e-3}\nouter: {rounds: 1, steps: 1}\n"
        "recipe: {name: dipaco, levels: [2]}\n";
    struct job_spec spec;
    struct err err = {0};
    char *folder = file_join(dir, there), *model = file_join(dir, out);
    assert_int_equal(file_mkdirs(folder, 0700, NULL), 0);
    if (job_parse(yaml, strlen(yaml), "a.yaml", &spec, &err) < 0)
        fail_msg("%s", err.msg);
    assert_int_equal(models_check_folders(&spec, model, &err), 0);
    put(folder, "diffusion_pytorch_model.safetensors", "");
    assert_int_equal(models_check_folders(&spec, model, &err), -EEXIST);
    if (!strstr(err.msg, there))
        fail_msg("%s", err.msg);
    job_release(&spec);
    mem_free(model);
    assert_int_equal(file_remove_tree(folder, NULL), 0);
    mem_free(folder);
}

/* The folders of two paths are beside the one that is named, or in it if ".." is all its name. */
static void folders_of_all_paths_are_checked(void **state)
{
    char dir[] = "/tmp/test_models-XXXXXX";
    assert_non_null(mkdtemp(dir));
    check(dir, "model", "model-0");
    check(dir, "model", "model-1");
    check(dir, "model//", "model-1");
    check(dir, ".", "model-1");
    check(dir, "./", "model-0");
    check(dir, "x..", "x..-0");
    assert_int_equal(file_remove_tree(dir, NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_version_that_is_gone_is_not_the_newest),
        cmocka_unit_test(companions_are_all_of_one_job),
        cmocka_unit_test(an_adapter_has_the_name_of_its_weights),
        cmocka_unit_test(a_llama_keeps_its_companions),
        cmocka_unit_test(a_tokenizer_is_not_anothers),
        cmocka_unit_test(a_folder_of_somebody_else),
        cmocka_unit_test(a_module_of_several_paths_is_fetched_once),
        cmocka_unit_test(folders_of_all_paths_are_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
