/* skerry backup, restore, audit: on the coordinator's machine.  coordinatord knows its data, so it
 * does the work; this finds it and names what a person means. */

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
        "data-dir", 'd', ARGS_STR, &data_dir, "DIR", "of the coordinator"                          \
    }

static const struct args_flag backup_flags[] = {
    DATA_DIR,
    {"keep", 0, ARGS_U64, &keep, "N", "how many backups stay in the folder, 0: all", .max = 60000},
    {0},
};

const struct command command_backup = {
    .name = "backup",
    .what = "back a coordinator up to a folder, while it runs",
    .usage = "FOLDER [--data-dir DIR] [--keep N]",
    .about = "Copies what a coordinator needs to begin again elsewhere: its database, its key and "
             "secrets, and the blobs that are not in the folder yet. It runs on the coordinator's "
             "machine, as its user or root; the folder is as secret as the data dir.",
    .flags = backup_flags,
    .rest_min = 1,
    .rest_max = 1,
    .run = run_backup,
};

static const struct args_flag restore_flags[] = {
    DATA_DIR,
    {"from", 0, ARGS_STR, &from, "NAME", "this backup, such as 20261122T212400Z [the newest]"},
    {0},
};

const struct command command_restore = {
    .name = "restore",
    .what = "make a coordinator's data dir from a backup",
    .usage = "FOLDER [--data-dir DIR] [--from NAME]",
    .about = "Makes an empty data dir what it was at a backup, on this or another machine; every "
             "byte is checked. Start coordinatord on it afterwards, never beside the old one. "
             "Workers and people find it by its name, or by their token files made new.",
    .flags = restore_flags,
    .rest_min = 1,
    .rest_max = 1,
    .run = run_restore,
};

static int run_audit(struct cli *cli, const struct args *args, struct err *err)
{
    uint64_t id;
    if (str_parse_u64(args->rest[0], &id) < 0 || id == 0)
        return err_set(err, -EINVAL, "'%s' is not a job's id; `skerry status` lists the jobs",
                       args->rest[0]);
    const char *const argv[] = {"coordinatord", "--data-dir",  data_dir,
                                "--audit",      args->rest[0], config ? "--config" : NULL,
                                config,         NULL};
    return run_coordinatord(argv, err);
}

static const struct args_flag audit_flags[] = {
    DATA_DIR,
    {"config", 'c', ARGS_STR, &config, "FILE",
     "the coordinator's settings, where its blobs are in an object store"},
    {0},
};

const struct command command_audit = {
    .name = "audit",
    .what = "make a job's versions again and compare them with the record",
    .usage = "JOB [--data-dir DIR] [--config FILE]",
    .about = "Looks over what a coordinator keeps of a job, on its machine, while it runs: hashes "
             "every file, makes each kept version again from the one before and its delta, folds "
             "the newest outer step again from its contributions, and prints the balance of "
             "samples. Exit status 1 when anything is not as recorded.",
    .flags = audit_flags,
    .rest_min = 1,
    .rest_max = 1,
    .run = run_audit,
};
