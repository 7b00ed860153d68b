/* Contributions: error feedback conserves the sum (papers.md, 6 (h)), the reader
 * refuses whatever does not fit, the norms of the check are right. */
#include "tests/unit/common/outer/fixture.h"

#include <errno.h>
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/outer/wire.h"

static struct wire_info want_info(enum codec codec)
{
    return (struct wire_info){.kind = WIRE_CONTRIBUTION, .codec = codec, .module_id = MODULE};
}

/* What a blob says, decoded: differences (values for f32). */
static void decode_blob(const char *path, const char *full, enum codec codec, float *out)
{
    struct err err = {0};
    struct layout l = {0};
    struct wire w = {.fd = -1};
    struct wire_info want = want_info(codec);
    void *payload = malloc(PARAMS * 4);
    uint16_t *scales = malloc(PARAMS);
    assert_int_equal(layout_open(full, &l, &err), 0);
    if (wire_open(path, &want, &l, &w, &err) < 0)
        fail_msg("%s", err.msg);
    for (size_t t = 0; t < l.st.n_tensors; t++) {
        size_t n = (size_t)l.st.tensors[t].count;
        assert_int_equal(wire_read(&w, t, 0, n, payload, scales, &err), 0);
        coding_decode(codec, n, payload, scales, out + layout_first(&l, t));
    }
    wire_close(&w);
    layout_release(&l);
    free(payload);
    free(scales);
}

struct feedback {
    struct fixture f;
    float *delta, *end, *sent, *residual, *next;
    double *sum_delta, *sum_sent;
    char *blob, *current, *pending;
};

static void feedback_begin(struct feedback *b)
{
    fx_begin(&b->f);
    b->delta = fx_array();
    b->end = fx_array();
    b->sent = fx_array();
    b->residual = fx_array();
    b->next = fx_array();
    b->sum_delta = calloc(PARAMS, sizeof(double));
    b->sum_sent = calloc(PARAMS, sizeof(double));
    b->blob = fx_path(&b->f, "c");
    b->current = fx_path(&b->f, "residual");
    b->pending = fx_path(&b->f, "residual.pending");
    memset(b->residual, 0, PARAMS * 4);
}

static void feedback_end(struct feedback *b)
{
    float *arrays[] = {b->delta, b->end, b->sent, b->residual, b->next};
    for (size_t i = 0; i < 5; i++)
        free(arrays[i]);
    free(b->sum_delta);
    free(b->sum_sent);
    mem_free(b->blob);
    mem_free(b->current);
    mem_free(b->pending);
    fx_end(&b->f);
}

/* One round: asserts sent + residual' == u to the bit, u = delta + residual. */
static void feedback_round(struct feedback *b, enum codec codec)
{
    struct err err = {0};
    struct contribution_result r;
    for (size_t i = 0; i < PARAMS; i++) {
        b->end[i] = b->f.theta[i] - b->delta[i];
        b->delta[i] = b->f.theta[i] - b->end[i];
    }
    struct contribution_job job = fx_job(b->f.full, 0, b->end, codec, 5, b->blob);
    job.residual_path = b->current;
    job.residual_pending = b->pending;
    if (contribution_write(&job, &r, &err) < 0)
        fail_msg("%s", err.msg);
    decode_blob(b->blob, b->f.full, codec, b->sent);
    fx_read_flat(b->pending, b->next);
    double norm = 0;
    for (size_t i = 0; i < PARAMS; i++) {
        float u = b->delta[i] + b->residual[i];
        assert_true((double)b->sent[i] + (double)b->next[i] == (double)u);
        b->sum_delta[i] += (double)b->delta[i];
        b->sum_sent[i] += (double)b->sent[i];
        norm += (double)b->sent[i] * b->sent[i];
    }
    struct fold_norm checked;
    assert_int_equal(
        fold_check(b->blob, &(struct fold_origin){codec, 0, b->f.full}, MODULE, &checked, &err), 0);
    assert_true(fabs(checked.norm - sqrt(norm)) <= 1e-9 * sqrt(norm));
    assert_int_equal(checked.samples, 5);
    assert_int_equal(residual_commit(b->pending, b->current, &err), 0);
    assert_false(file_exists(b->pending));
    memcpy(b->residual, b->next, PARAMS * 4);
}

