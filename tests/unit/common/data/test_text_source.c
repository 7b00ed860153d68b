#include "common/data/text_source.h"

#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <unistd.h>

#include "tests/unit/common/base/util.h"

#include "common/data/feature.h"
#include "common/base/str.h"

/* The bytes as one packed stream. */
static void put_packed(const char *dir, const char *name, const char *filter, const void *data,
                       size_t len)
{
    static char out[1 << 16];
    size_t used = 0;
    struct archive *a = archive_write_new();
    struct archive_entry *e = archive_entry_new();
    archive_write_add_filter_by_name(a, filter);
    archive_write_set_format_raw(a);
    archive_write_open_memory(a, out, sizeof(out), &used);
    archive_entry_set_filetype(e, AE_IFREG);
    archive_write_header(a, e);
    assert_int_equal(archive_write_data(a, data, len), len);
    archive_entry_free(e);
    assert_int_equal(archive_write_free(a), ARCHIVE_OK);
    put(dir, name, out, used);
}

struct want {
    const char *key, *text;
    size_t len;
};

static void expect(const char *path, const char *field, const struct want *want, size_t n)
{
    struct text_source *s;
    struct text_document d;
    OK(text_source_open(&(struct text_source_options){.path = path, .field = field}, &s, err));
    for (size_t i = 0; i < n; i++) {
        struct err err = {0};
        int rc = text_source_next(s, &d, &err);
        if (rc != 1)
            fail_msg("document %zu of %s: %d %s", i, path, rc, err.msg);
        assert_string_equal(d.key, want[i].key);
        assert_int_equal(d.len, want[i].len ? want[i].len : strlen(want[i].text));
        assert_memory_equal(d.text, want[i].text, d.len);
        assert_int_equal(d.n_ids, 0);
        assert_null(d.feature);
    }
    assert_int_equal(text_source_next(s, &d, NULL), 0);
    assert_int_equal(text_source_done(s), text_source_bytes(s));
    text_source_close(s);
}

static void reads_every_kind_of_text(void **state)
{
    (void)state;
    static const char lines[] =
        "{\"text\": \"one\", \"body\": \"1\", \"id\": 18446744073709551615, \"score\": NaN}\n"
        "\n \t\r\n"
        "{\"body\": \"2\", \"text\": \"zwei \\u00e4\\u0000\"}\r\n"
        "{\"text\": \"\", \"body\": \"3\"}";
    char *dir = scratch_new(), *all = in(dir, "all"), *path = in(dir, "all/a.b.jsonl");
    static const struct want text[] = {
        {"a.b/0", "one", 0},
        {"a.b/3", "zwei \xc3\xa4\0", 8},
        {"a.b/4", "", 0},
        {"b/0", "one", 0},
        {"b/3", "zwei \xc3\xa4\0", 8},
        {"b/4", "", 0},
        {"c/0", "one", 0},
        {"c/3", "zwei \xc3\xa4\0", 8},
        {"c/4", "", 0},
        {"d", "plain\ntext\n", 0},
        {"e", "packed", 0},
    };
    static const struct want body[] = {{"a.b/0", "1", 0}, {"a.b/3", "2", 0}, {"a.b/4", "3", 0}};
    put(dir, "all/a.b.jsonl", lines, strlen(lines));
    put_packed(dir, "all/b.jsonl.zst", "zstd", lines, strlen(lines));
    put_packed(dir, "all/c.jsonl.gz", "gzip", lines, strlen(lines));
    put(dir, "all/d.TXT", "plain\ntext\n", 11);
    put_packed(dir, "all/e.txt.zst", "zstd", "packed", 6);
    put(dir, "all/readme.md", "passed over", 11);
    expect(all, NULL, text, COUNT(text));
    expect(path, "body", body, COUNT(body));
    char *pattern = in(dir, "all/[bc].jsonl.*"), *none = in(dir, "all/x*.jsonl");
    expect(pattern, NULL, text + 3, 6);
    struct text_source *missing;
    struct err err = {0};
    assert_int_equal(text_source_open(&(struct text_source_options){.path = none}, &missing, &err),
                     -ENOENT);
    assert_non_null(strstr(err.msg, "no file matches"));
    mem_free(none);
    mem_free(pattern);
    mem_free(path);
    mem_free(all);
    scratch_free(dir);
}

