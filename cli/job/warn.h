/* What a person should know of the swarm that gets a job: disks that it may fill, workers for
 * which the others will wait, and workers that it has nothing to train for. */
#ifndef CLI_WARN_H
#define CLI_WARN_H

#include <jansson.h>

#include "cli/job/disk.h"
#include "cli/job/job_file.h"

struct cli;

/* Asks the coordinator, after the upload of the data.  An array of sentences, the caller's; what is
 * not known makes none.  one_disk: the coordinator and all workers are on this machine. */
json_t *warn_of_swarm(struct cli *cli, const struct job_file *job, bool one_disk);

/* Says each on stderr. */
void warn_say(const json_t *warnings);

/* ---- for tests ---- */

/* By /v1/status and the items of /v1/workers.  Append to the array. */
void warn_of_disks(const json_t *status, const json_t *workers, const struct disk_need *need,
                   bool one_disk, json_t *to);
void warn_of_speeds(const json_t *workers, json_t *to);
/* phases: of a round, however many workers there are. */
void warn_of_spares(const json_t *workers, uint32_t phases, json_t *to);

#endif
