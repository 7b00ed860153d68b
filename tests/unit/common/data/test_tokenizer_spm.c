/* SentencePiece models, written here field by field; ids as SentencePiece (BPE) and transformers'
 * T5 (Unigram) have them. */
#include "common/data/tokenizer.h"

#include "tests/unit/common/base/util.h"

#include "common/base/rng.h"
#include "common/data/tokenizer_impl.h"

enum { NORMAL = 1, UNKNOWN, CONTROL, USER, UNUSED, BYTE };

static void put_bytes(struct buf *b, int field, const void *data, size_t len)
{
    assert_true(len < 128 * 128);
    assert_int_equal(buf_append_byte(b, (uint8_t)(field << 3 | 2)), 0);
    assert_int_equal(buf_append_byte(b, (uint8_t)(len % 128 | 128)), 0);
    assert_int_equal(buf_append_byte(b, (uint8_t)(len / 128)), 0);
    assert_int_equal(buf_append(b, data, len), 0);
}

static void put_number(struct buf *b, int field, unsigned value)
{
    if (field >= 16)
        assert_int_equal(buf_append_byte(b, (uint8_t)((field << 3) % 128 | 128)), 0);
    assert_int_equal(buf_append_byte(b, (uint8_t)(field >= 16 ? field >> 4 : field << 3)), 0);
    assert_int_equal(buf_append_byte(b, (uint8_t)value), 0);
}

static void put_piece(struct buf *b, const char *text, float score, unsigned type)
{
    struct buf p;
    buf_init(&p, 1024);
    put_bytes(&p, 1, text, strlen(text));
    assert_int_equal(buf_append_byte(&p, 2 << 3 | 5), 0);
    assert_int_equal(buf_append(&p, &score, 4), 0);
    put_number(&p, 3, type);
    put_bytes(b, 1, p.data, p.len);
    buf_release(&p);
}

struct model {
    unsigned type;
    bool byte_fallback;
    bool keep_spaces;
    bool map; /* "A" is "a" */
};

/* A double array whose root has one child, 'A', with a value. */
static void put_map(struct buf *b)
{
    uint32_t trie[256] = {0};
    const uint32_t size = sizeof(trie), child = 64 ^ 'A';
    struct buf map;
    buf_init(&map, 4096);
    trie[0] = 64u << 10;
    trie[child] = 'A' | 1u << 8 | (child ^ 200) << 10;
    trie[200] = 1u << 31;
    assert_int_equal(buf_append(&map, &size, 4), 0);
    assert_int_equal(buf_append(&map, trie, size), 0);
    assert_int_equal(buf_append(&map, "a", 2), 0);
    put_bytes(b, 2, map.data, map.len);
    buf_release(&map);
}

static void put_specs(struct buf *b, const struct model *m)
{
    struct buf trainer, normalizer;
    buf_init(&trainer, 64);
    buf_init(&normalizer, 4096);
    put_number(&trainer, 3, m->type);
    put_number(&trainer, 35, m->byte_fallback);
    put_number(&trainer, 40, 0);
    put_bytes(b, 2, trainer.data, trainer.len);
    if (m->map)
        put_map(&normalizer);
    put_number(&normalizer, 4, !m->keep_spaces);
    put_bytes(b, 3, normalizer.data, normalizer.len);
    buf_release(&trainer);
    buf_release(&normalizer);
}

static void put_head(struct buf *b)
{
    buf_init(b, 1 << 20);
    put_piece(b, "<unk>", 0, UNKNOWN);
    put_piece(b, "<s>", 0, CONTROL);
    put_piece(b, "</s>", 0, CONTROL);
}

static void encodes(const struct tokenizer *t, const char *text, const char *want)
{
    struct tokens ids = {0};
    struct buf got;
    buf_init(&got, 4096);
    OK(tokenizer_encode(t, text, strlen(text), TOKENIZER_SPECIAL, &ids, err));
    for (size_t i = 0; i < ids.n; i++)
        (void)buf_printf(&got, i ? " %u" : "%u", ids.ids[i]);
    assert_string_equal(buf_str(&got), want);
    tokens_release(&ids);
    buf_release(&got);
}

static void decodes(const struct tokenizer *t, const char *text, const char *want)
{
    struct tokens ids = {0};
    struct buf got;
    buf_init(&got, 4096);
    OK(tokenizer_encode(t, text, strlen(text), TOKENIZER_ENDS, &ids, err));
    assert_int_equal(tokenizer_decode(t, ids.ids, ids.n, &got), 0);
    assert_string_equal(buf_str(&got), want);
    tokens_release(&ids);
    buf_release(&got);
}

