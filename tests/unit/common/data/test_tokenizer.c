#include "common/data/tokenizer.h"

#include <errno.h>

#include "tests/unit/common/base/util.h"

#include "tests/unit/common/data/tokenizer_vectors.h"

#define GPT2 "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true}"
#define SPLIT(pattern)                                                                             \
    "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":"        \
    "\"" pattern "\"},\"behavior\":\"Isolated\",\"invert\":false},{\"type\":\"ByteLevel\","        \
    "\"add_prefix_space\":false,\"use_regex\":false}]}"
#define CL100K(digits)                                                                             \
    SPLIT("(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|" digits           \
          "| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+")

static const char end_token[] =
    "{\"id\":330,\"content\":\"<|endoftext|>\",\"special\":true,\"single_word\":false}";

/* A tokenizer.json of the alphabet and these merges; pairs as arrays or as text. */
static void write_json(struct buf *out, const char *const *merges, size_t n, bool arrays,
                       const char *split, const char *added)
{
    buf_init(out, 1 << 20);
    buf_printf(out, "{\"added_tokens\":[%s],\"pre_tokenizer\":%s,\"normalizer\":null,\"model\":{",
               added, split);
    buf_printf(out, "\"type\":\"BPE\",\"vocab\":{");
    for (size_t i = 0; i < COUNT(vector_alphabet); i++) {
        const char *a = vector_alphabet[i];
        buf_printf(out, "\"%s%s\":%zu,", *a == '"' || *a == '\\' ? "\\" : "", a, i);
    }
    for (size_t i = 0; i < n; i++) {
        const char *space = strchr(merges[i], ' ');
        buf_printf(out, "%s\"%.*s%s\":%zu", i ? "," : "", (int)(space - merges[i]), merges[i],
                   space + 1, 256 + i);
    }
    buf_printf(out, "},\"merges\":[");
    for (size_t i = 0; i < n; i++) {
        const char *space = strchr(merges[i], ' ');
        if (arrays)
            buf_printf(out, "%s[\"%.*s\",\"%s\"]", i ? "," : "", (int)(space - merges[i]),
                       merges[i], space + 1);
        else
            buf_printf(out, "%s\"%s\"", i ? "," : "", merges[i]);
    }
    buf_printf(out, "]}}");
}

static void check(const struct tokenizer *t, const struct vector *want, unsigned flags)
{
    for (size_t i = 0; i < COUNT(vector_texts); i++) {
        struct tokens got = {0};
        struct buf back;
        size_t len = strlen(vector_texts[i]);
        OK(tokenizer_encode(t, vector_texts[i], len, flags, &got, err));
        if (got.n != want[i].n || memcmp(got.ids, want[i].ids, got.n * 4) != 0)
            fail_msg("text %zu: %zu tokens, expected %u", i, got.n, want[i].n);
        buf_init(&back, 4096);
        assert_int_equal(tokenizer_decode(t, got.ids, got.n, &back), 0);
        if (flags == TOKENIZER_PLAIN) {
            assert_int_equal(back.len, len);
            assert_memory_equal(back.data, vector_texts[i], len);
        }
        buf_release(&back);
        tokens_release(&got);
    }
}

static void like_hugging_face(void **state)
{
    (void)state;
    static const struct {
        const char *split;
        const char *const *merges;
        size_t n;
        const struct vector *plain, *special;
    } cases[] = {
        {GPT2, gpt2_merges, COUNT(gpt2_merges), gpt2_plain, gpt2_special},
        {CL100K("\\\\p{N}{1,3}"), cl100k_merges, COUNT(cl100k_merges), cl100k_plain,
         cl100k_special},
        {CL100K("\\\\p{N}"), digit_merges, COUNT(digit_merges), digit_plain, digit_special},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        for (int arrays = 0; arrays < 2; arrays++) {
            struct tokenizer *t;
            struct buf json;
            write_json(&json, cases[i].merges, cases[i].n, arrays, cases[i].split, end_token);
            OK(tokenizer_parse(json.data, json.len, "t.json", &t, err));
            assert_int_equal(tokenizer_vocab(t), 331);
            assert_int_equal(tokenizer_bos(t), 330);
            assert_int_equal(tokenizer_eos(t), 330);
            check(t, cases[i].plain, TOKENIZER_PLAIN);
            check(t, cases[i].special, TOKENIZER_SPECIAL);
            tokenizer_free(t);
            buf_release(&json);
        }
    }
}

