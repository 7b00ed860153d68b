#include "common/data/shard.h"

#include <errno.h>

#include "tests/unit/common/base/util.h"

#include "common/base/buf.h"
#include "common/base/str.h"
#include "common/data/tar.h"

static struct shard_sample image(const char *key, uint32_t cls)
{
    struct shard_sample s = {.ext = "png", .cls = cls, .data = (const uint8_t *)"pixels", .len = 6};
    str_copy(s.key, sizeof(s.key), key);
    return s;
}

static struct shard_sample piece(const char *key, const uint32_t *ids, size_t n, struct buf *room)
{
    struct shard_sample s = {.ext = "tok", .tokens = (uint32_t)n};
    str_copy(s.key, sizeof(s.key), key);
    buf_clear(room);
    OK(shard_encode_tokens(ids, n, room));
    s.data = room->data;
    s.len = room->len;
    return s;
}

static void text_of_every_width(void **state)
{
    (void)state;
    static const uint32_t narrow[] = {0, 7, 255}, middle[] = {0, 256, 65535}, wide[] = {1, 65536};
    static const uint32_t *const all[] = {narrow, middle, wide};
    static const size_t counts[] = {3, 3, 2}, bytes[] = {4, 7, 9};
    char *dir = scratch_new(), *path = in(dir, "t.tar");
    struct shard_writer *w;
    struct shard_info info;
    struct buf room;
    struct shard s;
    buf_init(&room, 4096);
    w = shard_writer_new(path);
    for (int i = 0; i < 3; i++) {
        struct shard_sample p = piece("dir/doc.7#0", all[i], counts[i], &room);
        assert_int_equal(p.len, bytes[i]);
        OK(shard_writer_add(w, &p, 0, err));
    }
    OK(shard_writer_finish(w, &info, err));
    shard_writer_free(w);
    assert_int_equal(info.samples, 3);
    assert_int_equal(info.tokens, 8);

    uint8_t sha[HASH_BYTES];
    uint64_t size;
    OK(hash_file(path, sha, &size, err));
    assert_memory_equal(sha, info.sha256, HASH_BYTES);
    assert_int_equal(size, info.bytes);

    OK(shard_open(path, &s, err));
    assert_non_null(s.unpacked);
    assert_int_equal(s.kind, SHARD_TEXT);
    assert_int_equal(s.n, 3);
    assert_int_equal(s.tokens, 8);
    assert_int_equal(s.dim, 0);
    assert_string_equal(s.samples[2].key, "000002-dir_doc_7#0");
    for (int i = 0; i < 3; i++) {
        int32_t ids[4];
        assert_int_equal(s.samples[i].tokens, counts[i]);
        shard_tokens(&s.samples[i], ids);
        for (size_t j = 0; j < counts[i]; j++)
            assert_int_equal(ids[j], all[i][j]);
    }
    shard_close(&s);
    buf_release(&room);
    mem_free(path);
    scratch_free(dir);
}

/* What a split does: samples of one shard into another, features and all. */
static void copies_samples(void **state)
{
    (void)state;
    char *dir = scratch_new(), *from = in(dir, "a.tar"), *to = in(dir, "b.tar");
    struct shard_writer *w;
    struct shard_info first, second;
    struct shard a, b;
    float feature[3] = {1.5f, -2.25f, 1e-30f}, back[3];
    w = shard_writer_new(from);
    for (uint32_t i = 0; i < 3; i++) {
        struct shard_sample s = image("cat/1", i);
        feature[0] = (float)i;
        s.feature = (const uint8_t *)feature;
        OK(shard_writer_add(w, &s, 3, err));
    }
    OK(shard_writer_finish(w, &first, err));
    shard_writer_free(w);
    OK(shard_open(from, &a, err));
    assert_int_equal(a.dim, 3);

    w = shard_writer_new(to);
    OK(shard_writer_add(w, &a.samples[2], a.dim, err));
    OK(shard_writer_add(w, &a.samples[1], a.dim, err));
    OK(shard_writer_finish(w, &second, err));
    shard_writer_free(w);
    OK(shard_open(to, &b, err));
    assert_int_equal(b.n, 2);
    assert_int_equal(b.kind, SHARD_IMAGES);
    assert_int_equal(b.tokens, 0);
    assert_string_equal(b.samples[0].key, "000000-cat_1");
    assert_int_equal(b.samples[0].cls, 2);
    assert_int_equal(b.samples[0].len, 6);
    assert_memory_equal(b.samples[0].data, "pixels", 6);
    shard_feature(&b, &b.samples[1], back);
    feature[0] = 1;
    assert_memory_equal(back, feature, sizeof(feature));
    shard_close(&a);
    shard_close(&b);
    mem_free(from);
    mem_free(to);
    scratch_free(dir);
}