/* 3.. are pieces; the byte b has the id 9 + b. */
static void bpe_with_bytes(void **state)
{
    (void)state;
    struct buf b;
    struct tokenizer *t;
    put_head(&b);
    put_piece(&b,
              "\xe2\x96\x81"
              "a",
              -1, NORMAL);                     /* 3 */
    put_piece(&b, "ab", 0, NORMAL);            /* 4: merges before the one above */
    put_piece(&b, "\xe2\x96\x81", -3, NORMAL); /* 5 */
    put_piece(&b, "a", -4, NORMAL);            /* 6 */
    put_piece(&b, "b", -5, NORMAL);            /* 7 */
    put_piece(&b, "[x]", 0, USER);             /* 8 */
    for (unsigned i = 0; i < 256; i++) {
        char name[8];
        snprintf(name, sizeof(name), "<0x%02X>", i);
        put_piece(&b, name, 0, BYTE);
    }
    put_specs(&b, &(struct model){.type = 2, .byte_fallback = true, .keep_spaces = true});
    OK(tokenizer_parse(b.data, b.len, "t.model", &t, err));
    assert_int_equal(tokenizer_vocab(t), 265);
    assert_true(tokenizer_is_sentencepiece(t));
    assert_int_equal(tokenizer_bos(t), 1);
    assert_int_equal(tokenizer_eos(t), 2);
    encodes(t, "", "");
    encodes(t, "ab", "5 4");
    encodes(t, "a  a", "3 5 3");
    encodes(t, "\xc3\xa9", "5 204 178"); /* 0xc3, 0xa9 */
    encodes(t, "</s>", "2");
    encodes(t, "b[x]b", "5 7 8 5 7");
    decodes(t, "a  ab \xc3\xa9\n\xff", "a  ab \xc3\xa9\n\xff");
    decodes(t, "</s> is text", "</s> is text");
    tokenizer_free(t);
    buf_release(&b);
}

static void bpe_tidies(void **state)
{
    (void)state;
    struct buf b;
    struct tokenizer *t;
    put_head(&b);
    put_piece(&b, "\xe2\x96\x81", -1, NORMAL);
    put_piece(&b, "a", -2, NORMAL);
    put_specs(&b, &(struct model){.type = 2, .map = true});
    OK(tokenizer_parse(b.data, b.len, "t.model", &t, err));
    encodes(t, "  A   a ", "3 4 3 4");
    encodes(t, "xyz a", "3 0 3 4"); /* a run of unknown characters is one token */
    encodes(t, "   ", "");
    tokenizer_free(t);
    buf_release(&b);
}

static void unigram(void **state)
{
    (void)state;
    struct buf b;
    struct tokenizer *t;
    put_head(&b);
    put_piece(&b, "\xe2\x96\x81", -2, NORMAL); /* 3 */
    put_piece(&b, "a", -3, NORMAL);            /* 4 */
    put_piece(&b, "b", -3, NORMAL);            /* 5 */
    put_piece(&b,
              "\xe2\x96\x81"
              "ab",
              -8, NORMAL);              /* 6: as good as 3 4 5, and found first */
    put_piece(&b, "bb", -5, NORMAL);    /* 7: better than 5 5 */
    put_piece(&b, "bbbb", -20, NORMAL); /* 8: worse than 7 7 */
    put_specs(&b, &(struct model){.type = 1, .map = true});
    OK(tokenizer_parse(b.data, b.len, "t.model", &t, err));
    encodes(t, "", "");
    encodes(t, " \n", "");
    encodes(t, "ab", "6");
    encodes(t, "bbbb  A\tb", "3 7 7 3 4 3 5");
    encodes(t,
            "a\xe2\x96\x81"
            "bxyb",
            "3 4 3 5 0 5");
    encodes(t, "A\xcc\x81", "3 4"); /* the map takes the first of a short cluster for all of it */
    encodes(t, "</s>a", "2 3 4");
    tokenizer_free(t);
    buf_release(&b);
}

/* Texts of these give the ids of a whole text. */
static void same_ids(struct tokenizer *t, const char *const *parts, size_t n_parts)
{
    struct rng rng;
    rng_init(&rng, 5, 0);
    assert_int_equal(t->split, SPLIT_BEFORE);
    for (int round = 0; round < 2000; round++) {
        struct tokens cut = {0}, whole = {0};
        struct buf text;
        buf_init(&text, 1024);
        for (uint64_t n = 1 + rng_below(&rng, 24); n > 0; n--)
            OK(buf_append_str(&text, parts[rng_below(&rng, n_parts)]));
        OK(tokenizer_encode(t, text.data, text.len, 0, &cut, err));
        t->split = SPLIT_WHOLE;
        OK(tokenizer_encode(t, text.data, text.len, 0, &whole, err));
        t->split = SPLIT_BEFORE;
        if (cut.n != whole.n || memcmp(cut.ids, whole.ids, cut.n * sizeof(*cut.ids)) != 0)
            fail_msg("'%s' has other ids when it is cut", buf_str(&text));
        tokens_release(&cut);
        tokens_release(&whole);
        buf_release(&text);
    }
}

