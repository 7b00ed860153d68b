#include "common/job/conf.h"

#define PATH_MAX_BYTES 128
#define KEYS_MAX 64
#define STRS_MAX 4096
#define DOC_COLUMN 27 /* of what is said about a key, in plain text */

/* Refusals that are ignored: those of all keys except the firm ones. */
struct lenient {
    const char *firm; /* words */
    struct err first;
};

/* The section that is being bound: its name, and its node. */
struct bind {
    const struct yaml_doc *doc;
    const char *section; /* "" at the root, else "train" */
    struct err *err;
    struct lenient *lenient; /* NULL: no refusal is ignored */
};

static void join_path(char out[PATH_MAX_BYTES], const char *section, const char *key)
{
    (void)snprintf(out, PATH_MAX_BYTES, "%s%s%s", section, *section ? "." : "", key);
}

/* Describes the values of this key in words; for an error about `text` (NULL: none). */
static void expected(const struct conf_key *k, const char *text, char *out, size_t size)
{
    static const char *const words[] = {
        [CONF_STR - CONF_STR] = "text",
        [CONF_STRS - CONF_STR] = "a list of texts",
        [CONF_INTS - CONF_STR] = "a list of at most 64 whole numbers",
        [CONF_ENUM - CONF_STR] = "one of",
        [CONF_SECTION - CONF_STR] = "keys with values",
    };
    char number[STR_EXPECTED_MAX], min[STR_HUMAN_MAX], max[STR_HUMAN_MAX];
    const char *word = k->zero ? k->zero : k->less;
    int n = snprintf(out, size, "%s%s%s", word ? word : "", word ? " or " : "",
                     k->type < CONF_STR
                         ? str_expected((enum str_type)k->type, k->min, k->max, text, number)
                         : words[k->type - CONF_STR]);
    for (size_t i = 0; k->type == CONF_ENUM && k->names[i] && (size_t)n < size; i++)
        n += snprintf(out + n, size - (size_t)n, "%s%s", i ? ", " : " ", k->names[i]);
    if (k->type == CONF_INTS && (k->min != 0 || k->max != 0) && (size_t)n < size)
        (void)snprintf(out + n, size - (size_t)n, " from %s to %s",
                       str_type_bound(STR_INT, k->min, min), str_type_bound(STR_INT, k->max, max));
}

static void *at(const struct conf_key *k, void *out)
{
    return (char *)out + k->offset;
}

const char *conf_name(const char *const *names, int value)
{
    for (int i = 0; names[i]; i++)
        if (i == value)
            return names[i];
    return "?";
}

int conf_number(const char *const *names, const char *name, int *ret)
{
    for (int i = 0; names[i]; i++)
        if (strcmp(name, names[i]) == 0) {
            *ret = i;
            return 0;
        }
    return -EINVAL;
}

/* Sets the field to a scalar's text; -EINVAL if that is not a value of the key. */
static int set_text(const struct conf_key *k, const char *text, void *out)
{
    if (k->zero && strcmp(text, k->zero) == 0) {
        *(int *)at(k, out) = 0;
        return 0;
    }
    if (k->less && strcmp(text, k->less) == 0) {
        *(double *)at(k, out) = -1;
        return 0;
    }
    if (k->type == CONF_ENUM)
        return conf_number(k->names, text, at(k, out));
    if (k->type == CONF_STR) {
        *(char **)at(k, out) = str_dup(text);
        return 0;
    }
    if (k->type > CONF_STR)
        return -EINVAL;
    return str_parse((enum str_type)k->type, text, k->min, k->max, at(k, out));
}

static bool is_texty(const struct conf_key *k)
{
    return k->type == CONF_STR || k->type == CONF_ENUM;
}

