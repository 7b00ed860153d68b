/* Fitted routers of every kind: sizes as asked, files there and back, broken files. */
#include "worker/fit/partitioner.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/base/file.h"
#include "common/st/st.h"
#include "tests/unit/worker/fit/fit_test.h"
#include "worker/fit/fit.h"

#define N 1200
#define D 12

static char dir[] = "/tmp/skerry-partitioner-XXXXXX";
static float features[N * D];
static uint32_t owner[N]; /* 0..5: two digits, radix 2 and 3 */
static struct fit_source source;

/* The first half of the columns shows one digit, the second the other. */
static int setup(void **state)
{
    OK(device_setup(state));
    if (!mkdtemp(dir))
        return -1;
    for (uint32_t i = 0; i < N; i++) {
        owner[i] = rng_at_u32(1, 1, i) % 6;
        for (uint32_t j = 0; j < D; j++) {
            uint32_t digit = j < D / 2 ? owner[i] / 3 : owner[i] % 3;
            features[i * D + j] = 40 + 0.5F * rng_at_normal(1, 2, (uint64_t)i * D + j) +
                                  (j % 3 == digit ? 6.0F : 0.0F);
        }
    }
    fit_source_memory(&source, features, N, D);
    return 0;
}

static int teardown(void **state)
{
    device_close(dev);
    return file_remove_tree(dir, NULL);
}

static void path_of(const char *name, char out[256])
{
    snprintf(out, 256, "%s/%s", dir, name);
}

/* Share of the rows whose partition is the majority's of their owner. */
static double purity(const uint32_t *got, uint32_t k)
{
    uint32_t table[6][16] = {{0}}, sum = 0;
    assert_true(k <= 16);
    for (uint32_t i = 0; i < N; i++)
        table[owner[i]][got[i]]++;
    for (uint32_t o = 0; o < 6; o++) {
        uint32_t most = 0;
        for (uint32_t c = 0; c < k; c++)
            most = table[o][c] > most ? table[o][c] : most;
        sum += most;
    }
    return (double)sum / N;
}

/* Assigns, compares with the report, writes, reads, assigns again: the same. */
static void check_round_trip(struct partitioner *p, const struct partition_report *r,
                             const uint64_t *ids, uint32_t *ret_first)
{
    struct err e = {0};
    const uint32_t top = p->k < 3 ? p->k : 3;
    uint32_t *a = mem_alloc_array((size_t)N * top, sizeof(*a));
    uint32_t *b = mem_alloc_array((size_t)N * top, sizeof(*b));
    uint64_t sizes[16] = {0}, bytes;
    uint8_t sha[32], again[32];
    char path[256];
    OK(partitioner_assign(p, dev, ids ? NULL : &source, ids, N, top, a, err));
    for (uint32_t i = 0; i < N; i++) {
        sizes[a[i * top]]++;
        for (uint32_t j = 0; j < top; j++) {
            assert_true(a[i * top + j] < p->k);
            for (uint32_t l = 0; l < j; l++)
                assert_true(a[i * top + j] != a[i * top + l]);
        }
        ret_first[i] = a[i * top];
    }
    assert_memory_equal(sizes, r->sizes, p->k * sizeof(uint64_t));
    assert_true(partitioner_assign(p, dev, &source, ids, N, p->k + 1, a, &e) == -ERR_CONFIG);

    struct partitioner *q = NULL;
    path_of("p.safetensors", path);
    OK(partitioner_write(p, path, sha, &bytes, err));
    OK(partitioner_read(path, &q, err));
    assert_int_equal(q->kind, p->kind);
    assert_int_equal(q->k, p->k);
    assert_string_equal(q->feature, p->feature);
    OK(partitioner_assign(q, dev, ids ? NULL : &source, ids, N, top, b, err));
    assert_memory_equal(a, b, (size_t)N * top * sizeof(*a));
    OK(partitioner_write(q, path, again, &bytes, err));
    assert_memory_equal(sha, again, 32);
    partitioner_free(q);
    mem_free(a);
    mem_free(b);
}

static void test_kmeans(void **state)
{
    for (uint32_t pca = 0; pca <= 5; pca += 5) {
        const struct partition_options opt = {.kind = PARTITION_KMEANS,
                                              .radix = {6},
                                              .n_levels = 1,
                                              .seed = 4,
                                              .pca = pca,
                                              .feature = "pixels"};
        struct partitioner *p = NULL;
        struct partition_report r;
        uint32_t got[N];
        OK(partitioner_fit(dev, &source, NULL, &opt, NULL, &p, &r, err));
        assert_true(r.met && r.empty == 0 && r.n == N && r.k == 6);
        assert_true(pca ? r.explained > 0.8 && r.explained < 1 : r.explained == 1);
        check_round_trip(p, &r, NULL, got);
        assert_true(purity(got, 6) == 1);
        partition_report_release(&r);
        partitioner_free(p);
    }
}

