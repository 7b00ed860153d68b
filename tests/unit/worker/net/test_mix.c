/* Strategies, and the theorem behind them: for finite data the velocities of clusters,
 * weighted by their posteriors, sum to the marginal flow of all data. */
#include "kernels/device/device.h"
#include "tests/unit/worker/tiny.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include "worker/net/mix.h"

enum { POINTS = 24, N = 5, K = 4, ROWS = 9 };

struct world {
    struct device *dev;
    double data[POINTS][N];
    int cluster[POINTS];
    unsigned calls[K], rows[K]; /* per expert */
    bool reverse;               /* experts run in another order */
};

static int setup(void **state)
{
    static struct world w;
    OK(device_open("cpu-ref", 1, &w.dev, err));
    for (int i = 0; i < POINTS; i++) {
        w.cluster[i] = (i * i + i / 5) % K;
        for (int j = 0; j < N; j++)
            w.data[i][j] = (double)rng_at_normal(3, (uint64_t)i, (uint64_t)j) + w.cluster[i];
    }
    *state = &w;
    return 0;
}

static int teardown(void **state)
{
    struct world *w = *state;
    device_close(w->dev);
    return 0;
}

/* Posterior of each cluster at (x, t) and, with u, the marginal velocity of cluster
 * `only` (-1: of all data).  In double: papers' section 3 in closed form. */
static void exact(const struct world *w, const float *x, float t, int only, double *posterior,
                  double *u)
{
    double score[POINTS], most = -INFINITY, all = 0, of_cluster[K] = {0}, sum = 0;
    for (int i = 0; i < POINTS; i++) {
        double d = 0;
        for (int j = 0; j < N; j++)
            d += pow((double)x[j] - (1 - (double)t) * w->data[i][j], 2);
        score[i] = -d / (2 * (double)t * (double)t);
        if (only < 0 || w->cluster[i] == only)
            most = fmax(most, score[i]);
    }
    for (int j = 0; u && j < N; j++)
        u[j] = 0;
    for (int i = 0; i < POINTS; i++) {
        if (only >= 0 && w->cluster[i] != only)
            continue;
        double p = exp(score[i] - most);
        all += p;
        of_cluster[w->cluster[i]] += p;
        for (int j = 0; u && j < N; j++)
            u[j] += p * ((double)x[j] - w->data[i][j]) / (double)t;
    }
    for (int k = 0; k < K; k++)
        sum += posterior ? (posterior[k] = of_cluster[k] / all) : 0;
    assert_true(!posterior || fabs(sum - 1) < 1e-12);
    for (int j = 0; u && j < N; j++)
        u[j] /= all;
}

static int run(void *arg, const struct mix_call *calls, int n, struct err *err)
{
    struct world *w = arg;
    (void)err;
    for (int i = 0; i < n; i++) {
        const struct mix_call *c = &calls[w->reverse ? n - 1 - i : i];
        assert_true(i == 0 || calls[i].expert > calls[i - 1].expert);
        assert_true(c->rows > 0);
        w->calls[c->expert]++;
        w->rows[c->expert] += (unsigned)c->rows;
        for (int r = 0; r < c->rows; r++) {
            double u[N];
            exact(w, c->x + r * N, c->t[r], c->expert, NULL, u);
            assert_int_equal(c->labels[r], (int)lroundf(c->t[r] * 1000));
            for (int j = 0; j < N; j++)
                c->v[r * N + j] = (float)u[j];
        }
    }
    return 0;
}

static struct mix *make(struct world *w, int rows, int most)
{
    struct mix *m = NULL;
    struct mix_options opt = {.dev = w->dev, .values = N, .rows = rows, .most = most};
    OK(mix_new(&opt, &(struct mix_experts){.count = K, .arg = w, .run = run}, &m, err));
    memset(w->calls, 0, sizeof w->calls);
    memset(w->rows, 0, sizeof w->rows);
    return m;
}

struct points {
    float x[ROWS * N], t[ROWS], weights[ROWS * K];
    int32_t labels[ROWS];
};

static void points(const struct world *w, struct points *b)
{
    for (int i = 0; i < ROWS; i++) {
        double posterior[K];
        b->t[i] = 0.08f + 0.1f * (float)i;
        b->labels[i] = (int32_t)lroundf(b->t[i] * 1000);
        for (int j = 0; j < N; j++)
            b->x[i * N + j] = (1 - b->t[i]) * (float)w->data[(i * 7) % POINTS][j] +
                              b->t[i] * rng_at_normal(4, (uint64_t)i, (uint64_t)j);
        exact(w, b->x + i * N, b->t[i], -1, posterior, NULL);
        for (int k = 0; k < K; k++)
            b->weights[i * K + k] = (float)posterior[k];
    }
}

