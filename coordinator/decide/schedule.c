#include "coordinator/decide/schedule.h"

#define HELPER_MS 1000 /* until a task that waits for what others do is looked at again */

uint64_t schedule_small_until(uint64_t now_ms, const struct schedule_task *t,
                              const struct schedule_small *small, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        if (small[i].job_id == t->job_id && small[i].kind == t->kind &&
            small[i].network == t->network && small[i].until_ms > now_ms)
            return small[i].until_ms;
    return 0;
}

static bool is_barred(const struct schedule_task *t, uint64_t origin)
{
    const size_t most = sizeof(t->not_from) / sizeof(t->not_from[0]);
    for (size_t i = 0; i < most && t->not_from[i] != 0; i++)
        if (t->not_from[i] == origin)
            return true;
    return false;
}

/* 0: the task may be taken now; else the time when it may, and *ret_why says what it waits for. */
static uint64_t held_back(const struct schedule *s, uint64_t worker, const struct schedule_task *t,
                          const struct schedule_options *o, const char **ret_why)
{
    const uint64_t now = s->now_ms;
    if (s->jobs[t->job].held != NULL) {
        *ret_why = s->jobs[t->job].held;
        return UINT64_MAX;
    }
    if (t->not_before_ms > now) {
        *ret_why = "waits after a failure";
        return t->not_before_ms;
    }
    if (t->needs_trainers && !o->trainers) {
        *ret_why = "needs a worker that was started with --allow-trainers";
        return UINT64_MAX;
    }
    if (t->reads > o->reads) {
        *ret_why = "needs a worker of a newer release";
        return UINT64_MAX;
    }
    if (t->needs_known && !o->known) {
        *ret_why = "is for workers that have done tasks well before";
        return UINT64_MAX;
    }
    if (t->not_for[0] == worker || t->not_for[1] == worker || is_barred(t, o->origin)) {
        *ret_why = "is for another worker, from elsewhere: it looks over what this one did";
        return UINT64_MAX;
    }
    if (t->phase && o->behind == t->job_id) {
        *ret_why = "waits for a worker that has its version: this one still fetches one";
        return UINT64_MAX;
    }
    if (t->needs_spare && o->has_phase) {
        *ret_why = "is for a worker without a phase: one is about to begin here";
        return now + HELPER_MS;
    }
    if (t->spares_makers && o->makes_step) {
        *ret_why = "is for another worker: this one is about to make an outer step";
        return now + HELPER_MS;
    }
    if (t->needs_helper && !o->helper) {
        *ret_why = "needs another worker that evaluates its experts";
        return now + HELPER_MS;
    }
    uint64_t until = schedule_small_until(now, t, o->small, o->n_small);
    if (until != 0) {
        *ret_why = "needs more memory or disk than this worker has";
        return until;
    }
    until = failure_until(t->failed, worker, o->standing);
    if (now < until) {
        *ret_why = "was failed, and this worker waits before it tries it";
        return until;
    }
    until = t->ready_ms + t->patience_ms;
    if (t->owner != 0 && t->owner != worker && t->owner_here && !t->owner_busy && now < until) {
        *ret_why = "is kept for the worker that has its state";
        return until;
    }
    return 0;
}

/* Which of two tasks goes first by its job: -1 the first, 1 the second, 0: neither. */
static int by_job(const struct schedule *s, const struct schedule_task *a,
                  const struct schedule_task *b)
{
    const struct schedule_job *x = &s->jobs[a->job], *y = &s->jobs[b->job];
    if (x->priority != y->priority)
        return x->priority > y->priority ? -1 : 1;
    const unsigned ra = a->rank < SCHEDULE_RANK_SHARED ? a->rank : SCHEDULE_RANK_SHARED;
    const unsigned rb = b->rank < SCHEDULE_RANK_SHARED ? b->rank : SCHEDULE_RANK_SHARED;
    if (ra != rb)
        return ra < rb ? -1 : 1;
    const double fx = (x->leases + 1) / x->share, fy = (y->leases + 1) / y->share;
    return fx < fy ? -1 : fx > fy ? 1 : 0;
}

