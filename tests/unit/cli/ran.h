/* A command that was run against canned answers (script.h), and what it said. */
#ifndef TESTS_UNIT_CLI_RAN_H
#define TESTS_UNIT_CLI_RAN_H

#include "cli/command.h"
#include "tests/unit/cli/script.h"

/* Runs a command against these answers, its output in `said`. */
struct ran {
    int status;
    struct err err;
    char said[8192], asked[256], last[256], body[1024];
};

static inline void run(const struct command *c, struct cli *cli, const char *word,
                       const char *const *answers, struct ran *ret)
{
    struct script s;
    struct args args = {.n_rest = word != NULL, .rest = {word}};
    char path[] = "/tmp/skerry-status.XXXXXX";
    const int file = mkstemp(path), out = dup(STDOUT_FILENO), error = dup(STDERR_FILENO);
    memset(ret, 0, sizeof *ret);
    assert_true(file >= 0 && out >= 0 && error >= 0);
    connect_to(&s, cli, answers);
    fflush(stdout);
    fflush(stderr);
    assert_true(dup2(file, STDOUT_FILENO) >= 0 && dup2(file, STDERR_FILENO) >= 0);
    ret->status = c->run(cli, &args, &ret->err);
    fflush(stdout);
    fflush(stderr);
    assert_true(dup2(out, STDOUT_FILENO) >= 0 && dup2(error, STDERR_FILENO) >= 0);
    disconnect(&s, cli);
    assert_true(pread(file, ret->said, sizeof ret->said - 1, 0) >= 0);
    (void)snprintf(ret->asked, sizeof ret->asked, "%s", s.asked);
    (void)snprintf(ret->last, sizeof ret->last, "%s", s.last);
    (void)snprintf(ret->body, sizeof ret->body, "%s", s.body);
    close(file);
    close(out);
    close(error);
    assert_int_equal(unlink(path), 0);
}

static inline void says(const struct ran *r, const char *text)
{
    if (!strstr(r->said, text))
        fail_msg("'%s' is not in: %s", text, r->said);
}

/* It was a wrong command line, and the sentence has this text. */
static inline void misused(const struct ran *r, const char *text)
{
    if (r->status != -ERR_USAGE || !strstr(r->err.msg, text))
        fail_msg("%d: '%s', expected a wrong command line with '%s'", r->status, r->err.msg, text);
}

static inline void says_no(const struct ran *r, const char *text)
{
    if (strstr(r->said, text))
        fail_msg("'%s' is in: %s", text, r->said);
}

/* A flag of a command. */
static inline void *flag(const struct command *c, const char *name)
{
    for (const struct args_flag *f = c->flags; f && f->name; f++)
        if (strcmp(f->name, name) == 0)
            return f->out;
    fail_msg("%s has no flag --%s", c->name, name);
    return NULL;
}

#endif