static int wrong(const struct bind *b, const struct conf_key *k, const struct yaml_node *node)
{
    char path[PATH_MAX_BYTES], wants[512];
    join_path(path, b->section, k->key);
    expected(k, node->kind == YAML_SCALAR ? node->text : NULL, wants, sizeof(wants));
    if (node->kind != YAML_SCALAR)
        return err_set(b->err, -ERR_CONFIG, "%s:%d: %s is a %s, expected %s", b->doc->file,
                       node->line, path, node->kind == YAML_MAP ? "section" : "list", wants);
    if (yaml_is_null(node))
        return err_set(b->err, -ERR_CONFIG, "%s:%d: %s has no value, expected %s", b->doc->file,
                       node->key_line, path, wants);
    char hint[STR_HINT_MAX];
    const char *quote = node->quoted ? "\"" : "'";
    size_t n = 0;
    while (k->type == CONF_ENUM && k->names[n])
        n++;
    return err_set(b->err, -ERR_CONFIG, "%s:%d: %s is %s%.100s%s, expected %s%s%s%s%s",
                   b->doc->file, node->line, path, quote, node->text, quote, wants,
                   node->quoted && !is_texty(k) ? " without quotes" : "",
                   str_hint(node->text, k->names, n, "", hint), k->note ? "; " : "",
                   k->note ? k->note : "");
}

static int set_list(const struct bind *b, const struct conf_key *k, const struct yaml_node *node,
                    void *out)
{
    struct conf_strs *strs = at(k, out);
    size_t n = node->kind == YAML_LIST ? node->n : 1;
    const struct yaml_node *item = node->kind == YAML_LIST ? node->first : node;
    if (node->kind == YAML_MAP || yaml_is_null(node) || n > STRS_MAX)
        return wrong(b, k, node);
    strs->items = mem_alloc_array(n, sizeof(*strs->items));
    for (; strs->n < n; item = item->next) {
        if (item->kind != YAML_SCALAR || yaml_is_null(item))
            return wrong(b, k, item);
        strs->items[strs->n++] = str_dup(item->text);
    }
    return 0;
}

static int set_ints(const struct bind *b, const struct conf_key *k, const struct yaml_node *node,
                    void *out)
{
    struct conf_ints *ints = at(k, out);
    struct conf_key one = *k;
    size_t n = node->kind == YAML_LIST ? node->n : 1;
    const struct yaml_node *item = node->kind == YAML_LIST ? node->first : node;
    if (node->kind == YAML_MAP || yaml_is_null(node) || n > CONF_INTS_MAX)
        return wrong(b, k, node);
    one.type = CONF_INT;
    one.offset = 0;
    for (; ints->n < n; item = item->next) {
        if (item->kind != YAML_SCALAR || yaml_is_null(item) || item->quoted ||
            set_text(&one, item->text, &ints->items[ints->n]) < 0)
            return wrong(b, k, item);
        ints->n++;
    }
    return 0;
}

static int bind_map(const struct bind *b, const struct yaml_node *map, int line,
                    const struct conf_key *keys, void *out);

static int bind_section(const struct bind *b, const struct conf_key *k,
                        const struct yaml_node *node, int line, void *out)
{
    char path[PATH_MAX_BYTES];
    join_path(path, b->section, k->key);
    if (node && node->kind == YAML_SCALAR && yaml_is_null(node))
        node = NULL;
    if (node && node->kind != YAML_MAP)
        return wrong(b, k, node);
    struct bind inner = {b->doc, path, b->err, b->lenient};
    return bind_map(&inner, node, node ? node->key_line : line, k->sub, at(k, out));
}

static int bind_key(const struct bind *b, const struct conf_key *k, const struct yaml_node *node,
                    int line, void *out)
{
    if (k->type == CONF_SECTION)
        return bind_section(b, k, node, line, out);
    if (!node && k->required) {
        char path[PATH_MAX_BYTES];
        join_path(path, b->section, k->key);
        return err_set(b->err, -ERR_CONFIG, "%s:%d: %s is missing (%s)", b->doc->file, line, path,
                       k->doc);
    }
    if (!node)
        return k->def ? set_text(k, k->def, out) : 0;
    if (k->type == CONF_STRS)
        return set_list(b, k, node, out);
    if (k->type == CONF_INTS)
        return set_ints(b, k, node, out);
    if (node->kind != YAML_SCALAR || yaml_is_null(node) || (node->quoted && !is_texty(k)) ||
        set_text(k, node->text, out) < 0)
        return wrong(b, k, node);
    return 0;
}

