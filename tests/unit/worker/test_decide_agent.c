/* The agent's decisions, each state with each piece of news. */
#include "tests/unit/common/base/util.h"

#include "worker/decide_agent.h"

#define DO(a) AGENT_DO_##a
#define FAIL_IT (DO(FAIL) | DO(REPORT))
#define DROP_IT (DO(REVOKE) | DO(STOP_TIMER) | DO(DROP) | DO(CANCEL) | DO(UNSENT) | DO(FINISH))
#define GO_NOW (DO(LEAVE) | DO(STOP_TIMER) | DO(BYE))

/* One that stays, with nothing special about it.  What is not in the table does nothing. */
static const struct {
    enum agent_state state;
    enum agent_news news;
    enum agent_state after;
    unsigned actions;
} moves[] = {
    {AGENT_IDLE, AGENT_JOINED, AGENT_ASKING, DO(ASK)},
    {AGENT_IDLE, AGENT_TIMER, AGENT_ASKING, DO(ASK)},
    {AGENT_IDLE, AGENT_DRAIN, AGENT_IDLE, GO_NOW},
    {AGENT_IDLE, AGENT_LEAVE, AGENT_IDLE, GO_NOW},

    {AGENT_ASKING, AGENT_GIVEN, AGENT_PLANNING, DO(START)},
    {AGENT_ASKING, AGENT_NOTHING, AGENT_ASKING, DO(ASK)},
    {AGENT_ASKING, AGENT_NOTHING_YET, AGENT_IDLE, DO(TIMER)},
    {AGENT_ASKING, AGENT_UNANSWERED, AGENT_IDLE, DO(TIMER)},
    {AGENT_ASKING, AGENT_UNSENT, AGENT_IDLE, 0},
    {AGENT_ASKING, AGENT_HAS_MORE, AGENT_ASKING, DO(CANCEL) | DO(ASK)},
    {AGENT_ASKING, AGENT_DRAIN, AGENT_ASKING, GO_NOW},
    {AGENT_ASKING, AGENT_LEAVE, AGENT_ASKING, GO_NOW},

    {AGENT_PLANNING, AGENT_PLANNED, AGENT_FETCHING, DO(FETCH)},
    {AGENT_PLANNING, AGENT_FAILED, AGENT_REPORTING, FAIL_IT},
    {AGENT_PLANNING, AGENT_REVOKED, AGENT_STOPPING, DO(REVOKE)},
    {AGENT_PLANNING, AGENT_DRAIN, AGENT_PLANNING, 0},
    {AGENT_PLANNING, AGENT_LEAVE, AGENT_PLANNING, GO_NOW},
    {AGENT_PLANNING, AGENT_HUNG, AGENT_PLANNING, GO_NOW},

    {AGENT_FETCHING, AGENT_FETCHED, AGENT_RUNNING, DO(RUN)},
    {AGENT_FETCHING, AGENT_UNFETCHED, AGENT_REPORTING, FAIL_IT},
    {AGENT_FETCHING, AGENT_LOST, AGENT_FETCHING, 0},
    {AGENT_FETCHING, AGENT_REVOKED, AGENT_ASKING, DROP_IT | DO(ASK)},
    {AGENT_FETCHING, AGENT_DRAIN, AGENT_FETCHING, 0},
    {AGENT_FETCHING, AGENT_LEAVE, AGENT_IDLE, GO_NOW | DO(DROP) | DO(FINISH)},

    {AGENT_AWAITING, AGENT_JOINED, AGENT_PLANNING, DO(PLAN)},
    {AGENT_AWAITING, AGENT_REVOKED, AGENT_ASKING, DROP_IT | DO(ASK)},
    {AGENT_AWAITING, AGENT_DRAIN, AGENT_AWAITING, 0},
    {AGENT_AWAITING, AGENT_LEAVE, AGENT_IDLE, GO_NOW | DO(DROP) | DO(FINISH)},

    {AGENT_RUNNING, AGENT_RAN, AGENT_UPLOADING, DO(SAVE) | DO(UPLOAD)},
    {AGENT_RUNNING, AGENT_MISBUILT, AGENT_PLANNING, DO(WHOLE) | DO(PLAN)},
    {AGENT_RUNNING, AGENT_FAILED, AGENT_REPORTING, FAIL_IT},
    {AGENT_RUNNING, AGENT_REVOKED, AGENT_STOPPING, DO(REVOKE)},
    {AGENT_RUNNING, AGENT_DRAIN, AGENT_RUNNING, 0},
    {AGENT_RUNNING, AGENT_LEAVE, AGENT_RUNNING, GO_NOW},
    {AGENT_RUNNING, AGENT_HUNG, AGENT_RUNNING, GO_NOW},

    {AGENT_STOPPING, AGENT_PLANNED, AGENT_ASKING, DO(UNSENT) | DO(FINISH) | DO(ASK)},
    {AGENT_STOPPING, AGENT_RAN, AGENT_ASKING, DO(UNSENT) | DO(FINISH) | DO(ASK)},
    {AGENT_STOPPING, AGENT_MISBUILT, AGENT_ASKING, DO(UNSENT) | DO(FINISH) | DO(ASK)},
    {AGENT_STOPPING, AGENT_FAILED, AGENT_ASKING, DO(UNSENT) | DO(FINISH) | DO(ASK)},
    {AGENT_STOPPING, AGENT_DRAIN, AGENT_STOPPING, 0},
    {AGENT_STOPPING, AGENT_LEAVE, AGENT_STOPPING, GO_NOW},
    {AGENT_STOPPING, AGENT_HUNG, AGENT_STOPPING, GO_NOW},

    {AGENT_UPLOADING, AGENT_UPLOADED, AGENT_REPORTING, DO(REPORT)},
    {AGENT_UPLOADING, AGENT_FAILED, AGENT_REPORTING, FAIL_IT},
    {AGENT_UPLOADING, AGENT_JOINED, AGENT_UPLOADING, DO(RESUME)},
    {AGENT_UPLOADING, AGENT_REVOKED, AGENT_ASKING, DROP_IT | DO(ASK)},
    {AGENT_UPLOADING, AGENT_DRAIN, AGENT_UPLOADING, 0},
    {AGENT_UPLOADING, AGENT_LEAVE, AGENT_UPLOADING, DO(LEAVE) | DO(LATE)},

    {AGENT_REPORTING, AGENT_ACCEPTED, AGENT_ASKING, DO(SENT) | DO(FINISH) | DO(ASK)},
    {AGENT_REPORTING, AGENT_REJECTED, AGENT_ASKING, DO(UNSENT) | DO(FINISH) | DO(ASK)},
    {AGENT_REPORTING, AGENT_MISSING, AGENT_UPLOADING, DO(UPLOAD)},
    {AGENT_REPORTING, AGENT_UNANSWERED, AGENT_REPORTING, DO(TIMER)},
    {AGENT_REPORTING, AGENT_TIMER, AGENT_REPORTING, DO(REPORT)},
    {AGENT_REPORTING, AGENT_JOINED, AGENT_REPORTING, DO(REPORT)},
    {AGENT_REPORTING, AGENT_FAILED, AGENT_REPORTING, FAIL_IT},
    {AGENT_REPORTING, AGENT_REVOKED, AGENT_ASKING, DROP_IT | DO(ASK)},
    {AGENT_REPORTING, AGENT_DRAIN, AGENT_REPORTING, 0},
    {AGENT_REPORTING, AGENT_LEAVE, AGENT_REPORTING, DO(LEAVE) | DO(LATE)},

    {AGENT_SAVING, AGENT_SAVED, AGENT_ASKING, DO(FINISH) | DO(ASK)},
    {AGENT_SAVING, AGENT_DRAIN, AGENT_SAVING, 0},
    {AGENT_SAVING, AGENT_LEAVE, AGENT_SAVING, DO(LEAVE) | DO(LATE)},
    {AGENT_SAVING, AGENT_HUNG, AGENT_SAVING, GO_NOW},
};

