/* The coordinator's disk: what a program has written stays only if it was flushed.
 *
 *   disk_begin(root)          an empty data directory
 *   disk_crash(loss)          now, or amid the n-th operation to come (disk_arm()): an image is
 * made of what is left.  The program goes on without knowing, and nothing that it does from there
 * on counts disk_recover()            the image becomes the data directory
 *
 * Under SQLite lies a VFS of ours over the usual one, which notes each write until the next xSync.
 * Other files are known by their calls of fsync(): at a loss of power those that have changed since
 * are whole, cut or empty, and names that their directory was not flushed with may be gone.  A
 * program that is killed loses nothing, but what was not flushed is still that. */
#ifndef TESTS_SIM_DISK_H
#define TESTS_SIM_DISK_H

#include "common/base/base.h"

struct blob_id;
struct blobstore;

enum disk_loss { DISK_KILLED, DISK_POWER };

void disk_begin(const char *root); /* a directory that exists; what is in it goes at the end */
void disk_end(void);
const char *disk_dir(void);

void disk_crash(enum disk_loss loss);
/* Amid the n-th operation from now on, 1 the next; 0: not any more. */
void disk_arm(unsigned n, enum disk_loss loss);
bool disk_crashed(void);        /* since the last disk_recover() */
enum disk_loss disk_lost(void); /* by the last crash */
void disk_recover(void);
/* Another machine's data directory, which does not exist yet, to be filled. */
char *disk_other(void);
/* The machine is that one now, and all that is there is flushed.  keep: the old one's directory
 * stays, for a coordinator that lives there and never crashes again. */
void disk_move(char *dir, bool keep); /* takes dir */

/* While it is full no write of the database goes through. */
void disk_fill(bool full);
/* Of a thousand flushes of the database this many take seconds. */
void disk_slow(unsigned in_thousand);

/* Bytes of memory that it is made of. */
size_t disk_held(void);

/* What is flushed and named meanwhile is another machine's, and no operation of ours. */
void disk_elsewhere(bool elsewhere);

/* An upload, which goes on where the last one was cut, and may be cut itself: -ECONNRESET.  Blobs
 * are as old as the world's clock says. */
int disk_upload(struct blobstore *s, const struct blob_id *id, const void *data, size_t len);

#endif
