/* A network's parameters on a device: their copies, their products, and what is put off. */
#include "worker/model/weights.h"

#include "kernels/device/device.h"
#include "tests/unit/worker/tiny.h"

#include <errno.h>
#include <math.h>
#include <string.h>

/* ---- a device whose memory is poison, and some of whose calls fail ---- */

static struct device *dev;
static const struct kernel_ops *plain;
static struct kernel_ops ops;
static struct {
    uint64_t bytes; /* allocated */
    int live;
    int allocs_left, from_left, to_left, syncs_left; /* until one fails; -1: none does */
    int to;                                          /* copies to the device */
    int products, casts;
    struct matmul last; /* product */
} seen;

static bool fails(int *left)
{
    return *left >= 0 && (*left)-- == 0;
}

static int do_alloc(struct device *d, size_t bytes, void **ret, struct err *err)
{
    if (fails(&seen.allocs_left))
        return -ENOMEM;
    const int rc = plain->alloc(d, bytes, ret, err);
    memset(*ret, 0xff, bytes);
    seen.bytes += bytes;
    seen.live++;
    return rc;
}

static void do_free(struct device *d, void *p)
{
    seen.live -= p != NULL;
    plain->free(d, p);
}

static int do_copy(struct device *d, void *dst, const void *src, size_t bytes, enum copy_kind kind,
                   struct stream *s)
{
    seen.to += kind == COPY_TO_DEVICE;
    if (fails(kind == COPY_FROM_DEVICE ? &seen.from_left : &seen.to_left))
        return -ERR_DEVICE;
    return plain->copy(d, dst, src, bytes, kind, s);
}

static int do_sync(struct device *d, struct stream *s, struct err *err)
{
    return fails(&seen.syncs_left) ? err_set(err, -ERR_DEVICE, "the card fell off the bus")
                                   : plain->sync(d, s, err);
}

static int do_matmul(struct device *d, const struct matmul *mm, struct stream *s)
{
    seen.products++;
    seen.last = *mm;
    return plain->matmul(d, mm, s);
}

static int do_cast(struct device *d, void *dst, enum dtype to, const void *src, enum dtype from,
                   int64_t n, struct stream *s)
{
    seen.casts++;
    return plain->cast(d, dst, to, src, from, n, s);
}

static int setup(void **state)
{
    OK(device_open("cpu-ref", 1, &dev, err));
    plain = dev->ops;
    ops = *plain;
    ops.alloc = do_alloc;
    ops.free = do_free;
    ops.copy = do_copy;
    ops.sync = do_sync;
    ops.matmul = do_matmul;
    ops.cast = do_cast;
    dev->ops = &ops;
    memset(&seen, 0, sizeof seen);
    seen.allocs_left = seen.from_left = seen.to_left = seen.syncs_left = -1;
    return 0;
}

static int teardown(void **state)
{
    assert_int_equal(seen.live, 0);
    dev->ops = plain;
    device_close(dev);
    return 0;
}

static struct model *make_model(struct model_spec spec)
{
    struct model *m = NULL;
    OK(model_new(&spec, &m, err));
    return m;
}

/* ---- memory and values ---- */

static void test_memory(void **state)
{
    struct model *m = make_model(tiny_spec());
    for (int bf = 0; bf < 2; bf++)
        for (int gradients = 0; gradients < 2; gradients++) {
            const enum dtype dt = bf ? DT_BF16 : DT_F32;
            struct weights w;
            seen.bytes = 0;
            OK(weights_init(&w, dev, m, dt, gradients, err));
            assert_int_equal(seen.bytes, weights_bytes(m, dt, gradients));
            assert_int_equal(seen.bytes, m->flat * (4 + 2 * bf + 4 * gradients));
            assert_true(!w.w16 == !bf && !w.g == !gradients);
            for (uint64_t i = 0; i < m->flat; i++)
                assert_true(w.w[i] == 0 && (!gradients || w.g[i] == 0));
            weights_release(&w);
            weights_release(&w); /* {0} */
        }
    for (int left = 0; left < 3; left++) {
        struct err e = {0};
        struct weights w;
        seen.allocs_left = left;
        assert_int_equal(weights_init(&w, dev, m, DT_BF16, true, &e), -ENOMEM);
        assert_non_null(strstr(e.msg, "no memory on cpu-ref for a model of 0."));
        weights_release(&w);
        assert_int_equal(seen.live, 0);
    }
    model_free(m);
}