static struct agent_decision tell(struct agent_core *c, enum agent_news news)
{
    return decide_agent(c, &(struct agent_event){.news = news, .joined = true, .reason = "asked"});
}

static bool same(const struct agent_core *a, const struct agent_core *b)
{
    return a->state == b->state && a->leave == b->leave && a->cut == b->cut &&
           a->saving == b->saving && a->drain == b->drain && a->broken == b->broken &&
           a->hung == b->hung;
}

static size_t find(int state, int news)
{
    size_t i = 0;
    while (i < COUNT(moves) && ((int)moves[i].state != state || (int)moves[i].news != news))
        i++;
    return i;
}

static void each_state_with_each_news(void **state)
{
    (void)state;
    size_t met = 0;
    for (int s = 0; s < AGENT_STATES; s++)
        for (int n = 0; n < AGENT_NEWS; n++) {
            if (n == AGENT_REFUSED_FOR_EVER)
                continue;
            const size_t i = find(s, n);
            struct agent_core c = {.state = (enum agent_state)s, .saving = s == AGENT_SAVING};
            const struct agent_core before = c;
            const struct agent_decision d = tell(&c, (enum agent_news)n);
            met += i < COUNT(moves);
            if (i == COUNT(moves) && (d.actions != 0 || !same(&c, &before)))
                fail_msg("state %d, news %d: does %x, becomes %d", s, n, d.actions, (int)c.state);
            if (i < COUNT(moves) && (d.actions != moves[i].actions || c.state != moves[i].after))
                fail_msg("state %d, news %d: does %x, becomes %d; %x, %d expected", s, n, d.actions,
                         (int)c.state, moves[i].actions, (int)moves[i].after);
            assert_int_equal(c.drain, n == AGENT_DRAIN);
            if (n == AGENT_HUNG)
                assert_null(d.reason); /* what hangs */
            else if (d.actions & DO(LEAVE))
                assert_string_equal(d.reason, n == AGENT_DRAIN ? "drained" : "asked");
        }
    assert_int_equal(met, COUNT(moves));
}

