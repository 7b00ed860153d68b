
#include <ctype.h>
#include <strings.h>

#include "common/base/base.h"

#define WRAP_COLUMNS 80

char *str_ndup(const char *s, size_t n)
{
    n = strnlen(s, n);
    char *copy = mem_alloc(n + 1);
    memcpy(copy, s, n);
    return copy;
}

char *str_dup(const char *s)
{
    return s ? str_ndup(s, strlen(s)) : NULL;
}

char *str_printf(const char *fmt, ...)
{
    va_list ap, count;
    va_start(ap, fmt);
    va_copy(count, ap);
    int n = vsnprintf(NULL, 0, fmt, count);
    va_end(count);
    char *s = mem_alloc(n < 0 ? 1 : (size_t)n + 1);
    if (n >= 0)
        (void)vsnprintf(s, (size_t)n + 1, fmt, ap); /* measured above */
    va_end(ap);
    return s;
}

bool str_copy(char *dst, size_t dst_size, const char *src)
{
    size_t n = strlen(src);
    if (dst_size == 0)
        return false;
    size_t fits = n < dst_size ? n : dst_size - 1;
    memcpy(dst, src, fits);
    dst[fits] = '\0';
    return fits == n;
}

bool str_take_word(const char **words, char *out, size_t size)
{
    const char *at = *words + strspn(*words, " ");
    const size_t len = strcspn(at, " ");
    (void)snprintf(out, size, "%.*s", (int)len, at);
    *words = at + len;
    return len > 0;
}

bool str_has_word(const char *words, const char *word)
{
    const size_t len = strlen(word);
    bool found = false;
    for (const char *at = words; !found && len > 0 && (at = strstr(at, word)) != NULL; at++)
        found = (at == words || at[-1] == ' ') && (at[len] == ' ' || at[len] == '\0');
    return found && strchr(word, ' ') == NULL;
}

int str_order(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

bool str_starts(const char *s, const char *prefix)
{
    return strncmp(s, prefix, strlen(prefix)) == 0;
}

bool str_ends(const char *s, const char *suffix)
{
    size_t n = strlen(s), m = strlen(suffix);
    return n >= m && memcmp(s + n - m, suffix, m) == 0;
}

bool str_is_name(const char *s, size_t max)
{
    size_t n = strlen(s);
    if (n == 0 || n > max || *s == '.' || *s == '-')
        return false;
    for (; *s; s++) {
        unsigned char c = (unsigned char)*s;
        if (c > 0x7f || !(isalnum(c) || c == '.' || c == '_' || c == '-'))
            return false;
    }
    return true;
}

/* Length of the UTF-8 sequence at s, 0 if malformed, overlong or a surrogate. */
static size_t utf8_step(const unsigned char *s, size_t left)
{
    static const uint32_t smallest[] = {0, 0, 0x80, 0x800, 0x10000};
    if (s[0] < 0x80)
        return 1;
    size_t n = s[0] >= 0xf0 ? 4 : s[0] >= 0xe0 ? 3 : 2;
    if (s[0] < 0xc0 || s[0] > 0xf7 || n > left)
        return 0;
    uint32_t code = s[0] & (0x7fu >> n);
    for (size_t i = 1; i < n; i++) {
        if ((s[i] & 0xc0) != 0x80)
            return 0;
        code = code << 6 | (s[i] & 0x3f);
    }
    bool bad = code < smallest[n] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000);
    return bad ? 0 : n;
}

bool str_is_utf8(const char *s, size_t len)
{
    const unsigned char *p = (const unsigned char *)s;
    for (size_t i = 0; i < len;) {
        size_t n = utf8_step(p + i, len - i);
        if (n == 0)
            return false;
        i += n;
    }
    return true;
}

void str_make_utf8(char *s)
{
    for (size_t left = strlen(s); left > 0;) {
        size_t n = utf8_step((const unsigned char *)s, left);
        if (n == 0) {
            *s = '?';
            n = 1;
        }
        s += n;
        left -= n;
    }
}