static void refuses_mixtures(void **state)
{
    (void)state;
    static const uint32_t ids[] = {1, 2};
    char *dir = scratch_new(), *path = in(dir, "t.tar");
    float feature[2] = {0};
    struct shard_writer *w;
    struct shard_info info;
    struct buf room;
    buf_init(&room, 64);
    w = shard_writer_new(path);
    FAILS(shard_writer_finish(w, &info, err), "would be empty");
    struct shard_sample s = image("a", 0), t = piece("b", ids, 2, &room), odd = image("c", 0);
    OK(shard_writer_add(w, &s, 0, err));
    FAILS(shard_writer_add(w, &t, 0, err), "samples of one kind");
    s.feature = (const uint8_t *)feature;
    FAILS(shard_writer_add(w, &s, 2, err), "features of one length");
    str_copy(odd.ext, sizeof(odd.ext), "gif");
    FAILS(shard_writer_add(w, &odd, 0, err), "holds no .gif");
    s.captions = "two\n\nlines";
    s.captions_len = strlen(s.captions);
    FAILS(shard_writer_add(w, &s, 0, err), "captions are lines of UTF-8");
    shard_writer_free(w);
    assert_false(file_exists(path));
    buf_release(&room);
    mem_free(path);
    scratch_free(dir);
}

struct member {
    const char *name, *data;
    size_t len;
};

static void refuses_what_is_no_shard(void **state)
{
    (void)state;
    static const struct {
        struct member members[4];
        const char *says;
    } cases[] = {
        {{{"a.tok", "\1", 1}}, "ids of 1, 2 or 4 bytes"},
        {{{"a.tok", "\3abc", 4}}, "ids of 1, 2 or 4 bytes"},
        {{{"a.tok", "\2abc", 4}}, "ids of 1, 2 or 4 bytes"},
        {{{"a.tok", "", 0}}, "ids of 1, 2 or 4 bytes"},
        {{{"a.tok", "\4\0\0\0\x80", 5}}, "above 2^31"},
        {{{"a.png", "x", 1}}, "followed by KEY.cls"},
        {{{"a.png", "x", 1}, {"b.cls", "1", 1}}, "followed by KEY.cls"},
        {{{"a.png", "x", 1}, {"a.cls", "one", 3}}, "class is not a number"},
        {{{"a.tok", "\1x", 2}, {"b.png", "x", 1}, {"b.cls", "1", 1}}, "all images"},
        {{{"a.tok", "\1x", 2}, {"a.cls", "1", 1}}, "all images"},
        {{{"a.tok", "\1x", 2}, {"a.f32", "1234", 4}, {"b.tok", "\1x", 2}}, "different lengths"},
        {{{"a.tok", "\1x", 2}, {"a.f32", "123", 3}}, "not a row of floats"},
        {{{"a.gif", "x", 1}}, "all images"},
        {{{"a", "x", 1}}, "expected KEY.EXT as the name"},
        {{{"a.b.tok", "\1x", 2}}, "expected KEY.EXT as the name"},
    };
    char *dir = scratch_new(), *path = in(dir, "t.tar");
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct tar_writer *w;
        struct shard s;
        OK(tar_writer_open(path, &w, err));
        for (const struct member *m = cases[i].members; m->name; m++)
            OK(tar_writer_add(w, m->name, m->data, m->len, err));
        OK(tar_writer_commit(w, NULL, NULL, err));
        tar_writer_free(w);
        FAILS(shard_open(path, &s, err), cases[i].says);
    }
    mem_free(path);
    scratch_free(dir);
}

#define PIECES 512
#define PIECE_TOKENS 200

/* Words that come again and again, as in a text. */
static void write_text(const char *path, struct shard_info *ret)
{
    struct shard_writer *w = shard_writer_new(path);
    struct buf room;
    uint32_t ids[PIECE_TOKENS];
    buf_init(&room, 4096);
    for (uint32_t i = 0; i < PIECES; i++) {
        float feature[2] = {(float)i, -1};
        for (uint32_t j = 0; j < PIECE_TOKENS; j++)
            ids[j] = 'a' + (i * i + j / 8) * (j % 8 + 3) % 26;
        struct shard_sample p = piece("doc#0", ids, PIECE_TOKENS, &room);
        p.feature = (const uint8_t *)feature;
        OK(shard_writer_add(w, &p, 2, err));
    }
    OK(shard_writer_finish(w, ret, err));
    shard_writer_free(w);
    buf_release(&room);
}

