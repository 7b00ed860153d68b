/* workerd --plan: what it prints of a job and a profile, and of files that are not there. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <unistd.h>

#include "common/base/file.h"
#include "worker/show_plan.h"

/* A job of this recipe. */
#define RECIPE(recipe)                                                                             \
    "name: t\nseed: 1\ndata: {path: /nowhere, image_size: 16}\n"                                   \
    "model: {patch: 4, dim: 64, depth: 4, heads: 2}\n"                                             \
    "train: {batch: 32, accumulate: 4, lr: 1e-3}\n"                                                \
    "recipe: " recipe "\nouter: {rounds: 1, steps: 1}\n"
static const char job[] = RECIPE("{name: diloco, replicas: 1}");
static const char tied[] = "name: t\nseed: 1\ndata: {path: /nowhere}\n"
                           "model: {type: llama, dim: 64, depth: 4, heads: 2, tied: true}\n"
                           "train: {batch: 32, accumulate: 4, lr: 1e-3}\n"
                           "recipe: {name: diloco, replicas: 1}\nouter: {rounds: 1, steps: 1}\n";
static const char profile[] =
    "{\"format\": \"skerry-pipeline-profile\", \"version\": 1, \"model\": \"toy\","
    " \"sizes\": [8], \"chains\": [{\"name\": \"dit\", \"layers\": [{\"f\": [1], \"b\": [1],"
    " \"w\": [1], \"gradient_bytes\": 1000000, \"count\": 4}]}],"
    " \"devices\": [{\"name\": \"card\", \"memory\": 1000, \"count\": 2}],"
    " \"links\": [{\"alpha\": 0, \"bytes_per_s\": 20000}]}";

/* Of two chains, on devices that both have a stage of each. */
static const char cascade[] =
    "{\"format\": \"skerry-pipeline-profile\", \"version\": 1, \"model\": \"toy\","
    " \"sizes\": [8], \"chains\": [{\"name\": \"base\", \"layers\": [{\"f\": [1], \"b\": [1],"
    " \"w\": [1], \"gradient_bytes\": 1000000, \"count\": 4}]}, {\"name\": \"upscaler\","
    " \"layers\": [{\"f\": [1], \"b\": [1], \"w\": [1], \"gradient_bytes\": 1000000,"
    " \"count\": 4}]}], \"devices\": [{\"name\": \"card\", \"memory\": 1000, \"count\": 2}],"
    " \"links\": [{\"alpha\": 0, \"bytes_per_s\": 20000}]}";

struct folder {
    char dir[64], *job, *profile;
};

static int open_folder(void **state)
{
    struct folder *f = mem_alloc(sizeof *f);
    str_copy(f->dir, sizeof f->dir, "/tmp/skerry-plan-XXXXXX");
    assert_non_null(mkdtemp(f->dir));
    f->job = file_join(f->dir, "job.yaml");
    f->profile = file_join(f->dir, "profile.json");
    assert_int_equal(file_write_atomic(f->job, job, strlen(job), 0600, NULL), 0);
    assert_int_equal(file_write_atomic(f->profile, profile, strlen(profile), 0600, NULL), 0);
    *state = f;
    return 0;
}

static int close_folder(void **state)
{
    struct folder *f = *state;
    (void)file_remove_tree(f->dir, NULL);
    mem_free(f->job);
    mem_free(f->profile);
    mem_free(f);
    return 0;
}

static char *shown(const struct folder *f)
{
    struct err err = {0};
    char *text = NULL;
    size_t len = 0;
    FILE *out = open_memstream(&text, &len);
    if (show_plan(f->job, f->profile, out, &err) < 0)
        fail_msg("%s", err.msg);
    assert_int_equal(fclose(out), 0);
    return text;
}

/* costs: of a model of so many blocks a chain. */
static char *shown_deep(const struct folder *f, const char *train, const char *costs, int depth)
{
    char asked[512];
    const char *at_depth = strstr(job, "depth: 4");
    (void)snprintf(asked, sizeof asked, "%.*sdepth: %d%s", (int)(at_depth - job), job, depth,
                   at_depth + strlen("depth: 4"));
    char *at = strstr(asked, "lr: 1e-3");
    (void)snprintf(at, sizeof asked - (size_t)(at - asked), "lr: 1e-3, %s}\n%s%s", train,
                   strstr(costs, "upscaler") ? "upscaler: {low_side: 8}\n" : "",
                   strstr(job, "recipe:"));
    assert_int_equal(file_write_atomic(f->job, asked, strlen(asked), 0600, NULL), 0);
    assert_int_equal(file_write_atomic(f->profile, costs, strlen(costs), 0600, NULL), 0);
    char *text = shown(f);
    assert_int_equal(file_write_atomic(f->job, job, strlen(job), 0600, NULL), 0);
    assert_int_equal(file_write_atomic(f->profile, profile, strlen(profile), 0600, NULL), 0);
    return text;
}

