#include "common/base/args.h"

#ifndef SKERRY_VERSION
#define SKERRY_VERSION "unknown"
#endif

#define FLAGS_MAX 64
#define DOC_COLUMN 31 /* where the sentence about a flag begins */

static int set_value(const struct args_flag *f, const char *text)
{
    struct args_list *list = f->out;
    if (f->type < ARGS_STR)
        return str_parse((enum str_type)f->type, text, f->min, f->max, f->out);
    if (f->type == ARGS_STR)
        *(const char **)f->out = text;
    else if (list->n < ARGS_LIST_MAX)
        list->items[list->n++] = text;
    else
        return -ERR_LIMIT;
    return 0;
}

/* `name` is the flag's as it was written, after `dashes`. */
static int assign_as(const struct args_flag *f, const char *dashes, const char *name,
                     const char *text, struct err *err)
{
    if (f->given)
        *f->given = true;
    if (set_value(f, text) == 0)
        return 0;
    char wants[STR_EXPECTED_MAX];
    return err_set(err, -EINVAL, "%s%s is '%.100s', expected %s", dashes, name, text,
                   f->type < ARGS_STR
                       ? str_expected((enum str_type)f->type, f->min, f->max, text, wants)
                       : "fewer values");
}

static int assign(const struct args_flag *f, const char *text, struct err *err)
{
    return assign_as(f, "--", f->name, text, err);
}

static const struct args_flag *find(const struct args *a, const char *name, size_t len)
{
    for (const struct args_flag *f = a->flags; f && f->name; f++)
        if (strlen(f->name) == len && memcmp(f->name, name, len) == 0)
            return f;
    return NULL;
}

static int unknown(const struct args *a, const char *arg, size_t len, struct err *err)
{
    const char *names[FLAGS_MAX] = {"help", "version"};
    char word[64], hint[STR_HINT_MAX];
    size_t n = 2;
    for (const struct args_flag *f = a->flags; f && f->name && n < FLAGS_MAX; f++)
        names[n++] = f->name;
    (void)snprintf(word, sizeof(word), "%.*s", (int)(len < 60 ? len : 60), arg);
    return err_set(err, -EINVAL, "unknown flag '--%s'%s (`%s --help` lists them)", word,
                   str_hint(word, names, n, "--", hint), a->program);
}

/* --version beside other words: whoever meant another flag would take the answer for done. */
static int not_alone(const struct args *a, struct err *err)
{
    const struct args_flag *meant = NULL;
    for (const struct args_flag *f = a->flags; f && f->name && !meant; f++)
        meant = strstr(f->doc, "version") ? f : NULL;
    return err_set(err, -EINVAL,
                   "--version shows the program's version and is given alone%s%s%s (`%s --help` "
                   "lists the flags)",
                   meant ? "; did you mean '--" : "", meant ? meant->name : "", meant ? "'?" : "",
                   a->program);
}

/* "--name", "--name=value", "--no-name"; *i moves past a separate value. */
static int long_flag(const struct args *a, int argc, char **argv, int *i, struct err *err)
{
    const char *arg = argv[*i] + 2;
    const char *equals = strchr(arg, '=');
    size_t len = equals ? (size_t)(equals - arg) : strlen(arg);
    if (strcmp(arg, "help") == 0)
        return ARGS_HELP;
    if (strcmp(arg, "version") == 0)
        return argc == 2 ? ARGS_VERSION : not_alone(a, err);
    const struct args_flag *f = find(a, arg, len);
    if (!f && !equals && str_starts(arg, "no-")) {
        f = find(a, arg + 3, len - 3);
        if (f && f->type == ARGS_BOOL)
            return assign(f, "false", err);
        f = NULL;
    }
    if (!f)
        return unknown(a, arg, len, err);
    if (equals)
        return assign(f, equals + 1, err);
    if (f->type == ARGS_BOOL)
        return assign(f, "true", err);
    if (*i + 1 >= argc)
        return err_set(err, -EINVAL, "--%s needs a value: %s", f->name, f->doc);
    return assign(f, argv[++*i], err);
}

