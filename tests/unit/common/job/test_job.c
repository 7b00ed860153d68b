#include "common/job/job.h"

#include <errno.h>

#include "tests/unit/common/base/util.h"

#include "common/job/family.h"
#include "common/job/job_keys.h"

#define MINIMAL                                                                                    \
    "name: emoji\n"                                                                                \
    "data: {path: /data/emoji, image_size: 32}\n"                                                  \
    "model: {dim: 192, depth: 6, heads: 3}\n"                                                      \
    "train: {batch: 64}\n"                                                                         \
    "outer: {rounds: 20, steps: 50}\n"

static int parse(const char *text, struct job_spec *spec, struct err *err)
{
    return job_parse(text, strlen(text), "job.yaml", spec, err);
}

static void fills_the_defaults(void **state)
{
    struct job_spec s;
    OK(parse(MINIMAL, &s, err));
    assert_string_equal(s.name, "emoji");
    assert_int_equal(s.seed, 0);
    assert_string_equal(s.data.path, "/data/emoji");
    assert_true(s.data.holdout == 0.02 && !s.data.flip);
    assert_int_equal(s.data.shard_samples, 512);
    assert_int_equal(s.data.max_bad, 100);
    assert_int_equal(s.model.type, JOB_MODEL_DIT);
    assert_int_equal(s.model.patch, 2);
    assert_true(s.model.mlp_ratio == 4 && s.model.label_dropout == 0.1);
    assert_int_equal(s.train.accumulate, 0); /* auto */
    assert_true(s.train.lr == 0.5 / 192 && s.train.clip == 1 && s.train.beta2 == 0.999);
    assert_int_equal(s.train.schedule, JOB_SCHEDULE_DECAY);
    assert_int_equal(s.train.precision, JOB_PRECISION_AUTO);
    assert_int_equal(s.train.t, JOB_T_LOGIT_NORMAL);
    assert_string_equal(s.recipe.name, "diloco");
    assert_int_equal(s.recipe.replicas, 0); /* auto */
    assert_true(s.outer.lr == 0.7 && s.outer.momentum == 0.8 && s.outer.quorum == 0.5);
    assert_true(s.outer.alone_lr == 1);
    assert_int_equal(s.outer.seconds, 0);
    assert_int_equal(s.wire.up, CODEC_E3M0);
    assert_int_equal(s.sample.count, 64);
    assert_true(s.sample.guidance == 1.5);
    assert_int_equal(s.eval.samples, 512);
    assert_int_equal(job_tokens(&s), 256);
    job_release(&s);
    job_release(&s);
}

static void reads_every_kind(void **state)
{
    struct job_spec s;
    OK(parse("name: _x\nseed: 18446744073709551615\n"
             "data: {url: [\"http://a/b.tar\", https://c/d.tar], image_size: 64, flip: yes}\n"
             "model: {preset: DiT-XL/4, mlp_ratio: 2.5, label_dropout: 0}\n"
             "train: {batch: 32, accumulate: 4, lr: 3e-4, schedule: decay, precision: f32,\n"
             "        t: uniform}\n"
             "recipe: {name: ddm, replicas: 8}\n"
             "outer: {rounds: 2, seconds: 600}\n"
             "wire: {up: int8, down: f32}\n"
             "sample: {sampler: heun}\n"
             "eval:\n",
             &s, err));
    assert_true(s.seed == UINT64_MAX);
    assert_int_equal(s.data.url.n, 2);
    assert_string_equal(s.data.url.items[1], "https://c/d.tar");
    assert_true(s.data.flip);
    assert_int_equal(s.model.dim, 1152);
    assert_int_equal(s.model.depth, 28);
    assert_int_equal(s.model.heads, 16);
    assert_int_equal(s.model.patch, 4);
    assert_int_equal(s.train.schedule, JOB_SCHEDULE_DECAY);
    assert_int_equal(s.train.t, JOB_T_UNIFORM);
    assert_string_equal(s.recipe.name, "ddm");
    assert_int_equal(s.outer.seconds, 600);
    assert_string_equal(codec_name((enum codec)s.wire.up), "int8");
    assert_string_equal(codec_name((enum codec)99), "?");
    assert_int_equal(s.sample.sampler, JOB_SAMPLER_HEUN);
    assert_true(s.sample.guidance == 1); /* nothing was dropped: no guidance */
    job_release(&s);
}

/* text replaces the line of MINIMAL that starts with the same key, or is added. */
static void with(char *out, size_t size, const char *line)
{
    size_t key = strcspn(line, ":") + 1;
    char base[1024];
    snprintf(base, sizeof(base), "%s", MINIMAL);
    out[0] = '\0';
    bool done = false;
    for (char *l = strtok(base, "\n"); l; l = strtok(NULL, "\n")) {
        bool same = strncmp(l, line, key) == 0;
        done = done || same;
        size_t n = strlen(out);
        snprintf(out + n, size - n, "%s\n", same ? line : l);
    }
    size_t n = strlen(out);
    if (!done)
        snprintf(out + n, size - n, "%s\n", line);
}

