#include "worker/frozen/frozen_walk.h"

#include "common/base/rng.h"
#include "kernels/device/device.h"
#include "tests/unit/components.h"

#define VAE(more)                                                                                  \
    "{\"_class_name\": \"AutoencoderKL\", \"block_out_channels\": [8, 16], \"norm_num_groups\": "  \
    "4,"                                                                                           \
    " \"layers_per_block\": 1,"                                                                    \
    " \"down_block_types\": [\"DownEncoderBlock2D\", \"DownEncoderBlock2D\"],"                     \
    " \"up_block_types\": [\"UpDecoderBlock2D\", \"UpDecoderBlock2D\"]" more "}"
#define CLIP                                                                                       \
    "{\"architectures\": [\"CLIPTextModel\"], \"vocab_size\": 50, \"hidden_size\": 24,"            \
    " \"num_hidden_layers\": 3, \"num_attention_heads\": 2, \"intermediate_size\": 40,"            \
    " \"max_position_embeddings\": 9}"
#define T5(form)                                                                                   \
    "{\"architectures\": [\"T5EncoderModel\"], \"vocab_size\": 50, \"d_model\": 24, \"d_kv\": 5,"  \
    " \"d_ff\": 40, \"num_layers\": 2, \"num_heads\": 3, \"feed_forward_proj\": \"" form "\"}"

enum { N = 7, SIDE = 10, TOKENS = 3, MOST = 8192 };

/* A chain, what it is given and what it makes of it. */
struct bench {
    char *folder;
    struct device *dev;
    struct component *c;
    struct frozen *f;
    uint8_t pixels[N * SIDE * SIDE * 3];
    float latents[N * 4 * (SIDE / 2) * (SIDE / 2)];
    int32_t ids[N * TOKENS];
    int32_t lengths[N];
};

static void load_up(struct bench *b, const char *config, const char *device, int threads)
{
    *b = (struct bench){.folder = scratch_new()};
    component_write_text(b->folder, "config.json", config);
    component_write_weights(b->folder, config, "model.safetensors", (struct made){0});
    OK(component_open(b->folder, COMPONENT_ANY, &b->c, err));
    OK(device_open(device, threads, &b->dev, err));
    for (size_t i = 0; i < sizeof b->pixels; i++)
        b->pixels[i] = (uint8_t)rng_at_u32(1, 0, i);
    rng_fill_normal(2, 0, 0, b->latents, COUNT(b->latents), 0, 1);
    for (size_t i = 0; i < COUNT(b->ids); i++)
        b->ids[i] = (int32_t)(rng_at_u32(3, 0, i) % 50);
    for (size_t i = 0; i < N; i++)
        b->lengths[i] = (int32_t)(i % TOKENS) + 1;
}

static void put_away(struct bench *b)
{
    frozen_close(b->f);
    component_close(b->c);
    device_close(b->dev);
    scratch_free(b->folder);
}

static struct frozen_options options(enum frozen_part part, enum dtype dt, int group)
{
    return (struct frozen_options){.part = part,
                                   .dt = dt,
                                   .moments = dt,
                                   .group = group,
                                   .side = SIDE,
                                   .tokens = TOKENS,
                                   .layer = -1};
}

static struct frozen_io inputs(const struct bench *b, enum frozen_part part, void *out)
{
    const void *in[] = {b->pixels, b->latents, b->ids};
    return (struct frozen_io){.in = in[part], .lengths = b->lengths, .out = out};
}

/* The chain over all samples; bytes of the whole. */
static size_t run(struct bench *b, const struct frozen_options *opt, uint8_t *out)
{
    const struct frozen_io io = inputs(b, opt->part, out);
    frozen_close(b->f);
    b->f = NULL;
    OK(frozen_open(b->dev, b->c, opt, &b->f, err));
    const size_t bytes = N * (size_t)frozen_out_bytes(b->f);
    assert_true(bytes <= MOST);
    OK(frozen_run(b->f, &io, N, err));
    return bytes;
}

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

/* Runs of samples through runs of layers, cut at random but in order, have the bits of the whole
 * chain; at most `underway` are between the first layer and the last. */