/* Deltas on a grid: every sum is exact, so the identity is an equality. */
static void test_sum_is_conserved(void **state)
{
    (void)state;
    for (int c = CODEC_BF16; c < CODEC_COUNT; c++) {
        struct feedback b;
        feedback_begin(&b);
        for (size_t i = 0; i < PARAMS; i++)
            b.f.theta[i] = roundf(b.f.theta[i] * 0x1p12f) * 0x1p-12f;
        fx_write_full(b.f.full, b.f.theta);
        for (uint64_t round = 0; round < 8; round++) {
            fx_normal(200 + round, 1.0f, b.delta);
            for (size_t i = 0; i < PARAMS; i++)
                b.delta[i] = roundf(b.delta[i] * 0x1p6f) * 0x1p-12f;
            feedback_round(&b, (enum codec)c);
            for (size_t i = 0; i < PARAMS; i++)
                assert_true(b.sum_sent[i] + (double)b.residual[i] == b.sum_delta[i]);
        }
        feedback_end(&b);
    }
}

/* Any deltas: each round is exact but for the rounding of `+ residual`. */
static void test_sum_is_conserved_to_rounding(void **state)
{
    (void)state;
    for (int c = CODEC_BF16; c < CODEC_COUNT; c++) {
        struct feedback b;
        feedback_begin(&b);
        for (uint64_t round = 0; round < 8; round++) {
            fx_normal(300 + round, 1e-3f, b.delta);
            feedback_round(&b, (enum codec)c);
        }
        for (size_t i = 0; i < PARAMS; i++) {
            double lost = b.sum_sent[i] + (double)b.residual[i] - b.sum_delta[i];
            assert_true(fabs(lost) <= 8 * 0x1p-24 * 0.02); /* 8 roundings of |u| < 0.02 */
        }
        feedback_end(&b);
    }
}

/* A residual is written over the one before the last, whole, whatever lay there. */
static void test_residual_over_the_spare(void **state)
{
    (void)state;
    struct feedback b;
    struct stat made[4];
    feedback_begin(&b);
    char *spare = fx_path(&b.f, "residual.spare");
    for (uint64_t round = 0; round < 4; round++) {
        fx_normal(400 + round, 1e-3f, b.delta);
        feedback_round(&b, CODEC_E3M0); /* compares all of it */
        assert_int_equal(stat(b.current, &made[round]), 0);
        assert_true(file_exists(spare) == (round > 0));
        if (round == 1) /* longer than it will be */
            assert_int_equal(truncate(spare, made[0].st_size + 100), 0);
    }
    assert_true(made[2].st_ino == made[0].st_ino && made[3].st_ino == made[1].st_ino);
    assert_true(made[0].st_ino != made[1].st_ino);
    assert_int_equal(made[2].st_size, made[0].st_size);
    mem_free(spare);
    feedback_end(&b);
}

static void test_residual_drop(void **state)
{
    (void)state;
    struct feedback b;
    struct err err = {0};
    struct contribution_result r, again;
    feedback_begin(&b);
    fx_normal(1, 1e-3f, b.end);
    struct contribution_job job = fx_job(b.f.full, 0, b.end, CODEC_E3M0, 5, b.blob);
    job.residual_path = b.current;
    job.residual_pending = b.pending;
    assert_int_equal(contribution_write(&job, &r, &err), 0);
    assert_true(file_exists(b.pending));
    assert_int_equal(residual_drop(b.pending, &err), 0);
    assert_int_equal(residual_drop(b.pending, &err), 0);
    assert_int_equal(residual_commit(b.pending, b.current, &err), 0); /* nothing to commit */
    assert_false(file_exists(b.current));
    assert_int_equal(contribution_write(&job, &again, &err), 0); /* a redo: the same bytes */
    assert_memory_equal(r.sha256, again.sha256, HASH_BYTES);
    job.codec = CODEC_F32;
    assert_int_equal(residual_drop(b.pending, &err), 0);
    assert_int_equal(contribution_write(&job, &again, &err), 0);
    assert_false(file_exists(b.pending));
    feedback_end(&b);
}

static void test_not_finite(void **state)
{
    (void)state;
    struct feedback b;
    struct err err = {0};
    struct contribution_result r;
    feedback_begin(&b);
    memcpy(b.end, b.f.theta, PARAMS * 4);
    b.end[70] = NAN;
    for (int c = 0; c < CODEC_COUNT; c++) {
        struct contribution_job job = fx_job(b.f.full, 0, b.end, (enum codec)c, 5, b.blob);
        job.residual_pending = b.pending;
        assert_int_equal(contribution_write(&job, &r, &err), -EDOM);
        assert_non_null(strstr(err.msg, "blocks.0.weight"));
        assert_false(file_exists(b.blob));
        assert_false(file_exists(b.pending));
    }
    feedback_end(&b);
}

