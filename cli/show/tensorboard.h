/* A job in event files of TensorBoard, while it is followed: DIR/NAME-ID is a run.
 *
 *     tensorboard_open(&cli, id, dir, &tb, err);
 *     follow_apart(&cli, id, &(struct follow_hook){tensorboard_poll, tb});
 *     tensorboard_close(tb);
 *
 * | tag | step | |
 * | loss/replica-R | inner step | training loss of a replica |
 * | numbers/NAME/replica-R | inner step | what a trainer calls NAME |
 * | numbers/NAME/held_out | at the round's end | the same of an evaluation |
 * | loss/round | at its end | the mean of a round |
 * | held_out | at the round's end | held-out loss |
 * | lr | inner step | of replica 0 |
 * | round/seconds, round/bytes_up, round/bytes_down | at its end | |
 * | samples | at the round's end | pictures or texts |
 * | job | 0 | the job file |
 *
 * Jobs of several paths have "path-P/" behind the first word.
 *
 * A hidden file beside the events says how far they are: after a restart what is behind that is cut
 * off, a new file goes on with what is new, and no point is there twice.  One process at a time has
 * a run. */
#ifndef CLI_TENSORBOARD_H
#define CLI_TENSORBOARD_H

#include <jansson.h>

#include "common/base/base.h"

struct cli;
struct tensorboard;

/* -EBUSY: another process writes there.  -EINVAL: events of another job, or of unknown origin. */
int tensorboard_open(struct cli *cli, uint64_t job, const char *dir, struct tensorboard **ret,
                     struct err *err);
/* A hook of follow.h: writes what is new, at most every two seconds until the job ends.  What
 * cannot be fetched just now comes with the next call.  What cannot be written, or fetched in the
 * end, is said on stderr, and 1 is returned. */
int tensorboard_poll(void *tb, const json_t *job);
void tensorboard_close(struct tensorboard *tb); /* accepts NULL */

#endif
