/* A delta brings an older version to the bits of the next one, or leaves no file. */
#include "tests/unit/common/outer/fixture.h"

#include <errno.h>

#include "common/base/hash.h"
#include "common/outer/version.h"

/* A step from version 0, with the names of its files. */
struct stepped {
    struct fixture f;
    struct fx_out out;
    struct fold_result result;
    char *made; /* where a test puts the next version */
};

static void stepped_begin(struct stepped *s, enum codec down)
{
    fx_begin(&s->f);
    float *end = fx_array();
    fx_normal(3, 0.05f, end);
    char *blob = fx_path(&s->f, "c");
    fx_contribute(s->f.full, 0, end, CODEC_F32, 10, blob);
    struct fold_input in = {.path = blob, .weight = 10};
    struct fold_step step = fx_step(&s->f, &in, 1, CODEC_F32, down);
    fx_out_begin(&s->f, "v1", &step, &s->out);
    s->result = fx_fold(&step);
    s->made = fx_path(&s->f, "made");
    mem_free(blob);
    free(end);
}

static void stepped_end(struct stepped *s)
{
    fx_out_end(&s->out);
    mem_free(s->made);
    fx_end(&s->f);
}

static void every_codec_gives_the_bits_of_the_executor(void **state)
{
    for (int c = 0; c < CODEC_COUNT; c++) {
        struct stepped s;
        struct err err = {0};
        uint8_t sha256[HASH_BYTES];
        stepped_begin(&s, (enum codec)c);
        assert_false(fx_same_files(s.f.full, s.out.path[0])); /* the step went somewhere */
        assert_int_equal(version_apply_delta(s.f.full, s.out.path[1], MODULE, 0, s.made, NULL,
                                             s.result.full.sha256, sha256, &err),
                         0);
        assert_true(fx_same_files(s.made, s.out.path[0]));
        assert_memory_equal(sha256, s.result.full.sha256, HASH_BYTES);
        assert_int_equal(
            version_apply_delta(s.f.full, s.out.path[1], MODULE, 0, s.made, NULL, NULL, NULL, &err),
            0);
        stepped_end(&s);
    }
}

/* Fails so, with a sentence that has `why`, and makes no file. */
static void refused(const struct stepped *s, const char *full, const char *delta, uint64_t module,
                    uint64_t from, int code, const char *why)
{
    struct err err = {0};
    uint8_t sha256[HASH_BYTES] = {0x5a};
    int rc = version_apply_delta(full, delta, module, from, s->made, NULL, s->result.full.sha256,
                                 sha256, &err);
    if (rc != code || !strstr(err.msg, why))
        fail_msg("%d \"%s\", expected %d \"%s\"", rc, err.msg, code, why);
    assert_false(file_exists(s->made));
    assert_int_equal(sha256[0], 0x5a);
}

static void a_delta_of_something_else_is_refused(void **state)
{
    struct stepped s;
    stepped_begin(&s, CODEC_INT8);
    const char *full = s.f.full, *delta = s.out.path[1];
    char *absent = fx_path(&s.f, "absent"), *up = fx_path(&s.f, "c");
    refused(&s, full, delta, MODULE + 1, 0, -ERR_FORMAT, "is of module 7, expected module 8");
    refused(&s, full, delta, MODULE, 1, -ERR_STALE, "starts from version 0, expected version 1");
    refused(&s, full, up, MODULE, 0, -ERR_FORMAT, "is a contribution, expected a delta");
    refused(&s, full, full, MODULE, 0, -ERR_FORMAT, "not a blob of Skerry");
    refused(&s, absent, delta, MODULE, 0, -ENOENT, "opening ");
    refused(&s, full, absent, MODULE, 0, -ENOENT, absent);
    refused(&s, delta, delta, MODULE, 0, -ERR_FORMAT, "a full version holds only F32");
    mem_free(absent);
    mem_free(up);
    stepped_end(&s);
}

static void a_result_with_another_hash_is_not_kept(void **state)
{
    struct stepped s;
    struct err err = {0};
    stepped_begin(&s, CODEC_BF16);
    /* A version of the same shapes, but not the one that the delta was made from. */
    char *other = fx_path(&s.f, "other");
    s.f.theta[PARAMS - 1] += 1.0f;
    fx_write_full(other, s.f.theta);
    refused(&s, other, s.out.path[1], MODULE, 0, -ERR_HASH,
            "does not give version 1: the hash differs");
    assert_int_equal(
        version_apply_delta(other, s.out.path[1], MODULE, 0, s.made, NULL, NULL, NULL, &err), 0);
    assert_false(fx_same_files(s.made, s.out.path[0]));
    mem_free(other);
    stepped_end(&s);
}

static void a_value_that_is_not_finite_is_refused(void **state)
{
    struct stepped s;
    struct err err = {0};
    struct buf b;
    stepped_begin(&s, CODEC_BF16);
    assert_int_equal(file_read(s.out.path[1], 64 << 20, &b, &err), 0);
    memcpy(b.data + b.len - 2, "\xc0\x7f", 2); /* the last element: NaN */
    assert_int_equal(file_write_atomic(s.out.path[1], b.data, b.len, 0600, &err), 0);
    buf_release(&b);
    refused(&s, s.f.full, s.out.path[1], MODULE, 0, -ERR_FORMAT,
            "tensor y.table holds a value that is not finite or out of range");
    stepped_end(&s);
}

/* From a contribution the weights of the worker that made it: exact, or as fine as its codec. */
static void a_contribution_gives_the_weights_behind_it(void **state)
{
    static const double most[CODEC_COUNT] = {0, 4e-6, 1e-4, 0.05}; /* of the energy */
    for (int c = 0; c < CODEC_COUNT; c++) {
        struct fixture f;
        struct err err = {0};
        double off = 0, all = 0;
        fx_begin(&f);
        float *end = fx_array(), *got = fx_array();
        char *blob = fx_path(&f, "c"), *made = fx_path(&f, "made");
        fx_normal(3, 0.05f, end);
        for (size_t i = 0; i < PARAMS; i++)
            end[i] += f.theta[i];
        fx_contribute(f.full, 4, end, (enum codec)c, 10, blob);
        if (version_apply_contribution(f.full, blob, MODULE, 4, made, &err) < 0)
            fail_msg("%s", err.msg);
        fx_read_flat(made, got);
        for (size_t i = 0; i < PARAMS; i++) {
            off += pow((double)got[i] - (double)end[i], 2);
            all += pow((double)end[i] - (double)f.theta[i], 2);
        }
        if (off > most[c] * all)
            fail_msg("%s: %g of the energy is lost", codec_name((enum codec)c), off / all);
        assert_true(version_apply_contribution(f.full, blob, MODULE, 5, made, NULL) < 0);
        assert_true(version_apply_contribution(f.full, blob, MODULE + 1, 4, made, NULL) < 0);
        mem_free(blob);
        mem_free(made);
        free(end);
        free(got);
        fx_end(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_codec_gives_the_bits_of_the_executor),
        cmocka_unit_test(a_delta_of_something_else_is_refused),
        cmocka_unit_test(a_result_with_another_hash_is_not_kept),
        cmocka_unit_test(a_value_that_is_not_finite_is_refused),
        cmocka_unit_test(a_contribution_gives_the_weights_behind_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
