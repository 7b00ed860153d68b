/* Where the blobs of a data directory live: in its folder blobs/, or in an object store
 * (docs/store.md) that it remembers in its file blob-store.  It is opened with that one or not at
 * all: elsewhere no blob would be found, and the jobs would be lost. */
#ifndef COORDINATOR_PLACE_H
#define COORDINATOR_PLACE_H

#include "common/base/base.h"

struct blobstore;
struct coordinator_options;

/* Opens what the options name; cluster: the id of this one.  Region and endpoint of a store also
 * come from the environment, as Amazon's programs read them. */
int place_open(const struct coordinator_options *o, const char *cluster, struct blobstore **ret,
               struct err *err);

/* The store's URL, mem_free it; NULL: the folder. */
char *place_url(const char *data_dir);

#endif