/* Whatever is at hand, a refused worker ends, once. */
static void refused_for_ever(void **state)
{
    (void)state;
    for (int s = 0; s < AGENT_STATES; s++) {
        struct agent_core c = {.state = (enum agent_state)s};
        assert_int_equal(tell(&c, AGENT_REFUSED_FOR_EVER).actions, DO(END));
        assert_int_equal(c.leave, AGENT_ENDED);
        assert_int_equal(tell(&c, AGENT_REFUSED_FOR_EVER).actions, 0);
        assert_int_equal(tell(&c, AGENT_GOODBYE).actions, 0);
    }
}

static void drained_by_an_answer(void **state)
{
    (void)state;
    struct agent_core c = {.state = AGENT_ASKING};
    struct agent_event ev = {.news = AGENT_GIVEN, .drain = true};
    assert_int_equal(decide_agent(&c, &ev).actions, DO(START)); /* the last one */
    c.state = AGENT_REPORTING;
    assert_int_equal(tell(&c, AGENT_ACCEPTED).actions, DO(SENT) | DO(FINISH) | GO_NOW);
    assert_int_equal(c.leave, AGENT_BYE);

    c = (struct agent_core){.state = AGENT_ASKING};
    ev.news = AGENT_NOTHING;
    struct agent_decision d = decide_agent(&c, &ev);
    assert_int_equal(d.actions, GO_NOW);
    assert_string_equal(d.reason, "drained");
}

/* Blobs that do not come while the coordinator is away are no fault of the task. */
static void away_while_fetching(void **state)
{
    (void)state;
    struct agent_core c = {.state = AGENT_FETCHING};
    struct agent_event ev = {.news = AGENT_UNFETCHED};
    assert_int_equal(decide_agent(&c, &ev).actions, 0);
    assert_int_equal(c.state, AGENT_AWAITING);
    assert_int_equal(tell(&c, AGENT_JOINED).actions, DO(PLAN));

    c = (struct agent_core){.state = AGENT_FETCHING};
    (void)tell(&c, AGENT_LOST);
    (void)tell(&c, AGENT_JOINED);
    assert_true(c.cut);
    assert_int_equal(tell(&c, AGENT_UNFETCHED).actions, DO(PLAN));
    assert_int_equal(c.state, AGENT_PLANNING);
    (void)tell(&c, AGENT_PLANNED);
    assert_int_equal(tell(&c, AGENT_UNFETCHED).actions, FAIL_IT); /* once more is its own fault */
}