/* By its name each is held out or not, and has its place in the shuffle. */
static void names_tell_files_apart(void **state)
{
    (void)state;
    static const struct want dotted[] = {{"v1.2.a", "1", 0}, {"v1.2.b", "2", 0}, {"v1", "3", 0}};
    static const struct want nested[] = {{"x/p", "4", 0}, {"y/p", "5", 0}, {"y/q/0", "6", 0}};
    char *dir = scratch_new(), *all = in(dir, "all"), *pattern = in(dir, "sub/*/*");
    char name[300], *end = name + sizeof(name) - 5;
    put(dir, "all/v1.2.a.txt", "1", 1);
    put(dir, "all/v1.2.b.txt", "2", 1);
    put(dir, "all/v1.txt", "3", 1);
    put(dir, "sub/x/p.txt", "4", 1);
    put(dir, "sub/y/p.txt", "5", 1);
    put(dir, "sub/y/q.jsonl", "{\"text\":\"6\"}", 12);
    expect(all, NULL, dotted, COUNT(dotted));
    expect(pattern, NULL, nested, COUNT(nested));
    /* Of a long name the end counts. */
    memset(name, 'n', sizeof(name));
    memcpy(end, ".txt", 5);
    struct text_source *s;
    struct text_document d;
    char *one = in(dir, "all/v1.txt");
    OK(text_source_open(&(struct text_source_options){.path = one, .name = name}, &s, err));
    assert_int_equal(text_source_next(s, &d, NULL), 1);
    assert_int_equal(strlen(d.key), 255);
    text_source_close(s);
    mem_free(one);
    mem_free(pattern);
    mem_free(all);
    scratch_free(dir);
}

/* The mark that some editors begin UTF-8 with is none of the text. */
static void a_mark_is_left_out(void **state)
{
    (void)state;
    static const struct want want[] = {{"a", "text", 0}, {"b/0", "one", 0}, {"c", "\xef\xbb", 0}};
    char *dir = scratch_new(), *all = in(dir, "all");
    put(dir, "all/a.txt", "\xef\xbb\xbftext", 7);
    put(dir, "all/b.jsonl", "\xef\xbb\xbf{\"text\": \"one\"}\n", 19);
    put(dir, "all/c.txt", "\xef\xbb", 2);
    expect(all, NULL, want, COUNT(want));
    mem_free(all);
    scratch_free(dir);
}

static void long_lines_cross_blocks(void **state)
{
    (void)state;
    enum { LONG = 200000 };
    char *dir = scratch_new(), *path = in(dir, "x.jsonl"), *text = mem_alloc(LONG + 64);
    int n = snprintf(text, 64, "{\"text\":\"a\"}\n{\"text\":\"");
    memset(text + n, 'z', LONG);
    strcpy(text + n + LONG, "\"}\n");
    put(dir, "x.jsonl", text, strlen(text));
    text[n + LONG] = '\0';
    const struct want want[] = {{"x/0", "a", 0}, {"x/1", text + n, LONG}};
    expect(path, NULL, want, 2);
    mem_free(text);
    mem_free(path);
    scratch_free(dir);
}

/* The ids of the document that was given out last. */
static void check_ids(struct text_source *s, const uint16_t *want, size_t n)
{
    uint32_t *got = mem_alloc_array(n, sizeof(*got));
    OK(text_source_ids(s, 0, n, got, err));
    for (size_t i = 0; i < n; i++)
        assert_int_equal(got[i], want[i]);
    OK(text_source_ids(s, n - 1, 1, got, err));
    assert_int_equal(got[0], want[n - 1]);
    mem_free(got);
}

static void reads_token_files(void **state)
{
    (void)state;
    uint16_t nano[] = {5, 50256, 7, 65535};
    uint16_t llmc[512 + 6] = {0};
    int32_t header[3] = {20240520, 1, 6};
    static const uint16_t ids[] = {50256, 1, 2, 50256, 50256, 3};
    memcpy(llmc, header, sizeof(header));
    memcpy(llmc + 512, ids, sizeof(ids));
    char *dir = scratch_new();
    put(dir, "a.bin", nano, sizeof(nano));
    put(dir, "b.bin", llmc, sizeof(llmc));
    static const struct {
        const char *key;
        size_t at, n;
    } want[] = {{"b/0", 0, 3}, {"b/1", 3, 1}, {"b/2", 4, 2}};
    struct text_source *s;
    struct text_document d;
    OK(text_source_open(&(struct text_source_options){.path = dir}, &s, err));
    assert_int_equal(text_source_next(s, &d, NULL), 1);
    assert_string_equal(d.key, "a/0");
    assert_null(d.text);
    assert_int_equal(d.n_ids, 4);
    check_ids(s, nano, 4);
    for (size_t i = 0; i < COUNT(want); i++) {
        assert_int_equal(text_source_next(s, &d, NULL), 1);
        assert_string_equal(d.key, want[i].key);
        assert_int_equal(d.n_ids, want[i].n);
        check_ids(s, ids + want[i].at, want[i].n);
    }
    assert_int_equal(text_source_next(s, &d, NULL), 0);
    text_source_close(s);
    scratch_free(dir);
}

