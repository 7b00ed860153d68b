/* skerry: the command that a person types. */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "common/base/str.h"

struct command {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *what;
};

static const struct command commands[] = {
    {"run", cmd_run,
     "launch a private swarm on this machine, run a job, leave the results in a folder"},
    {"submit", cmd_submit, "check a job file and its data, upload them, start the job"},
    {"check", cmd_check, "check a job file and its data without submitting"},
    {"keys", cmd_keys, "every key of a job file, with its default"},
    {"watch", cmd_watch, "follow a job to its end"},
    {"status", cmd_status, "what is running and what it waits for"},
    {"workers", cmd_workers, "the workers"},
    {"tasks", cmd_tasks, "the tasks of a job"},
    {"sample", cmd_sample, "draw a grid of samples"},
    {"export", cmd_export, "download the model as safetensors"},
    {"cancel", cmd_cancel, "stop a job"},
    {"drain", cmd_drain, "let a worker finish its task and give it no other"},
    {"login", cmd_login, "save the token of a coordinator"},
};
#define N_COMMANDS (sizeof commands / sizeof commands[0])

static void help(FILE *out)
{
    fputs("usage: skerry COMMAND [ARGUMENTS]\n\n"
          "Trains one model across scattered islands of GPUs.\n\ncommands:\n",
          out);
    for (size_t i = 0; i < N_COMMANDS; i++)
        fprintf(out, "  %-9s %s\n", commands[i].name, commands[i].what);
    fputs("\n`skerry COMMAND --help` tells more.\n\n"
          "exit status:\n"
          "  0 done             3 no coordinator or wrong token   5 the job failed\n"
          "  1 any other error  4 job file or data refused        6 the job was cancelled\n"
          "  2 wrong command line                                 130 interrupted\n",
          out);
}

int main(int argc, char **argv)
{
    const char *names[N_COMMANDS];

    (void)signal(SIGXFSZ, SIG_IGN); /* a write beyond `ulimit -f` fails, as on a full disk */
    if (argc < 2) {
        help(stderr);
        return CLI_USAGE;
    }
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || !strcmp(argv[1], "help")) {
        help(stdout);
        return CLI_OK;
    }
    if (!strcmp(argv[1], "--version")) {
        puts("skerry " SKERRY_VERSION);
        return CLI_OK;
    }
    for (size_t i = 0; i < N_COMMANDS; i++) {
        if (!strcmp(argv[1], commands[i].name))
            return commands[i].run(argc - 1, argv + 1);
        names[i] = commands[i].name;
    }
    char hint[STR_HINT_MAX];
    fprintf(stderr, "skerry: there is no command '%s'%s; `skerry --help` lists them\n", argv[1],
            str_hint(argv[1], names, N_COMMANDS, "", hint));
    return CLI_USAGE;
}
