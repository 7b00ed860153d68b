#include "worker/decide_agent.h"

#include <stddef.h>

static bool computing(const struct agent_core *c)
{
    return c->saving || c->state == AGENT_PLANNING || c->state == AGENT_RUNNING ||
           c->state == AGENT_STOPPING;
}

bool decide_agent_writes(const struct agent_core *c)
{
    return c->state >= AGENT_PLANNING && c->state <= AGENT_STOPPING;
}

static void go(struct agent_core *c, struct agent_decision *d, enum agent_state to,
               unsigned actions)
{
    c->state = to;
    d->actions |= actions;
}

static void say_bye(struct agent_core *c, struct agent_decision *d)
{
    c->leave = AGENT_BYE;
    d->actions |= AGENT_DO_BYE;
}

static void end_if_done(struct agent_core *c, struct agent_decision *d)
{
    if (c->leave != AGENT_HEARD || computing(c))
        return;
    c->leave = AGENT_ENDED;
    d->actions |= AGENT_DO_END;
}

/* With nothing in hand. */
static void leave_now(struct agent_core *c, struct agent_decision *d, const char *reason)
{
    d->reason = reason;
    d->actions |= AGENT_DO_LEAVE | AGENT_DO_STOP_TIMER;
    say_bye(c, d);
}

static void ask(struct agent_core *c, struct agent_decision *d)
{
    if (c->leave != AGENT_STAYS)
        return;
    if (c->drain)
        leave_now(c, d, "drained");
    else
        go(c, d, AGENT_ASKING, AGENT_DO_ASK);
}

static void finish(struct agent_core *c, struct agent_decision *d)
{
    if (c->saving) { /* SAVED comes back here */
        c->state = AGENT_SAVING;
        return;
    }
    go(c, d, AGENT_IDLE, AGENT_DO_FINISH);
    if (c->leave == AGENT_STAYS && c->broken)
        leave_now(c, d, NULL);
    if (c->leave == AGENT_SENDS)
        say_bye(c, d);
    end_if_done(c, d);
    ask(c, d);
}

static void plan(struct agent_core *c, struct agent_decision *d, unsigned actions)
{
    c->cut = false;
    go(c, d, AGENT_PLANNING, actions);
}

/* ---- news of the session ---- */

static void on_joined(struct agent_core *c, struct agent_decision *d)
{
    switch (c->state) {
    case AGENT_IDLE:
        ask(c, d);
        break;
    case AGENT_AWAITING:
        if (c->leave == AGENT_STAYS)
            plan(c, d, AGENT_DO_PLAN);
        break;
    case AGENT_UPLOADING:
        d->actions |= AGENT_DO_RESUME;
        break;
    case AGENT_REPORTING:
        d->actions |= AGENT_DO_REPORT;
        break;
    default:
        break;
    }
}

static void on_timer(struct agent_core *c, struct agent_decision *d)
{
    if (c->state == AGENT_IDLE)
        ask(c, d);
    else if (c->state == AGENT_REPORTING)
        d->actions |= AGENT_DO_REPORT;
}

static void on_revoked(struct agent_core *c, struct agent_decision *d)
{
    switch (c->state) {
    case AGENT_PLANNING:
    case AGENT_RUNNING:
        go(c, d, AGENT_STOPPING, AGENT_DO_REVOKE);
        break;
    case AGENT_FETCHING:
    case AGENT_AWAITING:
    case AGENT_UPLOADING:
    case AGENT_REPORTING:
        d->actions |= AGENT_DO_REVOKE | AGENT_DO_STOP_TIMER | AGENT_DO_DROP | AGENT_DO_CANCEL |
                      AGENT_DO_SETTLE;
        finish(c, d);
        break;
    default:
        break;
    }
}

static void on_drain(struct agent_core *c, struct agent_decision *d)
{
    const bool waits = c->state == AGENT_IDLE || c->state == AGENT_ASKING;
    if (waits && !c->drain && c->leave == AGENT_STAYS)
        leave_now(c, d, "drained");
    c->drain = true;
}

/* ---- answers ---- */

static void on_answer(struct agent_core *c, const struct agent_event *ev, struct agent_decision *d)
{
    if (c->state != AGENT_ASKING)
        return;
    c->state = AGENT_IDLE;
    if (c->leave != AGENT_STAYS)
        return;
    c->drain |= ev->drain;
    if (ev->news == AGENT_GIVEN)
        plan(c, d, AGENT_DO_START);
    else if (ev->quick)
        d->actions |= AGENT_DO_TIMER;
    else
        ask(c, d);
}

static void on_report_answer(struct agent_core *c, bool accepted, struct agent_decision *d)
{
    if (c->state != AGENT_REPORTING)
        return;
    if (!accepted)
        d->actions |= AGENT_DO_SETTLE;
    finish(c, d);
}

static void on_no_answer(struct agent_core *c, const struct agent_event *ev,
                         struct agent_decision *d)
{
    const bool asked = c->state == AGENT_ASKING, leaves = c->leave != AGENT_STAYS;
    if (asked)
        c->state = AGENT_IDLE;
    if (ev->news == AGENT_UNANSWERED && ((asked && !leaves) || c->state == AGENT_REPORTING))
        d->actions |= AGENT_DO_TIMER;
}

/* ---- steps of a task ---- */

static void fail(struct agent_core *c, struct agent_decision *d)
{
    go(c, d, AGENT_REPORTING, AGENT_DO_FAIL | AGENT_DO_REPORT);
}