/* Files that are larger than what is read at once, and that others may write. */
static void token_files_are_read_in_parts(void **state)
{
    (void)state;
    enum { N = 100000, SECOND = 70000 };
    static uint16_t file[512 + N], *ids = file + 512;
    int32_t header[3] = {20240520, 1, N};
    memcpy(file, header, sizeof(header));
    for (size_t i = 0; i < N; i++)
        ids[i] = (uint16_t)(i % 50000);
    ids[0] = ids[SECOND] = 50256;
    char *dir = scratch_new(), *path = in(dir, "x.bin");
    struct text_source *s;
    struct text_document d;
    uint32_t id;
    put(dir, "x.bin", file, sizeof(file));
    OK(text_source_open(&(struct text_source_options){.path = path}, &s, err));
    OK(text_source_next(s, &d, err));
    assert_int_equal(d.n_ids, SECOND);
    check_ids(s, ids, SECOND);
    assert_int_equal(truncate(path, 1024 + 2 * (N - 10)), 0);
    FAILS(text_source_next(s, &d, err), "x.bin ends at byte 201004, 20 bytes too early");
    text_source_close(s);
    OK(text_source_open(&(struct text_source_options){.path = path, .name = "y.bin"}, &s, err));
    FAILS(text_source_next(s, &d, err), "number of tokens is not the one in its header");
    text_source_close(s);
    put(dir, "x.bin", ids, 2 * N);
    OK(text_source_open(&(struct text_source_options){.path = path}, &s, err));
    OK(text_source_next(s, &d, err));
    assert_int_equal(d.n_ids, N);
    assert_int_equal(truncate(path, 2000), 0);
    FAILS(text_source_ids(s, 1000, 1, &id, err), "x.bin ends at byte 2000");
    text_source_close(s);
    mem_free(path);
    scratch_free(dir);
}

static void brings_a_column(void **state)
{
    (void)state;
    static const char lines[] = "{\"text\":\"a\",\"v\":[1,2.5]}\n{\"text\":\"b\",\"v\":[3]}\n";
    char *dir = scratch_new(), *path = in(dir, "x.jsonl");
    struct text_source *s;
    struct text_document d;
    put(dir, "x.jsonl", lines, strlen(lines));
    OK(text_source_open(&(struct text_source_options){.path = path, .column = "v"}, &s, err));
    assert_int_equal(text_source_next(s, &d, NULL), 1);
    assert_int_equal(d.dim, 2);
    assert_true(d.feature[0] == 1 && d.feature[1] == 2.5f);
    assert_int_equal(text_source_next(s, &d, NULL), 1);
    assert_int_equal(d.dim, 1);
    text_source_close(s);
    mem_free(path);
    scratch_free(dir);
}

