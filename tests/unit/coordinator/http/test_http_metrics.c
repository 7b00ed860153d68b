/* The metrics of a made-up coordinator: labels, families, and what is not known. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/buf.h"
#include "common/net/blobstore.h"
#include "common/net/http/http_server.h"
#include "coordinator/http/http_metrics.h"
#include "tests/unit/coordinator/fake_view.h"

static void metrics(struct buf *out)
{
    const struct http_counters http = {.requests = 5, .errors_4xx = 1};
    buf_init(out, 1 << 20);
    assert_int_equal(http_metrics_write(NULL, NULL, &http, out), 0);
}

static void test_metrics_escape_labels(void **state)
{
    struct buf out;
    metrics(&out);
    static const char *const lines[] = {
        "\nskerry_job_round{job=\"7\",name=\"a\\\"b\\\\c\\nd\"} 2\n",
        "\nskerry_worker_images_per_second{worker=\"3\",name=\"isle ?\"} 12.5\n",
        "\nskerry_jobs{state=\"running\"} 1\n",
        "\nskerry_jobs{state=\"failed\"} 0\n",
        "\nskerry_jobs{state=\"encoding\"} 0\n", /* the last one */
        "\nskerry_workers{state=\"busy\"} 1\n",
        "\nskerry_uptime_seconds 2.5\n",
        "\nskerry_http_errors_total{class=\"4xx\"} 1\n",
        "\nskerry_job_state{job=\"7\",name=\"a\\\"b\\\\c\\nd\",state=\"running\"} 1\n",
        "\nskerry_job_number{job=\"7\",name=\"a\\\"b\\\\c\\nd\",number=\"top-1\"} 0.75\n",
        "\nskerry_job_held_out_number{job=\"7\",name=\"a\\\"b\\\\c\\nd\",number=\"top-1\"} 0.5\n",
        "\nskerry_worker_heartbeat_age_seconds{worker=\"3\",name=\"isle ?\"} 1.5\n",
        "\nskerry_worker_mfu{worker=\"3\",name=\"isle ?\"} 0.75\n",
        "\nskerry_worker_step_devices{worker=\"3\",name=\"isle ?\"} 4\n",
        "\nskerry_worker_pipeline_copies{worker=\"3\",name=\"isle ?\"} 2\n",
        "\nskerry_worker_pipeline_stages{worker=\"3\",name=\"isle ?\"} 2\n",
        "\nskerry_worker_pipeline_micro_batches{worker=\"3\",name=\"isle ?\"} 8\n",
        "\nskerry_worker_pipeline_schedule{worker=\"3\",name=\"isle ?\",schedule=\"1f1b\"} 1\n",
        "\nskerry_worker_pipeline_schedule{worker=\"3\",name=\"isle ?\",schedule=\"split\"} 0\n",
        "\nskerry_worker_step_idle_ratio{worker=\"3\",name=\"isle ?\",filled=\"no\"} 0.125\n",
        "\nskerry_worker_step_idle_ratio{worker=\"3\",name=\"isle ?\",filled=\"yes\"} 0.0625\n",
        "\nskerry_worker_step_filled{worker=\"3\",name=\"isle ?\",with=\"images\"} 1\n",
        "\nskerry_worker_step_filled{worker=\"3\",name=\"isle ?\",with=\"captions\"} 0\n",
        "\nskerry_worker_step_seconds{worker=\"3\",name=\"isle ?\",is=\"predicted\"} 0.25\n",
        "\nskerry_device_power_watts{worker=\"3\",device=\"cuda:0\",model=\"NVIDIA \\\"H200\\\"\"} "
        "512.5\n",
        "\nskerry_device_utilization{worker=\"3\",device=\"cuda:0\",model=\"NVIDIA \\\"H200\\\"\"} "
        "0\n",
    };
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++)
        if (strstr(buf_str(&out), lines[i]) == NULL)
            fail_msg("no line %s in\n%s", lines[i], buf_str(&out));
    assert_null(strstr(buf_str(&out), "nan")); /* what is not known has no line */
    assert_null(strstr(buf_str(&out), "skerry_job_eval_loss{"));
    assert_null(strstr(buf_str(&out), "is=\"measured\""));
    assert_null(strstr(buf_str(&out), "skerry_worker_step_frozen_inside_ratio{"));
    buf_release(&out);
}

/* What a worker reached that has gone would count in sums. */
static void test_metrics_of_those_gone(void **state)
{
    static const char *const gone[] = {"lost", "left"};
    const char *const was = worker.state;
    for (int i = 0; i < 2; i++) {
        struct buf out;
        worker.state = gone[i];
        metrics(&out);
        assert_non_null(
            strstr(buf_str(&out), "\nskerry_worker_up{worker=\"3\",name=\"isle ?\"} 0\n"));
        assert_null(strstr(buf_str(&out), "skerry_worker_mfu{"));
        assert_null(strstr(buf_str(&out), "flops_per_second{"));
        assert_null(strstr(buf_str(&out), "skerry_worker_bytes_total{"));
        assert_null(strstr(buf_str(&out), "skerry_device_power_watts{"));
        assert_null(strstr(buf_str(&out), "skerry_worker_pipeline_stages{"));
        buf_release(&out);
    }
    worker.state = was;
}

