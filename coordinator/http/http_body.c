#include "coordinator/http/http_body.h"

#include "common/base/hash.h"

static const char *expected(const struct http_field *f, char *out, size_t size)
{
    static const char *const names[] = {
        [HTTP_INT] = "a whole number",
        [HTTP_REAL] = "a number",
        [HTTP_BOOL] = "true or false",
        [HTTP_STRING] = "a text",
        [HTTP_SHA256] = "64 hex digits (a-f in lower case)",
        [HTTP_ARRAY] = "a list",
        [HTTP_OBJECT] = "an object",
    };
    const char *name = names[f->type];
    bool bounded = f->min != 0 || f->max != 0;
    if (bounded && (f->type == HTTP_INT || f->type == HTTP_REAL))
        (void)snprintf(out, size, "%s from %.17g to %.17g", name, f->min, f->max);
    else if (bounded && f->type == HTTP_STRING)
        (void)snprintf(out, size, "%s of %g to %g bytes", name, f->min, f->max);
    else if (bounded && f->type == HTTP_ARRAY)
        (void)snprintf(out, size, "%s of %g to %g items", name, f->min, f->max);
    else
        (void)str_copy(out, size, name);
    return out;
}

/* A short form of a value, for messages to the person who sent it. */
static const char *shown(const json_t *v, char *out, size_t size)
{
    switch (json_typeof(v)) {
    case JSON_STRING:
        if (json_string_length(v) > 40)
            (void)snprintf(out, size, "a text of %zu bytes", json_string_length(v));
        else
            (void)snprintf(out, size, "\"%s\"", json_string_value(v));
        break;
    case JSON_INTEGER:
        (void)snprintf(out, size, "%" JSON_INTEGER_FORMAT, json_integer_value(v));
        break;
    case JSON_REAL:
        (void)snprintf(out, size, "%g", json_real_value(v));
        break;
    case JSON_ARRAY:
        (void)snprintf(out, size, "a list of %zu items", json_array_size(v));
        break;
    case JSON_OBJECT:
        (void)str_copy(out, size, "an object");
        break;
    case JSON_TRUE:
        (void)str_copy(out, size, "true");
        break;
    case JSON_FALSE:
        (void)str_copy(out, size, "false");
        break;
    case JSON_NULL:
        (void)str_copy(out, size, "null");
        break;
    }
    return out;
}

static bool within(double x, const struct http_field *f)
{
    return (f->min == 0 && f->max == 0) || (x >= f->min && x <= f->max);
}

static bool is_sha256(const json_t *v)
{
    uint8_t bytes[HASH_BYTES];
    const char *s = json_string_value(v);
    if (s == NULL || json_string_length(v) != 2 * HASH_BYTES)
        return false;
    return strspn(s, "0123456789abcdef") == 2 * HASH_BYTES && hash_unhex(s, bytes, HASH_BYTES) == 0;
}

static bool fits(const json_t *v, const struct http_field *f)
{
    switch (f->type) {
    case HTTP_INT:
        return json_is_integer(v) && within((double)json_integer_value(v), f);
    case HTTP_REAL:
        return json_is_number(v) && isfinite(json_number_value(v)) &&
               within(json_number_value(v), f);
    case HTTP_BOOL:
        return json_is_boolean(v);
    case HTTP_STRING:
        return json_is_string(v) && within((double)json_string_length(v), f);
    case HTTP_SHA256:
        return is_sha256(v);
    case HTTP_ARRAY:
        return json_is_array(v) && within((double)json_array_size(v), f);
    case HTTP_OBJECT:
        return json_is_object(v);
    }
    return false;
}

int http_body_check_value(const json_t *value, const char *where, const struct http_field *field,
                          struct err *err)
{
    if (fits(value, field))
        return 0;
    char want[96], got[96];
    return err_set(err, -EINVAL, "%s must be %s, not %s", where, expected(field, want, sizeof want),
                   shown(value, got, sizeof got));
}

static int unknown_key(const char *key, const char *where, const struct http_field *fields,
                       size_t n, struct err *err)
{
    const char *names[HTTP_FIELDS_MAX];
    for (size_t i = 0; i < n; i++)
        names[i] = fields[i].name;
    const char *near = str_suggest(key, names, n);
    if (near != NULL)
        return err_set(err, -EINVAL, "%s has the unknown key \"%.64s\": did you mean \"%s\"?",
                       where, key, near);
    char list[256] = "";
    for (size_t i = 0, used = 0; i < n && used < sizeof list; i++)
        used += (size_t)snprintf(list + used, sizeof list - used, "%s%s", i ? ", " : "", names[i]);
    if (n == 0)
        return err_set(err, -EINVAL, "%s has the unknown key \"%.64s\": it must be empty", where,
                       key);
    return err_set(err, -EINVAL, "%s has the unknown key \"%.64s\": known are %s", where, key,
                   list);
}

static const struct http_field *find(const char *key, const struct http_field *fields, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(fields[i].name, key) == 0)
            return &fields[i];
    return NULL;
}

int http_body_check(const json_t *object, const char *where, const struct http_field *fields,
                    size_t n, struct err *err)
{
    char got[96], path[160];
    if (!json_is_object(object))
        return err_set(err, -EINVAL, "%s must be a JSON object, not %s", where,
                       shown(object, got, sizeof got));
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)object, key, value)
    {
        const struct http_field *f = find(key, fields, n);
        if (f == NULL)
            return unknown_key(key, where, fields, n, err);
        (void)snprintf(path, sizeof path, "\"%s\" of %s", f->name, where);
        if (http_body_check_value(value, path, f, err) < 0)
            return err ? err->code : -EINVAL;
    }
    for (size_t i = 0; i < n; i++)
        if (fields[i].required && json_object_get(object, fields[i].name) == NULL)
            return err_set(err, -EINVAL, "%s lacks \"%s\", %s", where, fields[i].name,
                           expected(&fields[i], got, sizeof got));
    return 0;
}
