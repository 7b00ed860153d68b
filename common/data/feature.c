#include "common/data/feature.h"

#define NPY_MAGIC "\x93NUMPY"
#define NPY_HEADER_MAX 65536

static const char too_many[] = "has more than 65536 numbers";
static const char not_finite[] = "has a number that is not finite";

static const char *room(struct feature *f, uint64_t n)
{
    if (n > FEATURE_MAX)
        return too_many;
    if (n > f->cap) {
        f->v = mem_realloc(f->v, (size_t)n * sizeof(*f->v)); /* at most 256 KiB */
        f->cap = (uint32_t)n;
    }
    f->n = (uint32_t)n;
    return NULL;
}

const char *feature_from_json(const json_t *array, struct feature *out)
{
    const json_t *item;
    size_t i;
    out->n = 0;
    if (!json_is_array(array) || json_array_size(array) == 0)
        return "is not an array of numbers";
    const char *why = room(out, json_array_size(array));
    if (why)
        return why;
    json_array_foreach(array, i, item)
    {
        if (json_is_null(item)) /* NaN, for feature_json() */
            return not_finite;
        if (!json_is_number(item))
            return "is not an array of numbers";
        out->v[i] = (float)json_number_value(item);
        if (!isfinite(out->v[i]))
            return not_finite;
    }
    return NULL;
}

/* A copy (mem_free) with null for NaN and the like outside strings; NULL: there are none, or no
 * memory. */
static char *without_nan(const char *text, size_t len, size_t *ret_len)
{
    static const char *const names[] = {"NaN", "Infinity", "-Infinity"};
    char *copy = mem_try(len + len / 3 + 1), *to = copy;
    bool quoted = false, any = false;
    for (size_t i = 0; copy && i < len; i++) {
        size_t n = 0;
        for (size_t k = 0; !quoted && n == 0 && k < sizeof(names) / sizeof(*names); k++)
            if (len - i >= strlen(names[k]) && memcmp(text + i, names[k], strlen(names[k])) == 0)
                n = strlen(names[k]);
        if (n > 0) {
            memcpy(to, "null", 4);
            to += 4;
            i += n - 1;
            any = true;
            continue;
        }
        if (quoted && text[i] == '\\' && i + 1 < len)
            *to++ = text[i++];
        else
            quoted ^= text[i] == '"';
        *to++ = text[i];
    }
    if (any) {
        *ret_len = (size_t)(to - copy);
        return copy;
    }
    mem_free(copy);
    return NULL;
}

json_t *feature_json(const char *text, size_t len, size_t flags, json_error_t *fault)
{
    flags |= JSON_DECODE_INT_AS_REAL | JSON_REJECT_DUPLICATES;
    json_t *root = json_loadb(text, len, flags, fault);
    char *copy = root ? NULL : without_nan(text, len, &len);
    if (copy)
        root = json_loadb(copy, len, flags, fault);
    mem_free(copy);
    return root;
}

/* IEEE half precision. */
static float from_half(uint16_t h)
{
    int exponent = h >> 10 & 31;
    float m = (float)(h & 1023), v;
    if (exponent == 31)
        v = m != 0 ? NAN : INFINITY;
    else
        v = exponent ? ldexpf(1024 + m, exponent - 25) : ldexpf(m, -24);
    return h & 0x8000 ? -v : v;
}

static float element(const uint8_t *p, unsigned width)
{
    uint64_t bits = 0;
    double d;
    float f;
    for (unsigned i = 0; i < width; i++)
        bits |= (uint64_t)p[i] << 8 * i;
    if (width == 2)
        return from_half((uint16_t)bits);
    if (width == 8) {
        memcpy(&d, &bits, 8);
        return (float)d;
    }
    uint32_t low = (uint32_t)bits;
    memcpy(&f, &low, 4);
    return f;
}

/* The value after 'name': in the header, which is a Python dict; NULL: not there. */
static const char *header_value(const char *header, const char *name)
{
    const char *at = strstr(header, name);
    at = at ? strchr(at, ':') : NULL;
    return at ? at + 1 + strspn(at + 1, " ") : NULL;
}

/* The length of a row, from "(4,)" or "(1, 4)": at most two dimensions, one of them 1; else 0. */
static uint64_t shape_row(const char *s)
{
    uint64_t sides[2] = {1, 1};
    int n = 0;
    if (!s || *s++ != '(')
        return 0;
    while (n < 2 && *s >= '0' && *s <= '9') {
        char digits[12] = "";
        size_t len = strspn(s, "0123456789");
        if (len >= sizeof(digits))
            return 0;
        memcpy(digits, s, len);
        if (str_parse_u64(digits, &sides[n++]) < 0)
            return 0;
        s += len;
        s += strspn(s, ", ");
    }
    return *s == ')' && n > 0 && (sides[0] == 1 || sides[1] == 1) ? sides[0] * sides[1] : 0;
}

/* The bytes of a number of the dtype; 0: not supported. */
static unsigned type_width(const char *descr)
{
    static const char *const types[] = {"'<f2'", "'<f4'", "'<f8'"};
    for (unsigned i = 0; descr && i < 3; i++)
        if (str_starts(descr, types[i]))
            return 2u << i;
    return 0;
}

const char *feature_from_npy(const void *data, size_t len, struct feature *out)
{
    const uint8_t *p = data;
    out->n = 0;
    if (len < 12 || memcmp(p, NPY_MAGIC, 6) != 0 || p[6] < 1 || p[6] > 3)
        return "is no .npy file";
    size_t at = p[6] == 1 ? 10 : 12;
    size_t header_len = p[8] | (size_t)p[9] << 8;
    if (p[6] != 1)
        header_len |= (size_t)p[10] << 16 | (size_t)p[11] << 24;
    if (header_len > NPY_HEADER_MAX || header_len > len - at)
        return "is a .npy file that is cut short";
    char *header = str_ndup((const char *)p + at, header_len);
    unsigned width = type_width(header_value(header, "'descr'"));
    uint64_t n = shape_row(header_value(header, "'shape'"));
    mem_free(header);
    if (width == 0)
        return "is a .npy file of another type than f2, f4 or f8";
    if (n == 0)
        return "is a .npy file that holds no single row of numbers";
    const char *why = room(out, n);
    if (why)
        return why;
    if (len - at - header_len != n * width)
        return "is a .npy file with another length than its shape says";
    p += at + header_len;
    for (uint32_t i = 0; i < out->n; i++, p += width) {
        out->v[i] = element(p, width);
        if (!isfinite(out->v[i]))
            return not_finite;
    }
    return NULL;
}

void feature_release(struct feature *f)
{
    mem_free(f->v);
    *f = (struct feature){0};
}
