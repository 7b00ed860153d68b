/* What idle workers are told to fetch, who of them is held back from phases, and for how long. */
#include "tests/unit/coordinator/bare.h"

#include "coordinator/work/ahead.h"

/* A job of two replicas whose module has the versions first to last, each but 0 with a delta from
 * the one before. */
static struct job *versions(struct coordinator *co, uint64_t first, uint64_t last)
{
    struct job *j = add(&co->state, diloco);
    struct module_rec *m = module_memory(&j->modules[0]);
    m->kept = VERSIONS_KEPT_MAX;
    for (uint64_t v = first; v <= last; v++) {
        struct version_rec r = {.version = v, .full.size = 100, .delta.size = v > 0 ? 10 : 0};
        module_add_version(m, &r);
    }
    return j;
}

static void new_version(struct job *j, uint64_t version)
{
    const struct version_rec r = {.version = version, .full.size = 100, .delta.size = 10};
    module_add_version(module_memory(&j->modules[0]), &r);
}

static struct worker *newcomer(struct coordinator *co)
{
    struct worker *w = state_add_worker(&co->state, 0);
    w->fetches_ahead = true;
    state_set_worker_state(&co->state, w, WORKER_HERE);
    return w;
}

/* One that has done tasks well, and has nothing to fetch. */
static struct worker *proven(struct coordinator *co)
{
    struct worker *w = newcomer(co);
    w->tasks_done = 1;
    return w;
}

static void holds(struct worker *w, const struct job *j, uint64_t version)
{
    w->held[w->n_held].module_id = j->modules[0].id;
    w->held[w->n_held++].version = version;
}

static bool tell(struct coordinator *co, struct worker *w)
{
    uint32_t *rooms = ahead_rooms(co);
    const bool news = ahead_news(co, w, true, rooms);
    mem_free(rooms);
    return news;
}

/* Deltas lead only from a version whose successors are all kept with their deltas, and not from too
 * far away. */
static void a_base_has_all_deltas_to_the_version(void **state)
{
    static const struct {
        uint64_t held[2], base; /* base 99: none */
        uint64_t restored;      /* no delta leads to it; 0: none is */
        uint64_t version;
    } cases[] = {
        {.held = {24, 24}, .base = 24, .version = 24}, /* itself: nothing to fetch */
        {.held = {20, 20}, .base = 20, .version = 24},
        {.held = {20, 22}, .base = 22, .version = 24}, /* the newest, in either order */
        {.held = {22, 20}, .base = 22, .version = 24},
        {.held = {8, 8}, .base = 8, .version = 24}, /* the farthest */
        {.held = {7, 7}, .base = 99, .version = 24},
        {.held = {3, 3}, .base = 3, .version = 10},    /* the delta to 4 is the oldest kept */
        {.held = {2, 2}, .base = 99, .version = 10},   /* that to 3 is not */
        {.held = {24, 24}, .base = 99, .version = 23}, /* newer than asked for */
        {.held = {24, 21}, .base = 21, .version = 23},
        {.held = {20, 20}, .base = 99, .restored = 22, .version = 24},
        {.held = {20, 22}, .base = 22, .restored = 22, .version = 24},
        {.held = {23, 20}, .base = 23, .restored = 22, .version = 24},
        {.held = {20, 20}, .base = 99, .restored = 24, .version = 24},
    };
    struct coordinator *co = *state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct job *j = versions(co, 4, 24);
        struct worker *w = newcomer(co);
        uint64_t base = 99;
        for (unsigned v = 0; v < j->modules[0].n_versions; v++)
            if (j->modules[0].versions[v].version == cases[i].restored)
                module_memory(&j->modules[0])->versions[v].delta.size = 0;
        w->held[w->n_held].module_id = j->modules[0].id + 1; /* another module */
        w->held[w->n_held++].version = cases[i].version;
        holds(w, j, cases[i].held[0]);
        holds(w, j, cases[i].held[1]);
        const bool found = ahead_base(w, &j->modules[0], cases[i].version, &base);
        if (found != (cases[i].base != 99) || base != cases[i].base)
            fail_msg("case %zu: version %llu", i, (unsigned long long)base);
    }
}

/* A whole file that it holds in part stays its target while that is kept, unless deltas lead on. */
static void a_file_begun_is_finished(void **state)
{
    struct coordinator *co = *state;
    struct job *j = versions(co, 4, 8);
    struct worker *w = newcomer(co);
    assert_int_equal(ahead_version(w, &j->modules[0])->version, 8);
    w->ahead.version = 5;
    assert_int_equal(ahead_version(w, &j->modules[0])->version, 5);
    w->ahead.version = 3; /* no longer kept */
    assert_int_equal(ahead_version(w, &j->modules[0])->version, 8);
    w->ahead.version = 5;
    holds(w, j, 7);
    assert_int_equal(ahead_version(w, &j->modules[0])->version, 8);
}

