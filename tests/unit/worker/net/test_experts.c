/* Weights within a bound on memory: which are kept, what runs first, what a failure leaves. */
#include "kernels/device/device.h"
#include "tests/unit/worker/tiny.h"

#include <string.h>

#include "worker/net/experts.h"

enum { K = 4, ROWS = 2, VALUES = 108 };

static struct fixture {
    struct device *dev;
    struct model *m;
    float *flat[K], *x; /* x: rows on the device */
    int loaded[16], ran[16];
    int n_loaded, n_ran;
    int broken, stop_at; /* experts that cannot be read, that cancel; -1: none */
} f;

static int load(void *arg, int expert, float *flat, struct err *err)
{
    (void)arg;
    if (expert == f.broken)
        return err_set(err, -ERR_FORMAT, "expert %d cannot be read", expert);
    memcpy(flat, f.flat[expert], f.m->flat * sizeof *flat);
    f.loaded[f.n_loaded++] = expert;
    return 0;
}

static int begin(void *arg, int expert, struct err *err)
{
    (void)arg;
    if (expert == f.stop_at)
        return err_set(err, -ERR_CANCELLED, "stopped");
    f.ran[f.n_ran++] = expert;
    return 0;
}

static int setup(void **state)
{
    (void)state;
    const struct model_spec spec = tiny_spec();
    float x[ROWS * VALUES];
    f = (struct fixture){.broken = -1, .stop_at = -1};
    OK(device_open("cpu-ref", 1, &f.dev, err));
    OK(model_new(&spec, &f.m, err));
    for (int k = 0; k < K; k++)
        f.flat[k] = tiny_weights(f.m, 20 + (uint64_t)k);
    rng_fill_normal(1, 2, 0, x, ROWS * VALUES, 0.0f, 1.0f);
    OK(f.dev->ops->alloc(f.dev, sizeof x, (void **)&f.x, err));
    memcpy(f.x, x, sizeof x); /* the device is this CPU */
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    f.dev->ops->free(f.dev, f.x);
    for (int k = 0; k < K; k++)
        mem_free(f.flat[k]);
    model_free(f.m);
    device_close(f.dev);
    return 0;
}

/* Room for `room` networks, and for almost one more. */
static struct experts *make(int room)
{
    struct experts *x = NULL;
    const uint64_t bytes = weights_bytes(f.m, DT_F32, false);
    const struct experts_options opt = {.count = K,
                                        .batch = ROWS,
                                        .precision = NET_F32,
                                        .memory_bytes = (uint64_t)(room + 1) * bytes - 1,
                                        .load = load,
                                        .begin = begin};
    OK(experts_new(f.dev, f.m, &opt, &x, err));
    return x;
}

/* Runs these experts, ascending, on the same rows; v: (n,ROWS,VALUES) of each. */
static int run(struct experts *x, const int *which, int n, float *v, struct err *err)
{
    static const float t[ROWS] = {0.25f, 0.75f};
    static const int32_t labels[ROWS] = {1, 3};
    const struct mix_experts mix = experts_mix(x);
    struct mix_call calls[K];
    for (int i = 0; i < n; i++)
        calls[i] = (struct mix_call){.expert = which[i],
                                     .rows = ROWS,
                                     .x = f.x,
                                     .t = t,
                                     .labels = labels,
                                     .v = v + (size_t)i * ROWS * VALUES};
    f.n_loaded = f.n_ran = 0;
    assert_int_equal(mix.count, K);
    return mix.run(mix.arg, calls, n, err);
}

static void are(const int *list, int n, const int *expected, int n_expected)
{
    assert_int_equal(n, n_expected);
    for (int i = 0; i < n; i++)
        assert_int_equal(list[i], expected[i]);
}
#define LOADED(...)                                                                                \
    are(f.loaded, f.n_loaded, (const int[]){__VA_ARGS__},                                          \
        (int)(sizeof((const int[]){__VA_ARGS__}) / sizeof(int)))
#define RAN(...)                                                                                   \
    are(f.ran, f.n_ran, (const int[]){__VA_ARGS__},                                                \
        (int)(sizeof((const int[]){__VA_ARGS__}) / sizeof(int)))

static void test_room(void **state)
{
    (void)state;
    static const int expected[] = {1, 1, 2, 3, 4, 4};
    for (int room = 0; room < 6; room++) {
        struct experts *x = make(room);
        assert_int_equal(experts_room(x),
                         expected[room]); /* one at least, no more than there are */
        assert_int_equal(experts_loads(x), 0);
        experts_free(x);
    }
}

