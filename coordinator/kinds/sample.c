/* SAMPLE: one worker generates pictures or text; text arrives while it is generated.
 * VELOCITY: a sampler whose experts stay on their workers has x_t evaluated by them:
 *
 *   sampler -- EVALUATE(path, x_t) --> VELOCITY task of that path --> another worker
 *           <-- blob with v ---------- when it is done */
#include "coordinator/kinds/sample.h"

#include "common/base/clock.h"
#include "coordinator/kinds/kind.h"
#include "coordinator/kinds/result.h"
#include "coordinator/state/poll.h"
#include "coordinator/work/gc.h"
#include "coordinator/work/query.h"
#include "coordinator/work/tasks.h"

#include "common/job/family.h"

/* ---- SAMPLE --------------------------------------------------------------- */

static void sample_message(struct message *b, Skerry__V1__Task *msg)
{
    const struct task_draw *d = &b->task->draw;
    Skerry__V1__SampleTask *m = message_new(b, &skerry__v1__sample_task__descriptor);
    m->path = b->task->path;
    m->steps = d->steps;
    m->heun = d->heun;
    m->guidance = d->guidance;
    m->seed = d->seed;
    m->n_labels = d->labels ? d->count : 0;
    m->labels = d->labels;
    m->columns = d->columns < d->count ? d->columns : d->count;
    m->ema = d->ema;
    if (d->prompt != NULL)
        m->prompt = d->prompt;
    m->tokens = d->tokens;
    m->temperature = d->temperature;
    m->top_p = d->top_p;
    msg->sample = m;
    b->best = true;
    message_networks(b, msg);
}

/* Who has measured or drawn the version before need not fetch it: an average comes whole. */
static uint64_t sample_owner(const struct job *j, const struct task *t)
{
    const struct path_rec *p = &j->paths[t->path];
    return p->drew_version == t->draw.version ? p->drew_worker : 0;
}

static int sample_apply(struct coordinator *co, struct job *j, struct task *t,
                        const Skerry__V1__ReportRequest *r, struct err *err)
{
    /* Who reads data of its own writes or draws. */
    const bool either = !job_has_data(&j->spec);
    const bool text = either ? r->output == NULL : t->draw.tokens > 0;
    if (text && strlen(r->text) > TASK_TEXT_MAX)
        return err_set(err, -ERR_LIMIT, "the text has %zu bytes, at most %d are possible",
                       strlen(r->text), TASK_TEXT_MAX);
    int rc = text ? 0 : result_blob(co, r->output, "the picture", &t->output, err);
    if (rc < 0)
        return rc;
    result_drawn(j, t);
    const struct grid_rec made = {.task_id = t->id,
                                  .round = t->draw.version,
                                  .path = t->draw.mixture ? UINT32_MAX : t->path,
                                  .count = text || either ? 1 : t->draw.count,
                                  .columns = text || either ? 1 : t->draw.columns,
                                  .blob = t->output,
                                  .text = text ? str_dup(r->text) : NULL,
                                  .at_unix_ms = (int64_t)clock_wall_ms()};
    if (j->n_grids == JOB_SAMPLES_MAX)
        gc_drop(co, &j->grids[0].blob);
    const struct grid_rec *g = job_add_grid(j, &made);
    core_event(
        co, &(struct event){
                .kind = EVENT_SAMPLE, .job_id = j->id, .task_id = t->id, .sample = g, .text = ""});
    return 0;
}

static const struct task *leased(const struct coordinator *co, const struct worker *w,
                                 uint64_t task_id, uint32_t attempt, struct err *err)
{
    const struct task *t = state_task(&co->state, task_id);
    if (t != NULL && t->kind == TASK_SAMPLE && t->state == TASK_LEASED && t->worker_id == w->id &&
        t->attempt == attempt)
        return t;
    (void)err_set(err, -ERR_STALE, "attempt %u of SAMPLE task %llu is not leased to this worker",
                  attempt, (unsigned long long)task_id);
    return NULL;
}