static bool before(const struct schedule *s, uint64_t worker, const struct schedule_task *a,
                   const struct schedule_task *b)
{
    const int jobs = a->job != b->job ? by_job(s, a, b) : 0;
    if (jobs != 0)
        return jobs < 0;
    if (a->rank != b->rank)
        return a->rank < b->rank;
    if (a->lag != b->lag)
        return a->lag < b->lag;
    bool warm_a = a->owner == worker, warm_b = b->owner == worker;
    if (warm_a != warm_b)
        return warm_a;
    /* To take a replica without an owner costs no worker its moments. */
    if ((a->owner == 0) != (b->owner == 0))
        return a->owner == 0;
    return a->id < b->id;
}

/* ---- groups --------------------------------------------------------------- */

#define GROUPS_BACK 64 /* most groups with which a task is compared: older ones rarely match */
#define NONE UINT32_MAX

struct schedule_group {
    uint32_t first, last; /* first: may have been taken */
    uint64_t kept_ms;     /* kept for their owners until then; 0: for nobody */
    bool alone;           /* workers may differ in their right to it, so nothing else joins it */
};

struct schedule_owned {
    uint64_t owner;
    uint32_t at;
};

static uint64_t kept_until(uint64_t now, const struct schedule_task *t)
{
    const uint64_t until = t->ready_ms + t->patience_ms;
    return t->owner != 0 && t->owner_here && !t->owner_busy && now < until ? until : 0;
}

/* Are they the same to every worker, except the last owner of one? */
static bool alike(const struct schedule_task *a, const struct schedule_task *b)
{
    return a->job_id == b->job_id && a->kind == b->kind && a->rank == b->rank &&
           a->network == b->network && a->lag == b->lag && a->needs_trainers == b->needs_trainers &&
           a->reads == b->reads && a->needs_helper == b->needs_helper && a->phase == b->phase &&
           a->needs_spare == b->needs_spare && a->spares_makers == b->spares_makers &&
           a->needs_known == b->needs_known && (a->owner == 0) == (b->owner == 0);
}

static void add(struct schedule *s, uint32_t at)
{
    const struct schedule_task *t = &s->tasks[at];
    /* Tasks that no worker may take yet are represented by the one that is ready first. */
    if (t->not_before_ms > s->now_ms && s->jobs[t->job].held == NULL) {
        if (s->later == NONE || t->not_before_ms < s->tasks[s->later].not_before_ms)
            s->later = at;
        return;
    }
    const struct schedule_group want = {
        .first = at,
        .last = at,
        .kept_ms = kept_until(s->now_ms, t),
        .alone = t->not_for[0] != 0 || t->not_from[0] != 0 || failure_holds(t->failed, s->now_ms),
    };
    s->next[at] = NONE;
    for (size_t back = 1; !want.alone && back <= GROUPS_BACK && back <= s->n_groups; back++) {
        struct schedule_group *g = &s->groups[s->n_groups - back];
        if (!g->alone && g->kept_ms == want.kept_ms && alike(&s->tasks[g->last], t)) {
            s->next[g->last] = at;
            g->last = at;
            return;
        }
    }
    s->groups[s->n_groups++] = want;
}

static int by_owner(const void *a, const void *b)
{
    const struct schedule_owned *x = a, *y = b;
    if (x->owner != y->owner)
        return x->owner < y->owner ? -1 : 1;
    return x->at < y->at ? -1 : x->at > y->at;
}

void schedule_init(struct schedule *s, uint64_t now_ms, struct schedule_job *jobs,
                   const struct schedule_task *tasks, size_t n)
{
    *s = (struct schedule){
        .now_ms = now_ms,
        .jobs = jobs,
        .tasks = tasks,
        .n = n,
        .n_left = n,
        .later = NONE,
        .groups = mem_alloc_array(n + 1, sizeof(*s->groups)),
        .next = mem_alloc_array(n + 1, sizeof(*s->next)),
        .taken = mem_alloc_array(n + 1, sizeof(*s->taken)),
        .owned = mem_alloc_array(n + 1, sizeof(*s->owned)),
    };
    for (size_t i = 0; i < n; i++) {
        add(s, (uint32_t)i);
        s->from_matters |= tasks[i].not_from[0] != 0;
        s->spares |= tasks[i].needs_spare || tasks[i].spares_makers;
        if (tasks[i].owner != 0)
            s->owned[s->n_owned++] = (struct schedule_owned){tasks[i].owner, (uint32_t)i};
    }
    qsort(s->owned, s->n_owned, sizeof(s->owned[0]), by_owner);
}

