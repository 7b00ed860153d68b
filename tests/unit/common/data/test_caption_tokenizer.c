/* Folders of small tokenizers; ids as transformers has them (tests/latents compares with it). */
#include "common/data/caption_tokenizer.h"

#include <pthread.h>

#include "tests/unit/common/base/util.h"

static const char vocab[] =
    "{\"a\":0,\"b\":1,\"'\":2,\"a</w>\":3,\"b</w>\":4,\"'</w>\":5,\"ab\":6,\"ab</w>\":7,"
    "\"1</w>\":8,\"<|startoftext|>\":9,\"<|endoftext|>\":10,\"!\":11}";
static const char merges[] = "#version: 0.2\na b\r\na b</w>\n\n";
static const char clip_config[] =
    "{\"tokenizer_class\":\"CLIPTokenizer\",\"pad_token\":{\"content\":\"!\"},"
    "\"model_max_length\":77}";

static void put_text(const char *dir, const char *name, const char *text)
{
    put(dir, name, text, strlen(text));
}

static void gives(const struct caption_tokenizer *c, const char *text, int most, int len,
                  const char *want)
{
    int32_t ids[64];
    int n = 0;
    char got[512] = "";
    OK(caption_tokenizer_encode(c, text, strlen(text), most, ids, &n, err));
    for (int i = 0; i < most; i++)
        snprintf(got + strlen(got), sizeof(got) - strlen(got), i ? " %d" : "%d", (int)ids[i]);
    assert_string_equal(got, want);
    assert_int_equal(n, len);
}

static void clip_from_merges(void **state)
{
    (void)state;
    char *dir = scratch_new();
    struct caption_tokenizer *c;
    put_text(dir, "vocab.json", vocab);
    put_text(dir, "merges.txt", merges);
    put_text(dir, "tokenizer_config.json", clip_config);
    OK(caption_tokenizer_open(dir, &c, err));
    assert_int_equal(caption_tokenizer_kind(c), CAPTION_CLIP);
    assert_string_equal(caption_kind_name(caption_tokenizer_kind(c)), "CLIP");
    assert_int_equal(caption_tokenizer_vocab(c), 12);
    assert_int_equal(caption_tokenizer_length(c), 77);
    assert_int_equal(caption_tokenizer_pad(c), 11);
    gives(c, "", 4, 2, "9 10 11 11");
    gives(c, "AB  \n aba", 6, 5, "9 7 6 3 10 11");
    gives(c, "ab1'1", 7, 6, "9 7 8 5 8 10 11");
    gives(c, "abababab ab ab", 5, 5, "9 6 6 6 10");
    gives(c, "a<|endoftext|>b!", 7, 6, "9 3 10 4 11 10 11");
    gives(c, "xx a", 6, 5, "9 10 10 3 10 11");
    gives(c, "ab", 2, 2, "9 10");
    assert_int_equal(caption_tokenizer_cut(c, "abababab ab ab", 14, 5), 3);
    assert_int_equal(caption_tokenizer_cut(c, "abababab ab ab", 14, 8), 0);
    assert_int_equal(caption_tokenizer_cut(c, "\xff", 1, 2), 0);
    int n;
    int32_t ids[4];
    FAILS(caption_tokenizer_encode(c, "\xff", 1, 4, ids, &n, err), "not UTF-8");
    FAILS(caption_tokenizer_encode(c, "", 0, 1, ids, &n, err), "1 tokens, expected 2 to");
    FAILS(caption_tokenizer_encode(c, "", CAPTION_BYTES_MAX + 1, 4, ids, &n, err), "at most");
    caption_tokenizer_free(c);
    scratch_free(dir);
}

