/* A device that is as far from the host as a card: it has memory of its own, does what is queued
 * only when it is waited for, and records graphs.  What it computes is the CPU's. */
#ifndef TESTS_UNIT_WORKER_LAZY_DEVICE_H
#define TESTS_UNIT_WORKER_LAZY_DEVICE_H

#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <errno.h>

#include "common/base/err.h"
#include "kernels/kernels.h"

struct lazy_work {
    struct lazy_work *next;
    void (*run)(const void *arg);
    max_align_t arg[];
};

struct lazy_list {
    struct lazy_work *first, **end;
};

struct graph {
    struct lazy_list list;
};

static struct lazy {
    struct device dev, *cpu;
    struct lazy_list queue;
    struct graph *recording;
    bool spoiled;   /* something in the recording could not be recorded */
    bool refuse;    /* no recording succeeds */
    int lacks;      /* recordings to come that lack memory */
    bool move_next; /* the next launch finds that memory has moved */
    int rc;         /* first failure of work done */
    int syncs, begins, launches, graphs;
} lazy;

static inline void lazy_clear(struct lazy_list *l)
{
    l->first = NULL;
    l->end = &l->first;
}

/* Queues or records. */
static inline int lazy_put(void (*run)(const void *arg), const void *arg, size_t bytes)
{
    struct lazy_list *l = lazy.recording ? &lazy.recording->list : &lazy.queue;
    struct lazy_work *w = malloc(sizeof *w + bytes);
    assert_non_null(w);
    w->next = NULL;
    w->run = run;
    memcpy(w->arg, arg, bytes);
    *l->end = w;
    l->end = &w->next;
    return 0;
}

static inline void lazy_run(void)
{
    while (lazy.queue.first) {
        struct lazy_work *w = lazy.queue.first;
        lazy.queue.first = w->next;
        w->run(w->arg);
        free(w);
    }
    lazy_clear(&lazy.queue);
}

static inline void lazy_note(int rc)
{
    if (rc < 0 && lazy.rc == 0)
        lazy.rc = rc;
}

