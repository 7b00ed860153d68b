/* INGEST: turns an archive of the data into shards. */
#ifndef COORDINATOR_KINDS_INGEST_H
#define COORDINATOR_KINDS_INGEST_H

#include "coordinator/kinds/kind.h"

extern const struct kind kind_ingest;

#endif
