/* SAMPLE: pictures or a text, drawn by one worker; a text comes as it is generated. */
#include "coordinator/kinds/sample.h"

#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/base/mem.h"
#include "common/base/str.h"
#include "coordinator/job/gc.h"
#include "coordinator/kinds/message.h"
#include "coordinator/kinds/result.h"
#include "coordinator/state/core.h"
#include "proto/skerry.pb-c.h"

#include <errno.h>
#include <string.h>

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

static struct grid_rec *add_grid(struct coordinator *co, struct job *j)
{
    if (j->n_grids == JOB_SAMPLES_MAX) {
        gc_drop(co, &j->grids[0].blob);
        save_grid_gone(co->store, j->grids[0].task_id);
        mem_free(j->grids[0].text);
        memmove(&j->grids[0], &j->grids[1], (JOB_SAMPLES_MAX - 1) * sizeof(*j->grids));
        j->n_grids--;
    }
    j->grids = mem_realloc(j->grids, (j->n_grids + 1) * sizeof(*j->grids));
    struct grid_rec *g = &j->grids[j->n_grids++];
    memset(g, 0, sizeof(*g));
    return g;
}

static int sample_apply(struct coordinator *co, struct job *j, struct task *t,
                        const Skerry__V1__ReportRequest *r, struct err *err)
{
    bool text = t->draw.tokens > 0;
    if (text && strlen(r->text) > TASK_TEXT_MAX)
        return err_set(err, -ERR_LIMIT, "the text has %zu bytes, at most %d are possible",
                       strlen(r->text), TASK_TEXT_MAX);
    int rc = text ? 0 : result_blob(co, r->output, "the picture", &t->output, err);
    if (rc < 0)
        return rc;
    struct grid_rec *g = add_grid(co, j);
    g->task_id = t->id;
    g->round = t->draw.version;
    g->path = t->draw.mixture ? UINT32_MAX : t->path;
    g->count = text ? 1 : t->draw.count;
    g->columns = text ? 1 : t->draw.columns;
    g->blob = t->output;
    g->text = text ? str_dup(r->text) : NULL;
    g->at_unix_ms = (int64_t)clock_wall_ms();
    save_grid(co->store, j, g);
    core_event(
        co, &(struct event){
                .kind = EVENT_SAMPLE, .job_id = j->id, .task_id = t->id, .sample = g, .text = ""});
    return 0;
}

struct task *sample_leased(struct coordinator *co, const struct worker *w, uint64_t task_id,
                           uint32_t attempt, struct err *err)
{
    struct task *t = state_task(&co->state, task_id);
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
    struct task *t = sample_leased(co, w, m->task_id, m->attempt, err);
    size_t len = strlen(m->text);
    if (t == NULL)
        return -ERR_STALE;
    if (m->offset > t->draw.text_len || m->offset + len > TASK_TEXT_MAX)
        return err_set(err, -EINVAL,
                       "text of %zu bytes at %llu, but %zu bytes have come and at most %d are kept",
                       len, (unsigned long long)m->offset, t->draw.text_len, TASK_TEXT_MAX);
    size_t end = (size_t)m->offset + len;
    if (end > t->draw.text_len) { /* what comes again changes nothing */
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

const struct kind kind_sample = {.message = sample_message, .apply = sample_apply};