static void test_two_level(void **state)
{
    struct err e = {0};
    struct partition_options opt = {
        .kind = PARTITION_TWO_LEVEL, .radix = {6}, .n_levels = 1, .seed = 4, .fine = 60};
    struct partitioner *p = NULL;
    struct partition_report r;
    uint32_t got[N];
    OK(partitioner_fit(dev, &source, NULL, &opt, NULL, &p, &r, err));
    assert_int_equal(p->level[0].k, 60);
    check_round_trip(p, &r, NULL, got);
    assert_true(purity(got, 6) == 1);
    partition_report_release(&r);
    partitioner_free(p);
    /* K that cannot follow the blobs, with a cap: 300 of 1200 rows in each of 4, at most 330 */
    opt.radix[0] = 4;
    opt.balance = 1.1;
    OK(partitioner_fit(dev, &source, NULL, &opt, NULL, &p, &r, err));
    assert_true(r.met && r.largest <= 1.1);
    check_round_trip(p, &r, NULL, got);
    partition_report_release(&r);
    partitioner_free(p);
    opt.fine = 3;
    assert_int_equal(partitioner_fit(dev, &source, NULL, &opt, NULL, &p, &r, &e), -ERR_CONFIG);
    assert_non_null(strstr(e.msg, "fine clusters"));
}

/* Digit 0 is level 0 and the most significant. */
static void test_product(void **state)
{
    const struct partition_options opt = {
        .kind = PARTITION_PRODUCT, .radix = {2, 3}, .n_levels = 2, .seed = 4};
    struct partitioner *p = NULL;
    struct partition_report r;
    uint32_t got[N];
    OK(partitioner_fit(dev, &source, NULL, &opt, NULL, &p, &r, err));
    assert_int_equal(p->n_fitted, 2);
    assert_int_equal(p->level[1].at, 6);
    check_round_trip(p, &r, NULL, got);
    assert_true(purity(got, 6) == 1);
    for (uint32_t i = 1; i < N; i++) {
        bool high = owner[i] / 3 == owner[0] / 3, low = owner[i] % 3 == owner[0] % 3;
        assert_true((got[i] / 3 == got[0] / 3) == high);
        assert_true((got[i] % 3 == got[0] % 3) == low);
    }
    /* overlap: the second nearest differs in one digit only */
    uint32_t two[2 * N];
    OK(partitioner_assign(p, dev, &source, NULL, N, 2, two, err));
    for (uint32_t i = 0; i < N; i++)
        assert_true(two[2 * i] / 3 == two[2 * i + 1] / 3 || two[2 * i] % 3 == two[2 * i + 1] % 3);
    partition_report_release(&r);
    partitioner_free(p);
}

/* Features whose digits always agree leave cells of the product without samples. */
static void test_empty_cells(void **state)
{
    const uint32_t n = 400, d = 4;
    float *x = mem_alloc_array((size_t)n * d, sizeof(float));
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j < d; j++)
            x[i * d + j] = rng_at_normal(1, 2, (uint64_t)i * d + j) + (i % 2 ? 20.0F : 0);
    struct fit_source s;
    fit_source_memory(&s, x, n, d);
    struct partition_options opt = {
        .kind = PARTITION_PRODUCT, .radix = {2, 2}, .n_levels = 2, .seed = 4};
    struct partitioner *p = NULL;
    struct partition_report r;
    OK(partitioner_fit(dev, &s, NULL, &opt, NULL, &p, &r, err));
    assert_int_equal(r.empty, 2); /* allowed */
    assert_int_equal(r.repaired, 0);
    assert_true(r.met && r.smallest == 0);
    partition_report_release(&r);
    partitioner_free(p);
    opt.min_samples = 40;
    OK(partitioner_fit(dev, &s, NULL, &opt, NULL, &p, &r, err));
    assert_true(r.met && r.empty == 0 && r.smallest >= 40 && r.smallest < 60);
    assert_int_equal(r.repaired, 2);
    partition_report_release(&r);
    partitioner_free(p);
    mem_free(x);
}

