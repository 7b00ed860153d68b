/* What people read of a job with paths, of a worker and its devices, and the tables. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cli/base/cli.h"
#include "cli/show/show.h"
#include "cli/base/table.h"

/* Experts 0 and 1 and their router, in the middle of the second round. */
static const char *const JOB =
    "{\"id\":3,\"name\":\"faces\",\"recipe\":\"ddm\",\"state\":\"running\",\"reason\":\"\","
    "\"round\":1,\"rounds\":4,\"step\":70,\"total_steps\":200,\"loss\":0.5,\"eval_loss\":0.625,"
    "\"bits_per_byte\":null,\"images_per_s\":80.2,\"eta_ms\":61000,\"elapsed_ms\":5000,"
    "\"text\":false,\"generation\":1,\"resharded\":0,\"reshards\":0,"
    "\"dataset\":{\"samples\":300,\"holdout\":30,\"shards\":9},\"stage\":{\"done\":0,\"total\":0},"
    "\"bytes\":{\"up\":1024,\"down\":2048,\"ratio\":0.01},"
    "\"network\":{\"waited_ms\":2500},"
    "\"modules\":[{\"id\":5,\"index\":0},{\"id\":6,\"index\":1},{\"id\":7,\"index\":0}],"
    "\"phases\":[{\"path\":1,\"state\":\"leased\",\"worker_name\":\"isle-b\",\"steps_done\":20,"
    "\"steps_total\":50},{\"path\":0,\"state\":\"pending\",\"worker_name\":\"isle-x\"}],"
    "\"path_list\":["
    "{\"path\":0,\"network\":\"main\",\"state\":\"running\",\"partition\":0,\"samples\":100,"
    "\"round\":1,\"rounds\":4,\"modules\":[5],\"loss\":0.4,\"eval_loss\":null},"
    "{\"path\":1,\"network\":\"main\",\"state\":\"running\",\"partition\":1,\"samples\":200,"
    "\"round\":1,\"rounds\":4,\"modules\":[6],\"loss\":0.6,\"eval_loss\":0.7},"
    "{\"path\":2,\"network\":\"router\",\"state\":\"waiting\",\"partition\":null,\"samples\":300,"
    "\"round\":1,\"rounds\":4,\"modules\":[7],\"loss\":0.69,\"eval_loss\":null}],"
    "\"partitions\":[{\"partition\":0,\"samples\":100,\"holdout_samples\":10,\"share\":0.3333},"
    "{\"partition\":1,\"samples\":200,\"holdout_samples\":20,\"share\":0.6667}],"
    "\"figures\":[{\"kind\":\"eval\",\"path\":null,\"round\":1,\"name\":\"router accuracy\","
    "\"value\":0.75,\"unit\":\"\"}],"
    "\"waiting_for\":[{\"what\":\"isle-b\",\"why\":\"trains\"}]}";

static json_t *job(void)
{
    json_t *o = json_loads(JOB, 0, NULL);
    assert_non_null(o);
    return o;
}

/* The whole text (free). */
static char *shown(const json_t *o)
{
    char *text = NULL;
    size_t size;
    FILE *f = open_memstream(&text, &size);
    show_job(o, f);
    fclose(f);
    return text;
}

static void has_line(const char *text, const char *line)
{
    if (!strstr(text, line))
        fail_msg("no \"%s\" in:\n%s", line, text);
}