static int unknown_key(const struct bind *b, const struct yaml_node *node,
                       const struct conf_key *keys)
{
    const char *names[KEYS_MAX];
    char known[512] = "", hint[STR_HINT_MAX];
    size_t n = 0, used = 0;
    for (; keys->key != NULL && n < KEYS_MAX; keys++) {
        if (keys->doc == NULL)
            continue;
        names[n] = keys->key;
        if (used < sizeof(known))
            used += (size_t)snprintf(known + used, sizeof(known) - used, "%s%s", n ? ", " : "",
                                     names[n]);
        n++;
    }
    if (*node->key && node->key[strspn(node->key, "0123456789")] == '\0') /* {lr: 0,5} */
        return err_set(b->err, -ERR_CONFIG,
                       "%s:%d: '%.64s' after a comma would be another key: write numbers with a "
                       "point and without commas",
                       b->doc->file, node->key_line, node->key);
    bool root = !*b->section, near = *str_hint(node->key, names, n, "", hint) != '\0';
    return err_set(b->err, -ERR_CONFIG, "%s:%d: unknown key '%.64s'%s%s%s%s%s", b->doc->file,
                   node->key_line, node->key, root ? "" : " in '", b->section, root ? "" : "'",
                   near ? hint : "; known are ", near ? "" : known);
}

/* True if the key's refusal, in b->err, is ignored; keeps the first one. */
static bool passes_over(const struct bind *b, const char *key)
{
    char path[PATH_MAX_BYTES];
    join_path(path, b->section, key);
    if (!b->lenient)
        return false;
    if (str_has_word(b->lenient->firm, path) || str_has_word(b->lenient->firm, b->section))
        return false;
    if (b->lenient->first.code == 0)
        b->lenient->first = *b->err;
    return true;
}

static void release_key(const struct conf_key *k, void *out);

static int bind_map(const struct bind *b, const struct yaml_node *map, int line,
                    const struct conf_key *keys, void *out)
{
    for (const struct yaml_node *n = map ? map->first : NULL; n; n = n->next) {
        const struct conf_key *k = keys;
        while (k->key != NULL && strcmp(k->key, n->key) != 0)
            k++;
        int rc = k->key == NULL ? unknown_key(b, n, keys) : 0;
        if (rc < 0 && !passes_over(b, n->key))
            return rc;
    }
    for (const struct conf_key *k = keys; k->key != NULL; k++) {
        const struct yaml_node *node = yaml_get(map, k->key);
        int rc = bind_key(b, k, node, line, out);
        /* A missing key cannot be ignored, and within a section that was decided already. */
        if (rc < 0 && (!node || k->type == CONF_SECTION || !passes_over(b, k->key)))
            return rc;
        if (rc < 0) {
            release_key(k, out);
            (void)bind_key(b, k, NULL, line, out); /* the default; a required key stays zero */
        }
    }
    return 0;
}

int conf_bind(const struct yaml_doc *doc, const struct yaml_node *map, const struct conf_key *keys,
              void *out, struct err *err)
{
    struct bind b = {doc, "", err, NULL};
    int rc = bind_map(&b, map, map ? map->line : 1, keys, out);
    if (rc < 0)
        conf_release(keys, out);
    return rc;
}

int conf_bind_saved(const struct yaml_doc *doc, const struct yaml_node *map,
                    const struct conf_key *keys, const char *firm, void *out, struct err *err)
{
    struct lenient lenient = {.firm = firm};
    struct err last = {0};
    struct bind b = {doc, "", &last, &lenient};
    int rc = bind_map(&b, map, map ? map->line : 1, keys, out);
    if (rc < 0) {
        conf_release(keys, out);
        return err_set(err, rc, "%s", last.msg);
    }
    if (lenient.first.code == 0)
        return 0;
    (void)err_set(err, lenient.first.code, "%s", lenient.first.msg);
    return 1;
}

void conf_defaults(const struct conf_key *keys, void *out)
{
    for (const struct conf_key *k = keys; k->key != NULL; k++) {
        if (k->type == CONF_SECTION)
            conf_defaults(k->sub, at(k, out));
        else if (k->def)
            (void)set_text(k, k->def, out); /* tests hold every default to its range */
    }
}

static void release_key(const struct conf_key *k, void *out)
{
    if (k->type == CONF_SECTION) {
        conf_release(k->sub, at(k, out));
    } else if (k->type == CONF_STR) {
        char **s = at(k, out);
        mem_free(*s);
        *s = NULL;
    } else if (k->type == CONF_STRS) {
        struct conf_strs *strs = at(k, out);
        for (size_t i = 0; i < strs->n; i++)
            mem_free(strs->items[i]);
        mem_free(strs->items);
        *strs = (struct conf_strs){0};
    } else if (k->type == CONF_INTS) {
        *(struct conf_ints *)at(k, out) = (struct conf_ints){0};
    }
}

