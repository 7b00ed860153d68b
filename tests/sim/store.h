/* The object store, in place of common/net/s3/client.c: what a coordinator sees of it through that
 * client, and not its HTTP.
 *
 * A request is on its way, is done, and its answer is on its way back.  It may be refused, be lost,
 * be done long after whoever asked has given up, or be done with the answer lost.  What was asked
 * is done also if whoever asked is gone meanwhile.  Off a fiber the store answers at once.
 *
 * It watches the log (common/net/s3/log.h): whatever is removed from it, no number is ever taken
 * for written that was first written with other bytes.  So two coordinators cannot both commit. */
#ifndef TESTS_SIM_STORE_H
#define TESTS_SIM_STORE_H

#include "common/base/base.h"

struct blob_id;
struct blobstore;

#define STORE_URL "s3://sim/p"

void store_begin(void);
void store_end(void);

/* Of a thousand requests so many go wrong, and each way takes up to so many ms. */
void store_hurt(unsigned in_thousand, uint64_t most_ms);
/* The process cannot reach it; 0: nobody can. */
void store_cut(unsigned process);
void store_heal(void); /* from both */
/* The process is gone: what it has asked for is done, and nothing more. */
void store_kill(unsigned process);
bool store_is_gone(unsigned process);
/* Whose the disk is that crashes (disk.h). */
void store_is_for(unsigned process);

/* Has it these bytes?  Also yes where a delete that came late took them, as docs/failover.md says
 * that it may. */
bool store_has_blob(const struct blob_id *id);
/* Would whoever stores this blob have to wait for another who does, or deletes it? */
bool store_is_busy(struct blobstore *s, const struct blob_id *id);
/* How many objects have keys that begin with this. */
size_t store_count(const char *prefix);
/* Changed by each entry of the log. */
uint64_t store_entries(void);

#endif
