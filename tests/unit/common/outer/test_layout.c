/* The layout of a module: read from a full file, refused where it is none, and compared. */
#include "tests/unit/common/outer/fixture.h"

#include <errno.h>

struct row {
    const char *name;
    enum st_dtype dtype;
    unsigned rank;
    uint64_t shape[3];
};

/* A file of these tensors, all zeros. */
static void write_rows(const char *path, const struct row *rows, size_t n)
{
    struct err err = {0};
    struct st_writer *w = st_writer_new();
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(
            st_writer_add(w, rows[i].name, rows[i].dtype, rows[i].rank, rows[i].shape, &err), 0);
    }
    struct buf header;
    uint64_t bytes;
    buf_init(&header, ST_HEADER_MAX + 16);
    assert_int_equal(st_writer_header(w, &header, &bytes, &err), 0);
    assert_int_equal(st_writer_open(w, path, &err), 0);
    uint8_t *zeros = calloc(1, (size_t)bytes - header.len + 1);
    assert_non_null(zeros);
    assert_int_equal(st_writer_write(w, zeros, (size_t)bytes - header.len, &err), 0);
    assert_int_equal(st_writer_commit(w, NULL, NULL, &err), 0);
    free(zeros);
    buf_release(&header);
    st_writer_free(w);
}

static struct layout opened(const char *path)
{
    struct layout l = {0};
    struct err err = {0};
    if (layout_open(path, &l, &err) < 0)
        fail_msg("%s", err.msg);
    return l;
}

static void a_module_is_one_flat_array(void **state)
{
    struct fixture f;
    fx_begin(&f);
    struct layout l = opened(f.full);
    uint64_t first = 0;
    assert_int_equal(l.count, PARAMS);
    assert_int_equal(l.st.n_tensors, SHAPES);
    for (size_t t = 0; t < SHAPES; t++) {
        assert_string_equal(l.st.tensors[t].name, shape_rows[t].name);
        assert_int_equal(layout_first(&l, t), first);
        first += l.st.tensors[t].count;
    }
    assert_int_equal(first, PARAMS);
    struct buf b;
    struct err err = {0};
    assert_int_equal(file_read(f.full, 64 << 20, &b, &err), 0);
    assert_memory_equal(l.header, b.data, l.st.payload);
    buf_release(&b);
    layout_release(&l);
    layout_release(&l); /* twice is fine */
    layout_release(NULL);
    fx_end(&f);
}

static void what_is_no_module_is_refused(void **state)
{
    static const struct {
        struct row rows[2];
        size_t n;
        const char *why;
    } cases[] = {
        {{{"", ST_F32, 0, {0}}}, 0, "holds no tensors, expected a module"},
        {{{"a", ST_F32, 1, {3}}, {"b", ST_BF16, 1, {2}}},
         2,
         "tensor b is BF16, but a full version holds only F32"},
        {{{"a", ST_F32, 2, {3, 0}}, {"b", ST_F32, 1, {2}}}, 2, "tensor a has no elements"},
    };
    struct fixture f;
    fx_begin(&f);
    char *path = fx_path(&f, "odd");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct err err = {0};
        struct layout l = {0};
        write_rows(path, cases[i].rows, cases[i].n);
        assert_int_equal(layout_open(path, &l, &err), -ERR_FORMAT);
        if (!strstr(err.msg, cases[i].why) || !strstr(err.msg, path))
            fail_msg("\"%s\" says nothing of \"%s\"", err.msg, cases[i].why);
        assert_null(l.header);
    }
    struct err err = {0};
    struct layout l = {0};
    char *absent = fx_path(&f, "absent");
    assert_int_equal(layout_open(absent, &l, &err), -ENOENT);
    assert_non_null(strstr(err.msg, absent));
    mem_free(absent);
    mem_free(path);
    fx_end(&f);
}

