/* The states of texts, and what cannot be had of a text encoder. */
#include "tests/unit/worker/frozen/bench.h"

static void states_end_with_the_text(void **state)
{
    struct bench b;
    float out[MOST / 4];
    load_up(&b, T5("gated-gelu"), "cpu", 1);
    const struct frozen_options opt = options(FROZEN_TEXT, DT_F32, 3);
    (void)run(&b, &opt, (uint8_t *)out);
    for (int i = 0; i < N * TOKENS; i++) {
        bool zero = true;
        for (int k = 0; k < 24; k++)
            zero = zero && out[i * 24 + k] == 0;
        assert_int_equal(zero, i % TOKENS >= b.lengths[i / TOKENS]);
    }
    b.lengths[5] = 0;
    const struct frozen_io io = inputs(&b, FROZEN_TEXT, out);
    FAILS(frozen_run(b.f, &io, N, err), "text 5 has 0 tokens, expected 1 to 3");
    put_away(&b);
}

static void other_layers_and_lengths_are_refused(void **state)
{
    struct bench b;
    load_up(&b, CLIP, "cpu", 1);
    struct frozen_options opt = options(FROZEN_TEXT, DT_F32, 1);
    opt.tokens = 10;
    refused(&b, opt, "cannot take texts of 10 tokens, expected 1 to 9");
    opt = options(FROZEN_TEXT, DT_F32, 1);
    opt.layer = -3;
    refused(&b, opt, "layer -3 of a CLIPTextModel cannot be taken");
    component_write_weights(b.folder, CLIP, "model.safetensors",
                            (struct made){.nan = "encoder.layers.1.mlp.fc1.weight"});
    opt.layer = -1;
    FAILS(frozen_open(b.dev, b.c, &opt, &b.f, err),
          "layers.1.mlp.fc1.weight holds a value that is");
    put_away(&b);

    load_up(&b, T5("relu"), "cpu", 1);
    opt.layer = -2;
    refused(&b, opt, "layer -2 of a T5EncoderModel cannot be taken; -1 can");
    put_away(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(states_end_with_the_text),
        cmocka_unit_test(other_layers_and_lengths_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
