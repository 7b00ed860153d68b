/* Samples through a chain in pieces. */
#include "worker/frozen/frozen_walk.h"

#include "tests/unit/worker/frozen/bench.h"

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_make_the_whole),
        cmocka_unit_test(walks_refuse),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