static void on_fetched(struct agent_core *c, const struct agent_event *ev, struct agent_decision *d)
{
    if (c->state != AGENT_FETCHING)
        return;
    if (c->leave != AGENT_STAYS)
        finish(c, d);
    else if (ev->news == AGENT_FETCHED)
        go(c, d, AGENT_RUNNING, AGENT_DO_RUN);
    else if (!ev->joined) /* no fault of the task */
        c->state = AGENT_AWAITING;
    else if (c->cut)
        plan(c, d, AGENT_DO_PLAN);
    else
        fail(c, d);
}

/* The compute thread has answered. */
static void on_computed(struct agent_core *c, enum agent_news news, struct agent_decision *d)
{
    if (c->state == AGENT_STOPPING)
        d->actions |= AGENT_DO_SETTLE;
    if (c->state == AGENT_STOPPING || c->leave != AGENT_STAYS) {
        finish(c, d);
    } else if (news == AGENT_FAILED) {
        fail(c, d);
    } else if (news == AGENT_MISBUILT) {
        plan(c, d, AGENT_DO_WHOLE | AGENT_DO_PLAN);
    } else if (news == AGENT_PLANNED) {
        go(c, d, AGENT_FETCHING, AGENT_DO_FETCH);
    } else {
        c->saving = true;
        go(c, d, AGENT_UPLOADING, AGENT_DO_SAVE | AGENT_DO_UPLOAD);
    }
}

/* A step is through, or has failed. */
static void on_step(struct agent_core *c, enum agent_news news, struct agent_decision *d)
{
    const bool failed = news == AGENT_FAILED, stopping = c->state == AGENT_STOPPING;
    const bool planned = news == AGENT_PLANNED && c->state == AGENT_PLANNING;
    const bool ran = (news == AGENT_RAN || news == AGENT_MISBUILT) && c->state == AGENT_RUNNING;
    if (news == AGENT_UPLOADED) {
        if (c->state == AGENT_UPLOADING)
            go(c, d, AGENT_REPORTING, AGENT_DO_REPORT);
    } else if (stopping || planned || ran ||
               (failed && (c->state == AGENT_PLANNING || c->state == AGENT_RUNNING))) {
        on_computed(c, news, d);
    } else if (failed && (c->state == AGENT_UPLOADING || c->state == AGENT_REPORTING)) {
        fail(c, d);
    }
}

static void on_saved(struct agent_core *c, struct agent_decision *d)
{
    c->saving = false;
    if (c->state == AGENT_SAVING)
        finish(c, d);
    else
        end_if_done(c, d);
}

/* ---- leaving ---- */

static void on_leave(struct agent_core *c, const char *reason, struct agent_decision *d)
{
    if (c->leave != AGENT_STAYS)
        return;
    switch (c->state) {
    case AGENT_UPLOADING:
    case AGENT_REPORTING:
    case AGENT_SAVING:
        c->leave = AGENT_SENDS;
        d->reason = reason;
        d->actions |= AGENT_DO_LEAVE | AGENT_DO_LATE;
        break;
    case AGENT_FETCHING:
    case AGENT_AWAITING:
        leave_now(c, d, reason);
        d->actions |= AGENT_DO_DROP;
        finish(c, d);
        break;
    default:
        leave_now(c, d, reason);
        break;
    }
}

static void on_parting(struct agent_core *c, enum agent_news news, struct agent_decision *d)
{
    if (news == AGENT_LATE && c->leave == AGENT_SENDS) {
        d->actions |= AGENT_DO_DROP;
        say_bye(c, d);
    } else if (news == AGENT_GOODBYE && c->leave == AGENT_BYE) {
        c->leave = AGENT_HEARD;
        end_if_done(c, d);
    } else if (news == AGENT_REFUSED_FOR_EVER && c->leave != AGENT_ENDED) {
        c->leave = AGENT_ENDED;
        d->actions |= AGENT_DO_END;
    }
}

struct agent_decision decide_agent(struct agent_core *c, const struct agent_event *ev)
{
    struct agent_decision d = {0};
    switch (ev->news) {
    case AGENT_JOINED:
        on_joined(c, &d);
        break;
    case AGENT_LOST:
        c->cut |= c->state == AGENT_FETCHING;
        break;
    case AGENT_TIMER:
        on_timer(c, &d);
        break;
    case AGENT_REVOKED:
        on_revoked(c, &d);
        break;
    case AGENT_DRAIN:
        on_drain(c, &d);
        break;
    case AGENT_GIVEN:
    case AGENT_NOTHING:
        on_answer(c, ev, &d);
        break;
    case AGENT_ACCEPTED:
    case AGENT_REJECTED:
        on_report_answer(c, ev->news == AGENT_ACCEPTED, &d);
        break;
    case AGENT_UNANSWERED:
    case AGENT_UNSENT:
        on_no_answer(c, ev, &d);
        break;
    case AGENT_FETCHED:
    case AGENT_UNFETCHED:
        on_fetched(c, ev, &d);
        break;
    case AGENT_PLANNED:
    case AGENT_RAN:
    case AGENT_MISBUILT:
    case AGENT_UPLOADED:
    case AGENT_FAILED:
        on_step(c, ev->news, &d);
        break;
    case AGENT_SAVED:
        on_saved(c, &d);
        break;
    case AGENT_LEAVE:
        on_leave(c, ev->reason, &d);
        break;
    case AGENT_LATE:
    case AGENT_GOODBYE:
    case AGENT_REFUSED_FOR_EVER:
        on_parting(c, ev->news, &d);
        break;
    case AGENT_NEWS:
        break;
    }
    return d;
}