static void a_job_with_paths_is_told(void **state)
{
    json_t *o = job();
    char *text = shown(o);
    has_line(text, "job 3, faces (ddm): running");
    has_line(text, "round 1/4  step 70/200  loss 0.5000  held-out 0.6250  80 images/s  ETA 1m01s");
    has_line(text, "9 shards, in 2 partitions");
    has_line(text, "workers waited 2.5s for the network");
    has_line(text,
             "\n  path    modules  partition  samples  round  trained by      loss  held-out\n");
    has_line(text,
             "\n  0             0          0      100    1/4  queued        0.4000         -\n");
    has_line(text,
             "\n  1             1          1      200    1/4  isle-b 20/50  0.6000    0.7000\n");
    has_line(text,
             "\n  router        0        all      300    1/4  waiting       0.6900         -\n");
    has_line(text, "33.3 %        10  ############\n");
    has_line(text, "66.7 %        20  ########################\n");
    has_line(text, "router accuracy   0.75  eval");
    has_line(text, "isle-b: trains");
    assert_null(strstr(text, "bits/byte")); /* of texts only */
    assert_null(strstr(text, "left out"));
    free(text);
    json_object_set_new(o, "bad_samples",
                        json_pack("{s:i,s:[{s:s,s:s}]}", "count", 2, "items", "key", "cat/1.jpg",
                                  "reason", "too large"));
    text = shown(o);
    has_line(text,
             "\n  left out: 2 samples that cannot be read\n    cat/1.jpg: too large\n    and 1 "
             "more; more names are in `skerry status 3 --json`\n");
    free(text);
    json_t *bad = json_object_get(o, "bad_samples");
    for (int i = 2; i <= CLI_NAMED_MAX + 1; i++)
        json_array_append_new(json_object_get(bad, "items"),
                              json_pack("{s:s,s:s}", "key",
                                        i > CLI_NAMED_MAX ? "last" : "cat/2.jpg", "reason",
                                        "torn"));
    json_object_set_new(bad, "count", json_integer(CLI_NAMED_MAX + 1));
    text = shown(o);
    has_line(text, "    cat/2.jpg: torn\n    and 1 more;");
    assert_null(strstr(text, "last: "));
    free(text);
    json_object_set_new(o, "stalled", json_string("it fails"));
    text = shown(o);
    has_line(text, "\n  stalled: it fails\n");
    free(text);
    json_object_set_new(o, "paused", json_true());
    json_object_set_new(o, "stalled", json_string("a person has paused it"));
    text = shown(o);
    has_line(text, "job 3, faces (ddm): paused while running");
    has_line(text, "\n  a person has paused it\n");
    assert_string_equal(show_state(o), "paused");
    free(text);
    json_decref(o);
}

/* One path with one module is no table, and an only partition is none. */
static void a_plain_job_has_no_tables(void **state)
{
    json_t *o = job();
    json_t *path = json_array_get(json_object_get(o, "path_list"), 1);
    json_object_set_new(path, "best_round", json_integer(3));
    json_object_set_new(path, "best_loss", json_real(0.25));
    json_object_set_new(path, "partition", json_null());
    json_object_set_new(o, "path_list", json_pack("[O]", path));
    json_object_set_new(o, "partitions", json_array());
    char *text = shown(o);
    has_line(text, "\npaths\n"); /* it has several modules */
    assert_null(strstr(text, "partition"));
    free(text);
    json_object_set_new(o, "modules",
                        json_pack("[O]", json_array_get(json_object_get(o, "modules"), 1)));
    text = shown(o);
    assert_null(strstr(text, "paths"));
    has_line(text, "\n  trained by isle-b 20/50\n  best held-out 0.2500, after round 3\n");
    free(text);
    json_t *phase = json_array_get(json_object_get(o, "phases"), 0);
    json_object_set_new(phase, "steps_total", json_integer(0)); /* the coordinator has restarted */
    text = shown(o);
    has_line(text, "\n  trained by isle-b\n");
    free(text);
    json_decref(o);
}

static void a_stage_has_its_tasks(void **state)
{
    char stage[64];
    json_t *o = job();
    show_stage(o, stage, sizeof stage);
    assert_string_equal(stage, "running");
    json_object_set_new(o, "state", json_string("features"));
    json_object_set_new(o, "stage", json_pack("{s:i,s:i}", "done", 3, "total", 9));
    show_stage(o, stage, sizeof stage);
    assert_string_equal(stage, "features 3/9");
    assert_string_equal(show_unit(o), "images");
    json_object_set_new(o, "text", json_true());
    assert_string_equal(show_unit(o), "rows");
    json_decref(o);
}

static void an_empty_answer_is_no_crash(void **state)
{
    json_t *o = json_object();
    char *text = shown(o);
    has_line(text, "job 0");
    free(text);
    json_decref(o);
}

static void columns_count_characters(void **state)
{
    static const char *const names[] = {"name", ">n", "none"};
    struct table t;
    char *text = NULL;
    size_t size;
    FILE *f = open_memstream(&text, &size);
    table_init(&t, names, 3);
    table_cell(&t, "%s", "gr\xc3\xbc\xc3\x9f");
    table_cell(&t, "%d", 7);
    table_cell(&t, "%s", "");
    table_cell(&t, "%s", "abcdef");
    table_real(&t, 12.5, 1);
    table_real(&t, NAN, 1);
    table_print(&t, f);
    fclose(f);
    assert_string_equal(text, "  name       n\n  gr\xc3\xbc\xc3\x9f       7\n  abcdef  12.5\n");
    table_release(&t);
    free(text);
}

/* What show prints of this (free). */
static char *shown_by(void (*show)(const json_t *, FILE *), const char *json)
{
    char *text = NULL;
    size_t size;
    json_t *o = json_loads(json, 0, NULL);
    FILE *f = open_memstream(&text, &size);
    assert_non_null(o);
    show(o, f);
    fclose(f);
    json_decref(o);
    return text;
}

