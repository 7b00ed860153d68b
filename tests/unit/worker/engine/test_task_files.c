/* What travels between a sampler and a worker that has the expert. */
#include "tests/unit/worker/tiny.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "common/base/file.h"
#include "common/st/st.h"
#include "worker/engine/task_files.h"

enum { ROWS = 3, IMAGE = 4, VALUES = ROWS * 3 * IMAGE * IMAGE, CLASSES = 5 };

static char dir[] = "/tmp/skerry-velocity-XXXXXX", path[64];

static int setup(void **state)
{
    (void)state;
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/blob", dir);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    return file_remove_tree(dir, NULL);
}

static void fill(struct velocity_points *p, float *x, float *t, int32_t *labels)
{
    for (int i = 0; i < VALUES; i++)
        x[i] = rng_at_normal(1, 2, (uint64_t)i);
    for (int i = 0; i < ROWS; i++) {
        t[i] = (float)i / (ROWS - 1);
        labels[i] = i == 1 ? CLASSES : i; /* the null label is a label here */
    }
    *p = (struct velocity_points){
        .rows = ROWS, .channels = 3, .image = IMAGE, .x = x, .t = t, .labels = labels};
}

static int read_points(int image, int classes, struct velocity_points *ret, struct err *err)
{
    return velocity_read(path, &(struct velocity_sizes){3, image, 0, classes}, ret, err);
}

static void test_points(void **state)
{
    (void)state;
    struct velocity_points p, q;
    float x[VALUES], t[ROWS];
    int32_t labels[ROWS];
    uint8_t sha256[32], again[32];
    uint64_t size, bytes;
    fill(&p, x, t, labels);
    OK(velocity_write(path, &p, sha256, &size, err));
    OK(file_size(path, &bytes, err));
    assert_int_equal(size, bytes);
    OK(read_points(IMAGE, CLASSES, &q, err));
    assert_int_equal(q.rows, ROWS);
    assert_null(q.beside);
    assert_memory_equal(q.x, x, sizeof x);
    assert_memory_equal(q.t, t, sizeof t);
    assert_memory_equal(q.labels, labels, sizeof labels);
    OK(velocity_write(path, &q, again, &size, err));
    assert_memory_equal(sha256, again, sizeof again); /* asked again: the same blob */
    velocity_points_release(&q);
}

static void refuse(const struct velocity_points *p, int image, int classes, const char *says)
{
    struct err e = {0};
    struct velocity_points q;
    uint8_t sha256[32];
    uint64_t size;
    OK(velocity_write(path, p, sha256, &size, err));
    assert_int_equal(read_points(image, classes, &q, &e), -ERR_FORMAT);
    if (!strstr(e.msg, says))
        fail_msg("\"%s\" does not say \"%s\"", e.msg, says);
}

/* Points of an upscaler are those with images beside them; of a model of one chain they are not. */
static void test_upscaler(void **state)
{
    (void)state;
    const struct velocity_sizes sizes = {3, IMAGE / 2, IMAGE, CLASSES};
    struct velocity_points p, q;
    struct err e = {0};
    float x[VALUES], beside[VALUES], t[ROWS];
    int32_t labels[ROWS];
    uint8_t sha256[32];
    uint64_t size;
    fill(&p, x, t, labels);
    rng_fill_normal(3, 4, 0, beside, VALUES, 0.0f, 1.0f);
    p.beside = beside;
    OK(velocity_write(path, &p, sha256, &size, err));
    OK(velocity_read(path, &sizes, &q, err));
    assert_int_equal(q.image, IMAGE);
    assert_memory_equal(q.x, x, sizeof x);
    assert_memory_equal(q.beside, beside, sizeof beside);
    velocity_points_release(&q);
    beside[3] = NAN;
    OK(velocity_write(path, &p, sha256, &size, err));
    assert_int_equal(velocity_read(path, &sizes, &q, &e), -ERR_FORMAT);
    assert_non_null(strstr(e.msg, "beside holds a value that is not finite"));
    p.beside = NULL; /* the base's images are smaller */
    OK(velocity_write(path, &p, sha256, &size, err));
    assert_int_equal(velocity_read(path, &sizes, &q, &e), -ERR_FORMAT);
}

static void test_refusals(void **state)
{
    (void)state;
    struct err e = {0};
    struct velocity_points p;
    float x[VALUES], t[ROWS], v[VALUES];
    int32_t labels[ROWS];
    uint8_t sha256[32];
    uint64_t size;
    fill(&p, x, t, labels);
    refuse(&p, IMAGE, CLASSES - 1, "label 5 of point 1 is not in 0 to 4");
    labels[2] = -1;
    refuse(&p, IMAGE, CLASSES, "label -1 of point 2");
    labels[2] = 0;
    t[0] = 1.5f;
    refuse(&p, IMAGE, CLASSES, "t of point 0 is 1.5");
    t[0] = NAN;
    refuse(&p, IMAGE, CLASSES, "t of point 0");
    t[0] = 0;
    refuse(&p, IMAGE + 1, CLASSES, "x");
    x[7] = INFINITY;
    refuse(&p, IMAGE, CLASSES, "not finite");
    p.rows = 0;
    refuse(&p, IMAGE, CLASSES, "1 to 2048 values");
    assert_true(velocity_read_result(path, v, ROWS, 3, IMAGE, &e) < 0);

    OK(velocity_write_result(path, x, ROWS, 3, IMAGE, sha256, &size, err));
    assert_int_equal(velocity_read_result(path, v, ROWS, 3, IMAGE, &e), -ERR_FORMAT);
    assert_int_equal(velocity_read_result(path, v, ROWS - 1, 3, IMAGE, &e), -ERR_FORMAT);
    x[7] = 0;
    OK(velocity_write_result(path, x, ROWS, 3, IMAGE, sha256, &size, err));
    OK(velocity_read_result(path, v, ROWS, 3, IMAGE, err));
    assert_memory_equal(v, x, sizeof v);
    OK(file_write_atomic(path, "nonsense", 8, 0600, err));
    assert_true(read_points(IMAGE, CLASSES, &p, &e) < 0);
    assert_true(velocity_read_result("/nowhere/at/all", v, ROWS, 3, IMAGE, &e) < 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_points),
        cmocka_unit_test(test_upscaler),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
