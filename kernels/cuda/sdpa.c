#include "kernels/cuda/sdpa.h"

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/sdpa_graph.h"

enum {
    /* Never dropped while the device lives: a captured graph may hold the code of any. */
    PLANS = 128,
    ALIGN = 256,
    MAX_HEADS = 65535, /* B H: engines count them along a dimension of the grid */
    /* Before it the caller had to clear the sum of dq; 9.10.0 and .1 are known to be wrong. */
    OLDEST = 90600,
    WRONG_FROM = 91000,
    WRONG_TO = 91001,
};

struct entry {
    struct sdpa_shape shape;
    struct sdpa_plan plan;
    char why[160]; /* it is declined; "" for a plan */
};

struct sdpa {
    struct cudnn_api api;
    void *handle; /* NULL when cuDNN is not there, or not wanted */
    bool started;
    int version;
    char why_off[200], why[200];
    uint64_t fused, own;
    int count;
    struct entry entries[PLANS];
};

/* The library and a handle, or a reason for none. */
static void start(struct sdpa *a)
{
    const char *wish = getenv("SKERRY_SDPA");
    struct err err = {0};
    a->started = true;
    if (wish && strcmp(wish, "own") == 0) {
        snprintf(a->why_off, sizeof a->why_off, "SKERRY_SDPA=own");
        return;
    }
    if (cudnn_open(&a->api, &err) < 0) {
        snprintf(a->why_off, sizeof a->why_off, "%.199s", err.msg);
        return;
    }
    a->version = (int)a->api.version();
    if (a->version < OLDEST || (a->version >= WRONG_FROM && a->version <= WRONG_TO)) {
        snprintf(a->why_off, sizeof a->why_off,
                 "cuDNN %d is not used: 9.6 or newer is, but not 9.10.0 or 9.10.1", a->version);
        return;
    }
    int status = a->api.create(&a->handle);
    if (status != DNN_SUCCESS) {
        a->handle = NULL;
        snprintf(a->why_off, sizeof a->why_off, "cuDNN %d does not start on this card (status %d)",
                 a->version, status);
        (void)cudaGetLastError();
    }
}

void sdpa_free(struct sdpa *a)
{
    if (!a)
        return;
    for (int i = 0; i < a->count; i++)
        sdpa_plan_drop(&a->api, &a->entries[i].plan);
    if (a->handle)
        a->api.destroy(a->handle);
    free(a);
}

void cuda_sdpa_use(const struct device *dev, struct sdpa_use *ret)
{
    const struct sdpa *a = cuda_state(dev)->sdpa;
    *ret = (struct sdpa_use){.why = ""};
    if (!a)
        return;
    ret->fused = a->fused;
    ret->own = a->own;
    ret->version = a->version;
    ret->why = a->why;
}

/* NULL: cuDNN may have it. */
static const char *unfit(const struct sdpa_shape *s)
{
    if (s->B < 1 || s->D % 8 || s->T < SDPA_LEAST)
        return "under 64 tokens, or heads of no multiple of 8 channels";
    if (s->backward && s->T % SDPA_BACKWARD_STEP)
        return "a backward of tokens that are no multiple of 128";
    if (s->D > 128)
        return "heads above 128 channels";
    if ((int64_t)s->B * s->H > MAX_HEADS)
        return "more than 65535 heads in a batch";
    return NULL;
}

static void plan(struct sdpa *a, const struct sdpa_shape *shape, struct entry *e)
{
    const struct sdpa_target to = {.api = &a->api, .handle = a->handle, .version = a->version};
    struct err err = {0};
    e->shape = *shape;
    if (sdpa_plan_make(&to, shape, &e->plan, &err) < 0)
        snprintf(e->why, sizeof e->why, "%.159s", err.msg);
    (void)cudaGetLastError(); /* an engine that could not be loaded is no error of ours */
}

/* The plan for a shape, made when it is new; NULL with a reason. */
static struct entry *find(struct sdpa *a, const struct sdpa_shape *shape, const struct stream *s,
                          const char **ret_why)
{
    struct entry *e = NULL;
    for (int i = 0; i < a->count && !e; i++)
        if (memcmp(&a->entries[i].shape, shape, sizeof *shape) == 0)
            e = &a->entries[i];
    if (!e && s->st->recording) {
        *ret_why = "a new shape inside of a recording";
        return NULL;
    }
    if (!a->started)
        start(a);
    *ret_why = !a->handle ? a->why_off : !e && a->count == PLANS ? "too many shapes" : NULL;
    if (*ret_why)
        return NULL;
    if (!e) {
        e = &a->entries[a->count++];
        plan(a, shape, e);
    }
    *ret_why = *e->why ? e->why : NULL;
    return *e->why ? NULL : e;
}

