/* Backups of a data directory, made while its coordinator runs, and their restore.
 *
 *     FOLDER/20261122T212400Z.manifest   one backup: manifest.h
 *     FOLDER/objects/ab/ab12…            contents, by SHA-256, of all backups together
 *
 * A content that the folder has already is not copied again; it is reread a week after it was last
 * read, and copied anew if it is damaged.  On a full disk, contents that no manifest names are
 * removed.  A backup is a snapshot of the database (SQLite's online backup), the blobs that it
 * needs, the outer optimiser's state, the key and the secrets.  Hard links pin the files first, so
 * that those deleted by the coordinator meanwhile are still copied; if one was deleted before it
 * was linked, another snapshot is taken.  Files are hashed while they are copied, so a damaged one
 * is found here; a restore hashes everything.
 *
 * A backup holds the coordinator's secrets: its folder is as private as the data directory.
 *
 * After a restore, new ids start far above those of the backup, so that none equals an id which the
 * lost coordinator gave out after the backup.  Blocking; any thread. */
#ifndef COORDINATOR_BACKUP_H
#define COORDINATOR_BACKUP_H

#include "common/base/base.h"

#define BACKUP_NAME_MAX 32
#define BACKUPS_MAX 65536 /* in a folder; seven years of hourly ones */

struct backup_result {
    char name[BACKUP_NAME_MAX];    /* "20261122T212400Z" */
    uint64_t files, bytes;         /* of the backup */
    uint64_t new_files, new_bytes; /* copied */
    unsigned dropped;              /* older backups removed */
};

/* Makes the folder if needed.  keep: how many backups stay, this one included; 0: all. */
int backup_make(const char *data_dir, const char *folder, unsigned keep, struct backup_result *ret,
                struct err *err);
/* Restores into data_dir, by place_begin(), and leaves nothing there if it fails.  name NULL: the
 * newest backup. */
int backup_restore(const char *folder, const char *name, const char *data_dir,
                   struct backup_result *ret, struct err *err);

#endif
