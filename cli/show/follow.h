/* Following a job: round, loss, speed, ETA, who is gone and who goes on with its phase, and who is
 * late, in one line that is redrawn on a terminal; elsewhere a line a round.  While nobody answers
 * it says so on stderr, and since when. */
#ifndef CLI_FOLLOW_H
#define CLI_FOLLOW_H

#include <jansson.h>

#include "common/base/base.h"

struct cli;

/* Called about twice a second with the job as GET /v1/jobs/{id} gives it, with NULL while nobody
 * answers; a non-zero return ends the following with CLI_FAILED. */
struct follow_hook {
    int (*poll)(void *arg, const json_t *job);
    void *arg;
};

/* Shows progress on stderr until the job ends, the hook ends it, a signal comes
 * (CLI_INTERRUPTED; the job goes on) or the coordinator stays away for a minute.
 * Returns the exit status.  With cli->json, each change is a JSON line. */
int follow_job(struct cli *cli, uint64_t id, const struct follow_hook *hook);
/* As follow_job, as what the command is for: if stdout is a pipe or a file, the lines go there, and
 * following ends when nobody reads them.  When it is interrupted, a sentence says that the job goes
 * on, if that is known. */
int follow_apart(struct cli *cli, uint64_t id, const struct follow_hook *hook);

#endif