static const struct {
    const char *line, *says;
} refused[] = {
    {"train: {batch: 64, lerning_rate: 1}",
     "job.yaml:4: unknown key 'lerning_rate' in 'train'; did you mean 'lr'?"},
    {"trian: {}", "job.yaml:6: unknown key 'trian'; did you mean 'train'?"},
    {"wire: {sideways: 1}", "unknown key 'sideways' in 'wire'; known are up, down"},
    {"train: {batch: many}",
     "job.yaml:4: train.batch is 'many', expected a whole number from 1 to 65536"},
    {"train: {batch: 0}", "train.batch is '0', expected a whole number from 1"},
    {"train: {batch: 1.5}", "train.batch is '1.5'"},
    {"train: {batch: \"64\"}",
     "train.batch is \"64\", expected a whole number from 1 to 65536 without quotes"},
    {"train: {batch: [1]}", "train.batch is a list, expected a whole number"},
    {"train: {batch: }", "train.batch has no value"},
    {"train: {}", "job.yaml:4: train.batch is missing"},
    {"train: 5", "train is '5', expected keys with values"},
    {"train: {batch: 64, lr: nan}", "train.lr is 'nan', expected a number"},
    {"train: {batch: 64, schedule: cosin}", "did you mean 'cosine'?"},
    {"train: {batch: 64, stages: 200}", "train.stages is '200', expected auto or a whole number"},
    {"train: {batch: 64, stages: 16}", "train.stages is 16, but the model has 6 blocks"},
    {"train: {batch: 64, stages: 2, parallel: data}", "but train.parallel is data; leave out one"},
    {"train: {batch: 64, parallel: both}", "train.parallel"},
    {"train: {batch: 64, pipeline: split, parallel: data}",
     "but train.parallel is data; leave out"},
    {"train: {batch: 64, pipeline: split, recompute: true}", "what train.recompute forgets"},
    {"train: {batch: 64, accumulate: 3}", "does not divide train.batch (64); use auto or a"},
    {"train: {batch: 64, accumulate: 0}",
     "train.accumulate is '0', expected auto or a whole number from 1 to 4096"},
    {"train: {batch: 64, accumulate: many}", "expected auto or a whole number from 1 to 4096"},
    {"data: {path: x, image_size: 33}", "model.patch is 2, which does not divide"},
    {"data: {path: x, image_size: 512}", "65536 tokens, at most 4096"},
    {"data: {path: x}", "data.image_size is missing"},
    {"data: {path: x, image_size: 32, buckets: 32}", "holds '32', expected WIDTHxHEIGHT"},
    {"data: {path: x, image_size: 32, buckets: [32x32, 8x8x8]}", "holds '8x8x8', expected"},
    {"data: {path: x, image_size: 32, buckets: [0x8]}", "holds '0x8', expected WIDTHxHEIGHT"},
    {"data: {path: x, image_size: 32, buckets: [99999999999x8]}", "expected WIDTHxHEIGHT"},
    {"data: {path: x, image_size: 32, buckets: [31x16]}", "multiples of model.patch (2)"},
    {"data: {path: x, image_size: 32, buckets: [34x32]}", "more pixels than data.image_size 32"},
    {"data: {path: x, image_size: 32, buckets: [16x8, 8x16, 16x8]}", "holds 16x8 twice"},
    {"data: {path: x, image_size: 32, buckets: [2x2, 2x4, 2x6, 2x8, 4x2, 4x4, 4x6, 4x8, 6x2, 6x4, "
     "6x6, 6x8, 8x2, 8x4, 8x6, 8x8, 8x16]}",
     "has 17 shapes, at most 16"},
    {"data: {image_size: 32}", "data.path is missing"},
    {"data: {path: x, url: [http://a], image_size: 32}", "leave out one"},
    {"data: {url: [ftp://a], image_size: 32}", "starts with http://"},
    {"data: {url: [], image_size: 32}", "data.path is missing"},
    {"data: {url: [[x]], image_size: 32}", "data.url is a list"},
    {"data: {path: \"\", image_size: 32}", "data.path is empty"},
    {"data: {path: x, image_size: 32, flip: maybe}", "expected true or false"},
    {"data: {path: x, image_size: 32, holdout: 0.6}", "a number from 0 to 0.5"},
    {"model: {dim: 192, depth: 6, heads: 5}",
     "job.yaml:3: model.heads is 5, which does not divide model.dim (192)"},
    {"model: {dim: 6, depth: 6, heads: 1}", "expected a multiple of 4"},
    {"model: {dim: 192, depth: 6, heads: 1}",
     "job.yaml:3: model.heads is 1, which gives heads of width 192, at most 128 are possible"},
    {"model: {type: llama, dim: 384, depth: 1, heads: 2}", "heads of width 192, at most 128"},
    {"model: {type: llama, dim: 30, depth: 1, heads: 5, head_dim: 8}",
     "model.dim is 30; a multiple of 4 is needed"},
    {"model: {type: llama, dim: 36, depth: 1, heads: 5, head_dim: 8}",
     "model.heads is 5, which does not divide model.dim (36)"},
    {"model: {type: llama, dim: 32, depth: 1, heads: 4, head_dim: 6}",
     "model.head_dim is 6; a multiple of 4 is needed"},
    {"model: {type: llama, dim: 24, depth: 1, heads: 4}", "heads of width 6"},
    {"model: {type: llama, dim: 24, depth: 1, heads: 3, qkv_bias: true}",
     "model.qkv_bias needs keys whose width is a multiple of 16, but 3 heads are 24 wide"},
    {"model: {type: llama, dim: 64, depth: 1, heads: 4, qkv_bias: true, qk_norm: true}",
     "model.qk_norm is true, and so is model.qkv_bias, but no model that is exported has both; "
     "leave out one"},
    {"model: {type: llama, dim: 64, depth: 4, heads: 4, no_rope_layer_interval: 4, qk_norm: true}",
     "model.no_rope_layer_interval is 4, and model.qk_norm is true, but no model that is exported "
     "has both; leave out one"},
    {"router: {dim: 132, heads: 1}", "router.heads is 1, which gives heads of width 132, at most"},
    {"sample: {count: 1024, columns: 1}",
     "sample.columns does not do: 1024 samples of 32 pixels in 1 column make a picture of 34 x "
     "33793 pixels, but a side has at most 16384: take 3 columns"},
    {"model: {dim: 192, depth: 6, heads: 3, mlp_ratio: 0.3333}", "model.mlp_ratio"},
    {"model: {depth: 6, heads: 3}", "model.dim is missing"},
    {"model: {preset: DiT-XXL/2}", "did you mean 'DiT-XL/2'?"},
    {"model: {preset: DiT-S/2, dim: 200}", "model.dim is 200, but preset DiT-S/2 says 384"},
    {"model: {type: unet, dim: 192, depth: 6, heads: 3}", "expected one of dit"},
    {"outer: {rounds: 20}", "outer.steps is missing"},
    {"outer: {rounds: 20, steps: 5, seconds: 5}", "outer.seconds and outer.steps are both"},
    {"outer: {rounds: 20, steps: 5, momentum: 1}", "outer.momentum is '1'"},
    {"outer: {rounds: 20, seconds: 5, mix: 0.5}", "needs phases bounded by outer.steps"},
    {"outer: {rounds: 20, steps: 5, async: true, mix: 0.5}", "leave out one"},
    {"outer: {rounds: 20, steps: 5, async: true}\nrecipe: {early_stop: true}\n"
     "eval: {every: 1}",
     "recipe.early_stop keeps the best of the rounds"},
    {"name: ../evil", "name is '../evil'"},
    {"name: -x", "'-x', expected 1 to 64 of A-Z a-z 0-9 . _ -, not starting with . or -; did you "
                 "mean 'x'?"},
    {"recipe: {replicas: 0}",
     "recipe.replicas is '0', expected auto or a whole number from 1 to 256"},
    {"recipe: {name: \"a b\"}", "recipe.name is 'a b'"},
    {"eval: {every: 2}\ndata2: {}", "unknown key 'data2'"},
    {"wire: {up: fp8}", "expected one of f32, bf16, int8, e3m0"},
    {"seed: -1", "seed is '-1'"},
};

