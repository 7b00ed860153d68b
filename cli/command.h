/* A subcommand of `skerry`, one row of the table in cli/main.c.  main.c parses the flags,
 * connects to the coordinator where the row says so, and turns an error into a sentence on
 * stderr and an exit status; a command never does any of this itself. */
#ifndef CLI_COMMAND_H
#define CLI_COMMAND_H

#include "common/base/base.h"
#include "cli/base/cli.h"
#include "common/base/args.h"

/* What a command needs beside its own flags. */
enum command_needs {
    COMMAND_SERVER = 1,  /* the flag --server */
    COMMAND_CONNECT = 3, /* --server, and a connection before it runs */
    COMMAND_JSON = 4,    /* the flag --json */
    COMMAND_SIGNALS = 8, /* signals set cli_interrupted instead of ending it */
};

struct command {
    const char *name;              /* "submit" */
    const char *what;              /* its line in `skerry --help` */
    const char *usage, *about;     /* as in struct args */
    const struct args_flag *flags; /* its own; NULL: none.  Their values are static variables */
    size_t rest_min, rest_max;     /* positional arguments */
    unsigned needs;                /* enum command_needs */
    /* The exit status, or a negative code with its sentence in err. */
    int (*run)(struct cli *cli, const struct args *args, struct err *err);
};

extern const struct command command_run;                                    /* run.c */
extern const struct command command_new;                                    /* new.c */
extern const struct command command_submit, command_check, command_keys;    /* submit.c */
extern const struct command command_sample, command_export;                 /* sample.c */
extern const struct command command_status, command_workers, command_tasks; /* status.c */
extern const struct command command_doctor;                                 /* doctor.c */
extern const struct command command_trace;                                  /* trace.c */
extern const struct command command_watch, command_cancel, command_drain, command_login;
extern const struct command command_pause, command_resume, command_rollback; /* pause.c */
extern const struct command command_remove;                                  /* remove.c */
extern const struct command command_tokens, command_revoke;                  /* tokens.c */
extern const struct command command_cost, command_adjust;                    /* cost.c */
extern const struct command command_backup, command_restore, command_audit;  /* backup.c */

#endif
