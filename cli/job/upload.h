/* Files on their way to the coordinator's blob store. */
#ifndef CLI_UPLOAD_H
#define CLI_UPLOAD_H

#include <jansson.h>

#include "common/base/base.h"
#include "common/base/hash.h"
#include "common/net/http/transfer.h"

struct cli;

/* Sends the file unless a blob with this hash is there already; *ret_sent (may be NULL)
 * is the bytes that travelled.  The coordinator keeps it for a day, and for longer while `cli` goes
 * on with further files.  `what` ("a shard") is for messages; `tell`, which may be NULL, hears how
 * far it is. */
int upload_blob(struct cli *cli, const char *path, const uint8_t sha256[HASH_BYTES], uint64_t size,
                const char *what, xfer_progress_fn tell, void *arg, uint64_t *ret_sent,
                struct err *err);

/* Hashes and sends a file; *ret = {"sha256", "size"}, owned by the caller.  With `progress` stderr
 * says how far a large one is. */
int upload_file(struct cli *cli, const char *path, const char *what, bool progress, json_t **ret,
                struct err *err);

#endif
