/* The rows of model families. */
#include "tests/unit/common/base/util.h"

#include "common/base/buf.h"
#include "common/job/family.h"

static const char images_job[] = "name: a\n"
                                 "data: {path: x, image_size: 32}\n"
                                 "model: {dim: 16, depth: 1, heads: 2}\n"
                                 "train: {batch: 4}\n"
                                 "outer: {rounds: 1, steps: 2}\n";
static const char texts_job[] = "name: a\n"
                                "data: {path: x}\n"
                                "model: {type: llama, dim: 16, depth: 1, heads: 2, context: 24}\n"
                                "train: {batch: 4}\n"
                                "outer: {rounds: 1, steps: 2}\n";

static struct job_spec parse(const char *text)
{
    struct err err = {0};
    struct job_spec s;
    if (job_parse(text, strlen(text), "job", &s, &err) < 0)
        fail_msg("%s", err.msg);
    return s;
}

/* What the others ask a family. */
static void test_rows(void **state)
{
    struct job_spec images = parse(images_job), texts = parse(texts_job);
    (void)state;
    assert_string_equal(job_family(&images)->name, "dit");
    assert_false(job_is_text(&images));
    assert_int_equal(job_tokens(&images), 16 * 16);
    assert_true(job_family(&images)->mixes);
    assert_false(job_family(&images)->chunks);
    assert_int_equal(job_family(&images)->features, JOB_FEATURES_PIXELS);

    assert_string_equal(job_family(&texts)->name, "llama");
    assert_true(job_is_text(&texts));
    assert_int_equal(job_tokens(&texts), 24);
    assert_int_equal(job_piece(&texts), 25); /* the last one is only predicted */
    assert_false(job_family(&texts)->mixes);
    assert_true(job_family(&texts)->chunks);
    assert_int_equal(job_family(&texts)->features, JOB_FEATURES_NGRAMS);
    job_release(&texts);
    texts = parse("name: a\ndata: {path: x, kind: texts}\ntrain: {batch: 4}\n"
                  "model: {type: external, context: 24}\ntrainer: {command: train}\n"
                  "outer: {rounds: 1, steps: 2}\n");
    assert_int_equal(job_piece(&texts), 24); /* a trainer may have no room for more */
    job_release(&images);
    job_release(&texts);
}

/* A worker takes no longer prompt; a job that was taken with one is kept. */
static void test_prompt(void **state)
{
    char text[9000];
    struct job_spec s;
    for (size_t n = 8192; n <= 8193; n++) {
        struct err err = {0};
        (void)snprintf(text, sizeof(text), "%ssample: {prompt: %0*d}\n", texts_job, (int)n, 1);
        assert_int_equal(job_parse(text, strlen(text), "job", &s, &err) == 0, n == 8192);
        if (n == 8192)
            job_release(&s);
        else
            assert_string_equal(err.msg,
                                "job:6: sample.prompt has 8193 bytes, at most 8192 are possible");
        assert_int_equal(job_parse_taken(text, strlen(text), "job", &s, &err), 0);
        job_release(&s);
    }
}

