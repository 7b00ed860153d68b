/* The blobs that the rows of a job name which is not loaded. */
#ifndef COORDINATOR_PERSIST_NAMES_H
#define COORDINATOR_PERSIST_NAMES_H

#include <sqlite3.h>

#include "coordinator/state/job.h"

/* Adds to j->unread_blobs what the release that wrote the job may want. */
int persist_names(sqlite3 *db, struct job *j, struct err *err);

#endif