static float rounded(float x)
{
    return bf16_to_f32(bf16_from_f32(x));
}

static void test_set(void **state)
{
    struct model *m = make_model(tiny_spec()), *part = NULL;
    const struct model_part first = {0, 2};
    struct weights w;
    float *flat = tiny_weights(m, 3);
    OK(weights_init(&w, dev, m, DT_BF16, false, err));
    OK(weights_set(&w, flat, err));
    assert_memory_equal(w.w, flat, m->flat * sizeof *flat);
    for (uint64_t i = 0; i < m->flat; i++)
        assert_true(bf16_to_f32(w.w16[i]) == rounded(flat[i]));
    const int at = (int)(model_find(m, "blocks.1.mlp.fc1.weight") - m->tensors);
    assert_ptr_equal(weights_f32(&w, at), w.w + m->tensors[at].offset);
    assert_ptr_equal(weights_mm(&w, at), w.w16 + m->tensors[at].offset);
    w.w[7] = 5;
    OK(weights_changed(&w, err));
    assert_true(bf16_to_f32(w.w16[7]) == 5);
    weights_release(&w);

    /* A device of a pipeline takes its own tensors out of the whole model's vector. */
    OK(model_part_new(m, &first, &part, err));
    OK(weights_init(&w, dev, part, DT_F32, true, err));
    OK(weights_set_part(&w, m, flat, err));
    size_t own = 0;
    for (size_t i = 0; i<m->n; own += part->tensors[i++].count> 0)
        assert_memory_equal(w.w + part->tensors[i].offset, flat + m->tensors[i].offset,
                            part->tensors[i].count * sizeof *flat);
    assert_true(own > 0 && own < m->n);
    assert_ptr_equal(weights_mm(&w, at), weights_f32(&w, at));
    assert_ptr_equal(weights_g(&w, at), w.g + part->tensors[at].offset);
    weights_release(&w);
    mem_free(flat);
    model_free(part);
    model_free(m);
}

static void test_as_dt(void **state)
{
    struct model *m = make_model(tiny_spec());
    const float x[] = {1, 1.00390625f, -3};
    bf16 copy[3];
    struct weights w;
    OK(weights_init(&w, dev, m, DT_F32, false, err));
    assert_ptr_equal(weights_as_dt(&w, x, copy, 3), x);
    assert_int_equal(seen.casts, 0);
    weights_release(&w);
    OK(weights_init(&w, dev, m, DT_BF16, false, err));
    assert_ptr_equal(weights_as_dt(&w, x, copy, 3), copy);
    for (int i = 0; i < 3; i++)
        assert_true(bf16_to_f32(copy[i]) == rounded(x[i]));
    weights_release(&w);
    model_free(m);
}

/* ---- products ---- */

/* Small integers, so that sums are exact in any order. */
static void fill(float *x, size_t n, unsigned seed)
{
    for (size_t i = 0; i < n; i++)
        x[i] = (float)(int)(rng_at_u32(seed, i, 0) % 7) - 3;
}

enum { ROWS = 3, LD = 40 };