static void combine(struct mix *m, const struct mix_rule *rule, const struct points *b, float *v)
{
    float selected[ROWS * K];
    mix_select(rule, selected, b->weights, NULL, ROWS, K);
    OK(mix_run(m, b->x, b->t, b->labels, selected, ROWS, err));
    OK(mix_combine(m, v, selected, ROWS, err));
}

/* u == sum_k W_k v_k, to the precision of f32. */
static void test_closed_form(void **state)
{
    struct world *w = *state;
    struct points b;
    float v[ROWS * N];
    points(w, &b);
    struct mix *m = make(w, ROWS, K);
    combine(m, &(struct mix_rule){.strategy = JOB_STRATEGY_FULL}, &b, v);
    double mixed = 0;
    for (int i = 0; i < ROWS; i++) {
        double u[N], norm = 0, off = 0, posterior[K];
        exact(w, b.x + i * N, b.t[i], -1, posterior, u);
        for (int j = 0; j < N; j++) {
            norm += u[j] * u[j];
            off += pow((double)v[i * N + j] - u[j], 2);
        }
        if (sqrt(off / norm) > 1e-6)
            fail_msg("row %d: relative error %g", i, sqrt(off / norm));
        for (int k = 0; k < K; k++)
            mixed = fmax(mixed, fmin(posterior[k], 1 - posterior[k]));
    }
    assert_true(mixed > 0.1); /* no row decided: the sum is a real one */
    mix_free(m);
}

/* Every expert is called once, on the rows that want it, whatever the order; the same bits
 * as row by row. */
static void test_grouping(void **state)
{
    struct world *w = *state;
    static const struct mix_rule rules[] = {
        {.strategy = JOB_STRATEGY_FULL},
        {.strategy = JOB_STRATEGY_TOP1},
        {.strategy = JOB_STRATEGY_TOPK, .top = 2},
        {.strategy = JOB_STRATEGY_NUCLEUS, .nucleus = 0.8f},
        {.strategy = JOB_STRATEGY_THRESHOLD, .threshold = 0.3f},
    };
    struct points b;
    points(w, &b);
    for (size_t r = 0; r < sizeof rules / sizeof *rules; r++) {
        float v[ROWS * N], turned[ROWS * N], one[ROWS * N], selected[ROWS * K];
        int most = mix_most(&rules[r], K);
        struct mix *m = make(w, ROWS, most);
        mix_select(&rules[r], selected, b.weights, NULL, ROWS, K);
        combine(m, &rules[r], &b, v);
        for (int k = 0; k < K; k++) {
            unsigned want = 0;
            for (int i = 0; i < ROWS; i++)
                want += selected[i * K + k] > 0;
            assert_int_equal(w->rows[k], want);
            assert_int_equal(w->calls[k], want > 0);
        }
        w->reverse = true;
        combine(m, &rules[r], &b, turned);
        w->reverse = false;
        mix_free(m);
        m = make(w, 1, most);
        for (int i = 0; i < ROWS; i++) {
            OK(mix_run(m, b.x + i * N, b.t + i, b.labels + i, selected + i * K, 1, err));
            OK(mix_combine(m, one + i * N, selected + i * K, 1, err));
        }
        mix_free(m);
        assert_memory_equal(v, turned, sizeof v);
        assert_memory_equal(v, one, sizeof v);
    }
}

/* One run, several combinations of it: as an evaluation does. */
static void test_one_run_for_all(void **state)
{
    struct world *w = *state;
    struct points b;
    float all[ROWS * K], selected[ROWS * K], v[ROWS * N], alone[ROWS * N];
    const struct mix_rule top2 = {.strategy = JOB_STRATEGY_TOPK, .top = 2};
    points(w, &b);
    for (int i = 0; i < ROWS * K; i++)
        all[i] = 1;
    struct mix *m = make(w, ROWS, K);
    OK(mix_run(m, b.x, b.t, b.labels, all, ROWS, err));
    mix_select(&top2, selected, b.weights, NULL, ROWS, K);
    OK(mix_combine(m, v, selected, ROWS, err));
    mix_free(m);
    m = make(w, ROWS, 2);
    combine(m, &top2, &b, alone);
    mix_free(m);
    assert_memory_equal(v, alone, sizeof v);
}

