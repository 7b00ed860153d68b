#include "tests/sim/spec.h"

#include "tests/sim/sim.h"

static const char diloco[] = "name: diloco\nseed: 3\n"
                             "data: {path: x, image_size: 16}\n"
                             "model: {type: dit, patch: 4, dim: 32, depth: 1, heads: 2}\n"
                             "train: {batch: 4, lr: 0.1}\nrecipe: {name: diloco, replicas: 3}\n"
                             "outer: {rounds: 3, steps: 4}\n"
                             "eval: {every: 1, samples: 8}\nsample: {count: 4}\n";
static const char elastic[] = "name: elastic\nseed: 4\n"
                              "data: {path: x, image_size: 16}\n"
                              "model: {type: dit, patch: 4, dim: 32, depth: 1, heads: 2}\n"
                              "train: {batch: 4, lr: 0.1}\n"
                              "recipe: {name: diloco, replicas: auto, moments: travel}\n"
                              "outer: {rounds: 4, steps: 4}\nsample: {count: 4}\n";
static const char quorum[] = "name: quorum\nseed: 5\n"
                             "data: {path: x, image_size: 16}\n"
                             "model: {type: dit, patch: 4, dim: 32, depth: 1, heads: 2}\n"
                             "train: {batch: 4, lr: 0.1}\nrecipe: {name: diloco, replicas: 3}\n"
                             "outer: {rounds: 5, steps: 4, quorum: 0.6, grace: 2}\n"
                             "sample: {count: 4}\n";
static const char timed[] = "name: timed\nseed: 8\n"
                            "data: {path: x, image_size: 16}\n"
                            "model: {type: dit, patch: 4, dim: 32, depth: 1, heads: 2}\n"
                            "train: {batch: 4, lr: 0.1}\n"
                            "recipe: {name: diloco, replicas: auto}\n"
                            "outer: {rounds: 5, seconds: 10, quorum: 0.5, grace: 4}\n"
                            "sample: {count: 4}\n";
static const char async[] = "name: async\nseed: 6\n"
                            "data: {path: x, image_size: 16}\n"
                            "model: {type: dit, patch: 4, dim: 32, depth: 1, heads: 2}\n"
                            "train: {batch: 4, lr: 0.1}\nrecipe: {name: diloco, replicas: 3}\n"
                            "outer: {rounds: 3, steps: 4, async: true}\nsample: {count: 4}\n";
static const char fragments[] = "name: fragments\nseed: 7\n"
                                "data: {path: x, image_size: 16}\n"
                                "model: {type: dit, patch: 4, dim: 32, depth: 2, heads: 2}\n"
                                "train: {batch: 4, lr: 0.1}\n"
                                "recipe: {name: diloco, replicas: 2}\n"
                                "outer: {rounds: 3, steps: 4, fragments: 2, delay: 1, grace: 3}\n"
                                "sample: {count: 4}\n";
static const char ddm[] = "name: ddm\nseed: 3\n"
                          "data: {path: x, image_size: 16, holdout: 0.2}\n"
                          "model: {type: dit, patch: 4, dim: 32, depth: 1, heads: 2}\n"
                          "router: {patch: 4, dim: 32, depth: 1, heads: 2, batch: 3}\n"
                          "train: {batch: 4, lr: 0.1}\nrecipe: {name: ddm, experts: 2}\n"
                          "outer: {rounds: 2, steps: 2}\n"
                          "eval: {every: 1, samples: 8}\n"
                          "sample: {count: 4, every: 1, strategy: top1}\n";
static const char dipaco[] =
    "name: dipaco\nseed: 3\n"
    "data: {path: x, holdout: 0.2}\n"
    "model: {type: llama, dim: 32, depth: 4, heads: 2, context: 32}\n"
    "train: {batch: 1, lr: 0.1}\n"
    "recipe: {name: dipaco, levels: [2, 2], private_blocks: [3], reshard: [1],\n"
    "         early_stop: true, moments: travel}\n"
    "partition: {chunk: 16, router_fraction: 0.25}\n"
    "outer: {rounds: 3, steps: 2}\n"
    "eval: {every: 1, samples: 100}\n"
    "sample: {tokens: 8, prompt: once}\n";
/* What is late when the data are cut anew is of the old ones. */
static const char recut[] =
    "name: recut\nseed: 22\n"
    "data: {path: x, holdout: 0.2}\n"
    "model: {type: llama, dim: 32, depth: 4, heads: 2, context: 32}\n"
    "train: {batch: 1, lr: 0.1}\n"
    "recipe: {name: dipaco, levels: [2, 2], private_blocks: [3], reshard: [2, 3],\n"
    "         early_stop: true}\n"
    "partition: {chunk: 16, router_fraction: 0.25}\n"
    "outer: {rounds: 5, steps: 2, quorum: 0.5, grace: 2}\n"
    "eval: {every: 1, samples: 100}\n"
    "sample: {tokens: 8, prompt: once}\n";