static void test_linear(void **state)
{
    struct err e = {0};
    uint32_t got[N];
    struct linear_targets t = {.y = owner};
    const struct partition_options opt = {.radix = {2, 3}, .n_levels = 2, .seed = 4};
    struct partitioner *p = NULL;
    struct partition_report r;
    OK(partitioner_fit_linear(dev, &source, &t, &opt, NULL, &p, &r, err));
    assert_true(r.accuracy > 0.99 && r.met);
    check_round_trip(p, &r, NULL, got);
    for (uint32_t i = 0, wrong = 0; i < N; i++) {
        wrong += got[i] != owner[i];
        assert_true(wrong < N / 50);
    }
    partition_report_release(&r);
    partitioner_free(p);
    /* another histogram than the targets have */
    const double share[6] = {0.3, 0.1, 0.1, 0.1, 0.3, 0.1};
    t.share = share;
    OK(partitioner_fit_linear(dev, &source, &t, &opt, NULL, &p, &r, err));
    assert_true(r.met);
    for (uint32_t c = 0; c < 6; c++)
        assert_true(fabs((double)r.sizes[c] - share[c] * N) < 3);
    partition_report_release(&r);
    partitioner_free(p);
    /* few rows with targets, the histogram of all */
    struct fit_source few;
    fit_source_memory(&few, features, 200, D);
    t.routed = &source;
    OK(partitioner_fit_linear(dev, &few, &t, &opt, NULL, &p, &r, err));
    assert_true(r.met && r.n == N);
    check_round_trip(p, &r, NULL, got);
    for (uint32_t c = 0; c < 6; c++)
        assert_true(fabs((double)r.sizes[c] - share[c] * N) < 3);
    partition_report_release(&r);
    partitioner_free(p);
    t.share = (const double[]){0.5, 0, 0, 0, 0, 0};
    assert_int_equal(partitioner_fit_linear(dev, &source, &t, &opt, NULL, &p, &r, &e), -ERR_CONFIG);
}

static void test_random(void **state)
{
    const struct partition_options opt = {
        .kind = PARTITION_RANDOM, .radix = {5}, .n_levels = 1, .seed = 4, .balance = 1.3};
    struct partitioner *p = NULL;
    struct partition_report r;
    uint64_t ids[N];
    uint32_t got[N], one;
    for (uint32_t i = 0; i < N; i++)
        ids[i] = 1000 + i;
    OK(partitioner_fit(dev, &source, ids, &opt, NULL, &p, &r, err));
    assert_true(r.met && r.largest < 1.3 && r.smallest > 180);
    check_round_trip(p, &r, ids, got);
    OK(partitioner_assign(p, dev, NULL, ids + 7, 1, 1, &one, err)); /* by the id alone */
    assert_int_equal(one, got[7]);
    partition_report_release(&r);
    partitioner_free(p);
}

static void test_refusals(void **state)
{
    struct err e = {0};
    struct partition_options opt = {.radix = {N + 1}, .n_levels = 1};
    struct partitioner *p = NULL;
    struct partition_report r;
    struct fit_source narrow;
    assert_int_equal(partitioner_fit(dev, &source, NULL, &opt, NULL, &p, &r, &e), -ERR_CONFIG);
    assert_non_null(strstr(e.msg, "only 1200 samples"));
    opt.radix[0] = 4;
    opt.min_samples = 301;
    assert_int_equal(partitioner_fit(dev, &source, NULL, &opt, NULL, &p, &r, &e), -ERR_CONFIG);
    assert_non_null(strstr(e.msg, "1204"));
    opt.min_samples = 0;
    opt.balance = 0.9;
    assert_int_equal(partitioner_fit(dev, &source, NULL, &opt, NULL, &p, &r, &e), -ERR_CONFIG);
    opt.balance = 0;
    opt.n_levels = 0;
    assert_int_equal(partitioner_fit(dev, &source, NULL, &opt, NULL, &p, &r, &e), -ERR_CONFIG);
    opt.kind = PARTITION_PRODUCT;
    opt.n_levels = 3;
    opt.radix[0] = opt.radix[1] = opt.radix[2] = 2;
    fit_source_memory(&narrow, features, N, 2);
    assert_int_equal(partitioner_fit(dev, &narrow, NULL, &opt, NULL, &p, &r, &e), -ERR_CONFIG);
    assert_non_null(strstr(e.msg, "3 levels"));
    assert_null(p);
    opt.kind = PARTITION_KMEANS;
    OK(partitioner_fit(dev, &source, NULL, &opt, NULL, &p, &r, err));
    uint32_t got[N];
    assert_int_equal(partitioner_assign(p, dev, &narrow, NULL, N, 1, got, &e), -ERR_CONFIG);
    partition_report_release(&r);
    partitioner_free(p);
}

/* Every allocation failing in turn: an error, nothing lost (seen by asan). */
static void test_no_memory(void **state)
{
    struct err err = {0};
    if (!mem_fault_set(0))
        return; /* this build cannot fail them */
    const struct partition_options opt = {.kind = PARTITION_TWO_LEVEL,
                                          .radix = {3},
                                          .n_levels = 1,
                                          .pca = 4,
                                          .fine = 9,
                                          .balance = 1.05,
                                          .iterations = 2,
                                          .restarts = 1};
    for (long at = 1;; at += 1 + at / 8) {
        struct partitioner *p = NULL;
        struct partition_report r;
        mem_fault_set(at);
        int rc = partitioner_fit(dev, &source, NULL, &opt, NULL, &p, &r, &err);
        bool fired = mem_fault_fired();
        mem_fault_set(0);
        if (rc == 0) {
            partition_report_release(&r);
            partitioner_free(p);
        }
        if (!fired)
            break;
        assert_true(rc < 0);
    }
}

