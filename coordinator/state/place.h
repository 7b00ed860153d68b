/* Where the blobs of a data directory live: in its folder blobs/, or in an object store
 * (docs/store.md) that it remembers in its file blob-store.  It is opened with that one or not at
 * all: elsewhere no blob would be found, and the jobs would be lost. */
#ifndef COORDINATOR_PLACE_H
#define COORDINATOR_PLACE_H

#include "common/base/base.h"

struct blobstore;
struct coordinator_options;
struct s3_options;

/* Makes a data dir to restore into, or finds it empty but for the lock of a coordinator, and what a
 * new disk comes with. */
int place_check_new(const char *data_dir, struct err *err);

/* -EEXIST for a directory that is somebody else's: it has files, and none of a coordinator.
 * One that is not there yet is fine. */
int place_check_own(const char *data_dir, struct err *err);

/* Opens what the options name; cluster: the id of this one.  Region and endpoint of a store also
 * come from the environment, as Amazon's programs read them. */
int place_open(const struct coordinator_options *o, const char *cluster, struct blobstore **ret,
               struct err *err);

/* How that store is reached, but for its bucket; strings of the options and the environment. */
void place_s3(const struct coordinator_options *o, struct s3_options *ret);
/* Notes in the data dir that its blobs are there. */
int place_remember(const struct coordinator_options *o, struct err *err);

/* The store's URL, mem_free it; NULL: the folder. */
char *place_url(const char *data_dir);

#endif
