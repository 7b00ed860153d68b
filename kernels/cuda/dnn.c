#include "kernels/cuda/dnn.h"

#include "common/base/base.h"

enum {
    /* Enough for pictures of 17 shapes, in groups of four sizes, with 19 convolutions each. */
    PLANS = 2048,
    ALIGN = 256,
    /* Before it the caller had to clear the sum of dq; 9.10.0 and .1 are known to be wrong. */
    OLDEST = 90600,
    WRONG_FROM = 91000,
    WRONG_TO = 91001,
};

#define HELD UINT64_MAX

struct entry {
    struct dnn_call call; /* kind and shape */
    uint64_t used;        /* by tick; HELD: a captured graph may hold its code */
    struct dnn_plan plan;
    char why[160];  /* it is declined; "" for a plan */
    bool unplanned; /* there is no plan yet, or there was no memory for one */
    unsigned calls; /* while unplanned, outside of recordings */
};

struct dnn {
    struct cudnn_api api;
    void *handle;   /* NULL when cuDNN is not there */
    bool started;   /* or never will */
    unsigned calls; /* while not */
    int version;
    char why_off[200], why[200];
    uint64_t fused, own, tick;
    int count;
    struct entry *entries[PLANS];
};

/* What lacked memory is tried again at the second, fourth .. call: often before a step is recorded,
 * rarely later, since planning takes up to a second. */
static bool is_due(unsigned calls)
{
    return (calls & (calls - 1)) == 0;
}

/* Opens the library and a handle, or keeps the reason for having none. */
static void start(struct dnn *a, const struct stream *s)
{
    struct err err = {0};
    a->started = true;
    if (!a->version && dnn_open(&a->api, &err) < 0) {
        snprintf(a->why_off, sizeof a->why_off, "%.199s", err.msg);
        return;
    }
    a->version = (int)a->api.version();
    if (a->version < OLDEST || (a->version >= WRONG_FROM && a->version <= WRONG_TO)) {
        snprintf(a->why_off, sizeof a->why_off,
                 "cuDNN %d is not used: 9.6 or newer is, but not 9.10.0 or 9.10.1", a->version);
        return;
    }
    if (!is_due(++a->calls)) {
        a->started = false;
        return;
    }
    const int status = a->api.create(&a->handle);
    if (status == DNN_SUCCESS)
        return;
    a->handle = NULL;
    snprintf(a->why_off, sizeof a->why_off, "cuDNN %d does not start on this card (status %d)",
             a->version, status);
    (void)cudaGetLastError();
    a->started = !dnn_lacks_memory(status) && cuda_blame(s->st) == 0;
}

void dnn_free(struct dnn *a)
{
    if (!a)
        return;
    for (int i = 0; i < a->count; i++) {
        dnn_plan_drop(&a->api, &a->entries[i]->plan);
        free(a->entries[i]);
    }
    if (a->handle)
        a->api.destroy(a->handle);
    free(a);
}

void cuda_dnn_use(const struct device *dev, struct dnn_use *ret)
{
    const struct dnn *a = cuda_state(dev)->dnn;
    *ret = (struct dnn_use){.why = ""};
    if (!a)
        return;
    ret->fused = a->fused;
    ret->own = a->own;
    ret->version = a->version;
    ret->why = a->why;
}

/* Why the user does not want cuDNN for this kind; NULL: the user does. */
static const char *unwanted(enum dnn_kind kind)
{
    const char *wish = getenv(kind == DNN_SDPA ? "SKERRY_SDPA" : "SKERRY_CONV");
    if (!wish || strcmp(wish, "own") != 0)
        return NULL;
    return kind == DNN_SDPA ? "SKERRY_SDPA=own" : "SKERRY_CONV=own";
}

static bool same(const struct dnn_call *a, const struct dnn_call *b)
{
    if (a->kind != b->kind)
        return false;
    return a->kind == DNN_SDPA ? memcmp(&a->shape.sdpa, &b->shape.sdpa, sizeof a->shape.sdpa) == 0
                               : memcmp(&a->shape.conv, &b->shape.conv, sizeof a->shape.conv) == 0;
}

static void plan(struct dnn *a, struct entry *e, const struct stream *s)
{
    const struct dnn_target to = {.api = &a->api, .handle = a->handle, .version = a->version};
    struct err err = {0};
    int rc = e->call.kind == DNN_SDPA ? sdpa_plan_make(&to, &e->call.shape.sdpa, &e->plan, &err)
                                      : conv_plan_make(&to, &e->call.shape.conv, &e->plan, &err);
    (void)cudaGetLastError(); /* an engine that could not be loaded is no error of ours */
    e->unplanned = rc == -ENOMEM || (rc < 0 && cuda_blame(s->st) == -ENOMEM);
    snprintf(e->why, sizeof e->why, "%.159s", rc < 0 ? err.msg : "");
}