/* The next task waits for the checkpoint of this one, whatever ends it. */
static void checkpoint_is_waited_for(void **state)
{
    (void)state;
    static const struct {
        enum agent_state at;
        enum agent_news news;
        unsigned actions;
    } ends[] = {
        {AGENT_REPORTING, AGENT_ACCEPTED, DO(SENT)},
        {AGENT_REPORTING, AGENT_REJECTED, DO(UNSENT)},
        {AGENT_REPORTING, AGENT_REVOKED, DROP_IT & ~(unsigned)DO(FINISH)},
        {AGENT_UPLOADING, AGENT_REVOKED, DROP_IT & ~(unsigned)DO(FINISH)},
    };
    for (size_t i = 0; i < COUNT(ends); i++) {
        struct agent_core c = {.state = AGENT_RUNNING};
        assert_int_equal(tell(&c, AGENT_RAN).actions, DO(SAVE) | DO(UPLOAD));
        c.state = ends[i].at;
        assert_true(c.saving);
        assert_int_equal(tell(&c, ends[i].news).actions, ends[i].actions);
        assert_int_equal(c.state, AGENT_SAVING);
        assert_int_equal(tell(&c, AGENT_TIMER).actions, 0);
        assert_int_equal(tell(&c, AGENT_SAVED).actions, DO(FINISH) | DO(ASK));
        assert_false(c.saving);
    }
    struct agent_core c = {.state = AGENT_UPLOADING, .saving = true};
    assert_int_equal(tell(&c, AGENT_SAVED).actions, 0); /* the usual case */
    assert_int_equal(c.state, AGENT_UPLOADING);
}

/* It ends when the good-bye was heard and the compute thread is through, in either order. */
static void leaving_waits_for_the_compute_thread(void **state)
{
    (void)state;
    static const struct {
        enum agent_state at;
        enum agent_news answer;
    } rows[] = {
        {AGENT_PLANNING, AGENT_PLANNED}, {AGENT_PLANNING, AGENT_FAILED},
        {AGENT_RUNNING, AGENT_RAN},      {AGENT_RUNNING, AGENT_FAILED},
        {AGENT_RUNNING, AGENT_MISBUILT}, {AGENT_STOPPING, AGENT_FAILED},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        const unsigned settled = rows[i].at == AGENT_STOPPING ? DO(UNSENT) : 0;
        struct agent_core c = {.state = rows[i].at};
        assert_int_equal(tell(&c, AGENT_LEAVE).actions, GO_NOW);
        assert_int_equal(tell(&c, AGENT_LEAVE).actions, 0);
        struct agent_core other = c;
        assert_int_equal(tell(&c, AGENT_GOODBYE).actions, 0);
        assert_int_equal(tell(&c, rows[i].answer).actions, settled | DO(FINISH) | DO(END));
        assert_int_equal(tell(&other, rows[i].answer).actions, settled | DO(FINISH));
        assert_int_equal(tell(&other, AGENT_GOODBYE).actions, DO(END));
        assert_true(same(&c, &other) && c.leave == AGENT_ENDED && c.state == AGENT_IDLE);
    }
}

/* A result on its way gets a few seconds. */
static void leaving_sends_the_result(void **state)
{
    (void)state;
    struct agent_core c = {.state = AGENT_UPLOADING};
    (void)tell(&c, AGENT_LEAVE);
    assert_int_equal(tell(&c, AGENT_UPLOADED).actions, DO(REPORT));
    assert_int_equal(tell(&c, AGENT_ACCEPTED).actions, DO(SENT) | DO(FINISH) | DO(BYE));
    assert_int_equal(tell(&c, AGENT_LATE).actions, 0); /* said already */
    assert_int_equal(tell(&c, AGENT_GOODBYE).actions, DO(END));

    c = (struct agent_core){.state = AGENT_UPLOADING, .saving = true};
    (void)tell(&c, AGENT_LEAVE);
    assert_int_equal(tell(&c, AGENT_LATE).actions, DO(DROP) | DO(BYE));
    assert_int_equal(tell(&c, AGENT_GOODBYE).actions, 0); /* the checkpoint is not written yet */
    assert_int_equal(tell(&c, AGENT_SAVED).actions, DO(END));
}

/* A phase that can be saved gets the time, and a result that is ready just then goes as well. */
static void leaving_saves_the_phase(void **state)
{
    (void)state;
    const struct agent_event leave = {.news = AGENT_LEAVE, .reason = "asked", .saves = true};
    struct agent_core c = {.state = AGENT_RUNNING}, ready, late;
    assert_int_equal(decide_agent(&c, &leave).actions, DO(LEAVE) | DO(LATE));
    assert_int_equal(decide_agent(&c, &leave).actions, 0);
    assert_int_equal(c.leave, AGENT_SENDS);
    ready = late = c;
    assert_int_equal(tell(&c, AGENT_FAILED).actions, DO(FINISH) | DO(BYE)); /* stopped: saved */
    assert_int_equal(tell(&c, AGENT_GOODBYE).actions, DO(END));
    assert_int_equal(tell(&ready, AGENT_RAN).actions, DO(SAVE) | DO(UPLOAD));
    assert_int_equal(tell(&ready, AGENT_UPLOADED).actions, DO(REPORT));
    assert_int_equal(tell(&late, AGENT_LATE).actions, DO(DROP) | DO(BYE));
    assert_int_equal(tell(&late, AGENT_GOODBYE).actions, 0); /* the compute thread is at it */
    assert_int_equal(tell(&late, AGENT_FAILED).actions, DO(FINISH) | DO(END));
    c = (struct agent_core){.state = AGENT_PLANNING};
    assert_int_equal(decide_agent(&c, &leave).actions, GO_NOW); /* there is nothing yet */
}