/* y = x Wᵀ + b; dW and db; dx, each into rows that are longer than they need be. */
static void test_products(void **state)
{
    struct model *m = make_model(tiny_spec());
    const int at = (int)(model_find(m, "blocks.1.mlp.fc1.weight") - m->tensors);
    const int out = (int)m->tensors[at].shape[0], in = (int)m->tensors[at].shape[1];
    float x[ROWS * LD], y[ROWS * LD], dx[ROWS * LD], *flat = model_flat_new(m);
    struct weights w;
    fill(flat, m->flat, 1);
    fill(x, ROWS * LD, 2);
    OK(weights_init(&w, dev, m, DT_F32, true, err));
    OK(weights_set(&w, flat, err));
    const float *W = weights_f32(&w, at), *b = weights_f32(&w, at + 1);
    for (int no_bias = 0; no_bias < 2; no_bias++) {
        const struct weights_linear l = {
            .w = at, .rows = ROWS, .in = in, .out = out, .no_bias = no_bias};
        fill(y, ROWS * LD, 3);
        weights_forward(&w, &l, y, DT_F32, LD, x, LD);
        for (int r = 0; r < ROWS; r++)
            for (int o = 0; o < out; o++) {
                float sum = no_bias ? 0 : b[o];
                for (int i = 0; i < in; i++)
                    sum += x[r * LD + i] * W[o * in + i];
                assert_true(y[r * LD + o] == sum);
            }
        float untouched[ROWS * LD];
        fill(untouched, ROWS * LD, 3);
        assert_true(y[out] == untouched[out]);

        fill(dx, ROWS * LD, 4);
        for (int again = 0; again < 2; again++) {
            weights_input_grad(&w, &l, dx, DT_F32, LD, y, LD, again);
            weights_grad(&w, &l, y, LD, x, LD, !again);
        }
        for (int o = 0; o < out; o++) {
            float column = 0;
            for (int r = 0; r < ROWS; r++)
                column += y[r * LD + o];
            assert_true(weights_g(&w, at + 1)[o] == (no_bias ? 0 : 2 * column));
            for (int i = 0; i < in; i++) {
                float sum = 0;
                for (int r = 0; r < ROWS; r++)
                    sum += y[r * LD + o] * x[r * LD + i];
                assert_true(weights_g(&w, at)[o * in + i] == 2 * sum);
            }
        }
        for (int r = 0; r < ROWS; r++)
            for (int i = 0; i < in; i++) {
                float sum = 0;
                for (int o = 0; o < out; o++)
                    sum += y[r * LD + o] * W[o * in + i];
                assert_true(dx[r * LD + i] == 2 * sum);
            }
        weights_zero_grads(&w);
        OK(weights_check(&w, err));
        memset(weights_g(&w, at + 1), 0, (size_t)out * sizeof(float));
    }
    weights_release(&w);
    mem_free(flat);
    model_free(m);
}

/* Products with weights in bf16 read the rounded copy; a bias is the rounded one, too. */
static void test_bf16_products(void **state)
{
    struct model *m = make_model(tiny_spec());
    const int at = (int)(model_find(m, "blocks.0.attn.proj.weight") - m->tensors);
    const int C = m->spec.dim;
    float *flat = tiny_weights(m, 4), y[12];
    bf16 x[12];
    struct weights w;
    OK(weights_init(&w, dev, m, DT_BF16, false, err));
    OK(weights_set(&w, flat, err));
    for (int i = 0; i < C; i++)
        x[i] = bf16_from_f32((float)(i % 3 - 1));
    const struct weights_linear l = {.w = at, .rows = 1, .in = C, .out = C, .no_bias = true};
    weights_forward(&w, &l, y, DT_F32, 0, x, 0);
    OK(weights_check(&w, err));
    for (int o = 0; o < C; o++) {
        double sum = 0;
        for (int i = 0; i < C; i++)
            sum +=
                (double)rounded(flat[m->tensors[at].offset + (uint64_t)(o * C + i)]) * (i % 3 - 1);
        assert_true(fabs((double)y[o] - sum) < 1e-6);
    }
    const struct weights_linear biased = {.w = at, .rows = 1, .in = C, .out = C};
    weights_forward(&w, &biased, y, DT_F32, 0, x, 0);
    assert_ptr_equal(seen.last.bias, weights_f32(&w, at + 1));
    assert_ptr_equal(seen.last.bias16, weights_mm(&w, at + 1));
    assert_true(seen.last.bias16 != (const void *)seen.last.bias);
    weights_release(&w);
    mem_free(flat);
    model_free(m);
}

