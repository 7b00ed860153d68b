/* Two cards as one worker: steps that they share, steps of a pipeline, and a rank that fails while
 * the other waits for it in several communicators.  Without cards, two CPUs. */
#include "tests/unit/worker/train/sides.h"

#ifdef CARD_DEVICE
const char *guard_device(void); /* of check_ops */
#else
#define CARD_DEVICE "cpu"
#endif

enum { SHARED_STEPS = 6, CHAINS = 2 };

static bool cards(void)
{
    return strncmp(CARD_DEVICE, "cuda", 4) == 0;
}

static const char *two(void)
{
    return cards() ? "cuda:0,cuda:1" : "cpu,cpu";
}

/* Losses as those of one device. */
static void check_steps(const struct pipe_plan *plan)
{
    const struct model_spec spec = tiny_spec();
    const struct train_options o = options();
    struct model *m = make_model(&spec);
    struct side one = side_open(cards() ? "cuda:0" : "cpu", m, &o, NULL, NULL);
    struct side both = side_open(two(), m, &o, plan, NULL);
    for (unsigned i = 0; i < SHARED_STEPS; i++) {
        struct step_result want, got;
        OK(step(&one, m, i, BATCH, &want, err));
        OK(step(&both, m, i, BATCH, &got, err));
        if (!(fabs(got.loss - want.loss) <= 1e-3 * fabs(want.loss)))
            fail_msg("step %u: a loss of %g, expected %g", i, got.loss, want.loss);
    }
    close_side(&both);
    close_side(&one);
    model_free(m);
}

static void shared_steps(void **state)
{
    check_steps(NULL);
}

static void a_pipeline(void **state)
{
    struct pipe_plan plan = {.order = PIPE_1F1B, .chains = 1, .copies = 1, .devices = 2};
    plan.cuts[0] = (struct pipe_cut){
        .n = 2,
        .stages = {{.to = 2, .devices = 1, .warm = 2, .slots = 2},
                   {.from = 2, .to = 3, .device = 1, .devices = 1, .warm = 1, .slots = 1}}};
    check_steps(&plan);
}

/* Rank 1 waits on two links for rank 0, which sends only if it is to. */
struct job {
    struct island *is;
    bool sends;
};

static int wait_for_rank_0(void *arg, int rank, struct err *err)
{
    const struct job *j = arg;
    struct device *dev = island_device(j->is, rank);
    const struct kernel_ops *k = dev->ops;
    struct stream *s[CHAINS] = {NULL};
    char *x = NULL;
    if (rank == 0 && !j->sends)
        return err_set(err, -EDOM, "rank 0 leaves");
    int rc = k->alloc(dev, CHAINS, (void **)&x, err), n = 0;
    while (rc == 0 && n < CHAINS) {
        struct comm *c = island_link(j->is, rank, 1 - rank, n, ISLAND_UP);
        const struct comm_piece piece = {x + n, 1};
        rc = k->stream_new(dev, &s[n], err);
        if (rc == 0)
            rc = rank == 0 ? c->ops->send(c, &piece, 1, 1, s[n])
                           : c->ops->recv(c, &piece, 1, 0, s[n]);
        n++;
    }
    for (int i = 0; i < n; i++) {
        struct comm *c = island_link(j->is, rank, 1 - rank, i, ISLAND_UP);
        const int waited = c->ops->wait(c, s[i], rc < 0 ? NULL : err);
        rc = rc < 0 ? rc : waited;
        k->stream_free(dev, s[i]);
    }
    k->free(dev, x);
    return rc;
}

static void a_rank_fails(void **state)
{
    const struct island_shape shape = {2, CHAINS, {1, 1}};
    struct err e = {0};
    struct job j = {0};
    OK(island_open(two(), SIDE_THREADS, &j.is, err));
    OK(island_cut(j.is, &shape, err));
    for (int i = 0; i < 4; i++) {
        j.sends = i % 2;
        assert_int_equal(island_run(j.is, wait_for_rank_0, &j, &e), j.sends ? 0 : -EDOM);
    }
    island_close(j.is);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shared_steps),
        cmocka_unit_test(a_pipeline),
        cmocka_unit_test(a_rank_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
