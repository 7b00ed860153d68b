/* What the subcommands of `skerry` share: exit statuses, the connection to a
 * coordinator, JSON in and out.  Everything here runs on the main thread. */
#ifndef CLI_CLI_H
#define CLI_CLI_H

#include <signal.h>

#include <jansson.h>

#include "common/base/base.h"
#include "common/base/args.h"
#include "common/net/token.h"

struct http_client;

/* Documented in `skerry --help`. */
enum cli_exit {
    CLI_OK = 0,
    CLI_FAILED = 1,      /* anything not below */
    CLI_USAGE = 2,       /* wrong command line */
    CLI_UNREACHABLE = 3, /* no coordinator, or it refuses the token */
    CLI_REFUSED = 4,     /* the job file or the data cannot be trained on */
    CLI_JOB_FAILED = 5,
    CLI_JOB_CANCELLED = 6,
    CLI_INTERRUPTED = 130,
};

/* The flags that every command with a connection has, and what came of them. */
struct cli {
    const char
        *token; /* --server, as token_source.h has it; else $SKERRY_TOKEN, else the saved one */
    bool json;  /* --json: data for programs on stdout, nothing else there */
    struct http_client *http;
    char url[TOKEN_URL_MAX]; /* of the coordinator, once connected */
    bool answered;           /* the coordinator has, to some call */
    enum token_role role;    /* of the token, once connected */
    json_t *uploads;         /* the files that were sent or were there, as /v1/uploads takes them */
    time_t uploads_s;        /* when all of them were last asked for, since boot */
};

/* The token of --server, else of $SKERRY_TOKEN, else the saved one.  -ERR_NOTFOUND, with no
 * sentence: there is none. */
int cli_find_token(const struct cli *cli, struct token *ret, struct err *err);
/* Opens a client with the pinned key; no byte is sent yet. */
int cli_open(struct cli *cli, const struct token *token, struct err *err);
/* The same with the token that is found, which must be a user's. */
int cli_connect(struct cli *cli, struct err *err);
void cli_close(struct cli *cli);
/* The folder of this program, where the others are, too (mem_free). */
char *cli_own_folder(void);
/* Of each of some workers on this machine: the cores that are there, shared evenly. */
int cli_threads_each(int workers);
/* A folder of one's own in TMPDIR; *ret is the caller's to remove (file_remove_tree, mem_free). */
int cli_temporary(char **ret, struct err *err);
/* Where `skerry login` saves the token (mem_free); NULL: nowhere, file_config_dir() has no folder.
 */
char *cli_token_path(void);

/* A call with JSON both ways: body may be NULL, *ret (may be NULL) is the caller's; the path is
 * a format.  A status of 300 and above is an error with the server's sentence, and so is a web
 * page, which no coordinator answers with: -EHOSTUNREACH. */
__attribute__((format(printf, 6, 7))) int cli_call(struct cli *cli, const char *method,
                                                   const json_t *body, json_t **ret,
                                                   struct err *err, const char *path, ...);
/* After this error of a call: is a coordinator that was heard of last at seen_ms waited for?  One
 * that restarts is, or has much to do, for a minute; one that refuses is not. */
bool cli_may_come_back(int rc, uint64_t seen_ms);
/* Whoever asks again and again says once in a line that nobody answers, and that somebody does. */
struct cli_away {
    uint64_t seen_ms; /* when an answer came last */
    bool said;        /* that none comes */
};
void cli_say_away(struct cli_away *away, const char *why);
/* There is an answer. */
void cli_say_back(struct cli_away *away);
/* tell in place of a sentence when a call has waited some seconds for its answer; NULL: the
 * sentence again. */
void cli_on_slow(struct cli *cli, void (*tell)(void *arg, bool command), void *arg);
/* GET of a list that comes in pages by this parameter: *ret is {"items": of all of them}. */
int cli_pages(struct cli *cli, const char *path, const char *cursor, json_t **ret, struct err *err);

#define CLI_NAMED_MAX 8 /* broken samples that are told of by name */

/* Prints "skerry: <sentence>" and returns the exit status that fits the code, which is -ERR_USAGE
 * for a wrong command line. */
int cli_fail(const struct err *err);
/* Prints JSON on one line to stdout. */
void cli_print_json(const json_t *value);
/* The same, and takes the value. */
void cli_print_taken(json_t *value);

/* Any text, such as a file's name, as a value: str_make_utf8(). */
json_t *cli_text(const char *s);

/* Fields of objects that the server sent, with a default when absent or null. */
const char *cli_str(const json_t *object, const char *key, const char *fallback);
long long cli_int(const json_t *object, const char *key, long long fallback);
double cli_num(const json_t *object, const char *key, double fallback);
bool cli_has(const json_t *object, const char *key); /* is it a number? */
/* A count of bytes, "1.5 MiB", and a number of milliseconds, "2m 3s", as people read them; out
 * is returned.  0 where the object has none. */
const char *cli_bytes(const json_t *object, const char *key, char out[STR_HUMAN_MAX]);
const char *cli_duration(const json_t *object, const char *key, char out[STR_HUMAN_MAX]);

/* True for states that end a job; the exit status for it. */
bool cli_job_ended(const char *state);
int cli_job_exit(const char *state);

/* Set by SIGINT, SIGTERM and, unless that is ignored, SIGHUP once cli_catch_signals() was called.
 * Whoever goes on and sets it to 0 is interrupted anew by what comes at least SIGNAL_ONCE_MS later:
 * `timeout` and others pass one Ctrl-C on to a program that its terminal has told, too. */
#define SIGNAL_ONCE_MS 1000
extern volatile sig_atomic_t cli_interrupted;
void cli_catch_signals(void);
void cli_sleep_ms(unsigned ms); /* ends early on a signal */

/* The id of what is given: that, or the name of a "job" or "worker".  Those that go on come first:
 * earlier ones may have had the name. */
int cli_find(struct cli *cli, const char *what, const char *given, uint64_t *ret, struct err *err);
/* A positional job, see cli_find(); without one, the newest job. */
int cli_job_id(struct cli *cli, const struct args *args, uint64_t *ret, struct err *err);

#endif