/* Llama 3: the template says what comes first; whole words that are tokens stay. */
static void template_and_whole_words(void **state)
{
    (void)state;
    static const char json[] =
        "{\"added_tokens\":[{\"id\":5,\"content\":\"<B>\",\"special\":true},"
        "{\"id\":6,\"content\":\"<|end_of_text|>\",\"special\":true},"
        "{\"id\":8,\"content\":\"cc\",\"special\":false}],"
        "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},"
        "\"post_processor\":{\"type\":\"Sequence\",\"processors\":[{\"type\":\"ByteLevel\"},"
        "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<B>\"}},"
        "{\"Sequence\":{\"id\":\"A\"}}]}]},"
        "\"model\":{\"type\":\"BPE\",\"ignore_merges\":%s,\"vocab\":{\"a\":0,\"b\":1,\"ab\":2,"
        "\"ba\":3,\"aba\":4,\"c\":7},\"merges\":[\"b a\",\"a b\"]}}";
    for (int whole = 0; whole < 2; whole++) {
        struct tokenizer *t;
        struct tokens got = {0};
        char text[1024];
        snprintf(text, sizeof(text), json, whole ? "true" : "false");
        OK(tokenizer_parse(text, strlen(text), "t.json", &t, err));
        assert_int_equal(tokenizer_vocab(t), 9);
        OK(tokenizer_encode(t, "abaccc", 6, TOKENIZER_ENDS, &got, err));
        static const uint32_t merged[] = {5, 0, 3, 8, 7, 6}, kept[] = {5, 4, 8, 7, 6};
        assert_int_equal(got.n, whole ? 5 : 6);
        assert_memory_equal(got.ids, whole ? kept : merged, got.n * 4);
        FAILS(tokenizer_encode(t, "x", 1, 0, &got, err), "no token for the byte 0x78");
        tokens_release(&got);
        tokenizer_free(t);
    }
}

/* As ByteLevel() of tokenizers is by default: a space before what lies between added tokens. */
static void a_space_before_each_part(void **state)
{
    (void)state;
    static const char json[] =
        "{\"added_tokens\":[{\"id\":4,\"content\":\"<B>\",\"special\":true}],"
        "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":true},\"model\":{\"type\":"
        "\"BPE\",\"vocab\":{\"a\":0,\"\xc4\xa0\":1,\"\xc4\xa0"
        "a\":2,\"\xc4\x8a\":3},\"merges\":[\"\xc4\xa0 a\"]}}";
    static const struct {
        const char *text;
        uint32_t n, ids[8];
    } cases[] = {
        {"aa", 2, {2, 0}},     {" aa", 2, {2, 0}},      {"", 0, {0}},
        {"\na", 3, {1, 3, 0}}, {"a<B>a", 3, {2, 4, 2}}, {"<B> a", 2, {4, 2}},
    };
    struct tokenizer *t;
    OK(tokenizer_parse(json, strlen(json), "t.json", &t, err));
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct tokens got = {0};
        OK(tokenizer_encode(t, cases[i].text, strlen(cases[i].text), TOKENIZER_SPECIAL, &got, err));
        if (got.n != cases[i].n || (got.n && memcmp(got.ids, cases[i].ids, got.n * 4) != 0))
            fail_msg("'%s': %zu tokens", cases[i].text, got.n);
        tokens_release(&got);
    }
    tokenizer_free(t);
}

static void bytes_are_tokens(void **state)
{
    (void)state;
    struct tokenizer *t = tokenizer_bytes();
    struct tokens got = {0};
    struct buf back;
    static const uint32_t want[] = {256, 'h', 0xc3, 0xa9, 0, 0xff, 256};
    OK(tokenizer_encode(t, "h\xc3\xa9\0\xff", 5, TOKENIZER_ENDS, &got, err));
    assert_int_equal(got.n, 7);
    assert_memory_equal(got.ids, want, sizeof(want));
    assert_int_equal(tokenizer_vocab(t), 257);
    assert_true(tokenizer_is_special(t, 256));
    buf_init(&back, 64);
    assert_int_equal(tokenizer_decode(t, got.ids, got.n, &back), 0);
    assert_int_equal(back.len, 5);
    assert_memory_equal(back.data, "h\xc3\xa9\0\xff", 5);
    buf_release(&back);
    tokens_release(&got);
    tokenizer_free(t);
}