static void refuses_with_a_sentence(void **state)
{
    for (size_t i = 0; i < COUNT(refused); i++) {
        char text[4096];
        struct job_spec s;
        with(text, sizeof(text), refused[i].line);
        FAILS(parse(text, &s, err), refused[i].says);
        assert_null(s.name);
    }
    struct job_spec s;
    FAILS(parse(MINIMAL "eval: {every: 2}\nsample: {guidance: 2}\nmodel: {}\n", &s, err),
          "key 'model' is there twice");
    FAILS(parse("", &s, err), "job.yaml:1: name is missing");
    char *big = mem_alloc(JOB_SPEC_MAX + 2);
    memset(big, '#', JOB_SPEC_MAX + 1);
    FAILS(parse(big, &s, err), "at most 32768");
    mem_free(big);
}

static void keys_that_need_each_other(void **state)
{
    struct job_spec s;
    const char *no_holdout = "name: e\ndata: {path: x, image_size: 32, holdout: 0}\n"
                             "model: {dim: 64, depth: 1, heads: 1, label_dropout: 0}\n"
                             "train: {batch: 1}\nouter: {rounds: 1, steps: 1}\n";
    char text[1024];
    OK(parse(no_holdout, &s, err));
    job_release(&s);
    snprintf(text, sizeof(text), "%seval: {every: 1}\n", no_holdout);
    FAILS(parse(text, &s, err), "job.yaml:6: eval.every is 1, but data.holdout is 0");
    snprintf(text, sizeof(text), "%ssample: {guidance: 2}\n", no_holdout);
    FAILS(parse(text, &s, err), "sample.guidance is 2, but with model.label_dropout 0");
}

/* What nobody wrote is never refused, whatever the model's widths. */
static void the_router_fits(void **state)
{
    static const int widths[][4] = {
        {192, 3, 96, 3}, {204, 6, 104, 2}, {180, 3, 92, 2}, {300, 5, 152, 2}};
    for (size_t i = 0; i < COUNT(widths); i++) {
        struct job_spec s;
        char line[64], text[1024];
        snprintf(line, sizeof line, "model: {dim: %d, depth: 2, heads: %d}", widths[i][0],
                 widths[i][1]);
        with(text, sizeof text, line);
        OK(parse(text, &s, err));
        assert_int_equal(s.router.dim, widths[i][2]);
        assert_int_equal(s.router.heads, widths[i][3]);
        job_release(&s);
    }
}

/* Every default of every table is a value that the table itself accepts.  within: "model:
 * {rope_scaling: {" for such a section, and at the top nothing. */
static void check_defaults(const struct conf_key *keys, const char *within, struct buf *doc)
{
    size_t deep = 0;
    for (const char *at = within; (at = strchr(at, '{')) != NULL; at++)
        deep++;
    for (const struct conf_key *k = keys; k->key != NULL; k++) {
        const bool told = k->doc != NULL;
        assert_int_equal(told, strcmp(within, "train: {") != 0 || strcmp(k->key, "ema") != 0);
        assert_false(k->required && k->def);
        if (k->type == CONF_SECTION) {
            char *below = str_printf("%s%s: {", within, k->key);
            check_defaults(k->sub, below, doc);
            mem_free(below);
        } else if (told)
            assert_non_null(strstr(buf_str(doc), k->key));
        if (k->def && *within) {
            char text[4096];
            struct yaml_doc tree;
            struct job_spec s = {0};
            struct err e = {0};
            snprintf(text, sizeof(text), "%s%s: %s%.*s\n", within, k->key, k->def, (int)deep,
                     "}}}");
            assert_int_equal(yaml_parse(text, strlen(text), "d", &tree, &e), 0);
            /* Binding may miss required keys; it must not object to the default. */
            if (conf_bind(&tree, tree.root, job_spec_keys, &s, &e) < 0)
                assert_non_null(strstr(e.msg, "is missing"));
            conf_release(job_spec_keys, &s);
            yaml_release(&tree);
        }
    }
}

