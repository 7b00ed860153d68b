/* What the text of a job on record means (state.h: refused, unread).  Loop thread. */
#ifndef COORDINATOR_PERSIST_JOB_H
#define COORDINATOR_PERSIST_JOB_H

#include <sqlite3.h>
#include <stdbool.h>

struct err;
struct job;

/* Fills j->spec and j->comp from j->yaml; j->state is as it was saved.
 * A job that a newer rule refuses gets j->refused, and is else as it was.  If not even its
 * composition can be told, it is unread besides: one module without a version stands in for all,
 * and its rows, which must not be loaded, stay for the release that wrote them; j->unread_blobs
 * are what they name.  Negative: the store cannot be read. */
int persist_read_job(sqlite3 *db, struct job *j, struct err *err);

#endif
