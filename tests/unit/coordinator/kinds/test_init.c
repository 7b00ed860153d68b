/* Version 0 is what was asked for, in plain float32, or it is refused.  A whole coordinator
 * (rig.h). */
#include "tests/unit/coordinator/rig.h"

/* A file of safetensors with this header and so many bytes of data. */
static struct blob_ref weights(struct rig *r, const char *header, size_t bytes)
{
    struct blob_ref ref = {0};
    struct blob_id id;
    struct buf b;
    uint8_t size[8] = {(uint8_t)strlen(header)}, data[64] = {0};
    buf_init(&b, 4096);
    assert_true(strlen(header) < 256 && bytes <= sizeof(data));
    assert_int_equal(buf_append(&b, size, sizeof(size)), 0);
    assert_int_equal(buf_append_str(&b, header), 0);
    assert_int_equal(buf_append(&b, data, bytes), 0);
    assert_int_equal(blob_put(r->co->blobs, b.data, b.len, &id, NULL), 0);
    memcpy(ref.sha256, id.sha256, 32);
    ref.size = b.len;
    buf_release(&b);
    return ref;
}

/* INIT, whatever came of it before. */
static void ask_again(struct rig *r)
{
    struct fake *w = &r->workers[0];
    struct task *t = edit_task(r, r->co->state.tasks[0]->id);
    edit_worker(r, w->id)->failures_row = 0;
    t->failed.n = 0;
    t->failures = 0;
    (void)assign(r, w, TASK_INIT);
}

static void refused(struct rig *r, const struct result *x, const char *why)
{
    struct fake *w = &r->workers[0];
    if (report(r, w, x) || !strstr(w->detail, why))
        fail_msg("'%s', expected '%s'", w->detail, why);
    assert_int_equal(state_job(&r->co->state, 1)->modules[0].n_versions, 0);
}

static void what_is_no_version_0_is_refused(void **state)
{
    static const struct {
        const char *header, *why;
        size_t bytes;
    } cases[] = {
        {"{\"a\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[0,4]}}",
         "tensor a is BF16, expected F32", 4},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
         "\"b\":{\"dtype\":\"F64\",\"shape\":[1],\"data_offsets\":[8,16]}}",
         "tensor b is F64, expected F32", 16},
        {"{}", "has no parameters", 0},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}",
         "version 0 of a module", 4}, /* cut off */
    };
    struct rig *r = *state;
    struct fake *w = &r->workers[0];
    struct result x;
    assert_int_equal(join(r, w, SKERRY_VERSION), 0);
    assert_int_equal(submit(r), 1);
    settle(r);
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        ask_again(r);
        struct blob_ref blob = weights(r, cases[i].header, cases[i].bytes);
        begin_result(&x, w->task, &blob);
        refused(r, &x, cases[i].why);
    }
}

static void only_what_was_asked_for_is_taken(void **state)
{
    struct rig *r = *state;
    struct fake *w = &r->workers[0];
    struct result x;
    assert_int_equal(join(r, w, SKERRY_VERSION), 0);
    assert_int_equal(submit(r), 1);
    settle(r);
    ask_again(r);
    struct blob_ref full = put_file(r, r->f.full);
    begin_result(&x, w->task, &full);
    x.m.n_contributions = 0;
    refused(r, &x, "has 0 modules, expected 1");
    ask_again(r);
    begin_result(&x, w->task, &full);
    x.c.module_id = MODULE + 1;
    refused(r, &x, "was not asked for");
    ask_again(r);
    finish_init(r, w);
    const struct module_rec *m = &state_job(&r->co->state, 1)->modules[0];
    assert_true(m->n_versions == 1 && m->version == 0 && m->params == PARAMS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_is_no_version_0_is_refused, begin, end),
        cmocka_unit_test_setup_teardown(only_what_was_asked_for_is_taken, begin, end),
    };
    log_set_level(LOG_LEVEL_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
