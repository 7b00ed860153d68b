/* OUTER: a module's step from blobs in the cache, with the bits of fold.h. */
#include "tests/unit/common/outer/fixture.h"

#include <math.h>

#include "common/outer/fold_check.h"
#include "worker/kinds/kinds.h"
#include "worker/order/work.h"

#define K 2
#define FILES 6

static const char spec[] = "name: tiny\ndata: {path: x, image_size: 8}\n"
                           "model: {type: dit, patch: 2, dim: 16, depth: 2, heads: 2}\n"
                           "train: {batch: 4}\nouter: {rounds: 3, steps: 24}\n";

struct order {
    struct fixture f;
    struct cache *cache;
    char *tmp;
    Skerry__V1__Task task;
    Skerry__V1__OuterTask outer;
    Skerry__V1__OuterInput in[K], *inputs[K];
    Skerry__V1__Blob full, blobs[K];
    uint8_t hash[K + 1][32];
    struct fold_input want[K];
    struct fold_step step; /* of the same, by hand */
    struct fx_out out;
};

/* The file as a blob of the cache. */
static void put(struct order *o, const char *path, uint8_t sha256[32], Skerry__V1__Blob *ret)
{
    char to[CACHE_PATH_MAX];
    struct buf b;
    skerry__v1__blob__init(ret);
    assert_int_equal(hash_file(path, sha256, &ret->size, NULL), 0);
    assert_int_equal(file_read(path, 64 << 20, &b, NULL), 0);
    cache_path(o->cache, sha256, to);
    assert_int_equal(file_write_atomic(to, b.data, b.len, 0600, NULL), 0);
    assert_int_equal(cache_added(o->cache, sha256, NULL), 0);
    buf_release(&b);
    ret->sha256 = (ProtobufCBinaryData){32, sha256};
    ret->url = (char *)"/v1/blobs/x";
}

static void order_begin(struct order *o, enum codec up)
{
    struct err err = {0};
    memset(o, 0, sizeof(*o));
    fx_begin(&o->f);
    char *cache = fx_path(&o->f, "cache");
    o->tmp = fx_path(&o->f, "tmp");
    assert_int_equal(cache_open(cache, 0, &o->cache, &err), 0);
    assert_int_equal(file_mkdirs(o->tmp, 0700, &err), 0);
    mem_free(cache);
    skerry__v1__task__init(&o->task);
    skerry__v1__outer_task__init(&o->outer);
    o->task.id = 5;
    o->task.kind = SKERRY__V1__TASK_KIND__TASK_KIND_OUTER;
    o->task.spec = (char *)(uintptr_t)spec;
    o->task.outer = &o->outer;
    put(o, o->f.full, o->hash[K], &o->full);
    float *end = fx_array();
    for (size_t i = 0; i < K; i++) {
        char *path = str_printf("%s/c%zu", o->f.dir, i);
        fx_normal(40 + i, 1e-3f, end);
        for (size_t j = 0; j < PARAMS; j++)
            end[j] = o->f.theta[j] - end[j];
        fx_contribute(o->f.full, 0, end, up, 8, path);
        put(o, path, o->hash[i], &o->blobs[i]);
        skerry__v1__outer_input__init(&o->in[i]);
        o->in[i].blob = &o->blobs[i];
        o->in[i].codec = (char *)(uintptr_t)codec_name(up);
        o->in[i].weight = 1 + (double)i;
        o->inputs[i] = &o->in[i];
        o->want[i] = (struct fold_input){.path = path, .weight = 1 + (double)i};
    }
    free(end);
    o->outer.module_id = MODULE;
    o->outer.full = &o->full;
    o->outer.inputs = o->inputs;
    o->outer.n_inputs = K;
    o->outer.down = (char *)"int8";
    o->outer.lr = 0.7;
    o->outer.outer_momentum = 0.9;
    o->outer.ema_decay = 0.5;
    o->step = fx_step(&o->f, o->want, K, up, CODEC_INT8);
    fx_out_begin(&o->f, "want", &o->step, &o->out);
}

static void order_end(struct order *o)
{
    cache_close(o->cache);
    fx_out_end(&o->out);
    for (size_t i = 0; i < K; i++)
        mem_free((char *)(uintptr_t)o->want[i].path);
    mem_free(o->tmp);
    fx_end(&o->f);
}

/* Done, with all that it needs there. */
static struct work *run(struct order *o, int stop)
{
    struct work *w = NULL;
    struct err err = {0};
    if (work_new(kinds_all, &o->task, o->cache, o->tmp, &w, &err) < 0 ||
        w->kind->plan(NULL, w, &err) < 0)
        fail_msg("%s", err.msg);
    work_check_needs(w);
    assert_int_equal(w->n_needs, K + 1);
    for (size_t i = 0; i < w->n_needs; i++)
        assert_false(w->needs[i].missing);
    atomic_store(&w->stop, stop);
    const int rc = w->kind->run(NULL, w, &err);
    if (rc != (stop == WORK_GO ? 0 : -ERR_CANCELLED))
        fail_msg("%d: %s", rc, err.msg);
    return w;
}