static void walk_at_random(struct bench *b, const struct frozen_io *io, int underway, uint64_t seed)
{
    struct frozen_walk *w;
    struct rng r;
    const int layers = frozen_layers(b->f);
    int at[N] = {0}; /* the next layer of each sample */
    rng_init(&r, seed, 0);
    OK(frozen_walk_new(b->f, underway, &w, err));
    OK(frozen_walk_begin(w, io, N, err));
    while (at[N - 1] < layers) {
        int first = (int)rng_below(&r, N), count = 1, on_way = 0;
        while (first > 0 && at[first - 1] == at[first])
            first--; /* those in front first */
        if (at[first] == layers)
            continue;
        while (first + count < N && at[first + count] == at[first] && rng_below(&r, 3) > 0)
            count++;
        for (int i = 0; i < N; i++)
            on_way += at[i] > 0 && at[i] < layers;
        const int room = at[first] > 0 ? count : underway - on_way;
        count = count < room ? count : room;
        const int most = first > 0 ? at[first - 1] : layers; /* nobody overtakes */
        const int to = at[first] + 1 + (int)rng_below(&r, (uint32_t)(most - at[first]));
        if (count < 1)
            continue;
        OK(frozen_walk_run(w, first, count, at[first], to, NULL, err));
        for (int i = first; i < first + count; i++)
            at[i] = to;
    }
    frozen_walk_free(w);
}

static void pieces_make_the_whole(void **state)
{
    static const struct {
        const char *config;
        enum frozen_part part;
        int layer;
    } chains[] = {{VAE(""), FROZEN_ENCODE, 0},
                  {CLIP, FROZEN_TEXT, -1},
                  {CLIP, FROZEN_TEXT, -2},
                  {T5("gated-gelu"), FROZEN_TEXT, -1}};
    for (uint64_t i = 0; i < 64; i++) {
        struct bench b;
        _Alignas(64) uint8_t whole[MOST], pieces[MOST] = {0};
        const size_t k = i % COUNT(chains);
        load_up(&b, chains[k].config, "cpu", 1);
        struct frozen_options opt =
            options(chains[k].part, i / 4 % 2 ? DT_BF16 : DT_F32, 1 + (int)(i % 3));
        opt.layer = chains[k].layer;
        const size_t bytes = run(&b, &opt, whole);
        const struct frozen_io io = inputs(&b, opt.part, pieces);
        walk_at_random(&b, &io, 2 + (int)(i % 5), i);
        assert_memory_equal(pieces, whole, bytes);
        put_away(&b);
    }
}

static void walks_refuse(void **state)
{
    struct bench b;
    struct frozen_walk *w;
    _Alignas(64) uint8_t out[MOST];
    load_up(&b, CLIP, "cpu", 1);
    const struct frozen_options opt = options(FROZEN_TEXT, DT_F32, 2);
    (void)run(&b, &opt, out);
    struct frozen_io io = inputs(&b, FROZEN_TEXT, out);
    OK(frozen_walk_new(b.f, 2, &w, err));
    OK(frozen_walk_begin(w, &io, N, err));
    FAILS(frozen_walk_run(w, N - 1, 2, 0, 1, NULL, err), "samples 6 to 8 of 7");
    FAILS(frozen_walk_run(w, 0, 3, 0, 1, NULL, err), "of which 2 are on their way");
    FAILS(frozen_walk_run(w, 0, 1, 0, 99, NULL, err), "layers 0 to 99");
    b.lengths[3] = TOKENS + 1;
    FAILS(frozen_walk_begin(w, &io, N, err), "text 3 has 4 tokens");
    frozen_walk_free(w);
    put_away(&b);
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

static void refused(struct bench *b, struct frozen_options opt, const char *says)
{
    struct frozen_sizes sizes = {.weights = 77};
    FAILS(frozen_bytes(b->c, &opt, &sizes, err), says);
    assert_int_equal(sizes.weights, 77);
    FAILS(frozen_open(b->dev, b->c, &opt, &b->f, err), says);
    assert_null(b->f);
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

    load_up(&b, CLIP, "cpu", 1);
    opt = options(FROZEN_TEXT, DT_F32, 1);
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
        cmocka_unit_test(samples_have_the_same_bits_in_any_group),
        cmocka_unit_test(f32_is_near_the_reference),
        cmocka_unit_test(pictures_have_any_shape),
        cmocka_unit_test(rectangles_are_near_the_reference),
        cmocka_unit_test(pieces_make_the_whole),
        cmocka_unit_test(walks_refuse),
        cmocka_unit_test(layers_tell_what_they_cost),
        cmocka_unit_test(states_end_with_the_text),
        cmocka_unit_test(pictures_come_back_as_bytes),
        cmocka_unit_test(what_a_network_cannot_do_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
