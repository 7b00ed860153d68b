#include "worker/decide_agent.h"

#define IN(state) (1u << AGENT_##state)
#define COMPUTES (IN(PLANNING) | IN(RUNNING) | IN(STOPPING))

#define NOTICE_SAVE_MS UINT64_C(30000)
#define NOTICE_BYE_MS UINT64_C(5000)

/* Targets of a move besides the states. */
enum { OVER = AGENT_STATES, FREE }; /* the task is over; there is none */

#define DROP_IT                                                                                    \
    (AGENT_DO_REVOKE | AGENT_DO_STOP_TIMER | AGENT_DO_DROP | AGENT_DO_CANCEL | AGENT_DO_UNSENT)

static const struct move {
    unsigned in; /* states */
    enum agent_news news;
    int to;
    unsigned actions;
} moves[] = {
    {IN(IDLE), AGENT_JOINED, FREE, 0},
    {IN(IDLE), AGENT_TIMER, FREE, 0},
    {IN(ASKING), AGENT_GIVEN, AGENT_PLANNING, AGENT_DO_START},
    {IN(ASKING), AGENT_NOTHING, FREE, 0},
    {IN(ASKING), AGENT_NOTHING_YET, AGENT_IDLE, AGENT_DO_TIMER},
    {IN(ASKING), AGENT_UNANSWERED, AGENT_IDLE, AGENT_DO_TIMER},
    {IN(ASKING), AGENT_UNSENT, AGENT_IDLE, 0},
    {IN(ASKING), AGENT_HAS_MORE, FREE, AGENT_DO_CANCEL},

    {IN(PLANNING), AGENT_PLANNED, AGENT_FETCHING, AGENT_DO_FETCH},
    {IN(FETCHING), AGENT_FETCHED, AGENT_RUNNING, AGENT_DO_RUN},
    {IN(FETCHING), AGENT_UNFETCHED, AGENT_REPORTING, AGENT_DO_FAIL | AGENT_DO_REPORT},
    {IN(AWAITING), AGENT_JOINED, AGENT_PLANNING, AGENT_DO_PLAN},
    {IN(RUNNING), AGENT_RAN, AGENT_UPLOADING, AGENT_DO_SAVE | AGENT_DO_UPLOAD},
    {IN(RUNNING), AGENT_MISBUILT, AGENT_PLANNING, AGENT_DO_WHOLE | AGENT_DO_PLAN},
    {IN(UPLOADING), AGENT_JOINED, AGENT_UPLOADING, AGENT_DO_RESUME},
    {IN(UPLOADING), AGENT_UPLOADED, AGENT_REPORTING, AGENT_DO_REPORT},
    {IN(PLANNING) | IN(RUNNING) | IN(UPLOADING) | IN(REPORTING), AGENT_FAILED, AGENT_REPORTING,
     AGENT_DO_FAIL | AGENT_DO_REPORT},

    {IN(REPORTING), AGENT_JOINED, AGENT_REPORTING, AGENT_DO_REPORT},
    {IN(REPORTING), AGENT_TIMER, AGENT_REPORTING, AGENT_DO_REPORT},
    {IN(REPORTING), AGENT_UNANSWERED, AGENT_REPORTING, AGENT_DO_TIMER},
    {IN(REPORTING), AGENT_MISSING, AGENT_UPLOADING, AGENT_DO_UPLOAD},
    {IN(REPORTING), AGENT_ACCEPTED, OVER, AGENT_DO_SENT},
    {IN(REPORTING), AGENT_REJECTED, OVER, AGENT_DO_UNSENT},
    {IN(SAVING), AGENT_SAVED, OVER, 0},

    {IN(PLANNING) | IN(RUNNING), AGENT_REVOKED, AGENT_STOPPING, AGENT_DO_REVOKE},
    {IN(FETCHING) | IN(AWAITING) | IN(UPLOADING) | IN(REPORTING), AGENT_REVOKED, OVER, DROP_IT},
    {IN(STOPPING), AGENT_PLANNED, OVER, AGENT_DO_UNSENT},
    {IN(STOPPING), AGENT_RAN, OVER, AGENT_DO_UNSENT},
    {IN(STOPPING), AGENT_MISBUILT, OVER, AGENT_DO_UNSENT},
    {IN(STOPPING), AGENT_FAILED, OVER, AGENT_DO_UNSENT},
};

static bool is_in(const struct agent_core *c, unsigned states)
{
    return states >> c->state & 1;
}

bool decide_agent_makes(const struct agent_core *c)
{
    return is_in(c, COMPUTES | IN(FETCHING) | IN(AWAITING) | IN(UPLOADING));
}

bool decide_agent_computes(const struct agent_core *c)
{
    return is_in(c, COMPUTES);
}

static void say_bye(struct agent_core *c, struct agent_decision *d)
{
    c->leave = AGENT_BYE;
    d->actions |= AGENT_DO_BYE;
}

static void end_if_done(struct agent_core *c, struct agent_decision *d)
{
    if (c->leave != AGENT_HEARD || (!c->hung && (c->saving || is_in(c, COMPUTES))))
        return;
    c->leave = AGENT_ENDED;
    d->actions |= AGENT_DO_END;
}