/* ---- gradients that are zeroed, ready, put off ---- */

/* Those without decay, and of others none. */
static void test_zero_grads(void **state)
{
    const struct model_spec specs[] = {tiny_spec(), tiny_cascade(), tiny_llama()};
    for (size_t s = 0; s < sizeof specs / sizeof *specs; s++) {
        struct model *m = make_model(specs[s]);
        struct weights w;
        OK(weights_init(&w, dev, m, DT_F32, true, err));
        for (uint64_t i = 0; i < m->flat; i++)
            w.g[i] = 1;
        weights_zero_grads(&w);
        OK(weights_check(&w, err));
        for (size_t i = 0; i < m->n; i++)
            for (uint64_t j = 0; j < m->tensors[i].count; j++)
                assert_true(w.g[m->tensors[i].offset + j] == (m->tensors[i].decay ? 1 : 0));
        weights_release(&w);
        model_free(m);
    }
}

static struct announced {
    uint64_t offset, count;
    int products; /* that were made before */
} announced[256];
static int n_announced;

static void on_ready(void *arg, uint64_t offset, uint64_t count)
{
    assert_ptr_equal(arg, announced);
    announced[n_announced++] = (struct announced){offset, count, seen.products};
}

static const struct weights_watch watch = {on_ready, announced};

static void test_ready_matrices(void **state)
{
    struct model *m = make_model(tiny_spec());
    struct weights w;
    OK(weights_init(&w, dev, m, DT_F32, true, err));
    const struct model_tensor *first = model_find(m, "blocks.1.attn.qkv.weight"),
                              *last = model_find(m, "blocks.1.mlp.fc2.weight");
    n_announced = 0;
    weights_ready_matrices(&w, (int)(first - m->tensors), (int)(last - m->tensors) + 1);
    assert_int_equal(n_announced, 0); /* nobody watches */
    w.watch = &watch;
    weights_ready_matrices(&w, (int)(first - m->tensors), (int)(last - m->tensors) + 1);
    assert_int_equal(n_announced, 1);
    assert_int_equal(announced[0].offset, first->offset);
    assert_int_equal(announced[0].offset + announced[0].count, model_tensor_end(last));
    weights_ready_matrices(&w, (int)(first - m->tensors) + 1, (int)(first - m->tensors) + 1);
    assert_int_equal(n_announced, 1); /* a bias is no matrix */
    weights_release(&w);
    model_free(m);
}

/* Work that is put off is done later, in its order, and announcements with it. */
static void test_later(void **state)
{
    enum { TIMES = 40 }; /* two items each: more than fit at first */
    struct model *m = make_model(tiny_spec());
    const int at = (int)(model_find(m, "blocks.1.mlp.fc1.weight") - m->tensors);
    const struct weights_linear l = {.w = at,
                                     .rows = 1,
                                     .in = (int64_t)m->tensors[at].shape[1],
                                     .out = (int64_t)m->tensors[at].shape[0]};
    float x[TIMES][64], dy[64];
    struct weights_later later = {0};
    struct weights w;
    OK(weights_init(&w, dev, m, DT_F32, true, err));
    for (int i = 0; i < 64; i++)
        dy[i] = 1;
    for (int i = 0; i < TIMES; i++)
        for (int k = 0; k < 64; k++)
            x[i][k] = (float)i;
    w.watch = &watch;
    n_announced = 0;
    weights_grad_later(&w, &l, dy, 0, x[1], 0, true); /* nothing is put off */
    assert_int_equal(seen.products, 1);
    assert_true(weights_g(&w, at)[0] == 1);
    w.later = &later;
    for (int i = 0; i < TIMES; i++) {
        weights_grad_later(&w, &l, dy, 0, x[i], 0, i == 0);
        weights_ready(&w, (uint64_t)i, 7);
    }
    assert_int_equal(seen.products, 1);
    assert_int_equal(n_announced, 0);
    w.later = NULL;
    weights_run_later(&w, &later);
    OK(weights_check(&w, err));
    assert_int_equal(seen.products, 1 + TIMES);
    assert_int_equal(n_announced, TIMES);
    for (int i = 0; i < TIMES; i++)
        assert_true(announced[i].offset == (uint64_t)i && announced[i].count == 7 &&
                    announced[i].products == 2 + i);
    assert_true(weights_g(&w, at)[0] == TIMES * (TIMES - 1) / 2);
    weights_run_later(&w, &later); /* empty */
    assert_int_equal(seen.products, 1 + TIMES);
    weights_later_release(&later);
    weights_later_release(&later);
    weights_release(&w);
    model_free(m);
}

