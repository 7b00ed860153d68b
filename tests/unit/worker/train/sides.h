/* An island and what it trains, for its tests. */
#ifndef TESTS_SIDES_H
#define TESTS_SIDES_H

#include "tests/unit/worker/tiny_encoders.h"

#include <string.h>

#include "worker/train/island_train.h"

enum { STEPS = 8, BATCH = 7, SEQ = 8 };

/* Two devices have unlike numbers of threads. */
enum { SIDE_THREADS = 3 };

/* Steps whose bits are compared: what sanitizers see in all of them they see in the first ones. */
#ifdef SKERRY_SANITIZED
enum { ROUNDS = 6 };
#else
enum { ROUNDS = 20 };
#endif

struct side {
    struct island *is;
    struct island_trainer *t;
};

static inline struct model *make_model(const struct model_spec *spec)
{
    struct model *m = NULL;
    OK(model_new(spec, &m, err));
    return m;
}

static inline struct train_options options(void)
{
    struct train_options o = tiny_options();
    o.batch = BATCH;
    o.accumulate = 2;
    o.weight_decay = 0.01;
    return o;
}

/* teach: what gives the ranks their teachers, or NULL. */
static inline struct side side_on(int threads, const char *devices, const struct model *m,
                                  const struct train_options *o, const struct pipe_plan *plan,
                                  island_job *teach)
{
    struct side s = {0};
    float *flat = tiny_weights(m, 21);
    OK(island_open(devices, threads, &s.is, err));
    OK(island_trainer_new(s.is, m, o, plan, NULL, &s.t, err));
    if (teach)
        OK(island_run(s.is, teach, s.t, err));
    OK(trainer_set(island_trainer_first(s.t), flat, err));
    trainer_position(island_trainer_first(s.t), 100, 200);
    OK(island_trainer_follow(s.t, ISLAND_ALL, err));
    mem_free(flat);
    return s;
}

/* A device alone has two: three on two cores wait for each other most of the time. */
static inline struct side side_open(const char *devices, const struct model *m,
                                    const struct train_options *o, const struct pipe_plan *plan,
                                    island_job *teach)
{
    return side_on(strchr(devices, ',') ? SIDE_THREADS : 2, devices, m, o, plan, teach);
}

static inline void close_side(struct side *s)
{
    island_trainer_free(s->t);
    island_close(s->is);
}

/* A step's samples; what they are follows from the step alone. */
struct samples {
    uint8_t images[BATCH * 3 * 6 * 6];
    int32_t labels[BATCH], partitions[BATCH];
    int32_t tokens[BATCH * (SEQ + 1)], target[BATCH * SEQ], start[BATCH * SEQ], pos[BATCH * SEQ];
    uint8_t pixels[BATCH * 3 * TINY_PIXELS * TINY_PIXELS];
    int32_t captions[BATCH * 5], lengths[BATCH];
};

static inline struct batch make_batch(const struct model_spec *spec, unsigned step, unsigned n,
                                      struct samples *s)
{
    if (model_captioned(spec)) {
        tiny_captions(spec, (uint64_t)step * BATCH, n, s->pixels, s->captions, s->lengths);
        return (struct batch){.count = n,
                              .images = s->pixels,
                              .captions = s->captions,
                              .caption_lengths = s->lengths};
    }
    if (spec->kind != MODEL_LLAMA) {
        tiny_batch(spec, (uint64_t)step * BATCH, n, s->images, s->labels);
        memcpy(s->partitions, s->labels, sizeof s->labels);
        return (struct batch){
            .count = n,
            .images = s->images,
            .labels = spec->kind == MODEL_ROUTER ? NULL : s->labels,
            .partitions = s->partitions,
        };
    }
    for (unsigned i = 0; i < n * (SEQ + 1); i++)
        s->tokens[i] = (int32_t)(rng_at_u32(3, step, i) % (uint32_t)spec->vocab);
    for (unsigned r = 0; r < n; r++)
        for (unsigned j = 0; j < SEQ; j++) {
            const unsigned at = r * SEQ + j;
            /* rows of which less and less is to be learnt, so that parts weigh differently */
            s->target[at] = j + r < SEQ ? s->tokens[r * (SEQ + 1) + j + 1] : -1;
            s->start[at] = 0;
            s->pos[at] = (int32_t)j;
        }
    return (struct batch){
        .count = n,
        .seq = SEQ,
        .tokens = s->tokens,
        .target = s->target,
        .start = s->start,
        .pos = s->pos,
    };
}

static inline int step(struct side *s, const struct model *m, unsigned i, unsigned n,
                       struct step_result *ret, struct err *err)
{
    struct samples *x = mem_alloc(sizeof *x);
    const struct batch b = make_batch(&m->spec, i, n, x);
    int rc = island_trainer_step(s->t, &b, NULL, ret, err);
    mem_free(x);
    return rc;
}

/* Batches whole, cut short, and of fewer samples than there are ranks. */
static inline unsigned count_of(unsigned i)
{
    static const unsigned counts[STEPS] = {7, 7, 4, 1, 2, 7, 3, 6};
    return counts[i % STEPS];
}

#endif