/* Bytes that are no UTF-8 survive merging and splitting. */
static void any_bytes_survive(void **state)
{
    (void)state;
    struct tokenizer *t;
    struct buf json, back;
    struct tokens got = {0};
    uint8_t text[1024];
    write_json(&json, cl100k_merges, COUNT(cl100k_merges), true, CL100K("\\\\p{N}{1,3}"),
               end_token);
    OK(tokenizer_parse(json.data, json.len, "t.json", &t, err));
    for (size_t i = 0; i < sizeof(text); i++)
        text[i] = (uint8_t)(i * i / 7 + i % 3 * 101);
    OK(tokenizer_encode(t, text, sizeof(text), 0, &got, err));
    buf_init(&back, 4096);
    assert_int_equal(tokenizer_decode(t, got.ids, got.n, &back), 0);
    assert_int_equal(back.len, sizeof(text));
    assert_memory_equal(back.data, text, sizeof(text));
    buf_release(&back);
    buf_release(&json);
    tokens_release(&got);
    tokenizer_free(t);
}

static void streams_whole_characters(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        size_t n;
        const char *text;
    } cases[] = {
        {"a\xc3\xa9\xe2\x82\xac\xf0\x9f\x99\x82z", 11, "a\xc3\xa9\xe2\x82\xac\xf0\x9f\x99\x82z"},
        {"\xff"
         "a",
         2,
         "\xef\xbf\xbd"
         "a"},
        {"\xe2\x82"
         "b",
         3,
         "\xef\xbf\xbd"
         "b"},
        {"\xc0\xaf", 2, "\xef\xbf\xbd\xef\xbf\xbd"},
        {"\xed\xa0\x80", 3, "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
        {"\xf0\x9f\x99", 3, "\xef\xbf\xbd"},
    };
    struct tokenizer *t = tokenizer_bytes();
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct tokenizer_stream s = {0};
        struct buf out;
        buf_init(&out, 256);
        for (size_t k = 0; k < cases[i].n; k++) {
            size_t before = out.len;
            assert_int_equal(tokenizer_stream_push(&s, t, (uint8_t)cases[i].bytes[k], &out), 0);
            if (i == 0 && k == 1) /* half of a character */
                assert_int_equal(out.len, before);
        }
        assert_int_equal(tokenizer_stream_push(&s, t, TOKENIZER_BYTES_END, &out), 0);
        assert_int_equal(tokenizer_stream_end(&s, &out), 0);
        assert_string_equal(buf_str(&out), cases[i].text);
        buf_release(&out);
    }
    tokenizer_free(t);
}

