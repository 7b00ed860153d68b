/* Frozen networks whose weights lie in the host's memory.  On a card (CARD_DEVICE) the copies of
 * weights run beside the layers before them. */
#include "worker/frozen/frozen_walk.h"

#include "common/base/rng.h"
#include "kernels/device/device.h"
#include "tests/unit/components.h"

#ifdef CARD_DEVICE
const char *guard_device(void); /* of check_ops */
#else
#define CARD_DEVICE "cpu"
#endif

#define VAE                                                                                        \
    "{\"_class_name\": \"AutoencoderKL\", \"block_out_channels\": [8, 16], \"norm_num_groups\": "  \
    "4, \"layers_per_block\": 1,"                                                                  \
    " \"down_block_types\": [\"DownEncoderBlock2D\", \"DownEncoderBlock2D\"],"                     \
    " \"up_block_types\": [\"UpDecoderBlock2D\", \"UpDecoderBlock2D\"]}"
#define CLIP                                                                                       \
    "{\"architectures\": [\"CLIPTextModel\"], \"vocab_size\": 50, \"hidden_size\": 24,"            \
    " \"num_hidden_layers\": 3, \"num_attention_heads\": 2, \"intermediate_size\": 40,"            \
    " \"max_position_embeddings\": 9}"
#define T5                                                                                         \
    "{\"architectures\": [\"T5EncoderModel\"], \"vocab_size\": 50, \"d_model\": 24, \"d_kv\": 5,"  \
    " \"d_ff\": 40, \"num_layers\": 4, \"num_heads\": 3, \"feed_forward_proj\": \"gated-gelu\"}"

enum { N = 7, SIDE = 10, TOKENS = 3, MOST = 8192, READS = 4096, COPIES = 256 };

static const struct chain {
    const char *config;
    enum frozen_part part;
    int layer;
} chains[] = {{VAE, FROZEN_ENCODE, 0},
              {VAE, FROZEN_DECODE, 0},
              {CLIP, FROZEN_TEXT, -1},
              {CLIP, FROZEN_TEXT, -2},
              {T5, FROZEN_TEXT, -1}};

struct bench {
    char *folder;
    struct device *dev;
    struct component *c;
    uint8_t pixels[N * SIDE * SIDE * 3];
    float latents[N * 4 * (SIDE / 2) * (SIDE / 2)];
    int32_t ids[N * TOKENS];
    int32_t lengths[N];
};

static void load_up(struct bench *b, const char *config, const char *device)
{
    *b = (struct bench){.folder = scratch_new()};
    component_write_text(b->folder, "config.json", config);
    component_write_weights(b->folder, config, "model.safetensors", (struct made){0});
    OK(component_open(b->folder, COMPONENT_ANY, &b->c, err));
    OK(device_open(device, 2, &b->dev, err));
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
    component_close(b->c);
    device_close(b->dev);
    scratch_free(b->folder);
}

static struct frozen_options options(const struct chain *chain, enum dtype dt, int group, int pass)
{
    return (struct frozen_options){.part = chain->part,
                                   .dt = dt,
                                   .moments = dt,
                                   .group = group,
                                   .side = SIDE,
                                   .tokens = TOKENS,
                                   .layer = chain->layer,
                                   .pass = pass};
}

static size_t run(const struct bench *b, struct frozen *f, enum frozen_part part, uint8_t *out)
{
    const void *in[] = {b->pixels, b->latents, b->ids};
    struct frozen_io io = {.in = in[part], .lengths = b->lengths};
    const size_t bytes = N * (size_t)frozen_out_bytes(f);
    const struct kernel_ops *k = b->dev->ops;
    void *latents;
    assert_true(bytes <= MOST);
    memset(out, 0xee, MOST);
    OK(k->alloc(b->dev, bytes, &io.out, err));
    OK(k->alloc(b->dev, sizeof b->latents, &latents, err));
    if (part == FROZEN_DECODE) {
        OK(k->copy(b->dev, latents, b->latents, sizeof b->latents, COPY_TO_DEVICE, NULL));
        OK(k->sync(b->dev, NULL, err));
        io.in = latents;
    }
    OK(frozen_run(f, &io, N, err));
    OK(k->copy(b->dev, out, io.out, bytes, COPY_FROM_DEVICE, NULL));
    OK(k->sync(b->dev, NULL, err));
    k->free(b->dev, latents);
    k->free(b->dev, io.out);
    return bytes;
}

