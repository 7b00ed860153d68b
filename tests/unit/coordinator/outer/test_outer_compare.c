/* How far two contributions are apart, whatever their codec. */
#include "tests/unit/blobs.h"

#include "tests/unit/common/outer/fixture.h"

#include <math.h>

#include "common/net/loop.h"
#include "coordinator/outer/outer_compare.h"
#include "tests/unit/wait.h"

struct bench {
    struct fixture f;
    struct loop *loop;
    struct pool *pool;
    struct blobstore *store;
    bool done;
    int rc;
    double apart;
    char why[512];
};

static int begin(void **state)
{
    static struct bench b;
    struct err err = {0};
    memset(&b, 0, sizeof(b));
    fx_begin(&b.f);
    char *dir = fx_path(&b.f, "blobs");
    assert_int_equal(loop_new(&b.loop, &err), 0);
    assert_int_equal(pool_new(b.loop, "test", 1, 1, &b.pool, &err), 0);
    assert_int_equal(blob_dir_open(dir, 0, &b.store, &err), 0);
    mem_free(dir);
    *state = &b;
    return 0;
}

static int end(void **state)
{
    struct bench *b = *state;
    pool_free(b->pool);
    loop_free(b->loop);
    b->store->ops->close(b->store);
    fx_end(&b->f);
    return 0;
}

static struct blob_ref put(struct bench *b, const char *path)
{
    struct blob_ref ret;
    struct blob_id id;
    struct buf data;
    assert_int_equal(file_read(path, 64 << 20, &data, NULL), 0);
    assert_int_equal(blob_put(b->store, data.data, data.len, &id, NULL), 0);
    ret.size = data.len;
    memcpy(ret.sha256, id.sha256, sizeof(ret.sha256));
    buf_release(&data);
    return ret;
}

/* A phase that moved every weight by scale times what the seed draws. */
static struct blob_ref phase(struct bench *b, enum codec codec, uint64_t seed, float scale)
{
    char *path = fx_path(&b->f, "phase");
    float *theta = fx_array();
    fx_normal(seed, scale, theta);
    for (size_t i = 0; i < PARAMS; i++)
        theta[i] += b->f.theta[i];
    fx_contribute(b->f.full, 0, theta, codec, 8, path);
    struct blob_ref ret = put(b, path);
    free(theta);
    mem_free(path);
    return ret;
}

static void heard(void *arg, int rc, double apart, const char *why)
{
    struct bench *b = arg;
    b->done = true;
    b->rc = rc;
    b->apart = apart;
    (void)str_copy(b->why, sizeof(b->why), why);
}

static int compare(struct bench *b, const struct outer_pair *pairs, size_t n)
{
    b->done = false;
    assert_int_equal(outer_compare(b->pool, b->store, pairs, n, heard, b), 0);
    assert_int_equal(outer_compare(b->pool, b->store, pairs, n, heard, b), -EAGAIN);
    WAIT_FOR(b, b->done);
    return b->rc;
}

static struct outer_pair pair(struct bench *b, enum codec codec, struct blob_ref x,
                              struct blob_ref y)
{
    return (struct outer_pair){MODULE, 0, put(b, b->f.full), x, y, codec};
}

static void distances(void **state)
{
    static const struct {
        uint64_t seed;
        float scale;
        double apart, by; /* by: what rounding by the codec may change */
    } cases[] = {
        {5, 0.01f, 0, 1e-6},   {5, 0.02f, 1, 0.03},
        {5, 0.011f, 0.1, 0.2}, {6, 0.01f, 1.414, 0.1}, /* noise of the same size */
        {6, 1, 100, 2},        {5, -0.01f, 2, 0.03},
    };
    static const enum codec codecs[] = {CODEC_F32, CODEC_BF16, CODEC_INT8, CODEC_E3M0};
    struct bench *b = *state;
    for (size_t k = 0; k < sizeof(codecs) / sizeof(codecs[0]); k++) {
        const struct blob_ref honest = phase(b, codecs[k], 5, 0.01f);
        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
            const struct outer_pair p =
                pair(b, codecs[k], phase(b, codecs[k], cases[i].seed, cases[i].scale), honest);
            assert_int_equal(compare(b, &p, 1), 0);
            if (!(fabs(b->apart - cases[i].apart) <= cases[i].by))
                fail_msg("codec %d, case %zu: %g apart", (int)codecs[k], i, b->apart);
        }
    }
}

/* The worst of several modules counts; what is not at all cannot be far. */
static void the_worst_counts(void **state)
{
    struct bench *b = *state;
    const struct blob_ref a = phase(b, CODEC_BF16, 5, 0.01f), none = phase(b, CODEC_BF16, 5, 0),
                          other = phase(b, CODEC_BF16, 6, 0.01f);
    struct outer_pair p[3] = {pair(b, CODEC_BF16, a, a), pair(b, CODEC_BF16, other, a),
                              pair(b, CODEC_BF16, none, none)};
    assert_int_equal(compare(b, p, 3), 0);
    assert_float_equal(b->apart, 1.414, 0.05);
    p[1] = pair(b, CODEC_BF16, a, none);
    assert_int_equal(compare(b, p, 3), 0);
    assert_true(isinf(b->apart));
    p[1] = pair(b, CODEC_BF16, none, none);
    assert_int_equal(compare(b, p, 3), 0);
    assert_true(b->apart < 1e-6);
}

static void what_cannot_be_compared(void **state)
{
    struct bench *b = *state;
    const struct blob_ref a = phase(b, CODEC_BF16, 5, 0.01f), full = put(b, b->f.full);
    struct outer_pair p = pair(b, CODEC_BF16, a, full);
    assert_true(compare(b, &p, 1) < 0 && b->why[0] != '\0');
    p = pair(b, CODEC_BF16, a, a);
    p.a.sha256[0] ^= 1;
    assert_int_equal(compare(b, &p, 1), -ERR_NOTFOUND);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(distances, begin, end),
        cmocka_unit_test_setup_teardown(the_worst_counts, begin, end),
        cmocka_unit_test_setup_teardown(what_cannot_be_compared, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
