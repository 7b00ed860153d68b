/* Backups of a data directory, made while its coordinator runs, and the way back.
 *
 *     FOLDER/20261122T212400Z.manifest   one backup: manifest.h
 *     FOLDER/objects/ab/ab12…            contents, by SHA-256, of all backups together
 *
 * What is there already is not copied again, but read again a week after it was last, and copied
 * anew if it has rotted.  On a full disk what no manifest names goes.  A backup is a snapshot of
 * the database (SQLite's online backup), the blobs that it needs, the outer optimiser's state, the
 * key and the secrets. They are pinned by hard links first, so that what the coordinator deletes
 * meanwhile is still copied; what it has deleted before calls for another snapshot.  What is copied
 * is hashed on its way, so a damaged file is found here; a restore hashes everything.
 *
 * A backup holds the coordinator's secrets: its folder is as private as the data directory.
 *
 * After a restore ids go on far above those of the backup, so that nobody takes what the lost
 * coordinator has given out since for something else.  Blocking; any thread. */
#ifndef COORDINATOR_BACKUP_H
#define COORDINATOR_BACKUP_H

#include "common/base/base.h"

#define BACKUP_NAME_MAX 32
#define BACKUPS_MAX 65536 /* of a folder; seven years of hourly ones */

struct backup_result {
    char name[BACKUP_NAME_MAX];    /* "20261122T212400Z" */
    uint64_t files, bytes;         /* of the backup */
    uint64_t new_files, new_bytes; /* that were copied */
    unsigned dropped;              /* older backups */
};

/* Makes folder.  keep: how many backups stay, with this one; 0: all. */
int backup_make(const char *data_dir, const char *folder, unsigned keep, struct backup_result *ret,
                struct err *err);
/* Into data_dir, which is made, or is empty.  name NULL: the newest.  The database comes last: what
 * is cut off does not start. */
int backup_restore(const char *folder, const char *name, const char *data_dir,
                   struct backup_result *ret, struct err *err);

#endif