/* With a VAE the side of the network's input is the latents', which the file does not tell. */
static void test_encoders(void **state)
{
    static const char head[] = "name: a\ndata: {path: x, image_size: 30}\ntrain: {batch: 4}\n"
                               "outer: {rounds: 1, steps: 2}\n";
    const struct {
        const char *rest, *error; /* NULL: fine */
        bool latents, captions;
    } cases[] = {
        {"model: {dim: 16, depth: 1, heads: 2, patch: 4}\nencoders: {vae: v}\n", NULL, true, false},
        {"model: {dim: 16, depth: 1, heads: 2, patch: 4}\nencoders: {path: p}\n", NULL, true, true},
        {"model: {dim: 16, depth: 1, heads: 2}\nencoders: {text: t, tokenizer: k}\n", NULL, false,
         true},
        {"model: {dim: 16, depth: 1, heads: 2, patch: 4}\n",
         "job:5: model.patch is 4, which does not divide data.image_size (30)", false, false},
        {"model: {dim: 16, depth: 1, heads: 2}\nencoders: {path: p, vae: v}\n",
         "job:6: encoders.vae and encoders.path are both given; leave out one", false, false},
        {"model: {dim: 16, depth: 1, heads: 2}\nencoders: {tokenizer: k}\n",
         "job:6: encoders.tokenizer is given without encoders.text; give the text encoder, too",
         false, false},
        {"model: {dim: 20, depth: 1, heads: 2}\nencoders: {text: t}\n",
         "job:5: model.dim is 20, expected a multiple of 16 for a model that is told captions",
         false, false},
        {"model: {dim: 16, depth: 1, heads: 2}\nencoders: {text: t, run: job}\n",
         "job:6: encoders.run keeps latents, but there is no encoders.vae to make them", false,
         false},
        {"model: {dim: 16, depth: 1, heads: 2}\nencoders: {vae: v, run: island}\n",
         "job:6: encoders.run is 'island', expected one of auto, fly, worker, job; fly, with "
         "train.fill, is what runs the VAE in the bubbles of an island's pipeline",
         false, false},
        {"model: {dim: 16, depth: 1, heads: 2}\nsample: {prompts: [a]}\n",
         "job:6: sample.prompts is given, but there is no encoders.text to read them", false,
         false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct err err = {0};
        struct job_spec s;
        char *text = str_printf("%s%s", head, cases[i].rest);
        int rc = job_parse(text, strlen(text), "job", &s, &err);
        assert_string_equal(err.msg, cases[i].error ? cases[i].error : "");
        assert_int_equal(rc < 0, cases[i].error != NULL);
        if (rc == 0) {
            assert_int_equal(job_has_latents(&s), cases[i].latents);
            assert_int_equal(job_has_captions(&s), cases[i].captions);
            job_release(&s);
        }
        mem_free(text);
    }
}

/* A grid has room for so many captions. */
/* A model of two chains: what the file leaves out is as the model has it, and what fits not is
 * refused in one sentence. */
static const struct {
    const char *rest, *error, *model, *train; /* more keys of these */
} with_upscaler[] = {
    {"data: {path: x, image_size: 32}\nupscaler: {low_side: 8, patch: 4}\n", NULL},
    {"data: {path: x, image_size: 32}\nupscaler: {low_side: 8, patch: 4}\n", NULL,
     ", self_condition: 0.5"},
    {"data: {path: x, image_size: 32}\nupscaler: {low_side: 8, patch: 4}\n", NULL, "",
     ", parallel: pipeline, pipeline: bidirectional, stages: 3"},
    {"data: {path: x, image_size: 32}\nupscaler: {low_side: 8, depth: 2}\n",
     "train.stages is 3, but the upscaler has 2 blocks", "", ", stages: 3, pipeline: 1f1b"},
    {"data: {path: x, image_size: 32}\nupscaler: {low_side: 8, depth: 2}\n",
     "train.stages is 6, but the model and the upscaler have 5 blocks", "", ", stages: 6"},
    {"data: {path: x, image_size: 32}\nupscaler: {low_side: 8, patch: 4}\n", NULL, "",
     ", pipeline: split"},
    {"data: {path: x, image_size: 32}\nupscaler: {low_side: 8, depth: 2}\n",
     "train.stages is 9, but the model and the upscaler have 5 blocks", "",
     ", pipeline: divided, stages: 9"},
    {"data: {path: x, image_size: 32}\nupscaler: {low_side: 8, patch: 4}\n", NULL, "",
     ", pipeline: divided, stages: 6"},
    {"data: {path: x, image_size: 32}\n", "train.pipeline is divided, which is for two chains", "",
     ", pipeline: divided"},
    {"data: {path: x, image_size: 32}\n",
     "train.pipeline is bidirectional, which is for two chains, but there is no upscaler; take "
     "1f1b or split",
     "", ", pipeline: bidirectional"},
    {"data: {path: x, image_size: 32}\nupscaler: {low_side: 12}\n",
     "upscaler.low_side is 12, which does not divide data.image_size (32)"},
    {"data: {path: x, image_size: 32}\nupscaler: {low_side: 8}\nrouter: {patch: 16}\n",
     "router.patch is 16, which does not divide upscaler.low_side (8)"},
    {"data: {path: x, image_size: 32}\nupscaler: {low_side: 32}\n",
     "upscaler.low_side is 32, which does not divide data.image_size (32) into parts"},
    {"data: {path: x, image_size: 32}\nupscaler: {dim: 32}\n", "upscaler.low_side is missing"},
    {"data: {path: x, image_size: 32}\nupscaler: {low_side: 8, patch: 5}\n",
     "upscaler.patch is 5, which does not divide data.image_size (32)"},
    {"data: {path: x, image_size: 512}\nupscaler: {low_side: 64}\n", "more than 4096 tokens"},
    {"data: {path: x, image_size: 30}\nupscaler: {low_side: 15}\n",
     "model.patch is 2, which does not divide upscaler.low_side (15)"},
    {"data: {path: x, image_size: 32}\nupscaler: {low_side: 8, heads: 3}\n",
     "upscaler.dim is 16, expected a multiple of 4 and of upscaler.heads (3)"},
    {"data: {path: x, image_size: 32}\nupscaler: {low_side: 8, noise: 0.95}\n", "upscaler.noise"},
    {"data: {path: x, image_size: 32}\nupscaler: {low_side: 8, depth: 254}\n",
     "upscaler.depth is 254, which makes 257 blocks"},
    {"data: {path: x, image_size: 32}\nencoders: {vae: v}\nupscaler: {low_side: 8}\n",
     "with encoders.vae, but both chains read pixels"},
    {"data: {path: x, image_size: 32}\nencoders: {text: t}\nupscaler: {low_side: 8, patch: 4}\n",
     NULL},
    {"data: {path: x, image_size: 32}\nencoders: {text: t}\n"
     "upscaler: {low_side: 8, patch: 4, dim: 20, heads: 1}\n",
     "upscaler.dim is 20, expected a multiple of 16 for a model that is told captions"},
    {"data: {path: x, image_size: 32, buckets: [16x32]}\nupscaler: {low_side: 8}\n",
     "takes only square images"},
    {"data: {path: x, image_size: 32}\nupscaler: {low_side: 8, patch: 4}\n"
     "partition: {features: model}\n",
     "partition.features is model, but a model with an upscaler gives no features",
     ", warm_start: w"},
};

static void test_upscaler(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof with_upscaler / sizeof *with_upscaler; i++) {
        char text[512];
        struct err err = {0};
        struct job_spec s;
        (void)snprintf(text, sizeof text,
                       "name: a\nouter: {rounds: 1, steps: 2}\ntrain: {batch: 4%s}\n"
                       "model: {dim: 16, depth: 3, heads: 2%s}\n%s",
                       with_upscaler[i].train ? with_upscaler[i].train : "",
                       with_upscaler[i].model ? with_upscaler[i].model : "", with_upscaler[i].rest);
        const int rc = job_parse(text, strlen(text), "job", &s, &err);
        if (with_upscaler[i].error && !strstr(err.msg, with_upscaler[i].error))
            fail_msg("'%s' does not say '%s'", err.msg, with_upscaler[i].error);
        assert_int_equal(rc, with_upscaler[i].error ? -ERR_CONFIG : 0);
        if (rc == 0) {
            assert_true(job_has_upscaler(&s));
            assert_int_equal(job_tokens(&s), 4 * 4); /* of what the model sees */
            assert_int_equal(s.upscaler.patch, 4);
            assert_int_equal(s.upscaler.dim, 16);
            assert_int_equal(s.upscaler.heads, 2);
            assert_int_equal(job_blocks(&s), 6);
            assert_int_equal(s.router.patch, 2); /* of 8 x 8 pixels: 4 would leave 4 tokens */
        }
        job_release(&s);
    }
}