void schedule_release(struct schedule *s)
{
    mem_free(s->groups);
    mem_free(s->next);
    mem_free(s->taken);
    mem_free(s->owned);
    *s = (struct schedule){0};
}

void schedule_take(struct schedule *s, size_t index)
{
    s->taken[index] = true;
    s->n_left--;
    s->jobs[s->tasks[index].job].leases++;
}

/* ---- a worker's turn ------------------------------------------------------ */

struct look {
    const struct schedule *s;
    uint64_t worker;
    const struct schedule_options *o;
    struct schedule_decision *d;
    const char *why;
    uint64_t waiting;
};

static void consider(struct look *l, uint32_t at)
{
    const struct schedule_task *t = &l->s->tasks[at];
    struct schedule_decision *d = l->d;
    const char *why = NULL;
    const uint64_t until = held_back(l->s, l->worker, t, l->o, &why);
    if (until == 0) {
        if (d->index < 0 || before(l->s, l->worker, t, &l->s->tasks[d->index]))
            d->index = (long)at;
    } else if (d->until_ms == 0 || until < d->until_ms ||
               (until == d->until_ms && t->id < l->waiting)) {
        d->until_ms = until;
        l->why = why;
        l->waiting = t->id;
    }
}

static void consider_own(struct look *l)
{
    const struct schedule *s = l->s;
    size_t lo = 0, hi = s->n_owned;
    while (lo < hi) {
        const size_t mid = lo + (hi - lo) / 2;
        if (s->owned[mid].owner < l->worker)
            lo = mid + 1;
        else
            hi = mid;
    }
    for (; lo < s->n_owned && s->owned[lo].owner == l->worker; lo++)
        if (!s->taken[s->owned[lo].at])
            consider(l, s->owned[lo].at);
}

void schedule_pick(struct schedule *s, uint64_t worker, const struct schedule_options *o,
                   struct schedule_decision *ret)
{
    struct look l = {s, worker, o, ret, NULL, 0};
    *ret = (struct schedule_decision){.index = -1};
    for (size_t i = 0; i < s->n_groups; i++) {
        struct schedule_group *g = &s->groups[i];
        while (g->first != NONE && s->taken[g->first])
            g->first = s->next[g->first];
        if (g->first != NONE)
            consider(&l, g->first);
    }
    if (s->later != NONE)
        consider(&l, s->later);
    consider_own(&l);
    if (ret->index >= 0) {
        const struct schedule_task *t = &s->tasks[ret->index];
        ret->until_ms = 0;
        (void)snprintf(ret->reason, sizeof(ret->reason), "task %llu%s", (unsigned long long)t->id,
                       t->owner == worker ? ", whose last phase it did" : "");
    } else if (l.why != NULL) {
        (void)snprintf(ret->reason, sizeof(ret->reason), "task %llu %s",
                       (unsigned long long)l.waiting, l.why);
    } else {
        (void)snprintf(ret->reason, sizeof(ret->reason), "no task is ready");
    }
}

/* ---- what a job may expect ------------------------------------------------ */

uint32_t schedule_part(uint32_t workers, const struct schedule_claim *claims, size_t n, size_t mine)
{
    double each = -1, next = 0; /* workers for a share of 1 */
    for (size_t i = 0; i < n; i++)
        if (claims[i].priority > claims[mine].priority)
            workers -= claims[i].most < workers ? claims[i].most : workers;
    while (next > each) { /* what full claims leave lets the others grow, and perhaps be full */
        double left = workers, shares = 0;
        each = next;
        for (size_t i = 0; i < n; i++) {
            const struct schedule_claim *c = &claims[i];
            if (c->priority != claims[mine].priority)
                continue;
            if (i != mine && c->most <= each * c->share)
                left -= c->most;
            else
                shares += c->share;
        }
        next = left / shares;
    }
    /* Shares that add up to all workers give all of them, in spite of rounding. */
    return (uint32_t)(each * claims[mine].share + 1e-9);
}
