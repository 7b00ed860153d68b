/* k-means: planted clusters, repairs, size caps, weights, mini-batches, equal bits. */
#include "worker/fit/kmeans.h"

#include "tests/unit/worker/fit/fit_test.h"
#include "worker/fit/affine.h"
#include "worker/fit/fit.h"

/* n rows around k centres 10 apart in d columns, row i around centre owner(i). */
static float *blobs(uint64_t n, uint32_t d, uint32_t k, uint32_t *owner)
{
    float *x = mem_alloc_array(n * d, sizeof(float));
    for (uint64_t i = 0; i < n; i++) {
        owner[i] = rng_at_u32(1, 1, i) % k;
        for (uint32_t j = 0; j < d; j++)
            x[i * d + j] = rng_at_normal(1, 2, i * d + j) * 0.7F +
                           (j % k == owner[i] ? 10.0F : 0.0F) * (float)(1 + j / k % 2);
    }
    return x;
}

/* Whether two labellings are the same up to names. */
static bool same_partition(const uint32_t *a, const uint32_t *b, uint64_t n, uint32_t k)
{
    uint32_t *name = mem_alloc_array(k, sizeof(*name)), *back = mem_alloc_array(k, sizeof(*back));
    bool same = true;
    for (uint64_t i = 0; i < n && same; i++) {
        if (name[a[i]] == 0 && back[b[i]] == 0) {
            name[a[i]] = b[i] + 1;
            back[b[i]] = a[i] + 1;
        }
        same = name[a[i]] == b[i] + 1 && back[b[i]] == a[i] + 1;
    }
    mem_free(name);
    mem_free(back);
    return same;
}

static void test_planted(void **state)
{
    const uint64_t n = 3000;
    const uint32_t d = 19, k = 8;
    uint32_t *owner = mem_alloc_array(n, sizeof(*owner));
    float *x = blobs(n, d, k, owner);
    for (uint32_t batch = 0; batch <= 256; batch += 256) {
        const struct kmeans_options opt = {.k = k, .seed = 5, .restarts = 3, .batch = batch};
        struct kmeans m;
        OK(kmeans_fit(dev, x, NULL, n, d, &opt, NULL, &m, err));
        assert_true(same_partition(m.labels, owner, n, k));
        /* 19 columns of variance 0.49 */
        assert_true(fabs(m.inertia / (double)n - 19 * 0.49) < 0.4);
        double sum = 0;
        for (uint32_t c = 0; c < k; c++)
            sum += m.sizes[c];
        assert_true(sum == (double)n);
        assert_true(m.largest > 1 && m.largest < 1.2);
        assert_true(m.met && m.bias[3] == 0);
        assert_true(batch || m.converged);
        kmeans_release(&m);
    }
    mem_free(x);
    mem_free(owner);
}

/* Ten rows at three places: three clusters at most. */
static void test_duplicates(void **state)
{
    struct err e = {0};
    float x[20];
    for (int i = 0; i < 10; i++) {
        x[2 * i] = (float)(i % 3);
        x[2 * i + 1] = -(float)(i % 3);
    }
    struct kmeans_options opt = {.k = 3, .seed = 1};
    struct kmeans m;
    OK(kmeans_fit(dev, x, NULL, 10, 2, &opt, NULL, &m, err));
    assert_true(m.inertia < 1e-10);
    kmeans_release(&m);
    opt.k = 4;
    assert_int_equal(kmeans_fit(dev, x, NULL, 10, 2, &opt, NULL, &m, &e), -ERR_CONFIG);
    assert_non_null(strstr(e.msg, "only 3 are distinct"));
    opt.shrink = true;
    opt.balance = 1.5;
    OK(kmeans_fit(dev, x, NULL, 10, 2, &opt, NULL, &m, err));
    assert_int_equal(m.k, 3);
    for (int i = 0; i < 10; i++)
        assert_int_equal(m.labels[i], m.labels[i % 3]);
    kmeans_release(&m);
    opt.k = 11;
    opt.shrink = false;
    assert_int_equal(kmeans_fit(dev, x, NULL, 10, 2, &opt, NULL, &m, &e), -ERR_CONFIG);
    assert_non_null(strstr(e.msg, "only 10 rows"));
}

/* As many clusters as distinct rows, in a heap and a few far away: the start draws none twice,
 * but steps leave clusters empty, which take the farthest rows of the heaviest. */
static void test_every_row_its_own(void **state)
{
    const uint32_t n = 200, d = 3;
    float *x = mem_alloc_array((size_t)n * d, sizeof(float));
    rng_fill_normal(8, 1, 0, x, (size_t)n * d, 0, 1);
    for (uint32_t i = 0; i < n; i += 10)
        x[i * d] += 1000;
    const struct kmeans_options opt = {.k = n, .seed = 3};
    struct kmeans m;
    OK(kmeans_fit(dev, x, NULL, n, d, &opt, NULL, &m, err));
    for (uint32_t c = 0; c < n; c++)
        assert_true(m.sizes[c] == 1);
    kmeans_release(&m);
    mem_free(x);
}

/* All rows start in one place: mini-batches of few rows leave clusters without rows. */
static void test_empty_is_repaired(void **state)
{
    const uint32_t n = 400;
    float *x = mem_alloc_array(n, sizeof(float));
    for (uint32_t i = 0; i < n; i++)
        x[i] = i < 390 ? 0 : (float)i;
    const struct kmeans_options opt = {.k = 11, .seed = 7, .batch = 8, .iterations = 1};
    struct kmeans m;
    OK(kmeans_fit(dev, x, NULL, n, 1, &opt, NULL, &m, err));
    for (uint32_t c = 0; c < 11; c++)
        assert_true(m.sizes[c] > 0);
    assert_true(m.inertia < 1e-3);
    kmeans_release(&m);
    mem_free(x);
}