static char *shown_with(const struct folder *f, const char *train, const char *costs)
{
    return shown_deep(f, train, costs, 4);
}

static void says(char *text, const char *sentence)
{
    if (!strstr(text, sentence))
        fail_msg("'%s' does not say '%s'", text, sentence);
    free(text);
}

/* As a worker of these devices would have it. */
static void test_keys(void **state)
{
    const struct folder *f = *state;
    says(shown_with(f, "parallel: data", profile), "\n1f1b           not asked for\n");
    says(shown_with(f, "parallel: pipeline", profile), "\ndata           not asked for\n");
    says(shown_with(f, "stages: 2", profile), "\ndata           not asked for\n");
    says(shown_with(f, "recompute: true", profile), "\nsplit          not asked for\n");
    says(shown_with(f, "shard: optimizer", profile), "  shared state\n");
    says(shown_with(f, "pipeline: bidirectional", cascade), "\njoined         not asked for\n");
}

/* A frozen network that has room beside the last stage alone. */
static const char tight[] =
    "{\"format\": \"skerry-pipeline-profile\", \"version\": 1, \"model\": \"toy\","
    " \"sizes\": [8], \"chains\": [{\"name\": \"dit\", \"layers\": [{\"f\": [1], \"b\": [1],"
    " \"w\": [1], \"weight_bytes\": 25, \"count\": 32}]}], \"groups\": [1],"
    " \"frozen\": [{\"name\": \"text\", \"layers\": [{\"t\": [0.01], \"weight_bytes\": 700,"
    " \"scratch_bytes\": 1}]}],"
    " \"devices\": [{\"name\": \"card\", \"memory\": 1000, \"count\": 2}]}";

/* The frozen network fits beside the last stage alone, of cuts that leave it room there. */
static void test_devices(void **state)
{
    char *text = shown_deep(*state, "parallel: pipeline, pipeline: 1f1b", tight, 32);
    assert_non_null(strstr(text, "  dit layers 21 to 31 on card: "));
    assert_non_null(strstr(text,
                           "  card: 525 B, of which 525 B model and optimiser, 0 B slots, 0 B "
                           "beside them; no room for the frozen networks: others encode\n"));
    says(text, "  card: 991 B, of which 275 B model and optimiser, 0 B slots, 0 B beside them, "
               "700 B frozen weights, 16 B scratch\n");
}

/* A frozen network of four layers that no device holds beside a stage, but two of its layers. */
#define DEEP(devices)                                                                              \
    "{\"format\": \"skerry-pipeline-profile\", \"version\": 1, \"model\": \"toy\","                \
    " \"sizes\": [8], \"chains\": [{\"name\": \"dit\", \"layers\": [{\"f\": [1], \"b\": [1],"      \
    " \"w\": [1], \"weight_bytes\": 180, \"count\": 4}]}], \"groups\": [1],"                       \
    " \"frozen\": [{\"name\": \"text\", \"layers\": [{\"t\": [0.01], \"weight_bytes\": 280,"       \
    " \"scratch_bytes\": 1, \"count\": 3}, {\"t\": [1], \"weight_bytes\": 20}]}],"                 \
    " \"devices\": [{\"name\": \"card\", \"memory\": 1000, \"count\": 2" devices "}]}"

static void test_streamed(void **state)
{
    struct folder *f = *state;
    struct err err = {0};
    char *text = shown_with(f, "parallel: pipeline, pipeline: 1f1b", DEEP(", \"from_host\": 560"));
    assert_non_null(strstr(text, "\n1f1b                2      1      4       63.5       63.5"));
    says(text,
         "No device has room for the frozen networks (860 B): they stay in the host's "
         "memory, and the first stage's devices stream them, in 592 B, before each step. For "
         "32 samples each that takes 33.5 s, which the seconds above include; copies alone take "
         "1.536 s.\n");
    /* Also where they fill no bubbles. */
    text = shown_with(f, "parallel: pipeline, pipeline: 1f1b, fill: false",
                      DEEP(", \"from_host\": 560"));
    assert_non_null(strstr(text, "stream them, in 592 B, before each step."));
    free(text);
    /* Unless the devices' memory is the host's. */
    assert_int_equal(file_write_atomic(f->profile, DEEP(""), strlen(DEEP("")), 0600, NULL), 0);
    assert_int_equal(show_plan(f->job, f->profile, stderr, &err), -ENOMEM);
    assert_non_null(strstr(err.msg, "the frozen networks need "));
    assert_int_equal(file_write_atomic(f->profile, profile, strlen(profile), 0600, NULL), 0);
}

