/* Tables of keys: how a YAML map fills a struct.  One table gives the parser,
 * the defaults, the errors and the documentation.
 *
 *     static const struct conf_key train_keys[] = {
 *         CONF(struct train, batch, INT, .required = true, .min = 1, .max = 65536, .doc = "..."),
 *         CONF(struct train, lr, DOUBLE, .def = "1e-4", .min = 0, .max = 10, .doc = "..."),
 *         CONF_END,
 *     };
 *
 * Errors: "job.yaml:12: unknown key 'lerning_rate' in 'train'; did you mean 'lr'?",
 * "job.yaml:7: train.batch is 'x', expected a whole number from 1 to 65536". */
#ifndef COMMON_JOB_CONF_H
#define COMMON_JOB_CONF_H

#include "common/base/base.h"
#include "common/base/buf.h"
#include "common/job/yaml.h"

/* The type of a key's value; the first ones are str.h's. */
enum conf_type {
    CONF_BOOL = STR_BOOL,
    CONF_INT = STR_INT,
    CONF_U64 = STR_U64,
    CONF_DOUBLE = STR_DOUBLE,
    CONF_BYTES = STR_BYTES,
    CONF_DURATION_MS = STR_DURATION_MS,
    CONF_STR = STR_TYPES, /* char *, owned; NULL when absent without default */
    CONF_STRS,            /* struct conf_strs: a list of strings, or one string */
    CONF_INTS,            /* struct conf_ints: a list of whole numbers, or one; each in the range */
    CONF_ENUM,            /* int: index into names */
    CONF_SECTION,         /* an embedded struct with its own table */
};

struct conf_strs {
    char **items;
    size_t n;
};

#define CONF_INTS_MAX 64

struct conf_ints {
    int items[CONF_INTS_MAX];
    size_t n;
};

struct conf_key {
    const char *key;
    enum conf_type type;
    size_t offset;
    double min, max;          /* range of a number, inclusive; both 0: any */
    const char *const *names; /* CONF_ENUM: NULL-terminated */
    const char *def;          /* default, in the form of a file; NULL: zero */
    const char *zero;         /* CONF_INT: a word for 0, besides the range */
    const char *less;         /* CONF_DOUBLE, with a range from 0: a word for -1 */
    bool required;
    const char *doc;  /* NULL: of older releases' files; nobody is told of it */
    const char *note; /* CONF_ENUM: ends the sentence about a wrong value; NULL: nothing */
    const struct conf_key *sub; /* CONF_SECTION */
};

#define CONF(type_, field, kind, ...)                                                              \
    {                                                                                              \
        .key = #field, .type = CONF_##kind, .offset = offsetof(type_, field), __VA_ARGS__          \
    }
#define CONF_END                                                                                   \
    {                                                                                              \
        .key = NULL                                                                                \
    }

/* Fills *out (must be zeroed) from the map (NULL: all absent) and the defaults.
 * On failure the strings in out are released.  -ERR_CONFIG: err has file:line. */
int conf_bind(const struct yaml_doc *doc, const struct yaml_node *map, const struct conf_key *keys,
              void *out, struct err *err);
/* As conf_bind, for a text that was accepted once: a key whose value is now refused gets its
 * default, and an unknown key is skipped, unless the key or its section is one of the
 * words of `firm`.  1: something was skipped; err has the first sentence. */
int conf_bind_saved(const struct yaml_doc *doc, const struct yaml_node *map,
                    const struct conf_key *keys, const char *firm, void *out, struct err *err);
/* Fills in only defaults (required keys stay zero); out must be zeroed. */
void conf_defaults(const struct conf_key *keys, void *out);
/* Frees the strings in out. */
void conf_release(const struct conf_key *keys, void *out);

/* Was this key written in the file?  path: "train.lr". */
const struct yaml_node *conf_find(const struct yaml_doc *doc, const char *path);
/* "FILE:LINE: PATH <sentence>" with the line of the key, or of its section if it is
 * absent; -ERR_CONFIG. */
int conf_error(const struct yaml_doc *doc, const char *path, struct err *err, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* The name of a CONF_ENUM's number, "?" outside the table; and the number of a name, or -EINVAL. */
const char *conf_name(const char *const *names, int value);
int conf_number(const char *const *names, const char *name, int *ret);

/* Documents all keys: a Markdown table per section, or lines for a terminal. */
enum conf_format { CONF_MARKDOWN, CONF_TEXT };
int conf_document(const struct conf_key *keys, enum conf_format format, struct buf *out);

#endif