/* A job that a person has paused is no reason for an alert. */
static void test_metrics_of_a_stalled_job(void **state)
{
    for (int stalled = 0; stalled < 2; stalled++)
        for (int paused = 0; paused < 2; paused++) {
            struct buf out;
            char line[96];
            job.paused = paused;
            (void)snprintf(job.stalled, sizeof job.stalled, "%s", stalled ? "it fails" : "");
            (void)snprintf(line, sizeof line, "\nskerry_job_stalled{job=\"7\",name=\"%s\"} %d\n",
                           "a\\\"b\\\\c\\nd", stalled && !paused);
            metrics(&out);
            assert_non_null(strstr(buf_str(&out), line));
            buf_release(&out);
        }
    job.paused = false;
    job.stalled[0] = '\0';
}

/* Every sample follows the TYPE of its own family, and no family comes twice. */
static void test_metrics_families(void **state)
{
    struct buf out;
    metrics(&out);
    char family[128] = "";
    for (char *line = strtok((char *)out.data, "\n"); line; line = strtok(NULL, "\n")) {
        char name[128], type[32];
        if (strncmp(line, "# HELP ", 7) == 0)
            continue;
        if (sscanf(line, "# TYPE %127s %31s", name, type) == 2) {
            assert_string_not_equal(name, family);
            assert_true(strcmp(type, "gauge") == 0 || strcmp(type, "counter") == 0);
            const size_t n = strlen(name), end = strlen("_total"); /* as `promtool check metrics` */
            assert_int_equal(n > end && !strcmp(name + n - end, "_total"),
                             !strcmp(type, "counter"));
            (void)snprintf(family, sizeof family, "%s", name);
            continue;
        }
        assert_int_equal(strncmp(line, family, strlen(family)), 0);
        assert_true(line[strlen(family)] == '{' || line[strlen(family)] == ' ');
        assert_int_equal(strncmp(line, "skerry_", 7), 0);
    }
    buf_release(&out);
}

static void test_metrics_are_bounded(void **state)
{
    for (size_t max = 0; max < 4000; max += 97) {
        struct buf out;
        buf_init(&out, max);
        assert_int_equal(http_metrics_write(NULL, NULL, NULL, &out), -ERR_LIMIT);
        assert_true(out.len <= max);
        buf_release(&out);
    }
}

/* The more workers the fewer of their families, which are whole. */
static void test_workers_leave_room(void **state)
{
    struct buf all, out;
    metrics(&all);
    const size_t before =
        (size_t)(strstr(buf_str(&all), "# HELP skerry_worker_up") - buf_str(&all));
    for (size_t max = before + 80; max < all.len; max += 97) {
        const struct http_counters http = {.requests = 5, .errors_4xx = 1};
        buf_init(&out, max);
        assert_int_equal(http_metrics_write(NULL, NULL, &http, &out), 0);
        assert_true(out.len <= max);
        const char *end = strstr(buf_str(&out), "# More of workers");
        if (end == NULL)
            fail_msg("no comment within %zu bytes", max);
        const size_t n = (size_t)(end - buf_str(&out));
        assert_memory_equal(out.data, all.data, n);
        assert_memory_equal(all.data + n, "# HELP", 6);
        buf_release(&out);
    }
    buf_release(&all);
}

/* Without a store and without a server their families are not there at all. */
static void test_store_and_server_may_be_absent(void **state)
{
    struct blobstore store = {.used_bytes = 4096, .count = 3};
    struct buf out;
    buf_init(&out, 1 << 20);
    assert_int_equal(http_metrics_write(NULL, &store, NULL, &out), 0);
    assert_non_null(strstr(buf_str(&out), "\nskerry_blob_bytes 4096\n"));
    assert_non_null(strstr(buf_str(&out), "\nskerry_blobs 3\n"));
    assert_null(strstr(buf_str(&out), "skerry_http_"));
    buf_release(&out);
    metrics(&out);
    assert_null(strstr(buf_str(&out), "skerry_blob"));
    assert_non_null(strstr(buf_str(&out), "\nskerry_http_requests_total 5\n"));
    assert_non_null(strstr(buf_str(&out), "\nskerry_http_errors_total{class=\"5xx\"} 0\n"));
    buf_release(&out);
}

/* cuda:1 of the made-up worker tells nothing but that it is lost. */
static void test_a_device_that_tells_nothing_has_no_lines(void **state)
{
    struct buf out;
    metrics(&out);
    assert_non_null(strstr(buf_str(&out), "device=\"cuda:0\""));
    assert_null(strstr(buf_str(&out), "device=\"cuda:1\""));
    assert_non_null(strstr(buf_str(&out),
                           "\nskerry_device_throttled{worker=\"3\",device=\"cuda:0\","
                           "model=\"NVIDIA \\\"H200\\\"\"} 1\n"));
    buf_release(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_metrics_escape_labels),
        cmocka_unit_test(test_metrics_of_those_gone),
        cmocka_unit_test(test_metrics_of_a_stalled_job),
        cmocka_unit_test(test_metrics_families),
        cmocka_unit_test(test_metrics_are_bounded),
        cmocka_unit_test(test_workers_leave_room),
        cmocka_unit_test(test_store_and_server_may_be_absent),
        cmocka_unit_test(test_a_device_that_tells_nothing_has_no_lines),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