static int short_flag(const struct args *a, int argc, char **argv, int *i, struct err *err)
{
    const char *arg = argv[*i];
    if (strcmp(arg, "-h") == 0)
        return ARGS_HELP;
    for (const struct args_flag *f = a->flags; f && f->name; f++) {
        if (!f->letter || arg[1] != f->letter)
            continue;
        if (f->type == ARGS_BOOL && arg[2] == '\0')
            return assign(f, "true", err);
        if (arg[2] != '\0')
            return assign(f, arg + 2, err);
        if (*i + 1 >= argc)
            return err_set(err, -EINVAL, "-%c needs a value: %s", f->letter, f->doc);
        return assign(f, argv[++*i], err);
    }
    return err_set(err, -EINVAL, "unknown flag '%.60s' (`%s --help` lists them)", arg, a->program);
}

static int add_rest(struct args *a, const char *arg, struct err *err)
{
    size_t max = a->rest_max < ARGS_REST_MAX ? a->rest_max : ARGS_REST_MAX;
    if (a->n_rest >= max)
        return err_set(err, -EINVAL, "unexpected argument '%.100s'; usage: %s %s", arg, a->program,
                       a->usage);
    a->rest[a->n_rest++] = arg;
    return 0;
}

/* Checks that all required flags and enough arguments were given. */
static int check_required(const struct args *a, const bool *seen, struct err *err)
{
    size_t n = 0;
    for (const struct args_flag *f = a->flags; f && f->name; f++, n++)
        if (f->required && n < FLAGS_MAX && !seen[n])
            return err_set(err, -EINVAL, "--%s is missing: %s; usage: %s %s", f->name, f->doc,
                           a->program, a->usage);
    if (a->n_rest < a->rest_min)
        return err_set(err, -EINVAL, "too few arguments; usage: %s %s", a->program, a->usage);
    return 0;
}

/* The position in the table of the flag that an argument names; -1: none. */
static int position(const struct args *a, const char *arg)
{
    int n = 0;
    for (const struct args_flag *f = a->flags; f && f->name; f++, n++) {
        size_t len = strlen(f->name);
        if (str_starts(arg, "--") && strncmp(arg + 2, f->name, len) == 0 &&
            (arg[2 + len] == '\0' || arg[2 + len] == '='))
            return n;
        if (f->letter && arg[0] == '-' && arg[1] == f->letter)
            return n;
    }
    return -1;
}

int args_parse(struct args *a, int argc, char **argv, struct err *err)
{
    bool seen[FLAGS_MAX] = {false};
    bool flags = true;
    a->n_rest = 0;
    for (int i = 1; i < argc; i++) {
        const char *arg = argv[i];
        int rc = 0;
        int which = flags ? position(a, arg) : -1;
        if (which >= 0 && which < FLAGS_MAX)
            seen[which] = true;
        if (flags && strcmp(arg, "--") == 0)
            flags = false;
        else if (flags && str_starts(arg, "--"))
            rc = long_flag(a, argc, argv, &i, err);
        else if (flags && arg[0] == '-' && arg[1] != '\0')
            rc = short_flag(a, argc, argv, &i, err);
        else
            rc = add_rest(a, arg, err);
        if (rc != 0)
            return rc;
    }
    return check_required(a, seen, err);
}

static void swap_dashes(char *text, char from, char to)
{
    for (; *text; text++)
        *text = *text == from ? to : *text;
}