/* An operation of the table with these types of arguments between device and stream. */
#define LAZY_CALL(op, ...) lazy_note(lazy.cpu->ops->op(lazy.cpu, __VA_ARGS__, NULL))
#define LAZY_S(op, args)                                                                           \
    static void run_##op(const void *v)                                                            \
    {                                                                                              \
        LAZY_CALL(op, (const struct args *)v);                                                     \
    }                                                                                              \
    static int lazy_##op(struct device *dev, const struct args *p, struct stream *s)               \
    {                                                                                              \
        return lazy_put(run_##op, p, sizeof *p);                                                   \
    }
#define LAZY_P(op) LAZY_S(op, op)
#define LAZY_OP(op, declare, fields, values, unpack)                                               \
    struct args_##op {                                                                             \
        fields                                                                                     \
    };                                                                                             \
    static void run_##op(const void *v)                                                            \
    {                                                                                              \
        const struct args_##op *p = v;                                                             \
        LAZY_CALL(op, unpack);                                                                     \
    }                                                                                              \
    static int lazy_##op(struct device *dev, declare, struct stream *s)                            \
    {                                                                                              \
        const struct args_##op p = {values};                                                       \
        return lazy_put(run_##op, &p, sizeof p);                                                   \
    }
#define COMMA ,
#define LAZY3(op, A, B, C)                                                                         \
    LAZY_OP(op, A a COMMA B b COMMA C c, A a; B b; C c;                                            \
            , a COMMA b COMMA c, p->a COMMA p->b COMMA p->c)
#define LAZY4(op, A, B, C, D)                                                                      \
    LAZY_OP(op, A a COMMA B b COMMA C c COMMA D d, A a; B b; C c; D d;                             \
            , a COMMA b COMMA c COMMA d, p->a COMMA p->b COMMA p->c COMMA p->d)
#define LAZY5(op, A, B, C, D, E)                                                                   \
    LAZY_OP(op, A a COMMA B b COMMA C c COMMA D d COMMA E e, A a; B b; C c; D d; E e;              \
            , a COMMA b COMMA c COMMA d COMMA e, p->a COMMA p->b COMMA p->c COMMA p->d COMMA p->e)
#define LAZY6(op, A, B, C, D, E, F)                                                                \
    LAZY_OP(op, A a COMMA B b COMMA C c COMMA D d COMMA E e COMMA F f, A a; B b; C c; D d; E e;    \
            F f;, a COMMA b COMMA c COMMA d COMMA e COMMA f,                                       \
                p->a COMMA p->b COMMA p->c COMMA p->d COMMA p->e COMMA p->f)
#define LAZY7(op, A, B, C, D, E, F, G)                                                             \
    LAZY_OP(op, A a COMMA B b COMMA C c COMMA D d COMMA E e COMMA F f COMMA G g, A a; B b; C c;    \
            D d; E e; F f; G g;                                                                    \
            , a COMMA b COMMA c COMMA d COMMA e COMMA f COMMA g,                                   \
            p->a COMMA p->b COMMA p->c COMMA p->d COMMA p->e COMMA p->f COMMA p->g)
#define LAZY8(op, A, B, C, D, E, F, G, H)                                                          \
    LAZY_OP(op, A a COMMA B b COMMA C c COMMA D d COMMA E e COMMA F f COMMA G g COMMA H h, A a;    \
            B b; C c; D d; E e; F f; G g; H h;                                                     \
            , a COMMA b COMMA c COMMA d COMMA e COMMA f COMMA g COMMA h,                           \
            p->a COMMA p->b COMMA p->c COMMA p->d COMMA p->e COMMA p->f COMMA p->g COMMA p->h)
#define LAZY9(op, A, B, C, D, E, F, G, H, I)                                                       \
    LAZY_OP(op,                                                                                    \
            A a COMMA B b COMMA C c COMMA D d COMMA E e COMMA F f COMMA G g COMMA H h COMMA I i,   \
            A a;                                                                                   \
            B b; C c; D d; E e; F f; G g; H h; I i;                                                \
            , a COMMA b COMMA c COMMA d COMMA e COMMA f COMMA g COMMA h COMMA i,                   \
            p->a COMMA p->b COMMA p->c COMMA p->d COMMA p->e COMMA p->f COMMA p->g COMMA           \
                p->h COMMA p->i)

LAZY_P(matmul)
LAZY_P(adaln_fwd)
LAZY_P(adaln_bwd)
LAZY_P(rmsnorm_fwd)
LAZY_P(rmsnorm_bwd)
LAZY_S(headnorm_fwd, headnorm)
LAZY_S(headnorm_bwd, headnorm)
LAZY_P(rope)
LAZY_P(attention_fwd)
LAZY_P(attention_bwd)
LAZY_P(cross_entropy)
LAZY_P(adamw)
typedef enum dtype lazy_dtype;
typedef enum patch_order lazy_order;
LAZY4(silu_fwd, void *, const float *, int64_t, lazy_dtype)
LAZY6(silu_bwd, float *, const void *, const float *, int64_t, lazy_dtype, bool)
LAZY5(swiglu_fwd, void *, const void *, int64_t, int64_t, lazy_dtype)
LAZY6(swiglu_bwd, void *, const void *, const void *, int64_t, int64_t, lazy_dtype)
LAZY7(embed_fwd, float *, const float *, const int32_t *, int, int, int, bool)
LAZY6(embed_bwd, float *, const float *, const int32_t *, int, int, int)
LAZY5(timestep_embed, void *, const float *, int, int, lazy_dtype)
LAZY9(patchify, void *, const float *, int, int, int, int, int, lazy_order, lazy_dtype)
LAZY9(unpatchify, float *, const void *, int, int, int, int, int, lazy_order, lazy_dtype)
LAZY6(image_from_u8, float *, const uint8_t *, int, int, int, int)
LAZY7(flow_mix, float *, float *, const float *, const float *, const float *, int, int64_t)
LAZY8(mse, float *, float *, const float *, const float *, const float *, float, int, int64_t)
LAZY4(sumsq, double *, const float *, const struct vec_span *, int)
LAZY4(clip_scale, float *, const double *, const double *, float)
LAZY6(axpby, float *, float, const float *, float, const float *, int64_t)
LAZY5(cast, void *, lazy_dtype, const void *, lazy_dtype, int64_t)
LAZY4(add_row, float *, const float *, int, int64_t)
LAZY4(sum_rows, float *, const float *, int, int64_t)
LAZY5(normal, float *, uint64_t, const uint64_t *, int, int64_t)
LAZY3(sum, double *, const float *, int64_t)
LAZY3(sum_f64, double *, const double *, int64_t)

struct args_copy {
    void *dst;
    const void *src; /* NULL: zeros */
    size_t bytes;
};

static inline void run_copy(const void *v)
{
    const struct args_copy *p = v;
    if (p->bytes && p->src)
        memcpy(p->dst, p->src, p->bytes);
    else if (p->bytes)
        memset(p->dst, 0, p->bytes);
}

static inline int lazy_copy(struct device *dev, void *dst, const void *src, size_t bytes,
                            enum copy_kind kind, struct stream *s)
{
    const struct args_copy p = {dst, src, bytes};
    lazy.spoiled |= kind != COPY_DEVICE;
    return lazy_put(run_copy, &p, sizeof p);
}

static inline int lazy_zero(struct device *dev, void *dst, size_t bytes, struct stream *s)
{
    const struct args_copy p = {dst, NULL, bytes};
    return lazy_put(run_copy, &p, sizeof p);
}

static inline int lazy_alloc(struct device *dev, size_t bytes, void **ret, struct err *err)
{
    lazy.spoiled = true;
    return lazy.cpu->ops->alloc(lazy.cpu, bytes, ret, err);
}

static inline void lazy_free(struct device *dev, void *p)
{
    assert_null(lazy.recording);
    lazy_run();
    lazy.cpu->ops->free(lazy.cpu, p);
}

static inline int lazy_stream_new(struct device *dev, struct stream **ret, struct err *err)
{
    *ret = NULL;
    return 0;
}

static inline void lazy_stream_free(struct device *dev, struct stream *s)
{
}

static inline int lazy_sync(struct device *dev, struct stream *s, struct err *err)
{
    lazy.spoiled = true;
    if (lazy.recording)
        return err_set(err, -EBUSY, "waited for a recording");
    lazy.syncs++;
    lazy_run();
    const int rc = lazy.rc;
    lazy.rc = 0;
    return rc < 0 ? err_set(err, rc, "queued work failed") : 0;
}

static inline int lazy_graph_begin(struct device *dev, struct stream *s, struct err *err)
{
    assert_null(lazy.recording);
    lazy.begins++;
    lazy.recording = calloc(1, sizeof *lazy.recording);
    assert_non_null(lazy.recording);
    lazy_clear(&lazy.recording->list);
    lazy.spoiled = lazy.refuse;
    lazy.graphs++;
    return 0;
}

static inline void lazy_graph_free(struct device *dev, struct graph *g)
{
    if (!g)
        return;
    lazy_run();
    lazy.graphs--;
    while (g->list.first) {
        struct lazy_work *w = g->list.first;
        g->list.first = w->next;
        free(w);
    }
    free(g);
}

static inline int lazy_graph_end(struct device *dev, struct stream *s, struct graph **ret,
                                 struct err *err)
{
    *ret = lazy.recording;
    lazy.recording = NULL;
    const bool lacks = lazy.lacks > 0 && lazy.lacks--;
    if (!lazy.spoiled && !lacks)
        return 0;
    lazy_graph_free(dev, *ret);
    *ret = NULL;
    return err_set(err, lacks ? -ENOMEM : -EBUSY, "a graph was spoiled");
}

static inline void run_graph(const void *v)
{
    for (struct lazy_work *w = (*(struct graph *const *)v)->list.first; w; w = w->next)
        w->run(w->arg);
}

static inline int lazy_graph_launch(struct device *dev, struct graph *g, struct stream *s)
{
    if (lazy.move_next) {
        lazy.move_next = false;
        return -ESTALE;
    }
    lazy.launches++;
    return lazy_put(run_graph, &g, sizeof g);
}

static const struct kernel_ops lazy_ops = {
    .alloc = lazy_alloc,
    .free = lazy_free,
    .copy = lazy_copy,
    .zero = lazy_zero,
    .stream_new = lazy_stream_new,
    .stream_free = lazy_stream_free,
    .sync = lazy_sync,
    .alloc_host = lazy_alloc,
    .free_host = lazy_free,
    .graph_begin = lazy_graph_begin,
    .graph_end = lazy_graph_end,
    .graph_launch = lazy_graph_launch,
    .graph_free = lazy_graph_free,
    .matmul = lazy_matmul,
    .adaln_fwd = lazy_adaln_fwd,
    .adaln_bwd = lazy_adaln_bwd,
    .rmsnorm_fwd = lazy_rmsnorm_fwd,
    .rmsnorm_bwd = lazy_rmsnorm_bwd,
    .headnorm_fwd = lazy_headnorm_fwd,
    .headnorm_bwd = lazy_headnorm_bwd,
    .rope = lazy_rope,
    .attention_fwd = lazy_attention_fwd,
    .attention_bwd = lazy_attention_bwd,
    .cross_entropy = lazy_cross_entropy,
    .adamw = lazy_adamw,
    .silu_fwd = lazy_silu_fwd,
    .silu_bwd = lazy_silu_bwd,
    .swiglu_fwd = lazy_swiglu_fwd,
    .swiglu_bwd = lazy_swiglu_bwd,
    .embed_fwd = lazy_embed_fwd,
    .embed_bwd = lazy_embed_bwd,
    .timestep_embed = lazy_timestep_embed,
    .patchify = lazy_patchify,
    .unpatchify = lazy_unpatchify,
    .image_from_u8 = lazy_image_from_u8,
    .flow_mix = lazy_flow_mix,
    .mse = lazy_mse,
    .sumsq = lazy_sumsq,
    .clip_scale = lazy_clip_scale,
    .axpby = lazy_axpby,
    .cast = lazy_cast,
    .add_row = lazy_add_row,
    .sum_rows = lazy_sum_rows,
    .normal = lazy_normal,
    .sum = lazy_sum,
    .sum_f64 = lazy_sum_f64,
};

static inline struct device *lazy_open(struct device *cpu)
{
    lazy = (struct lazy){.cpu = cpu};
    lazy.dev = (struct device){.ops = &lazy_ops, .name = "lazy", .threads = 1, .graphs = true};
    lazy_clear(&lazy.queue);
    return &lazy.dev;
}

#endif