/* An entry without a plan, in place of the longest unused one if there are PLANS; NULL with a
 * reason. */
static struct entry *new_entry(struct dnn *a, const struct stream *s, const char **ret_why)
{
    struct entry *e = NULL;
    if (a->count < PLANS) {
        e = calloc(1, sizeof *e);
        *ret_why = "no memory for a plan";
        if (e)
            a->entries[a->count++] = e;
        return e;
    }
    for (int i = 0; i < PLANS; i++)
        if (a->entries[i]->used != HELD && (!e || a->entries[i]->used < e->used))
            e = a->entries[i];
    *ret_why = "too many shapes";
    if (!e)
        return NULL;
    (void)cudaStreamSynchronize(s->handle); /* its last run may still be on the way */
    dnn_plan_drop(&a->api, &e->plan);
    *e = (struct entry){0};
    return e;
}

/* The plan for a shape, made when it is new; NULL with a reason. */
static struct entry *find(struct dnn *a, const struct dnn_call *call, const struct stream *s,
                          const char **ret_why)
{
    struct entry *e = NULL;
    for (int i = 0; i < a->count && !e; i++)
        if (same(&a->entries[i]->call, call))
            e = a->entries[i];
    if (!e && s->st->recording) {
        *ret_why = "a new shape inside of a recording";
        return NULL;
    }
    if (!a->started)
        start(a, s);
    *ret_why = a->handle ? NULL : a->why_off;
    if (*ret_why)
        return NULL;
    if (!e) {
        e = new_entry(a, s, ret_why);
        if (!e)
            return NULL;
        e->call = *call;
        e->unplanned = true;
    }
    const unsigned calls = e->unplanned && !s->st->recording ? ++e->calls : 0;
    if (calls > 0 && is_due(calls))
        plan(a, e, s);
    if (call->kind == DNN_SDPA || s->st->recording)
        e->used = HELD;
    else if (e->used != HELD)
        e->used = ++a->tick;
    *ret_why = *e->why ? e->why : NULL;
    return *e->why ? NULL : e;
}

static size_t padded(size_t bytes)
{
    return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

/* Working memory for the plan, part of it for tensors. */
static int get_room(const struct entry *e, struct dnn_call *call, struct stream *s, void **ret)
{
    size_t bytes = padded((size_t)e->plan.work_bytes);
    for (int id = 0; id < DNN_IDS; id++)
        bytes += padded(call->room[id]);
    int rc = cuda_scratch(s, bytes, ret);
    if (rc < 0)
        return rc;
    char *at = (char *)*ret + padded((size_t)e->plan.work_bytes);
    for (int id = 0; id < DNN_IDS; id++) {
        if (call->room[id])
            call->at[id] = at;
        at += padded(call->room[id]);
    }
    return 0;
}

static int declined(struct dnn *a, const char *why)
{
    snprintf(a->why, sizeof a->why, "%s", why);
    a->own++;
    return 1;
}

int dnn_run(struct dnn_call *call, struct stream *s)
{
    struct cuda_state *st = s->st;
    struct dnn *a = st->dnn ? st->dnn : (st->dnn = calloc(1, sizeof *a));
    const char *why = call->unfit ? call->unfit : unwanted(call->kind);
    void *room = NULL;
    if (!a)
        return -ENOMEM;
    struct entry *e = why ? NULL : find(a, call, s, &why);
    if (!e)
        return declined(a, why);
    int rc = get_room(e, call, s, &room);
    if (rc < 0)
        return rc;
    int status = a->api.set_stream(a->handle, s->handle);
    if (status == DNN_SUCCESS)
        status = dnn_plan_run(&a->api, a->handle, &e->plan, call->at, room);
    if (status == DNN_SUCCESS) {
        a->fused++;
        return 0;
    }
    /* Whatever it began, our own kernels write all of the result; a card that broke tells them. */
    char refusal[sizeof e->why];
    (void)cudaGetLastError();
    snprintf(refusal, sizeof refusal, "cuDNN %d refused to run (status %d)", a->version, status);
    if (!dnn_lacks_memory(status) && cuda_blame(st) == 0) /* else the next call may have it */
        memcpy(e->why, refusal, sizeof refusal);
    return declined(a, refusal);
}