void conf_release(const struct conf_key *keys, void *out)
{
    for (const struct conf_key *k = keys; k->key != NULL; k++)
        release_key(k, out);
}

/* The node at a dotted path; *ret_line is its line or that of the deepest
 * section that exists. */
static const struct yaml_node *walk(const struct yaml_doc *doc, const char *path, int *ret_line)
{
    const struct yaml_node *node = doc->root;
    *ret_line = node->line;
    while (node && *path) {
        char key[PATH_MAX_BYTES];
        size_t n = strcspn(path, ".");
        (void)snprintf(key, sizeof(key), "%.*s", (int)n, path);
        node = yaml_get(node, key);
        if (node)
            *ret_line = node->kind == YAML_SCALAR ? node->line : node->key_line;
        path += n + (path[n] == '.' ? 1 : 0);
    }
    return node;
}

const struct yaml_node *conf_find(const struct yaml_doc *doc, const char *path)
{
    int line;
    return walk(doc, path, &line);
}

int conf_error(const struct yaml_doc *doc, const char *path, struct err *err, const char *fmt, ...)
{
    char text[512];
    int line;
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, ap); /* cut text is still text */
    va_end(ap);
    (void)walk(doc, path, &line);
    return err_set(err, -ERR_CONFIG, "%s:%d: %s %s", doc->file, line, path, text);
}

static const char *default_text(const struct conf_key *k)
{
    return k->required ? "required" : k->def ? k->def : "none";
}

static int document_line(const struct conf_key *k, const char *section, enum conf_format format,
                         struct buf *out)
{
    char wants[512], path[PATH_MAX_BYTES];
    expected(k, NULL, wants, sizeof(wants));
    join_path(path, section, k->key);
    if (format == CONF_MARKDOWN)
        return buf_printf(out, "| `%s` | %s | %s%s%s | %s |\n", k->key, wants,
                          k->required || !k->def ? "" : "`", default_text(k),
                          k->required || !k->def ? "" : "`", k->doc);
    char *value = str_printf("%s; %s%s", wants, k->def ? "default " : "", default_text(k));
    char *doc = str_wrapped(k->doc, DOC_COLUMN, DOC_COLUMN);
    char *wrapped = str_wrapped(value, DOC_COLUMN, DOC_COLUMN);
    const bool wide = strlen(path) > DOC_COLUMN - strlen("   "); /* which has a line of its own */
    const int rc = buf_printf(out, "  %-24s%s%*s%s\n%*s%s\n", path, wide ? "\n" : "",
                              wide ? DOC_COLUMN : 1, "", doc, DOC_COLUMN, "", wrapped);
    mem_free(wrapped);
    mem_free(doc);
    mem_free(value);
    return rc;
}

static int document(const struct conf_key *keys, const char *section, const char *doc,
                    enum conf_format format, struct buf *out)
{
    int rc = 0;
    if (*section && format == CONF_MARKDOWN) {
        rc = buf_printf(out, "\n## %s\n\n%s\n", section, doc);
    } else if (*section) {
        char *wrapped = str_wrapped(doc, strlen(section) + strlen(": "), 0);
        rc = buf_printf(out, "\n%s: %s\n", section, wrapped);
        mem_free(wrapped);
    }
    if (rc == 0 && format == CONF_MARKDOWN)
        rc = buf_append_str(out, "\n| key | value | default | meaning |\n"
                                 "| --- | --- | --- | --- |\n");
    for (const struct conf_key *k = keys; rc == 0 && k->key != NULL; k++)
        if (k->type != CONF_SECTION && k->doc != NULL)
            rc = document_line(k, section, format, out);
    for (const struct conf_key *k = keys; rc == 0 && k->key != NULL; k++) {
        char path[PATH_MAX_BYTES];
        join_path(path, section, k->key);
        if (k->type == CONF_SECTION)
            rc = document(k->sub, path, k->doc, format, out);
    }
    return rc;
}

int conf_document(const struct conf_key *keys, enum conf_format format, struct buf *out)
{
    return document(keys, "", "", format, out);
}
