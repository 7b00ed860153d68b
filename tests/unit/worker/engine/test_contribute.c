/* What a phase gives to a module: the fields of the output, residuals that fit and that do not,
 * weights that cannot be given. */
#include "tests/unit/common/base/util.h"

#include <math.h>

#include "common/base/hash.h"
#include "worker/engine/contribute.h"
#include "worker/engine/residual.h"
#include "worker/model/model.h"
#include "worker/order/work.h"

static char *top;
static uint8_t base[32];

static struct order {
    Skerry__V1__Task task;
    Skerry__V1__TrainTask train;
    Skerry__V1__ModuleRef ref;
    struct work w;
    struct model *m;
    float *flat;
    struct contribute c;
} o;

static struct model *model_of_depth(int depth)
{
    struct model *m = NULL;
    const struct model_spec spec = {.channels = 3,
                                    .image = 6,
                                    .patch = 2,
                                    .dim = 12,
                                    .depth = depth,
                                    .heads = 3,
                                    .mlp = 28,
                                    .classes = 3,
                                    .cut = {.n_levels = 1}};
    OK(model_new(&spec, &m, err));
    return m;
}

static int setup(void **state)
{
    (void)state;
    char path[CACHE_PATH_MAX];
    memset(&o, 0, sizeof(o));
    top = scratch_new();
    char *blobs = in(top, "blobs"), *full = in(top, "full");
    OK(cache_open(blobs, 0, &o.w.cache, err));
    o.m = model_of_depth(1);
    o.flat = model_flat_new(o.m);
    model_init(o.m, 5, o.flat);
    OK(model_save(o.m, 0, o.flat, full, base, NULL, err));
    cache_path(o.w.cache, base, path);
    assert_int_equal(rename(full, path), 0);
    OK(cache_added(o.w.cache, base, err));
    for (uint64_t i = 0; i < o.m->tensors[0].count; i++)
        o.flat[o.m->tensors[0].offset + i] += 0.01f;
    skerry__v1__task__init(&o.task);
    skerry__v1__train_task__init(&o.train);
    skerry__v1__module_ref__init(&o.ref);
    o.ref.module_id = 7;
    o.ref.version = 3;
    o.ref.sha256 = (ProtobufCBinaryData){32, base};
    o.task.id = 11;
    o.task.job_id = 1;
    o.task.train = &o.train;
    o.train.first_step = 6;
    o.w.task = &o.task;
    o.w.temp_dir = top;
    o.w.spec.wire.up = CODEC_E3M0;
    o.c = (struct contribute){
        .w = &o.w, .state_dir = top, .base = &o.ref, .model = o.m, .flat = o.flat, .samples = 64};
    mem_free(blobs);
    mem_free(full);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    cache_close(o.w.cache);
    model_free(o.m);
    mem_free(o.flat);
    scratch_free(top);
    return 0;
}

/* Where task 11's residual of the module lies. */
static void residual_paths(char current[CACHE_PATH_MAX], char pending[CACHE_PATH_MAX])
{
    const struct residual_key key = {.job_id = 1, .module_id = 7};
    OK(residual_prepare(top, &key, 11, current, pending, err));
}

static void the_output_names_what_it_is_for(void **state)
{
    (void)state;
    struct work_output out = {0};
    char current[CACHE_PATH_MAX], pending[CACHE_PATH_MAX];
    uint8_t sha256[32];
    uint64_t size;
    residual_paths(current, pending);
    OK(contribute(&o.c, &out, err));
    assert_int_equal(out.role, WORK_CONTRIBUTION);
    assert_int_equal(out.module_id, 7);
    assert_int_equal(out.base_version, 3);
    assert_non_null(strstr(out.path, "/contribution-7"));
    OK(hash_file(out.path, sha256, &size, err));
    assert_memory_equal(out.sha256, sha256, 32);
    assert_int_equal(out.size, size);
    assert_true(file_exists(pending) && !file_exists(current)); /* nobody has applied it yet */
}

/* A codec that sends all leaves no residual. */
static void exact_values_leave_none(void **state)
{
    (void)state;
    struct work_output out = {0};
    char current[CACHE_PATH_MAX], pending[CACHE_PATH_MAX];
    residual_paths(current, pending);
    o.w.spec.wire.up = CODEC_F32;
    OK(contribute(&o.c, &out, err));
    assert_false(file_exists(pending) || file_exists(current));
}

/* The residual of an accepted round changes the next one; one that is malformed does not. */
static void residuals_of_earlier_rounds(void **state)
{
    (void)state;
    struct work_output first = {0}, second = {0}, third = {0};
    char current[CACHE_PATH_MAX], pending[CACHE_PATH_MAX];
    residual_paths(current, pending);
    OK(contribute(&o.c, &first, err));
    OK(residual_hear(top, &(struct residual_word){11, 0, RESIDUAL_APPLIED, false}, err));
    assert_true(file_exists(current));
    OK(contribute(&o.c, &second, err));
    assert_memory_not_equal(first.sha256, second.sha256, 32);
    OK(file_write_atomic(current, "no residual", 11, 0600, err));
    OK(contribute(&o.c, &third, err));
    assert_memory_equal(first.sha256, third.sha256, 32);
    assert_false(file_exists(current));
}

/* There is a job of the same number before it where the coordinator's state was restored. */
static void a_first_phase_carries_none(void **state)
{
    (void)state;
    struct work_output first = {0}, again = {0};
    char current[CACHE_PATH_MAX], pending[CACHE_PATH_MAX];
    residual_paths(current, pending);
    OK(contribute(&o.c, &first, err));
    OK(residual_hear(top, &(struct residual_word){11, 0, RESIDUAL_APPLIED, false}, err));
    o.train.first_step = 0;
    OK(contribute(&o.c, &again, err));
    assert_memory_equal(first.sha256, again.sha256, 32);
    assert_false(file_exists(current));
}

static void what_cannot_be_given(void **state)
{
    (void)state;
    struct work_output out = {0};
    const struct model_tensor *last = &o.m->tensors[o.m->n - 1];
    o.flat[last->offset] = NAN;
    FAILS(contribute(&o.c, &out, err), last->name);
    FAILS(contribute(&o.c, &out, err), "the contribution to module 7");
    assert_false(file_exists(out.path));
    o.flat[last->offset] = 0;
    struct model *other = model_of_depth(2);
    struct model_spec spec = other->spec;
    spec.kind = MODEL_ROUTER; /* has no label table */
    model_free(other);
    OK(model_new(&spec, &other, err));
    float *flat = model_flat_new(other);
    o.c.model = other;
    o.c.flat = flat;
    FAILS(contribute(&o.c, &out, err), "the model has no tensor ");
    mem_free(flat);
    model_free(other);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(the_output_names_what_it_is_for),
        TEST(exact_values_leave_none),
        TEST(residuals_of_earlier_rounds),
        TEST(a_first_phase_carries_none),
        TEST(what_cannot_be_given),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
