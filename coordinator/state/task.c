#include "coordinator/state/task.h"

/* Tasks for which a sampler elsewhere waits go first, then those for which a person waits, then
 * those that the job needs before it can train, and last those that are only compared.  Downloads
 * of data may be slow, and a phase's time is its job's choice, so neither has a fixed limit. */
const struct task_trait task_traits[TASK_KINDS] = {
    [TASK_UNSPECIFIED] = {"NONE", 2, false, 30}, [TASK_INIT] = {"INIT", 2, false, 5},
    [TASK_INGEST] = {"INGEST", 2, false, 240},   [TASK_TRAIN] = {"TRAIN", 3, false, 120},
    [TASK_EVAL] = {"EVAL", 1, true, 30},         [TASK_SAMPLE] = {"SAMPLE", 1, true, 30},
    [TASK_OUTER] = {"OUTER", 2, true, 30},       [TASK_FEATURE] = {"FEATURE", 2, false, 30},
    [TASK_CLUSTER] = {"CLUSTER", 2, false, 30},  [TASK_SPLIT] = {"SPLIT", 2, false, 30},
    [TASK_SCORE] = {"SCORE", 2, false, 30},      [TASK_VELOCITY] = {"VELOCITY", 0, true, 30},
    [TASK_ENCODE] = {"ENCODE", 2, false, 240},   [TASK_CHECK] = {"CHECK", 5, true, 120},
};

const char *task_kind_name(enum task_kind k)
{
    return task_traits[k < TASK_KINDS ? k : TASK_UNSPECIFIED].name;
}

const char *task_state_name(enum task_state s)
{
    static const char *const names[] = {"unknown", "pending", "leased",
                                        "done",    "failed",  "cancelled"};
    return names[s <= TASK_CANCELLED ? s : TASK_STATE_UNSPECIFIED];
}

bool task_wants_ema(const struct task *t)
{
    const struct task_draw *d = task_drawing(t);
    return d != NULL ? d->ema
                     : (t->kind == TASK_SCORE && t->score.ema) ||
                           (t->kind == TASK_VELOCITY && t->velocity.ema);
}

bool task_is_aside(const struct task *t)
{
    return task_traits[t->kind].aside || task_evaluates(t);
}

bool task_evaluates(const struct task *t)
{
    return (t->kind == TASK_CLUSTER && t->cluster.evaluate) ||
           (t->kind == TASK_SCORE && t->score.evaluate);
}

/* The field with the task's number, by its kind; NULL: it has none. */
static uint32_t *number_of(struct task *t)
{
    switch (t->kind) {
    case TASK_INGEST:
        return &t->ingest.url;
    case TASK_TRAIN:
    case TASK_CHECK:
        return &t->train.round;
    case TASK_EVAL:
    case TASK_SAMPLE:
        return &t->draw.version;
    case TASK_OUTER:
        return &t->outer.version;
    case TASK_CLUSTER:
        return &t->cluster.pass;
    case TASK_SPLIT:
        return &t->split.group;
    case TASK_SCORE:
        return &t->score.version;
    case TASK_VELOCITY:
        return &t->velocity.version;
    default:
        return NULL;
    }
}

uint32_t task_round(const struct task *t)
{
    const uint32_t *n = number_of((struct task *)t);
    return n != NULL ? *n : 0;
}

void task_set_round(struct task *t, uint32_t round)
{
    uint32_t *n = number_of(t);
    if (n != NULL)
        *n = round;
}

uint32_t task_replica(const struct task *t)
{
    return task_has_phase(t) ? t->train.replica : 0;
}

uint32_t task_saved_steps(const struct task *t)
{
    return t->kind == TASK_TRAIN && t->train.snapshot != NULL ? t->train.snapshot->steps : 0;
}

struct contribution *task_edit_contribution(struct task *t, const struct contribution *c)
{
    t->train.edited = true;
    return (struct contribution *)c;
}

void task_add_contribution(struct task *t, const struct contribution *c)
{
    struct task_train *p = &t->train;
    struct contribution *list =
        mem_realloc((void *)p->contributions, (p->n_contributions + 1) * sizeof(*list));
    list[p->n_contributions++] = *c;
    p->contributions = list;
    p->edited = true;
}

void task_drop_contribution(struct task *t, const struct contribution *c)
{
    struct contribution *at = task_edit_contribution(t, c);
    size_t after = t->train.n_contributions - (size_t)(c - t->train.contributions) - 1;
    memmove(at, at + 1, after * sizeof(*at));
    t->train.n_contributions--;
}

struct snapshot *snapshot_new(size_t n)
{
    struct snapshot *s = mem_alloc(sizeof(*s) + n * sizeof(s->modules[0]));
    s->n = n;
    return s;
}

void task_set_snapshot(struct task *t, struct snapshot *s)
{
    if (s == NULL && t->train.snapshot == NULL)
        return;
    mem_free((void *)t->train.snapshot);
    t->train.snapshot = s;
    t->train.snapshot_edited = true;
    t->train.doubted_by = 0;
}

void task_forget_told(struct task *t)
{
    while (t->n_told > 0)
        mem_free(t->told[--t->n_told]);
}

void task_free(struct task *t)
{
    task_forget_told(t);
    mem_free(t->ranges);
    if (task_has_phase(t)) {
        mem_free((void *)t->train.contributions);
        mem_free((void *)t->train.snapshot);
    }
    if (task_drawing(t) != NULL) {
        mem_free(t->draw.labels);
        mem_free(t->draw.prompt);
        mem_free(t->draw.text);
    }
    mem_free(t);
}