int args_set(const struct args *a, const char *where, const char *key, const char *text,
             struct err *err)
{
    const char *names[FLAGS_MAX];
    char name[64], hint[STR_HINT_MAX];
    size_t n = 0;
    str_copy(name, sizeof(name), key);
    swap_dashes(name, '_', '-');
    const struct args_flag *f = strchr(key, '-') ? NULL : find(a, name, strlen(name));
    if (f && f->line_only)
        return err_set(err, -EINVAL, "%s%s is not a setting: give --%s on the command line", where,
                       key, name);
    if (f && !text)
        return err_set(err, -EINVAL, "%s%s needs one value: %s", where, key, f->doc);
    if (f)
        return assign_as(f, where, key, text, err);
    for (f = a->flags; f->name && n < FLAGS_MAX; f++)
        if (!f->line_only)
            names[n++] = f->name;
    (void)str_hint(name, names, n, "", hint);
    swap_dashes(hint, '-', '_');
    return err_set(err, -EINVAL, "%sunknown key '%.60s'%s (`%s --help` lists them)", where, key,
                   hint, a->program);
}

/* The text of the default in the storage; "" for 0 and none, which mean
 * "not given". */
static void default_text(const struct args_flag *f, char *out, size_t size)
{
    char bound[STR_HUMAN_MAX];
    out[0] = '\0';
    if (f->required)
        (void)snprintf(out, size, " (required)");
    else if (f->type == ARGS_STR && *(const char **)f->out)
        (void)snprintf(out, size, " (default: %s)", *(const char **)f->out);
    else if (f->type == ARGS_INT && *(int *)f->out != 0)
        (void)snprintf(out, size, " (default: %d)", *(int *)f->out);
    else if (f->type == ARGS_DOUBLE && *(double *)f->out != 0)
        (void)snprintf(out, size, " (default: %g)", *(double *)f->out);
    else if ((f->type == ARGS_U64 || f->type == ARGS_DURATION_MS || f->type == ARGS_BYTES) &&
             *(uint64_t *)f->out != 0)
        (void)snprintf(out, size, " (default: %s)",
                       str_type_bound((enum str_type)f->type, (double)*(uint64_t *)f->out, bound));
}

/* Ends a line that has this many columns. */
static void put_wrapped(FILE *out, const char *text, int columns, size_t indent)
{
    char *lines = str_wrapped(text, (size_t)columns, indent);
    fprintf(out, "%s\n", lines);
    mem_free(lines);
}

static void help_line(FILE *out, char letter, const char *name, const char *metavar,
                      const char *doc, const char *more)
{
    char left[64], dash[8] = "    ", *text = str_printf("%s%s", doc, more);
    if (letter)
        (void)snprintf(dash, sizeof(dash), "-%c, ", letter);
    (void)snprintf(left, sizeof(left), "%s--%s%s%s", dash, name, metavar ? " " : "",
                   metavar ? metavar : "");
    put_wrapped(out, text, fprintf(out, "  %-*s ", DOC_COLUMN - 3, left), DOC_COLUMN);
    mem_free(text);
}

void args_help(const struct args *a, FILE *out)
{
    put_wrapped(out, a->usage, fprintf(out, "usage: %s ", a->program), strlen("usage: "));
    if (a->about) {
        fputc('\n', out);
        put_wrapped(out, a->about, 0, 0);
    }
    fprintf(out, "\nflags:\n");
    for (const struct args_flag *f = a->flags; f && f->name; f++) {
        char more[256];
        default_text(f, more, sizeof(more));
        help_line(out, f->letter, f->name, f->metavar, f->doc, more);
    }
    help_line(out, 'h', "help", NULL, "show this", "");
    help_line(out, 0, "version", NULL, "show the version", "");
    if (a->after)
        fprintf(out, "\n%s\n", a->after);
}

int args_exit(const struct args *a, int rc, const struct err *err)
{
    if (rc == ARGS_HELP) {
        args_help(a, stdout);
        return 0;
    }
    if (rc == ARGS_VERSION) {
        printf("%s %s\n", a->program, SKERRY_VERSION);
        return 0;
    }
    fprintf(stderr, "%s: %s\n", a->program, err ? err->msg : "wrong command line");
    return ARGS_EXIT_USAGE;
}