/* Equal, but for what a card's library makes of weights that lie elsewhere: it may take another
 * algorithm. */
static void assert_alike(const struct bench *b, const struct chain *chain, enum dtype dt,
                         const uint8_t *one, const uint8_t *whole, size_t bytes)
{
    if (b->dev->unified) {
        assert_memory_equal(one, whole, bytes);
        return;
    }
    const bool pixels = chain->part == FROZEN_DECODE;
    const size_t n = pixels ? bytes : bytes / dtype_bytes(dt);
    float most = 1e-6f, error = 0;
    for (size_t i = 0; i < n; i++) {
        const float x = pixels ? (float)one[i] : dtype_get(one, dt, i);
        const float y = pixels ? (float)whole[i] : dtype_get(whole, dt, i);
        most = fmaxf(most, fabsf(y));
        error = isnan(x) ? INFINITY : fmaxf(error, fabsf(x - y));
    }
    if (error > most * (dt == DT_BF16 ? 0.05f : 1e-3f) + (pixels ? 1.0f : 0.0f))
        fail_msg("off by %g of %g", (double)error, (double)most);
}

/* Two networks with weights in the host's memory, run in turns, against one on the device. */
static void check_bits(const struct bench *b, const struct chain *chain, enum dtype dt, int group,
                       int pass)
{
    _Alignas(64) uint8_t whole[MOST], one[MOST];
    struct frozen_options opt = options(chain, dt, group, 0);
    struct frozen_host *host;
    struct frozen *f, *two[2];
    OK(frozen_open(b->dev, b->c, &opt, &f, err));
    const size_t bytes = run(b, f, chain->part, whole);
    frozen_close(f);
    opt.pass = pass;
    OK(frozen_host_new(b->dev, b->c, &opt, &host, err));
    opt.host = host;
    for (int i = 0; i < 2; i++)
        OK(frozen_open(b->dev, b->c, &opt, &two[i], err));
    for (int i = 0; i < 4; i++) {
        assert_int_equal(run(b, two[i % 2], chain->part, one), bytes);
        assert_alike(b, chain, dt, one, whole, bytes);
    }
    for (int i = 0; i < 2; i++)
        frozen_close(two[i]);
    frozen_host_free(host);
}

static void streamed_networks_have_the_same_bits(void **state)
{
    static const int sizes[][2] = {{1, 1}, {1, 3}, {2, 2}, {2, 5}, {2, N}, {3, 50}, {N, N}};
    (void)state;
    for (size_t c = 0; c < COUNT(chains); c++)
        for (int d = 0; d < 4; d++) {
            struct bench b;
            load_up(&b, chains[c].config, d / 2 ? CARD_DEVICE : "cpu-ref");
            for (size_t i = 0; i < COUNT(sizes); i++)
                check_bits(&b, &chains[c], d % 2 ? DT_BF16 : DT_F32, sizes[i][0], sizes[i][1]);
            put_away(&b);
        }
}

/* ---- order ---- */

/* A device with a second stream, whose copies are made as late as they may be: when somebody waits
 * for a mark behind them.  A copy must not overwrite what a product or a table queued before may
 * still read. */
struct mark {
    bool set, copies;
    int at;
};

static struct {
    const struct kernel_ops *real;
    int streams, queued, done, clock, passed, reads;
    struct {
        void *to;
        const void *from;
        size_t bytes;
    } copies[COPIES];
    struct {
        const char *from;
        size_t bytes;
        int clock;
    } read[READS];
} late;

