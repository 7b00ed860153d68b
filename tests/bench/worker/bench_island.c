/* Is a step of an island as long as its profile predicts, and is the plan that is chosen the
 * fastest? Two CPU devices of one thread each train models of several shapes, by data parallelism
 * and by the best pipeline of the planner, in turns; cascades by the best of each order.  Prints
 * figures as JSON lines, cases on stderr. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/base/file.h"
#include "common/base/mem.h"
#include "worker/pipe/planner.h"
#include "worker/train/profile.h"

enum { TURNS = 7, WAYS = 2, WAYS_MAX = PIPE_ORDERS, CLASSES = 4 };

struct example {
    const char *name;
    struct model_spec spec;
    int batch;
};

#define DIT(C, N, S)                                                                               \
    {                                                                                              \
        .channels = 3, .image = (S), .patch = 2, .dim = (C), .depth = (N), .heads = (C) / 32,      \
        .mlp = 4 * (C), .classes = CLASSES, .cut = {                                               \
            .n_levels = 1                                                                          \
        }                                                                                          \
    }
#define LLAMA(C, N, T)                                                                             \
    {                                                                                              \
        .kind = MODEL_LLAMA, .dim = (C), .depth = (N), .heads = (C) / 32, .kv_heads = (C) / 32,    \
        .mlp = 3 * (C), .vocab = 256, .context = (T), .rope_theta = 1e4f, .norm_eps = 1e-5f,       \
        .cut = {                                                                                   \
            .n_levels = 1                                                                          \
        }                                                                                          \
    }

static const struct example examples[] = {
    {"dit 128 x 4, batch 8", DIT(128, 4, 16), 8},
    {"dit 256 x 4, batch 4", DIT(256, 4, 16), 4},
    {"dit 384 x 6, batch 2", DIT(384, 6, 16), 2},
    {"dit 384 x 6, batch 8", DIT(384, 6, 16), 8},
    {"dit 768 x 4, batch 2", DIT(768, 4, 8), 2},
    {"llama 256 x 4, batch 8", LLAMA(256, 4, 64), 8},
    {"llama 512 x 4, batch 4", LLAMA(512, 4, 64), 4},
    {"llama 768 x 4, batch 2", LLAMA(768, 4, 64), 2},
};

/* A small base and an upscaler of a third of its work, or of twice. */
#define CASCADE(C, N, U, K)                                                                        \
    {                                                                                              \
        .channels = 3, .image = 8, .patch = 1, .dim = (C), .depth = (N), .heads = (C) / 32,        \
        .mlp = 4 * (C), .classes = CLASSES,                                                        \
        .upscaler = {.dim = (U),                                                                   \
                     .depth = (K),                                                                 \
                     .heads = (U) / 32,                                                            \
                     .mlp = 4 * (U),                                                               \
                     .image = 32,                                                                  \
                     .patch = 4,                                                                   \
                     .noise = 0.1f},                                                               \
        .cut = {                                                                                   \
            .n_levels = 1                                                                          \
        }                                                                                          \
    }

static const struct example cascades[] = {
    {"cascade 256 x 4, 256 x 2, batch 8", CASCADE(256, 4, 256, 2), 8},
    {"cascade 256 x 3, 384 x 3, batch 4", CASCADE(256, 3, 384, 3), 4},
};

static void die(const struct err *err)
{
    (void)fprintf(stderr, "bench_island: %s\n", err->msg);
    exit(1);
}

#define OK(call)                                                                                   \
    do {                                                                                           \
        if ((call) < 0)                                                                            \
            die(&err);                                                                             \
    } while (0)

/* Images or rows of zeros. */
static struct batch make_batch(const struct model_spec *s, int n, void *zeros, int32_t *pos)
{
    struct batch b = {.count = (unsigned)n, .images = zeros, .labels = zeros};
    if (!model_is_text(s))
        return b;
    for (int i = 0; i < n * s->context; i++)
        pos[i] = i % s->context;
    return (struct batch){.count = (unsigned)n,
                          .seq = (unsigned)s->context,
                          .tokens = zeros,
                          .start = zeros,
                          .target = zeros,
                          .pos = pos};
}

/* A way of training it, with what was predicted and measured. */
struct way {
    struct planner_candidate plan;
    struct train_options opt;
    struct island_trainer *t;
    double seconds;
};

static void plan(const struct costs *costs, const struct train_options *opt, enum pipe_order order,
                 struct way *w)
{
    struct err err = {0};
    struct planner_options o = {.samples = opt->batch, .width = 1, .orders = PLANNER_BIT(order)};
    struct planner_result r;
    for (int i = 1; i <= (order == PIPE_DATA ? 1 : opt->batch); i *= 2)
        o.micros[o.n_micros++] = i;
    OK(planner_search(costs, &o, &r, &err));
    w->plan = r.of[order];
    w->plan.schedule = (struct pipe_schedule){0};
    planner_release(&r);
    w->opt = *opt;
    w->opt.accumulate = w->plan.plan.cuts[0].micros;
}

static void make(struct island *is, const struct model *m, const struct costs *costs, struct way *w,
                 bool data)
{
    struct err err = {0};
    float *flat = model_flat_new(m);
    model_init(m, 1, flat);
    OK(island_trainer_new(is, m, &w->opt, data ? NULL : &w->plan.plan, costs, &w->t, &err));
    OK(trainer_set(island_trainer_first(w->t), flat, &err));
    OK(island_trainer_follow(w->t, ISLAND_ALL, &err));
    w->seconds = INFINITY;
    mem_free(flat);
}

