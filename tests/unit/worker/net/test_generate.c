/* Drawing tokens, and texts that grow beyond the context. */
#include <errno.h>
#include <math.h>

#include "tests/unit/ok.h"

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "kernels/device/device.h"
#include "worker/net/generate.h"
#include "worker/net/llama.h"

enum { CONTEXT = 16, VOCAB = TOKENIZER_BYTES_VOCAB, DIM = 8 };

struct fixture {
    struct device *dev;
    struct model *m;
    struct net *net;
    struct llama *l;
};

static int setup(void **state)
{
    static struct fixture f;
    struct model_spec spec = {.kind = MODEL_LLAMA,
                              .dim = DIM,
                              .depth = 2,
                              .heads = 2,
                              .kv_heads = 1,
                              .mlp = 16,
                              .vocab = VOCAB,
                              .context = CONTEXT,
                              .rope_theta = 10000.0f,
                              .norm_eps = 1e-5f,
                              .cut = {.n_levels = 1}};
    struct net_options opt = {.mode = NET_FORWARD, .precision = NET_F32, .batch = 1};
    OK(device_open("cpu", 1, &f.dev, err));
    OK(model_new(&spec, &f.m, err));
    float *flat = model_flat_new(f.m);
    for (size_t i = 0; i < f.m->n; i++)
        rng_fill_normal(8, i, 0, flat + f.m->tensors[i].offset, f.m->tensors[i].count, 0.0f, 1.0f);
    OK(net_new(f.dev, f.m, &opt, &f.net, err));
    OK(weights_set(f.net->weights, flat, err));
    mem_free(flat);
    f.l = llama_of(f.net);
    *state = &f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    net_free(f->net);
    model_free(f->m);
    device_close(f->dev);
    return 0;
}

/* ---- one draw ---- */

enum { N = 5, DRAWS = 20000 };
/* Probabilities 0.4, 0.3, 0.2, 0.07, 0.03 in another order. */
static const float five[N] = {-1.20397280f, -3.50655790f, -0.91629073f, -2.65926004f, -1.60943791f};
static const double probability[N] = {0.3, 0.03, 0.4, 0.07, 0.2};

static void draw_many(const struct generate_options *opt, double share[N])
{
    struct generate_candidate scratch[N];
    memset(share, 0, N * sizeof *share);
    for (uint64_t i = 0; i < DRAWS; i++)
        share[generate_draw(five, N, opt, i, scratch)] += 1.0 / DRAWS;
}

static void test_temperature(void **state)
{
    (void)state;
    double share[N], sum = 0;
    draw_many(&(struct generate_options){.temperature = 1, .top_p = 1, .seed = 3}, share);
    for (int i = 0; i < N; i++)
        assert_true(fabs(share[i] - probability[i]) < 0.012);

    draw_many(&(struct generate_options){.temperature = 0.5f, .top_p = 1, .seed = 3}, share);
    for (int i = 0; i < N; i++)
        sum += probability[i] * probability[i];
    for (int i = 0; i < N; i++)
        assert_true(fabs(share[i] - probability[i] * probability[i] / sum) < 0.012);

    draw_many(&(struct generate_options){.temperature = 0, .top_p = 1, .seed = 3}, share);
    assert_true(share[2] > 0.999);
}

static void test_nucleus(void **state)
{
    (void)state;
    double share[N];
    draw_many(&(struct generate_options){.temperature = 1, .top_p = 0.75f, .seed = 4}, share);
    assert_true(share[1] == 0 && share[3] == 0); /* 0.4 + 0.3 is not enough, with 0.2 it is */
    assert_true(fabs(share[2] - 0.4 / 0.9) < 0.012);
    assert_true(fabs(share[0] - 0.3 / 0.9) < 0.012);
    draw_many(&(struct generate_options){.temperature = 1, .top_p = 0.35f, .seed = 4}, share);
    assert_true(share[2] > 0.999);
}

/* Equal draws from equal seeds, others from others. */
static void test_seed(void **state)
{
    (void)state;
    struct generate_candidate scratch[N];
    struct generate_options a = {.temperature = 1, .top_p = 1, .seed = 5}, b = a;
    b.seed = 6;
    int differ = 0;
    for (uint64_t i = 0; i < 100; i++) {
        const uint32_t id = generate_draw(five, N, &a, i, scratch);
        assert_int_equal(generate_draw(five, N, &a, i, scratch), id);
        differ += generate_draw(five, N, &b, i, scratch) != id;
    }
    assert_true(differ > 20);
}

/* ---- texts ---- */

struct made {
    uint32_t ids[3 * CONTEXT];
    unsigned n, stop_after;
    int stop_with;
};

static int take(void *arg, uint32_t id, unsigned done)
{
    struct made *m = arg;
    assert_int_equal(done, m->n + 1);
    m->ids[m->n++] = id;
    return m->n == m->stop_after ? m->stop_with : 0;
}