/* With a router that is certain, all strategies are the oracle. */
static void test_certain(void **state)
{
    struct world *w = *state;
    struct points b;
    int32_t truth[ROWS];
    float oracle[ROWS * N], selected[ROWS * K], v[ROWS * N];
    points(w, &b);
    memset(b.weights, 0, sizeof b.weights);
    for (int i = 0; i < ROWS; i++)
        b.weights[i * K + (truth[i] = (i * 3) % K)] = 1;
    struct mix *m = make(w, ROWS, K);
    mix_select(&(struct mix_rule){.strategy = JOB_STRATEGY_ORACLE}, selected, b.weights, truth,
               ROWS, K);
    assert_memory_equal(selected, b.weights, sizeof selected);
    OK(mix_run(m, b.x, b.t, b.labels, selected, ROWS, err));
    OK(mix_combine(m, oracle, selected, ROWS, err));
    for (int s = JOB_STRATEGY_TOP1; s < JOB_STRATEGY_ORACLE; s++) {
        struct mix_rule rule = {
            .strategy = (enum job_strategy)s, .top = 2, .nucleus = 0.9f, .threshold = 0.5f};
        combine(m, &rule, &b, v);
        assert_memory_equal(v, oracle, sizeof v);
    }
    mix_free(m);
}

/* A chain whose velocity is a multiple of what it is told beside x. */
static int run_told(void *arg, const struct mix_call *calls, int n, struct err *err)
{
    (void)arg;
    (void)err;
    for (int i = 0; i < n; i++) {
        const struct mix_call *c = &calls[i];
        assert_int_equal(c->chain, c->beside ? 1 : 0);
        for (int j = 0; j < c->rows * N; j++)
            c->v[j] = c->beside ? (float)(c->expert + 1) * c->beside[j] : c->x[j];
    }
    return 0;
}

/* An upscaler's velocities are summed with weights as those of any expert, each from its own row of
 * what it is told; where one expert has all the weight its velocity comes through to the bit. */
static void test_told(void **state)
{
    struct world *w = *state;
    struct points b;
    float told[ROWS * N], v[ROWS * N], all[ROWS * K];
    struct mix *m = NULL;
    const struct mix_options opt = {
        .dev = w->dev, .values = N, .rows = ROWS, .most = K, .upscales = true};
    points(w, &b);
    rng_fill_normal(7, 8, 0, told, ROWS * N, 0.0f, 1.0f);
    for (int i = 0; i < ROWS * K; i++)
        all[i] = 1;
    OK(mix_new(&opt, &(struct mix_experts){.count = K, .arg = w, .run = run_told}, &m, err));
    mix_chain(m, 1, told);
    OK(mix_run(m, b.x, b.t, b.labels, all, ROWS, err));
    OK(mix_combine(m, v, b.weights, ROWS, err));
    for (int i = 0; i < ROWS * N; i++) {
        double want = 0;
        for (int k = 0; k < K; k++)
            want += (double)b.weights[i / N * K + k] * (k + 1) * (double)told[i];
        assert_true(fabs((double)v[i] - want) < 1e-5);
    }
    memset(all, 0, sizeof all);
    for (int i = 0; i < ROWS; i++)
        all[i * K + i % K] = 1;
    OK(mix_run(m, b.x, b.t, b.labels, all, ROWS, err));
    OK(mix_combine(m, v, all, ROWS, err));
    for (int i = 0; i < ROWS * N; i++)
        assert_true(v[i] == (float)(i / N % K + 1) * told[i]);
    mix_chain(m, 0, NULL); /* the base again */
    OK(mix_run(m, b.x, b.t, b.labels, all, ROWS, err));
    OK(mix_combine(m, v, all, ROWS, err));
    assert_memory_equal(v, b.x, sizeof v);
    mix_free(m);
    struct mix_options one = opt;
    one.upscales = false;
    assert_true(mix_bytes(&opt) > mix_bytes(&one));
}

static void expect(const struct mix_rule *rule, const float *weights, const double *want)
{
    float got[K], again[K];
    mix_select(rule, got, weights, NULL, 1, K);
    for (int k = 0; k < K; k++)
        if (fabs((double)got[k] - want[k]) > 1e-6)
            fail_msg("strategy %d expert %d: %g, expected %g", (int)rule->strategy, k,
                     (double)got[k], want[k]);
    memcpy(again, weights, sizeof again);
    mix_select(rule, again, again, NULL, 1, K); /* in place */
    assert_memory_equal(again, got, sizeof got);
}

#define SELECT(weights, want, ...)                                                                 \
    expect(&(struct mix_rule){__VA_ARGS__}, (const float[K])weights, (const double[K])want)
#define OF(...)                                                                                    \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }

static void test_strategies(void **state)
{
    (void)state;
    const float t2 = 0.2f;
    SELECT(OF(.1f, .4f, .3f, .2f), OF(.1, .4, .3, .2), .strategy = JOB_STRATEGY_FULL);
    SELECT(OF(.1f, .4f, .3f, .2f), OF(0, 1, 0, 0), .strategy = JOB_STRATEGY_TOP1);
    SELECT(OF(.1f, .4f, .3f, .2f), OF(0, 4. / 7, 3. / 7, 0), .strategy = JOB_STRATEGY_TOPK,
           .top = 2);
    SELECT(OF(.1f, .4f, .3f, .2f), OF(.1, .4, .3, .2), .strategy = JOB_STRATEGY_TOPK, .top = 9);
    /* .4 + .3 is not enough for .75: one more */
    SELECT(OF(.1f, .4f, .3f, .2f), OF(0, 4. / 9, 3. / 9, 2. / 9), .strategy = JOB_STRATEGY_NUCLEUS,
           .nucleus = 0.75f);
    SELECT(OF(.1f, .4f, .3f, .2f), OF(0, 1, 0, 0), .strategy = JOB_STRATEGY_NUCLEUS,
           .nucleus = 0.4f);
    SELECT(OF(.1f, .4f, .3f, .2f), OF(0, 4. / 9, 3. / 9, 2. / 9),
           .strategy = JOB_STRATEGY_THRESHOLD, .threshold = t2);
    SELECT(OF(.1f, .4f, .3f, .2f), OF(0, 1, 0, 0), .strategy = JOB_STRATEGY_THRESHOLD,
           .threshold = 0.9f); /* none: the best */
    /* ties: the first ones */
    SELECT(OF(.25f, .25f, .25f, .25f), OF(1, 0, 0, 0), .strategy = JOB_STRATEGY_TOP1);
    SELECT(OF(.1f, .3f, .3f, .3f), OF(0, .5, .5, 0), .strategy = JOB_STRATEGY_TOPK, .top = 2);
    SELECT(OF(.25f, .25f, .25f, .25f), OF(.5, .5, 0, 0), .strategy = JOB_STRATEGY_NUCLEUS,
           .nucleus = 0.5f);
    /* a router that fails still leaves one expert */
    SELECT(OF(NAN, NAN, NAN, NAN), OF(1, 0, 0, 0), .strategy = JOB_STRATEGY_FULL);
    SELECT(OF(0, 0, 0, 0), OF(1, 0, 0, 0), .strategy = JOB_STRATEGY_TOPK, .top = 2);

    /* the oracle does not ask the router, not even where it is certainly wrong */
    float selected[2 * K], want[2 * K] = {0, 0, 0, 1, 1, 0, 0, 0};
    mix_select(&(struct mix_rule){.strategy = JOB_STRATEGY_ORACLE}, selected,
               (float[]){0, 1, 0, 0, .3f, .4f, .2f, .1f}, (int32_t[]){3, 0}, 2, K);
    assert_memory_equal(selected, want, sizeof want);
}

static void test_softmax(void **state)
{
    (void)state;
    float w[2 * K] = {1, 2, 3, 4, 1000, 1000, -1000, 1000};
    mix_softmax(w, w, 2, K);
    const double e = exp(1) + exp(2) + exp(3) + exp(4);
    for (int k = 0; k < K; k++)
        assert_true(fabs((double)w[k] - exp(k + 1) / e) < 1e-7);
    assert_true(w[K] == w[K + 1] && fabs((double)w[K] - 1. / 3) < 1e-7 && w[K + 2] == 0);
}

static void test_limits(void **state)
{
    struct world *w = *state;
    struct err err = {0};
    struct points b;
    float all[ROWS * K];
    struct mix *m = NULL;
    points(w, &b);
    for (int i = 0; i < ROWS * K; i++)
        all[i] = 1;
    m = make(w, ROWS, 1);
    assert_int_equal(mix_run(m, b.x, b.t, b.labels, all, ROWS, &err), -EINVAL);
    assert_int_equal(mix_run(m, b.x, b.t, b.labels, b.weights, ROWS + 1, &err), -EINVAL);
    mix_free(m);
    struct mix_options opt = {.dev = w->dev, .values = N, .rows = 1, .most = 1};
    struct mix_experts none = {.count = 0, .arg = w, .run = run};
    assert_int_equal(mix_new(&opt, &none, &m, &err), -EINVAL);
    assert_true(mix_bytes(&opt) >= 2 * N * sizeof(float));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_closed_form),     cmocka_unit_test(test_grouping),
        cmocka_unit_test(test_one_run_for_all), cmocka_unit_test(test_certain),
        cmocka_unit_test(test_strategies),      cmocka_unit_test(test_softmax),
        cmocka_unit_test(test_limits),          cmocka_unit_test(test_told),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