#define WORKER                                                                                     \
    "{\"id\":3,\"name\":\"isle\",\"state\":\"busy\",\"reason\":\"\",\"activity\":\"training\","    \
    "\"version\":\"0.3\",\"address\":\"10.0.0.5\",\"token\":4,"                                    \
    "\"images_per_s\":12.5,\"heartbeat_age_ms\":1000,"                                             \
    "\"bytes\":{\"data\":{\"up\":1024,\"down\":2048}},"
#define DEVICES                                                                                    \
    "\"flops\":412.5e12,\"peak_flops\":698e12,\"mfu\":0.591,\"devices\":["                         \
    "{\"name\":\"cuda:0\",\"model\":\"NVIDIA H200\",\"memory_used\":1073741824,"                   \
    "\"memory_total\":2147483648,\"utilization\":0,\"temperature\":61,\"power\":640.4,"            \
    "\"ecc_errors\":0,\"throttled\":\"power cap\",\"trouble\":\"\"},"                              \
    "{\"name\":\"cuda:1\",\"model\":\"?\",\"memory_used\":null,\"memory_total\":null,"             \
    "\"utilization\":null,\"temperature\":null,\"power\":null,\"ecc_errors\":2,"                   \
    "\"throttled\":\"\",\"trouble\":\"GPU is lost\"},"                                             \
    "{\"name\":\"cuda:2\",\"model\":\"?\",\"ecc_errors\":0,\"throttled\":\"\",\"trouble\":\"\"}]}"

static void with_devices(void **state)
{
    char *text = shown_by(show_worker, WORKER DEVICES);
    assert_string_equal(
        text, "worker 3, isle: busy, training\n"
              "  version 0.3 at 10.0.0.5, joined with token 4, heard of 1.0s ago\n"
              "  data: 1.0 KiB up, 2.0 KiB down\n"
              "  12.5 samples/s\n"
              "  412 TFLOP/s of model arithmetic, 59.1% of the 698 TFLOP/s that products reach "
              "there\n"
              "  cuda:0  NVIDIA H200, 0% busy, 1.0 GiB of 2.0 GiB, 61 C, 640 W; held down: "
              "power cap\n"
              "  cuda:1  ?; 2 uncorrected memory errors; GPU is lost\n"
              "  cuda:2  ?\n");
    free(text);
}

static void nothing_known(void **state)
{
    char *text = shown_by(show_worker,
                          WORKER "\"flops\":null,\"peak_flops\":9e9,\"mfu\":null,\"devices\":[]}");
    assert_null(strstr(text, "FLOP/s"));
    assert_null(strstr(text, "broke"));
    assert_null(strstr(text, "quarantine"));
    free(text);
    text = shown_by(show_worker, WORKER "\"flops\":1234,\"peak_flops\":null,\"mfu\":null,"
                                        "\"strikes\":2,\"device_failures\":1}");
    assert_non_null(strstr(text, "\n  1.23 kFLOP/s of model arithmetic\n"));
    assert_non_null(strstr(text, "\n  in quarantine 2 times\n"));
    assert_non_null(strstr(text, "\n  its device broke 1 time\n"));
    free(text);
}

/* A line each, of at most 80 columns, and a line for each device that a person should look at. */
static void workers_are_a_table(void **state)
{
    char *text = shown_by(show_workers, "[" WORKER DEVICES "," WORKER "\"mfu\":null},"
                                        "{\"id\":12,\"name\":\"b\",\"version\":\"0.3\",\"state\":"
                                        "\"lost\",\"reason\":\"silent for 30 s\"}]");
    assert_string_equal(text,
                        "  worker  name  state  samples/s  of peak  heartbeat  doing\n"
                        "       3  isle  busy        12.5     59 %       1.0s  training\n"
                        "       3  isle  busy        12.5        -       1.0s  training\n"
                        "      12  b     lost           -        -          -  silent for 30 s\n"
                        "  worker 3 (isle), cuda:0: held down: power cap\n"
                        "  worker 3 (isle), cuda:1: 2 uncorrected memory errors; GPU is lost\n");
    free(text);
    text = shown_by(show_workers, "[" WORKER "\"mfu\":null},{\"id\":12,\"version\":\"0.4\"}]");
    assert_non_null(strstr(text, "  name  version  state"));
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_job_with_paths_is_told),
        cmocka_unit_test(a_plain_job_has_no_tables),
        cmocka_unit_test(a_stage_has_its_tasks),
        cmocka_unit_test(an_empty_answer_is_no_crash),
        cmocka_unit_test(columns_count_characters),
        cmocka_unit_test(with_devices),
        cmocka_unit_test(nothing_known),
        cmocka_unit_test(workers_are_a_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
