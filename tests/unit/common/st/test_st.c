#include "common/st/st.h"

#include <errno.h>

#include "tests/unit/common/base/util.h"

/* A header with its length word; the payload is only counted. */
static int parse(const char *json, uint64_t payload, struct st *ret, struct err *err)
{
    size_t n = strlen(json);
    uint8_t *bytes = mem_alloc(8 + n);
    for (int i = 0; i < 8; i++)
        bytes[i] = (uint8_t)((uint64_t)n >> (8 * i));
    memcpy(bytes + 8, json, n);
    int rc = st_parse(bytes, 8 + n, 8 + n + payload, "x.st", ret, err);
    mem_free(bytes);
    return rc;
}

#define T(name, dtype, shape, from, to)                                                            \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" #from "," #to   \
    "]}"

static void parses_good_headers(void **state)
{
    struct st st = {0};
    OK(parse("{\"__metadata__\":{\"k\":\"v\"}," T("b", "F32", "[2,3]", 4, 28) "," T(
                 "a", "BF16", "[2]", 0, 4) "," T("s", "I64", "[]", 28, 36) "," T("z", "U8", "[0,5]",
                                                                                 36, 36) "}   ",
             36, &st, err));
    assert_int_equal(st.n_tensors, 4);
    assert_string_equal(st.tensors[0].name, "a");
    const struct st_tensor *b = st_find(&st, "b");
    assert_int_equal(b->count, 6);
    assert_int_equal(b->bytes, 24);
    assert_int_equal(b->offset, st.payload + 4);
    assert_int_equal(st_find(&st, "s")->rank, 0);
    assert_int_equal(st_find(&st, "s")->count, 1);
    assert_string_equal(st_meta_get(&st, "k"), "v");
    assert_null(st_meta_get(&st, "none"));
    assert_null(st_find(&st, "none"));
    const struct st_tensor *t = NULL;
    uint64_t shape[] = {2, 3}, other[] = {3, 2};
    OK(st_expect(&st, "b", ST_F32, 2, shape, &t, err));
    assert_ptr_equal(t, b);
    FAILS(st_expect(&st, "b", ST_F32, 2, other, &t, err), "is F32 (2, 3), expected F32 (3, 2)");
    FAILS(st_expect(&st, "q", ST_F32, 2, other, &t, err), "'q' is missing");
    st_release(&st);
    st_release(&st);
    OK(parse("{}", 0, &st, err));
    assert_int_equal(st.n_tensors, 0);
    st_release(&st);
}