static struct stream *const second = (struct stream *)&late;

static int late_stream_new(struct device *dev, struct stream **ret, struct err *err)
{
    (void)dev;
    (void)err;
    *ret = late.streams++ == 0 ? NULL : second;
    return 0;
}

static void late_stream_free(struct device *dev, struct stream *s)
{
    (void)dev;
    (void)s;
}

static int late_mark_new(struct device *dev, struct mark **ret, struct err *err)
{
    (void)dev;
    (void)err;
    *ret = mem_alloc(sizeof **ret);
    return 0;
}

static void late_mark_free(struct device *dev, struct mark *m)
{
    (void)dev;
    mem_free(m);
}

static int late_mark(struct device *dev, struct mark *m, struct stream *s)
{
    (void)dev;
    *m = (struct mark){true, s == second, s == second ? late.queued : late.clock};
    return 0;
}

static int late_pass(struct device *dev, struct stream *s, struct mark *m)
{
    if (s == second && m->set)
        late.passed = m->at > late.passed ? m->at : late.passed;
    for (; s != second && m->set && late.done < m->at; late.done++)
        OK(late.real->copy(dev, late.copies[late.done].to, late.copies[late.done].from,
                           late.copies[late.done].bytes, COPY_TO_DEVICE, NULL));
    return 0;
}

static int late_copy(struct device *dev, void *dst, const void *src, size_t bytes,
                     enum copy_kind kind, struct stream *s)
{
    const char *to = dst;
    if (s != second)
        return late.real->copy(dev, dst, src, bytes, kind, s);
    for (int i = 0; i < late.reads; i++)
        if (late.read[i].from < to + bytes && to < late.read[i].from + late.read[i].bytes)
            assert_true(late.read[i].clock <= late.passed);
    assert_true(late.queued < COPIES);
    late.copies[late.queued].to = dst;
    late.copies[late.queued].from = src;
    late.copies[late.queued++].bytes = bytes;
    return 0;
}

static void note_read(const void *from, size_t bytes)
{
    assert_true(late.reads < READS);
    late.read[late.reads].from = from;
    late.read[late.reads].bytes = bytes;
    late.read[late.reads++].clock = ++late.clock;
}

static int late_matmul(struct device *dev, const struct matmul *mm, struct stream *s)
{
    note_read(mm->b, (size_t)(mm->n * mm->k) * dtype_bytes(mm->dt));
    return late.real->matmul(dev, mm, s);
}

static int late_embed(struct device *dev, float *out, const float *table, const int32_t *ids, int B,
                      int C, int rows, bool accumulate, struct stream *s)
{
    note_read(table, (size_t)rows * (size_t)C * sizeof *table);
    return late.real->embed_fwd(dev, out, table, ids, B, C, rows, accumulate, s);
}