size_t str_control(const char *p)
{
    const unsigned char c = (unsigned char)p[0], next = c == 0xc2 ? (unsigned char)p[1] : 0;
    if ((c != 0 && c < 0x20) || c == 0x7f)
        return 1;
    return next >= 0x80 && next < 0xa0 ? 2 : 0;
}

void str_make_plain(char *s)
{
    str_make_utf8(s);
    for (; *s; s++) {
        const size_t n = strchr("\n\r\t", *s) ? 0 : str_control(s);
        memset(s, '?', n);
        s += n > 1;
    }
}

void str_make_line(char *s)
{
    str_make_plain(s);
    for (; (s = strpbrk(s, "\n\r\t")) != NULL; s++)
        *s = ' ';
}

int str_parse_u64(const char *s, uint64_t *ret)
{
    bool hex = s[0] == '0' && (s[1] == 'x' || s[1] == 'X');
    const char *digits = hex ? s + 2 : s;
    uint64_t value = 0, base = hex ? 16 : 10;
    if (!*digits)
        return -EINVAL;
    for (const char *p = digits; *p; p++) {
        unsigned char c = (unsigned char)*p;
        uint64_t d;
        if (c >= '0' && c <= '9')
            d = (uint64_t)(c - '0');
        else if (hex && c < 0x80 && isxdigit(c))
            d = (uint64_t)((c | 0x20) - 'a' + 10);
        else
            return -EINVAL;
        if (__builtin_mul_overflow(value, base, &value) || __builtin_add_overflow(value, d, &value))
            return -ERANGE;
    }
    *ret = value;
    return 0;
}

int str_parse_i64(const char *s, int64_t *ret)
{
    bool minus = *s == '-';
    uint64_t u;
    int rc = str_parse_u64(s + (minus ? 1 : 0), &u);
    if (rc < 0)
        return rc;
    if (u > (uint64_t)INT64_MAX + (minus ? 1 : 0))
        return -ERANGE;
    *ret = minus ? (int64_t)(0 - u) : (int64_t)u;
    return 0;
}

/* The length of a leading decimal number [-+]d*[.d*][e[-+]d+], 0 if none. */
static size_t number_span(const char *s)
{
    const char *p = s;
    if (*p == '-' || *p == '+')
        p++;
    size_t whole = strspn(p, "0123456789");
    p += whole;
    size_t part = 0;
    if (*p == '.') {
        part = strspn(p + 1, "0123456789");
        p += 1 + part;
    }
    if (whole + part == 0)
        return 0;
    if (*p == 'e' || *p == 'E') {
        const char *q = p + 1;
        if (*q == '-' || *q == '+')
            q++;
        size_t digits = strspn(q, "0123456789");
        if (digits)
            p = q + digits;
    }
    return (size_t)(p - s);
}

int str_parse_double(const char *s, double *ret)
{
    size_t n = number_span(s);
    if (n == 0 || s[n] != '\0')
        return -EINVAL;
    double value = strtod(s, NULL);
    if (!isfinite(value))
        return -ERANGE;
    *ret = value;
    return 0;
}

int str_parse_bool(const char *s, bool *ret)
{
    static const char *const yes[] = {"true", "yes", "on"};
    static const char *const no[] = {"false", "no", "off"};
    for (int i = 0; i < 3; i++) {
        bool is_yes = strcasecmp(s, yes[i]) == 0;
        if (is_yes || strcasecmp(s, no[i]) == 0) {
            *ret = is_yes;
            return 0;
        }
    }
    return -EINVAL;
}

struct unit {
    const char *name;
    double factor;
};