/* Within a quarter of the versions that are kept it is as ready as those that did the last phase;
 * and what it fetches for one job does not hold it back from another's phases. */
static void near_the_newest_it_counts(void **state)
{
    struct coordinator *co = *state;
    struct job *j = versions(co, 0, 20), *other = versions(co, 0, 20);
    struct worker *w = newcomer(co);
    assert_false(ahead_is_behind(w, j)); /* it was told nothing */
    assert_true(tell(co, w));
    assert_true(w->ahead.job_id == j->id && ahead_is_behind(w, j));
    assert_false(ahead_is_behind(w, other));
    holds(w, j, 11); /* 9 of 32 behind */
    assert_true(ahead_is_behind(w, j));
    w->held[0].version = 12;
    assert_false(ahead_is_behind(w, j));
}

/* Others go first only if there are some: proven, here, and not fetching themselves. */
static void without_others_it_gets_phases(void **state)
{
    struct coordinator *co = *state;
    (void)newcomer(co);
    assert_false(ahead_others(&co->state));
    struct worker *w = proven(co);
    assert_true(ahead_others(&co->state));
    w->ahead.due = true;
    assert_false(ahead_others(&co->state));
    w->ahead.due = false;
    w->drain = true;
    assert_false(ahead_others(&co->state));
    w->drain = false;
    w->failures_row = 1000;
    assert_false(ahead_others(&co->state));
    w->failures_row = 0;
    state_set_worker_state(&co->state, w, WORKER_LOST);
    assert_false(ahead_others(&co->state));
}

/* Who loses a phase before its first step was still fetching, if it fetches ahead at all. */
static void a_phase_without_a_step_is_lost_while_fetching(void **state)
{
    struct coordinator *co = *state;
    struct job *j = versions(co, 4, 8);
    struct worker *w = newcomer(co);
    struct task t = {.kind = TASK_TRAIN, .job_id = j->id, .train.round = 7};
    w->ahead.due = true;
    w->ahead.told = 5;
    ahead_leased(w, j, &t);
    assert_false(w->ahead.due);
    assert_int_equal(w->ahead.told, 0);
    assert_int_equal(w->ahead.job_id, j->id);
    assert_int_equal(w->ahead.version, 7); /* with which the phase begins */
    ahead_lost(w, &t);
    assert_true(w->ahead.due);
    t.reached.steps = 1;
    ahead_lost(w, &t);
    assert_false(w->ahead.due);
    t = (struct task){.kind = TASK_EVAL};
    ahead_lost(w, &t);
    assert_false(w->ahead.due);
    t.kind = TASK_TRAIN;
    w->fetches_ahead = false;
    ahead_lost(w, &t);
    assert_false(w->ahead.due);
    t.path = 3;
    ahead_leased(w, add(&co->state, dipaco), &t);
    assert_int_equal(w->ahead.path, 3);
}

/* Without rounds, and in fragments, a phase begins with the newest version. */
static void some_phases_begin_with_the_newest(void **state)
{
    static const char *const yaml[] = {async, HEAD
                                       "recipe: {name: diloco, replicas: 3}\n"
                                       "outer: {rounds: 3, steps: 16, fragments: 2, delay: 2}\n"};
    struct coordinator *co = *state;
    for (size_t i = 0; i < 2; i++) {
        struct job *j = add(&co->state, yaml[i]);
        struct worker *w = newcomer(co);
        module_add_version(module_memory(&j->modules[0]), &(struct version_rec){.version = 3});
        ahead_leased(w, j, &(struct task){.kind = TASK_TRAIN, .train.round = 1});
        assert_int_equal(w->ahead.version, 3);
        assert_int_equal(w->ahead.job_id, j->id);
    }
}

