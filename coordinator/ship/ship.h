/* The state of a coordinator in an object store, and the ownership of it (docs/failover.md).
 *
 *   ship_open()     checks that the store can be reached and has conditional writes
 *   ship_own()      sends a snapshot of the database, the keys, and an entry: the log is ours
 *   ship_away()     for store_send_away(): each commit becomes an entry (writer thread)
 *   ship_watch()    instead of these two: the log stays as it is, and is read
 *   ship_is_lost()  another coordinator wrote the entry that was to be ours: stop, answer nobody
 *
 * One thread sends snapshots, removes the entries that they replace, and checks every two seconds
 * without a commit whether the log is still ours.  Another writes a sign of life every three
 * seconds, "COUNT on HOST since TIME": while the coordinator opens, which may take minutes, and
 * then as long as its loop runs.  standby.h reads it. */
#ifndef COORDINATOR_SHIP_H
#define COORDINATOR_SHIP_H

#include "common/base/base.h"
#include "common/net/s3/log.h"
#include "coordinator/state/options.h"
#include "coordinator/state/store.h"

struct ship;

#define SHIP_WHO_MAX 160

/* "on HOST since TIME": describes a coordinator to people. */
void ship_who(char ret[SHIP_WHO_MAX]);
/* The key of its sign of life, below the state's prefix; mem_free it. */
char *ship_sign_key(const char *prefix);

/* -ERR_UNIMPLEMENTED with a sentence: the store has no conditional writes, or takes two at once;
 * this is tried only with store_state.
 * -ERR_CONFIG: the options name no store. */
int ship_open(const struct coordinator_options *o, struct ship **ret, struct err *err);
/* Waits for transfers under way. */
void ship_close(struct ship *s); /* accepts NULL */

/* Checks that the data directory's database agrees with the log, or is newer by one commit that was
 * never acknowledged, and takes the log over.  -ERR_STALE: the log is another coordinator's, or
 * further.  Blocks. */
int ship_own(struct ship *s, struct store *store, struct err *err);

/* For a coordinator without --store-state whose database was shipped before: checks the same, and
 * pauses.  From here on ship_is_lost() says whether another coordinator goes on with the state. */
int ship_watch(struct ship *s, struct store *store, struct err *err);

/* Does the entry begin with rows that are in no entry before it, but only in the snapshot made for
 * it: of commits during a pause, of one that was not sent before the process ended, or in a newer
 * release's schema? */
bool ship_is_ahead(const struct s3_log_entry *e);

const struct store_away *ship_away(const struct ship *s);

/* The coordinator is stopping: from here on a failed write is not retried. */
void ship_end(struct ship *s);
/* The loop is alive.  From the first call on, each further sign of life needs another call. */
void ship_turns(struct ship *s);
/* Requests to the store so far.  Any thread. */
uint64_t ship_requests(struct ship *s);
/* Whether the log is lost.  ret_why: why; if it is not, the store's last error for an entry that it
 * does not take ("": it takes them).  Any thread. */
bool ship_is_lost(struct ship *s, char ret_why[512]);

#endif
