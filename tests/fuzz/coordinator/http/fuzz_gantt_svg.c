/* Traces as a worker may send them: a picture without a number that is none, or an error. */
#include "coordinator/http/gantt_svg.h"

#include "common/base/buf.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void expect_none(const char *svg, const char *what)
{
    if (strstr(svg, what))
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    json_t *trace = json_loadb((const char *)data, size, 0, NULL);
    struct buf out;
    struct err err = {0};
    buf_init(&out, 1 << 20);
    const int rc = trace ? gantt_svg(trace, &out, &err) : -ERR_FORMAT;
    if (rc != 0 && rc != -ERR_FORMAT && rc != -ERR_LIMIT)
        abort();
    if (rc == 0) { /* names come without quotes */
        expect_none(buf_str(&out), "=\"nan");
        expect_none(buf_str(&out), "=\"-");
        expect_none(buf_str(&out), "=\"inf");
    }
    buf_release(&out);
    json_decref(trace);
    return 0;
}