int sample_stream(struct coordinator *co, struct worker *w, const Skerry__V1__StreamRequest *m,
                  struct err *err)
{
    struct task *t = task_memory(leased(co, w, m->task_id, m->attempt, err));
    size_t len = strlen(m->text);
    if (t == NULL)
        return -ERR_STALE;
    if (m->offset > t->draw.text_len || m->offset + len > TASK_TEXT_MAX)
        return err_set(err, -EINVAL,
                       "a piece of %zu bytes of text begins at byte %llu, but %zu bytes are here "
                       "and at most %d are kept",
                       len, (unsigned long long)m->offset, t->draw.text_len, TASK_TEXT_MAX);
    size_t end = (size_t)m->offset + len;
    if (end > t->draw.text_len) { /* a repeated piece changes nothing */
        t->draw.text = mem_realloc(t->draw.text, end + 1);
        memcpy(t->draw.text + m->offset, m->text, len + 1);
        t->draw.text_len = end;
        t->progress_ms = core_now(co);
        core_event(co, &(struct event){.kind = EVENT_TEXT,
                                       .job_id = t->job_id,
                                       .worker_id = w->id,
                                       .task_id = t->id,
                                       .offset = m->offset,
                                       .text = m->text});
    }
    return 0;
}

const struct kind kind_sample = {
    .message = sample_message, .apply = sample_apply, .owner = sample_owner};

/* ---- VELOCITY ------------------------------------------------------------- */

static void velocity_message(struct message *b, Skerry__V1__Task *msg)
{
    Skerry__V1__VelocityTask *m = message_new(b, &skerry__v1__velocity_task__descriptor);
    m->path = b->task->path;
    m->input = message_blob(b, &b->task->velocity.input);
    const struct task *parent = state_task(&b->co->state, b->task->velocity.parent);
    if (parent != NULL && parent->kind == TASK_SAMPLE && parent->draw.prompt != NULL)
        m->prompt = parent->draw.prompt;
    msg->velocity = m;
    b->best = true;
    message_networks(b, msg);
}

static int velocity_apply(struct coordinator *co, struct job *j, struct task *t,
                          const Skerry__V1__ReportRequest *r, struct err *err)
{
    int rc = result_blob(co, r->output, "the velocities", &t->output, err);
    if (rc == 0)
        job_edit_path(j, t->path)->velocity_worker = t->worker_id;
    return rc;
}

static void forget(struct coordinator *co, const struct task *t)
{
    if (task_is_open(t))
        task_end(co, state_edit_task(&co->state, t), TASK_CANCELLED,
                 "the sampler does not need it any more");
    gc_drop(co, &t->velocity.input);
    gc_drop(co, &t->output);
    state_drop_task(&co->state, t);
}

static const struct task *find(struct coordinator *co, uint64_t parent, uint32_t path,
                               const struct blob_ref *input)
{
    for (size_t i = 0; i < co->state.n_tasks; i++) {
        const struct task *t = co->state.tasks[i];
        if (t->kind == TASK_VELOCITY && t->velocity.parent == parent && t->path == path &&
            blob_ref_equal(&t->velocity.input, input))
            return t;
    }
    return NULL;
}

/* The sampler has gone on and does not need answers to its earlier questions.  Open ones end, since
 * a sampler that keeps asking new ones would otherwise occupy all workers. */
static void forget_older(struct coordinator *co, uint64_t parent, uint32_t path)
{
    for (size_t i = co->state.n_tasks; i-- > 0;) {
        const struct task *t = co->state.tasks[i];
        if (t->kind == TASK_VELOCITY && t->velocity.parent == parent && t->path == path)
            forget(co, t);
    }
}

static struct task *make(struct coordinator *co, struct job *j, const struct task *parent,
                         uint32_t path, const struct blob_ref *input)
{
    forget_older(co, parent->id, path);
    struct task *t = task_make(co, j, TASK_VELOCITY);
    if (t == NULL)
        return NULL;
    task_memory(parent)->draw.questions++;
    t->path = path;
    t->velocity =
        (struct task_velocity){parent->draw.version, parent->draw.ema, parent->id, *input};
    return t;
}

/* The most questions that a sampler has: of each sample at each step, perhaps two of Heun's and two
 * of guidance for each expert. */
