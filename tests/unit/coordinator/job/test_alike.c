/* Files of features and scores, as two devices and as a liar make them. */
#include "coordinator/job/alike.h"

#include "tests/unit/assignment.h"
#include "tests/unit/common/base/util.h"

#include "common/base/rng.h"
#include "common/st/st.h"

enum { ROWS = 700, COLUMNS = 3 };

struct change {
    float noise, first; /* of all scores, relative; of the first row */
    int32_t tokens;     /* more in the last row */
    uint64_t rows;
    bool bare; /* without `tokens` */
};

static void save(const char *path, const struct change *c)
{
    static float logp[ROWS * COLUMNS];
    static int32_t tokens[ROWS * COLUMNS];
    const uint64_t rows = ROWS - c->rows, shape[2] = {rows, COLUMNS};
    struct st_writer *w = st_writer_new();
    for (uint64_t i = 0; i < rows * COLUMNS; i++) {
        const float noise = c->noise + (i < COLUMNS ? c->first : 0);
        logp[i] = -30 * (1 + rng_at_normal(3, 1, i) / 10) * (1 + noise * rng_at_normal(3, 2, i));
        tokens[i] = 10;
    }
    tokens[rows * COLUMNS - 1] += c->tokens;
    OK(st_writer_add(w, "logp", ST_F32, 2, shape, err));
    if (!c->bare)
        OK(st_writer_add(w, "tokens", ST_I32, 2, shape, err));
    OK(st_writer_open(w, path, err));
    OK(st_writer_write(w, logp, rows * COLUMNS * sizeof(*logp), err));
    if (!c->bare)
        OK(st_writer_write(w, tokens, rows * COLUMNS * sizeof(*tokens), err));
    OK(st_writer_commit(w, NULL, NULL, err));
    st_writer_free(w);
}

static bool alike(const struct change *c)
{
    char *dir = scratch_new(), *a = in(dir, "a"), *b = in(dir, "b");
    save(a, &(struct change){0});
    save(b, c);
    const bool is = alike_files(ALIKE_NUMBERS, a, b);
    assert_false(alike_files(ALIKE_BYTES, a, a));
    mem_free(a);
    mem_free(b);
    scratch_free(dir);
    return is;
}

static void test_scores(void **state)
{
    (void)state;
    assert_true(alike(&(struct change){0}));
    assert_true(alike(&(struct change){.noise = 0.01F}));
    assert_false(alike(&(struct change){.noise = 0.1F}));
    assert_false(alike(&(struct change){.noise = NAN}));
    assert_false(alike(&(struct change){.first = 3}));
    assert_false(alike(&(struct change){.tokens = 1}));
    assert_false(alike(&(struct change){.rows = 1}));
    assert_false(alike(&(struct change){.bare = true}));
}

static void save_one_more(const char *path, float last)
{
    float x[ALIKE_BLOCK + 1];
    const uint64_t shape[1] = {ALIKE_BLOCK + 1};
    struct st_writer *w = st_writer_new();
    rng_fill_normal(3, 1, 0, x, ALIKE_BLOCK, 0.0F, 1.0F);
    x[ALIKE_BLOCK] = last;
    OK(st_writer_add(w, "features", ST_F32, 1, shape, err));
    OK(st_writer_open(w, path, err));
    OK(st_writer_write(w, x, sizeof(x), err));
    OK(st_writer_commit(w, NULL, NULL, err));
    st_writer_free(w);
}

/* One small number at the end is not taken by itself. */
static void test_one_more(void **state)
{
    (void)state;
    char *dir = scratch_new(), *a = in(dir, "a"), *b = in(dir, "b");
    save_one_more(a, 0.001F);
    save_one_more(b, 0.002F);
    assert_true(alike_files(ALIKE_NUMBERS, a, b));
    save_one_more(b, 1000);
    assert_false(alike_files(ALIKE_NUMBERS, a, b));
    mem_free(a);
    mem_free(b);
    scratch_free(dir);
}

static void test_not_there(void **state)
{
    (void)state;
    char *dir = scratch_new(), *a = in(dir, "a"), *b = in(dir, "b");
    save(a, &(struct change){0});
    assert_false(alike_files(ALIKE_NUMBERS, a, b));
    put(dir, "b", "no file of tensors", 18);
    assert_false(alike_files(ALIKE_NUMBERS, a, b));
    assert_false(alike_files(ALIKE_LATENTS, a, b));
    mem_free(a);
    mem_free(b);
    scratch_free(dir);
}

/* Of assignments nine in ten entries are equal, wherever the others are. */
static void test_assignments(void **state)
{
    (void)state;
    enum { N = 1 << 20 }; /* of which only some blocks are read */
    char *dir = scratch_new(), *a = in(dir, "a"), *b = in(dir, "b");
    int32_t *x = mem_alloc_array(N, sizeof(*x));
    OK(fake_assignment_save(a, x, N, 1, 0, err));
    for (unsigned i = 0; i < N; i += 20)
        x[i] = 1;
    OK(fake_assignment_save(b, x, N, 1, 0, err));
    assert_true(alike_files(ALIKE_ASSIGNMENT, a, b));
    for (unsigned i = 0; i < N; i += 5)
        x[i] = 1;
    OK(fake_assignment_save(b, x, N, 1, 0, err));
    assert_false(alike_files(ALIKE_ASSIGNMENT, a, b));
    mem_free(x);
    mem_free(a);
    mem_free(b);
    scratch_free(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_scores),
        cmocka_unit_test(test_one_more),
        cmocka_unit_test(test_not_there),
        cmocka_unit_test(test_assignments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