static void copies_keep_out_of_the_way(void **state)
{
    static const int sizes[][2] = {{1, 1}, {2, 5}, {2, N}, {N, N}};
    (void)state;
    for (size_t k = 0; k < 3 * COUNT(sizes); k++) {
        const struct chain *chain = &chains[2 + k / COUNT(sizes)];
        const int *size = sizes[k % COUNT(sizes)];
        _Alignas(64) uint8_t whole[MOST], one[MOST];
        struct frozen_host *host;
        struct kernel_ops ops;
        struct frozen *f;
        struct bench b;
        load_up(&b, chain->config, "cpu");
        struct frozen_options opt = options(chain, DT_F32, size[0], 0);
        OK(frozen_open(b.dev, b.c, &opt, &f, err));
        const size_t bytes = run(&b, f, chain->part, whole);
        frozen_close(f);
        memset(&late, 0, sizeof late);
        ops = *(late.real = b.dev->ops);
        ops.stream_new = late_stream_new;
        ops.stream_free = late_stream_free;
        ops.mark_new = late_mark_new;
        ops.mark_free = late_mark_free;
        ops.mark = late_mark;
        ops.stream_pass = late_pass;
        ops.copy = late_copy;
        ops.matmul = late_matmul;
        ops.embed_fwd = late_embed;
        b.dev->ops = &ops;
        opt.pass = size[1];
        OK(frozen_host_new(b.dev, b.c, &opt, &host, err));
        opt.host = host;
        OK(frozen_open(b.dev, b.c, &opt, &f, err));
        for (int i = 0; i < 2; i++) {
            assert_int_equal(run(&b, f, chain->part, one), bytes);
            assert_memory_equal(one, whole, bytes);
        }
        /* Each pass copies each layer once, and the first ones of another that may come. */
        const int passes = 2 * ((N + size[1] - 1) / size[1]);
        assert_in_range(late.queued, passes * (frozen_layers(f) - 1),
                        passes * frozen_layers(f) + FROZEN_SLOTS);
        frozen_close(f);
        frozen_host_free(host);
        b.dev->ops = late.real;
        put_away(&b);
    }
}

/* ---- sizes ---- */

static void devices_need_less(void **state)
{
    struct frozen_sizes whole, small;
    struct bench b;
    uint64_t layers = 0, most = 0;
    (void)state;
    load_up(&b, T5, "cpu");
    struct frozen_options opt = options(&chains[4], DT_F32, 2, 0);
    struct frozen *f;
    OK(frozen_open(b.dev, b.c, &opt, &f, err));
    for (int i = 1; i < frozen_layers(f); i++)
        most = frozen_layer_bytes(f, i) > most ? frozen_layer_bytes(f, i) : most;
    for (int i = 0; i < frozen_layers(f); i++)
        layers += frozen_layer_bytes(f, i);
    frozen_close(f);
    OK(frozen_bytes(b.c, &opt, &whole, err));
    assert_int_equal(whole.streamed, 0);
    assert_int_equal(whole.all, whole.weights);
    assert_in_range(layers, whole.all - 64 * 64, whole.all);
    opt.pass = N;
    OK(frozen_bytes(b.c, &opt, &small, err));
    assert_int_equal(small.all, whole.all);
    assert_true(small.streamed < small.all); /* all blocks read T5's bias */
    assert_in_range(small.weights, 2 * most, 2 * most + 5000);
    assert_int_equal(small.scratch - whole.scratch,
                     (N * small.hold + 63) / 64 * 64 + (N * 4 > 64 ? 64 : 0));
    put_away(&b);
}

static void what_cannot_be_is_refused(void **state)
{
    struct frozen_host *host;
    struct frozen_walk *w;
    struct frozen *f;
    struct bench b;
    (void)state;
    load_up(&b, CLIP, "cpu");
    struct frozen_options opt = options(&chains[2], DT_F32, 4, 3);
    FAILS(frozen_host_new(b.dev, b.c, &opt, &host, err), "a pass of 3 samples");
    opt.pass = 4;
    OK(frozen_host_new(b.dev, b.c, &opt, &host, err));
    opt.host = host;
    OK(frozen_open(b.dev, b.c, &opt, &f, err));
    FAILS(frozen_walk_new(f, 2, &w, err), "needs its weights on cpu");
    frozen_close(f);
    frozen_host_free(host);
    component_write_weights(b.folder, CLIP, "model.safetensors",
                            (struct made){.nan = "encoder.layers.1.mlp.fc1.weight"});
    FAILS(frozen_host_new(b.dev, b.c, &opt, &host, err), "holds a value that is");
    frozen_host_free(NULL);
    put_away(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(streamed_networks_have_the_same_bits),
        cmocka_unit_test(copies_keep_out_of_the_way),
        cmocka_unit_test(devices_need_less),
        cmocka_unit_test(what_cannot_be_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