static int parse_with_unit(const char *s, const struct unit *units, size_t n_units, uint64_t *ret)
{
    size_t n = number_span(s);
    if (n == 0 || *s == '-' || *s == '+')
        return -EINVAL;
    const char *unit = s + n;
    for (size_t i = 0; i < n_units; i++) {
        if (strcmp(unit, units[i].name) != 0)
            continue;
        double value = strtod(s, NULL) * units[i].factor;
        /* 2^53: beyond it a double no longer holds every whole number. */
        if (!(value <= 9007199254740992.0))
            return -ERANGE;
        *ret = (uint64_t)(value + 0.5);
        return 0;
    }
    return -EINVAL;
}

int str_parse_bytes(const char *s, uint64_t *ret)
{
    static const struct unit units[] = {
        {"", 1},
        {"B", 1},
        {"K", 1024.0},
        {"KiB", 1024.0},
        {"KB", 1e3},
        {"M", 1048576.0},
        {"MiB", 1048576.0},
        {"MB", 1e6},
        {"G", 1073741824.0},
        {"GiB", 1073741824.0},
        {"GB", 1e9},
        {"T", 1099511627776.0},
        {"TiB", 1099511627776.0},
        {"TB", 1e12},
    };
    return parse_with_unit(s, units, sizeof(units) / sizeof(units[0]), ret);
}

int str_parse_duration_ms(const char *s, uint64_t *ret)
{
    static const struct unit units[] = {
        {"ms", 1}, {"s", 1e3}, {"m", 6e4}, {"h", 3.6e6}, {"d", 8.64e7},
    };
    if (strcmp(s, "0") == 0) {
        *ret = 0;
        return 0;
    }
    return parse_with_unit(s, units, sizeof(units) / sizeof(units[0]), ret);
}

static bool in_range(double value, double min, double max)
{
    return (min == 0 && max == 0) || (value >= min && value <= max);
}

int str_parse(enum str_type type, const char *s, double min, double max, void *ret)
{
    uint64_t u;
    int64_t i;
    double d;
    int rc;
    switch (type) {
    case STR_BOOL:
        return str_parse_bool(s, ret);
    case STR_INT:
        if (str_parse_i64(s, &i) < 0 || i < INT_MIN || i > INT_MAX ||
            !in_range((double)i, min, max))
            return -EINVAL;
        *(int *)ret = (int)i;
        return 0;
    case STR_DOUBLE:
        if (str_parse_double(s, &d) < 0 || !in_range(d, min, max))
            return -EINVAL;
        *(double *)ret = d;
        return 0;
    default:
        rc = type == STR_U64     ? str_parse_u64(s, &u)
             : type == STR_BYTES ? str_parse_bytes(s, &u)
                                 : str_parse_duration_ms(s, &u);
        if (rc < 0 || !in_range((double)u, min, max))
            return -EINVAL;
        *(uint64_t *)ret = u;
        return 0;
    }
}

char *str_type_bound(enum str_type type, double bound, char out[STR_HUMAN_MAX])
{
    static const struct unit durations[] = {{"d", 8.64e7},
                                            {"h", 3.6e6},
                                            {"m", 6e4},
                                            {"s", 1e3},
                                            {"ms", 1}},
                             sizes[] = {{"TiB", 0x1p40}, {"TB", 1e12}, {"GiB", 0x1p30}, {"GB", 1e9},
                                        {"MiB", 0x1p20}, {"MB", 1e6},  {"", 1}};
    static const struct unit number = {"", 1};
    const struct unit *u = bound <= 0                ? &number
                           : type == STR_DURATION_MS ? durations
                           : type == STR_BYTES       ? sizes
                                                     : &number;
    while (u->factor != 1 && fmod(bound, u->factor) != 0)
        u++;
    const bool whole = fabs(bound) < 0x1p64 && fmod(bound, u->factor) == 0;
    (void)snprintf(out, STR_HUMAN_MAX, whole ? "%.0f%s" : "%.12g%s", bound / u->factor, u->name);
    return out;
}