static void says_what_is_wrong(void **state)
{
    (void)state;
    static const struct {
        const char *name, *data, *column, *says;
    } cases[] = {
        {"x.jsonl", "{\"text\":\"a\"}\n{\"text\":\n", NULL, "x.jsonl, line 2"},
        {"x.jsonl", "{\"text\":\"a\"}\n[]\n", NULL,
         "line 2: expected an object with a text \"text\""},
        {"x.jsonl", "{\"text\":7}\n", NULL, "data.text_field"},
        {"x.jsonl", "{\"text\":\"a\",\"text\":\"b\"}\n", NULL, "duplicate object key"},
        {"x.jsonl", "{\"text\":\"a\"}\n", "v", "line 1: the column 'v' is missing"},
        {"x.jsonl", "{\"text\":\"a\",\"v\":[]}\n", "v", "is not an array of numbers"},
        {"x.jsonl", "{\"text\":\"a\",\"v\":[1,\"b\"]}\n", "v", "is not an array of numbers"},
        {"x.jsonl", "{\"text\":\"a\",\"v\":[1e300]}\n", "v", "not finite"},
        {"x.jsonl", "{\"text\":\"a\",\"v\":[NaN]}\n", "v", "not finite"},
        {"x.txt", "a", "v", "only .jsonl can have a column"},
        {"x.bin", "abc", NULL, "odd number of bytes"},
        {"x.bin", "\x88\xd8\x34\x01\1\0\0\0\0\0\0\0", NULL, "a file of llm.c"},
        {"x.bin", "\xa1\xd9\x34\x01\1\0\0\0\0\0\0\0", NULL, "llm.c's for Llama 3"},
        {"x.md", "a", NULL, "is not text in a known form"},
        {"x.jsonl.zst", "\x28\xb5\x2f\xfd garbage", NULL, "x.jsonl.zst is broken or cut short"},
        {"x.txt", "\xff\xfeh\1", NULL, "x.txt is UTF-16 by its first bytes, expected UTF-8"},
        {"x.jsonl", "\xfe\xff", NULL, "iconv -f UTF-16 -t UTF-8"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        char *dir = scratch_new(), *path = in(dir, cases[i].name);
        size_t len = strstr(cases[i].data, "\x34\x01") ? 12 : strlen(cases[i].data); /* llm.c's */
        struct text_source *s = NULL;
        struct text_document d;
        struct err got = {0};
        put(dir, cases[i].name, cases[i].data, len);
        int rc = text_source_open(
            &(struct text_source_options){.path = path, .column = cases[i].column}, &s, &got);
        while (rc >= 0 && (rc = text_source_next(s, &d, &got)) > 0)
            continue;
        if (rc >= 0 || rc != got.code || !strstr(got.msg, cases[i].says))
            fail_msg("case %zu: %d '%s'", i, rc, got.msg);
        text_source_close(s);
        mem_free(path);
        scratch_free(dir);
    }
    char *dir = scratch_new(), *empty = in(dir, "empty");
    struct text_source *s;
    OK(file_mkdirs(empty, 0755, err));
    FAILS(text_source_open(&(struct text_source_options){.path = empty}, &s, err),
          "expected .jsonl or .txt (also .zst, .gz) or .bin files");
    put(dir, "mix/a.txt", "a", 1);
    put(dir, "mix/b.bin", "ab", 2);
    char *mix = in(dir, "mix");
    FAILS(text_source_open(&(struct text_source_options){.path = mix}, &s, err),
          "mixes token files");
    FAILS(text_source_open(&(struct text_source_options){.path = "/nonexistent"}, &s, err),
          "there is no text at /nonexistent");
    mem_free(mix);
    mem_free(empty);
    scratch_free(dir);
}

/* Each of which takes 76 times its bytes when parsed. */
static void refuses_lines_of_many_values(void **state)
{
    (void)state;
    static const char fits[] = "{\"text\":\"a\",\"v\":[{}]}\n",
                      head[] = "{\"text\":\"b\",\"v\":[{}";
    char *dir = scratch_new(), *path = in(dir, "x.jsonl");
    struct text_source *s;
    struct text_document d;
    struct buf b;
    buf_init(&b, 1u << 20);
    OK(buf_append_str(&b, fits));
    OK(buf_append_str(&b, head));
    for (size_t i = 0; i < TEXT_VALUES_MAX; i++)
        OK(buf_append_str(&b, ",{}"));
    OK(buf_append_str(&b, "]}\n"));
    put(dir, "x.jsonl", b.data, b.len);
    OK(text_source_open(&(struct text_source_options){.path = path}, &s, err));
    assert_int_equal(text_source_next(s, &d, NULL), 1);
    FAILS(text_source_next(s, &d, err), "x.jsonl, line 2: more than 200000 values");
    text_source_close(s);
    buf_release(&b);
    mem_free(path);
    scratch_free(dir);
}

/* A .npy of this header and data. */
static size_t npy(uint8_t *out, const char *header, const void *data, size_t len)
{
    size_t n = strlen(header);
    memcpy(out, "\x93NUMPY\1\0", 8);
    out[8] = (uint8_t)n;
    out[9] = (uint8_t)(n >> 8);
    memcpy(out + 10, header, n);
    memcpy(out + 10 + n, data, len);
    return 10 + n + len;
}

static void reads_npy(void **state)
{
    (void)state;
    static const float f4[] = {1, -2.5f, 3e5f};
    static const double f8[] = {1, -2.5, 3e5};
    static const uint16_t f2[] = {0x3c00, 0xc100, 0x0001};
    static const struct {
        const char *header, *why;
        const void *data;
        size_t len;
        float last;
    } cases[] = {
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }\n", NULL, f4, 12, 3e5f},
        {"{'descr': '<f8', 'fortran_order': False, 'shape': (1, 3), }\n", NULL, f8, 24, 3e5f},
        {"{'descr': '<f2', 'fortran_order': False, 'shape': (3, 1), }\n", NULL, f2, 6, 0x1p-24f},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }\n", "another length", f4, 8, 0},
        {"{'descr': '>f4', 'fortran_order': False, 'shape': (3,), }\n", "another type", f4, 12, 0},
        {"{'descr': '<i4', 'fortran_order': False, 'shape': (3,), }\n", "another type", f4, 12, 0},
        {"{'descr': '<f4', 'shape': (2, 3), }\n", "no single row", f4, 12, 0},
        {"{'descr': '<f4', 'shape': (), }\n", "no single row", f4, 4, 0},
        {"{'descr': '<f4', 'shape': (70000,), }\n", "more than 65536", f4, 12, 0},
        {"{'descr': '<f2', 'shape': (1,), }\n", "not finite", "\x00\x7c", 2, 0},
    };
    struct feature f = {0};
    uint8_t file[512];
    for (size_t i = 0; i < COUNT(cases); i++) {
        size_t len = npy(file, cases[i].header, cases[i].data, cases[i].len);
        const char *why = feature_from_npy(file, len, &f);
        if (cases[i].why) {
            assert_non_null(why);
            assert_non_null(strstr(why, cases[i].why));
            continue;
        }
        assert_null(why);
        assert_int_equal(f.n, 3);
        assert_true(f.v[0] == 1 && f.v[1] == -2.5f && f.v[2] == cases[i].last);
    }
    assert_non_null(feature_from_npy("\x93NUMPY\1\0\xff\xff....", 14, &f));
    assert_non_null(feature_from_npy("nothing of the kind", 19, &f));
    feature_release(&f);
}