static size_t padded(size_t bytes)
{
    return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

/* Working memory for the plan, part of it named in `at`. */
static int get_room(const struct entry *e, void *at[SDPA_IDS], struct stream *s, void **ret)
{
    const struct sdpa_shape *p = &e->shape;
    const size_t rows = (size_t)p->B * (size_t)p->H * (size_t)p->T;
    const size_t work = padded((size_t)e->plan.work_bytes);
    const size_t row_sum = p->backward ? padded(rows * sizeof(float)) : 0;
    const size_t dq_sum = p->backward ? padded(rows * (size_t)p->D * sizeof(float)) : 0;
    int rc = cuda_scratch(s, work + row_sum + dq_sum, ret);
    if (rc < 0)
        return rc;
    at[SDPA_ROW_SUM] = (char *)*ret + work;
    at[SDPA_DQ_SUM] = (char *)*ret + work + row_sum;
    return 0;
}

static int declined(struct sdpa *a, const char *why)
{
    snprintf(a->why, sizeof a->why, "%s", why);
    a->own++;
    return 1;
}

static int run(struct cuda_state *st, const struct sdpa_shape *shape, bool plain,
               void *at[SDPA_IDS], struct stream *s)
{
    struct sdpa *a = st->sdpa ? st->sdpa : (st->sdpa = calloc(1, sizeof *a));
    const char *why = plain
                          ? unfit(shape)
                          : "keys apart, packed documents, lengths, a bias, a scale, or alignment";
    void *room = NULL;
    if (!a)
        return -ENOMEM;
    struct entry *e = why ? NULL : find(a, shape, s, &why);
    if (!e)
        return declined(a, why);
    int rc = get_room(e, at, s, &room);
    if (rc < 0)
        return rc;
    int status = a->api.set_stream(a->handle, s->handle);
    if (status == DNN_SUCCESS)
        status = sdpa_plan_run(&a->api, a->handle, &e->plan, at, room);
    if (status == DNN_SUCCESS) {
        a->fused++;
        return 0;
    }
    /* Whatever it began, our own kernels write all of the result; a card that broke tells them. */
    (void)cudaGetLastError();
    snprintf(e->why, sizeof e->why, "cuDNN %d refused to run (status %d)", a->version, status);
    return declined(a, e->why);
}

static bool aligned(const void *a, const void *b, const void *c, const void *d, const void *e)
{
    return (((uintptr_t)a | (uintptr_t)b | (uintptr_t)c | (uintptr_t)d | (uintptr_t)e) & 15) == 0;
}

int sdpa_fwd(const struct attention_fwd *p, struct stream *s)
{
    const int Hkv = p->Hkv ? p->Hkv : p->H;
    const struct sdpa_shape shape = {p->B, p->T, p->H, Hkv, p->D, p->causal, 0, p->lse != NULL};
    const bool plain = !p->q && !p->kv && !p->start && !p->klen && !p->bias && !(p->scale > 0) &&
                       aligned(p->qkv, p->o, p->lse, NULL, NULL);
    bf16 *q = (bf16 *)p->qkv;
    void *at[SDPA_IDS] = {
        [SDPA_Q] = q,
        [SDPA_K] = q + (ptrdiff_t)p->H * p->D,
        [SDPA_V] = q + (ptrdiff_t)(p->H + Hkv) * p->D,
        [SDPA_O] = p->o,
        [SDPA_LSE] = p->lse,
    };
    return run(s->st, &shape, plain, at, s);
}

int sdpa_bwd(const struct attention_bwd *p, struct stream *s)
{
    const int Hkv = p->Hkv ? p->Hkv : p->H;
    const struct sdpa_shape shape = {p->B, p->T, p->H, Hkv, p->D, p->causal, 1, 1};
    const ptrdiff_t k = (ptrdiff_t)p->H * p->D, v = k + (ptrdiff_t)Hkv * p->D;
    const bool plain = !p->q && !p->start && !p->klen && !(p->scale > 0) &&
                       aligned(p->qkv, p->dqkv, p->o, p->d_o, p->lse);
    bf16 *q = (bf16 *)p->qkv, *dq = p->dqkv;
    void *at[SDPA_IDS] = {
        [SDPA_Q] = q,
        [SDPA_K] = q + k,
        [SDPA_V] = q + v,
        [SDPA_O] = (void *)p->o,
        [SDPA_DO] = (void *)p->d_o,
        [SDPA_LSE] = (void *)p->lse,
        [SDPA_DQ] = dq,
        [SDPA_DK] = dq + k,
        [SDPA_DV] = dq + v,
    };
    return run(s->st, &shape, plain, at, s);
}
