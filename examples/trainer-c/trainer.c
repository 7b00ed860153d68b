/* A trainer in C: a logistic regression over bytes that predicts the next one.
 *
 *     cc -O2 -o trainer trainer.c -lskerry -lprotobuf-c -lm
 *
 * One weight matrix of 257 x 257 and a bias, trained by plain gradient descent.
 * examples/trainer-c.yaml runs it on a swarm. */
#include <err.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "libskerry/skerry.h"

#define BYTES 257 /* the last one is the end of a text */
#define BATCH 64
#define RATE 0.5f

static float weights[BYTES][BYTES], bias[BYTES];

/* The sum of the losses of a piece of text; above rate 0 it also learns. */
static double learn(const uint32_t *tokens, size_t n, float rate, uint64_t *units)
{
    double loss = 0;
    for (size_t i = 0; i + 1 < n; i++) {
        const uint32_t now = tokens[i] % BYTES, next = tokens[i + 1] % BYTES;
        float p[BYTES], most = -INFINITY, sum = 0;
        for (int b = 0; b < BYTES; b++) {
            p[b] = weights[now][b] + bias[b];
            most = p[b] > most ? p[b] : most;
        }
        for (int b = 0; b < BYTES; b++)
            sum += p[b] = expf(p[b] - most);
        loss -= (double)logf(p[next] / sum);
        for (int b = 0; rate > 0 && b < BYTES; b++) {
            const float g = p[b] / sum - (b == (int)next);
            weights[now][b] -= rate * g;
            bias[b] -= 0.01f * rate * g;
        }
        ++*units;
    }
    return loss;
}

static void load(const struct skerry *s)
{
    memcpy(weights, skerry_weights(s, 0), sizeof(weights));
    memcpy(bias, skerry_weights(s, 1), sizeof(bias));
}

static void store(const struct skerry *s)
{
    memcpy(skerry_weights(s, 0), weights, sizeof(weights));
    memcpy(skerry_weights(s, 1), bias, sizeof(bias));
}

/* One order: training changes the weights, an evaluation does not. */
static int work(struct skerry *s, const struct skerry_order *o)
{
    struct skerry_sample batch[BATCH];
    const int most = o->batch && o->batch < BATCH ? (int)o->batch : BATCH;
    const bool trains = o->kind == SKERRY_PHASE;
    struct skerry_result result = {.state_fd = -1, .picture_fd = -1};
    int n = 0;
    while ((!trains || skerry_more(s)) && (n = skerry_samples(s, batch, most)) > 0) {
        double loss = 0;
        uint64_t units = 0;
        const float rate = trains ? RATE * (float)skerry_lr_scale(s) : 0;
        for (int i = 0; i < n; i++)
            loss += learn(batch[i].data, batch[i].bytes / sizeof(uint32_t), rate, &units);
        result.loss_sum += loss;
        result.units += units;
        const struct skerry_progress p = {
            .loss = units ? (float)(loss / (double)units) : 0, .samples = (uint32_t)n, .lr = rate};
        if (skerry_step(s, &p) < 0)
            return -1;
    }
    if (trains)
        store(s);
    return n < 0 ? n : skerry_done(s, &result);
}

int main(void)
{
    const struct skerry_tensor tensors[] = {
        {.name = "weight", .dtype = SKERRY_F32, .rank = 2, .shape = {BYTES, BYTES}},
        {.name = "bias", .dtype = SKERRY_F32, .rank = 1, .shape = {BYTES}},
    };
    const struct skerry_options options = {.library = "trainer-c 1", .evaluates = true};
    struct skerry *s;
    struct skerry_order o;
    if (skerry_join(&options, tensors, 2, &s) < 0)
        errx(1, "%s", skerry_error());
    while (skerry_next(s, &o) > SKERRY_END) {
        if (o.kind == SKERRY_BEGIN) {
            store(s); /* zeros do as initial weights of a regression */
            if (skerry_done(s, NULL) < 0)
                errx(1, "%s", skerry_error());
            continue;
        }
        load(s);
        if (work(s, &o) < 0)
            errx(1, "%s", skerry_error());
    }
    skerry_leave(s);
    return 0;
}