/* 70 % of the rows lie in one blob, yet no cluster may have more than 1.2 of the mean. */
static void test_balance(void **state)
{
    const uint32_t n = 4000, d = 6, k = 5;
    float *x = mem_alloc_array((size_t)n * d, sizeof(float));
    rng_fill_normal(2, 1, 0, x, (size_t)n * d, 0, 1);
    for (uint32_t i = 0; i < n; i++)
        if (i % 10 >= 7)
            x[i * d + i % 3] += 30;
    struct kmeans_options opt = {.k = k, .seed = 1, .restarts = 2};
    struct kmeans m, b;
    OK(kmeans_fit(dev, x, NULL, n, d, &opt, NULL, &m, err));
    opt.balance = 1.2;
    opt.least = 700;
    OK(kmeans_fit(dev, x, NULL, n, d, &opt, NULL, &b, err));
    assert_true(m.largest > 1.7);
    assert_true(b.met && b.largest <= 1.2);
    for (uint32_t c = 0; c < k; c++)
        assert_true(b.sizes[c] >= 700);
    assert_true(b.inertia > m.inertia);
    /* the price is enough to find the labels again */
    struct affine *a = NULL;
    uint32_t *again = mem_alloc_array(n, sizeof(*again));
    OK(affine_new(dev, d, k, &a, err));
    OK(affine_set_centroids(a, b.centroids, b.bias, err));
    OK(affine_best(a, x, n, 1, again, NULL, err));
    assert_memory_equal(again, b.labels, n * sizeof(*again));
    affine_free(a);
    mem_free(again);
    kmeans_release(&m);
    kmeans_release(&b);
    mem_free(x);
}

/* A row of weight 3 is as three rows. */
static void test_weights(void **state)
{
    const float x[] = {0, 1, 10, 11}, heavy[] = {3, 1, 1, 1};
    const struct kmeans_options opt = {.k = 2, .seed = 1, .restarts = 4};
    struct kmeans m;
    OK(kmeans_fit(dev, x, heavy, 4, 1, &opt, NULL, &m, err));
    uint32_t low = m.labels[0];
    assert_true(m.sizes[low] == 4 && m.sizes[1 - low] == 2);
    assert_true(fabsf(m.centroids[low] - 0.25F) < 1e-6F);
    assert_true(fabs(m.inertia - (3 * 0.0625 + 0.5625 + 0.5)) < 1e-5);
    kmeans_release(&m);
}

static void test_same_bits(void **state)
{
    const uint64_t n = 700;
    uint32_t *owner = mem_alloc_array(n, sizeof(*owner));
    float *x = blobs(n, 13, 4, owner);
    for (uint32_t batch = 0; batch <= 128; batch += 128) {
        struct kmeans first = {0};
        for (int threads = 1; threads <= 2; threads++) {
            struct device *own = NULL;
            const struct kmeans_options opt = {
                .k = 8, .seed = 5, .restarts = 1, .batch = batch, .balance = 1.1};
            struct kmeans m;
            OK(device_open("cpu", threads, &own, err));
            OK(kmeans_fit(own, x, NULL, n, 13, &opt, NULL, &m, err));
            device_close(own);
            if (threads == 1) {
                first = m;
                continue;
            }
            assert_memory_equal(m.centroids, first.centroids, 8 * 13 * sizeof(float));
            assert_memory_equal(m.bias, first.bias, 8 * sizeof(float));
            assert_memory_equal(m.labels, first.labels, n * sizeof(uint32_t));
            kmeans_release(&m);
        }
        kmeans_release(&first);
    }
    mem_free(x);
    mem_free(owner);
}

static int stop(void *arg, const char *what, uint32_t done, uint32_t total, struct err *err)
{
    return err_set(err, -ERR_CANCELLED, "stopped");
}

static void test_refusals(void **state)
{
    struct err err = {0};
    float x[] = {1, 2, 3, 4};
    const struct fit_watch watch = {.tick = stop};
    struct kmeans_options opt = {.k = 2};
    struct kmeans m;
    assert_int_equal(kmeans_fit(dev, x, NULL, 4, 1, &opt, &watch, &m, &err), -ERR_CANCELLED);
    opt.balance = 0.5;
    assert_int_equal(kmeans_fit(dev, x, NULL, 4, 1, &opt, NULL, &m, &err), -ERR_CONFIG);
    opt.balance = 0;
    opt.least = 3;
    assert_int_equal(kmeans_fit(dev, x, NULL, 4, 1, &opt, NULL, &m, &err), -ERR_CONFIG);
    opt.least = 0;
    x[2] = INFINITY;
    assert_int_equal(kmeans_fit(dev, x, NULL, 4, 1, &opt, NULL, &m, &err), -ERR_FORMAT);
    opt.k = 0;
    assert_int_equal(kmeans_fit(dev, x, NULL, 4, 1, &opt, NULL, &m, &err), -ERR_CONFIG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_planted),           cmocka_unit_test(test_duplicates),
        cmocka_unit_test(test_every_row_its_own), cmocka_unit_test(test_empty_is_repaired),
        cmocka_unit_test(test_balance),           cmocka_unit_test(test_weights),
        cmocka_unit_test(test_same_bits),         cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, device_setup, device_teardown);
}