static void take_turns(struct way *ways, int n, const struct batch *b)
{
    struct err err = {0};
    struct step_result r;
    for (int i = 0; i < TURNS; i++)
        for (int k = 0; k < n; k++) {
            OK(island_trainer_step(ways[k].t, b, NULL, &r,
                                   &err)); /* the caches are its own again */
            const uint64_t begun = clock_now_ns();
            OK(island_trainer_step(ways[k].t, b, NULL, &r, &err));
            ways[k].seconds = fmin(ways[k].seconds, (double)(clock_now_ns() - begun) / 1e9);
        }
}

/* As a replica chooses: by prediction, or where that is close by what a few steps take. */
static bool chooses_pipeline(struct island *is, const struct model *m, const struct way ways[WAYS])
{
    double s[WAYS] = {ways[0].plan.seconds, ways[1].plan.seconds};
    struct err err = {0};
    const double off = s[0] > s[1] ? s[0] / s[1] : s[1] / s[0];
    for (int k = 0; k < WAYS && off < PROFILE_CLOSE; k++) {
        struct profile_time time;
        OK(profile_try(is, m, &ways[k].opt, &ways[k].plan.plan, NULL, &time, &err));
        s[k] = time.least;
    }
    return s[1] < (1 - PLANNER_SAME) * s[0];
}

/* How far off the worst prediction is, and of two ways the chosen over the better one. */
static void measure(const struct example *x, const enum pipe_order *orders, int n,
                    const char *folder, double *off, double *chosen)
{
    struct err err = {0};
    struct island *is = NULL;
    struct model *m = NULL;
    struct costs costs;
    struct way ways[WAYS_MAX] = {0};
    const struct train_options opt = {.batch = x->batch,
                                      .accumulate = 1,
                                      .lr = 1e-4,
                                      .beta1 = 0.9,
                                      .beta2 = 0.999,
                                      .eps = 1e-8,
                                      .clip = 1,
                                      .precision = NET_F32};
    const size_t side = (size_t)model_drawn_side(&x->spec);
    const size_t each =
        3 * side * side + (size_t)(x->spec.context + 1) * sizeof(int32_t) + sizeof(int32_t);
    void *zeros = mem_alloc_array((size_t)x->batch, each);
    int32_t *pos = mem_alloc_array((size_t)x->batch * (size_t)(x->spec.context + 1), sizeof *pos);
    const struct batch b = make_batch(&x->spec, x->batch, zeros, pos);
    OK(model_new(&x->spec, &m, &err));
    OK(island_open("cpu,cpu", 2, &is, &err));
    OK(profile_get(is, m, &opt, UINT64_MAX, folder, &costs, &err));
    for (int k = 0; k < n; k++)
        plan(&costs, &opt, orders[k], &ways[k]);
    const bool pipe = n == WAYS && chooses_pipeline(is, m, ways);
    for (int k = 0; k < n; k++)
        make(is, m, &costs, &ways[k], k == 0);
    take_turns(ways, n, &b);
    *off = 1;
    for (int k = 0; k < n; k++) {
        const double ratio = ways[k].seconds / ways[k].plan.seconds;
        *off = fmax(*off, fmax(ratio, 1 / ratio));
        (void)fprintf(stderr, "%-24s %-5s %2d micro-batches: %.4f s, predicted %.4f (%.2f x)\n",
                      x->name, pipe_plan_name(&ways[k].plan.plan), ways[k].opt.accumulate,
                      ways[k].seconds, ways[k].plan.seconds, ratio);
        island_trainer_free(ways[k].t);
    }
    *chosen = ways[pipe].seconds / fmin(ways[0].seconds, ways[1].seconds);
    costs_release(&costs);
    island_close(is);
    model_free(m);
    mem_free(zeros);
    mem_free(pos);
}

int main(void)
{
    char folder[] = "/tmp/bench-island-XXXXXX";
    struct file_names names;
    static const enum pipe_order orders[WAYS_MAX] = {PIPE_DATA, PIPE_1F1B, PIPE_DIVIDED,
                                                     PIPE_BIDIRECTIONAL, PIPE_SPLIT};
    double off = 1, chosen = 1, chains = 1;
    const int n = (int)(sizeof examples / sizeof *examples);
    if (!mkdtemp(folder))
        return 1;
    for (int i = 0; i < n; i++) {
        double a, c;
        measure(&examples[i], orders, WAYS, folder, &a, &c);
        off = fmax(off, a);
        chosen = fmax(chosen, c);
    }
    for (int i = 0; i < (int)(sizeof cascades / sizeof *cascades); i++) {
        double a, c;
        measure(&cascades[i], orders, WAYS_MAX, folder, &a, &c);
        chains = fmax(chains, a);
    }
    printf("{\"name\": \"pipeline_chains_predicted\", \"value\": %.4f, \"note\": \"worst of %d "
           "cascades, data parallelism and each order of two chains\"}\n",
           chains, (int)(sizeof cascades / sizeof *cascades));
    printf("{\"name\": \"pipeline_predicted\", \"value\": %.4f, \"note\": \"worst of %d models, "
           "data parallelism and 1F1B, two CPU devices\"}\n",
           off, n);
    printf("{\"name\": \"pipeline_auto\", \"value\": %.4f, \"note\": \"worst of %d models\"}\n",
           chosen, n);
    if (file_list(folder, 64, &names, NULL) == 0) {
        for (size_t i = 0; i < names.n; i++) {
            char *path = file_join(folder, names.items[i]);
            (void)remove(path);
            mem_free(path);
        }
        file_names_release(&names);
    }
    return remove(folder) == 0 ? 0 : 1;
}
