#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cli/base/cli.h"
#include "cli/base/merge.h"
#include "common/base/err.h"
#include "common/base/file.h"
#include "common/st/st.h"

static char dir[] = "/tmp/skerry-merge-XXXXXX";
static char a[64], b[64], all[64];

static int set_up(void **state)
{
    if (!mkdtemp(dir))
        return -1;
    snprintf(a, sizeof a, "%s/a", dir);
    snprintf(b, sizeof b, "%s/b", dir);
    snprintf(all, sizeof all, "%s/all", dir);
    return 0;
}

static int tear_down(void **state)
{
    return file_remove_tree(dir, NULL);
}

static void write_one(const char *path, const char *name, const float *values, uint64_t n)
{
    struct st_writer *w = st_writer_new();
    assert_int_equal(st_writer_add(w, name, ST_F32, 1, &n, NULL), 0);
    assert_int_equal(st_writer_open(w, path, NULL), 0);
    assert_int_equal(st_writer_write(w, values, n * sizeof *values, NULL), 0);
    assert_int_equal(st_writer_commit(w, NULL, NULL, NULL), 0);
    st_writer_free(w);
}

static void joins_levels(void **state)
{
    const float x[3] = {1, 2, 3}, y[2] = {-4, 5};
    char *parts[] = {a, b};
    struct st st;
    struct buf file;

    write_one(a, "blocks.0.w", x, 3);
    write_one(b, "blocks.1.w", y, 2);
    assert_int_equal(merge_safetensors(parts, 2, all, NULL), 0);
    assert_int_equal(st_open(all, &st, NULL), 0);
    assert_int_equal(st.n_tensors, 2);
    assert_int_equal(file_read(all, 4096, &file, NULL), 0);
    assert_memory_equal(file.data + st_find(&st, "blocks.0.w")->offset, x, sizeof x);
    assert_memory_equal(file.data + st_find(&st, "blocks.1.w")->offset, y, sizeof y);
    buf_release(&file);
    st_release(&st);
}

/* What versions hold as f32 becomes what it is at home, also where that is wider. */
static void gives_types_back(void **state)
{
    enum { N = (1 << 18) + 3 }; /* more than is copied at a time */
    const uint64_t n = N;
    float *values = malloc(N * sizeof *values);
    char *parts[] = {a};
    struct st st;
    struct buf file;

    assert_non_null(values);
    for (size_t i = 0; i < N; i++)
        values[i] = (float)i - 7;
    values[1] = 2.5f;
    values[2] = 1e30f;
    struct st_writer *w = st_writer_new();
    st_writer_meta(w, "skerry.I64", "count\n");
    st_writer_meta(w, "skerry.I32", "other\norder\n");
    assert_int_equal(st_writer_add(w, "count", ST_F32, 1, &n, NULL), 0);
    assert_int_equal(st_writer_add(w, "order", ST_F32, 1, &n, NULL), 0);
    assert_int_equal(st_writer_open(w, a, NULL), 0);
    for (int i = 0; i < 2; i++)
        assert_int_equal(st_writer_write(w, values, N * sizeof *values, NULL), 0);
    assert_int_equal(st_writer_commit(w, NULL, NULL, NULL), 0);
    st_writer_free(w);
    assert_int_equal(merge_safetensors(parts, 1, all, NULL), 0);
    assert_int_equal(st_open(all, &st, NULL), 0);
    assert_int_equal(file_read(all, 16 << 20, &file, NULL), 0);
    const struct st_tensor *count = st_find(&st, "count"), *order = st_find(&st, "order");
    assert_int_equal(count->dtype, ST_I64);
    assert_int_equal(order->dtype, ST_I32);
    for (size_t i = 0; i < N; i++) {
        int64_t wide;
        int32_t narrow;
        memcpy(&wide, file.data + count->offset + 8 * i, sizeof wide);
        memcpy(&narrow, file.data + order->offset + 4 * i, sizeof narrow);
        assert_int_equal(wide, i == 1 ? 2 : i == 2 ? ST_EXACT_MAX : (int64_t)i - 7);
        assert_int_equal(narrow, wide);
    }
    buf_release(&file);
    st_release(&st);
    free(values);
}

static void refuses_equal_names_and_damage(void **state)
{
    const float x[3] = {1, 2, 3};
    char *twice[] = {a, a};
    struct err err = {0};

    write_one(a, "w", x, 3);
    (void)file_remove(all, NULL);
    assert_int_equal(merge_safetensors(twice, 2, all, &err), -EINVAL);
    assert_false(file_exists(all));
    assert_int_equal(file_write_atomic(b, "short", 5, 0644, NULL), 0);
    char *damaged[] = {a, b};
    assert_true(merge_safetensors(damaged, 2, all, &err) < 0);
    assert_non_null(strstr(err.msg, b));
    assert_false(file_exists(all));
}

/* Ctrl-C counts here, too, and leaves nothing of what was begun. */
static void is_interrupted(void **state)
{
    const float x[3] = {1, 2, 3};
    char *parts[] = {a};
    struct file_names names;
    struct err err = {0};

    write_one(a, "w", x, 3);
    (void)file_remove(all, NULL);
    (void)file_remove(b, NULL);
    cli_interrupted = SIGINT;
    assert_int_equal(merge_safetensors(parts, 1, all, &err), -ERR_CANCELLED);
    cli_interrupted = 0;
    assert_int_equal(file_list(dir, 10, &names, NULL), 0);
    assert_int_equal(names.n, 1);
    assert_string_equal(names.items[0], "a");
    file_names_release(&names);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(joins_levels),
        cmocka_unit_test(gives_types_back),
        cmocka_unit_test(refuses_equal_names_and_damage),
        cmocka_unit_test(is_interrupted),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
