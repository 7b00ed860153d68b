/* Strings: strict parsing (the whole text must be the value), copying with a
 * bound, suggestions. */
#ifndef COMMON_BASE_STR_H
#define COMMON_BASE_STR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

char *str_dup(const char *s); /* mem_free; NULL gives NULL; aborts without memory */
char *str_ndup(const char *s, size_t n);
char *str_printf(const char *fmt, ...) __attribute__((format(printf, 1, 2))); /* mem_free */

/* Copies with a terminator, cut to fit; true: all of it fitted. */
bool str_copy(char *dst, size_t dst_size, const char *src);

/* A list of names as one text, with a space between two.  Is the word one of them? */
bool str_has_word(const char *words, const char *word);
/* Copies the next word, cut to size, and moves *words behind it; false: there is none. */
bool str_take_word(const char **words, char *out, size_t size);

/* For qsort and bsearch: the order of two texts, by pointers to them. */
int str_order(const void *a, const void *b);

/* Does the text begin, or end, with the other? */
bool str_starts(const char *s, const char *prefix);
bool str_ends(const char *s, const char *suffix);

/* 1..max characters of [A-Za-z0-9._-], not starting with '.' or '-'. */
bool str_is_name(const char *s, size_t max);
bool str_is_utf8(const char *s, size_t len);
void str_make_utf8(char *s); /* '?' for each byte that belongs to no character */
/* Bytes of the control character at p (of ASCII, or of Latin-1 in UTF-8), which a terminal may
 * obey; 0: it is none. */
size_t str_control(const char *p);
/* As str_make_utf8(), and '?' for each byte of a control character except line ends and tabs. */
void str_make_plain(char *s);
void str_make_line(char *s); /* the same, and ' ' for line ends and tabs */

/* Return 0, -EINVAL (no such value) or -ERANGE (it does not fit).  No white space, no
 * trailing text.  *ret is untouched on failure. */
int str_parse_u64(const char *s, uint64_t *ret); /* decimal, or 0x hex */
int str_parse_i64(const char *s, int64_t *ret);
int str_parse_double(const char *s, double *ret); /* finite, no hex */
int str_parse_bool(const char *s, bool *ret);     /* true false yes no on off */
int str_parse_bytes(const char *s,
                    uint64_t *ret); /* "512", "64KiB", "1.5GiB", "10MB", "8M" (2^20) */
int str_parse_duration_ms(const char *s,
                          uint64_t *ret); /* "250ms" "2s" "1.5m" "3h" "1d"; bare: only "0" */

/* The types of flags and of keys of a file. */
enum str_type {
    STR_BOOL,        /* bool */
    STR_INT,         /* int */
    STR_U64,         /* uint64_t */
    STR_DOUBLE,      /* double */
    STR_BYTES,       /* uint64_t */
    STR_DURATION_MS, /* uint64_t */
    STR_TYPES,
};
/* -EINVAL: the text is no such value, or a number outside min..max (both 0: any). */
int str_parse(enum str_type type, const char *s, double min, double max, void *ret);

#define STR_HUMAN_MAX 32
/* What str_parse takes, for an error about `text` (NULL: none): "a number from 0 to 1, written with
 * a point and without commas".  Returns out. */
#define STR_EXPECTED_MAX 160
char *str_expected(enum str_type type, double min, double max, const char *text,
                   char out[STR_EXPECTED_MAX]);
/* A bound or default as str_parse reads it: "60", "100ms", "10m", "20GB". */
char *str_type_bound(enum str_type type, double bound, char out[STR_HUMAN_MAX]);
char *str_human_bytes(uint64_t bytes, char out[STR_HUMAN_MAX]); /* "1.5 MiB" */
char *str_human_duration(uint64_t ms, char out[STR_HUMAN_MAX]); /* "1m05s", "3d04h" */
char *str_human_number(double x, char out[STR_HUMAN_MAX]);      /* "0.125", "98.7", "1300" */
char *str_human_loss(double x, char out[STR_HUMAN_MAX]);        /* "0.1250"; diverged "3.25e+07" */

const char *str_plural(uint64_t n); /* "" for 1, else "s" */

/* True if JSON text has more than `lists` lists and maps, or more than `values` commas and colons:
 * the memory that it takes when parsed, up to 80 times its bytes, depends on these. */
bool str_json_exceeds(const char *json, size_t n, size_t lists, size_t values);

/* The text in lines of less than 80 columns, as terminals have them, broken at spaces (mem_free).
 * The first line begins at this column, the others are indented. */
char *str_wrapped(const char *text, size_t column, size_t indent);

/* Levenshtein distance with transpositions; if a text has more than 64 bytes, the longer length. */
unsigned str_distance(const char *a, const char *b);

/* The name nearest to `word` if it is near enough for a typing mistake, or one of few
 * that contain it, or the only one with its last word after a dash; else NULL.  names may hold
 * NULLs. */
const char *str_suggest(const char *word, const char *const *names, size_t n);
/* The same as the end of a sentence, "; did you mean '--port'?" with `dashes` before the name, or
 * ""; returns out. */
#define STR_HINT_MAX 96
char *str_hint(const char *word, const char *const *names, size_t n, const char *dashes,
               char out[STR_HINT_MAX]);

#endif