/* Leaves with nothing to send. */
static void leave_now(struct agent_core *c, struct agent_decision *d, const char *reason)
{
    d->reason = reason;
    d->actions |= AGENT_DO_LEAVE | AGENT_DO_STOP_TIMER;
    say_bye(c, d);
}

static void go(struct agent_core *c, struct agent_decision *d, int to)
{
    if (to == OVER && c->saving) /* AGENT_SAVED will come */
        to = AGENT_SAVING;
    c->state = to < AGENT_STATES ? (enum agent_state)to : AGENT_IDLE;
    if (to == OVER) {
        d->actions |= AGENT_DO_FINISH;
        if (c->leave == AGENT_STAYS && c->broken)
            leave_now(c, d, NULL);
        if (c->leave == AGENT_SENDS)
            say_bye(c, d);
        end_if_done(c, d);
    }
    if (to < AGENT_STATES || c->leave != AGENT_STAYS)
        return;
    if (c->drain) {
        leave_now(c, d, "drained");
    } else {
        c->state = AGENT_ASKING;
        d->actions |= AGENT_DO_ASK;
    }
}

/* A leaving worker begins nothing: everything except a result being sent ends here. */
static void move(struct agent_core *c, const struct move *m, struct agent_decision *d)
{
    const bool result = c->leave == AGENT_SENDS && m->news == AGENT_RAN;
    const bool ends = c->leave != AGENT_STAYS && c->state < AGENT_STOPPING &&
                      m->news != AGENT_REVOKED && m->to != FREE && !result;
    d->actions |= ends ? 0 : m->actions;
    c->cut &= m->to == AGENT_FETCHING;
    c->saving |= (d->actions & AGENT_DO_SAVE) != 0;
    go(c, d, !ends ? m->to : c->state == AGENT_ASKING ? AGENT_IDLE : OVER);
}

static void on_leave(struct agent_core *c, const struct agent_event *ev, struct agent_decision *d)
{
    if (c->state > AGENT_STOPPING || (c->state == AGENT_RUNNING && ev->saves)) {
        c->leave = AGENT_SENDS;
        d->reason = ev->reason;
        d->actions |= AGENT_DO_LEAVE | AGENT_DO_LATE;
        return;
    }
    leave_now(c, d, ev->reason);
    if (!is_in(c, IN(FETCHING) | IN(AWAITING)))
        return;
    d->actions |= AGENT_DO_DROP;
    go(c, d, OVER);
}

/* News that matter in every state. */
static void on_any(struct agent_core *c, const struct agent_event *ev, struct agent_decision *d)
{
    const bool stays = c->leave == AGENT_STAYS;
    switch (ev->news) {
    case AGENT_LOST:
        c->cut |= c->state == AGENT_FETCHING;
        break;
    case AGENT_SAVED:
        c->saving = false;
        end_if_done(c, d);
        break;
    case AGENT_DRAIN:
        if (stays && !c->drain && is_in(c, IN(IDLE) | IN(ASKING)))
            leave_now(c, d, "drained");
        c->drain = true;
        break;
    case AGENT_LEAVE:
        if (stays)
            on_leave(c, ev, d);
        break;
    case AGENT_LATE:
        if (c->leave != AGENT_SENDS)
            break;
        d->actions |= AGENT_DO_DROP;
        say_bye(c, d);
        break;
    case AGENT_GOODBYE:
        if (c->leave == AGENT_BYE)
            c->leave = AGENT_HEARD;
        end_if_done(c, d);
        break;
    case AGENT_HUNG:
        c->hung |= c->saving || is_in(c, COMPUTES);
        if (c->hung && stays)
            leave_now(c, d, NULL);
        end_if_done(c, d);
        break;
    case AGENT_REFUSED_FOR_EVER:
        if (c->leave != AGENT_ENDED)
            d->actions |= AGENT_DO_END;
        c->leave = AGENT_ENDED;
        break;
    default:
        break;
    }
}

enum agent_notice decide_agent_notice(struct agent_core *c, uint64_t left_ms, uint64_t took_ns)
{
    const uint64_t keep_ms = took_ns ? took_ns / 1000000 * 3 / 2 + NOTICE_BYE_MS : NOTICE_SAVE_MS;
    const int due = left_ms <= NOTICE_SAVE_MS ? 2 : took_ns == 0 ? 1 : 0;
    if (left_ms <= keep_ms)
        return AGENT_NOTICE_LEAVE;
    if (due <= c->saved)
        return AGENT_NOTICE_WAIT;
    c->saved = due;
    return AGENT_NOTICE_SAVE;
}

struct agent_decision decide_agent(struct agent_core *c, const struct agent_event *ev)
{
    struct agent_decision d = {0};
    if (c->state == AGENT_FETCHING && ev->news == AGENT_UNFETCHED && (c->cut || !ev->joined)) {
        /* Not the task's fault: it is planned again as soon as the coordinator is back. */
        c->state = AGENT_AWAITING;
        if (!ev->joined)
            return d;
        return decide_agent(c, &(struct agent_event){.news = AGENT_JOINED});
    }
    on_any(c, ev, &d);
    c->drain |= ev->drain && c->state == AGENT_ASKING;
    for (size_t i = 0; i < sizeof(moves) / sizeof(moves[0]); i++)
        if (moves[i].news == ev->news && is_in(c, moves[i].in)) {
            move(c, &moves[i], &d);
            break;
        }
    return d;
}
