/* The state of a coordinator in an object store, and the ownership of it (docs/failover.md).
 *
 *   ship_open()     the store is reached, and writes conditionally
 *   ship_own()      sends a snapshot of the database, the keys, and an entry: the log is ours
 *   ship_away()     what store_send_away() gets: each commit becomes an entry (writer thread)
 *   ship_is_lost()  somebody else has an entry that was to be ours: end, and tell nobody anything
 *
 * A thread of its own sends snapshots, removes what they make needless, and while there are no
 * commits looks every two seconds whether the log is still ours.  Another one writes a sign of life
 * every three seconds, "COUNT on HOST since TIME": while the coordinator opens, which may take
 * minutes, and then as long as its loop turns.  standby.h reads it. */
#ifndef COORDINATOR_SHIP_H
#define COORDINATOR_SHIP_H

#include "common/base/base.h"
#include "common/net/s3/log.h"
#include "coordinator/state/options.h"
#include "coordinator/state/store.h"

struct ship;

#define SHIP_WHO_MAX 160

/* "on HOST since TIME": a coordinator, for people. */
void ship_who(char ret[SHIP_WHO_MAX]);
/* Where its sign of life is, below the state's prefix; mem_free it. */
char *ship_sign_key(const char *prefix);

/* -ERR_UNIMPLEMENTED with a sentence: the store has no conditional writes.  -ERR_CONFIG: the
 * options name no store. */
int ship_open(const struct coordinator_options *o, struct ship **ret, struct err *err);
/* Waits for what is under way. */
void ship_close(struct ship *s); /* accepts NULL */

/* The database of the data dir is what the log says, or newer by a commit that nobody heard of;
 * from here on the log is ours.  -ERR_STALE: it is another's, or further.  Blocks. */
int ship_own(struct ship *s, struct store *store, struct err *err);

const struct store_away *ship_away(const struct ship *s);

/* From here on a write that fails is not tried again: the coordinator ends. */
void ship_end(struct ship *s);
/* The loop is alive: from the first call on there is no sign of life without another one. */
void ship_turns(struct ship *s);
/* ret_why: why, or what the store said last of an entry that it does not take ("": it takes them).
 * Any thread. */
bool ship_is_lost(struct ship *s, char ret_why[512]);

#endif
