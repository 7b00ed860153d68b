/* A step that somebody else made, compared in some cells. */
#include "tests/unit/common/outer/fixture.h"

#include <fcntl.h>
#include <unistd.h>

#include "common/outer/layout.h"

#define K 3
#define FILES 5 /* without a buffer */

struct made {
    struct fixture f;
    struct layout layout;
    struct fold_input in[K];
    struct fold_step step;
    struct fx_out out;
    uint64_t n;
    struct layout_cell *cells; /* all */
};

static void made_begin(struct made *m, enum codec up, enum codec down)
{
    struct err err = {0};
    float *end = fx_array();
    memset(m, 0, sizeof(*m));
    fx_begin(&m->f);
    for (uint64_t i = 0; i < K; i++) {
        char *path = str_printf("%s/c%d", m->f.dir, (int)i);
        fx_normal(40 + i, 1e-3f, end);
        for (size_t j = 0; j < PARAMS; j++)
            end[j] = m->f.theta[j] - end[j];
        fx_contribute(m->f.full, 0, end, up, 8, path);
        m->in[i] = (struct fold_input){.path = path, .weight = 1 + (double)i};
    }
    m->step = fx_step(&m->f, m->in, K, up, down);
    fx_out_begin(&m->f, "made", &m->step, &m->out);
    (void)fx_fold(&m->step);
    assert_int_equal(layout_open(m->f.full, &m->layout, &err), 0);
    m->n = layout_cells(&m->layout);
    m->cells = mem_alloc_array(m->n, sizeof(*m->cells));
    for (uint64_t i = 0; i < m->n; i++)
        layout_cell_at(&m->layout, i, &m->cells[i]);
    free(end);
}

static void made_end(struct made *m)
{
    for (size_t i = 0; i < K; i++)
        mem_free((char *)(uintptr_t)m->in[i].path);
    fx_out_end(&m->out);
    mem_free(m->cells);
    layout_release(&m->layout);
    fx_end(&m->f);
}

/* The cells that are found to have other bits. */
static uint64_t found(struct made *m, char ret_what[512])
{
    uint64_t n = 0;
    for (uint64_t i = 0; i < m->n; i++) {
        struct err err = {0};
        const int rc = fold_compare(&m->step, &m->cells[i], 1, &err);
        if (rc == 0)
            continue;
        assert_int_equal(rc, -ERR_HASH);
        (void)snprintf(ret_what, 512, "%.500s", err.msg);
        n++;
    }
    return n;
}

static void flip(const char *path, uint64_t at)
{
    uint8_t byte;
    const int fd = open(path, O_RDWR);
    assert_int_equal(pread(fd, &byte, 1, (off_t)at), 1);
    byte ^= 1;
    assert_int_equal(pwrite(fd, &byte, 1, (off_t)at), 1);
    (void)close(fd);
}

/* The same step agrees everywhere; a bit is found in its cell, and in no other. */
static void every_bit_counts(void **state)
{
    static const char *const names[FILES] = {"the version", "the delta", "the average",
                                             "the target", "the momentum"};
    for (int c = 0; c < CODEC_COUNT * CODEC_COUNT; c++) {
        struct made m;
        struct err err = {0};
        char what[512];
        made_begin(&m, (enum codec)(c / CODEC_COUNT), (enum codec)(c % CODEC_COUNT));
        if (fold_compare(&m.step, m.cells, m.n, &err) < 0)
            fail_msg("%s", err.msg);
        for (size_t i = 0; i < FILES; i++) {
            uint8_t sha256[32];
            uint64_t bytes;
            assert_int_equal(hash_file(m.out.path[i], sha256, &bytes, NULL), 0);
            flip(m.out.path[i], bytes - 1);
            assert_int_equal(found(&m, what), 1);
            assert_non_null(strstr(what, names[i]));
            flip(m.out.path[i], bytes - 1);
        }
        made_end(&m);
    }
}

/* What is said of a step in its constants is in all bits of some file. */
static void another_step_is_another(void **state)
{
    struct made m;
    char what[512];
    made_begin(&m, CODEC_E3M0, CODEC_E3M0);
    m.step.lr = 0.71;
    assert_int_equal(found(&m, what), m.n);
    m.step.lr = 0.7;
    m.in[1].weight = 2.5;
    assert_int_equal(found(&m, what), m.n);
    m.in[1].weight = 2;
    assert_int_equal(found(&m, what), 0);
    made_end(&m);
}

/* A header with other bytes, and files that are none. */
static void headers_are_copies(void **state)
{
    struct made m;
    struct err err = {0};
    made_begin(&m, CODEC_BF16, CODEC_INT8);
    struct buf b;
    assert_int_equal(file_read(m.out.path[3], 64 << 20, &b, NULL), 0);
    char *colon = memchr(b.data + 8, ':', m.layout.st.payload - 8);
    assert_non_null(colon);
    uint8_t *space = memchr(b.data + 8, ' ', m.layout.st.payload - 8); /* padding at its end */
    if (space != NULL) {
        *space = '\n';
        assert_int_equal(file_write_atomic(m.out.path[3], b.data, b.len, 0600, NULL), 0);
        assert_int_equal(fold_compare(&m.step, m.cells, 1, &err), -ERR_HASH);
        assert_non_null(strstr(err.msg, "a header"));
    }
    buf_release(&b);
    assert_int_equal(file_write_atomic(m.out.path[1], "{}", 2, 0600, NULL), 0);
    assert_int_equal(fold_compare(&m.step, m.cells, 1, &err), -ERR_FORMAT);
    made_end(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_bit_counts),
                                       cmocka_unit_test(another_step_is_another),
                                       cmocka_unit_test(headers_are_copies)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
