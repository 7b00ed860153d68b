/* Which plan of a phase fits: data parallelism, the fewest stages, smaller micro-batches; to the
 * byte, and what is said where none does. */
#include "tests/unit/worker/tiny.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "common/base/str.h"
#include "kernels/kernels.h"
#include "worker/engine/phase_fit.h"
#include "worker/pipe/planner.h"
#include "worker/train/profile.h"

#define DEVICES 4
#define PLENTY (UINT64_C(1) << 40)

static struct island *is;

static int open_island(void **state)
{
    struct err err = {0};
    return island_open("cpu,cpu,cpu,cpu", 1, &is, &err);
}

static int close_island(void **state)
{
    island_close(is);
    return 0;
}

/* Eight blocks, so that stages differ in what they have beside them. */
static struct model *deep(void)
{
    struct model_spec s = tiny_spec();
    struct model *m = NULL;
    s.depth = 8;
    s.dim = 96;
    s.mlp = 384;
    OK(model_new(&s, &m, err));
    return m;
}

static struct train_options options(int stages, int accumulate)
{
    struct train_options o = tiny_options();
    o.batch = 32;
    o.stages = stages;
    o.shard = JOB_SHARD_NONE;
    o.accumulate = accumulate;
    o.accumulate_auto = accumulate == 0;
    o.accumulate += o.accumulate_auto;
    return o;
}

/* Cards with so many bytes free after the reserve, or a few more. */
static struct phase_room cards(uint64_t bytes)
{
    return (struct phase_room){is,
                               {.free = bytes + bytes / 15 + 16, .known = true, .device = "card"}};
}

static struct phase_plan fits(const struct model *m, struct train_options *o, uint64_t bytes)
{
    const struct phase_room r = cards(bytes);
    struct phase_plan p;
    OK(phase_fit(&r, m, o, &p, err));
    return p;
}

static void refused(const struct model *m, struct train_options o, uint64_t bytes, char said[512])
{
    const struct phase_room r = cards(bytes);
    struct phase_plan p;
    struct err err = {0};
    assert_int_equal(phase_fit(&r, m, &o, &p, &err), -ENOMEM);
    (void)str_copy(said, 512, err.msg);
}

/* What a device needs at most in so many stages. */
static uint64_t need(const struct model *m, int stages)
{
    struct train_options o = options(stages, 8);
    const struct phase_plan p = fits(m, &o, PLENTY);
    assert_int_equal(pipe_places(&p.pipe), stages);
    assert_true(p.memory.need > 0);
    return p.memory.need;
}

/* The room of the plan's largest part is enough, and less is not: 16 bytes in 16 MiB are rounding.
 */
static void the_largest_part_decides(void **state)
{
    struct model *m = deep();
    char said[512];
    for (int stages = 2; stages <= DEVICES; stages++) {
        struct train_options o = options(stages, 8);
        const uint64_t bytes = need(m, stages);
        const struct phase_plan p = fits(m, &o, bytes);
        assert_int_equal(pipe_places(&p.pipe), stages);
        assert_true(p.memory.need == bytes && p.accumulate == 8);
        refused(m, o, bytes - 64, said);
    }
    assert_true(need(m, 4) < need(m, 2));
    model_free(m);
}

/* Whole models side by side where they fit; else as few stages as do, those that divide the devices
 * before others; only whole ones where the job says so. */
static void as_few_stages_as_fit(void **state)
{
    struct model *m = deep();
    struct train_options data = options(0, 8), whole = options(0, 8);
    char said[512];
    data.parallel = JOB_PARALLEL_DATA;
    const uint64_t one = fits(m, &data, PLENTY).memory.need;
    const struct {
        uint64_t bytes;
        int stages;
    } cases[] = {{PLENTY, 1}, {one, 1}, {one - 64, 2}, {need(m, 2), 2}, {need(m, 4), 4}};
    assert_true(one > need(m, 2));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct train_options o = options(0, 8);
        const struct phase_plan p = fits(m, &o, cases[i].bytes);
        if (pipe_places(&p.pipe) != cases[i].stages)
            fail_msg("case %zu: %d stages", i, pipe_places(&p.pipe));
    }
    whole.parallel = JOB_PARALLEL_DATA;
    refused(m, whole, one - 64, said);
    whole.parallel = JOB_PARALLEL_PIPELINE;
    const struct phase_plan asked = fits(m, &whole, PLENTY);
    assert_int_equal(pipe_places(&asked.pipe), 2);
    model_free(m);
}