/* The first stage has it, and nothing is known of that. */
static void test_unfilled(void **state)
{
    char *text = shown_deep(*state, "parallel: pipeline, pipeline: 1f1b, fill: false", tight, 32);
    assert_null(strstr(text, "others encode"));
    assert_non_null(strstr(text, " 32 samples a step on 2 devices"));
    assert_non_null(strstr(text, "\n1f1b                2      1      4      276.3      276.3"));
    says(text, "\nThe first stage runs the frozen networks before each step (train.fill: false);");
    /* Pictures of several shapes, too, are encoded before the step. */
    const struct folder *f = *state;
    const char *shapes = "name: t\nseed: 1\ndata: {path: /nowhere, image_size: 16, "
                         "buckets: [16x16, 32x8]}\n"
                         "model: {patch: 4, dim: 64, depth: 32, heads: 2}\n"
                         "train: {batch: 32, accumulate: 4, lr: 1e-3}\n"
                         "recipe: {name: diloco}\nouter: {rounds: 1, steps: 1}\n";
    assert_int_equal(file_write_atomic(f->job, shapes, strlen(shapes), 0600, NULL), 0);
    assert_int_equal(file_write_atomic(f->profile, tight, strlen(tight), 0600, NULL), 0);
    says(shown(f), "\nThe first stage runs the frozen networks before each step (data.buckets);");
    assert_int_equal(file_write_atomic(f->job, job, strlen(job), 0600, NULL), 0);
    assert_int_equal(file_write_atomic(f->profile, profile, strlen(profile), 0600, NULL), 0);
}

static void test_text(void **state)
{
    char *text = shown(*state);
    assert_non_null(strstr(text, "toy: 32 samples a step on 2 devices; simulated"));
    assert_non_null(strstr(text, "\ndata                1      1      4 "));
    assert_non_null(strstr(text, "\n1f1b                2      1      4         30         30"));
    assert_non_null(strstr(text, "\nbidirectional  it is for two chains\n"));
    assert_non_null(strstr(text, "split with 2 stages takes"));
    assert_non_null(strstr(text, "  dit layers 2 to 3 on card: 4 micro-batches of 8,"));
    free(text);
}

/* However many micro-batches memory asks for. */
static void test_automatic(void **state)
{
    const struct folder *f = *state;
    const char *many = "name: t\nseed: 1\ndata: {path: /nowhere, image_size: 16}\n"
                       "model: {patch: 4, dim: 64, depth: 4, heads: 2}\n"
                       "train: {batch: 4096, lr: 1e-3}\n"
                       "recipe: {name: diloco}\nouter: {rounds: 1, steps: 1}\n";
    const char *slots =
        "{\"format\": \"skerry-pipeline-profile\", \"version\": 1, \"model\": \"toy\","
        " \"sizes\": [8], \"chains\": [{\"name\": \"dit\", \"layers\": [{\"f\": [1], \"b\": [1],"
        " \"w\": [1], \"slot_bytes\": 9, \"count\": 4}]}],"
        " \"devices\": [{\"name\": \"card\", \"memory\": 1000, \"count\": 2}]}";
    assert_int_equal(file_write_atomic(f->job, many, strlen(many), 0600, NULL), 0);
    assert_int_equal(file_write_atomic(f->profile, slots, strlen(slots), 0600, NULL), 0);
    says(shown(f), "\ndata                1      1    128 ");
    assert_int_equal(file_write_atomic(f->job, job, strlen(job), 0600, NULL), 0);
    assert_int_equal(file_write_atomic(f->profile, profile, strlen(profile), 0600, NULL), 0);
}