/* The likeliest token after ids, from the whole text at once. */
static uint32_t follow(struct fixture *f, const uint32_t *ids, int n)
{
    int32_t tokens[CONTEXT + 1], start[CONTEXT], target[CONTEXT], pos[CONTEXT];
    float *logits = mem_alloc_array(CONTEXT * VOCAB, sizeof *logits);
    for (int i = 0; i < n; i++) {
        tokens[i] = (int32_t)ids[i];
        start[i] = 0;
        target[i] = -1;
        pos[i] = i;
    }
    tokens[n] = 0;
    struct batch b = {.count = 1,
                      .seq = (unsigned)n,
                      .tokens = tokens,
                      .start = start,
                      .target = target,
                      .pos = pos};
    OK(llama_logits(f->l, &b, logits, err));
    const uint32_t id = generate_draw(logits + (n - 1) * VOCAB, VOCAB,
                                      &(struct generate_options){.temperature = 0}, 0, NULL);
    mem_free(logits);
    return id;
}

/* Greedy: each token is the likeliest after all before it, also when the context has
 * been left behind: then after the half that was kept and what came since. */
static void test_greedy(void **state)
{
    struct fixture *f = *state;
    const uint32_t prompt[] = {256, 'a', 'b', 'c'};
    const struct generate_options opt = {.tokens = 2 * CONTEXT, .temperature = 0, .top_p = 1};
    struct made made = {0};
    OK(generate_tokens(f->l, prompt, 4, -1, &opt, take, &made, err));
    assert_int_equal(made.n, opt.tokens);

    uint32_t window[CONTEXT];
    int n = 4;
    memcpy(window, prompt, sizeof prompt);
    for (unsigned i = 0; i < made.n; i++) {
        assert_int_equal(made.ids[i], follow(f, window, n));
        if (n == CONTEXT) {
            memmove(window, window + CONTEXT / 2, CONTEXT / 2 * sizeof *window);
            n = CONTEXT / 2;
        }
        window[n++] = made.ids[i];
    }
}

static void test_ends(void **state)
{
    struct fixture *f = *state;
    struct err e = {0};
    const uint32_t prompt[CONTEXT + 5] = {256, 'x', [CONTEXT + 4] = 'y'};
    const struct generate_options opt = {.tokens = 10, .temperature = 1, .top_p = 0.9f, .seed = 2};
    struct made all = {0}, made = {0}, again = {0};
    OK(generate_tokens(f->l, prompt, CONTEXT + 5, -1, &opt, take, &all, err));
    OK(generate_tokens(f->l, prompt, CONTEXT + 5, -1, &opt, take, &again, err));
    assert_memory_equal(all.ids, again.ids, sizeof all.ids);

    unsigned first = 0; /* the end of the text is not given out */
    while (all.ids[first] != all.ids[4])
        first++;
    OK(generate_tokens(f->l, prompt, CONTEXT + 5, (int32_t)all.ids[4], &opt, take, &made, err));
    assert_int_equal(made.n, first);

    made = (struct made){.stop_after = 3, .stop_with = 1};
    OK(generate_tokens(f->l, prompt, 2, -1, &opt, take, &made, err));
    assert_int_equal(made.n, 3);
    made = (struct made){.stop_after = 2, .stop_with = -ERR_CANCELLED};
    assert_int_equal(generate_tokens(f->l, prompt, 2, -1, &opt, take, &made, &e), -ERR_CANCELLED);
    assert_int_equal(generate_tokens(f->l, prompt, 0, -1, &opt, take, &made, &e), -EINVAL);
}

struct text {
    char all[512];
    size_t len;
    unsigned calls;
};

static int take_text(void *arg, const char *text, size_t len, unsigned done)
{
    struct text *t = arg;
    t->calls++;
    (void)done;
    assert_true(t->len + len < sizeof t->all);
    memcpy(t->all + t->len, text, len);
    t->len += len;
    return 0;
}

static size_t characters(const char *s, size_t len)
{
    size_t n = 0;
    for (size_t i = 0; i < len; i++)
        n += ((unsigned char)s[i] & 0xc0) != 0x80;
    return n;
}

/* Random weights speak random bytes: what comes out is valid UTF-8 all the same. */
static void test_text(void **state)
{
    struct fixture *f = *state;
    struct tokenizer *t = tokenizer_bytes();
    const struct generate_options opt = {.tokens = 60, .temperature = 2, .top_p = 1, .seed = 9};
    struct text text = {0};
    OK(generate_text(f->l, t, "über", &opt, take_text, &text, err));
    assert_true(text.calls >= 1 && text.len > 0);
    size_t valid = 0; /* lead bytes and the length they promise */
    for (size_t i = 0; i < text.len; valid++) {
        const unsigned char c = (unsigned char)text.all[i];
        const size_t n = c < 0x80 ? 1 : c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : 2;
        assert_true(c < 0x80 || c >= 0xc2);
        for (size_t k = 1; k < n; k++)
            assert_int_equal((unsigned char)text.all[i + k] & 0xc0, 0x80);
        i += n;
    }
    assert_int_equal(valid, characters(text.all, text.len));
    tokenizer_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_temperature), cmocka_unit_test(test_nucleus),
        cmocka_unit_test(test_seed),        cmocka_unit_test(test_greedy),
        cmocka_unit_test(test_ends),        cmocka_unit_test(test_text),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
