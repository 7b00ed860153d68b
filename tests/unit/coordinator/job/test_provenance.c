/* The record of a step is JSON that has all of it, however many contributions there were. */
#include "tests/unit/coordinator/bare.h"

#include <float.h>
#include <jansson.h>

#include "common/base/hash.h"
#include "coordinator/job/provenance.h"
#include "coordinator/state/blobs.h"

static struct blob_ref blob_of(uint8_t n)
{
    struct blob_ref b = {.size = 1000u + n};
    memset(b.sha256, n, sizeof(b.sha256));
    return b;
}

static bool is_blob(const json_t *o, uint8_t n)
{
    const struct blob_ref want = blob_of(n);
    struct blob_ref got;
    return blob_ref_read(o, &got) && got.size == want.size &&
           memcmp(got.sha256, want.sha256, 32) == 0;
}

static json_t *record_of(const struct coordinator *co, const struct outer_step *s)
{
    json_error_t why;
    char *text = provenance_of(co, s);
    json_t *doc = json_loads(text, 0, &why);
    if (doc == NULL)
        fail_msg("%s: %s", why.text, text);
    mem_free(text);
    return doc;
}

static double real(const json_t *o, const char *name)
{
    assert_true(json_is_number(json_object_get(o, name)));
    return json_number_value(json_object_get(o, name));
}

static const char *text(const json_t *o, const char *name)
{
    return json_string_value(json_object_get(o, name));
}

static void fill(struct outer_step *s)
{
    *s = (struct outer_step){
        .base = 7,
        .old[OUTER_FULL] = blob_of(1),
        .made = {blob_of(2), blob_of(3), blob_of(4), blob_of(5), blob_of(6), blob_of(7)},
        .lr = 1.0 / 11,
        .momentum = 1.0 / 3,
        .used_ema_decay = 2.0 / 3,
        .down = CODEC_F32,
        .delta_norm = 0.25,
        .step_norm = 0.5,
        .residual_norm = 0.125,
        .elapsed_ms = 1234,
        .used_scale = 1.0 / 7,
        .delay = 3,
    };
}

static void test_step(void **state)
{
    struct coordinator *co = *state;
    struct outer_step s;
    fill(&s);
    json_t *doc = record_of(co, &s);
    const json_t *kept = json_object_get(doc, "state");
    assert_true(real(doc, "base") == 7);
    assert_true(is_blob(json_object_get(doc, "base_full"), 1));
    assert_true(is_blob(json_object_get(doc, "full"), 2));
    assert_true(is_blob(json_object_get(doc, "delta"), 3));
    assert_true(is_blob(json_object_get(doc, "ema"), 4));
    assert_true(is_blob(json_object_get(kept, "target"), 5));
    assert_true(is_blob(json_object_get(kept, "momentum"), 6));
    assert_true(is_blob(json_object_get(kept, "buffer"), 7));
    assert_true(json_is_false(json_object_get(kept, "stored")));
    /* With which the step is made again: to the bit. */
    assert_true(real(doc, "lr") == s.lr && real(doc, "momentum") == s.momentum);
    assert_true(real(doc, "ema_decay") == s.used_ema_decay && real(doc, "scale") == s.used_scale);
    assert_true(real(doc, "delta_norm") == 0.25 && real(doc, "step_norm") == 0.5);
    assert_true(real(doc, "residual_norm") == 0.125);
    assert_true(real(doc, "elapsed_ms") == 1234 && real(doc, "delay") == 3);
    assert_string_equal(text(doc, "down"), codec_name(CODEC_F32));
    assert_int_equal(json_array_size(json_object_get(doc, "contributions")), 0);
    json_decref(doc);
}

/* The next start finds the state where the record says that it is. */
static void test_stored(void **state)
{
    struct outer_step s;
    struct blob_ref target, momentum;
    for (int stored = 0; stored < 2; stored++) {
        fill(&s);
        s.to_store = stored;
        char *record = provenance_of(*state, &s);
        assert_int_equal(blob_outer_state(record, &target, &momentum), stored);
        mem_free(record);
    }
    assert_true(target.size == 1005 && momentum.size == 1006);
}

/* A contribution is named by its task, which may be gone. */
static void test_contributions(void **state)
{
    struct coordinator *co = *state;
    struct task *t = state_add_task(&co->state, 0, 1, TASK_TRAIN);
    struct outer_step s;
    struct outer_contribution c[2] = {{.tag = t->id,
                                       .sender = 9,
                                       .blob = blob_of(8),
                                       .codec = CODEC_E3M0,
                                       .from = 5,
                                       .samples = 40,
                                       .weight = 1.0 / 3,
                                       .share = 1.0 / 7,
                                       .norm = 0.5,
                                       .shrink = 1.0 / 9},
                                      {.tag = 99, .from = 7, .refused = true}};
    t->path = 2;
    t->train.replica = 3;
    fill(&s);
    s.contributions = c;
    s.n_contributions = 2;
    json_t *doc = record_of(co, &s);
    const json_t *list = json_object_get(doc, "contributions");
    assert_int_equal(json_array_size(list), 2);
    const json_t *o = json_array_get(list, 0);
    assert_true(real(o, "task") == (double)t->id && real(o, "worker") == 9);
    assert_true(real(o, "path") == 2 && real(o, "replica") == 3);
    assert_true(is_blob(o, 8));
    assert_string_equal(text(o, "codec"), codec_name(CODEC_E3M0));
    assert_true(real(o, "staleness") == 2 && real(o, "samples") == 40);
    assert_true(real(o, "weight") == c[0].weight && real(o, "share") == c[0].share);
    assert_true(real(o, "norm") == 0.5 && real(o, "shrink") == c[0].shrink);
    assert_true(json_is_false(json_object_get(o, "refused")));
    o = json_array_get(list, 1);
    assert_true(real(o, "task") == 99 && real(o, "path") == 0 && real(o, "replica") == 0);
    assert_true(real(o, "staleness") == 0 && json_is_true(json_object_get(o, "refused")));
    json_decref(doc);
}

/* As many as a step may have, with the longest figures. */
static void test_many(void **state)
{
    static struct outer_contribution c[OUTER_CONTRIBUTIONS_MAX];
    struct outer_step s;
    fill(&s);
    s.base = INT64_MAX;
    for (size_t i = 0; i < OUTER_CONTRIBUTIONS_MAX; i++)
        c[i] = (struct outer_contribution){.tag = INT64_MAX,
                                           .sender = INT64_MAX,
                                           .blob = {.size = INT64_MAX},
                                           .samples = INT64_MAX,
                                           .weight = -DBL_MAX / 3,
                                           .share = -DBL_MIN / 3,
                                           .norm = -DBL_MAX / 3,
                                           .shrink = -DBL_MIN / 3};
    s.contributions = c;
    s.n_contributions = OUTER_CONTRIBUTIONS_MAX;
    json_t *doc = record_of(*state, &s);
    const json_t *list = json_object_get(doc, "contributions");
    assert_int_equal(json_array_size(list), OUTER_CONTRIBUTIONS_MAX);
    assert_true(json_is_false(
        json_object_get(json_array_get(list, OUTER_CONTRIBUTIONS_MAX - 1), "refused")));
    json_decref(doc);
}

int main(void)
{
#define LIVE(f) cmocka_unit_test_setup_teardown(f, bare_begin, bare_end)
    const struct CMUnitTest tests[] = {
        LIVE(test_step),
        LIVE(test_stored),
        LIVE(test_contributions),
        LIVE(test_many),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