/* What travels is a fraction of the tokens, not twice as much. */
static void texts_are_small(void **state)
{
    (void)state;
    char *dir = scratch_new(), *path = in(dir, "a"), *again = in(dir, "b");
    struct shard_info info, second;
    struct shard s;
    write_text(path, &info);
    write_text(again, &second);
    assert_memory_equal(info.sha256, second.sha256, HASH_BYTES);
    assert_in_range(info.bytes, 1, PIECES * PIECE_TOKENS / 2);
    OK(shard_open(path, &s, err));
    assert_int_equal(s.n, PIECES);
    assert_int_equal(s.dim, 2);
    for (uint32_t i = 0; i < PIECES; i++) {
        float feature[2];
        shard_feature(&s, &s.samples[i], feature);
        assert_true(feature[0] == (float)i && feature[1] == -1);
        for (uint32_t j = 0; j < PIECE_TOKENS; j++)
            assert_int_equal(s.samples[i].data[1 + j], 'a' + (i * i + j / 8) * (j % 8 + 3) % 26);
    }
    shard_close(&s);
    mem_free(path);
    mem_free(again);
    scratch_free(dir);
}

/* Draws are by name: names that differ in a dataset differ in shards, and stay as they are when a
 * sample goes from shard to shard. */
static void names_stay_apart(void **state)
{
    (void)state;
    char long_a[200], long_b[200], fits[81], key[SHARD_KEY_MAX], again[SHARD_KEY_MAX];
    memset(long_a, 'x', sizeof(long_a));
    long_a[199] = '\0';
    memcpy(long_b, long_a, sizeof(long_b));
    long_b[0] = 'y';
    memset(fits, 'z', sizeof(fits));
    fits[80] = '\0';
    const char *const names[] = {
        "cat/1.jpg",
        "cat/\xe7\x8c\xab.jpg", /* a cat, */
        "cat/\xe7\x8a\xac.jpg", /* and a dog */
        "cat/\xc3\xa4.jpg",
        "cat/\xff\xff.jpg",
        "000001-a.png",
        "000002-a.png",
        long_a,
        long_b,
        fits,
        "2024-" /* no number of a shard */
    };
    char made[COUNT(names)][SHARD_KEY_MAX], *dir = scratch_new();
    char *from = in(dir, "a"), *to = in(dir, "b");
    struct shard_writer *w = shard_writer_new(from);
    struct shard_info info;
    struct shard a, b;
    for (size_t i = 0; i < COUNT(names); i++) {
        shard_key(names[i], strlen(names[i]), made[i]);
        for (size_t k = 0; k < i; k++)
            assert_string_not_equal(made[k], made[i]);
        const struct shard_sample s = image(made[i], 0);
        OK(shard_writer_add(w, &s, 0, err));
        str_copy(key, sizeof(key), made[i] + strlen("000000-"));
        shard_key(key, strlen(key), again);
        assert_string_equal(again, made[i]);
    }
    assert_string_equal(made[0], "000000-cat_1_jpg");
    assert_int_equal(strncmp(made[1], "000000-cat_____jpg-", 19), 0);
    assert_int_equal(strlen(made[1]), 19 + 8);
    assert_string_equal(made[5], "000000-000001-a_png");
    assert_string_equal(made[9] + 7, fits);
    assert_int_equal(strlen(made[7]), 7 + 80);
    OK(shard_writer_finish(w, &info, err));
    shard_writer_free(w);
    OK(shard_open(from, &a, err));
    w = shard_writer_new(to);
    for (size_t i = COUNT(names); i-- > 0;)
        OK(shard_writer_add(w, &a.samples[i], 0, err));
    OK(shard_writer_finish(w, &info, err));
    shard_writer_free(w);
    OK(shard_open(to, &b, err));
    for (size_t i = 0; i < COUNT(names); i++) {
        assert_string_equal(shard_name(&a.samples[i]), made[i] + 7);
        assert_string_equal(shard_name(&b.samples[COUNT(names) - 1 - i]), made[i] + 7);
    }
    shard_close(&a);
    shard_close(&b);
    mem_free(from);
    mem_free(to);
    scratch_free(dir);
}