#define META "\xe2\x96\x81"
static const char *const parts[] = {"a",  "b",    " ",        "  ",   META,  "\n",      "z",
                                    "ab", "\xe2", "\xe2\x96", "\xff", "a a", "\xc3\xa9"};

/* A model of pieces whose spaces are at the beginning, or not. */
static struct tokenizer *spaced_model(const struct model *m, const char *more)
{
    static const char *const pieces[] = {
        META, META META, META META META META, META "a", META "ab", "a", "b", "ab", "aba",
        "\n", "\n\n"};
    struct buf b;
    struct tokenizer *t;
    put_head(&b);
    for (size_t i = 0; i < COUNT(pieces); i++)
        put_piece(&b, pieces[i], (float)(i * 7 % 11), NORMAL);
    if (more)
        put_piece(&b, more, 1, NORMAL);
    for (unsigned i = 0; m->byte_fallback && i < 256; i++) {
        char name[8];
        snprintf(name, sizeof(name), "<0x%02X>", i);
        put_piece(&b, name, 0, BYTE);
    }
    put_specs(&b, m);
    OK(tokenizer_parse(b.data, b.len, "t.model", &t, err));
    buf_release(&b);
    return t;
}

/* No merge crosses the places before spaces, so a long text need not be in memory as one word. */
static void bpe_is_cut_at_spaces(void **state)
{
    (void)state;
    static const char json[] =
        "{\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"" META
        "\",\"prepend_scheme\":\"%s\",\"split\":false},\"model\":{\"type\":\"BPE\",\"unk_token\":"
        "\"<unk>\",\"fuse_unk\":true,\"ignore_merges\":%s,\"vocab\":{\"<unk>\":0,\"" META
        "\":1,\"a\":2,\"b\":3,\"" META "a\":4,\"" META META "\":5,\"ab\":6},\"merges\":[\"" META
        " a\",\"a b\",\"" META " " META "\"]}}";
    static const char *const schemes[] = {"never", "first", "always"};
    struct tokenizer *t;
    char text[1024];
    for (int bytes = 0; bytes < 2; bytes++) {
        const struct model m = {.type = 2, .byte_fallback = bytes, .keep_spaces = true};
        t = spaced_model(&m, NULL);
        same_ids(t, parts, COUNT(parts));
        tokenizer_free(t);
        t = spaced_model(&m, "b" META "a");
        assert_int_equal(t->split, SPLIT_WHOLE);
        encodes(t, "b a", "3 14");
        tokenizer_free(t);
    }
    for (size_t i = 0; i < COUNT(schemes); i++) {
        snprintf(text, sizeof(text), json, schemes[i], "false");
        OK(tokenizer_parse(text, strlen(text), "t.json", &t, err));
        same_ids(t, parts, COUNT(parts));
        tokenizer_free(t);
    }
    snprintf(text, sizeof(text), json, schemes[0], "true"); /* a whole text may be a token */
    OK(tokenizer_parse(text, strlen(text), "t.json", &t, err));
    assert_int_equal(t->split, SPLIT_WHOLE);
    tokenizer_free(t);
}

static void refuses(void **state)
{
    (void)state;
    struct buf b;
    struct tokenizer *t;
    put_head(&b);
    const size_t head = b.len;
    put_specs(&b, &(struct model){.type = 3});
    FAILS(tokenizer_parse(b.data, b.len, "t", &t, err), "of the type 3");
    FAILS(tokenizer_parse(b.data, b.len - 1, "t", &t, err), "cut short");
    FAILS(tokenizer_parse(b.data, 9, "t", &t, err), "cut short");
    b.len = head;
    put_specs(&b, &(struct model){.type = 1, .keep_spaces = true});
    FAILS(tokenizer_parse(b.data, b.len, "t", &t, err), "keeps extra spaces");
    b.len = head;
    put_piece(&b, "x", 0, UNUSED);
    FAILS(tokenizer_parse(b.data, b.len, "t", &t, err), "the piece 3 is of the type 5");
    b.len = head;
    put_piece(&b, "\xff", 0, NORMAL);
    FAILS(tokenizer_parse(b.data, b.len, "t", &t, err), "the piece 3 cannot be read");
    b.len = head;
    put_piece(&b, "x", NAN, NORMAL);
    FAILS(tokenizer_parse(b.data, b.len, "t", &t, err), "the piece 3 cannot be read");
    b.len = head;
    put_bytes(&b, 3,
              "\x12\x03"
              "abc",
              5);
    FAILS(tokenizer_parse(b.data, b.len, "t", &t, err), "precompiled_charsmap of 3 bytes");
    buf_release(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bpe_with_bytes), cmocka_unit_test(bpe_tidies),
        cmocka_unit_test(unigram),        cmocka_unit_test(bpe_is_cut_at_spaces),
        cmocka_unit_test(refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
