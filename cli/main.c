/* skerry: the command that a person types.  Finds the subcommand, parses its flags, connects to the
 * coordinator if needed, and turns the result into the exit status. */
#include <signal.h>

#include "common/base/base.h"
#include "common/base/file.h"
#include "cli/command.h"

#define FLAGS_MAX 32

static const struct command command_completion;

static const struct command *const commands[] = {
    &command_new,      &command_run,    &command_submit,     &command_check,  &command_keys,
    &command_watch,    &command_status, &command_workers,    &command_tasks,  &command_sample,
    &command_export,   &command_trace,  &command_cancel,     &command_drain,  &command_login,
    &command_doctor,   &command_tokens, &command_revoke,     &command_backup, &command_restore,
    &command_audit,    &command_cost,   &command_adjust,     &command_pause,  &command_resume,
    &command_rollback, &command_remove, &command_completion,
};
#define N_COMMANDS (sizeof commands / sizeof commands[0])

static void help(FILE *out)
{
    fputs("usage: skerry COMMAND [ARGUMENTS]\n\n"
          "Trains one model across scattered islands of GPUs.\n\ncommands:\n",
          out);
    for (size_t i = 0; i < N_COMMANDS; i++)
        fprintf(out, "  %-10s %s\n", commands[i]->name, commands[i]->what);
    fputs("\n`skerry COMMAND --help` tells more.\n\n"
          "exit status:\n"
          "  0 done             3 no coordinator or wrong token   5 the job failed\n"
          "  1 any other error  4 job file or data refused        6 the job was cancelled\n"
          "  2 wrong command line                                 130 interrupted\n",
          out);
}

/* Collects the flags of a command: --server and --json if it takes them, then its own. */
static void collect_flags(const struct command *c, struct cli *cli, struct args_flag *out)
{
    size_t n = 0;
    if (c->needs & COMMAND_SERVER)
        out[n++] = (struct args_flag){
            "server",
            's',
            ARGS_STR,
            &cli->token,
            "FILE|-|TOKEN",
            "operator's or viewer's token: a file that holds it, or - for standard "
            "input (default: $SKERRY_TOKEN, then the one saved by `skerry login`)"};
    if (c->needs & COMMAND_JSON)
        out[n++] = (struct args_flag){"json", 0, ARGS_BOOL, &cli->json, NULL, "print JSON"};
    for (const struct args_flag *f = c->flags; f && f->name && n < FLAGS_MAX; f++)
        out[n++] = *f;
    out[n] = (struct args_flag){0};
}

/* ---- completion ---- */

static void print_words(const struct command *c)
{
    struct cli cli = {0};
    struct args_flag flags[FLAGS_MAX + 1];
    collect_flags(c, &cli, flags);
    printf("    %s) words='--help", c->name);
    for (const struct args_flag *f = flags; f->name; f++)
        printf(" --%s", f->name);
    puts("' ;;");
}

/* A word is a command in the first place, then a flag if it begins so, and else a file. */
static int run_completion(struct cli *cli, const struct args *args, struct err *err)
{
    if (strcmp(args->rest[0], "bash") != 0)
        return err_set(err, -ERR_USAGE, "'%.60s' is no shell that is known here, expected bash",
                       args->rest[0]);
    puts("_skerry() {\n  local word=${COMP_WORDS[COMP_CWORD]} words=\n"
         "  if [ \"$COMP_CWORD\" -eq 1 ]; then\n    words='help --version");
    for (size_t i = 0; i < N_COMMANDS; i++)
        printf("      %s\n", commands[i]->name);
    puts("'\n  elif [ \"${word:0:1}\" = - ]; then\n    case ${COMP_WORDS[1]} in");
    for (size_t i = 0; i < N_COMMANDS; i++)
        print_words(commands[i]);
    puts("    esac\n  fi\n  COMPREPLY=($(compgen -W \"$words\" -- \"$word\"))\n}\n"
         "complete -o default -F _skerry skerry");
    return CLI_OK;
}

static const struct command command_completion = {
    .name = "completion",
    .what = "print what lets a shell complete commands and flags",
    .usage = "bash",
    .about = "Prints a script for a shell: source <(skerry completion bash).  The Debian package "
             "installs it.",
    .rest_min = 1,
    .rest_max = 1,
    .run = run_completion,
};

static int run(const struct command *c, int argc, char **argv)
{
    struct cli cli = {0};
    struct err err = {0};
    struct args_flag flags[FLAGS_MAX + 1];
    char program[32];
    struct args args = {.program = program,
                        .usage = c->usage,
                        .about = c->about,
                        .flags = flags,
                        .rest_min = c->rest_min,
                        .rest_max = c->rest_max};

    (void)snprintf(program, sizeof program, "skerry %s", c->name);
    collect_flags(c, &cli, flags);
    int rc = args_parse(&args, argc, argv, &err);
    if (rc)
        return args_exit(&args, rc, &err);
    if (c->needs & COMMAND_SIGNALS)
        cli_catch_signals();
    if ((c->needs & COMMAND_CONNECT) == COMMAND_CONNECT)
        rc = cli_connect(&cli, &err);
    if (rc == 0)
        rc = c->run(&cli, &args, &err);
    cli_close(&cli);
    return rc < 0 ? cli_fail(&err) : rc;
}

static int dispatch(int argc, char **argv)
{
    static char flag[] = "--help";
    const char *names[N_COMMANDS];
    char *asked[] = {argv[0], argc > 2 ? argv[2] : NULL, flag, NULL};

    if (argc < 2) {
        help(stderr);
        return CLI_USAGE;
    }
    if (!strcmp(argv[1], "help") && argc > 2) { /* as `skerry COMMAND --help` */
        argv = asked;
        argc = 3;
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
        if (!strcmp(argv[1], commands[i]->name))
            return run(commands[i], argc - 1, argv + 1);
        names[i] = commands[i]->name;
    }
    char hint[STR_HINT_MAX];
    if (argv[1][0] == '-') {
        fprintf(stderr,
                "skerry: the command comes before its flags, as in `skerry status --json`, but the "
                "first word is '%s'\n",
                argv[1]);
        return CLI_USAGE;
    }
    fprintf(stderr, "skerry: there is no command '%s'%s (`skerry --help` lists them)\n", argv[1],
            str_hint(argv[1], names, N_COMMANDS, "", hint));
    return CLI_USAGE;
}

/* Output that cannot be written, as on a full disk, changes the exit status, but not if standard
 * output was closed from the start. */
int main(int argc, char **argv)
{
    file_first();
    const int rc = dispatch(argc, argv);
    errno = 0;
    const bool lost = fflush(stdout) != 0 || ferror(stdout);
    if (rc != CLI_OK || !lost || errno == EBADF)
        return rc;
    fprintf(stderr, "skerry: standard output cannot be written%s%s\n", errno ? ": " : "",
            errno ? strerror(errno) : ", as on a full disk");
    return CLI_FAILED;
}