static void test_loaded_ones_first_then_in_place_of_the_oldest(void **state)
{
    (void)state;
    static float v[K * ROWS * VALUES];
    struct experts *x = make(2);
    OK(run(x, (const int[]){0, 1}, 2, v, err));
    LOADED(0, 1);
    OK(run(x, (const int[]){0}, 1, v, err)); /* 1 is the oldest now */
    assert_int_equal(f.n_loaded, 0);
    OK(run(x, (const int[]){0, 2}, 2, v, err));
    LOADED(2);
    OK(run(x, (const int[]){1, 2}, 2, v, err));
    RAN(2, 1);
    LOADED(1);
    OK(run(x, (const int[]){1, 2}, 2, v, err));
    RAN(1, 2);
    assert_int_equal(f.n_loaded, 0);
    assert_int_equal(experts_loads(x), 4);
    experts_free(x);
}

static void test_same_bits_in_any_room(void **state)
{
    (void)state;
    static float all[K * ROWS * VALUES], v[K * ROWS * VALUES];
    const size_t each = ROWS * VALUES;
    struct experts *x = make(K);
    OK(run(x, (const int[]){0, 1, 2, 3}, K, all, err));
    assert_memory_not_equal(all, all + each, each * sizeof *all);
    experts_free(x);
    for (int room = 1; room < K; room++) {
        x = make(room);
        for (int turn = 0; turn < 2; turn++) {
            memset(v, 0, sizeof v);
            OK(run(x, (const int[]){0, 1, 2, 3}, K, v, err));
            assert_memory_equal(v, all, sizeof v);
        }
        experts_free(x);
    }
}

/* An expert that could not be read takes nobody's place; one that is stopped is not read. */
static void test_failures(void **state)
{
    (void)state;
    struct err e = {0};
    static float before[ROWS * VALUES], v[2 * ROWS * VALUES];
    struct experts *x = make(1);
    OK(run(x, (const int[]){0}, 1, before, err));
    f.broken = 1;
    assert_int_equal(run(x, (const int[]){1}, 1, v, &e), -ERR_FORMAT);
    assert_string_equal(e.msg, "expert 1 cannot be read");
    f.stop_at = 2;
    assert_int_equal(run(x, (const int[]){2, 3}, 2, v, &e), -ERR_CANCELLED);
    assert_string_equal(e.msg, "stopped");
    assert_int_equal(f.n_loaded + f.n_ran, 0);
    OK(run(x, (const int[]){0}, 1, v, err));
    assert_int_equal(f.n_loaded, 0);
    assert_memory_equal(v, before, sizeof before);
    assert_int_equal(experts_loads(x), 1);
    experts_free(x);
}

/* Experts of two chains: each chain has the velocities of a network by itself, in any room. */
static void test_chains(void **state)
{
    (void)state;
    enum { ONE = 3 * 3 * 3, TWO = VALUES };
    const struct model_spec spec = tiny_cascade();
    const struct fixture outer = f;
    struct model *m = NULL;
    float *flat[K], v[2][2][K * ROWS * VALUES];
    OK(model_new(&spec, &m, err));
    for (int k = 0; k < K; k++)
        f.flat[k] = flat[k] = tiny_weights(m, 40 + (uint64_t)k);
    f.m = m;
    memset(v, 0, sizeof v);
    for (int room = 1; room <= 2; room++) {
        struct experts *x = make(room == 1 ? 1 : K);
        const struct mix_experts mix = experts_mix(x);
        for (int chain = 0; chain < 2; chain++) {
            static const float t[ROWS] = {0.25f, 0.75f};
            static const int32_t labels[ROWS] = {1, 3};
            struct mix_call calls[K];
            f.n_loaded = f.n_ran = 0;
            for (int k = 0; k < K; k++)
                calls[k] = (struct mix_call){.expert = k,
                                             .rows = ROWS,
                                             .chain = chain,
                                             .x = f.x,
                                             .beside = chain ? f.x : NULL,
                                             .t = t,
                                             .labels = labels,
                                             .v = v[room - 1][chain] + k * ROWS * VALUES};
            OK(mix.run(mix.arg, calls, K, err));
        }
        experts_free(x);
    }
    assert_memory_equal(v[0], v[1], sizeof v[0]);
    assert_memory_not_equal(v[0][0], v[0][0] + ROWS * VALUES, ROWS * ONE * sizeof(float));
    assert_memory_not_equal(v[0][1], v[0][1] + ROWS * VALUES, ROWS * TWO * sizeof(float));
    for (int k = 0; k < K; k++)
        mem_free(flat[k]);
    model_free(m);
    f = outer;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_room, setup, teardown),
        cmocka_unit_test_setup_teardown(test_loaded_ones_first_then_in_place_of_the_oldest, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_same_bits_in_any_room, setup, teardown),
        cmocka_unit_test_setup_teardown(test_failures, setup, teardown),
        cmocka_unit_test_setup_teardown(test_chains, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