static const char folded[] = "name: folded\nseed: 9\n"
                             "data: {path: x, image_size: 16}\n"
                             "model: {type: dit, patch: 4, dim: 32, depth: 1, heads: 2}\n"
                             "train: {batch: 4, lr: 0.1}\nrecipe: {name: diloco, replicas: 3}\n"
                             "outer: {where: worker, rounds: 6, steps: 4, quorum: 0.6, grace: 2}\n"
                             "sample: {count: 4}\n";
static const char shared[] = "name: shared\nseed: 11\n"
                             "data: {path: x, image_size: 16}\n"
                             "model: {type: dit, patch: 4, dim: 32, depth: 2, heads: 2}\n"
                             "train: {batch: 4, lr: 0.1}\n"
                             "recipe: {name: dipaco, levels: [2, 1]}\n"
                             "outer: {where: worker, rounds: 4, steps: 4, quorum: 0.6, grace: 2}\n"
                             "sample: {count: 4}\n";
static const char parts[] =
    "name: parts\nseed: 10\n"
    "data: {path: x, image_size: 16}\n"
    "model: {type: dit, patch: 4, dim: 32, depth: 1, heads: 2}\n"
    "train: {batch: 4, lr: 0.1}\n"
    "recipe: {name: diloco, replicas: auto}\n"
    "outer: {where: worker, rounds: 6, seconds: 10, quorum: 0.5, grace: 4}\n"
    "sample: {count: 4}\n";
/* Values travel, not differences: what is late is subtracted from the version that it began with.
 */
static const char values[] =
    "name: values\nseed: 14\n"
    "data: {path: x, image_size: 16}\n"
    "model: {type: dit, patch: 4, dim: 32, depth: 1, heads: 2}\n"
    "train: {batch: 4, lr: 0.1}\nrecipe: {name: diloco, replicas: 3}\n"
    "outer: {where: worker, rounds: 6, steps: 4, quorum: 0.6, grace: 2}\n"
    "wire: {up: f32, down: f32}\neval: {every: 1, samples: 8}\nsample: {count: 4}\n";
static const char dropped[] = "name: dropped\nseed: 15\n"
                              "data: {path: x, image_size: 16}\n"
                              "model: {type: dit, patch: 4, dim: 32, depth: 1, heads: 2}\n"
                              "train: {batch: 4, lr: 0.1}\n"
                              "recipe: {name: diloco, replicas: auto}\n"
                              "outer: {rounds: 5, steps: 4, quorum: 0.5, grace: 2, late: drop}\n"
                              "sample: {count: 4}\n";
static const char urls[] =
    "name: urls\nseed: 16\n"
    "data: {url: [\"http://a/0.tar\", \"http://a/1.tar\", \"http://a/2.tar\"],\n"
    "       image_size: 16}\n"
    "model: {type: dit, patch: 4, dim: 32, depth: 1, heads: 2}\n"
    "train: {batch: 4, lr: 0.1}\nrecipe: {name: diloco, replicas: 2}\n"
    "outer: {rounds: 2, steps: 4}\nsample: {count: 4}\n";
static const char latents[] = "name: latents\nseed: 17\n"
                              "data: {path: x, image_size: 16}\nencoders: {vae: v, run: job}\n"
                              "model: {type: dit, patch: 1, dim: 32, depth: 1, heads: 2}\n"
                              "train: {batch: 4, lr: 0.1}\nrecipe: {name: diloco, replicas: 2}\n"
                              "outer: {rounds: 2, steps: 4}\nsample: {count: 4}\n";
/* Its samplers have each other worker evaluate an expert. */
static const char remote[] = "name: remote\nseed: 18\n"
                             "data: {path: x, image_size: 16, holdout: 0.2}\n"
                             "model: {type: dit, patch: 4, dim: 32, depth: 1, heads: 2}\n"
                             "router: {patch: 4, dim: 32, depth: 1, heads: 2, batch: 3}\n"
                             "train: {batch: 4, lr: 0.1}\nrecipe: {name: ddm, experts: 2}\n"
                             "outer: {rounds: 2, steps: 2}\n"
                             "sample: {count: 4, every: 1, strategy: full, remote: true}\n";
/* Trainers that read data of their own: there is no ledger. */
static const char trainer[] = "name: trainer\nseed: 19\ndata: {kind: none}\n"
                              "model: {type: external}\ntrainer: {command: ./train}\n"
                              "train: {batch: 4}\nrecipe: {name: diloco, replicas: 2}\n"
                              "outer: {rounds: 4, seconds: 10, quorum: 0.5, grace: 4}\n";
