/* The blobs named by the rows of a job that is not loaded. */
#ifndef COORDINATOR_PERSIST_NAMES_H
#define COORDINATOR_PERSIST_NAMES_H

#include <sqlite3.h>

#include "coordinator/state/job.h"

/* Adds to j->unread_blobs the blobs that the release which wrote the job may need. */
int persist_names(sqlite3 *db, struct job *j, struct err *err);

#endif