static void the_first_difference_is_named(void **state)
{
    static const struct row module[] = {{"a", ST_F32, 2, {3, 2}}, {"b", ST_F32, 1, {4}}};
    static const struct {
        struct row rows[3];
        size_t n;
        const char *why; /* NULL: the same */
    } cases[] = {
        {{{"a", ST_F32, 2, {3, 2}}, {"b", ST_F32, 1, {4}}}, 2, NULL},
        {{{"a", ST_F32, 2, {3, 2}}}, 1, "ema has 1 tensors, expected 2"},
        {{{"a", ST_F32, 2, {3, 2}}, {"b", ST_F32, 1, {4}}, {"c", ST_F32, 0, {0}}},
         3,
         "ema has 3 tensors, expected 2"},
        {{{"b", ST_F32, 1, {4}}, {"a", ST_F32, 2, {3, 2}}}, 2, "ema: tensor 0 is b, expected a"},
        {{{"a", ST_F32, 2, {2, 3}}, {"b", ST_F32, 1, {4}}},
         2,
         "ema: tensor a does not have the module's shape"},
        {{{"a", ST_F32, 2, {3, 2}}, {"b", ST_F32, 2, {4, 1}}},
         2,
         "ema: tensor b does not have the module's shape"},
    };
    struct fixture f;
    fx_begin(&f);
    char *x = fx_path(&f, "x"), *y = fx_path(&f, "y");
    write_rows(x, module, 2);
    struct layout a = opened(x);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct err err = {0};
        write_rows(y, cases[i].rows, cases[i].n);
        struct layout b = opened(y);
        assert_int_equal(layout_same(&a, &b, "ema", &err), cases[i].why ? -ERR_FORMAT : 0);
        assert_string_equal(err.msg, cases[i].why ? cases[i].why : "");
        layout_release(&b);
    }
    layout_release(&a);
    mem_free(x);
    mem_free(y);
    fx_end(&f);
}

/* A module of three tensors that says what its buffers are. */
static int open_with(const char *path, const char *mean, const char *first, struct layout *ret,
                     struct err *err)
{
    static const char *const names[] = {"b", "a", "c"};
    struct st_writer *w = st_writer_new();
    struct err none = {0};
    if (mean)
        st_writer_meta(w, LAYOUT_META_MEAN, mean);
    if (first)
        st_writer_meta(w, LAYOUT_META_FIRST, first);
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(st_writer_add(w, names[i], ST_F32, 0, NULL, &none), 0);
    assert_int_equal(st_writer_open(w, path, &none), 0);
    assert_int_equal(st_writer_write(w, (float[3]){0}, 3 * sizeof(float), &none), 0);
    assert_int_equal(st_writer_commit(w, NULL, NULL, &none), 0);
    st_writer_free(w);
    return layout_open(path, ret, err);
}

static void buffers_are_named(void **state)
{
    struct fixture f;
    struct err err = {0};
    struct layout l = {0};
    fx_begin(&f);
    char *path = fx_path(&f, "x"), *longest = mem_alloc(400);
    assert_int_equal(open_with(path, "c\n", "b\n", &l, &err), 0);
    assert_true(l.buffers);
    assert_int_equal(l.role[0], LAYOUT_FIRST);
    assert_int_equal(l.role[1], LAYOUT_TRAINED);
    assert_int_equal(l.role[2], LAYOUT_MEAN);
    assert_int_equal(layout_codec(&l, 1, CODEC_E3M0), CODEC_E3M0);
    assert_int_equal(layout_codec(&l, 2, CODEC_E3M0), CODEC_F32);
    layout_release(&l);
    assert_int_equal(open_with(path, NULL, NULL, &l, &err), 0);
    assert_false(l.buffers || layout_is_buffer(&l, 0));
    layout_release(&l);
    memset(longest, 'n', 399);
    const struct {
        const char *mean, *first, *why;
    } cases[] = {
        {"d\n", NULL, "names a buffer d, which it does not hold"},
        {"a\n\nb\n", NULL, "names a buffer , which"},
        {"a\nb\na\n", NULL, "names the buffer a twice"},
        {"a\n", "b\na", "names the buffer a twice"},
        {longest, NULL, "names a buffer nnnn"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(open_with(path, cases[i].mean, cases[i].first, &l, &err), -ERR_FORMAT);
        if (!strstr(err.msg, cases[i].why))
            fail_msg("\"%s\" says nothing of \"%s\"", err.msg, cases[i].why);
    }
    mem_free(path);
    mem_free(longest);
    fx_end(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_module_is_one_flat_array),
        cmocka_unit_test(what_is_no_module_is_refused),
        cmocka_unit_test(the_first_difference_is_named),
        cmocka_unit_test(buffers_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
