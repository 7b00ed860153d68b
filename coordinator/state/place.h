/* Where the blobs of a data directory live: in its folder blobs/, or in an object store
 * (docs/store.md) that it remembers in its file blob-store.  It is opened with that one or not at
 * all: elsewhere no blob would be found, and the jobs would be lost. */
#ifndef COORDINATOR_PLACE_H
#define COORDINATOR_PLACE_H

#include "common/base/base.h"

#define PLACE_CACHE "cache" /* of a store's blobs, in the data dir, as a directory of blobs */

struct blobstore;
struct coordinator_options;
struct s3;
struct s3_options;

/* Makes a data dir to restore into, or finds it empty but for the lock of a coordinator, and what a
 * new disk comes with. */
int place_check_new(const char *data_dir, struct err *err);

/* What root restored is given to the directory's owner, which the coordinator runs as: of a unit
 * with DynamicUser systemd looks at the directory alone. */
int place_give(const char *data_dir, struct err *err);

/* Makes room for the state that is in the store: what the data dir has goes into its folder
 * "deposed", in place of what that had; copies of the store's blobs go.  -EEXIST: it has blobs of
 * its own. */
int place_set_aside(const char *data_dir, struct err *err);

/* -EEXIST for a directory that is somebody else's: it has files, and none of a coordinator.
 * One that is not there yet is fine. */
int place_check_own(const char *data_dir, struct err *err);

/* -ERR_CONFIG: the options name another place than the data dir remembers. */
int place_check(const struct coordinator_options *o, struct err *err);

/* Opens what the options name, which place_check found right; cluster: the id of this one.  Region
 * and endpoint of a store also come from the environment, as Amazon's programs read them. */
int place_open(const struct coordinator_options *o, const char *cluster, struct blobstore **ret,
               struct err *err);

/* A client of the store that also has the state (--store-state), and the prefix below which that
 * is, mem_free it.  like: tries and waits, else zero.  -ERR_CONFIG: the options name no store. */
int place_open_state(const struct coordinator_options *o, const struct s3_options *like,
                     struct s3 **ret, char **ret_prefix, struct err *err);
/* The same for all that is there, beside a coordinator that runs: names are the prefix and what
 * docs/failover.md lists. */
int place_open_all(const struct coordinator_options *o, struct s3 **ret, char **ret_prefix,
                   struct err *err);
/* Notes in the data dir that its blobs are there. */
int place_remember(const struct coordinator_options *o, struct err *err);
void place_forget(const char *data_dir);

/* The store's URL, mem_free it; NULL: the folder. */
char *place_url(const char *data_dir);

#endif