/* What the job says; else the network where it knows something; else the family's own. */
static void test_features(void **state)
{
    static const struct {
        const char *rest;
        int features;
    } jobs[] = {
        {"data: {path: x, image_size: 32}\nmodel: {SIZE}\n", JOB_FEATURES_PIXELS},
        {"data: {path: x, image_size: 32}\nmodel: {SIZE, warm_start: w}\n", JOB_FEATURES_MODEL},
        {"data: {path: x, image_size: 32}\nmodel: {SIZE, warm_start: w}\n"
         "partition: {features: pixels}\n",
         JOB_FEATURES_PIXELS},
        {"data: {path: x, image_size: 32}\nmodel: {SIZE, warm_start: w}\n"
         "upscaler: {low_side: 8}\n",
         JOB_FEATURES_PIXELS},
        {"data: {path: x, image_size: 32}\nmodel: {SIZE}\nencoders: {vae: v}\n",
         JOB_FEATURES_LATENTS},
        {"data: {path: x}\nmodel: {type: llama, SIZE}\n", JOB_FEATURES_NGRAMS},
        {"data: {path: x}\nmodel: {type: llama, SIZE, warm_start: w}\n", JOB_FEATURES_MODEL},
        {"data: {path: x, image_size: 32, kind: images}\ntrainer: {command: t}\n"
         "model: {type: external, warm_start: w}\n",
         JOB_FEATURES_PIXELS},
    };
    (void)state;
    for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++) {
        char text[512];
        const char *size = strstr(jobs[i].rest, "SIZE");
        const int n = size ? (int)(size - jobs[i].rest) : (int)strlen(jobs[i].rest);
        (void)snprintf(text, sizeof text,
                       "name: a\nouter: {rounds: 1, steps: 2}\n"
                       "train: {batch: 4}\n%.*s%s%s",
                       n, jobs[i].rest, size ? "dim: 16, depth: 1, heads: 2" : "",
                       size ? size + 4 : "");
        struct job_spec s = parse(text);
        assert_int_equal(job_features(&s), jobs[i].features);
        job_release(&s);
    }
}