/* An answer that comes while it leaves is not taken up. */
static void leaving_takes_no_task(void **state)
{
    (void)state;
    static const enum agent_news answers[] = {AGENT_GIVEN, AGENT_NOTHING, AGENT_UNANSWERED,
                                              AGENT_UNSENT};
    for (size_t i = 0; i < COUNT(answers); i++) {
        struct agent_core c = {.state = AGENT_ASKING};
        (void)tell(&c, AGENT_LEAVE);
        assert_int_equal(tell(&c, answers[i]).actions, 0);
        assert_int_equal(c.state, AGENT_IDLE);
        assert_int_equal(tell(&c, AGENT_JOINED).actions, 0);
        assert_int_equal(tell(&c, AGENT_TIMER).actions, 0);
        assert_int_equal(tell(&c, AGENT_DRAIN).actions, 0);
    }
}

/* A device that broke: the report goes out, then the process. */
static void broken_leaves_after_its_report(void **state)
{
    (void)state;
    struct agent_core c = {.state = AGENT_RUNNING};
    assert_int_equal(tell(&c, AGENT_FAILED).actions, FAIL_IT);
    c.broken = true;
    struct agent_decision d = tell(&c, AGENT_ACCEPTED);
    assert_int_equal(d.actions, DO(SENT) | DO(FINISH) | GO_NOW);
    assert_null(d.reason); /* what broke it */
    assert_int_equal(tell(&c, AGENT_GOODBYE).actions, DO(END));
}

/* A compute thread that never answers is left behind. */
static void hung_leaves_without_an_answer(void **state)
{
    (void)state;
    struct agent_core c = {.state = AGENT_RUNNING};
    assert_int_equal(tell(&c, AGENT_REVOKED).actions, DO(REVOKE));
    assert_int_equal(tell(&c, AGENT_HUNG).actions, GO_NOW);
    struct agent_core late = c;
    assert_int_equal(tell(&c, AGENT_GOODBYE).actions, DO(END));
    assert_int_equal(tell(&late, AGENT_RAN).actions, DO(UNSENT) | DO(FINISH));
    assert_int_equal(tell(&late, AGENT_GOODBYE).actions, DO(END));

    c = (struct agent_core){.state = AGENT_RUNNING}; /* it was asked to leave before */
    assert_int_equal(tell(&c, AGENT_LEAVE).actions, GO_NOW);
    assert_int_equal(tell(&c, AGENT_GOODBYE).actions, 0);
    assert_int_equal(tell(&c, AGENT_HUNG).actions, DO(END));

    c = (struct agent_core){.state = AGENT_SAVING, .saving = true};
    assert_int_equal(tell(&c, AGENT_HUNG).actions, GO_NOW);
    assert_int_equal(tell(&c, AGENT_GOODBYE).actions, DO(END));
}

/* In every situation there can be: nothing is begun that should not be. */
static void check_rules(const struct agent_core *was, const struct agent_core *c, unsigned did,
                        enum agent_news news)
{
    const bool task = was->state > AGENT_ASKING, over = c->state <= AGENT_ASKING;
    assert_true(c->leave >= was->leave);
    assert_int_equal((did & DO(END)) != 0, c->leave == AGENT_ENDED && was->leave != AGENT_ENDED);
    assert_int_equal((did & DO(BYE)) != 0, c->leave >= AGENT_BYE && was->leave < AGENT_BYE &&
                                               news != AGENT_REFUSED_FOR_EVER);
    assert_int_equal((did & DO(FINISH)) != 0, task && over);
    if (did & (DO(START) | DO(PLAN) | DO(FETCH) | DO(RUN) | DO(ASK)))
        assert_int_equal(c->leave, AGENT_STAYS);
    if (did & DO(ASK))
        assert_true(c->state == AGENT_ASKING && !c->drain && !(was->broken && task));
    if (over) /* nobody's checkpoint is being written */
        assert_true(!c->saving || !task);
}

