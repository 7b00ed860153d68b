/* What the coordinator knows of a job at its end, for programs: report.json with
 * "job", "modules" and "workers" as the HTTP API gives them. */
#ifndef CLI_REPORT_H
#define CLI_REPORT_H

#include <stdint.h>

struct cli;
struct err;

int report_write(struct cli *cli, uint64_t job, const char *dir, struct err *err);

#endif