/* What turns more slowly than the fast ones turns faster than the slow ones. */
static void test_scaled_positions(void **state)
{
    static const char text[] = "name: a\ndata: {path: x}\nouter: {rounds: 1, steps: 2}\n"
                               "train: {batch: 4}\n"
                               "model: {type: llama, dim: 16, depth: 2, heads: 2, "
                               "rope_scaling: {rope_type: llama3, low_freq_factor: 4}}\n";
    struct err err = {0};
    struct job_spec s;
    (void)state;
    assert_int_equal(job_parse(text, strlen(text), "job", &s, &err), -ERR_CONFIG);
    assert_string_equal(err.msg, "job:5: model.rope_scaling.high_freq_factor is 4, expected more "
                                 "than low_freq_factor (4)");
}

/* A language model has no estimate. */
static void test_no_estimate(void **state)
{
    static const char text[] = "name: a\ndata: {path: x}\nouter: {rounds: 1, steps: 2}\n"
                               "train: {batch: 4}\n"
                               "model: {type: llama, dim: 16, depth: 2, heads: 2, "
                               "self_condition: 0.5}\n";
    struct err err = {0};
    struct job_spec s;
    (void)state;
    assert_int_equal(job_parse(text, strlen(text), "job", &s, &err), 0);
    assert_int_equal(job_check_scope(text, strlen(text), "job", &s, &err), -ERR_CONFIG);
    assert_string_equal(err.msg, "job:5: model.self_condition goes only with images, but model."
                                 "type is llama: it would do nothing; leave it out");
    job_release(&s);
}

static void test_prompts(void **state)
{
    struct err err = {0};
    struct job_spec s;
    struct buf b;
    buf_init(&b, 1 << 20);
    assert_int_equal(buf_append_str(&b, "name: a\ndata: {path: x, image_size: 32}\n"
                                        "train: {batch: 4}\nouter: {rounds: 1, steps: 2}\n"
                                        "model: {dim: 16, depth: 1, heads: 2}\n"
                                        "encoders: {text: t}\nsample: {prompts: [a"),
                     0);
    for (int i = 1; i <= 1024; i++)
        assert_int_equal(buf_append_str(&b, ", a"), 0);
    assert_int_equal(buf_append_str(&b, "]}\n"), 0);
    assert_true(job_parse(buf_str(&b), b.len, "job", &s, &err) < 0);
    assert_string_equal(err.msg,
                        "job:7: sample.prompts has 1025 captions, at most 1024 are possible");
    buf_release(&b);
}