char *str_expected(enum str_type type, double min, double max, const char *text,
                   char out[STR_EXPECTED_MAX])
{
    static const char *const words[STR_TYPES] = {
        [STR_BOOL] = "true or false",         [STR_INT] = "a whole number",
        [STR_U64] = "a whole number",         [STR_DOUBLE] = "a number",
        [STR_BYTES] = "a size such as 64MiB", [STR_DURATION_MS] = "a duration such as 2s or 1.5h",
    };
    char least[STR_HUMAN_MAX], most[STR_HUMAN_MAX], range[96] = "";
    if (min != 0 || max != 0)
        (void)snprintf(range, sizeof range, " from %s to %s", str_type_bound(type, min, least),
                       str_type_bound(type, max, most));
    else if (type == STR_U64)
        (void)snprintf(range, sizeof range, " from 0 to %" PRIu64, UINT64_MAX);
    (void)snprintf(out, STR_EXPECTED_MAX, "%s%s%s", words[type], range,
                   text && strchr(text, ',') ? ", written with a point and without commas" : "");
    return out;
}

char *str_human_bytes(uint64_t bytes, char out[STR_HUMAN_MAX])
{
    static const char *const units[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    if (bytes < 1024) {
        (void)snprintf(out, STR_HUMAN_MAX, "%u B", (unsigned)bytes);
        return out;
    }
    double value = (double)bytes / 1024;
    size_t u = 0;
    for (; value >= 1023.95 && u + 1 < sizeof(units) / sizeof(units[0]); u++)
        value /= 1024;
    (void)snprintf(out, STR_HUMAN_MAX, "%.1f %s", value, units[u]);
    return out;
}

char *str_human_loss(double x, char out[STR_HUMAN_MAX])
{
    (void)snprintf(out, STR_HUMAN_MAX, fabs(x) < 1e4 ? "%.4f" : "%.4g", x);
    return out;
}

char *str_human_duration(uint64_t ms, char out[STR_HUMAN_MAX])
{
    uint64_t s = ms / 1000;
    if (ms < 10000)
        (void)snprintf(out, STR_HUMAN_MAX, "%.1fs", (double)ms / 1000);
    else if (s < 60)
        (void)snprintf(out, STR_HUMAN_MAX, "%us", (unsigned)s);
    else if (s < 3600)
        (void)snprintf(out, STR_HUMAN_MAX, "%um%02us", (unsigned)(s / 60), (unsigned)(s % 60));
    else if (s < 2 * 86400)
        (void)snprintf(out, STR_HUMAN_MAX, "%uh%02um", (unsigned)(s / 3600),
                       (unsigned)(s / 60 % 60));
    else
        (void)snprintf(out, STR_HUMAN_MAX, "%llud%02uh", (unsigned long long)(s / 86400),
                       (unsigned)(s / 3600 % 24));
    return out;
}

char *str_human_number(double x, char out[STR_HUMAN_MAX])
{
    (void)snprintf(out, STR_HUMAN_MAX, fabs(x) >= 99.95 && fabs(x) < 1e15 ? "%.0f" : "%.3g", x);
    return out;
}

const char *str_plural(uint64_t n)
{
    return n == 1 ? "" : "s";
}

char *str_wrapped(const char *text, size_t column, size_t indent)
{
    size_t room = strlen(text) + indent + 2;
    for (const char *s = text; *s; s++)
        room += *s == ' ' ? indent : 0;
    char *out = mem_alloc(room), *to = out;
    while (*text) {
        const size_t spaces = strspn(text, " "), word = strcspn(text + spaces, " ");
        const bool breaks = column > indent && column + spaces + word >= WRAP_COLUMNS && word > 0;
        if (breaks)
            to += snprintf(to, room - (size_t)(to - out), "\n%*s", (int)indent, "");
        const size_t from = breaks ? spaces : 0, n = spaces - from + word;
        memcpy(to, text + from, n);
        to += n;
        column = breaks ? indent + word : column + n;
        text += spaces + word;
    }
    *to = '\0';
    return out;
}

static unsigned min3(unsigned a, unsigned b, unsigned c)
{
    unsigned m = a < b ? a : b;
    return m < c ? m : c;
}

/* Optimal string alignment: insert, delete, replace, swap neighbours. */
unsigned str_distance(const char *a, const char *b)
{
    enum { MAX = 64 };
    size_t n = strlen(a), m = strlen(b);
    if (n > MAX || m > MAX)
        return (unsigned)(n > m ? n : m);
    unsigned rows[3][MAX + 1];
    unsigned *before = rows[0], *above = rows[1], *row = rows[2];
    for (size_t j = 0; j <= m; j++)
        above[j] = (unsigned)j;
    for (size_t i = 1; i <= n; i++) {
        row[0] = (unsigned)i;
        for (size_t j = 1; j <= m; j++) {
            unsigned same = a[i - 1] == b[j - 1] ? 0 : 1;
            row[j] = min3(above[j] + 1, row[j - 1] + 1, above[j - 1] + same);
            bool swap = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
            if (swap && before[j - 2] + 1 < row[j])
                row[j] = before[j - 2] + 1;
        }
        unsigned *oldest = before;
        before = above;
        above = row;
        row = oldest;
    }
    return above[m];
}

/* 'lerning_rate' should find 'lr': the initials of a spelled-out name. */
static bool is_initials(const char *name, const char *word)
{
    size_t n = 0;
    bool start = true;
    for (; *word; word++) {
        if (*word == '_' || *word == '-') {
            start = true;
        } else if (start) {
            if (name[n++] != *word)
                return false;
            start = false;
        }
    }
    return n >= 2 && name[n] == '\0';
}

/* '--work-dir' should find '--data-dir', if no other flag ends so. */
static const char *only_alike(const char *word, const char *const *names, size_t n)
{
    const char *last = strrchr(word, '-'), *ret = NULL;
    for (size_t i = 0; last && last[1] && i < n; i++) {
        if (!names[i] || !str_ends(names[i], last))
            continue;
        if (ret)
            return NULL;
        ret = names[i];
    }
    return ret;
}

const char *str_suggest(const char *word, const char *const *names, size_t n)
{
    const char *best = NULL;
    const unsigned len = (unsigned)strlen(word);
    unsigned best_distance = len > 3 ? len / 3 + 1 : 1; /* of three letters two are another word */
    for (size_t i = 0; i < n; i++) {
        unsigned d = names[i] ? str_distance(word, names[i]) : UINT32_MAX;
        /* A distance near the length of a short name would match anything. */
        if (names[i] && d <= best_distance && d < strlen(names[i]) &&
            (!best || d < best_distance)) {
            best = names[i];
            best_distance = d;
        }
    }
    for (size_t i = 0; i < n && !best; i++)
        if (names[i] && is_initials(names[i], word))
            best = names[i];
    for (size_t i = 0; i < n && !best && len >= 3; i++)
        if (names[i] && strlen(names[i]) >= 3 && (strstr(names[i], word) || strstr(word, names[i])))
            best = names[i];
    return best ? best : only_alike(word, names, n);
}

char *str_hint(const char *word, const char *const *names, size_t n, const char *dashes,
               char out[STR_HINT_MAX])
{
    const char *near = str_suggest(word, names, n);
    out[0] = '\0';
    if (near)
        (void)snprintf(out, STR_HINT_MAX, "; did you mean '%s%s'?", dashes, near);
    return out;
}

bool str_json_exceeds(const char *json, size_t n, size_t lists, size_t values)
{
    size_t n_lists = 0, n_values = 0;
    bool quoted = false;
    for (size_t i = 0; i < n; i++) {
        const char c = json[i];
        n_lists += !quoted && (c == '[' || c == '{');
        n_values += !quoted && (c == ',' || c == ':');
        i += quoted && c == '\\';
        quoted ^= c == '"';
    }
    return n_lists > lists || n_values > values;
}