/* The optimiser's state is divided where the job leaves that to us and nothing fits otherwise, or
 * where it asks for it. */
static void a_state_is_divided_for_room(void **state)
{
    struct model *m = deep();
    struct train_options o = options(0, 8);
    const uint64_t one = fits(m, &o, PLENTY).memory.need;
    o.shard = JOB_SHARD_AUTO;
    struct phase_plan p = fits(m, &o, one);
    assert_true(pipe_places(&p.pipe) == 1 && !p.pipe.shard);
    p = fits(m, &o, one - 64);
    assert_true(pipe_places(&p.pipe) == 1 && p.pipe.shard && p.memory.need < one);
    o.shard = JOB_SHARD_OPTIMIZER;
    p = fits(m, &o, PLENTY);
    assert_true(p.pipe.shard);
    model_free(m);
}

/* Micro-batches become smaller where the job leaves them to us, the same for all stages; where it
 * does not, its number stays. */
static void micro_batches_become_smaller(void **state)
{
    struct model *m = deep();
    struct train_options o = options(2, 0), fixed = options(2, 2);
    struct phase_plan p = fits(m, &o, PLENTY);
    const int first = p.accumulate;
    assert_int_equal(o.accumulate, first);
    assert_int_equal(first, 2 * PHASE_MICROS_PER_STAGE);
    const uint64_t bytes = p.memory.need - p.memory.activations / 4;
    o = options(2, 0);
    p = fits(m, &o, bytes);
    assert_true(p.accumulate > first || p.lean);
    assert_true(o.accumulate == p.accumulate && o.lean == p.lean);
    assert_true(p.memory.need <= bytes);
    p = fits(m, &fixed, PLENTY);
    assert_true(fixed.accumulate == 2 && p.accumulate == 2 && !fixed.lean);
    model_free(m);
}

/* Every part's need, the largest one's share of the model, and what there is. */
static void the_refusal_has_the_numbers(void **state)
{
    struct model *m = deep();
    for (int stages = 2; stages <= 3; stages++) {
        struct train_options o = options(stages, 8);
        const struct phase_plan p = fits(m, &o, PLENTY);
        const uint64_t model = p.memory.weights + p.memory.gradients + p.memory.optimiser;
        char said[512], want[160], text[4][STR_HUMAN_MAX];
        refused(m, o, model / 8, said);
        (void)snprintf(want, sizeof want, "in %d stages the model needs ", stages);
        assert_ptr_equal(strstr(said, want), said);
        const char *and = strstr(said, " and "), *on = strstr(said, " on a device (");
        assert_true(and != NULL && on != NULL && and < on);
        const char *comma = strstr(said, ", ");
        assert_int_equal(comma != NULL && comma<and, stages> 2);
        assert_non_null(strstr(said, str_human_bytes(p.memory.need, text[0])));
        (void)snprintf(want, sizeof want,
                       " on a device (%s of model and optimiser, %s of micro-batches where it is "
                       "most), but card has ",
                       str_human_bytes(model, text[1]),
                       str_human_bytes(p.memory.need - model, text[2]));
        if (!strstr(said, want))
            fail_msg("'%s' is not in: %s", want, said);
        assert_non_null(strstr(said, "no key of train helps"));
    }
    model_free(m);
}

