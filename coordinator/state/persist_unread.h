/* A job whose rows are not loaded: what stands in its place, and the blobs that they name. */
#ifndef COORDINATOR_PERSIST_UNREAD_H
#define COORDINATOR_PERSIST_UNREAD_H

#include <sqlite3.h>

#include "coordinator/state/job.h"

/* Makes j such a job: one module without a version stands in for all, and j->unread_blobs are the
 * blobs that the release which wrote the job may need. */
int persist_unread(sqlite3 *db, struct job *j, struct err *err);

#endif