/* What is kept is of one square of each image. */
static void test_crop(void **state)
{
    static const char format[] = "name: a\ndata: {path: x, image_size: 32, crop: %s}\n"
                                 "train: {batch: 4}\nouter: {rounds: 1, steps: 2}\n"
                                 "model: {dim: 16, depth: 1, heads: 2}\n"
                                 "encoders: {vae: v, run: %s}\n";
    static const struct {
        const char *crop, *run, *error; /* NULL: fine */
    } cases[] = {
        {"center", "job", NULL},
        {"random", "auto", NULL},
        {"random", "fly", NULL},
        {"random", "job", "job:6: encoders.run keeps latents, but with data.crop: random"},
        {"random", "worker", "job:6: encoders.run keeps latents, but with data.crop: random"},
        {"left", "fly", "job:2: data.crop"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct err err = {0};
        struct job_spec s;
        char *text = str_printf(format, cases[i].crop, cases[i].run);
        int rc = job_parse(text, strlen(text), "job", &s, &err);
        assert_int_equal(rc < 0, cases[i].error != NULL);
        if (rc < 0) {
            assert_non_null(strstr(err.msg, cases[i].error));
        } else {
            assert_int_equal(s.data.crop == JOB_CROP_RANDOM, strcmp(cases[i].crop, "random") == 0);
            job_release(&s);
        }
        mem_free(text);
    }
}

static int parse_external(const char *model, const char *more, struct job_spec *spec,
                          struct err *err)
{
    char *text = str_printf("name: x\ndata: {%s}\nmodel: {type: external%s}\ntrain: {batch: 4}\n"
                            "outer: {rounds: 3, steps: 6}\n%s",
                            model, strstr(model, "texts") ? ", context: 64" : "", more);
    int rc = job_parse(text, strlen(text), "job.yaml", spec, err);
    if (rc == 0 && (rc = job_check_scope(text, strlen(text), "job.yaml", spec, err)) < 0)
        job_release(spec);
    mem_free(text);
    return rc;
}

static void test_external(void **state)
{
#define TRAINER "trainer: {command: ./t}\n"
    static const struct {
        const char *data, *more, *said;
    } cases[] = {
        {"kind: texts, path: x", "", "trainer.command"},
        {"kind: none", "trainer: {command: ' '}\n", "trainer.command is missing"},
        {"path: x", TRAINER, "data.kind"},
        {"kind: none, path: x", TRAINER, "data.kind is none, but data.path"},
        {"kind: texts", TRAINER, "data.path is missing"},
        {"kind: none", "trainer: {command: ./t, env: [A]}\n", "expected NAME=VALUE"},
        {"kind: none", "trainer: {command: ./t, env: [SKERRY_X=1]}\n", "are the worker's"},
        {"kind: none", "trainer: {command: ./t, levels: [' ']}\n", "an empty pattern"},
        {"kind: none", TRAINER "eval: {every: 1}\n", "there is nothing to evaluate on"},
        {"kind: none", TRAINER "router: {dim: 8}\n", "router goes only with images"},
        {"kind: images, path: x, image_size: 8", TRAINER, "data.image_size goes only with images"},
        {"kind: texts, path: x", TRAINER "partition: {features: pixels}\n", "texts do not have"},
    };
    static const char rate[] = "name: x\ndata: {kind: none}\nmodel: {type: external}\n" TRAINER
                               "train: {batch: 4, lr: 1e-3}\nouter: {rounds: 3, steps: 6}\n";
    struct job_spec spec;
    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++)
        FAILS(parse_external(cases[i].data, cases[i].more, &spec, err), cases[i].said);
    OK(job_parse(rate, strlen(rate), "job.yaml", &spec, err));
    FAILS(job_check_scope(rate, strlen(rate), "job.yaml", &spec, err), "train.lr would do nothing");
    job_release(&spec);
    OK(parse_external("kind: texts, path: x", TRAINER, &spec, err));
    assert_true(job_is_text(&spec) && job_family(&spec)->external && job_has_data(&spec));
    assert_int_equal(spec.model.depth, 1);
    job_release(&spec);
    OK(parse_external("kind: images, path: x",
                      TRAINER "partition: {features: column, column: emb}\n", &spec, err));
    job_release(&spec);
    static const char model[] = "name: x\ndata: {kind: images, path: x}\n" TRAINER
                                "model: {type: external, warm_start: w}\ntrain: {batch: 4}\n"
                                "outer: {rounds: 3, steps: 6}\npartition: {features: model}\n";
    FAILS(job_parse(model, strlen(model), "job.yaml", &spec, err),
          "partition.features is model, but a trainer's model");
    OK(parse_external(
        "kind: none",
        "sample: {prompt: once, tokens: 9}\ntrainer: {command: ./t, levels: [a* b*, c*]}\n"
        "recipe: {name: dipaco, levels: [2, 2]}\n",
        &spec, err));
    assert_false(job_has_data(&spec));
    assert_int_equal(spec.model.depth, 2);
    assert_true(spec.recipe.private_embeddings);
    job_release(&spec);
}

/* Every row is full, and no key is of all families. */
static void test_complete(void **state)
{
    const struct job_family *f, *g;
    int n = 0;
    (void)state;
    for (; (f = job_family_at(n)) != NULL; n++) {
        assert_true(f->name && f->what && f->samples && f->tokens && f->complete);
        char key[64];
        for (const char *keys = f->keys; str_take_word(&keys, key, sizeof key);) {
            bool all = true;
            for (int other = 0; (g = job_family_at(other)) != NULL; other++)
                all &= str_has_word(g->keys, key);
            assert_false(all);
        }
    }
    assert_int_equal(n, 5); /* external: by what its samples are */
    assert_null(job_family_at(-1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),        cmocka_unit_test(test_encoders),
        cmocka_unit_test(test_no_estimate), cmocka_unit_test(test_scaled_positions),
        cmocka_unit_test(test_upscaler),    cmocka_unit_test(test_features),
        cmocka_unit_test(test_prompt),      cmocka_unit_test(test_prompts),
        cmocka_unit_test(test_crop),        cmocka_unit_test(test_external),
        cmocka_unit_test(test_complete),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