static void refuses_bad_headers(void **state)
{
    static const struct {
        const char *json;
        uint64_t payload;
        const char *says;
    } cases[] = {
        {"[]", 0, "not a JSON map"},
        {"", 0, "not a JSON map"},
        {"{", 0, "header byte"},
        {"{\"a\":1}", 0, "must have exactly"},
        {"{" T("a", "F32", "[1]", 0, 4) "}", 3, "cut short"},
        {"{" T("a", "F32", "[1]", 0, 4) "}", 5, "1 bytes after its last tensor"},
        {"{" T("a", "F32", "[1]", 1, 5) "}", 5, "leaves a gap"},
        {"{" T("a", "F32", "[2]", 0, 8) "," T("b", "F32", "[1]", 4, 8) "}", 8, "overlaps"},
        {"{" T("a", "F32", "[1]", 0, 4) "," T("a", "F32", "[1]", 4, 8) "}", 8, "duplicate"},
        {"{" T("a", "F32", "[2]", 0, 4) "}", 4, "need 8 bytes but data_offsets give 4"},
        {"{" T("a", "F8", "[2]", 0, 2) "}", 2, "unknown dtype 'F8'"},
        {"{" T("a", "F32", "[-1]", 0, 4) "}", 4, "not a whole number"},
        {"{" T("a", "F32", "[1.5]", 0, 4) "}", 4, "not a whole number"},
        {"{" T("a", "F32", "[1,1,1,1,1,1,1,1,1]", 0, 4) "}", 4, "at most 8 dimensions"},
        {"{" T("a", "F32", "[4294967296,4294967296,4]", 0, 4) "}", 4, "overflows"},
        {"{" T("a", "F32", "[9223372036854775807]", 0, 4) "}", 4, "overflows"},
        {"{" T("a", "F32", "[1]", 4, 0) "}", 4, "begin <= end"},
        {"{" T("", "F32", "[1]", 0, 4) "}", 4, "name must have"},
        {"{\"__metadata__\":{\"k\":1}}", 0, "is not a string"},
        {"{\"__metadata__\":[]}", 0, "map of at most"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct st st = {0};
        FAILS(parse(cases[i].json, cases[i].payload, &st, err), cases[i].says);
        assert_null(st.tensors);
    }
    struct st st;
    uint8_t huge[16] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff};
    FAILS(st_parse(huge, 16, 16, "x", &st, err), "its header would have 18446744073709551615");
    FAILS(st_parse(huge, 4, 4, "x", &st, err), "only 4 bytes");
    FAILS(st_parse("version https://git-lfs", 23, 130, "x", &st, err),
          "x is a placeholder of Git LFS");
    uint8_t cut[16] = {100};
    FAILS(st_parse(cut, 16, 16, "x", &st, err), "cut short");
    FAILS(st_parse(cut, 16, 200, "x", &st, err), "do not hold its header");
}

/* 16 MiB of empty maps would be 1.2 GiB once they are read. */
static void refuses_what_would_grow(void **state)
{
    const char *const repeated[] = {"{},", "[],", "0,", "\"\","};
    struct st st = {0};
    for (size_t i = 0; i < COUNT(repeated); i++) {
        struct buf b;
        buf_init(&b, ST_HEADER_MAX);
        assert_int_equal(buf_append_str(&b, "{\"a\":["), 0);
        for (size_t k = 0; k < 17u * ST_TENSORS_MAX; k++)
            assert_int_equal(buf_append_str(&b, repeated[i]), 0);
        assert_int_equal(buf_append_str(&b, "0]}"), 0);
        FAILS(parse(buf_str(&b), 0, &st, err), "more than 65536 tensors do");
        buf_release(&b);
    }
    OK(parse("{\"__metadata__\":{\"a\\\"{[[,,\":\"\\\\\",\"b\":\"]}\"}}", 0, &st, err));
    assert_int_equal(st.n_meta, 2);
    st_release(&st);
}

static struct st_writer *declare(void)
{
    struct st_writer *w = st_writer_new();
    uint64_t shape[] = {2, 2}, odd[] = {3};
    st_writer_meta(w, "skerry.kind", "test \"quoted\"");
    OK(st_writer_add(w, "x.weight", ST_F32, 2, shape, err));
    OK(st_writer_add(w, "q", ST_U8, 1, odd, err));
    return w;
}

static const float values[4] = {1, -2, 3.5f, 0};

