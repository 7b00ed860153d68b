#include "cli/report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "common/base/file.h"
#include "common/base/mem.h"

/* GET path; of a list its items. */
static int add(struct cli *cli, json_t *report, const char *name, const char *path, struct err *err)
{
    json_t *answer = NULL;
    int rc = cli_call(cli, "GET", path, NULL, &answer, err);
    if (rc < 0)
        return rc;
    json_t *items = json_object_get(answer, "items");
    json_object_set(report, name, items ? items : answer);
    json_decref(answer);
    return 0;
}

int report_write(struct cli *cli, uint64_t job, const char *dir, struct err *err)
{
    char path[64];
    json_t *report = json_object();
    snprintf(path, sizeof path, "/v1/jobs/%llu", (unsigned long long)job);
    int rc = add(cli, report, "job", path, err);
    snprintf(path, sizeof path, "/v1/modules?job=%llu", (unsigned long long)job);
    if (rc == 0)
        rc = add(cli, report, "modules", path, err);
    if (rc == 0)
        rc = add(cli, report, "workers", "/v1/workers", err);
    if (rc == 0) {
        char *file = file_join(dir, "report.json");
        char *text = json_dumps(report, JSON_INDENT(1));
        rc = file_write_atomic(file, text, strlen(text), 0644, err);
        free(text);
        mem_free(file);
    }
    json_decref(report);
    return rc;
}
