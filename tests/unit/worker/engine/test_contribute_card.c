/* Contributions coded on a card are the files of the CPU, byte for byte: every codec, chunks
 * under way at a time, residuals over rounds, values that are refused, a card that fails.
 * On a card (CARD_DEVICE) the same tests use it. */
#include "kernels/device/device.h"
#include "tests/unit/worker/tiny.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/base/file.h"
#include "common/base/hash.h"
#include "common/outer/layout.h"
#include "worker/engine/contribute_card.h"

#ifdef CARD_DEVICE
const char *guard_device(void); /* of check_ops */
#define card_device(ret, err) device_open(CARD_DEVICE, 0, ret, err)
#define card_device_close device_close
#else
#include "tests/unit/worker/fake_card.h"
#define card_device fake_card_open
#define card_device_close fake_card_close
#endif

enum { ROUNDS = 3 };

static struct fixture {
    char full[96];
    char blob[2][96], current[2][96], pending[2][96]; /* 0: the CPU's, 1: the card's */
    struct device *dev;
    struct model *m;
    float *theta, *end;
    struct weights w; /* end, on the card */
} f;

static char dir[64];

static void name(char out[96], const char *what, int i)
{
    (void)snprintf(out, 96, "%s/%s.%d", dir, what, i);
}

static int setup(void **state)
{
    /* A tensor of four chunks, one of an odd size; many are short. */
    struct model_spec spec = tiny_router();
    spec.dim = 44;
    spec.heads = 1;
    spec.mlp = 129;
    spec.classes = 40001;
    (void)snprintf(dir, sizeof dir, "/tmp/skerry-test-XXXXXX");
    if (!mkdtemp(dir))
        return -1;
    (void)snprintf(f.full, sizeof f.full, "%s/full", dir);
    for (int i = 0; i < 2; i++) {
        name(f.blob[i], "blob", i);
        name(f.current[i], "current", i);
        name(f.pending[i], "pending", i);
    }
    OK(card_device(&f.dev, err));
    OK(model_new(&spec, &f.m, err));
    f.theta = model_flat_new(f.m);
    f.end = model_flat_new(f.m);
    model_init(f.m, 5, f.theta);
    assert_true(model_find(f.m, "head.weight")->count > CARD_PLACES * CARD_CHUNK);
    OK(model_save(f.m, -1, f.theta, f.full, NULL, NULL, err));
    f.w = (struct weights){.dev = f.dev, .ops = f.dev->ops, .m = f.m};
    OK(f.w.ops->stream_new(f.dev, &f.w.stream, err));
    OK(f.w.ops->alloc(f.dev, f.m->flat * sizeof *f.w.w, (void **)&f.w.w, err));
    return 0;
}

static int teardown(void **state)
{
    weights_release(&f.w);
    card_device_close(f.dev);
    model_free(f.m);
    mem_free(f.theta);
    mem_free(f.end);
    OK(file_remove_tree(dir, err));
    return 0;
}

/* ---- what training did ---- */

/* Differences of many sizes, ties and exact zeros among them. */
static void train(uint64_t round)
{
    struct rng rng;
    rng_init(&rng, 77, round);
    for (uint64_t i = 0; i < f.m->flat; i++) {
        const uint64_t r = rng_u64(&rng);
        float d = (float)((double)(int64_t)(r >> 11 & 0xffff) - 32768.0) * 0x1p-22f;
        if (r % 7 == 0)
            d = ldexpf(0.75f, -(int)(r >> 3 & 31)) * (r & 8 ? 1.0f : -1.0f);
        if (r % 11 == 0)
            d = 0;
        if (i % 8192 > 8192 - 600)
            d = ldexpf(d, -100); /* blocks that send nothing */
        f.end[i] = r % 13 == 0 ? d : f.theta[i] - d;
    }
}

static void to_card(void)
{
    OK(f.w.ops->copy(f.dev, f.w.w, f.end, f.m->flat * sizeof *f.end, COPY_TO_DEVICE, f.w.stream));
    OK(f.w.ops->sync(f.dev, f.w.stream, err));
}

static int read_end(void *arg, const struct layout *layout, size_t t, uint64_t first, size_t n,
                    float *out, struct err *err)
{
    const struct model_tensor *tensor = model_find(f.m, layout->st.tensors[t].name);
    memcpy(out, f.end + tensor->offset + first, n * sizeof *out);
    return 0;
}

/* who: 0 the CPU, 1 the card. */
static int write_by(int who, enum codec codec, bool feedback, struct err *err)
{
    struct contribution_result r;
    struct card *card = NULL;
    struct contribution_job job = {.base_path = f.full,
                                   .read = read_end,
                                   .codec = codec,
                                   .module_id = 7,
                                   .base = 3,
                                   .samples = 64,
                                   .residual_path = f.current[who],
                                   .residual_pending = feedback ? f.pending[who] : NULL,
                                   .out_path = f.blob[who]};
    int rc = who ? card_open(&f.w, codec, &card, err) : 0;
    assert_int_equal(rc, 0);
    job.coder = card ? card_coder(card) : NULL;
    rc = contribution_write(&job, &r, err);
    card_close(card);
    return rc;
}