/* ---- files ------------------------------------------------------------------------ */

static void write_two_level(const char *path)
{
    const struct partition_options opt = {
        .kind = PARTITION_TWO_LEVEL, .radix = {3}, .n_levels = 1, .pca = 4, .fine = 9};
    struct partitioner *p = NULL;
    struct partition_report r;
    OK(partitioner_fit(dev, &source, NULL, &opt, NULL, &p, &r, err));
    OK(partitioner_write(p, path, NULL, NULL, err));
    partition_report_release(&r);
    partitioner_free(p);
}

static void refuse(const char *path, const char *words)
{
    struct err err = {0};
    struct partitioner *q = NULL;
    if (partitioner_read(path, &q, &err) >= 0)
        fail_msg("%s was read", words);
    assert_null(q);
    if (!strstr(err.msg, words))
        fail_msg("'%s' does not say '%s'", err.msg, words);
}

/* Overwrites one tensor's values, or a text in the header, of the same length. */
static void patch(const char *path, const char *tensor, uint32_t value, const char *from,
                  const char *to)
{
    struct buf b;
    struct st st;
    OK(file_read(path, 1 << 20, &b, err));
    OK(st_parse(b.data, b.len, b.len, path, &st, err));
    if (tensor)
        memcpy(b.data + st_find(&st, tensor)->offset, &value, 4);
    if (from) {
        uint8_t *at = memmem(b.data, b.len, from, strlen(from));
        assert_non_null(at);
        memcpy(at, to, strlen(to));
    }
    st_release(&st);
    OK(file_write_atomic(path, b.data, b.len, 0600, err));
    buf_release(&b);
}

static void test_broken_files(void **state)
{
    char path[256];
    path_of("broken.safetensors", path);
    OK(file_write_atomic(path, "", 0, 0600, err));
    refuse(path, "broken.safetensors");
    const struct {
        const char *tensor;
        uint32_t value;
        const char *from, *to, *words;
    } cases[] = {
        {"level.0.weight", 0x7fc00000u, NULL, NULL, "level.0.weight"},
        {"mean", 0x7f800000u, NULL, NULL, "mean"},
        {"bias", 0xff800000u, NULL, NULL, "bias"},
        {"group", 3, NULL, NULL, "that there is not"},
        {NULL, 0, "partitioner.1", "partitioner.2", "format"},
        {NULL, 0, "two_level", "two_lever", "its kind"},
        {NULL, 0, "two_level", "product\",", "header"},
        {NULL, 0, "\"radix\":\"3\"", "\"radix\":\"4\"", "has no fine cluster"},
        {NULL, 0, "\"radix\":\"3\"", "\"radix\":\"0\"", "radix"},
        {NULL, 0, "\"radix\":\"3\"", "\"radix\":\",\"", "radix"},
        {NULL, 0, "\"seed\":\"0\"", "\"seed\":\"x\"", "seed"},
        {NULL, 0, "\"basis\"", "\"basil\"", "no basis"},
        {NULL, 0, "\"group\"", "\"grouq\"", "group"},
        {NULL, 0, "\"scale\"", "\"stale\"", "scale"},
        {NULL, 0, "intercept", "interceqt", "intercept"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        write_two_level(path);
        patch(path, cases[i].tensor, cases[i].value, cases[i].from, cases[i].to);
        refuse(path, cases[i].words);
    }
}

/* Cut anywhere, the file is refused or the same; never a crash. */
static void test_cut_files(void **state)
{
    struct err e = {0};
    char path[256], cut[256];
    struct buf b;
    path_of("whole.safetensors", path);
    path_of("cut.safetensors", cut);
    write_two_level(path);
    OK(file_read(path, 1 << 20, &b, err));
    for (size_t len = 0; len < b.len; len += 1 + len / 16) {
        struct partitioner *q = NULL;
        OK(file_write_atomic(cut, b.data, len, 0600, err));
        assert_true(partitioner_read(cut, &q, &e) < 0);
        assert_null(q);
    }
    buf_release(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kmeans),       cmocka_unit_test(test_two_level),
        cmocka_unit_test(test_product),      cmocka_unit_test(test_empty_cells),
        cmocka_unit_test(test_linear),       cmocka_unit_test(test_random),
        cmocka_unit_test(test_refusals),     cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_broken_files), cmocka_unit_test(test_cut_files),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