/* It would be learned twice. */
static void a_text_in_two_packings(void **state)
{
    (void)state;
    static const char *const names[][2] = {
        {"a.jsonl", "a.jsonl.gz"}, {"a.txt", "a.txt.zst"}, {"a.txt.gz", "a.txt.zst"}};
    for (size_t i = 0; i < COUNT(names); i++) {
        char *dir = scratch_new();
        struct text_source *s;
        put(dir, names[i][0], "x", 1);
        put(dir, names[i][1], "x", 1);
        put(dir, "a.b.txt", "x", 1);
        FAILS(text_source_open(&(struct text_source_options){.path = dir}, &s, err),
              "are one text in two packings: remove one");
        scratch_free(dir);
    }
}

/* Ids of numpy's uint32, or int64, would be trained on as noise. */
static void wider_ids(void **state)
{
    (void)state;
    enum { N = 50 };
    uint32_t wide[N];
    uint16_t ids[2 * N];
    char *dir = scratch_new(), *path = in(dir, "x.bin");
    for (uint32_t i = 0; i < N; i++)
        wide[i] = (i % 3) << 16 | (i * 2654435761U >> 16);
    for (int low = 0; low < 2; low++) { /* of 16 bits, all below 16 */
        struct text_source *s;
        struct text_document d;
        for (uint16_t i = 0; i < 2 * N; i++)
            ids[i] = i % 16;
        put(dir, "x.bin", low ? (const void *)ids : wide, sizeof(ids));
        OK(text_source_open(&(struct text_source_options){.path = path}, &s, err));
        if (low)
            assert_int_equal(text_source_next(s, &d, NULL), 1);
        else
            FAILS(text_source_next(s, &d, err), "x.bin seems to hold token ids of 32 bits");
        text_source_close(s);
    }
    mem_free(path);
    scratch_free(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_text_in_two_packings),
        cmocka_unit_test(wider_ids),
        cmocka_unit_test(reads_every_kind_of_text),
        cmocka_unit_test(names_tell_files_apart),
        cmocka_unit_test(a_mark_is_left_out),
        cmocka_unit_test(long_lines_cross_blocks),
        cmocka_unit_test(reads_token_files),
        cmocka_unit_test(brings_a_column),
        cmocka_unit_test(says_what_is_wrong),
        cmocka_unit_test(token_files_are_read_in_parts),
        cmocka_unit_test(refuses_lines_of_many_values),
        cmocka_unit_test(reads_npy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
