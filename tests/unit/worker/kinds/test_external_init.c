/* INIT with a trainer: the first version is what it begins with, or the user's weights. */
#include "tests/unit/worker/kinds/external_task.h"

#define INIT SKERRY__V1__TASK_KIND__TASK_KIND_INIT

static bool gives_up, able;

static void speaks(int fd)
{
    Skerry__Trainer__V1__Failed failed = SKERRY__TRAINER__V1__FAILED__INIT;
    Skerry__Trainer__V1__Done done = SKERRY__TRAINER__V1__DONE__INIT;
    failed.reason = (char *)(uintptr_t) "no such corpus";
    say_hello(fd, able);
    if (gives_up)
        say(fd, SKERRY__TRAINER__V1__FROM_TRAINER__WHAT_FAILED, &failed, -1);
    else
        say(fd, SKERRY__TRAINER__V1__FROM_TRAINER__WHAT_DONE, &done, -1);
}

static struct work *init(Skerry__V1__Blob *warm_start)
{
    struct order o;
    order_init(&o, INIT, PICTURES);
    Skerry__V1__ModuleRef second = o.module, *both[] = {&o.module, &second};
    second.module_id = 8;
    o.task.modules = both;
    o.task.n_modules = 2;
    o.task.warm_start = warm_start;
    return begin(&o, speaks);
}

static void expect_values(const struct work *w, const float *values)
{
    for (size_t i = 0; i < 2; i++) {
        const struct work_output *o = &w->result.outputs[i];
        struct st st;
        struct buf b;
        uint8_t sha256[32];
        assert_true(o->role == WORK_CONTRIBUTION && o->module_id == 7 + i);
        OK(st_open(o->path, &st, err));
        OK(file_read(o->path, 4096, &b, err));
        const struct st_tensor *t = st_find(&st, "w");
        assert_true(t && t->count == COUNT(version0));
        assert_memory_equal(b.data + t->offset, values, sizeof(version0));
        hash_sha256(b.data, b.len, sha256);
        assert_memory_equal(o->sha256, sha256, 32);
        assert_int_equal(o->size, b.len);
        buf_release(&b);
        st_release(&st);
    }
}

static void what_it_begins_with(void **state)
{
    static const float zeros[COUNT(version0)];
    struct progress_view v;
    for (int i = 0; i < 2; i++) {
        able = i > 0;
        struct work *w = init(NULL);
        OK(w->kind->run(&engine, w, err));
        assert_int_equal(w->result.n_outputs, 2);
        expect_values(w, zeros);
        assert_int_equal(w->result.n_rows, 2);
        assert_string_equal(w->result.rows[0].name, "trainer evaluates");
        assert_string_equal(w->result.rows[1].name, "trainer draws");
        assert_true(w->result.rows[0].value == i && w->result.rows[1].value == i);
        progress_take(&w->progress, &v);
        assert_true(v.told.steps_done == 2 && v.told.steps_total == 2);
        skerry__trainer__v1__from_worker__free_unpacked(
            heard(SKERRY__TRAINER__V1__FROM_WORKER__WHAT_BEGIN), NULL);
        end(w);
    }
}

static void the_users_weights(void **state)
{
    struct order o;
    order_init(&o, INIT, PICTURES);
    struct work *w = init(&o.blob);
    OK(w->kind->plan(&engine, w, err));
    assert_int_equal(w->n_needs, 1);
    assert_memory_equal(w->needs[0].sha256, version0_sha256, 32);
    OK(w->kind->run(&engine, w, err));
    expect_values(w, version0);
    end(w);
}

/* Weights without one of the trainer's tensors: the sentence names it. */
static void other_weights(void **state)
{
    const uint64_t n = 1;
    const float value = 1;
    uint8_t sha256[32];
    char path[CACHE_PATH_MAX], *file = in(top, "other");
    struct order o;
    struct st_writer *out = st_writer_new();
    OK(st_writer_add(out, "v", ST_F32, 1, &n, err));
    OK(st_writer_open(out, file, err));
    OK(st_writer_write(out, &value, sizeof(value), err));
    OK(st_writer_commit(out, sha256, NULL, err));
    st_writer_free(out);
    cache_path(cache, sha256, path);
    assert_int_equal(rename(file, path), 0);
    OK(cache_added(cache, sha256, err));
    order_init(&o, INIT, PICTURES);
    o.blob.sha256.data = sha256;
    struct work *w = init(&o.blob);
    FAILS(w->kind->run(&engine, w, err),
          "it has 0 of the 1 tensors of the trainer that are synchronised, and not w");
    assert_int_equal(w->result.n_outputs, 0);
    end(w);
    mem_free(file);
}

static void it_gives_up(void **state)
{
    gives_up = true;
    struct work *w = init(NULL);
    FAILS(w->kind->run(&engine, w, err), "no such corpus");
    assert_int_equal(w->result.n_outputs, 0);
    end(w);
    gives_up = false;
}

static void a_stop(void **state)
{
    struct order o;
    struct err e = {0};
    order_init(&o, INIT, PICTURES);
    struct work *w = init(&o.blob);
    struct external *x = NULL;
    OK(trainers_get(&engine, w, &x, err));
    atomic_store(&w->stop, WORK_REVOKED);
    assert_int_equal(w->kind->run(&engine, w, &e), -ERR_CANCELLED);
    assert_int_equal(w->result.n_outputs, 0);
    end(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_it_begins_with),
        cmocka_unit_test(the_users_weights),
        cmocka_unit_test(other_weights),
        cmocka_unit_test(it_gives_up),
        cmocka_unit_test(a_stop),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