/* ---- failures, several devices ---- */

/* The first failure is reported, once, by its name; what comes behind it is not. */
static void test_failures(void **state)
{
    struct err e = {0};
    struct model *m = make_model(tiny_spec());
    float *flat = tiny_weights(m, 3);
    struct weights w;
    OK(weights_init(&w, dev, m, DT_F32, false, err));
    weights_note(&w, 0, "nothing");
    weights_note(&w, -ERR_DEVICE, "matmul");
    weights_note(&w, -ENOMEM, "cast");
    assert_int_equal(weights_set(&w, flat, &e), -ERR_DEVICE);
    assert_non_null(strstr(e.msg, "matmul failed on cpu-ref"));
    OK(weights_check(&w, err));
    seen.syncs_left = 0;
    assert_int_equal(weights_sync(&w, &e), -ERR_DEVICE);
    assert_non_null(strstr(e.msg, "off the bus"));
    /* If the device also fails to finish, the cause is what is told. */
    weights_note(&w, -ENOMEM, "cast");
    seen.syncs_left = 0;
    assert_int_equal(weights_sync(&w, &e), -ENOMEM);
    assert_non_null(strstr(e.msg, "cast failed"));
    assert_int_equal(seen.syncs_left, -1); /* it was waited for all the same */
    weights_release(&w);
    mem_free(flat);
    model_free(m);
}

static void test_bring(void **state)
{
    enum { MANY = (9 << 20) + 13 }; /* in pieces, the last one odd */
    struct err e = {0};
    struct model *m = make_model(tiny_spec());
    struct weights from, to;
    char *src = mem_alloc(MANY), *dst = mem_alloc(MANY + 1);
    for (int i = 0; i < MANY; i++)
        src[i] = (char)(i * 31 >> 3);
    OK(weights_init(&from, dev, m, DT_F32, false, err));
    OK(weights_init(&to, dev, m, DT_F32, false, err));
    OK(weights_bring(&to, dst, &from, src, MANY, err));
    assert_memory_equal(dst, src, MANY);
    assert_int_equal(dst[MANY], 0);
    assert_int_equal(seen.to, 3);
    OK(weights_bring(&to, NULL, &from, NULL, 0, err));

    /* What could not be read is not written: its memory on the host is gone before it could be. */
    memset(dst, 0, MANY);
    seen.from_left = 1;
    seen.to = 0;
    assert_int_equal(weights_bring(&to, dst, &from, src, MANY, &e), -ERR_DEVICE);
    assert_non_null(strstr(e.msg, "copying to another device failed"));
    assert_int_equal(seen.to, 1);
    OK(weights_check(&to, err));
    seen.to_left = 0;
    assert_int_equal(weights_bring(&to, dst, &from, src, MANY, &e), -ERR_DEVICE);
    assert_non_null(strstr(e.msg, "copying from another device failed"));
    weights_release(&from);
    weights_release(&to);
    mem_free(src);
    mem_free(dst);
    model_free(m);
}

#define TEST(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_memory),        TEST(test_set),        TEST(test_as_dt),
        TEST(test_products),      TEST(test_zero_grads), TEST(test_ready_matrices),
        TEST(test_bf16_products), TEST(test_later),      TEST(test_failures),
        TEST(test_bring),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