/* The mean is to keep the norm of its parts. */
static void keep_norm(struct order *o)
{
    o->outer.keep_norm = o->step.scale = 1.4;
    o->step.keep_norm = true;
    for (size_t i = 0; i < K; i++) {
        struct fold_norm norm;
        assert_int_equal(fold_check(o->want[i].path, &o->want[i].origin, MODULE, &norm, NULL), 0);
        o->want[i].norm = norm.norm;
    }
}

/* What the next step begins with is in the cache when the task's own files are gone. */
static void expect_kept(const struct order *o, const struct fold_file *const *files, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        char path[CACHE_PATH_MAX];
        uint8_t sha256[32];
        uint64_t bytes;
        cache_path(o->cache, files[i]->sha256, path);
        assert_true(cache_has(o->cache, files[i]->sha256));
        assert_int_equal(hash_file(path, sha256, &bytes, NULL), 0);
        assert_memory_equal(sha256, files[i]->sha256, 32);
    }
}

static void the_bits_of_a_step(void **state)
{
    for (int c = 0; c < 2 * CODEC_COUNT; c++) {
        const bool kept = c >= CODEC_COUNT;
        struct order o;
        order_begin(&o, (enum codec)(c % CODEC_COUNT));
        if (kept)
            keep_norm(&o);
        const struct fold_result want = fx_fold(&o.step);
        const struct fold_file *files[] = {&want.full, &want.delta, &want.ema, &want.target,
                                           &want.mom};
        struct work *w = run(&o, WORK_GO);
        assert_int_equal(w->result.n_outputs, FILES);
        for (size_t i = 0; i < FILES; i++) {
            const struct work_output *out = &w->result.outputs[i];
            uint8_t sha256[32];
            uint64_t bytes;
            assert_int_equal(out->role, WORK_CONTRIBUTION);
            assert_int_equal(hash_file(out->path, sha256, &bytes, NULL), 0);
            assert_memory_equal(sha256, out->sha256, 32);
            assert_int_equal(bytes, out->size);
            if (i < 5)
                assert_memory_equal(sha256, files[i]->sha256, 32);
        }
        struct progress_view told;
        progress_take(&w->progress, &told);
        assert_true(told.told.samples_done > K); /* it goes on while it folds, too */
        assert_int_equal(w->result.n_rows, 3);
        assert_string_equal(w->result.rows[0].name, "delta_norm");
        assert_true(w->result.rows[0].value == want.delta_norm);
        /* The squares of each contribution, one behind the other, and those of the mean. */
        double mean = 0;
        struct buf b;
        assert_int_equal(file_read(w->result.outputs[5].path, 64 << 20, &b, NULL), 0);
        for (size_t i = 0; i < K; i++) {
            struct fold_norm norm;
            double sum = 0, one;
            assert_int_equal(fold_check(o.want[i].path, &o.want[i].origin, MODULE, &norm, NULL), 0);
            assert_int_equal(b.len, (K + kept) * norm.cells * sizeof(one));
            for (uint64_t k = 0; k < norm.cells; k++) {
                memcpy(&one, b.data + (i * norm.cells + k) * sizeof(one), sizeof(one));
                sum += one;
            }
            assert_true(sqrt(sum) == norm.norm);
            for (uint64_t k = 0; kept && i == 0 && k < norm.cells; k++) {
                memcpy(&one, b.data + (K * norm.cells + k) * sizeof(one), sizeof(one));
                mean += one;
            }
        }
        assert_true(!kept || (fold_kept_scale(&o.step, mean) == want.scale && want.scale > 1.1));
        buf_release(&b);
        work_free(w);
        expect_kept(&o, files, 5);
        order_end(&o);
    }
}

/* What is wrong with a contribution is for the coordinator to see. */
static void a_bad_contribution_is_told(void **state)
{
    struct order o;
    order_begin(&o, CODEC_BF16);
    o.in[1].codec = (char *)"int8";
    struct work *w = run(&o, WORK_GO);
    assert_int_equal(w->result.n_outputs, 0);
    assert_non_null(strstr(w->result.text, "is coded as bf16, but the job file says int8"));
    work_free(w);
    order_end(&o);
}

static void it_can_be_taken_back(void **state)
{
    struct order o;
    order_begin(&o, CODEC_E3M0);
    work_free(run(&o, WORK_REVOKED));
    order_end(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_bits_of_a_step),
                                       cmocka_unit_test(a_bad_contribution_is_told),
                                       cmocka_unit_test(it_can_be_taken_back)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