/* A worker trains one expert, whose step has its share of the batch. */
static void test_experts(void **state)
{
    const struct folder *f = *state;
    const char *experts = RECIPE("{name: ddm, experts: 4}");
    assert_int_equal(file_write_atomic(f->job, experts, strlen(experts), 0600, NULL), 0);
    char *text = shown(f);
    assert_non_null(strstr(text, "The experts share train.batch (32): each has 8 samples a step."));
    says(text, "toy: 8 samples a step on 2 devices;");
    assert_int_equal(file_write_atomic(f->job, job, strlen(job), 0600, NULL), 0);
}

/* Both chains' stages are said, and one order alone where the job asks for it. */
static void test_chains(void **state)
{
    const struct folder *f = *state;
    char *text = shown_with(f, "parallel: auto", cascade);
    assert_non_null(strstr(text, "\njoined              2      1      4         54         54"));
    assert_non_null(strstr(text, "\nbidirectional       2      1      4         48 "));
    assert_non_null(strstr(text, "  base layers "));
    assert_non_null(strstr(text, "  upscaler layers "));
    free(text);
    says(shown_with(f, "pipeline: bidirectional", cascade),
         "\nbidirectional       2      1      4         48 ");
    assert_int_equal(file_write_atomic(f->profile, profile, strlen(profile), 0600, NULL), 0);
}

/* Of two chains, too, the frozen networks are in bubbles, unless the job keeps them out. */
static void test_filled_chains(void **state)
{
    char *with = str_printf("%.*s, \"groups\": [1], \"frozen\": [{\"name\": \"captions\", "
                            "\"layers\": [{\"t\": [0.1]}]}]}",
                            (int)strlen(cascade) - 1, cascade);
    char *text = shown_with(*state, "pipeline: bidirectional", with);
    assert_null(strstr(text, "not counted"));
    says(text, " frozen weights, ");
    says(shown_with(*state, "pipeline: bidirectional, fill: false", with),
         "Each chain's first stage runs the frozen networks before each step (train.fill: false); "
         "the seconds above include that.\n");
    mem_free(with);
}

static void refused(const char *job_path, const char *profile_path, const char *sentence)
{
    struct err err = {0};
    assert_true(show_plan(job_path, profile_path, stdout, &err) < 0);
    if (!strstr(err.msg, sentence))
        fail_msg("'%s' does not say '%s'", err.msg, sentence);
}

static void test_refusals(void **state)
{
    const struct folder *f = *state;
    refused("/nowhere/job.yaml", f->profile, "reading the job file: ");
    refused(f->job, "/nowhere/profile.json", "/nowhere/profile.json");
    refused(f->job, f->job, "job.yaml:1: ");
    refused(f->profile, f->profile, "profile.json");
    assert_int_equal(file_write_atomic(f->job, tied, strlen(tied), 0600, NULL), 0);
    refused(f->job, f->profile, "with model.tied the head is the embedding");
    const char *student = RECIPE("{name: distill, teacher: 1}");
    assert_int_equal(file_write_atomic(f->job, student, strlen(student), 0600, NULL), 0);
    refused(f->job, f->profile, "job.yaml: a student of other models is not cut");
    const char *unknown = RECIPE("{name: dipacco}");
    assert_int_equal(file_write_atomic(f->job, unknown, strlen(unknown), 0600, NULL), 0);
    refused(f->job, f->profile, "job.yaml: recipe.name is 'dipacco'");
    assert_int_equal(file_write_atomic(f->job, job, strlen(job), 0600, NULL), 0);
    assert_int_equal(file_write_atomic(f->profile, cascade, strlen(cascade), 0600, NULL), 0);
    refused(f->job, f->profile, "is of another model: it has 2 chains, but the job's model has 1");
    char *more = str_dup(profile);
    memcpy(strstr(more, "\"count\": 4"), "\"count\": 3", strlen("\"count\": 3"));
    assert_int_equal(file_write_atomic(f->profile, more, strlen(more), 0600, NULL), 0);
    refused(f->job, f->profile, "it has 3 layers of dit, but the job's model has 4 blocks");
    mem_free(more);
    assert_int_equal(file_write_atomic(f->profile, profile, strlen(profile), 0600, NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text),     cmocka_unit_test(test_keys),
        cmocka_unit_test(test_devices),  cmocka_unit_test(test_streamed),
        cmocka_unit_test(test_chains),   cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_unfilled), cmocka_unit_test(test_filled_chains),
        cmocka_unit_test(test_experts),  cmocka_unit_test(test_automatic),
    };
    return cmocka_run_group_tests(tests, open_folder, close_folder);
}