/* Some samples have captions, some none; they are copied, and a packed shard has them, too. */
static void carries_captions(void **state)
{
    (void)state;
    static const char *const captions[] = {"a red boot\nune botte \xc3\xa0 lacets", NULL, "b"};
    char *dir = scratch_new(), *from = in(dir, "a"), *to = in(dir, "b");
    struct shard_info info;
    struct shard a, b;
    float feature[2] = {1, 2};
    struct shard_writer *w = shard_writer_new(from);
    for (uint32_t i = 0; i < COUNT(captions); i++) {
        struct shard_sample s = image("cat/1", i);
        s.feature = (const uint8_t *)feature;
        s.captions = captions[i];
        s.captions_len = captions[i] ? strlen(captions[i]) : 0;
        OK(shard_writer_add(w, &s, 2, err));
    }
    OK(shard_writer_finish(w, &info, err));
    shard_writer_free(w);
    OK(shard_open(from, &a, err));
    w = shard_writer_new(to);
    for (uint32_t i = 0; i < COUNT(captions); i++)
        OK(shard_writer_add(w, &a.samples[i], a.dim, err));
    OK(shard_writer_finish(w, &info, err));
    shard_writer_free(w);
    OK(shard_open(to, &b, err));
    for (uint32_t i = 0; i < COUNT(captions); i++) {
        assert_string_equal(shard_name(&b.samples[i]), "cat_1");
        assert_int_equal(!captions[i], !b.samples[i].captions);
        assert_int_equal(b.samples[i].captions_len, captions[i] ? strlen(captions[i]) : 0);
        if (captions[i])
            assert_memory_equal(b.samples[i].captions, captions[i], b.samples[i].captions_len);
    }
    shard_close(&a);
    shard_close(&b);
    mem_free(from);
    mem_free(to);
    scratch_free(dir);
}

/* A shard of one image with this member beside it, packed by zstd. */
static void captions_of_others_are_read(void **state)
{
    (void)state;
    static const char *const bad[] = {"\xff", "", "two\n\nlines", "end\n", "tab\t"};
    char *dir = scratch_new(), *path = in(dir, "a");
    struct tar_writer *w;
    struct shard s;
    for (size_t i = 0; i <= COUNT(bad); i++) {
        const char *text = i < COUNT(bad) ? bad[i] : "good";
        OK(tar_writer_open_zstd(path, &w, err));
        OK(tar_writer_add(w, "000000-a.png", "p", 1, err));
        OK(tar_writer_add(w, "000000-a.cls", "0", 1, err));
        OK(tar_writer_add(w, "000000-a.txt", text, strlen(text), err));
        OK(tar_writer_commit(w, NULL, NULL, err));
        tar_writer_free(w);
        if (i < COUNT(bad))
            FAILS(shard_open(path, &s, err), "captions are not lines of UTF-8");
    }
    OK(shard_open(path, &s, err));
    assert_int_equal(s.samples[0].captions_len, 4);
    assert_memory_equal(s.samples[0].captions, "good", 4);
    shard_close(&s);
    mem_free(path);
    scratch_free(dir);
}

/* Any part of it, more than it, and other bytes. */
static void a_broken_text_is_refused(void **state)
{
    (void)state;
    char *dir = scratch_new(), *path = in(dir, "a");
    struct shard_info info;
    struct buf all;
    struct shard s;
    write_text(path, &info);
    OK(file_read(path, 1 << 20, &all, err));
    for (size_t len = 4; len < all.len; len += 97)
        FAILS(shard_parse(all.data, len, "half", &s, err), "cut short");
    OK(buf_append(&all, "more", 4));
    FAILS(shard_parse(all.data, all.len, "more", &s, err), "shard more, byte ");
    memset(all.data + 20, 0x55, 40);
    FAILS(shard_parse(all.data, all.len - 4, "changed", &s, err), "shard changed, byte ");
    buf_release(&all);
    mem_free(path);
    scratch_free(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_of_every_width),
        cmocka_unit_test(copies_samples),
        cmocka_unit_test(refuses_mixtures),
        cmocka_unit_test(refuses_what_is_no_shard),
        cmocka_unit_test(texts_are_small),
        cmocka_unit_test(a_broken_text_is_refused),
        cmocka_unit_test(names_stay_apart),
        cmocka_unit_test(carries_captions),
        cmocka_unit_test(captions_of_others_are_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