static void rules_hold_everywhere(void **state)
{
    (void)state;
    for (int i = 0; i < AGENT_STATES * (AGENT_ENDED + 1) * 16 * 4 * AGENT_NEWS; i++) {
        int k = i;
        struct agent_core c = {.state = (enum agent_state)(k % AGENT_STATES)};
        k /= AGENT_STATES;
        c.leave = (enum agent_leave)(k % (AGENT_ENDED + 1));
        k /= AGENT_ENDED + 1;
        c.cut = k & 1, c.drain = k & 2, c.broken = k & 4;
        c.saving = (k & 8) && c.state >= AGENT_UPLOADING; /* it is only then */
        k /= 16;
        struct agent_event ev = {.joined = k & 1, .drain = k & 2};
        ev.news = (enum agent_news)(k / 4);
        const struct agent_core was = c;
        const struct agent_decision d = decide_agent(&c, &ev);
        check_rules(&was, &c, d.actions, ev.news);
    }
}

/* Word on an earlier attempt must not touch what this one makes. */
static void until_it_is_reported(void **state)
{
    (void)state;
    for (int s = 0; s < AGENT_STATES; s++) {
        const struct agent_core c = {.state = (enum agent_state)s};
        const bool makes = s == AGENT_PLANNING || s == AGENT_FETCHING || s == AGENT_AWAITING ||
                           s == AGENT_RUNNING || s == AGENT_STOPPING || s == AGENT_UPLOADING;
        assert_int_equal(decide_agent_makes(&c), makes);
        assert_int_equal(decide_agent_computes(&c),
                         s == AGENT_PLANNING || s == AGENT_RUNNING || s == AGENT_STOPPING);
    }
}

/* From a notice to its end: as late as the link bears, and never without a snapshot on the way. */
static void time_is_kept_for_the_last_snapshot(void **state)
{
    enum { WAIT = AGENT_NOTICE_WAIT, SAVE = AGENT_NOTICE_SAVE, LEAVE = AGENT_NOTICE_LEAVE };
    static const struct {
        uint64_t left_ms, took_s;
        int saved, next;
    } cases
        [] =
            {
                {120000, 0, 0, SAVE}, /* how long does one take? */
                {119750, 0, 1, WAIT},  {30001, 0, 1, WAIT},
                {30000, 0, 1, LEAVE}, /* it has not come: nobody knows */
                {119000, 1, 1, WAIT}, /* it takes a second */
                {119000, 1, 0, WAIT},  {30000, 1, 1, SAVE},
                {30000, 1, 0, SAVE},   {29750, 1, 2, WAIT},
                {6501, 1, 2, WAIT},    {6500, 1, 2, LEAVE},
                {95001, 60, 1, WAIT}, /* that of the notice's beginning took a minute */
                {95000, 60, 1, LEAVE}, {10000, 1, 0, SAVE}, /* all that there is */
                {10000, 20, 0, LEAVE}, {0, 0, 0, LEAVE},
            };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct agent_core c = {.state = AGENT_RUNNING, .drain = true, .saved = cases[i].saved};
        if ((int)decide_agent_notice(&c, cases[i].left_ms,
                                     cases[i].took_s * UINT64_C(1000000000)) != cases[i].next)
            fail_msg("case %zu", i);
        assert_true(cases[i].next == SAVE ? c.saved > cases[i].saved : c.saved == cases[i].saved);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_state_with_each_news),
        cmocka_unit_test(refused_for_ever),
        cmocka_unit_test(drained_by_an_answer),
        cmocka_unit_test(away_while_fetching),
        cmocka_unit_test(checkpoint_is_waited_for),
        cmocka_unit_test(leaving_waits_for_the_compute_thread),
        cmocka_unit_test(leaving_sends_the_result),
        cmocka_unit_test(leaving_saves_the_phase),
        cmocka_unit_test(leaving_takes_no_task),
        cmocka_unit_test(broken_leaves_after_its_report),
        cmocka_unit_test(hung_leaves_without_an_answer),
        cmocka_unit_test(rules_hold_everywhere),
        cmocka_unit_test(until_it_is_reported),
        cmocka_unit_test(time_is_kept_for_the_last_snapshot),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