/* ---- what the reader refuses ---- */

static int check_blob(const struct fixture *f, const char *path, enum codec codec, struct err *err)
{
    struct fold_norm norm;
    return fold_check(path, &(struct fold_origin){codec, 0, f->full}, MODULE, &norm, err);
}

static void rewrite(const char *path, const uint8_t *data, size_t len)
{
    struct err err = {0};
    assert_int_equal(file_write_atomic(path, data, len, 0600, &err), 0);
}

/* Replaces text in the header by other text of the same length. */
static void patch(const char *from, const char *to, const char *old, const char *new_text)
{
    struct err err = {0};
    struct buf b;
    assert_int_equal(strlen(old), strlen(new_text));
    assert_int_equal(file_read(from, 64 << 20, &b, &err), 0);
    uint8_t *at = memmem(b.data, b.len, old, strlen(old));
    assert_non_null(at);
    memcpy(at, new_text, strlen(old));
    rewrite(to, b.data, b.len);
    buf_release(&b);
}

static void test_reader_refuses(void **state)
{
    (void)state;
    static const struct {
        const char *old, *new_text, *says;
        int rc;
    } rows[] = {
        {"\"contribution\"", "\"contributioN\"", "skerry.kind", -ERR_FORMAT},
        {"\"skerry.codec\":\"e3m0\"", "\"skerry.codec\":\"int8\"", "the job file says",
         -ERR_FORMAT},
        {"\"skerry.codec\":\"e3m0\"", "\"skerry.codec\":\"fp04\"", "skerry.codec", -ERR_FORMAT},
        {"\"skerry.module\":\"7\"", "\"skerry.module\":\"8\"", "module 8", -ERR_FORMAT},
        {"\"skerry.base\":\"0\"", "\"skerry.base\":\"3\"", "version 3", -ERR_STALE},
        {"\"skerry.base\":\"0\"", "\"skerry.base\":\"x\"", "number", -ERR_FORMAT},
        {"\"skerry.base\"", "\"skerry.bass\"", "skerry.base", -ERR_FORMAT},
        {"difference", "diffarence", "skerry.encoding", -ERR_FORMAT},
        {"blocks.0.bias.scale", "blocks.0.bias.skale", "blocks.0.bias", -ERR_FORMAT},
        {"\"blocks.0.weight\"", "\"blocks.9.weight\"", "blocks.0.weight", -ERR_FORMAT},
    };
    struct fixture f;
    fx_begin(&f);
    char *good = fx_path(&f, "good"), *bad = fx_path(&f, "bad");
    fx_contribute(f.full, 0, f.theta, CODEC_E3M0, 5, good);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct err err = {0};
        patch(good, bad, rows[i].old, rows[i].new_text);
        assert_int_equal(check_blob(&f, bad, CODEC_E3M0, &err), rows[i].rc);
        if (!strstr(err.msg, rows[i].says))
            fail_msg("\"%s\" does not mention %s", err.msg, rows[i].says);
    }
    struct err err = {0};
    assert_int_equal(check_blob(&f, good, CODEC_E3M0, &err), 0);
    assert_int_equal(check_blob(&f, f.full, CODEC_E3M0, &err), -ERR_FORMAT);
    assert_int_equal(check_blob(&f, "/nowhere", CODEC_E3M0, &err), -ENOENT);
    mem_free(good);
    mem_free(bad);
    fx_end(&f);
}

static void test_cut_short(void **state)
{
    (void)state;
    struct fixture f;
    struct buf b;
    struct err err = {0};
    fx_begin(&f);
    char *good = fx_path(&f, "good"), *bad = fx_path(&f, "bad");
    fx_contribute(f.full, 0, f.theta, CODEC_INT8, 5, good);
    assert_int_equal(file_read(good, 64 << 20, &b, &err), 0);
    for (size_t len = 0; len < b.len; len += 997) {
        rewrite(bad, b.data, len);
        assert_int_equal(check_blob(&f, bad, CODEC_INT8, &err), -ERR_FORMAT);
    }
    buf_release(&b);
    mem_free(good);
    mem_free(bad);
    fx_end(&f);
}