static void writes_what_it_reads(void **state)
{
    char *dir = scratch_new(), *path = in(dir, "m.safetensors");
    uint8_t sha[2][HASH_BYTES], whole[HASH_BYTES];
    uint64_t bytes = 0;
    for (int i = 0; i < 3; i++) { /* the last one unhashed */
        struct st_writer *w = declare();
        if (i == 2)
            st_writer_local(w);
        OK(st_writer_open(w, path, err));
        /* In odd pieces, across tensors. */
        uint8_t payload[19] = {[16] = 7, 8, 9};
        memcpy(payload, values, 16);
        for (size_t at = 0; at < 19; at += 5)
            OK(st_writer_write(w, payload + at, at + 5 < 19 ? 5 : 19 - at, err));
        FAILS(st_writer_write(w, payload, 1, err), "more payload");
        OK(st_writer_commit(w, i < 2 ? sha[i] : NULL, &bytes, err));
        st_writer_free(w);
    }
    assert_memory_equal(sha[0], sha[1], HASH_BYTES);
    uint64_t size;
    OK(hash_file(path, whole, &size, err));
    assert_memory_equal(whole, sha[0], HASH_BYTES);
    assert_int_equal(size, bytes);
    struct st st;
    OK(st_open(path, &st, err));
    assert_int_equal(st.payload % 8, 0);
    assert_string_equal(st_meta_get(&st, "skerry.kind"), "test \"quoted\"");
    const struct st_tensor *t = st_find(&st, "x.weight");
    struct file_map map;
    OK(file_map_open(path, &map, err));
    assert_memory_equal(map.data + t->offset, values, 16);
    assert_int_equal(map.data[st_find(&st, "q")->offset + 2], 9);
    file_map_close(&map);
    st_release(&st);
    FAILS(st_open("/nonexistent/m", &st, err), "/nonexistent/m");
    mem_free(path);
    scratch_free(dir);
}

/* Every prefix of a good file is refused. */
static void refuses_every_cut(void **state)
{
    char *dir = scratch_new(), *path = in(dir, "m"), *cut = in(dir, "cut");
    struct st_writer *w = declare();
    uint8_t payload[19] = {0};
    OK(st_writer_open(w, path, err));
    OK(st_writer_write(w, payload, 19, err));
    OK(st_writer_commit(w, NULL, NULL, err));
    st_writer_free(w);
    struct buf b;
    OK(file_read(path, 4096, &b, err));
    for (size_t n = 0; n < b.len; n++) {
        struct st st;
        struct err e = {0};
        assert_int_equal(st_parse(b.data, n, n, "cut", &st, &e), -ERR_FORMAT);
    }
    OK(file_write_atomic(cut, b.data, b.len - 1, 0644, err));
    struct st st;
    FAILS(st_open(cut, &st, err), cut);
    buf_release(&b);
    mem_free(path);
    mem_free(cut);
    scratch_free(dir);
}

static void writer_refuses(void **state)
{
    char *dir = scratch_new(), *path = in(dir, "m");
    struct st_writer *w = declare();
    uint64_t big[] = {UINT64_MAX / 2, 4}, one[] = {1};
    FAILS(st_writer_add(w, "q", ST_U8, 1, one, err), "twice");
    struct st_writer *many = st_writer_new();
    for (unsigned i = 0; i < 600; i++) {
        char name[16];
        (void)snprintf(name, sizeof(name), "t%u", i % 300);
        if (i < 300)
            OK(st_writer_add(many, name, ST_U8, 1, one, err));
        else
            FAILS(st_writer_add(many, name, ST_U8, 1, one, err), "twice");
    }
    st_writer_free(many);
    FAILS(st_writer_add(w, "big", ST_U8, 2, big, err), "overflows");
    FAILS(st_writer_add(w, "", ST_U8, 1, one, err), "impossible");
    FAILS(st_writer_add(w, "\xff", ST_U8, 1, one, err), "impossible");
    OK(st_writer_open(w, path, err));
    FAILS(st_writer_commit(w, NULL, NULL, err), "0 of 19 payload bytes");
    st_writer_free(w);
    assert_false(file_exists(path));
    struct file_names names;
    OK(file_list(dir, 9, &names, err));
    assert_int_equal(names.n, 0);
    file_names_release(&names);
    w = st_writer_new();
    st_writer_meta(w, "k", "v");
    st_writer_meta(w, "k", "w");
    FAILS(st_writer_open(w, path, err), "duplicate key");
    st_writer_free(w);
    mem_free(path);
    scratch_free(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parses_good_headers),  cmocka_unit_test(refuses_bad_headers),
        cmocka_unit_test(writes_what_it_reads), cmocka_unit_test(refuses_every_cut),
        cmocka_unit_test(writer_refuses),       cmocka_unit_test(refuses_what_would_grow),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
