/* Chains of any kind: equal bits in any group, what they cost, what they cannot do. */
#include "tests/unit/worker/frozen/bench.h"

/* In bits, whatever runs beside a sample. */
static void same_in_any_group(const char *config, enum frozen_part part, int layer)
{
    static const char *const devices[] = {"cpu-ref", "cpu"};
    for (int d = 0; d < 4; d++) {
        struct bench b;
        _Alignas(64) uint8_t whole[MOST], one[MOST];
        load_up(&b, config, devices[d / 2], 2);
        struct frozen_options opt = options(part, d % 2 ? DT_BF16 : DT_F32, N);
        opt.layer = layer;
        const size_t bytes = run(&b, &opt, whole);
        for (int group = 1; group < N; group += 2) {
            opt.group = group;
            memset(one, 0xee, sizeof one);
            assert_int_equal(run(&b, &opt, one), bytes);
            assert_memory_equal(one, whole, bytes);
        }
        put_away(&b);
    }
}

static void samples_have_the_same_bits_in_any_group(void **state)
{
    same_in_any_group(VAE(""), FROZEN_ENCODE, 0);
    same_in_any_group(VAE(", \"use_quant_conv\": false, \"use_post_quant_conv\": false"),
                      FROZEN_DECODE, 0);
    same_in_any_group(CLIP, FROZEN_TEXT, -1);
    same_in_any_group(CLIP, FROZEN_TEXT, -2);
    same_in_any_group(T5("relu"), FROZEN_TEXT, -1);
    same_in_any_group(T5("gated-gelu"), FROZEN_TEXT, -1);
}

static void f32_is_near_the_reference(void **state)
{
    static const enum frozen_part parts[] = {FROZEN_ENCODE, FROZEN_TEXT, FROZEN_TEXT};
    static const char *const configs[] = {VAE(""), CLIP, T5("gated-silu")};
    for (int i = 0; i < 3; i++) {
        float out[2][MOST / 4];
        size_t bytes = 0;
        for (int d = 0; d < 2; d++) {
            struct bench b;
            const struct frozen_options opt = options(parts[i], DT_F32, 4);
            load_up(&b, configs[i], d ? "cpu" : "cpu-ref", 2);
            bytes = run(&b, &opt, (uint8_t *)out[d]);
            put_away(&b);
        }
        float most = 0, error = 0;
        for (size_t k = 0; k < bytes / 4; k++) {
            most = fmaxf(most, fabsf(out[0][k]));
            error = fmaxf(error, fabsf(out[0][k] - out[1][k]));
        }
        assert_true(isfinite(most) && most > 0 && error <= 1e-4f * most);
    }
}

static void layers_tell_what_they_cost(void **state)
{
    struct bench b;
    _Alignas(64) uint8_t out[MOST];
    uint64_t cost = 0, bytes = 0;
    struct frozen_sizes all = {0}, narrow = {0};
    load_up(&b, VAE(", \"mid_block_add_attention\": false"), "cpu", 1);
    struct frozen_options opt = options(FROZEN_ENCODE, DT_F32, 1);
    (void)run(&b, &opt, out);
    for (int i = 0; i < frozen_layers(b.f); i++) {
        cost += frozen_layer_cost(b.f, i);
        bytes += frozen_layer_bytes(b.f, i);
    }
    /* Convolutions of 9 cells, and two of one. */
    const uint64_t large = 100, small = 25;
    assert_int_equal(cost, large * 9 * (3 * 8 + 2 * 8 * 8) + small * 9 * 8 * 8 +
                               small * (9 * (8 * 16 + 5 * 16 * 16 + 16 * 8) + 8 * 16 + 8 * 8));
    uint64_t values = 0;
    for (size_t i = 0; i < b.c->n_tensors; i++)
        if (str_starts(b.c->tensors[i].name, "encoder.") ||
            str_starts(b.c->tensors[i].name, "quant"))
            values += b.c->tensors[i].count;
    assert_int_equal(bytes, values * 4);
    OK(frozen_bytes(b.c, &opt, &all, err));
    assert_true(all.weights >= bytes && all.out == frozen_out_bytes(b.f));
    assert_int_equal(all.hold, SIDE * SIDE * 8 * sizeof(float)); /* as wide as the first layers */
    opt.dt = DT_BF16;
    OK(frozen_bytes(b.c, &opt, &narrow, err));
    assert_true(narrow.weights < all.weights && narrow.scratch < all.scratch);
    put_away(&b);
}

static void what_a_network_cannot_do_is_refused(void **state)
{
    struct bench b;
    struct frozen_options opt = options(FROZEN_ENCODE, DT_F32, 1);
    load_up(&b, VAE(""), "cpu", 1);
    opt.side = 9;
    refused(&b, opt, "cannot take pictures of 9 pixels: the side must be a multiple of 2");
    opt.side = 512;
    refused(&b, opt, "has attention between 256 x 256 latents");
    refused(&b, options(FROZEN_TEXT, DT_F32, 1), "is an AutoencoderKL, of which there is no text");
    refused(&b, options(FROZEN_ENCODE, DT_F32, 0), "a group of 0 samples");
    put_away(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(samples_have_the_same_bits_in_any_group),
        cmocka_unit_test(f32_is_near_the_reference),
        cmocka_unit_test(layers_tell_what_they_cost),
        cmocka_unit_test(what_a_network_cannot_do_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
