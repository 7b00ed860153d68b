/* The dynamic program against all cuts, and against all pairs of cuts of two chains. */
#include "tests/unit/worker/pipe/brute.h"

#define MOST 16

struct search {
    const struct costs *p;
    struct pipe_plan plan;
    double best;
    int n; /* cuts that fit */
};

static void look(void *arg, const struct pipe_cut *cut)
{
    struct search *s = arg;
    s->plan.cuts[0] = *cut;
    if (!brute_warm(s->p, &s->plan, true))
        return;
    s->best = fmin(s->best, brute_bound(s->p, &s->plan));
    s->n++;
}

static bool near(double a, double b)
{
    return a == b || fabs(a - b) <= 1e-9 * fmax(fabs(a), fabs(b));
}

static void test_best(void **state)
{
    struct cuts_found *found = mem_alloc_array(MOST * 5, sizeof *found);
    struct rng r;
    int none = 0;
    (void)state;
    rng_init(&r, 7, 1);
    for (int i = 0; i < 400; i++) {
        struct costs p = brute_profile(&r, 8, 5);
        const struct cuts_problem c = {.p = &p,
                                       .micros = 1 + (int)rng_below(&r, 16),
                                       .samples = 1 + (int)rng_below(&r, 16),
                                       .copies = 1 + (int)rng_below(&r, 2),
                                       .shard = rng_below(&r, 2) == 0};
        struct search s = {
            .p = &p,
            .plan = {.chains = 1, .devices = p.n_devices, .copies = c.copies, .shard = c.shard},
            .best = INFINITY};
        int n;
        brute_cuts(&p, c.micros, c.samples, look, &s);
        OK(cuts_best(&c, MOST, found, &n, err));
        none += s.n == 0;
        assert_int_equal(n == 0, s.n == 0);
        assert_true(n <= s.n);
        if (n > 0)
            assert_true(near(found[0].seconds, s.best));
        for (int k = 0; k < n; k++) { /* each is what it says, and they are in order */
            s.plan.cuts[0] = found[k].cut;
            assert_true(brute_warm(&p, &s.plan, true));
            assert_true(near(found[k].seconds, brute_bound(&p, &s.plan)));
            assert_true(k == 0 || found[k - 1].seconds <= found[k].seconds);
        }
        costs_release(&p);
    }
    assert_in_range(none, 1, 200); /* memory decides, and not always */
    mem_free(found);
}

/* Asked for a number of stages, it gives that number. */
static void test_stages(void **state)
{
    struct costs p = pipes_profile(1, 6, 4, 8);
    struct cuts_found found[4 * MOST];
    struct cuts_problem c = {.p = &p, .micros = 8, .samples = 8, .copies = 1, .stages = 3};
    int n;
    (void)state;
    OK(cuts_best(&c, MOST, found, &n, err));
    assert_true(n > 1);
    for (int i = 0; i < n; i++)
        assert_int_equal(found[i].cut.n, 3);
    c.stages = 4;
    OK(cuts_best(&c, MOST, found, &n, err));
    assert_int_equal(n, 10); /* of five places between layers three are cut */
    costs_release(&p);
}

/* The least greatest time of a device, over all cuts of both chains into as many stages. */
static double pair_brute(const struct costs *p, bool reversed, int micros)
{
    double best = INFINITY;
    const int na = p->chains[0].n, nb = p->chains[1].n;
    for (int a1 = 1; a1 < na - 1; a1++)
        for (int a2 = a1 + 1; a2 < na; a2++)
            for (int b1 = 1; b1 < nb - 1; b1++)
                for (int b2 = b1 + 1; b2 < nb; b2++) {
                    const int cut[2][4] = {{0, a1, a2, na}, {0, b1, b2, nb}};
                    double t0 = 0;
                    for (int d = 0; d < 3; d++) {
                        double c = 0, x = 0;
                        uint64_t bytes = 0;
                        for (int k = 0; k < 2; k++) {
                            const int s = k == 1 && reversed ? 2 - d : d;
                            const int slots = 3 - s < micros ? 3 - s : micros;
                            for (int l = cut[k][s]; l < cut[k][s + 1]; l++) {
                                const struct costs_layer *y = &p->chains[k].layers[l];
                                c += y->f.s[0] + y->b.s[0] + y->w.s[0];
                                bytes += 8 * y->slot_bytes * (uint64_t)slots;
                            }
                            const int below = k == 1 && reversed ? s - 1 : s; /* at link d */
                            if (d < 2)
                                x += 2 *
                                     costs_transfer(
                                         &p->links[d],
                                         8 * p->chains[k].layers[cut[k][below + 1] - 1].out_bytes);
                        }
                        if (bytes > p->devices[d].memory)
                            c = INFINITY;
                        t0 = fmax(t0, fmax(c / p->devices[d].speed, x));
                    }
                    best = fmin(best, t0);
                }
    return best;
}

static void test_pair(void **state)
{
    struct rng r;
    int none = 0;
    (void)state;
    rng_init(&r, 7, 2);
    for (int i = 0; i < 200; i++) {
        struct costs p = pipes_profile(2, 3 + (int)rng_below(&r, 4), 3, 8);
        struct pipe_cut cut[2];
        const bool reversed = i % 2 == 0;
        const int micros = 1 + (int)rng_below(&r, 4);
        struct cuts_problem c[2];
        double t0;
        bool found;
        for (int k = 0; k < 2; k++)
            for (int l = 0; l < p.chains[k].n; l++) {
                p.chains[k].layers[l].f.s[0] = 0.1 + rng_uniform_double(&r);
                p.chains[k].layers[l].out_bytes = rng_below(&r, 2000);
            }
        for (int d = 0; d < 3; d++) {
            p.devices[d].speed = 0.5 + rng_uniform_double(&r);
            p.devices[d].memory = 20000 + rng_below(&r, 120000);
            if (d > 0)
                p.links[d - 1] = (struct costs_link){0.1, 10000};
        }
        for (int k = 0; k < 2; k++)
            c[k] = (struct cuts_problem){
                .p = &p, .chain = k, .micros = micros, .samples = 8, .copies = 1};
        OK(cuts_pair(c, reversed, cut, &t0, &found, err));
        const double best = pair_brute(&p, reversed, micros);
        assert_int_equal(found, isfinite(best));
        none += !found;
        if (found)
            assert_true(near(t0, best));
        for (int k = 0; k < 2 && found; k++)
            for (int s = 0; s < 3; s++) {
                assert_int_equal(cut[k].stages[s].from, s > 0 ? cut[k].stages[s - 1].to : 0);
                assert_int_equal(cut[k].stages[s].device, k == 1 && reversed ? 2 - s : s);
            }
        costs_release(&p);
    }
    assert_in_range(none, 1, 150);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_best),
        cmocka_unit_test(test_stages),
        cmocka_unit_test(test_pair),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