static void refuses_by_name(void **state)
{
    (void)state;
#define HEAD "{\"pre_tokenizer\":" GPT2 ",\"model\":"
    static const struct {
        const char *json, *says;
    } cases[] = {
        {"", "line 1"},
        {"[]", "expected BPE with vocab and merges"},
        {"{\"model\":{\"type\":\"WordPiece\",\"vocab\":{},\"merges\":[]}}", "'WordPiece'"},
        {"{\"model\":{\"type\":\"Unigram\",\"vocab\":{}}}", "'Unigram'"},
        {HEAD "{\"vocab\":{},\"merges\":[]}}", "vocabulary is empty"},
        {HEAD "{\"vocab\":{\"a\":0,\"b\":0},\"merges\":[]}}", "two tokens have the id 0"},
        {HEAD "{\"vocab\":{\"a\":-1},\"merges\":[]}}", "the id of 'a' is not a number below"},
        {HEAD "{\"vocab\":{\"a\":4000000000},\"merges\":[]}}", "is not a number below"},
        {HEAD "{\"vocab\":{\"a\":0},\"merges\":[\"a a\"]}}", "merge 0 is not made of two tokens"},
        {HEAD "{\"vocab\":{\"a\":0},\"merges\":[\"aa\"]}}", "merge 0"},
        {HEAD "{\"vocab\":{\"a\":0},\"merges\":[[\"a\"]]}}", "merge 0"},
        {HEAD "{\"vocab\":{\"a\":0},\"merges\":[],\"byte_fallback\":true}}", "byte_fallback"},
        {HEAD "{\"vocab\":{\"a\":0},\"merges\":[],\"end_of_word_suffix\":\"#\"}}",
         "end_of_word_suffix other than </w>"},
        {HEAD "{\"vocab\":{\"a\":0},\"merges\":[],\"unk_token\":\"<unk>\"}}", "unknown text"},
        {"{\"normalizer\":{\"type\":\"NFKD\"},\"model\":{\"vocab\":{\"a\":0},\"merges\":[]}}",
         "the normalizer 'NFKD'"},
        {"{\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},\"content\":\"b\"},"
         "\"model\":{\"vocab\":{\"a\":0},\"merges\":[]}}",
         "it replaces 'a' by 'b'"},
        {"{\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"AAA\"}}",
         "not base64"},
        {"{\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"CAAAAAAA\"}}",
         "cut short"},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[]}}", "neither has bytes for tokens"},
        {"{\"pre_tokenizer\":{\"type\":\"Digits\"},\"model\":{\"vocab\":{\"a\":0},\"merges\":[]}}",
         "the pre-tokenizer 'Digits'"},
        {"{\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"_\"}}",
         "the replacement '_'"},
        {HEAD "{\"vocab\":{\"a\":0},\"merges\":[]},\"post_processor\":{\"type\":\"Other\"}}",
         "the post-processor 'Other'"},
        {HEAD
         "{\"vocab\":{\"a\":0},\"merges\":[]},\"post_processor\":{\"type\":\"TemplateProcessing\","
         "\"single\":[{\"SpecialToken\":{\"id\":\"<s>\"}}]}}",
         "adds '<s>', which is not in the vocabulary"},
        {"{\"pre_tokenizer\":" SPLIT("\\\\w+") ",\"model\":{\"vocab\":{\"a\":0},\"merges\":[]}}",
         "by the pattern \\w+; only those of GPT-2, cl100k, Qwen 2 and CLIP"},
        {"{\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\","
         "\"pattern\":"
         "{\"Regex\":\"'(?:[sdmt]|ll|ve|re)| ?\\\\p{L}+| ?\\\\p{N}+| "
         "?[^\\\\s\\\\p{L}\\\\p{N}]+|\\\\s+(?!\\\\S)|\\\\s+\"},\"behavior\":\"Isolated\"},"
         "{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"use_regex\":false}]},\"model\":"
         "{\"vocab\":{\"a\":0},\"merges\":[]}}",
         "add_prefix_space after Split"},
        {"{\"added_tokens\":[{\"id\":0,\"content\":\"b\"}],\"pre_tokenizer\":" GPT2
         ",\"model\":{\"vocab\":{\"a\":0},\"merges\":[]}}",
         "has the id 0 of another token"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct tokenizer *t;
        FAILS(tokenizer_parse(cases[i].json, strlen(cases[i].json), "t.json", &t, err),
              cases[i].says);
    }
    struct tokenizer *t;
    FAILS(tokenizer_open("/nonexistent/t.json", &t, err), "/nonexistent/t.json");
}

/* What a clone without Git LFS has in place of it. */
static void names_a_placeholder(void **state)
{
    (void)state;
    static const char text[] = "version https://git-lfs.github.com/spec/v1\noid sha256:4a5e\n";
    struct tokenizer *t;
    FAILS(tokenizer_parse(text, sizeof text - 1, "t.json", &t, err),
          "t.json is a placeholder of Git LFS");
}

/* 6 MB, which would become half a gigabyte. */
static void refuses_many_values(void **state)
{
    (void)state;
    struct tokenizer *t;
    const size_t lists = 2 * TOKENIZER_VOCAB_MAX + 1;
    char *many = mem_alloc(3 * lists + 1);
    for (size_t i = 0; i < lists; i++)
        memcpy(many + 3 * i, i ? ",{}" : "[{}", 3);
    many[3 * lists] = ']';
    FAILS(tokenizer_parse(many, 3 * lists + 1, "t.json", &t, err),
          "t.json holds more values than 1048576 tokens and their merges need");
    mem_free(many);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(like_hugging_face),        cmocka_unit_test(template_and_whole_words),
        cmocka_unit_test(a_space_before_each_part), cmocka_unit_test(any_bytes_survive),
        cmocka_unit_test(bytes_are_tokens),         cmocka_unit_test(streams_whole_characters),
        cmocka_unit_test(refuses_by_name),          cmocka_unit_test(refuses_many_values),
        cmocka_unit_test(names_a_placeholder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
