/* Jobs that no coordinator runs: for what is pure. */
#ifndef TESTS_UNIT_COORDINATOR_PLAIN_H
#define TESTS_UNIT_COORDINATOR_PLAIN_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/err.h"
#include "common/base/mem.h"
#include "coordinator/state/state.h"

#define HEAD                                                                                       \
    "name: q\ndata: {path: x, image_size: 16}\n"                                                   \
    "model: {type: dit, patch: 4, dim: 32, depth: 4, heads: 2}\ntrain: {batch: 6}\n"

__attribute__((unused)) static const char diloco[] = HEAD "recipe: {name: diloco, replicas: 2}\n"
                                                          "outer: {rounds: 3, steps: 2}\n";
__attribute__((unused)) static const char async[] =
    HEAD "recipe: {name: diloco, replicas: 3}\n"
         "outer: {rounds: 3, seconds: 100, async: true}\n";
/* Two levels of two modules: paths 0 and 1 share the first one's module 0. */
__attribute__((unused)) static const char dipaco[] =
    "name: q\ndata: {path: x}\n"
    "model: {type: llama, dim: 32, depth: 4, heads: 2, context: 64}\n"
    "train: {batch: 6}\n"
    "recipe: {name: dipaco, levels: [2, 2], reshard: [1, 2]}\n"
    "outer: {rounds: 3, steps: 2}\n";
__attribute__((unused)) static const char ddm[] =
    HEAD "recipe: {name: ddm, experts: 3}\nouter: {rounds: 3, steps: 2}\n";

static inline struct job *add(struct state *s, const char *yaml)
{
    struct err err = {0};
    struct job *j = state_add_job(s, 0);
    if (job_parse(yaml, strlen(yaml), "t", &j->spec, &err) < 0 ||
        recipe_check(&j->spec, &j->comp, &err) < 0)
        fail_msg("%s", err.msg);
    job_build(j, &s->next_module);
    j->state = JOB_RUNNING;
    return j;
}

/* Shards as they were cut, by letter: t trained on, h held out, r kept for routers. */
static inline void cut(struct job *j, const char *kinds)
{
    for (; *kinds != '\0'; kinds++) {
        struct shard_rec *s = job_add_shard(j);
        s->blob.size = 1;
        s->samples = 10;
        s->holdout = *kinds == 'h';
        s->router = *kinds == 'r';
    }
}

static inline int begin(void **state)
{
    static struct state s;
    state_init(&s);
    *state = &s;
    return 0;
}

static inline int end(void **state)
{
    state_release(*state);
    return 0;
}

#endif
