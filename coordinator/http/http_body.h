/* Strict checks of JSON request bodies: every key is known, of its type and in range, and every
 * required one is there.  The error names the key, what was expected and, for an unknown key, the
 * nearest known one.
 *
 *     static const struct http_field fields[] = {
 *         { "sha256", HTTP_SHA256, .required = true },
 *         { "size", HTTP_INT, .required = true, .min = 1, .max = 1e12 },
 *     };
 *     if (http_body_check(body, "upload", fields, 2, &err) < 0)
 *         return err.code;
 *
 * Pure functions. */
#ifndef COORDINATOR_HTTP_BODY_H
#define COORDINATOR_HTTP_BODY_H

#include <jansson.h>

#include "common/base/base.h"

enum http_field_type {
    HTTP_INT,  /* min..max */
    HTTP_REAL, /* min..max; a whole number will do */
    HTTP_BOOL,
    HTTP_STRING, /* min..max bytes */
    HTTP_SHA256, /* 64 lower-case hex digits */
    HTTP_ARRAY,  /* min..max items */
    HTTP_OBJECT,
};

struct http_field {
    const char *name;
    enum http_field_type type;
    bool required;
    double min, max; /* both 0: no bounds */
};

#define HTTP_FIELDS_MAX 32

/* `where` names the object in the error ("the body", "shards[3]").  -EINVAL. */
int http_body_check(const json_t *object, const char *where, const struct http_field *fields,
                    size_t n, struct err *err);

/* Checks one value, such as an item of an array; `where` names it. */
int http_body_check_value(const json_t *value, const char *where, const struct http_field *field,
                          struct err *err);

#endif
