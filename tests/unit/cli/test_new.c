/* What `skerry new` refuses before it measures anything, and what it reads.  This program is also
 * the `workerd measure` that is asked. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cli/job/new_job.h"
#include "cli/swarm.h"
#include "common/base/file.h"
#include "tests/unit/cli/beside.h"
#include "tests/unit/cli/ran.h"

static void flags_that_go_together(void **state)
{
    static const struct {
        const char *name;
        struct {
            const char *flag, *value;
        } given[2];
        const char *said;
    } cases[] = {
        {"a", {{0}}, "expected one of --images DIR, --text FILE, --captions DIR"},
        {"a", {{"images", "x"}, {"text", "y"}}, "expected one of --images DIR"},
        {"a", {{"images", "x"}, {"text-field", "f"}}, "--text-field goes with --text"},
        {"a", {{"text", "x"}, {"text-field", "\xff"}}, "--text-field goes with --text"},
        {"a", {{"images", "x"}, {"from", "y"}}, "--from goes with --text"},
        {"a b", {{"images", "x"}}, "'a b' is not a name for a job"},
        {"a/b", {{"images", "x"}}, "'a/b' is not a name for a job"},
        {".yaml", {{"images", "x"}}, "'.yaml' is not a name for a job"},
        {"a", {{"captions", "x"}}, "--captions needs --encoders DIR"},
        {"a", {{"images", "x"}, {"encoders", "y"}}, "--encoders is for --captions"},
        {"a", {{"images", "\xff"}}, "is not UTF-8"},
        {"a", {{"captions", "x"}, {"encoders", "\xff"}}, "is not UTF-8"},
    };
    static const char *const none[] = {NULL};
    struct cli cli = {0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct ran r;
        for (int k = 0; k < 2 && cases[i].given[k].flag; k++)
            *(const char **)flag(&command_new, cases[i].given[k].flag) = cases[i].given[k].value;
        run(&command_new, &cli, cases[i].name, none, &r);
        for (int k = 0; k < 2 && cases[i].given[k].flag; k++)
            *(const char **)flag(&command_new, cases[i].given[k].flag) = NULL;
        misused(&r, cases[i].said);
    }
}

static void numbers_that_make_no_sense(void **state)
{
    static const char *const none[] = {NULL};
    const char **images = flag(&command_new, "images");
    int *side = flag(&command_new, "image-size"), *workers = flag(&command_new, "workers");
    bool *here = flag(&command_new, "here");
    const int usual = *side;
    struct cli cli = {0};
    struct ran r;
    *images = "x";
    *side = 1021;
    run(&command_new, &cli, "a", none, &r);
    misused(&r, "--image-size is 1021");
    *side = usual;
    *workers = SWARM_WORKERS_MAX + 1;
    *here = true;
    run(&command_new, &cli, "a", none, &r);
    misused(&r, "--here with");
    *workers = 2;
    *here = false;
    *images = NULL;
}

/* What is there stays, under the name with or without its ending; what fails leaves no file, and
 * the sentence names the flag. */
static void files_are_not_overwritten(void **state)
{
    static const char *const none[] = {NULL};
    const char **images = flag(&command_new, "images");
    char dir[] = "/tmp/skerry-new.XXXXXX", *before = getcwd(NULL, 0);
    struct cli cli = {0};
    struct ran r;
    struct buf b;
    assert_non_null(mkdtemp(dir));
    assert_int_equal(chdir(dir), 0);
    *images = "nowhere";
    assert_int_equal(file_write_atomic("a.yaml", "mine", 4, 0600, NULL), 0);
    for (int i = 0; i < 2; i++) {
        run(&command_new, &cli, i == 0 ? "a" : "a.yaml", none, &r);
        assert_int_equal(r.status, -EEXIST);
        assert_non_null(strstr(r.err.msg, "a.yaml is there already"));
    }
    assert_int_equal(file_read("a.yaml", 100, &b, NULL), 0);
    assert_string_equal(buf_str(&b), "mine");
    buf_release(&b);
    run(&command_new, &cli, "b", none, &r);
    assert_true(r.status < 0);
    assert_false(file_exists("b.yaml"));
    if (!str_starts(r.err.msg, "--images: "))
        fail_msg("%s", r.err.msg);
    *images = NULL;
    assert_int_equal(chdir(before), 0);
    free(before);
    assert_int_equal(file_remove_tree(dir, NULL), 0);
}

