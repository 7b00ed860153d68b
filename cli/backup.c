/* skerry backup, restore, audit: on the coordinator's machine.  coordinatord does the work, because
 * it knows its data; this finds the program and completes the arguments. */

#include <unistd.h>

#include "cli/command.h"

static const char *data_dir = "/var/lib/skerry-coordinator", *from, *config;
static uint64_t keep = 7;

static int run_coordinatord(const char *const argv[], struct err *err)
{
    char *folder = cli_own_folder(), *path = str_printf("%s/%s", folder, argv[0]);
    (void)execv(path, (char *const *)(uintptr_t)argv);
    int rc = err_errno(err, "%s cannot be started", path);
    mem_free(folder);
    mem_free(path);
    return rc;
}

static int run_backup(struct cli *cli, const struct args *args, struct err *err)
{
    char number[24];
    (void)snprintf(number, sizeof number, "%" PRIu64, keep);
    const char *const argv[] = {"coordinatord", "--data-dir", data_dir, "--backup",
                                args->rest[0],  "--keep",     number,   NULL};
    return run_coordinatord(argv, err);
}

static int run_restore(struct cli *cli, const struct args *args, struct err *err)
{
    const char *const argv[] = {"coordinatord", "--data-dir",           data_dir, "--restore",
                                args->rest[0],  from ? "--from" : NULL, from,     NULL};
    return run_coordinatord(argv, err);
}

#define DATA_DIR                                                                                   \
    {                                                                                              \
        "data-dir", 'd', ARGS_STR, &data_dir, "DIR", "the coordinator's data dir"                  \
    }

static const struct args_flag backup_flags[] = {
    DATA_DIR,
    {"keep", 0, ARGS_U64, &keep, "N", "number of backups to keep in the folder, 0: all",
     .max = 60000},
    {0},
};

const struct command command_backup = {
    .name = "backup",
    .what = "back a coordinator up to a folder, while it runs",
    .usage = "FOLDER [--data-dir DIR] [--keep N]",
    .about = "Copies what a coordinator needs to start again elsewhere: its "
             "database, its key and secrets, and the blobs that the folder lacks.  "
             "Run it on the coordinator's machine, as its user or root.  Keep the "
             "folder as secret as the data dir.",
    .flags = backup_flags,
    .rest_min = 1,
    .rest_max = 1,
    .run = run_backup,
};

static const struct args_flag restore_flags[] = {
    DATA_DIR,
    {"from", 0, ARGS_STR, &from, "NAME",
     "take this backup, such as 20261122T212400Z (default: the newest)"},
    {0},
};

const struct command command_restore = {
    .name = "restore",
    .what = "restore a coordinator's data dir from a backup",
    .usage = "FOLDER [--data-dir DIR] [--from NAME]",
    .about = "Fills an empty data dir from a backup, on this or another machine, and"
             " checks every byte.  Then start coordinatord on it, never beside the "
             "old one.  Workers and people find it by its host name, or need new "
             "token files.",
    .flags = restore_flags,
    .rest_min = 1,
    .rest_max = 1,
    .run = run_restore,
};

static int run_audit(struct cli *cli, const struct args *args, struct err *err)
{
    uint64_t id;
    if (str_parse_u64(args->rest[0], &id) < 0 || id == 0)
        return err_set(err, -ERR_USAGE, "'%s' is not a job's id; `skerry status` lists the jobs",
                       args->rest[0]);
    const char *const argv[] = {"coordinatord", "--data-dir",  data_dir,
                                "--audit",      args->rest[0], config ? "--config" : NULL,
                                config,         NULL};
    return run_coordinatord(argv, err);
}

static const struct args_flag audit_flags[] = {
    DATA_DIR,
    {"config", 'c', ARGS_STR, &config, "FILE",
     "the coordinator's settings, if its blobs are in an object store"},
    {0},
};

const struct command command_audit = {
    .name = "audit",
    .what = "recompute a job's versions and compare them with the record",
    .usage = "JOB [--data-dir DIR] [--config FILE]",
    .about = "Checks what a coordinator keeps of a job, on its machine, also while "
             "it runs: hashes every file, recomputes each kept version from the one "
             "before and its delta, recomputes the newest outer step from its "
             "contributions, and prints the balance of samples.  Exit status 1 if "
             "anything differs from the record.",
    .flags = audit_flags,
    .rest_min = 1,
    .rest_max = 1,
    .run = run_audit,
};
