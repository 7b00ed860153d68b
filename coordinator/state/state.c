#include "coordinator/state/state.h"

void state_init(struct state *s)
{
    memset(s, 0, sizeof(*s));
    list_init(&s->parked);
    s->next_worker = s->next_job = s->next_task = s->next_module = s->next_token = 1;
}

void state_release(struct state *s)
{
    for (size_t i = 0; i < s->n_workers; i++)
        worker_free((struct worker *)s->workers[i]);
    for (size_t i = 0; i < s->n_tasks; i++)
        task_free((struct task *)s->tasks[i]);
    for (size_t i = 0; i < s->n_jobs; i++)
        job_free(s->jobs[i]);
    mem_free((void *)s->workers);
    mem_free((void *)s->tasks);
    mem_free((void *)s->ready);
    mem_free(s->faces.ids);
    mem_free(s->jobs);
    mem_free(s->tokens);
    mem_free(s->tokens_gone.at);
    mem_free(s->workers_edited.at);
    mem_free(s->tasks_edited.at);
    mem_free(s->workers_gone.at);
    mem_free(s->tasks_gone.at);
    mem_free(s->jobs_gone.at);
    memset(s, 0, sizeof(*s));
}

/* First index whose id is not below `id`; all records begin with their id. */
static size_t lower_bound(void *const *items, size_t n, uint64_t id)
{
    size_t lo = 0, hi = n;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        uint64_t have;
        memcpy(&have, items[mid], sizeof(have));
        if (have < id)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

static void *find(void *const *items, size_t n, uint64_t id)
{
    size_t at = lower_bound(items, n, id);
    uint64_t have;
    if (at == n)
        return NULL;
    memcpy(&have, items[at], sizeof(have));
    return have == id ? items[at] : NULL;
}

const struct worker *state_worker(const struct state *s, uint64_t id)
{
    return find((void *const *)s->workers, s->n_workers, id);
}

struct job *state_job(const struct state *s, uint64_t id)
{
    return find((void *const *)s->jobs, s->n_jobs, id);
}

const struct task *state_task(const struct state *s, uint64_t id)
{
    return find((void *const *)s->tasks, s->n_tasks, id);
}

size_t state_workers_after(const struct state *s, uint64_t id)
{
    return lower_bound((void *const *)s->workers, s->n_workers, id + 1);
}

const struct module_rec *state_module(const struct state *s, uint64_t id, struct job **ret_job)
{
    for (size_t i = 0; i < s->n_jobs; i++) {
        const struct module_rec *m = job_module(s->jobs[i], id);
        if (m != NULL) {
            *ret_job = s->jobs[i];
            return m;
        }
    }
    return NULL;
}

struct worker *state_edit_worker(struct state *s, const struct worker *w)
{
    struct worker *edit = (struct worker *)w;
    if (edit != NULL)
        row_edit(&edit->row, &s->workers_edited, w->id);
    return edit;
}

struct task *state_edit_task(struct state *s, const struct task *t)
{
    struct task *edit = (struct task *)t;
    if (edit != NULL)
        row_edit(&edit->row, &s->tasks_edited, t->id);
    return edit;
}

/* Makes room for one more pointer. */
static void *grow(void *items, size_t n, size_t *cap)
{
    if (n < *cap)
        return items;
    *cap = *cap ? *cap * 2 : 16;
    return mem_realloc(items, *cap * sizeof(void *));
}

static uint64_t take_id(uint64_t id, uint64_t *next)
{
    if (id == 0)
        id = *next;
    if (id >= *next)
        *next = id + 1;
    return id;
}

struct worker *state_add_worker(struct state *s, uint64_t id)
{
    if (s->n_workers >= WORKERS_KNOWN_MAX)
        return NULL;
    s->workers = grow((void *)s->workers, s->n_workers, &s->cap_workers);
    struct worker *w = mem_alloc(sizeof(*w));
    w->id = take_id(id, &s->next_worker);
    s->workers[s->n_workers++] = w;
    return state_edit_worker(s, w);
}

struct job *state_add_job(struct state *s, uint64_t id)
{
    if (s->n_jobs > JOBS_MAX)
        return NULL;
    s->jobs = grow(s->jobs, s->n_jobs, &s->cap_jobs);
    struct job *j = mem_alloc(sizeof(*j));
    j->id = take_id(id, &s->next_job);
    j->loss = j->eval_loss = NAN;
    s->jobs[s->n_jobs++] = j;
    return j;
}

static void drop(void **items, size_t *n, uint64_t id)
{
    size_t at = lower_bound(items, *n, id);
    memmove(&items[at], &items[at + 1], (*n - at - 1) * sizeof(void *));
    --*n;
}

static bool is_ready(const struct task *t)
{
    return t->state == TASK_PENDING;
}

/* A task that is given back is older than other waiting ones. */
static void add_ready(struct state *s, const struct task *t)
{
    if (!is_ready(t))
        return;
    s->ready = grow((void *)s->ready, s->n_ready, &s->cap_ready);
    const size_t at = lower_bound((void *const *)s->ready, s->n_ready, t->id);
    memmove((void *)&s->ready[at + 1], (void *)&s->ready[at],
            (s->n_ready - at) * sizeof(s->ready[0]));
    s->ready[at] = t;
    s->n_ready++;
}

struct task *state_add_task(struct state *s, uint64_t id, uint64_t job_id, enum task_kind kind)
{
    if (id == 0 && s->n_open >= TASKS_OPEN_MAX)
        return NULL;
    s->tasks = grow((void *)s->tasks, s->n_tasks, &s->cap_tasks);
    struct task *t = mem_alloc(sizeof(*t));
    t->id = take_id(id, &s->next_task);
    t->job_id = job_id;
    t->kind = kind;
    t->state = TASK_PENDING;
    t->loss = t->loss_first = t->loss_last = t->loss_mean = NAN;
    s->n_open++;
    s->tasks[s->n_tasks++] = t;
    add_ready(s, t);
    return state_edit_task(s, t);
}

void state_drop_worker(struct state *s, const struct worker *w)
{
    marks_add(&s->workers_gone, w->id);
    for (int i = 0; i < 4; i++)
        s->bytes_gone[i] += w->bytes[i];
    (void)state_unpark((struct worker *)w);
    state_set_worker_state(s, (struct worker *)w, WORKER_LEFT);
    drop((void **)s->workers, &s->n_workers, w->id);
    worker_free((struct worker *)w);
}

void state_drop_task(struct state *s, const struct task *t)
{
    marks_add(&s->tasks_gone, t->id);
    state_set_task_state(s, (struct task *)t, TASK_CANCELLED);
    drop((void **)s->tasks, &s->n_tasks, t->id);
    task_free((struct task *)t);
}

bool state_any_unread(const struct state *s)
{
    for (size_t i = 0; i < s->n_jobs; i++)
        if (s->jobs[i]->unread)
            return true;
    return false;
}

void state_drop_job(struct state *s, struct job *j)
{
    marks_add(&s->jobs_gone, j->id);
    drop((void **)s->jobs, &s->n_jobs, j->id);
    job_free(j);
}

/* Adds the task to all counts and indexes, or removes it. */
static void count_task(struct state *s, const struct task *t, bool in)
{
    struct job *j = t->state == TASK_LEASED ? state_job(s, t->job_id) : NULL;
    if (task_is_open(t))
        s->n_open += in ? 1 : (size_t)-1;
    if (j != NULL)
        j->leases += in ? 1 : (uint32_t)-1;
    if (in)
        add_ready(s, t);
    else if (is_ready(t))
        drop((void **)s->ready, &s->n_ready, t->id);
}

void state_set_task_state(struct state *s, struct task *t, enum task_state to)
{
    count_task(s, t, false);
    t->state = to;
    count_task(s, t, true);
}

void state_set_worker_state(struct state *s, struct worker *w, enum worker_state to)
{
    s->n_here -= w->state == WORKER_HERE;
    w->state = to;
    s->n_here += to == WORKER_HERE;
}

void state_park(struct state *s, struct worker *w, struct rpc_request *req, uint64_t until_ms)
{
    w->parked = req;
    w->parked_until_ms = until_ms;
    list_push(&s->parked, &w->parked_at);
}

struct rpc_request *state_unpark(struct worker *w)
{
    struct rpc_request *req = w->parked;
    if (req == NULL)
        return NULL;
    w->parked = NULL;
    list_remove(&w->parked_at);
    return req;
}
