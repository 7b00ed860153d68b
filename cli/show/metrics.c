#include "cli/show/metrics.h"

#include "cli/base/cli.h"
#include "common/net/http/http_client.h"

/* Reads a page of JSON lines; *ret_records: their number. */
static int each_line(const char *text, uint64_t *after, metrics_fn fn, void *arg,
                     size_t *ret_records, struct err *err)
{
    *ret_records = 0;
    for (size_t len; *text; text += len + (text[len] == '\n')) {
        len = strcspn(text, "\n");
        json_t *record = json_loadb(text, len, 0, NULL);
        if (!record)
            continue;
        int rc = fn(arg, record, text, len, err);
        if (rc == 0)
            *after = (uint64_t)cli_int(record, "n", (json_int_t)*after);
        json_decref(record);
        if (rc < 0)
            return rc;
        ++*ret_records;
    }
    return 0;
}

int metrics_each(struct cli *cli, uint64_t job, uint64_t *after, metrics_fn fn, void *arg,
                 struct err *err)
{
    uint64_t before;
    size_t records = 0;
    do {
        struct http_response page = {0};
        char path[96];
        before = *after;
        snprintf(path, sizeof path, "/v1/jobs/%llu/metrics?after=%llu", (unsigned long long)job,
                 (unsigned long long)*after);
        int rc = http_call(cli->http, "GET", path, NULL, 0, &page, err);
        if (rc < 0)
            return rc;
        rc = http_response_check(&page, err);
        if (rc == 0)
            rc = each_line(page.body, after, fn, arg, &records, err);
        http_response_release(&page);
        if (rc < 0)
            return rc;
    } while (records > 0 && *after > before);
    return 0;
}
