/* Pictures into moments and latents into pictures, of any shape. */
#include "tests/unit/worker/frozen/bench.h"

/* A VAE made for SIDE x SIDE takes rectangles that are no larger: in any group, from places as far
 * apart as the largest need, and at the options' shape as if none were named. */
static void pictures_have_any_shape(void **state)
{
    struct bench b;
    _Alignas(64) uint8_t whole[MOST], one[MOST];
    enum { H = 4, W = 16, BYTES = H * W * 3 };
    uint8_t dense[N * BYTES], apart[N * (BYTES + 5)];
    load_up(&b, VAE(""), "cpu", 2);
    for (int i = 0; i < N; i++) {
        memcpy(dense + i * BYTES, b.pixels + i * BYTES, BYTES);
        memcpy(apart + i * (BYTES + 5), b.pixels + i * BYTES, BYTES);
    }
    struct frozen_options opt = options(FROZEN_ENCODE, DT_F32, N);
    struct frozen_io io = {.in = dense, .out = whole, .height = H, .width = W};
    OK(frozen_open(b.dev, b.c, &opt, &b.f, err));
    OK(frozen_run(b.f, &io, N, err));
    const size_t bytes = N * (size_t)(H / 2 * (W / 2)) * 2 * 4 * sizeof(float);
    for (int group = 1; group <= N; group += 3) {
        opt.group = group;
        frozen_close(b.f);
        OK(frozen_open(b.dev, b.c, &opt, &b.f, err));
        io = (struct frozen_io){
            .in = apart, .out = one, .height = H, .width = W, .in_stride = BYTES + 5};
        memset(one, 0xee, sizeof one);
        OK(frozen_run(b.f, &io, N, err));
        assert_memory_equal(one, whole, bytes);
    }
    const size_t all = run(&b, &opt, whole);
    io = (struct frozen_io){.in = b.pixels, .out = one, .height = SIDE, .width = SIDE};
    OK(frozen_run(b.f, &io, N, err));
    assert_memory_equal(one, whole, all);
    io.height = 12;
    FAILS(frozen_run(b.f, &io, N, err), "pictures of 10 x 12 pixels, expected multiples of 2");
    io.height = 7;
    FAILS(frozen_run(b.f, &io, N, err), "no more pixels than 10 x 10 have");
    put_away(&b);
}

static void rectangles_are_near_the_reference(void **state)
{
    float out[2][N * 8 * 16];
    for (int d = 0; d < 2; d++) {
        struct bench b;
        const struct frozen_options opt = options(FROZEN_ENCODE, DT_F32, 4);
        load_up(&b, VAE(""), d ? "cpu" : "cpu-ref", 2);
        const struct frozen_io io = {.in = b.pixels, .out = out[d], .height = 16, .width = 4};
        OK(frozen_open(b.dev, b.c, &opt, &b.f, err));
        OK(frozen_run(b.f, &io, N, err));
        put_away(&b);
    }
    float most = 0, error = 0;
    for (size_t k = 0; k < COUNT(out[0]); k++) {
        most = fmaxf(most, fabsf(out[0][k]));
        error = fmaxf(error, fabsf(out[0][k] - out[1][k]));
    }
    assert_true(isfinite(most) && most > 0 && error <= 1e-4f * most);
}

static void pictures_come_back_as_bytes(void **state)
{
    struct bench b;
    uint8_t bytes[MOST];
    float planar[N * 3 * SIDE * SIDE];
    load_up(&b, VAE(", \"shift_factor\": 0.5, \"scaling_factor\": 2"), "cpu", 2);
    struct frozen_options opt = options(FROZEN_DECODE, DT_BF16, 2);
    assert_int_equal(run(&b, &opt, bytes), N * 3 * SIDE * SIDE);
    opt.planar = true;
    const struct frozen_io io = inputs(&b, FROZEN_DECODE, planar);
    frozen_close(b.f);
    OK(frozen_open(b.dev, b.c, &opt, &b.f, err));
    OK(frozen_run(b.f, &io, N, err));
    uint8_t expected[MOST];
    OK(b.dev->ops->image_to_u8(b.dev, expected, planar, N, 3, SIDE, SIDE, NULL));
    assert_memory_equal(bytes, expected, N * 3 * SIDE * SIDE);
    put_away(&b);
}

static const struct kernel_ops *plain;
static unsigned seen; /* bits: numbers of pictures */

static int see_conv(struct device *dev, const struct conv2d *p, struct stream *s)
{
    seen |= p->dt == DT_BF16 ? 1u << p->B : 0;
    return plain->conv2d_fwd(dev, p, s);
}

/* On a card a number of pictures is 1, 2, 4 or a group, with the same results. */
static void cards_plan_few_numbers(void **state)
{
    struct bench b;
    struct kernel_ops ops;
    _Alignas(64) uint8_t here[MOST], card[MOST];
    load_up(&b, VAE(""), "cpu", 2);
    ops = *(plain = b.dev->ops);
    ops.conv2d_fwd = see_conv;
    b.dev->ops = &ops;
    for (int part = FROZEN_ENCODE; part <= FROZEN_DECODE; part++) {
        const struct frozen_options opt = options((enum frozen_part)part, DT_BF16, 6);
        unsigned of_card = 0;
        frozen_close(b.f);
        OK(frozen_open(b.dev, b.c, &opt, &b.f, err));
        for (int n = 1; n <= 6; n++) {
            struct frozen_io io = inputs(&b, opt.part, here);
            seen = 0;
            OK(frozen_run(b.f, &io, n, err));
            assert_int_equal(seen, 1u << n);
            io.out = card;
            memset(card, 0xee, sizeof card);
            memset(here + n * frozen_out_bytes(b.f), 0xee, 64); /* nor is more written */
            b.dev->unified = false;
            OK(frozen_run(b.f, &io, n, err));
            b.dev->unified = true;
            assert_memory_equal(card, here, n * frozen_out_bytes(b.f) + 64);
            of_card |= seen & ~(1u << n);
        }
        assert_int_equal(of_card, 1u << 4 | 1u << 6);
    }
    b.dev->ops = plain;
    put_away(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pictures_have_any_shape),
        cmocka_unit_test(rectangles_are_near_the_reference),
        cmocka_unit_test(pictures_come_back_as_bytes),
        cmocka_unit_test(cards_plan_few_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
