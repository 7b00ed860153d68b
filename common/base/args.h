/* Command lines from a table: parsing, --help, --version, suggestions.
 *
 *     const char *dir = NULL;
 *     uint64_t port = 7710;
 *     const struct args_flag flags[] = {
 *         { "data-dir", 'd', ARGS_STR, &dir, "DIR", "where the state lives", .required = true },
 *         { "port", 0, ARGS_U64, &port, "N", "port to listen on (0: any free)", .max = 65535 },
 *         { 0 },
 *     };
 *     struct args args = { .program = "coordinatord", .usage = "--data-dir DIR [--port N]",
 *                          .about = "decides what the workers do", .flags = flags };
 *     int rc = args_parse(&args, argc, argv, &err);
 *     if (rc != 0)
 *         return args_exit(&args, rc, &err);   (help and version: 0; error: prints, 2)
 *
 * Forms: --name value, --name=value, -n value, --flag, --no-flag for bools; --
 * ends flags.  Values point into argv. */
#ifndef COMMON_BASE_ARGS_H
#define COMMON_BASE_ARGS_H

#include "common/base/base.h"

#define ARGS_REST_MAX 64
#define ARGS_LIST_MAX 64
#define ARGS_EXIT_USAGE 2 /* exit status of a wrong command line */

/* The first ones are str.h's types. */
enum args_type {
    ARGS_BOOL = STR_BOOL,
    ARGS_INT = STR_INT,
    ARGS_U64 = STR_U64,
    ARGS_DOUBLE = STR_DOUBLE,
    ARGS_BYTES = STR_BYTES,
    ARGS_DURATION_MS = STR_DURATION_MS,
    ARGS_STR = STR_TYPES, /* const char *, borrowed from argv */
    ARGS_LIST,            /* struct args_list: may be given several times */
};

struct args_list {
    const char *items[ARGS_LIST_MAX];
    size_t n;
};

struct args_flag {
    const char *name; /* without dashes; NULL ends the table */
    char letter;      /* or 0 */
    enum args_type type;
    void *out; /* holds the default beforehand */
    const char *metavar;
    const char *doc;
    bool required;
    double min, max; /* numbers; both 0: any */
    bool *given;     /* set to true if the flag is given; may be NULL */
    bool line_only;  /* args_set() refuses it */
};

struct args {
    const char *program; /* "skerry submit" */
    const char *usage;   /* the usage line after the program's name */
    const char *about;   /* a sentence or paragraphs */
    const char *after;   /* shown after the flags: exit codes, examples; may be NULL */
    const struct args_flag *flags;
    size_t rest_min, rest_max; /* positional arguments */
    const char *rest[ARGS_REST_MAX];
    size_t n_rest;
};

#define ARGS_HELP 1    /* --help or -h was given */
#define ARGS_VERSION 2 /* --version, alone */

/* argv[0] is skipped.  Returns 0, ARGS_HELP, ARGS_VERSION, or -EINVAL. */
int args_parse(struct args *a, int argc, char **argv, struct err *err);
/* A line "key: text" of a file of settings: the key is a flag's name with '_' for '-', and the
 * text, borrowed, its value (NULL: none, or several).  Parse again after the file, and the command
 * line wins.  `where` ("FILE:3: ") begins an error's sentence. */
int args_set(const struct args *a, const char *where, const char *key, const char *text,
             struct err *err);
void args_help(const struct args *a, FILE *out);
/* Prints the help, version or error that rc stands for; returns the exit status, 0 or
 * ARGS_EXIT_USAGE. */
int args_exit(const struct args *a, int rc, const struct err *err);

#endif