/* As many are told as the job could use besides those that have its tasks, but at least one. */
static void as_many_are_told_as_could_be_used(void **state)
{
    struct coordinator *co = *state;
    struct job *j = versions(co, 0, 3);
    struct worker *w[3];
    for (int i = 0; i < 3; i++)
        w[i] = newcomer(co);
    uint32_t *rooms = ahead_rooms(co);
    assert_int_equal(rooms[0], 2);
    assert_true(ahead_news(co, w[0], true, rooms) && ahead_news(co, w[1], true, rooms));
    assert_int_equal(rooms[0], 0);
    assert_false(ahead_news(co, w[2], true, rooms));
    mem_free(rooms);
    rooms = ahead_rooms(co); /* both have places still */
    assert_int_equal(rooms[0], 0);
    assert_false(ahead_news(co, w[2], true, rooms));
    assert_false(ahead_news(co, w[0], true, rooms)); /* it was told that */
    holds(w[0], j, 3);
    new_version(j, 4);
    assert_true(ahead_news(co, w[0], true, rooms)); /* and keeps its place */
    mem_free(rooms);
    w[2]->ahead.due = true; /* one too many */
    w[2]->ahead.job_id = j->id;
    rooms = ahead_rooms(co);
    assert_int_equal(rooms[0], 0);
    mem_free(rooms);
    memset(&w[2]->ahead, 0, sizeof(w[2]->ahead));
    state_set_worker_state(&co->state, w[1], WORKER_LOST);
    assert_true(tell(co, w[2]));
    state_set_worker_state(&co->state, w[2], WORKER_LOST);
    j->leases = 2; /* all phases run: one worker is a reserve, and is told already */
    rooms = ahead_rooms(co);
    assert_int_equal(rooms[0], 0);
    mem_free(rooms);
    state_set_worker_state(&co->state, w[0], WORKER_LOST);
    rooms = ahead_rooms(co);
    assert_int_equal(rooms[0], 1);
    mem_free(rooms);
    j->leases = 1;
    (void)versions(co, 0, 3); /* another job has places of its own */
    assert_true(tell(co, newcomer(co)));
    rooms = ahead_rooms(co);
    assert_int_equal(rooms[0], 0);
    assert_int_equal(rooms[1], 2);
    mem_free(rooms);
}

/* Who has the newest version, or was told of it before, is the reserve: nobody else fetches. */
static void who_has_it_is_one_of_them(void **state)
{
    struct coordinator *co = *state;
    struct job *j = versions(co, 0, 3);
    struct worker *w = newcomer(co), *other = newcomer(co);
    j->leases = 2;
    assert_true(tell(co, w));
    holds(w, j, 3);
    assert_false(tell(co, w)); /* it has all */
    assert_false(tell(co, other));
    new_version(j, 4);
    assert_false(tell(co, other));
    assert_true(tell(co, w));
    w->held[0].version = 4;
    assert_false(tell(co, w));
    w->task_id = 1; /* that of another job: it is no reserve */
    assert_true(tell(co, other));
    memset(&other->ahead, 0, sizeof(other->ahead));
    w->task_id = 0;
    memset(&w->ahead, 0, sizeof(w->ahead)); /* it is back, with what it has */
    assert_false(tell(co, w));
    assert_false(tell(co, other));
    w->drain = true;
    assert_true(tell(co, other));
}

/* It hears once of what there is, again of what is new, and once that there is no more. */
static void it_is_told_what_is_new(void **state)
{
    struct coordinator *co = *state;
    struct job *j = versions(co, 0, 3);
    struct worker *w = newcomer(co);
    assert_true(tell(co, w));
    assert_true(w->ahead.due);
    assert_int_equal(w->ahead.version, 3);
    assert_false(tell(co, w));
    new_version(j, 4); /* it fetches the whole of 3, and that goes on */
    assert_false(tell(co, w));
    holds(w, j, 3);
    assert_true(tell(co, w)); /* a delta leads on */
    assert_int_equal(w->ahead.version, 4);
    w->held[0].version = 4;
    assert_false(tell(co, w)); /* it has all: nothing is due, and nothing to be said */
    assert_false(w->ahead.due);
    new_version(j, 5);
    assert_true(tell(co, w));
    j->paused = true;
    assert_true(tell(co, w)); /* once, so that it stops */
    assert_false(w->ahead.due);
    assert_false(tell(co, w));
    j->paused = false;
    j->state = JOB_FINISHING;
    assert_false(tell(co, w));
}

/* Those that do not fetch ahead, may not work or only fail are told nothing; nor is anybody of a
 * first version, which each makes from the seed. */