static uint64_t most_questions(const struct job *j, const struct task_draw *d)
{
    return (uint64_t)d->count * d->steps * 4 * query_main_paths(j);
}

static void send_velocity(struct coordinator *co, const struct poll *p, const struct task *t)
{
    Skerry__V1__EvaluateReply reply = SKERRY__V1__EVALUATE_REPLY__INIT;
    char why[REASON_MAX];
    struct pbmem mem;
    const struct worker *w = state_worker(&co->state, p->worker_id);
    struct message b = {.co = co, .worker = w, .mem = &mem};
    pbmem_init(&mem, MESSAGE_BYTES_MAX);
    if (w != NULL && t != NULL && t->state == TASK_DONE) {
        reply.output = message_blob(&b, &t->output);
    } else {
        (void)snprintf(why, sizeof(why), "VELOCITY task %llu of path %u is %s",
                       (unsigned long long)(t ? t->id : 0), t ? t->path : 0,
                       t ? task_state_name(t->state) : "gone");
        reply.waiting_for = why;
    }
    rpc_reply(p->req, &reply.base);
    pbmem_release(&mem);
}

static bool answer_velocity(struct coordinator *co, struct poll *p, bool last)
{
    const struct task *t = state_task(&co->state, p->velocity);
    if (t != NULL && t->state == TASK_FAILED) {
        rpc_fail(p->req, -ERR_REMOTE, false, 0, "path %u could not be evaluated: %.200s", t->path,
                 t->reason);
        return true;
    }
    if (t != NULL && task_is_open(t) && !last)
        return false;
    send_velocity(co, p, t);
    return true;
}

int sample_evaluate(struct coordinator *co, struct worker *w, struct rpc_request *req,
                    const Skerry__V1__EvaluateRequest *m, struct err *err)
{
    struct blob_ref input = {0};
    const struct task *parent = leased(co, w, m->task_id, m->attempt, err), *t = NULL;
    struct job *j = parent ? state_job(&co->state, parent->job_id) : NULL;
    int rc = parent == NULL ? -ERR_STALE : 0;
    if (rc == 0 && j == NULL)
        rc = err_set(err, -ERR_STALE, "the job of this task is not known any more");
    if (rc == 0 &&
        (m->path >= j->comp.n_paths || j->comp.paths[m->path].network != 0 || !parent->draw.remote))
        rc = err_set(err, -EINVAL, "path %u is not part of a mixture that is sampled remotely",
                     m->path);
    if (rc == 0)
        rc = result_blob(co, m->input, "the input", &input, err);
    if (rc == 0) {
        t = find(co, parent->id, m->path, &input);
        if (t == NULL && (t = make(co, j, parent, m->path, &input)) == NULL)
            rc = err_set(err, -EAGAIN, "too many tasks are open");
    }
    if (rc < 0)
        return rc;
    /* Who waits for others is not stuck; who asks for what it was told, or for ever, is. */
    if (task_is_open(t) && parent->draw.questions <= most_questions(j, &parent->draw))
        task_memory(parent)->progress_ms = core_now(co);
    struct poll *p = poll_add(co, req, m->wait_ms, answer_velocity);
    p->worker_id = w->id;
    p->task_id = parent->id;
    p->attempt = parent->attempt;
    p->velocity = t->id;
    poll_replace(co, p);
    return 0;
}

void sample_turn(struct coordinator *co)
{
    if (!co->velocities_old)
        return;
    co->velocities_old = false;
    for (size_t i = co->state.n_tasks; i-- > 0;) {
        const struct task *t = co->state.tasks[i];
        if (t->kind != TASK_VELOCITY)
            continue;
        const struct task *parent = state_task(&co->state, t->velocity.parent);
        if (parent != NULL && task_is_open(parent))
            continue;
        forget(co, t);
    }
}

/* The worker that last evaluated the path for a sampler has it loaded. */
static uint64_t velocity_owner(const struct job *j, const struct task *t)
{
    return j->paths[t->path].velocity_worker;
}

const struct kind kind_velocity = {
    .message = velocity_message, .apply = velocity_apply, .owner = velocity_owner};