static void keys_without_effect(void **state)
{
    static const struct {
        const char *line, *key; /* NULL: it is of this job */
    } cases[] = {
        {"train: {batch: 64, schedule: cosine, final_lr: 0.1}", NULL},
        {"train: {batch: 64, schedule: decay, decay_fraction: 0.3}", NULL},
        {"recipe: {name: ddm, divide_batch: false}", NULL},
        {"partition: {dims: 8}", NULL},
        {"train: {batch: 64, schedule: decay, final_lr: 0.1}",
         "job.yaml:4: train.final_lr goes only with"},
        {"train: {batch: 64, final_lr: 0}", "job.yaml:4: train.final_lr goes only with"},
        {"train: {batch: 64, schedule: constant, decay_fraction: 0.3}",
         "job.yaml:4: train.decay_fraction goes only with"},
        {"recipe: {divide_batch: true}",
         "job.yaml:6: recipe.divide_batch goes only with mixtures of experts"},
        {"sample: {strategy: top1}",
         "job.yaml:6: sample.strategy goes only with mixtures of experts"},
        {"sample: {remote: true}", "job.yaml:6: sample.remote goes only with mixtures of experts"},
        {"recipe: {name: ddm}\nsample: {top: 3, nucleus: 0.5, threshold: 0.1}", NULL},
        {"sample: {top: 3}", "sample.top goes only with mixtures of experts"},
        {"sample: {nucleus: 0.5}", "sample.nucleus goes only with mixtures of experts"},
        {"sample: {threshold: 0.1}", "sample.threshold goes only with mixtures of experts"},
        {"encoders: {tokens: 8}", "encoders.tokens goes only with a text encoder"},
        {"encoders: {vae: x, layer: -2}", "encoders.layer goes only with a text encoder"},
        {"encoders: {vae: x, run: fly, cache: 9}", "encoders.cache is for encoders.run worker"},
        {"encoders: {path: x, tokens: 8, layer: -2, cache: 9}", NULL},
        {"encoders: {vae: x, run: worker, cache: 9}", NULL},
        {"data: {path: x, image_size: 32, text_field: y}", "data.text_field goes only with texts"},
        {"outer: {rounds: 2, steps: 2, where: worker}", NULL},
        {"outer: {rounds: 2, steps: 2, where: auto, async: true}", NULL},
        {"outer: {rounds: 2, steps: 2, where: worker, async: true}",
         "outer.where is worker, but with outer.async contributions are folded at the coordinator"},
        {"outer: {rounds: 2, steps: 2, where: worker, fragments: 2}",
         "outer.where is worker, but with outer.fragments, delay or mix contributions are"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        char text[2048];
        struct job_spec s;
        struct err err = {0};
        with(text, sizeof(text), cases[i].line);
        assert_int_equal(job_parse(text, strlen(text), "job.yaml", &s, &err), 0);
        int rc = job_check_scope(text, strlen(text), "job.yaml", &s, &err);
        if (rc != (cases[i].key ? -ERR_CONFIG : 0) ||
            !strstr(err.msg, cases[i].key ? cases[i].key : ""))
            fail_msg("%s: '%s'", cases[i].line, err.msg);
        job_release(&s);
    }
}

static void documents_itself(void **state)
{
    struct buf doc;
    buf_init(&doc, 1u << 20);
    assert_int_equal(job_document(CONF_MARKDOWN, &doc), 0);
    assert_non_null(strstr(buf_str(&doc), "## train"));
    assert_non_null(strstr(buf_str(&doc), "| `batch` | a whole number from 1 to 65536 | required"));
    check_defaults(job_spec_keys, "", &doc);
    buf_clear(&doc);
    assert_int_equal(job_document(CONF_TEXT, &doc), 0);
    assert_non_null(strstr(buf_str(&doc), "train.batch"));
    for (char *line = strtok((char *)doc.data, "\n"); line; line = strtok(NULL, "\n"))
        if (strlen(line) >= 80)
            fail_msg("wider than a terminal: %s", line);
    buf_release(&doc);
}

/* One replica a module trains plainly, several with Nesterov; what the file says stands. */
static void plain_outer_steps_for_one_replica(void **state)
{
    static const char head[] =
        "name: a\ndata: {path: x, image_size: 16}\n"
        "model: {patch: 4, dim: 16, depth: 4, heads: 2}\ntrain: {batch: 8}\n";
    const struct {
        const char *rest;
        double lr, momentum;
    } cases[] = {
        {"outer: {rounds: 2, steps: 2}\nrecipe: {replicas: 1}\n", 1, 0},
        {"outer: {rounds: 2, steps: 2, momentum: 0.5}\nrecipe: {replicas: 1}\n", 1, 0.5},
        {"outer: {rounds: 2, steps: 2}\nrecipe: {name: diloco, replicas: 2}\n", 0.7, 0.8},
        {"outer: {rounds: 2, steps: 2}\nrecipe: {name: ddm, experts: 2}\n", 1, 0},
        {"outer: {rounds: 2, steps: 2}\nrecipe: {name: ddm, experts: 2, replicas: 2}\n", 0.7, 0.8},
        {"outer: {rounds: 2, steps: 2, lr: 0.3}\nrecipe: {name: ddm, experts: 2}\n", 0.3, 0},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct job_spec s;
        char *text = str_printf("%s%s", head, cases[i].rest);
        OK(job_parse(text, strlen(text), "job", &s, err));
        assert_true(s.outer.lr == cases[i].lr);
        assert_true(s.outer.momentum == cases[i].momentum);
        job_release(&s);
        mem_free(text);
    }
}

/* A fresh model's momentum grows over ten rounds, and its learning rate fits its width; trained
 * weights are spared while their moments are empty; what the file says stands. */
static void young_models(void **state)
{
    static const char head[] = "name: a\ndata: {path: x, image_size: 16}\n";
    const struct {
        const char *rest;
        int warmup, steps;
        double lr;
    } cases[] = {
        {"model: {patch: 4, dim: 64, depth: 4, heads: 2}\ntrain: {batch: 8}\n"
         "outer: {rounds: 2, steps: 2}\n",
         10, 0, 0.5 / 64},
        {"model: {preset: DiT-S/8}\ntrain: {batch: 8, lr: 0}\n"
         "outer: {rounds: 2, steps: 2, warmup: 0}\n",
         0, 0, 0},
        {"model: {preset: DiT-S/8, warm_start: before}\ntrain: {batch: 8}\n"
         "outer: {rounds: 2, steps: 2}\n",
         0, 10, 0.25 / 384},
        {"model: {preset: DiT-S/8, warm_start: before}\ntrain: {batch: 8, warmup: 4}\n"
         "outer: {rounds: 2, steps: 2, warmup: 3}\n",
         3, 4, 0.25 / 384},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct job_spec s;
        char *text = str_printf("%s%s", head, cases[i].rest);
        OK(job_parse(text, strlen(text), "job", &s, err));
        assert_int_equal(s.outer.warmup, cases[i].warmup);
        assert_int_equal(s.train.warmup, cases[i].steps);
        assert_true(s.train.lr == cases[i].lr && s.router.lr == cases[i].lr);
        job_release(&s);
        OK(job_parse_taken(text, strlen(text), "job", &s, err));
        assert_int_equal(s.train.warmup, cases[i].steps == 4 ? 4 : 0); /* as it was taken */
        job_release(&s);
        mem_free(text);
    }
}

/* A key of older releases: a new job hears what to use, one on record goes on. */
static void average_of_old_jobs(void **state)
{
    static const char line[] = "train: {batch: 64, ema: 0.5}";
    char text[1024];
    struct job_spec s;
    with(text, sizeof text, line);
    FAILS(parse(text, &s, err),
          "job.yaml:4: train.ema is no longer a key, since nothing used its average: leave it out "
          "(samples, held-out losses and exports use outer.ema)");
    OK(job_parse_taken(text, strlen(text), "job.yaml", &s, err));
    assert_true(s.train.ema == 0.5); /* local checkpoints are told apart by it */
    job_release(&s);
    assert_int_equal(job_parse_saved(text, strlen(text), "job.yaml", &s, NULL), 0); /* no rule */
    assert_true(s.train.ema == 0.5);
    job_release(&s);
}

/* A llama's rate grows with the cube root of the tokens of a step, within bounds. */
static void rates_of_texts(void **state)
{
    assert_true(job_lr(true, false, 100, 64) == 0.1 / 100 &&
                job_lr(true, false, 100, 512) == 0.1 / 100);
    assert_true(job_lr(true, false, 100, 4096) == 0.1 / 100 * 2);
    assert_true(job_lr(true, false, 100, 1e9) == 0.1 / 100 * 2);
    assert_true(job_lr(true, false, 8192, 512) ==
                1e-4); /* wide models take what they always took */
    static const char text[] = "name: a\ndata: {path: x}\ntrain: {batch: 64}\n"
                               "model: {type: llama, dim: 64, depth: 2, heads: 2, context: 64}\n"
                               "outer: {rounds: 2, steps: 2}\n";
    struct job_spec s;
    OK(job_parse(text, strlen(text), "job", &s, err));
    assert_true(s.train.lr == 0.1 / 64 * 2);
    job_release(&s);
    OK(job_parse_taken(text, strlen(text), "job", &s, err));
    assert_true(s.train.lr == 0.1 / 64);
    job_release(&s);
    static const char more[] = "name: a\ndata: {path: x}\ntrain: {batch: 8}\n"
                               "model: {type: llama, dim: 64, depth: 2, heads: 2, context: 64,\n"
                               "  warm_start: before}\nouter: {rounds: 2, steps: 2}\n";
    OK(job_parse(more, strlen(more), "job", &s, err));
    assert_true(s.train.lr == 0.05 / 64 && s.train.warmup == 10);
    job_release(&s);
    OK(job_parse_taken(more, strlen(more), "job", &s, err));
    assert_true(s.train.lr == 0.1 / 64 && s.train.warmup == 0);
    job_release(&s);
}

/* No worker has most of a version, unless it may well be honest. */
static void shares_are_capped(void **state)
{
    static const struct {
        const char *rest;
        double cap;
    } cases[] = {
        {"outer: {rounds: 2, steps: 2}\n", 0.5},
        {"outer: {rounds: 2, steps: 2, share_cap: 0.2}\n", 0.2},
        {"outer: {rounds: 2, seconds: 2}\n", 1},
        {"outer: {rounds: 2, seconds: 2, share_cap: 0.5}\n", 0.5},
        {"recipe: {name: dipaco, levels: [2, 2]}\nouter: {rounds: 2, steps: 2}\n", 1},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct job_spec s;
        char *text = str_printf("name: a\ndata: {path: x, image_size: 16}\n"
                                "model: {preset: DiT-S/8}\ntrain: {batch: 8}\n%s",
                                cases[i].rest);
        OK(job_parse(text, strlen(text), "job", &s, err));
        assert_true(s.outer.share_cap == cases[i].cap);
        job_release(&s);
        mem_free(text);
    }
}

/* What a job file leaves out is written into the text that is kept, in any style. */
static void defaults_are_written_into_a_job(void **state)
{
    static const char *const texts[] = {
        "name: a\ndata: {path: x, image_size: 16}\nmodel: {preset: DiT-S/8}\n"
        "train: {batch: 8}\nouter: {rounds: 2, steps: 2}\n",
        "name: a # über\ndata: {path: x, image_size: 16}\nmodel: {preset: DiT-S/8}\ntrain:\n\n"
        "    # a comment\n    batch: 8 # more\n    beta2: 0.9\nouter:\n steps: 2\n rounds: 2",
        "{name: a, data: {path: ü/x, image_size: 16}, model: {preset: DiT-S/8}, train: {\n"
        "batch: 8}, outer: { \"steps\": 2, rounds: 2}}",
        "name: a\r\ndata: {path: x}\r\nmodel: {type: llama, dim: 384, depth: 2, heads: 3}\r\n"
        "train:\r\n  ? batch\r\n  : 8\r\nouter: {rounds: 2, steps: 2}\r\n",
    };
    for (size_t i = 0; i < COUNT(texts); i++) {
        for (int taken = 0; taken < 2; taken++) {
            const bool dit = i < 3;
            struct job_spec s, kept;
            OK((taken ? job_parse_taken : job_parse)(texts[i], strlen(texts[i]), "job", &s, err));
            const double llama = 0.1 * (taken ? 1 : cbrt(4)) / 384; /* of 8 x 256 tokens */
            assert_true(s.train.lr == (!dit ? llama : (taken ? 0.25 : 0.5) / 384));
            assert_int_equal(s.train.schedule,
                             dit && !taken ? JOB_SCHEDULE_DECAY : JOB_SCHEDULE_CONSTANT);
            char *text, *again;
            OK(job_keep_defaults(texts[i], &s, &text, err));
            assert_non_null(strstr(text, "lr: 0.00"));
            assert_non_null(strstr(text, dit && !taken ? "schedule: decay" : "schedule: constant"));
            assert_non_null(strstr(text, "warmup: 10"));
            OK((taken ? job_parse : job_parse_taken)(text, strlen(text), "job", &kept, err));
            assert_true(kept.train.lr == s.train.lr && kept.router.lr == s.router.lr);
            assert_int_equal(kept.train.schedule, s.train.schedule);
            assert_int_equal(kept.outer.warmup, s.outer.warmup);
            OK(job_keep_defaults(text, &s, &again, err));
            assert_string_equal(again, text);
            mem_free(again);
            mem_free(text);
            job_release(&kept);
            job_release(&s);
        }
    }
}

/* A decay helps texts in long jobs; in short ones it costs. */
static void schedules_of_texts(void **state)
{
    static const struct {
        const char *outer, *more;
        int fresh;
    } cases[] = {
        {"rounds: 10, steps: 499", "", JOB_SCHEDULE_CONSTANT},
        {"rounds: 10, steps: 500", "", JOB_SCHEDULE_DECAY},
        {"rounds: 10, steps: 500", ", warm_start: before", JOB_SCHEDULE_CONSTANT},
        {"rounds: 1000, seconds: 500", "", JOB_SCHEDULE_CONSTANT}, /* steps are not known */
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct job_spec s;
        char *text = str_printf("name: a\ndata: {path: x}\ntrain: {batch: 8}\n"
                                "model: {type: llama, dim: 64, depth: 2, heads: 2%s}\n"
                                "outer: {%s}\n",
                                cases[i].more, cases[i].outer);
        OK(job_parse(text, strlen(text), "job", &s, err));
        assert_int_equal(s.train.schedule, cases[i].fresh);
        job_release(&s);
        OK(job_parse_taken(text, strlen(text), "job", &s, err));
        assert_int_equal(s.train.schedule, JOB_SCHEDULE_CONSTANT);
        job_release(&s);
        mem_free(text);
    }
}

/* Captions are followed closely; jobs from before that keep what they had. */
static void guidance_of_captions(void **state)
{
    static const struct {
        const char *rest;
        double fresh, taken;
    } cases[] = {
        {"model: {preset: DiT-S/8}\n", 1.5, 1.5},
        {"model: {preset: DiT-S/8}\nencoders: {path: p}\n", 3, 1.5},
        {"model: {preset: DiT-S/8}\nencoders: {path: p}\nsample: {count: 8}\n", 3, 1.5},
        {"model: {preset: DiT-S/8}\nencoders: {path: p}\nsample:\n  count: 8\n", 3, 1.5},
        {"model: {preset: DiT-S/8}\nencoders: {path: p}\nsample: {guidance: 2}\n", 2, 2},
        {"model: {preset: DiT-S/8, label_dropout: 0}\nencoders: {path: p}\n", 1, 1},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct job_spec s;
        char *kept, *text = str_printf("name: a\ndata: {path: x, image_size: 64}\n"
                                       "train: {batch: 8}\nouter: {rounds: 2, steps: 2}\n%s",
                                       cases[i].rest);
        OK(job_parse_taken(text, strlen(text), "job", &s, err));
        assert_true(s.sample.guidance == cases[i].taken);
        job_release(&s);
        OK(job_parse(text, strlen(text), "job", &s, err));
        assert_true(s.sample.guidance == cases[i].fresh);
        OK(job_keep_defaults(text, &s, &kept, err));
        job_release(&s);
        OK(job_parse_taken(kept, strlen(kept), "job", &s, err));
        assert_true(s.sample.guidance == cases[i].fresh);
        job_release(&s);
        mem_free(kept);
        mem_free(text);
    }
}

/* Whatever the file looks like, and wherever it says auto, or does not. */
static void fragments_are_written_in_with_their_reason(void **state)
{
    static const char *const outers[] = {
        "outer: {rounds: 2, steps: 20}\n",
        "outer: {rounds: 2, fragments: auto, steps: 20}",
        "outer:\n  # how often\n  rounds: 2\n  fragments: auto # by the link\n  steps: 20\n",
        "outer:\n rounds: 2\n steps: 20",
    };
    for (size_t i = 0; i < COUNT(outers); i++) {
        struct job_spec s;
        char *text, *file = str_printf("name: a\ndata: {path: x, image_size: 16}\n"
                                       "model: {preset: DiT-S/8}\ntrain: {batch: 8}\n%s",
                                       outers[i]);
        OK(job_parse(file, strlen(file), "job", &s, err));
        assert_int_equal(s.outer.fragments, 0);
        job_release(&s);
        OK(job_write_fragments(file, 4, 7, 0.5, "a reason: {x}", &text, err));
        OK(job_parse(text, strlen(text), "job", &s, err));
        assert_int_equal(s.outer.fragments, 4);
        assert_int_equal(s.outer.delay, 7);
        assert_true(s.outer.mix == 0.5 && s.outer.rounds == 2 && s.outer.steps == 20);
        assert_true(str_ends(text, "\n# outer.fragments was auto: a reason: {x}\n"));
        job_release(&s);
        mem_free(text);
        mem_free(file);
    }
    static const char given[] = "name: a\ndata: {path: x, image_size: 16}\n"
                                "model: {preset: DiT-S/8}\ntrain: {batch: 8}\n"
                                "outer: {rounds: 2, steps: 20, fragments: 1}\n";
    char *text = NULL;
    struct err why = {0};
    assert_int_equal(job_write_fragments(given, 4, 7, 0.5, "no", &text, &why), -ERR_CONFIG);
    assert_null(text);
}

/* Asynchronous jobs have less momentum, and those of earlier releases go on with what they had. */
static void momentum_fits_the_outer_steps(void **state)
{
    static const struct {
        const char *outer, *replicas;
        bool taken;
        double momentum;
        double alone_lr; /* in rounds with one contribution, without momentum; 0: as in others */
    } cases[] = {
        {"async: true", "2", false, 0.5, 0},
        {"async: true", "2", true, 0.9, 0},
        {"async: true, momentum: 0.8", "2", false, 0.8, 0},
        {"async: true", "1", false, 0, 0},
        {"async: false", "2", false, 0.8, 0},
        {"async: false", "2", true, 0.9, 0},
        {"async: false", "auto", false, 0.8, 1},
        {"async: false", "auto", true, 0.9, 1},
        {"async: false, momentum: 0.9", "auto", false, 0.9, 0},
        {"async: false, momentum: 0.8", "auto", false, 0.8, 1}, /* as it is written in */
        {"async: false, lr: 0.7", "auto", false, 0.8, 0.7},
        {"async: false, lr: 0.7, momentum: 0.9", "auto", false, 0.9, 0},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        char *text = str_printf("name: a\ndata: {path: x, image_size: 16}\n"
                                "model: {preset: DiT-S/8}\ntrain: {batch: 8}\n"
                                "recipe: {replicas: %s}\nouter: {rounds: 2, steps: 2, %s}\n",
                                cases[i].replicas, cases[i].outer);
        struct job_spec s, kept;
        OK((cases[i].taken ? job_parse_taken : job_parse)(text, strlen(text), "job", &s, err));
        assert_true(s.outer.momentum == cases[i].momentum);
        assert_true(s.outer.alone_lr == cases[i].alone_lr);
        char *whole;
        OK(job_keep_defaults(text, &s, &whole, err));
        OK(job_parse_taken(whole, strlen(whole), "job", &kept, err));
        assert_true(kept.outer.momentum == cases[i].momentum);
        assert_true(kept.outer.alone_lr == cases[i].alone_lr);
        assert_true(kept.outer.lr == s.outer.lr);
        job_release(&kept);
        job_release(&s);
        mem_free(whole);
        mem_free(text);
    }
}

/* A job of one path in whole rounds trains on all workers; jobs on record go on as they were taken.
 */
static void all_workers_train(void **state)
{
    static const struct {
        const char *keys;
        bool taken;
        int replicas;
    } cases[] = {
        {"outer: {rounds: 2, steps: 2}\n", false, 0},
        {"outer: {rounds: 2, steps: 2}\n", true, 1},
        {"outer: {rounds: 2, steps: 2}\nrecipe: {replicas: 1}\n", false, 1},
        {"outer: {rounds: 2, steps: 2}\nrecipe: {name: diloco}\n", false, 0},
        {"outer: {rounds: 2, steps: 2}\nrecipe: {name: distill, teacher: 1}\n", false, 0},
        {"outer: {rounds: 2, steps: 2}\nrecipe: {}\n", false, 0},
        {"outer: {rounds: 2, steps: 2}\nrecipe:\n", false, 0},
        {"outer: {rounds: 2, steps: 2}\nrecipe: {name: ddm, experts: 2}\n", false, 1},
        {"outer: {rounds: 2, steps: 2, async: true}\n", false, 1},
        {"outer: {rounds: 2, steps: 8, fragments: 2}\n", false, 1},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        char *kept, *text = str_printf("name: a\ndata: {path: x, image_size: 16}\n"
                                       "model: {preset: DiT-S/8}\ntrain: {batch: 8}\n%s",
                                       cases[i].keys);
        struct job_spec s, again;
        OK((cases[i].taken ? job_parse_taken : job_parse)(text, strlen(text), "job", &s, err));
        assert_int_equal(s.recipe.replicas, cases[i].replicas);
        OK(job_keep_defaults(text, &s, &kept, err));
        OK(job_parse_taken(kept, strlen(kept), "job", &again, err));
        assert_int_equal(again.recipe.replicas, cases[i].replicas);
        job_release(&again);
        job_release(&s);
        mem_free(kept);
        mem_free(text);
    }
}

/* A trainer of the user's has rates of its own. */
static void a_trainer_keeps_its_rate(void **state)
{
    static const char text[] = "name: a\ndata: {kind: none}\nmodel: {type: external}\n"
                               "trainer: {command: ./t}\ntrain: {batch: 8}\n"
                               "outer: {rounds: 2, steps: 2}\n";
    struct job_spec s;
    char *kept;
    OK(job_parse(text, strlen(text), "job", &s, err));
    OK(job_keep_defaults(text, &s, &kept, err));
    assert_non_null(strstr(kept, "outer: {warmup: 10, rounds"));
    assert_null(strstr(kept, "lr:"));
    mem_free(kept);
    job_release(&s);
}

/* A gigabyte each quarter of an hour, four times as many bytes twice as far apart, but none within
 * a minute; in the codec of contributions, or int8 where that is finer. */
static void snapshots_are_worth_their_bytes(void **state)
{
    static const struct {
        const char *more;
        uint64_t parameters;
        double apart_s;
    } cases[] = {
        {"outer: {rounds: 2, steps: 9}\nwire: {up: f32}", 250000000, 900},
        {"outer: {rounds: 2, steps: 9}\nwire: {up: f32}", 1000000000, 1800},
        {"outer: {rounds: 2, steps: 9}\nwire: {up: f32}", 1000000, 60},
        {"outer: {rounds: 2, steps: 9}\nwire: {up: e3m0}", 400000000, 571.4},
        {"outer: {rounds: 2, steps: 9, snapshot: auto}\nwire: {up: int8}", 400000000, 571.4},
        {"outer: {rounds: 2, steps: 9, snapshot: 5}", 400000000, 5},
        {"outer: {rounds: 2, steps: 9, snapshot: 0}", 400000000, 0},
        {"outer: {rounds: 2, steps: 9, fragments: 2}", 400000000, 0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct job_spec spec;
        char *text = str_printf("name: x\ndata: {path: x, image_size: 8}\n"
                                "model: {patch: 2, dim: 16, depth: 2, heads: 2}\n"
                                "train: {batch: 8}\n%s\n",
                                cases[i].more);
        OK(job_parse(text, strlen(text), "f", &spec, err));
        assert_float_equal(job_snapshot_s(&spec, cases[i].parameters), cases[i].apart_s, 0.1);
        job_release(&spec);
        mem_free(text);
    }
}

/* However a file is written, and whatever else is in it. */
static void secrets_are_left_out(void **state)
{
    static const struct {
        const char *text, *shown;
    } cases[] = {
        {"name: a\n", "name: a\n"},
        {"trainer: {env: A=1, command: b}\n", "trainer: {env: ['A='], command: b}\n"},
        {"trainer:\n  env:\n    - \"A=\\u00e9'\"\n    # was B=3\n    - B=2\n\n# end\n",
         "trainer:\n  env:\n     ['A=', 'B=']\n\n# end\n"},
        {"trainer:\n  env: |\n    A=1\n    2\n  command: b",
         "trainer:\n  env: ['A=']\n  command: b"},
        {"trainer:\n  env: [A=1,\n   no, \"it's=2\"]", "trainer:\n  env: ['A=', '', 'it''s=']"},
        {"trainer: {env: }\n", "trainer: {env: }\n"},
        {"name: \xc3\xa9\ndata: {\"url\": http://u@v@h/a#b, kind: text} # \xc3\xa9\n",
         "name: \xc3\xa9\ndata: {\"url\": ['http://h/a'], kind: text} # \xc3\xa9\n"},
        {"data: {url: [https://h/a@b, 'me:pw@h/a']}\n", "data: {url: ['https://h/a@b', '']}\n"},
        {"a: [", ""},
        /* a line end to libyaml alone */
        {"name: a # \xe2\x80\xa8"
         "trainer: {env: A=1}\n",
         ""},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        char *shown = job_without_secrets(cases[i].text);
        assert_string_equal(shown, cases[i].shown);
        mem_free(shown);
    }
}

/* Where defaults cannot be written in, others would read another job: it is refused.  A file that
 * leaves none out needs no room. */
static void what_has_no_room_is_refused(void **state)
{
    static const char *const heads[] = {
        "name: a\ndata: {path: x, image_size: 16}\nmodel: {preset: DiT-S/8}\n"
        "train: {batch: 8}\nouter: {rounds: 2, steps: 2}\n",
        /* a line end to libyaml alone */
        "name: a # \xe2\x80\xa8"
        "data: {path: x, image_size: 16}\nmodel: {preset: DiT-S/8}\n"
        "train: {batch: 8}\nouter: {rounds: 2, steps: 2}\n",
        "name: a\ndata: {path: x, image_size: 16}\nmodel: {preset: DiT-S/8}\n"
        "train: {batch: 8, lr: 1e-3, schedule: decay}\nouter: {rounds: 2, steps: 2, warmup: 1}\n"
        "recipe: {replicas: 1}\n",
    };
    for (size_t i = 0; i < COUNT(heads); i++) {
        struct job_spec s;
        char *full = mem_alloc(JOB_SPEC_MAX + 1), *kept = NULL;
        struct err why = {0};
        memset(full, '#', JOB_SPEC_MAX);
        memcpy(full, heads[i], strlen(heads[i]));
        full[i == 1 ? strlen(heads[1]) : JOB_SPEC_MAX] = '\0';
        OK(job_parse(full, strlen(full), "job", &s, err));
        assert_int_equal(job_keep_defaults(full, &s, &kept, &why), i < 2 ? -ERR_CONFIG : 0);
        if (i < 2)
            assert_non_null(strstr(why.msg, "give them, or shorten it"));
        else
            assert_string_equal(kept, full);
        mem_free(kept);
        mem_free(full);
        job_release(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_outer_steps_for_one_replica),
        cmocka_unit_test(young_models),
        cmocka_unit_test(average_of_old_jobs),
        cmocka_unit_test(rates_of_texts),
        cmocka_unit_test(shares_are_capped),
        cmocka_unit_test(defaults_are_written_into_a_job),
        cmocka_unit_test(fragments_are_written_in_with_their_reason),
        cmocka_unit_test(guidance_of_captions),
        cmocka_unit_test(schedules_of_texts),
        cmocka_unit_test(momentum_fits_the_outer_steps),
        cmocka_unit_test(all_workers_train),
        cmocka_unit_test(a_trainer_keeps_its_rate),
        cmocka_unit_test(secrets_are_left_out),
        cmocka_unit_test(snapshots_are_worth_their_bytes),
        cmocka_unit_test(what_has_no_room_is_refused),
        cmocka_unit_test(fills_the_defaults),
        cmocka_unit_test(reads_every_kind),
        cmocka_unit_test(refuses_with_a_sentence),
        cmocka_unit_test(keys_that_need_each_other),
        cmocka_unit_test(the_router_fits),
        cmocka_unit_test(keys_without_effect),
        cmocka_unit_test(documents_itself),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
