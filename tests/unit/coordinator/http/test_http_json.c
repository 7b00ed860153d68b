/* JSON of a made-up coordinator: a fake of coordinator/view/view.h. */
#include <errno.h>
#include <malloc.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/err.h"
#include "coordinator/http/http_json.h"
#include "tests/unit/coordinator/fake_view.h"

/* ---- tests --------------------------------------------------------------- */

static json_t *at(json_t *o, const char *key)
{
    json_t *v = json_object_get(o, key);
    if (v == NULL)
        fail_msg("no key %s", key);
    return v;
}

static void test_unknown_is_null(void **state)
{
    struct err err = {0};
    json_t *o = http_json_job(NULL, 7, 9, &err);
    assert_non_null(o);
    static const char *const nulls[] = {"eval_loss", "images_per_s", "eta_ms", "total_steps"};
    for (size_t i = 0; i < sizeof nulls / sizeof nulls[0]; i++)
        assert_true(json_is_null(at(o, nulls[i])));
    assert_true(json_is_null(at(at(o, "bytes"), "per_param_up")));
    assert_true(json_is_null(at(at(o, "bytes"), "ratio")));
    assert_true(json_is_null(at(json_array_get(at(o, "modules"), 0), "version")));
    json_t *first = json_array_get(at(o, "waiting_for"), 0);
    assert_true(json_is_null(at(first, "until_ms")));
    assert_true(json_is_null(at(first, "worker")));
    assert_int_equal(json_integer_value(at(json_array_get(at(o, "waiting_for"), 1), "until_ms")),
                     900);
    json_decref(o);
    assert_null(http_json_job(NULL, 8, 9, &err));
    assert_int_equal(err.code, -ERR_NOTFOUND);
}

static void test_paths_and_partitions(void **state)
{
    struct err err = {0};
    json_t *o = http_json_job(NULL, 7, 9, &err);
    json_t *path = json_array_get(at(o, "path_list"), 0);
    assert_true(json_is_null(at(path, "partition")));  /* all the data */
    assert_true(json_is_null(at(path, "eval_round"))); /* never evaluated */
    assert_int_equal(json_integer_value(at(path, "best_round")), 3);
    assert_int_equal(json_integer_value(json_array_get(at(path, "modules"), 1)), 4);
    assert_int_equal(json_integer_value(json_array_get(at(path, "versions"), 1)), 3);
    json_t *partition = json_array_get(at(o, "partitions"), 0);
    assert_int_equal(json_integer_value(at(partition, "holdout_samples")), 2);
    assert_true(json_is_null(at(partition, "share")));
    json_t *figure = json_array_get(at(o, "figures"), 0);
    assert_string_equal(json_string_value(at(figure, "kind")), "eval");
    assert_true(json_is_null(at(figure, "path"))); /* of the whole job */
    assert_true(json_number_value(at(figure, "value")) == 0.75);
    assert_true(json_is_null(at(json_array_get(at(o, "samples"), 0), "path")));
    json_decref(o);
}

static void test_text_is_utf8(void **state)
{
    struct err err = {0};
    json_t *o = http_json_job(NULL, 7, 9, &err);
    assert_string_equal(json_string_value(at(o, "reason")), "caf?");
    assert_string_equal(json_string_value(at(o, "name")), "a\"b\\c\nd");
    json_decref(o);
}

/* A worker's name may not give orders to the terminal that shows it. */
static void test_text_gives_no_orders(void **state)
{
    static const struct {
        const char *text, *shown;
    } cases[] = {
        {"\033]0;x\007\033[2J", "?]0;x??[2J"},
        {"a\nb\tc\r", "a\nb\tc\r"},
        {"\x7f", "?"},
        {"\xc2\x9b"
         "2J",
         "??2J"},
        {"caf\xc3\xa9 \xc2\xa0", "caf\xc3\xa9 \xc2\xa0"},
        {"", ""},
        {"caf\xe9\033", "caf??"},
        {"caf\xc3\xa9 caf\xc3", "caf\xc3\xa9 caf?"}, /* cut */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        json_t *o = http_json_text(cases[i].text);
        assert_string_equal(json_string_value(o), cases[i].shown);
        json_decref(o);
    }
}

/* The most bytes that jansson had, where what it gave away counts as its own. */
static size_t held, held_most;

static void *count_malloc(size_t n)
{
    void *p = malloc(n);
    held += p ? malloc_usable_size(p) : 0;
    held_most = held > held_most ? held : held_most;
    return p;
}

static void count_free(void *p)
{
    held -= p ? malloc_usable_size(p) : 0;
    free(p);
}

/* The page of a job is asked for again and again: its rounds are no megabytes of values, which
 * would leave the heap with holes as large. */
