/* The card beside an export: what hubs read of it, and what people do. */
#include "cli/show/card.h"

#include <unistd.h>

#include "tests/unit/ok.h"

#include "common/base/buf.h"
#include "common/base/file.h"
#include "common/job/job.h"

#define JOB(more)                                                                                  \
    "name: tale\ndata: {path: x, image_size: 8}\ntrain: {batch: 4}\nouter: {rounds: 3, steps: "    \
    "1}\n"                                                                                         \
    "model: {dim: 16, depth: 2, heads: 4" more "}\n"

/* The card of the job's second path, after what is in DIR already. */
static char *card_in(const char *dir, const char *yaml, const char *more, int vocab, bool ema)
{
    struct job_spec spec;
    struct buf text;
    char *entry = str_printf("{\"round\": 2, \"rounds\": 3, \"samples\": 81, \"holdout\": 9, "
                             "\"eval_loss\": 1.25, \"eval_round\": 2%s}",
                             more);
    OK(job_parse(yaml, strlen(yaml), "job.yaml", &spec, err));
    json_t *about = json_pack("{s:i,s:i,s:f,s:i,s:{s:i,s:i}}", "round", 1, "rounds", 3, "eval_loss",
                              7.5, "vocab", vocab, "dataset", "samples", 900, "holdout", 90);
    json_t *path = json_loads(entry, 0, NULL);
    assert_non_null(path);
    OK(card_write(about, path, &spec, ema, dir, err));
    char *file = file_join(dir, "README.md");
    OK(file_read(file, 65536, &text, err));
    char *ret = str_dup(buf_str(&text));
    buf_release(&text);
    mem_free(file);
    mem_free(entry);
    json_decref(path);
    json_decref(about);
    job_release(&spec);
    return ret;
}

static char *card(const char *yaml, const char *more, int vocab, bool ema)
{
    char dir[] = "/tmp/test_card-XXXXXX";
    assert_non_null(mkdtemp(dir));
    char *ret = card_in(dir, yaml, more, vocab, ema);
    OK(file_remove_tree(dir, err));
    return ret;
}

static void says(const char *text, const char *words)
{
    if (!strstr(text, words))
        fail_msg("no \"%s\" in:\n%s", words, text);
}

static void a_hub_reads_it(void **state)
{
    char *text = card(JOB(", type: llama"), "", 257, true);
    assert_true(str_starts(text,
                           "---\nlibrary_name: transformers\npipeline_tag: text-generation\n"
                           "tags:\n- skerry\n- diloco\n---\n\n# tale\n\nA language model.\n"));
    says(text, "\nfrom transformers import AutoModelForCausalLM, AutoTokenizer\n");
    assert_null(strstr(text, "began with"));
    mem_free(text);
    text = card(JOB(", type: llama, warm_start: /secret"), "", 1000, false);
    says(text, "\n| began with | weights of another model |\n");
    assert_null(strstr(text, "AutoTokenizer"));
    assert_null(strstr(text, "secret"));
    mem_free(text);
    text = card(JOB(""), "", 0, true);
    assert_true(str_starts(text, "---\npipeline_tag: unconditional-image-generation\ntags:\n"));
    mem_free(text);
    text = card(JOB(""), ", \"network\": \"router\"", 0, true);
    assert_true(str_starts(text, "---\ntags:\n- skerry\n"));
    mem_free(text);
}

/* Of experts, each is told of by its own numbers, not by the job's. */
static void tells_of_its_own_path(void **state)
{
    char *text = card(JOB(""), "", 0, true);
    says(text, "\n| rounds | 2 of 3 |\n| weights | the average over the rounds, F32 |\n| samples | "
               "81, and 9 held out |\n| held-out loss | 1.2500 |\n");
    mem_free(text);
    text = card(JOB(""), ", \"eval_round\": 1", 0, false);
    says(text, "\n| weights | those of the last round, F32 |\n");
    says(text, "\n| held-out loss of the average | 1.2500 after round 1 |\n");
    mem_free(text);
    text = card(JOB(""), ", \"best_round\": 1, \"best_loss\": 1.125, \"best_blobs\": [\"ab\"]", 0,
                true);
    says(text, "\n| rounds | 1 of 3 |\n");
    says(text, "\n| held-out loss | 1.1250 |\n");
    mem_free(text);
}

static void keeps_what_a_person_wrote(void **state)
{
    char dir[] = "/tmp/test_card-XXXXXX";
    assert_non_null(mkdtemp(dir));
    char *file = file_join(dir, "README.md");
    char *text = card_in(dir, JOB(""), "", 0, true);
    mem_free(text);
    text = card_in(dir, JOB(""), ", \"round\": 3", 0, true); /* nobody has worked on that */
    says(text, "\n| rounds | 3 of 3 |\n");
    mem_free(text);
    OK(file_write_atomic(file, "mine\n", 5, 0600, err));
    text = card_in(dir, JOB(""), "", 0, true);
    assert_string_equal(text, "mine\n");
    mem_free(text);
    mem_free(file);
    OK(file_remove_tree(dir, err));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_hub_reads_it),
        cmocka_unit_test(tells_of_its_own_path),
        cmocka_unit_test(keeps_what_a_person_wrote),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
