/* Whether a job travels in fragments, in how many and with which delay, to the bound of each rule.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cli/job/fragments.h"

#define OUTER(more) "outer: {rounds: 3, steps: 200" more "}\n"
#define MODEL(more, depth)                                                                         \
    "name: a\ndata: {path: x, image_size: 16, holdout: 0.1}\n"                                     \
    "model: {" more "patch: 4, dim: 32, depth: " depth ", heads: 2}\ntrain: {batch: 8}\n"
#define WARM(depth) MODEL("warm_start: w, ", depth)
#define FOUR "recipe: {replicas: 4}\n"

static struct fragments_choice choose(const char *yaml, const struct fragments_round *r)
{
    struct job_spec spec;
    struct composition c;
    struct err err = {0};
    struct fragments_choice ret;
    memset(&ret, 0x55, sizeof ret);
    if (job_parse(yaml, strlen(yaml), "job.yaml", &spec, &err) < 0 ||
        recipe_compose(&spec, &c, &err) < 0)
        fail_msg("%s", err.msg);
    fragments_choose(&spec, &c, r, &ret);
    composition_release(&c);
    job_release(&spec);
    return ret;
}

/* A round with phases of 20 s, of steps of 0.1 s. */
static struct fragments_round round_of(double link_s, double fold_s)
{
    return (struct fragments_round){
        .whole = {link_s, fold_s}, .step_s = 0.1, .train_s = 20, .bytes_per_s = 1};
}

/* Each fragment's way beyond its delay is waited for; a round is at least its bytes one way. */
static void what_is_left_of_an_exchange(void **state)
{
    struct fragments_round r = round_of(8, 2);
    assert_float_equal(fragments_exchange(&r, 2, 20).link_s, 2 * (5 - 2), 1e-9);
    assert_float_equal(fragments_exchange(&r, 4, 20).link_s, 4 * (2.5 - 2), 1e-9);
    assert_float_equal(fragments_exchange(&r, 4, 25).link_s, 0, 1e-9);
    assert_float_equal(fragments_exchange(&r, 4, 20).fold_s, 0, 0);
    r.train_s = 1;
    assert_float_equal(fragments_exchange(&r, 2, 50).link_s, 4 - 1, 1e-9);
    assert_float_equal(fragments_exchange(&r, 2, 30).link_s, 2 * (5 - 3), 1e-9);
}

/* The fewest that hide the most, with the shortest delay that does. */
static void how_many_are_chosen(void **state)
{
    static const struct {
        double link_s, fold_s;
        const char *depth;
        int fragments, delay;
        double left_s;
    } cases[] = {
        {3, 0.3, "16", 2, 17, 0},
        {9, 1, "16", 4, 25, 0}, /* of two each would still have 2.5 s of its way */
        {9, 1, "3", 0, 0, 5},   /* four need as many blocks; two leave half */
        {8.9, 1, "2", 2, 25, 4.9},
        {18, 2, "16", 8, 25, 0},
        {38, 2, "16", 0, 0, 20}, /* sixteen would hide it */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *yaml = str_printf("%s%s%s" FOUR OUTER(""),
                                "name: a\ndata: {path: x, image_size: 16}\n"
                                "model: {warm_start: w, patch: 4, dim: 32, heads: 2, depth: ",
                                cases[i].depth, "}\ntrain: {batch: 8}\n");
        const struct fragments_round r = round_of(cases[i].link_s, cases[i].fold_s);
        const struct fragments_choice c = choose(yaml, &r);
        mem_free(yaml);
        if (c.fragments != cases[i].fragments || c.delay != cases[i].delay)
            fail_msg("case %zu: %d with a delay of %d", i, c.fragments, c.delay);
        assert_float_equal(c.left_s, cases[i].left_s, 1e-9);
        assert_int_equal(c.taken, c.fragments > 0);
        if (c.taken)
            assert_null(c.why);
        else
            assert_string_equal(c.why,
                                "a delay of an eighth of the steps would not hide half of the "
                                "exchange");
    }
}

/* A round that is not worth it, and one that just is. */
static void what_is_not_worth_it(void **state)
{
    struct fragments_round r = round_of(1, 0);
    r.train_s = 19;
    assert_true(choose(WARM("2") FOUR OUTER(""), &r).taken);
    r.train_s = 19.1;
    struct fragments_choice c = choose(WARM("2") FOUR OUTER(""), &r);
    assert_string_equal(c.why, "exchanges take less than a twentieth of a round");
    assert_true(!c.taken && c.fragments == 0);
    r = round_of(3, 0.3);
    r.bytes_per_s = 0;
    c = choose(WARM("2") FOUR OUTER(""), &r);
    assert_string_equal(c.why, "nothing is known of the links");
    r = round_of(0, 0); /* nothing takes any time */
    r.train_s = 0;
    assert_false(choose(WARM("2") FOUR OUTER(""), &r).taken);
}

/* Jobs that cannot have them propose none; those for which they are no good propose them. */
static void who_gets_none(void **state)
{
    static const struct {
        const char *yaml, *why; /* NULL: they are taken */
        bool proposed;
    } cases[] = {
        {WARM("2") FOUR OUTER(", fragments: 1"), "the job file says how modules travel", false},
        {WARM("2") FOUR OUTER(", fragments: 2"), "the job file says how modules travel", false},
        {WARM("2") FOUR OUTER(", async: true"), "outer.async has no rounds", false},
        {WARM("2") FOUR OUTER(", where: worker"), "outer.where: worker folds only whole modules",
         false},
        {WARM("2") FOUR "outer: {rounds: 3, seconds: 20}\n", "they need phases of outer.steps",
         false},
        {WARM("2") "recipe: {replicas: auto}\n" OUTER(""),
         "recipe.replicas is auto, as where it is left out, and works only with whole rounds",
         false},
        {WARM("1") FOUR OUTER(""), "its phases or its model are too short for them", false},
        {WARM("2") FOUR "outer: {rounds: 3, steps: 7}\n",
         "its phases or its model are too short for them", false},
        {MODEL("", "2") FOUR OUTER(""), "a fresh model learns less with them in its first rounds",
         true},
        {WARM("2") "recipe: {replicas: 1}\n" OUTER(""), "each module has one replica", true},
        {WARM("2") FOUR OUTER(", snapshot: 10"), NULL, true},
        {WARM("2") FOUR OUTER(", snapshot: 9.9"),
         "a worker that is lost would lose more than two snapshots' time", true},
        {WARM("2") FOUR OUTER(", snapshot: 0"), NULL, true},
    };
    const struct fragments_round r = round_of(3, 0.3);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct fragments_choice c = choose(cases[i].yaml, &r);
        assert_int_equal(c.taken, !cases[i].why);
        assert_int_equal(c.fragments, cases[i].proposed ? 2 : 0);
        if (cases[i].why)
            assert_string_equal(c.why, cases[i].why);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_left_of_an_exchange),
        cmocka_unit_test(how_many_are_chosen),
        cmocka_unit_test(what_is_not_worth_it),
        cmocka_unit_test(who_gets_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