/* A scale that is infinite, as a lying worker would send. */
static void test_bad_scale(void **state)
{
    (void)state;
    struct fixture f;
    struct buf b;
    struct st st = {0};
    struct err err = {0};
    fx_begin(&f);
    char *path = fx_path(&f, "c");
    fx_contribute(f.full, 0, f.theta, CODEC_E3M0, 5, path);
    assert_int_equal(st_open(path, &st, &err), 0);
    assert_int_equal(file_read(path, 64 << 20, &b, &err), 0);
    const struct st_tensor *scale = st_find(&st, "y.table.scale");
    assert_non_null(scale);
    b.data[scale->offset + scale->bytes - 1] = 0x7f;
    b.data[scale->offset + scale->bytes - 2] = 0x80;
    rewrite(path, b.data, b.len);
    assert_int_equal(check_blob(&f, path, CODEC_E3M0, &err), -ERR_FORMAT);
    assert_non_null(strstr(err.msg, "y.table"));
    buf_release(&b);
    st_release(&st);
    mem_free(path);
    fx_end(&f);
}

static void test_other_shape(void **state)
{
    (void)state;
    struct fixture f;
    struct err err = {0};
    uint64_t n = 12;
    fx_begin(&f);
    char *other = fx_path(&f, "other"), *path = fx_path(&f, "c");
    struct st_writer *w = st_writer_new();
    assert_int_equal(st_writer_add(w, "x", ST_F32, 1, &n, &err), 0);
    assert_int_equal(st_writer_open(w, other, &err), 0);
    assert_int_equal(st_writer_write(w, f.theta, 48, &err), 0);
    assert_int_equal(st_writer_commit(w, NULL, NULL, &err), 0);
    st_writer_free(w);
    fx_contribute(other, 0, f.theta, CODEC_E3M0, 5, path);
    assert_int_equal(check_blob(&f, path, CODEC_E3M0, &err), -ERR_FORMAT);
    assert_non_null(strstr(err.msg, "tensors"));
    mem_free(other);
    mem_free(path);
    fx_end(&f);
}

static void test_layout_refuses(void **state)
{
    (void)state;
    struct fixture f;
    struct err err = {0};
    struct layout l = {0};
    uint64_t n = 4;
    fx_begin(&f);
    char *path = fx_path(&f, "half");
    struct st_writer *w = st_writer_new();
    assert_int_equal(st_writer_add(w, "x", ST_F16, 1, &n, &err), 0);
    assert_int_equal(st_writer_open(w, path, &err), 0);
    assert_int_equal(st_writer_write(w, "\0\0\0\0\0\0\0", 8, &err), 0);
    assert_int_equal(st_writer_commit(w, NULL, NULL, &err), 0);
    st_writer_free(w);
    assert_int_equal(layout_open(path, &l, &err), -ERR_FORMAT);
    assert_non_null(strstr(err.msg, "only F32"));
    mem_free(path);
    fx_end(&f);
}

/* Every allocation that a size from outside asks for may fail. */
static void test_no_memory(void **state)
{
    (void)state;
    struct fixture f;
    struct contribution_result r;
    fx_begin(&f);
    char *path = fx_path(&f, "c"), *pending = fx_path(&f, "p");
    struct contribution_job job = fx_job(f.full, 0, f.theta, CODEC_E3M0, 5, path);
    job.residual_pending = pending;
    bool armed = mem_fault_set(1); /* false in release builds: then it just succeeds */
    for (long n = 1; armed; n++) {
        struct err err = {0};
        (void)mem_fault_set(n);
        int rc = contribution_write(&job, &r, &err);
        armed = mem_fault_fired();
        (void)mem_fault_set(0);
        if (!armed)
            break;
        assert_true(rc < 0 && err.msg[0]);
        assert_false(file_exists(path) || file_exists(pending));
    }
    struct err err = {0};
    assert_int_equal(contribution_write(&job, &r, &err), 0);
    mem_free(path);
    mem_free(pending);
    fx_end(&f);
}

/* Whether hashed while it is written or afterwards. */
static void test_result_names_the_blob(void **state)
{
    (void)state;
    struct fixture f;
    fx_begin(&f);
    char *blob = fx_path(&f, "c");
    float *end = fx_array();
    fx_normal(3, 1e-3f, end);
    for (int c = 0; c < CODEC_COUNT; c++) {
        struct contribution_job job = fx_job(f.full, 0, end, (enum codec)c, 1, blob);
        struct contribution_result r;
        struct err err = {0};
        uint8_t sha256[HASH_BYTES];
        uint64_t bytes = 0;
        assert_int_equal(contribution_write(&job, &r, &err), 0);
        assert_int_equal(hash_file(blob, sha256, &bytes, &err), 0);
        assert_memory_equal(r.sha256, sha256, HASH_BYTES);
        assert_int_equal(r.bytes, bytes);
    }
    mem_free(blob);
    free(end);
    fx_end(&f);
}