static const char t5_json[] =
    "{\"added_tokens\":[{\"id\":0,\"content\":\"<pad>\",\"special\":true},"
    "{\"id\":1,\"content\":\"</s>\",\"special\":true},"
    "{\"id\":6,\"content\":\"<x>\",\"special\":true,\"lstrip\":true,\"rstrip\":true},"
    "{\"id\":7,\"content\":\"aa\",\"single_word\":true}],"
    "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"WhitespaceSplit\"},"
    "{\"type\":\"Metaspace\",\"replacement\":\"\xe2\x96\x81\",\"prepend_scheme\":\"always\","
    "\"split\":true}]},\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":["
    "{\"Sequence\":{\"id\":\"A\"}},{\"SpecialToken\":{\"id\":\"</s>\"}}]},"
    "\"model\":{\"type\":\"Unigram\",\"unk_id\":2,\"vocab\":[[\"<pad>\",0],[\"</s>\",0],"
    "[\"<unk>\",0],[\"\xe2\x96\x81\",-2],[\"a\",-3],[\"\xe2\x96\x81"
    "a\",-4]]}}";

static void t5_from_json(void **state)
{
    (void)state;
    char *dir = scratch_new();
    struct caption_tokenizer *c;
    put_text(dir, "tokenizer.json", t5_json);
    OK(caption_tokenizer_open(dir, &c, err));
    assert_int_equal(caption_tokenizer_kind(c), CAPTION_T5);
    assert_int_equal(caption_tokenizer_vocab(c), 8);
    assert_int_equal(caption_tokenizer_length(c), 0);
    assert_int_equal(caption_tokenizer_pad(c), 0);
    gives(c, "", 3, 1, "1 0 0");
    gives(c, "a aza", 7, 5, "5 5 2 4 1 0 0");
    gives(c, "a a a", 3, 3, "5 5 1");
    gives(c, "a <x>  a", 5, 4, "5 6 5 1 0");
    gives(c, "aa aaa", 6, 5, "7 5 4 4 1 0");
    caption_tokenizer_free(c);
    scratch_free(dir);
}

struct job {
    const struct caption_tokenizer *c;
    int wrong;
};

static void *encode_often(void *arg)
{
    struct job *job = arg;
    for (int i = 0; i < 200; i++) {
        int32_t ids[6];
        int n;
        if (caption_tokenizer_encode(job->c, "AB  aba", 7, 6, ids, &n, NULL) < 0 || n != 5 ||
            ids[1] != 7)
            job->wrong++;
    }
    return NULL;
}

static void many_threads(void **state)
{
    (void)state;
    char *dir = scratch_new();
    struct caption_tokenizer *c;
    struct job jobs[4];
    pthread_t threads[4];
    put_text(dir, "vocab.json", vocab);
    put_text(dir, "merges.txt", merges);
    OK(caption_tokenizer_open(dir, &c, err));
    for (int i = 0; i < 4; i++) {
        jobs[i] = (struct job){c, 0};
        assert_int_equal(pthread_create(&threads[i], NULL, encode_often, &jobs[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(jobs[i].wrong, 0);
    }
    caption_tokenizer_free(c);
    scratch_free(dir);
}

static void refuses_by_name(void **state)
{
    (void)state;
    static const struct {
        const char *config, *map, *vocab, *merges, *json, *spiece, *says;
    } cases[] = {
        {.says = "there is no tokenizer in"},
        {.vocab = vocab, .says = "there is no tokenizer in"},
        {.config = "{\"tokenizer_class\":\"BertTokenizer\"}",
         .says = "of the class 'BertTokenizer'"},
        {.config = "[]", .says = "tokenizer_config.json is not a JSON object"},
        {.config = "{", .says = "tokenizer_config.json, line 1"},
        {.vocab = "version https://git-lfs.github.com/spec/v1\n",
         .merges = merges,
         .says = "vocab.json is a placeholder of Git LFS"},
        {.config = "{\"padding_side\":\"left\"}", .says = "padding_side 'left', expected right"},
        {.config = "{\"tokenizer_class\":\"T5Tokenizer\"}",
         .vocab = vocab,
         .merges = merges,
         .says = "there is no tokenizer in"},
        {.config = "{\"tokenizer_class\":\"CLIPTokenizer\"}",
         .json = t5_json,
         .says = "its class is that of CLIP, but its model is that of T5"},
        {.vocab = vocab, .merges = "a c\n", .says = "merge 0 is not made of two tokens"},
        {.vocab = vocab, .merges = "ab\n", .says = "merge 0"},
        {.vocab = "{\"a\":0}", .merges = merges, .says = "merge 0"},
        {.vocab = "{\"a\":0}", .merges = "", .says = "'<|startoftext|>' is not in its vocabulary"},
        {.vocab = "{}", .merges = "", .says = "vocabulary is empty"},
        {.vocab = "{\"a\":\"b\"}", .merges = "", .says = "the id of 'a'"},
        {.vocab = vocab,
         .merges = merges,
         .map = "{\"pad_token\":\"<none>\"}",
         .says = "'<none>' is not in its vocabulary"},
        {.vocab = vocab,
         .merges = merges,
         .config = "{\"added_tokens_decoder\":{\"9\":{\"content\":\"<y>\"}}}",
         .says = "'<y>' is not in its vocabulary"},
        {.json = "{\"pre_tokenizer\":{\"type\":\"ByteLevel\"},\"model\":{\"vocab\":{\"a\":0},"
                 "\"merges\":[]}}",
         .says = "neither CLIP's"},
        {.spiece = "", .says = "spiece.model is empty"},
        {.json = "", .says = "tokenizer.json is empty"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        const char *texts[] = {cases[i].config, cases[i].map,  cases[i].vocab,
                               cases[i].merges, cases[i].json, cases[i].spiece};
        static const char *const names[] = {"tokenizer_config.json",
                                            "special_tokens_map.json",
                                            "vocab.json",
                                            "merges.txt",
                                            "tokenizer.json",
                                            "spiece.model"};
        struct caption_tokenizer *c;
        char *dir = scratch_new();
        for (size_t k = 0; k < COUNT(names); k++)
            if (texts[k])
                put_text(dir, names[k], texts[k]);
        FAILS(caption_tokenizer_open(dir, &c, err), cases[i].says);
        scratch_free(dir);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(clip_from_merges),
        cmocka_unit_test(t5_from_json),
        cmocka_unit_test(many_threads),
        cmocka_unit_test(refuses_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