static void some_are_told_nothing(void **state)
{
    struct coordinator *co = *state;
    struct job *j = versions(co, 0, 0);
    struct worker *w = newcomer(co);
    uint32_t *rooms = ahead_rooms(co);
    assert_int_equal(rooms[0], 0);
    mem_free(rooms);
    assert_false(tell(co, w));
    new_version(j, 1);
    rooms = ahead_rooms(co);
    assert_false(ahead_news(co, w, false, rooms));
    mem_free(rooms);
    w->fetches_ahead = false;
    assert_false(tell(co, w));
    w->fetches_ahead = true;
    w->strikes = 1;
    w->failures_row = 1;
    assert_int_equal(worker_standing(w), STANDING_FAILING);
    assert_false(tell(co, w));
    w->strikes = w->failures_row = 0;
    w->small[0] = (struct schedule_small){
        .job_id = j->id, .kind = TASK_TRAIN, .until_ms = UINT64_MAX, .times = 1};
    w->n_small = 1;
    assert_false(tell(co, w));
    w->n_small = 0;
    assert_true(tell(co, w));
}

/* The job of the highest priority; of equals the one whose files it has begun to fetch. */
static void it_is_told_of_one_job(void **state)
{
    struct coordinator *co = *state;
    struct job *a = versions(co, 0, 3), *b = versions(co, 0, 2);
    struct worker *w = newcomer(co);
    uint32_t *rooms = ahead_rooms(co);
    b->quota.priority = a->quota.priority + 1;
    assert_true(ahead_news(co, w, true, rooms));
    assert_int_equal(w->ahead.job_id, b->id);
    assert_true(rooms[0] == 2 && rooms[1] == 1);
    mem_free(rooms);
    a->quota.priority = b->quota.priority;
    assert_false(tell(co, w));
    assert_int_equal(w->ahead.job_id, b->id);
    a->quota.priority++;
    assert_true(tell(co, w));
    assert_int_equal(w->ahead.job_id, a->id);
    assert_int_equal(w->ahead.version, 3); /* it has no part of its files */
    struct worker *x = newcomer(co);
    b->quota.priority = a->quota.priority;
    assert_true(tell(co, x));
    assert_int_equal(x->ahead.job_id, a->id); /* the first */
    struct worker *y = newcomer(co);
    assert_true(tell(co, y));
    assert_int_equal(y->ahead.job_id, b->id); /* the first with room */
}

/* A path of its own, else one that nobody here has. */
static void it_is_led_to_a_path_that_nobody_has(void **state)
{
    struct coordinator *co = *state;
    struct job *j = add(&co->state, dipaco);
    for (uint32_t m = 0; m < j->comp.n_modules; m++) {
        module_add_version(module_memory(&j->modules[m]), &(struct version_rec){.version = 0});
        module_add_version(module_memory(&j->modules[m]),
                           &(struct version_rec){.version = 1, .delta.size = 1});
    }
    struct worker *gone = proven(co), *here = proven(co);
    job_edit_replica(j, 0, 0)->owner = here->id;
    job_edit_replica(j, 1, 0)->owner = gone->id;
    job_edit_replica(j, 2, 0)->owner = here->id;
    struct worker *w = newcomer(co);
    assert_true(tell(co, w));
    assert_int_equal(w->ahead.path, 3); /* nobody has had it */
    state_set_worker_state(&co->state, gone, WORKER_LEFT);
    struct worker *x = newcomer(co);
    assert_true(tell(co, x));
    assert_int_equal(x->ahead.path, 1);
    job_edit_replica(j, 2, 0)->owner = w->id;
    w->ahead.job_id = 0;
    w->ahead.due = false;
    assert_true(tell(co, w));
    assert_int_equal(w->ahead.path, 2); /* it has the moments */
    struct task *t = state_add_task(&co->state, 0, j->id, TASK_TRAIN);
    t->path = 1;
    state_set_task_state(&co->state, t, TASK_LEASED);
    job_edit_replica(j, 1, 0)->task_id = t->id;
    struct worker *y = newcomer(co);
    assert_true(tell(co, y));
    assert_int_equal(y->ahead.path, 3); /* path 1 is being trained */
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, bare_begin, bare_end)

int main(void)
{
    log_set_level(LOG_LEVEL_ERROR);
    const struct CMUnitTest tests[] = {
        TEST(a_base_has_all_deltas_to_the_version),
        TEST(a_file_begun_is_finished),
        TEST(near_the_newest_it_counts),
        TEST(without_others_it_gets_phases),
        TEST(a_phase_without_a_step_is_lost_while_fetching),
        TEST(some_phases_begin_with_the_newest),
        TEST(as_many_are_told_as_could_be_used),
        TEST(who_has_it_is_one_of_them),
        TEST(it_is_told_what_is_new),
        TEST(some_are_told_nothing),
        TEST(it_is_told_of_one_job),
        TEST(it_is_led_to_a_path_that_nobody_has),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