static void same_files(const char *a, const char *b)
{
    uint8_t x[HASH_BYTES], y[HASH_BYTES];
    OK(hash_file(a, x, NULL, err));
    OK(hash_file(b, y, NULL, err));
    assert_memory_equal(x, y, sizeof x);
}

static void forget(void)
{
    for (int i = 0; i < 2; i++) {
        OK(file_remove(f.current[i], err));
        OK(file_remove(f.pending[i], err));
        OK(file_remove(f.blob[i], err));
    }
}

/* ---- tests ---- */

static void test_same_bytes(void **state)
{
    for (int c = 0; c < CODEC_COUNT; c++) {
        for (uint64_t round = 0; round < ROUNDS; round++) {
            train(round);
            to_card();
            for (int who = 0; who < 2; who++)
                OK(write_by(who, (enum codec)c, true, err));
            same_files(f.blob[0], f.blob[1]);
            assert_int_equal(file_exists(f.pending[1]), c != CODEC_F32);
            if (c == CODEC_F32)
                continue;
            same_files(f.pending[0], f.pending[1]);
            for (int who = 0; who < 2; who++)
                OK(residual_commit(f.pending[who], f.current[who], err));
        }
        forget();
    }
}

static void test_without_feedback(void **state)
{
    train(9);
    to_card();
    for (int who = 0; who < 2; who++)
        OK(write_by(who, CODEC_E3M0, false, err));
    same_files(f.blob[0], f.blob[1]);
    assert_false(file_exists(f.pending[1]));
    forget();
}

/* In the first chunk, with others under way, and in the last tensor. */
static void test_refused(void **state)
{
    static const float bad[] = {NAN, INFINITY, -0x1.000002p126f};
    const struct model_tensor *places[] = {&f.m->tensors[0], &f.m->tensors[f.m->n - 1]};
    train(1);
    for (int c = 0; c < CODEC_COUNT; c++)
        for (size_t i = 0; i < 3; i++) {
            struct err e = {0};
            const struct model_tensor *t = places[(i + (size_t)c) % 2];
            float *at = &f.end[t->offset + t->count - 1], good = *at;
            *at = bad[i];
            to_card();
            *at = good;
            assert_int_equal(write_by(1, (enum codec)c, true, &e), -EDOM);
            assert_non_null(strstr(e.msg, t->name));
            assert_false(file_exists(f.blob[1]));
            assert_false(file_exists(f.pending[1]));
        }
    to_card();
    OK(write_by(0, CODEC_INT8, true, err));
    OK(write_by(1, CODEC_INT8, true, err)); /* it is as good as new */
    same_files(f.blob[0], f.blob[1]);
    forget();
}

/* Twice with one card, as after a residual that cannot be used. */
static void test_again(void **state)
{
    struct err e = {0};
    struct card *card;
    struct contribution_result r;
    OK(card_open(&f.w, CODEC_E3M0, &card, err));
    struct contribution_job job = {.base_path = f.full,
                                   .coder = card_coder(card),
                                   .codec = CODEC_E3M0,
                                   .residual_pending = f.pending[1],
                                   .out_path = f.blob[1]};
    train(2);
    f.end[model_find(f.m, "head.weight")->offset + 5 * CARD_CHUNK / 2] = NAN;
    to_card();
    assert_int_equal(contribution_write(&job, &r, &e), -EDOM);
    train(2);
    to_card();
    OK(contribution_write(&job, &r, err));
    card_close(card);
    job.coder = NULL;
    job.read = read_end;
    job.residual_pending = f.pending[0];
    job.out_path = f.blob[0];
    OK(contribution_write(&job, &r, err));
    same_files(f.blob[0], f.blob[1]);
    same_files(f.pending[0], f.pending[1]);
    forget();
}

#ifndef CARD_DEVICE
static void test_card_fails(void **state)
{
    const int live = fake.live;
    train(3);
    to_card();
    for (int at = 1; at <= 4; at++) {
        struct err err = {0};
        fake.syncs = 0;
        fake.fail_at = at;
        assert_int_equal(write_by(1, CODEC_E3M0, true, &err), -ERR_DEVICE);
        assert_string_equal(err.msg, "the card fell off the bus");
        assert_int_equal(fake.syncs, at + CARD_PLACES - 1); /* what had begun was ended */
        assert_false(file_exists(f.blob[1]));
        assert_false(file_exists(f.pending[1]));
        assert_int_equal(fake.live, live);
    }
    fake.fail_at = 0;
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bytes), cmocka_unit_test(test_without_feedback),
        cmocka_unit_test(test_refused),    cmocka_unit_test(test_again),
#ifndef CARD_DEVICE
        cmocka_unit_test(test_card_fails),
#endif
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