/* A module of several chunks and of tensors that are none: whatever threads there are, the blob,
 * its hash and what is left over are the same bytes; and so is what is said of the first bad value.
 */
#define WIDE_TENSORS 3
static const uint64_t wide_shape[WIDE_TENSORS] = {5, 200001, 65536};

static int read_wide(void *arg, const struct layout *layout, size_t t, uint64_t first, size_t n,
                     float *out, struct err *err)
{
    const size_t *bad = arg;
    for (size_t i = 0; i < n; i++)
        out[i] = (float)sin((double)(t * 1000000 + first + i));
    if (t == 1 && bad[0] >= first && bad[0] < first + n)
        out[bad[0] - first] = NAN;
    if (t == 2 && bad[1] >= first && bad[1] < first + n)
        return err_set(err, -EIO, "cannot read it");
    return 0;
}

static void write_wide(const char *path)
{
    struct st_writer *w = st_writer_new();
    struct err err = {0};
    static float zeros[200001];
    static const char *const names[WIDE_TENSORS] = {"a", "b", "c"};
    for (size_t t = 0; t < WIDE_TENSORS; t++)
        assert_int_equal(st_writer_add(w, names[t], ST_F32, 1, &wide_shape[t], &err), 0);
    assert_int_equal(st_writer_open(w, path, &err), 0);
    for (size_t t = 0; t < WIDE_TENSORS; t++)
        assert_int_equal(st_writer_write(w, zeros, (size_t)wide_shape[t] * sizeof(*zeros), &err),
                         0);
    assert_int_equal(st_writer_commit(w, NULL, NULL, &err), 0);
    st_writer_free(w);
}

static void test_threads_change_nothing(void **state)
{
    (void)state;
    struct fixture f;
    size_t bad[2] = {SIZE_MAX, SIZE_MAX};
    struct contribution_result r, first = {0};
    fx_begin(&f);
    char *base = fx_path(&f, "base"), *blob = fx_path(&f, "c"), *pending = fx_path(&f, "p");
    write_wide(base);
    for (int c = 0; c < CODEC_COUNT; c++) {
        uint8_t left[2][HASH_BYTES];
        for (int threads = 0; threads < 5; threads++) {
            struct err err = {0};
            struct contribution_job job = {.base_path = base,
                                           .read = read_wide,
                                           .read_arg = bad,
                                           .threads = threads,
                                           .codec = (enum codec)c,
                                           .samples = 1,
                                           .residual_pending = pending,
                                           .out_path = blob};
            uint8_t sha256[HASH_BYTES];
            assert_int_equal(contribution_write(&job, &r, &err), 0);
            first = threads ? first : r;
            assert_memory_equal(&r, &first, sizeof(r));
            assert_int_equal(hash_file(blob, sha256, NULL, &err), 0);
            assert_memory_equal(sha256, r.sha256, HASH_BYTES);
            if (c != CODEC_F32) {
                assert_int_equal(hash_file(pending, left[threads > 0], NULL, &err), 0);
                assert_memory_equal(left[0], left[threads > 0], HASH_BYTES);
            }
            assert_int_equal(residual_drop(pending, &err), 0);
            bad[0] = 100000;
            bad[1] = 0; /* behind it */
            assert_int_equal(contribution_write(&job, &r, &err), -EDOM);
            assert_non_null(strstr(err.msg, "tensor b holds a value that is not finite"));
            assert_false(file_exists(pending));
            bad[0] = bad[1] = SIZE_MAX;
        }
    }
    mem_free(base);
    mem_free(blob);
    mem_free(pending);
    fx_end(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_result_names_the_blob),
        cmocka_unit_test(test_threads_change_nothing),
        cmocka_unit_test(test_sum_is_conserved),
        cmocka_unit_test(test_sum_is_conserved_to_rounding),
        cmocka_unit_test(test_residual_over_the_spare),
        cmocka_unit_test(test_residual_drop),
        cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_reader_refuses),
        cmocka_unit_test(test_cut_short),
        cmocka_unit_test(test_bad_scale),
        cmocka_unit_test(test_other_shape),
        cmocka_unit_test(test_layout_refuses),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
