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

static char *card(const char *yaml, enum card_kind kind, const char *class, bool ema)
{
    char dir[] = "/tmp/test_card-XXXXXX";
    struct job_spec spec;
    struct buf text;
    assert_non_null(mkdtemp(dir));
    OK(job_parse(yaml, strlen(yaml), "job.yaml", &spec, err));
    json_t *about = json_pack("{s:i,s:i,s:f,s:{s:i,s:i}}", "round", 2, "rounds", 3, "eval_loss",
                              1.25, "dataset", "samples", 90, "holdout", 9);
    OK(card_write(about, &spec, kind, class, ema, dir, err));
    char *path = file_join(dir, "README.md");
    OK(file_read(path, 65536, &text, err));
    char *ret = str_dup(buf_str(&text));
    buf_release(&text);
    mem_free(path);
    json_decref(about);
    job_release(&spec);
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
    char *text = card(JOB(", type: llama"), CARD_TEXT, "LlamaForCausalLM", true);
    assert_true(str_starts(text, "---\nlibrary_name: transformers\npipeline_tag: text-generation\n"
                                 "tags:\n- skerry\n- diloco\n---\n\n# tale\n\nA language model "
                                 "(`LlamaForCausalLM`).\n"));
    says(text, "\nfrom transformers import AutoModelForCausalLM, AutoTokenizer\n");
    says(text, "\n| rounds | 2 of 3 |\n| weights | the average over the rounds, F32 |\n| samples | "
               "90, 9 of them held out |\n| held-out loss | 1.2500 |\n");
    assert_null(strstr(text, "began with"));
    mem_free(text);
    text = card(JOB(", type: llama, warm_start: /secret"), CARD_TOKENS, "LlamaForCausalLM", false);
    says(text, "\n| began with | weights of another model |\n");
    says(text, "\n| weights | those of the last round, F32 |\n");
    assert_null(strstr(text, "AutoTokenizer"));
    assert_null(strstr(text, "secret"));
    mem_free(text);
    text = card(JOB(""), CARD_IMAGES, NULL, true);
    assert_true(str_starts(text, "---\npipeline_tag: unconditional-image-generation\ntags:\n"));
    mem_free(text);
    text = card(JOB(""), CARD_ROUTER, NULL, true);
    assert_true(str_starts(text, "---\ntags:\n- skerry\n"));
    mem_free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_hub_reads_it)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