static void test_lists_are_bounded(void **state)
{
    struct err err = {0};
    struct buf text;
    const size_t most = HTTP_JSON_ROUNDS_MAX;
    assert_int_equal(http_json_job_text(NULL, 8, most, 9, true, &text, &err), -ERR_NOTFOUND);
    json_set_alloc_funcs(count_malloc, count_free);
    assert_int_equal(http_json_job_text(NULL, 7, most, 9, true, &text, &err), 0);
    json_set_alloc_funcs(malloc, free);
    assert_in_range(held_most, 1, 256 << 10);
    json_t *o = json_loadb(buf_str(&text), text.len, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(o);
    buf_release(&text);
    json_t *history = at(o, "history");
    assert_int_equal(json_array_size(history), 2000);
    /* Round 0 of the view made version 1: people call it the first. */
    assert_int_equal(json_integer_value(at(json_array_get(history, 0), "round")), 101);
    assert_int_equal(json_integer_value(at(json_array_get(history, 1999), "round")), 2100);
    assert_int_equal(json_array_size(at(at(o, "bad_samples"), "items")), 64);
    json_decref(o);
    assert_int_equal(http_json_job_text(NULL, 7, 0, 9, true, &text, &err), 0);
    assert_true(str_ends(buf_str(&text), ",\"history\":[]}"));
    buf_release(&text);
}

/* Who may only watch sees neither keys of the trainer nor those of the data's addresses. */
static void test_a_viewer_sees_no_secrets(void **state)
{
    char *const spec = job_rec.yaml;
    job_rec.yaml =
        (char *)"name: x\n"
                "data: {url: ['https://me:pw@h/a.tar?sig=1', \"http://h/b.tar\"], kind: text}\n"
                "trainer:\n  env:\n  - KEY=secret # mine\n  - 'B=2'\n  command: x\n";
    for (int secrets = 0; secrets < 2; secrets++) {
        struct err err = {0};
        struct buf text;
        assert_int_equal(http_json_job_text(NULL, 7, 0, 0, secrets, &text, &err), 0);
        json_t *o = json_loadb(buf_str(&text), text.len, JSON_REJECT_DUPLICATES, NULL);
        assert_string_equal(json_string_value(at(o, "spec")),
                            secrets ? job_rec.yaml
                                    : "name: x\n"
                                      "data: {url: ['https://h/a.tar', 'http://h/b.tar'], kind: "
                                      "text}\n"
                                      "trainer:\n  env:\n   ['KEY=', 'B=']\n  command: x\n");
        json_decref(o);
        buf_release(&text);
    }
    job_rec.yaml = spec;
}

static void test_tasks_newest_first(void **state)
{
    n_tasks = 3;
    json_t *o = http_json_tasks(NULL, 0, NULL, 0, 1000), *a = at(o, "items");
    assert_int_equal(json_array_size(a), 3);
    assert_int_equal(json_integer_value(at(json_array_get(a, 0), "id")), 3);
    assert_int_equal(json_integer_value(at(json_array_get(a, 0), "round")), 5); /* train */
    assert_int_equal(json_integer_value(at(json_array_get(a, 1), "round")), 4); /* eval */
    assert_string_equal(json_string_value(at(json_array_get(a, 0), "kind")), "train");
    assert_true(json_is_null(at(o, "next")));
    json_decref(o);
    n_tasks = 25;
    o = http_json_tasks(NULL, 0, NULL, 0, 10);
    a = at(o, "items");
    assert_int_equal(json_array_size(a), 10);
    assert_int_equal(json_integer_value(at(json_array_get(a, 0), "id")), 25);
    assert_int_equal(json_integer_value(at(json_array_get(a, 9), "id")), 16);
    assert_int_equal(json_integer_value(at(o, "next")), 16);
    json_decref(o);
    o = http_json_tasks(NULL, 0, NULL, 16, 20);
    assert_int_equal(json_array_size(at(o, "items")), 15);
    assert_true(json_is_null(at(o, "next")));
    json_decref(o);
    n_tasks = 0;
    o = http_json_tasks(NULL, 0, NULL, 0, 10);
    assert_int_equal(json_array_size(at(o, "items")), 0);
    assert_true(json_is_null(at(o, "next")));
    json_decref(o);
}

static void test_versions_newest_first(void **state)
{
    json_t *a = http_json_modules(NULL, 7);
    json_t *versions = at(json_array_get(a, 0), "versions");
    assert_int_equal(json_integer_value(at(json_array_get(versions, 0), "version")), 1);
    json_t *provenance = at(json_array_get(versions, 0), "provenance");
    assert_true(json_number_value(at(provenance, "lr")) == 0.7);
    assert_true(json_is_null(at(json_array_get(versions, 1), "provenance")));
    assert_true(json_is_null(at(json_array_get(versions, 1), "delta")));
    json_decref(a);
}

static void test_devices(void **state)
{
    json_t *a = http_json_workers(NULL, 0, 9, 9), *w = json_array_get(at(a, "items"), 0),
           *list = at(w, "devices");
    assert_true(json_real_value(at(w, "flops")) == 3e12);
    assert_true(json_real_value(at(w, "peak_flops")) == 4e12);
    assert_true(json_real_value(at(w, "mfu")) == 0.75);
    assert_int_equal(json_array_size(list), 2);
    json_t *d = json_array_get(list, 0);
    assert_string_equal(json_string_value(at(d, "model")), "NVIDIA \"H200\"");
    assert_int_equal(json_integer_value(at(d, "memory_used")), 30);
    assert_int_equal(json_integer_value(at(d, "utilization")), 0); /* known to be idle */
    assert_int_equal(json_integer_value(at(d, "temperature")), 61);
    assert_true(json_real_value(at(d, "power")) == 512.5);
    assert_int_equal(json_integer_value(at(d, "ecc_errors")), 2);
    assert_string_equal(json_string_value(at(d, "throttled")), "power cap");
    d = json_array_get(list, 1);
    static const char *const unknown[] = {"memory_used", "memory_total", "utilization",
                                          "temperature", "power",        "ecc_errors"};
    for (size_t i = 0; i < sizeof unknown / sizeof unknown[0]; i++)
        assert_true(json_is_null(at(d, unknown[i])));
    assert_string_equal(json_string_value(at(d, "trouble")), "GPU is lost");
    json_decref(a);
}

static void test_step_on_several_devices(void **state)
{
    struct err err = {0};
    json_t *a = http_json_workers(NULL, 0, 9, 9),
           *plan = at(json_array_get(at(a, "items"), 0), "plan");
    assert_string_equal(json_string_value(at(plan, "schedule")), "1f1b");
    assert_int_equal(json_integer_value(at(plan, "stages")), 2);
    assert_true(json_real_value(at(plan, "idle")) == 0.0625);
    assert_true(json_real_value(at(plan, "predicted_s")) == 0.25);
    assert_true(json_is_null(at(plan, "measured_s")));
    assert_true(json_is_null(at(plan, "inside")));
    assert_string_equal(json_string_value(at(plan, "filled_with")), "images");
    json_decref(a);
    json_t *o = http_json_job(NULL, 7, 9, &err), *of = at(o, "trace");
    assert_int_equal(json_integer_value(at(of, "task")), 5);
    assert_string_equal(json_string_value(at(of, "worker_name")), "isle");
    assert_int_equal(json_integer_value(at(of, "round")), 5); /* people count from 1 */
    json_decref(o);
    trace.text = NULL;
    o = http_json_job(NULL, 7, 9, &err);
    assert_true(json_is_null(at(o, "trace")));
    json_decref(o);
    trace.text = trace_text;
}

static void test_metric_records(void **state)
{
    struct metric_rec m = {
        .n = 1, .kind = METRIC_LOSS, .round = 0, .step = 3, .loss = NAN, .lr = 0.1};
    json_t *o = http_json_metric(&m);
    assert_string_equal(json_string_value(at(o, "kind")), "loss");
    assert_true(json_is_null(at(o, "loss")));
    assert_int_equal(json_integer_value(at(o, "round")), 1);
    assert_null(json_object_get(o, "numbers"));
    json_decref(o);
    m.numbers = (const struct metric_number[]){{"top-1", 0.75}};
    m.n_numbers = 1;
    o = http_json_metric(&m);
    assert_true(json_real_value(at(at(o, "numbers"), "top-1")) == 0.75);
    json_decref(o);
    m.kind = METRIC_EVAL;
    m.round = 4;
    m.step = 80;
    m.loss = 0.25;
    o = http_json_metric(&m);
    assert_int_equal(json_integer_value(at(o, "round")), 4);
    assert_true(json_real_value(at(o, "eval_loss")) == 0.25);
    assert_int_equal(json_integer_value(at(o, "step")), 80);
    json_decref(o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_paths_and_partitions),
        cmocka_unit_test(test_unknown_is_null),
        cmocka_unit_test(test_text_is_utf8),
        cmocka_unit_test(test_text_gives_no_orders),
        cmocka_unit_test(test_lists_are_bounded),
        cmocka_unit_test(test_a_viewer_sees_no_secrets),
        cmocka_unit_test(test_tasks_newest_first),
        cmocka_unit_test(test_versions_newest_first),
        cmocka_unit_test(test_metric_records),
        cmocka_unit_test(test_devices),
        cmocka_unit_test(test_step_on_several_devices),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
