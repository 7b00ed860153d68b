/* What people read of a worker and its devices. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cli/worker_show.h"

/* The whole text (free). */
static char *shown(const char *json)
{
    char *text = NULL;
    size_t size;
    json_t *o = json_loads(json, 0, NULL);
    FILE *f = open_memstream(&text, &size);
    assert_non_null(o);
    worker_show(o, f);
    fclose(f);
    json_decref(o);
    return text;
}

#define WORKER                                                                                     \
    "{\"id\":3,\"name\":\"isle\",\"state\":\"busy\",\"reason\":\"\",\"activity\":\"training\","    \
    "\"images_per_s\":12.5,\"heartbeat_age_ms\":1000,\"strikes\":0,"                               \
    "\"bytes\":{\"data\":{\"up\":1024,\"down\":2048}},"

static void with_devices(void **state)
{
    char *text = shown(
        WORKER "\"flops\":412.5e12,\"peak_flops\":698e12,\"mfu\":0.591,\"devices\":["
               "{\"name\":\"cuda:0\",\"model\":\"NVIDIA H200\",\"memory_used\":1073741824,"
               "\"memory_total\":2147483648,\"utilization\":0,\"temperature\":61,\"power\":640.4,"
               "\"ecc_errors\":0,\"throttled\":\"power cap\",\"trouble\":\"\"},"
               "{\"name\":\"cuda:1\",\"model\":\"?\",\"memory_used\":null,\"memory_total\":null,"
               "\"utilization\":null,\"temperature\":null,\"power\":null,\"ecc_errors\":2,"
               "\"throttled\":\"\",\"trouble\":\"GPU is lost\"}]}");
    assert_string_equal(
        text, "   3  isle             busy            12.5 /s  up 1.0 KiB   down 2.0 KiB   "
              "heartbeat 1.0s   training\n"
              "      412 TFLOP/s of model arithmetic, 59.1% of the 698 TFLOP/s that products reach "
              "there\n"
              "      cuda:0  NVIDIA H200, 0% busy, 1.0 GiB of 2.0 GiB, 61 C, 640 W; held down: "
              "power cap\n"
              "      cuda:1  ?; 2 uncorrected memory errors; GPU is lost\n");
    free(text);
}

static void nothing_known(void **state)
{
    char *text = shown(WORKER "\"flops\":null,\"peak_flops\":9e9,\"mfu\":null,\"devices\":[]}");
    assert_null(strstr(text, "FLOP/s"));
    assert_ptr_equal(strchr(text, '\n'), text + strlen(text) - 1);
    free(text);
    text = shown(WORKER "\"flops\":1234,\"peak_flops\":null,\"mfu\":null,\"devices\":[]}");
    assert_non_null(strstr(text, "\n      1.23 kFLOP/s of model arithmetic\n"));
    assert_null(strstr(text, "broke"));
    free(text);
    text = shown(WORKER "\"device_failures\":2,\"flops\":null,\"devices\":[]}");
    assert_non_null(strstr(text, "\n      its device broke 2 times\n"));
    free(text);
    text = shown(WORKER "\"device_failures\":1,\"flops\":null,\"devices\":[]}");
    assert_non_null(strstr(text, "\n      its device broke 1 time\n"));
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(with_devices),
        cmocka_unit_test(nothing_known),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