static const char streamed[] = "name: streamed\nseed: 21\ndata: {kind: none}\n"
                               "model: {type: external}\ntrainer: {command: ./train}\n"
                               "train: {batch: 4}\nrecipe: {name: diloco, replicas: 2}\n"
                               "outer: {rounds: 3, steps: 4, fragments: 2, delay: 1}\n";
static const char drift[] = "name: drift\nseed: 20\ndata: {kind: none}\n"
                            "model: {type: external}\ntrainer: {command: ./train}\n"
                            "train: {batch: 4}\nrecipe: {name: diloco, replicas: 2}\n"
                            "outer: {rounds: 4, seconds: 10, async: true, nesterov_delay: 3}\n"
                            "wire: {up: f32, down: f32}\n";

/* The last ones have workers make outer steps. */
static const struct spec specs[] = {
    {diloco, SPEC_IMAGES}, {elastic, SPEC_IMAGES},  {quorum, SPEC_IMAGES},
    {timed, SPEC_IMAGES},  {async, SPEC_IMAGES},    {fragments, SPEC_IMAGES},
    {ddm, SPEC_IMAGES},    {dipaco, SPEC_TEXTS},    {dropped, SPEC_IMAGES},
    {urls, SPEC_URL},      {latents, SPEC_LATENTS}, {remote, SPEC_IMAGES},
    {trainer, SPEC_OWN},   {drift, SPEC_OWN},       {streamed, SPEC_OWN},
    {recut, SPEC_TEXTS},   {folded, SPEC_IMAGES},   {parts, SPEC_IMAGES},
    {shared, SPEC_IMAGES}, {values, SPEC_IMAGES}};
#define SPECS (sizeof(specs) / sizeof(specs[0]))
#define FOLDED 4

const struct spec *spec_some(bool folds)
{
    return &specs[folds ? SPECS - 1 - sim_below(FOLDED) : sim_below(SPECS)];
}

const struct spec *spec_divided(void)
{
    static const struct spec all[] = {
        {ddm, SPEC_IMAGES}, {dipaco, SPEC_TEXTS}, {recut, SPEC_TEXTS}, {urls, SPEC_URL}};
    return &all[sim_below(sizeof(all) / sizeof(all[0]))];
}

const struct spec *spec_at(size_t n)
{
    return &specs[n % SPECS];
}

/* ---- long lives ------------------------------------------------------------------ */

#define IMAGES                                                                                     \
    "data: {path: x, image_size: 16}\n"                                                            \
    "model: {type: dit, patch: 4, dim: 32, depth: 1, heads: 2}\ntrain: {batch: 4, lr: 0.1}\n"

static const char long_rounds[] =
    "name: rounds\nseed: 12\n" IMAGES "recipe: {name: diloco, replicas: auto, moments: travel}\n"
    "outer: {rounds: 100000, steps: 4, quorum: 0.6, grace: 2}\n"
    "eval: {every: 10, samples: 8}\nsample: {count: 4, every: 100}\n";
static const char long_async[] =
    "name: async\nseed: 12\n" IMAGES "recipe: {name: diloco, replicas: 3}\n"
    "outer: {rounds: 100000, seconds: 10, async: true}\n"
    "eval: {every: 10, samples: 8}\nsample: {count: 4, every: 100}\n";
static const char long_folded[] =
    "name: folded\nseed: 12\n" IMAGES "recipe: {name: diloco, replicas: 3}\n"
    "outer: {where: worker, rounds: 100000, steps: 4, quorum: 0.6,\n"
    "        grace: 2}\n"
    "eval: {every: 1, samples: 8}\nsample: {count: 4, every: 100}\n";
static const char long_paths[] =
    "name: paths\nseed: 12\ndata: {path: x, holdout: 0.2}\n"
    "model: {type: llama, dim: 32, depth: 4, heads: 2, context: 32}\ntrain: {batch: 1, lr: 0.1}\n"
    "recipe: {name: dipaco, levels: [2, 2], private_blocks: [3], early_stop: true, moments: "
    "travel}\n"
    "partition: {chunk: 16, router_fraction: 0.25}\nouter: {rounds: 100000, steps: 2}\n"
    "eval: {every: 1, samples: 100}\nsample: {tokens: 8, prompt: once, every: 10}\n";

const struct spec *spec_endless(uint64_t seed)
{
    static const struct spec all[] = {{long_rounds, SPEC_IMAGES},
                                      {long_async, SPEC_IMAGES},
                                      {long_folded, SPEC_IMAGES},
                                      {long_paths, SPEC_TEXTS}};
    return &all[(seed - 1) % (sizeof(all) / sizeof(all[0]))];
}