/* The first key that would do is named, with what each device then needs. */
static void what_would_fit_is_named(void **state)
{
    struct model *m = deep();
    char said[512], want[96], text[STR_HUMAN_MAX];
    refused(m, options(2, 8), need(m, 4), said);
    (void)snprintf(want, sizeof want, "; train.stages: 4 needs %s on each device",
                   str_human_bytes(need(m, 4), text));
    if (!strstr(said, want))
        fail_msg("'%s' is not in: %s", want, said);
    struct train_options data = options(0, 8);
    data.parallel = JOB_PARALLEL_DATA;
    refused(m, data, need(m, 4), said);
    assert_non_null(strstr(said, "; train.parallel: auto (4 stages) needs "));
    refused(m, options(4, 1), need(m, 4), said);
    assert_non_null(strstr(said, "; train.accumulate: auto needs "));
    model_free(m);
}

/* Searches with so much room on each device, and fits each plan that is shown as possible; returns
 * how many those are. */
static int plans_shown(const struct model *m, struct costs *costs, uint64_t bytes, bool host)
{
    struct phase_room r = cards(bytes);
    struct train_options o = options(0, 8);
    const struct planner_options asked = {.samples = 32,
                                          .n_micros = 2,
                                          .micros = {4, 8},
                                          .shard = JOB_SHARD_AUTO,
                                          .group = FILL_GROUP};
    struct planner_result found;
    struct err e = {0};
    int n = 0;
    r.each.host = host;
    for (int d = 0; d < costs->n_devices; d++)
        costs->devices[d].memory = plan_room_bytes(&r.each);
    const int rc = planner_search(costs, &asked, &found, &e);
    if (rc == -ENOMEM)
        return 0;
    OK(rc);
    for (int i = 0; i < PIPE_ORDERS; i++) {
        struct phase_plan p = {.pipe = found.of[i].plan};
        if (!found.of[i].possible)
            continue;
        n++;
        p.accumulate = p.pipe.cuts[0].micros;
        if (i == PIPE_DATA) /* with data parallelism a worker's copies have one device each */
            p.pipe.copies = p.pipe.devices;
        if (i == PIPE_DATA)
            p.pipe.devices = p.pipe.cuts[0].stages[0].devices = 1;
        OK(phase_fit_parts(&r, m, &o, &p, err));
        if (p.memory.need > found.of[i].memory)
            fail_msg("order %d: %" PRIu64 " are shown, and %" PRIu64 " needed", i,
                     found.of[i].memory, p.memory.need);
    }
    planner_release(&found);
    return n;
}

/* Whatever the room is. */
static void what_the_planner_shows_fits(void **state)
{
    char folder[] = "/tmp/skerry-fit-XXXXXX";
    struct model *m = deep();
    struct train_options o = options(0, 8);
    struct costs costs;
    assert_non_null(mkdtemp(folder));
    OK(profile_get(is, m, &o, PLENTY, folder, &costs, err));
    profile_forget(is, m, &o, folder);
    assert_int_equal(rmdir(folder), 0);
    for (int host = 0; host < 2; host++) {
        int some = 0, all = 0;
        for (int d = 0; d < DEVICES; d++) {
            island_device(is, d)->unified = host;
            costs.devices[d].kind = host ? COSTS_HOST : COSTS_CARD;
        }
        const uint64_t least = costs_workspace(costs.devices[0].kind, 0, 0), step = 256 << 10;
        for (uint64_t more = 0; more < 128 * step; more += step) {
            const int n = plans_shown(m, &costs, least + more, host);
            some += n > 0 && n < 3;
            all += n == 3;
        }
        assert_true(some > 10 && all > 10);
    }
    for (int d = 0; d < DEVICES; d++)
        island_device(is, d)->unified = true;
    costs_release(&costs);
    model_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_largest_part_decides),
        cmocka_unit_test(as_few_stages_as_fit),
        cmocka_unit_test(a_state_is_divided_for_room),
        cmocka_unit_test(micro_batches_become_smaller),
        cmocka_unit_test(the_refusal_has_the_numbers),
        cmocka_unit_test(what_would_fit_is_named),
        cmocka_unit_test(what_the_planner_shows_fits),
    };
    return cmocka_run_group_tests(tests, open_island, close_island);
}