/* All data may be gone once the first step is measured. */
static void data_are_read_once(void **state)
{
    static const char *const none[] = {NULL};
    const char **text = flag(&command_new, "text");
    char dir[] = "/tmp/skerry-new.XXXXXX", *before = getcwd(NULL, 0), *words = mem_alloc(30001);
    struct cli cli = {0};
    struct ran r;
    struct buf b;
    assert_non_null(mkdtemp(dir));
    assert_int_equal(chdir(dir), 0);
    memset(words, 'a', 30000);
    assert_int_equal(file_write_atomic("t.txt", words, 30000, 0600, NULL), 0);
    mem_free(words);
    beside_link("workerd");
    *text = "t.txt";
    run(&command_new, &cli, "a", none, &r);
    *text = NULL;
    if (r.status < 0)
        fail_msg("%s", r.err.msg);
    says(&r, "a.yaml: a model of 0.001 M parameters");
    assert_false(file_exists("t.txt"));
    assert_int_equal(file_read("measured", 100, &b, NULL), 0);
    assert_int_equal(b.len, new_job_sizes());
    buf_release(&b);
    assert_int_equal(chdir(before), 0);
    free(before);
    assert_int_equal(file_remove_tree(dir, NULL), 0);
}

/* What the folder of a model says is written down; what is wrong with it names the flag. */
static void sizes_of_a_model_are_taken(void **state)
{
    static const char *const none[] = {NULL};
    static const char config[] =
        "{\"model_type\": \"llama\", \"hidden_size\": %d, \"num_hidden_layers\": 2, "
        "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"intermediate_size\": 32, "
        "\"vocab_size\": 257, \"rms_norm_eps\": 1e-5, \"max_position_embeddings\": 0}";
    const char **text = flag(&command_new, "text"), **from = flag(&command_new, "from");
    char dir[] = "/tmp/skerry-new.XXXXXX", *before = getcwd(NULL, 0);
    static const struct {
        int dim;
        const char *said;
    } rows[] = {{0, "--from: model.dim is '0', expected"},
                {16, "--from: tiny has no model.safetensors"}};
    struct cli cli = {0};
    struct ran r;
    assert_non_null(mkdtemp(dir));
    assert_int_equal(chdir(dir), 0);
    assert_int_equal(file_mkdirs("tiny", 0700, NULL), 0);
    assert_int_equal(file_write_atomic("t.txt", dir, sizeof dir - 1, 0600, NULL), 0);
    *text = "t.txt";
    *from = "nowhere";
    run(&command_new, &cli, "a", none, &r);
    assert_true(str_starts(r.err.msg, "--from: nowhere is not there"));
    *from = "tiny";
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char *said = str_printf(config, rows[i].dim);
        assert_int_equal(file_write_atomic("tiny/config.json", said, strlen(said), 0600, NULL), 0);
        mem_free(said);
        run(&command_new, &cli, "a", none, &r);
        assert_true(r.status < 0);
        if (!str_starts(r.err.msg, rows[i].said))
            fail_msg("%s", r.err.msg);
    }
    *text = *from = NULL;
    assert_int_equal(chdir(before), 0);
    free(before);
    assert_int_equal(file_remove_tree(dir, NULL), 0);
}

/* `workerd measure`, where all sizes are small and fast. */
static int measure(void)
{
    FILE *log = fopen("measured", "a");
    (void)unlink("t.txt");
    return log && fputc('.', log) != EOF && fclose(log) == 0 &&
                   puts("{\"device\": \"cpu\", \"parameters\": 1000, \"batch\": 8, \"step_s\": "
                        "0.01}") >= 0
               ? 0
               : 1;
}

int main(int argc, char **argv)
{
    if (beside_is(argv[0], "workerd"))
        return measure();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(flags_that_go_together),     cmocka_unit_test(numbers_that_make_no_sense),
        cmocka_unit_test(files_are_not_overwritten),  cmocka_unit_test(data_are_read_once),
        cmocka_unit_test(sizes_of_a_model_are_taken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
