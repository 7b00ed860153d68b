/* VELOCITY: a path's velocities at points of a sampler elsewhere. */
#include "tests/unit/worker/mixture_task.h"

#include "worker/engine/task_files.h"

static struct work *begin(struct host *h, const struct file *points, int k, const char *spec)
{
    static uint64_t asked;
    struct order o;
    order_path(&o, SKERRY__V1__TASK_KIND__TASK_KIND_VELOCITY, k);
    blob_of(&o.input, points->sha256, points->size);
    o.velocity.input = &o.input;
    o.task.id = 20 + ++asked; /* each has its own temporary files */
    o.task.velocity = &o.velocity;
    o.task.spec = (char *)(uintptr_t)spec;
    return host_plan(h, &o.task);
}

static struct work *ask(struct host *h, const struct file *points, int k)
{
    struct work *w = begin(h, points, k, SPEC);
    OK(engine_run(h->engine, w, err));
    return w;
}

enum { ROWS = 70 }; /* more than one forward */

static float x[ROWS * VALUES], t[ROWS];
static int32_t labels[ROWS];

/* A file of points [first, first+n) of those above. */
static struct file points_of(struct host *h, const char *name, int first, int n)
{
    struct velocity_points p = {.rows = n,
                                .channels = 3,
                                .image = 8,
                                .x = x + first * VALUES,
                                .t = t + first,
                                .labels = labels + first};
    struct file f = {.path = in(top, name)};
    OK(velocity_write(f.path, &p, f.sha256, &f.size, err));
    host_put(h, f.path, f.sha256);
    return f;
}

static void draw(void)
{
    rng_fill_normal(1, 2, 0, x, ROWS * VALUES, 0.0f, 1.0f);
    for (int i = 0; i < ROWS; i++) {
        t[i] = (float)i / ROWS;
        labels[i] = i % (CLASSES + 1);
    }
}

/* The same for a point alone and among others, and again; another path has others. */
static void test_velocity(void **state)
{
    static float v[ROWS * VALUES], one[VALUES];
    struct host h;
    host_new(&h, "velocity", 2);
    draw();
    struct file points = points_of(&h, "points", 0, ROWS), last = points_of(&h, "last", 69, 1);
    struct work *a = ask(&h, &points, 0), *other = ask(&h, &points, 1);
    struct work *b = ask(&h, &points, 0), *c = ask(&h, &last, 0);
    assert_true(a->result.samples == ROWS && c->result.samples == 1);
    assert_int_equal(a->result.outputs[0].role, WORK_RESULT);
    OK(velocity_read_result(a->result.outputs[0].path, v, ROWS, 3, 8, err));
    OK(velocity_read_result(c->result.outputs[0].path, one, 1, 3, 8, err));
    assert_memory_equal(a->result.outputs[0].sha256, b->result.outputs[0].sha256, 32);
    assert_memory_not_equal(a->result.outputs[0].sha256, other->result.outputs[0].sha256, 32);
    assert_memory_equal(v + 69 * VALUES, one, sizeof one);
    work_free(a);
    work_free(b);
    work_free(c);
    work_free(other);
    mem_free(points.path);
    mem_free(last.path);
    host_free(&h);
}

/* The model stays from one question to the next, as long as job and modules are the same. */
static void test_kept(void **state)
{
    struct host h;
    host_new(&h, "kept", 1);
    draw();
    struct file points = points_of(&h, "few", 0, 2);
    const char *specs[] = {SPEC, SPEC, SPEC_OF("bf16"), SPEC_OF("bf16")};
    const int paths[] = {0, 0, 0, 1};
    uint8_t seen[4][32];
    const void *kept = NULL;
    for (int i = 0; i < 4; i++) {
        struct work *w = begin(&h, &points, paths[i], specs[i]);
        OK(engine_run(h.engine, w, err));
        memcpy(seen[i], w->result.outputs[0].sha256, 32);
        if (i == 1)
            assert_ptr_equal(h.engine->kept, kept);
        kept = h.engine->kept;
        assert_non_null(kept);
        work_free(w);
    }
    assert_memory_equal(seen[0], seen[1], 32);
    assert_memory_not_equal(seen[1], seen[2], 32);
    assert_memory_not_equal(seen[2], seen[3], 32);
    mem_free(points.path);
    host_free(&h);
}

static void test_bad_points(void **state)
{
    struct host h;
    host_new(&h, "bad", 1);
    draw();
    labels[1] = CLASSES + 1; /* CLASSES itself is the null label */
    struct file points = points_of(&h, "label", 0, 2);
    struct work *w = begin(&h, &points, 0, SPEC);
    FAILS(engine_run(h.engine, w, err), "label 6 of point 1 is not in 0 to 5");
    assert_int_equal(w->result.n_outputs, 0);
    work_free(w);
    mem_free(points.path);
    host_free(&h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_velocity),
        cmocka_unit_test(test_kept),
        cmocka_unit_test(test_bad_points),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
