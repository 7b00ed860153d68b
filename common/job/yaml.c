#include "common/job/yaml.h"

#include <yaml.h>

struct loader {
    yaml_parser_t parser;
    const char *file, *text;
    size_t len;
    struct err *err;
    size_t nodes;
};

static int fail(const struct loader *l, int line, const char *what)
{
    return err_set(l->err, -ERR_CONFIG, "%s:%d: %s", l->file, line, what);
}

/* The line of a problem: for bytes that are not text libyaml gives only the offset. */
static int problem_line(const struct loader *l)
{
    const yaml_parser_t *p = &l->parser;
    int line = 1;
    if (p->error != YAML_READER_ERROR)
        return (int)p->problem_mark.line + 1;
    for (size_t i = 0; i < l->len && i < p->problem_offset; i++)
        line += l->text[i] == '\n';
    return line;
}

static bool begins_with_tab(const struct loader *l, int line)
{
    size_t i = 0;
    while (line > 1 && i < l->len)
        line -= l->text[i++] == '\n';
    while (i < l->len && l->text[i] == ' ')
        i++;
    return i < l->len && l->text[i] == '\t';
}

/* Reports libyaml's own message, with its place. */
static int fail_syntax(const struct loader *l)
{
    const yaml_parser_t *p = &l->parser;
    if (p->error == YAML_MEMORY_ERROR)
        return err_set(l->err, -ENOMEM, "out of memory while reading %s", l->file);
    if (begins_with_tab(l, problem_line(l)))
        return err_set(l->err, -ERR_CONFIG,
                       "%s:%d: not valid YAML: the line begins with a tab; indent it with spaces",
                       l->file, problem_line(l));
    if (p->error == YAML_READER_ERROR && p->problem && strstr(p->problem, "UTF-8"))
        return err_set(l->err, -ERR_CONFIG, "%s:%d: this is not UTF-8 (%s); save it as UTF-8",
                       l->file, problem_line(l), p->problem);
    return err_set(l->err, -ERR_CONFIG, "%s:%d: not valid YAML: %s%s%s", l->file, problem_line(l),
                   p->problem ? p->problem : "unreadable text", p->context ? " " : "",
                   p->context ? p->context : "");
}

static int next_event(struct loader *l, yaml_event_t *event)
{
    return yaml_parser_parse(&l->parser, event) ? 0 : fail_syntax(l);
}

static void node_free(struct yaml_node *node)
{
    while (node) { /* siblings in a loop, children by recursion: depth is bounded */
        struct yaml_node *next = node->next;
        node_free(node->first);
        mem_free(node->text);
        mem_free(node->key);
        mem_free(node);
        node = next;
    }
}

static int load_node(struct loader *l, const yaml_event_t *event, int depth,
                     struct yaml_node **ret);

static void ends_at(struct yaml_node *node, const yaml_mark_t *mark)
{
    node->end_line = (int)mark->line + 1;
    node->end_column = (int)mark->column + 1;
}

static int scalar_text(struct loader *l, const yaml_event_t *event, char **ret)
{
    size_t n = event->data.scalar.length;
    if (memchr(event->data.scalar.value, 0, n))
        return fail(l, (int)event->start_mark.line + 1, "a value holds a NUL byte");
    *ret = str_ndup((const char *)event->data.scalar.value, n);
    return 0;
}

/* Checks that no anchor or tag is before a scalar, list or map. */
static int check_bare(const struct loader *l, const yaml_event_t *event)
{
    const int line = (int)event->start_mark.line + 1;
    const bool scalar = event->type == YAML_SCALAR_EVENT;
    const bool list = event->type == YAML_SEQUENCE_START_EVENT;
    if (scalar ? event->data.scalar.anchor
        : list ? event->data.sequence_start.anchor
               : event->data.mapping_start.anchor)
        return fail(l, line, "anchors (&name) are not used here; leave it out");
    if (scalar ? event->data.scalar.tag
        : list ? event->data.sequence_start.tag
               : event->data.mapping_start.tag)
        return fail(l, line, "tags (!name) are not used here");
    return 0;
}

static int load_key(struct loader *l, const yaml_event_t *event, const struct yaml_node *map,
                    char **ret)
{
    int line = (int)event->start_mark.line + 1;
    if (event->type != YAML_SCALAR_EVENT)
        return fail(l, line, "a key must be plain text");
    int rc = check_bare(l, event);
    if (rc == 0)
        rc = scalar_text(l, event, ret);
    if (rc < 0)
        return rc;
    const struct yaml_node *twin = yaml_get(map, *ret);
    if (!twin)
        return 0;
    rc = err_set(l->err, -ERR_CONFIG, "%s:%d: key '%s' is there twice (first on line %d)", l->file,
                 line, *ret, twin->key_line);
    mem_free(*ret);
    return rc;
}

/* Loads children up to the end event; `node` is already in the tree. */
static int load_children(struct loader *l, struct yaml_node *node, int depth)
{
    struct yaml_node **tail = &node->first;
    for (;;) {
        yaml_event_t event;
        char *key = NULL;
        int rc = next_event(l, &event);
        if (rc < 0)
            return rc;
        int key_line = (int)event.start_mark.line + 1;
        if (event.type == YAML_MAPPING_END_EVENT || event.type == YAML_SEQUENCE_END_EVENT) {
            if (event.end_mark.index > event.start_mark.index) /* a bracket */
                ends_at(node, &event.end_mark);
            yaml_event_delete(&event);
            return 0;
        }
        if (node->kind == YAML_MAP) {
            rc = load_key(l, &event, node, &key);
            yaml_event_delete(&event);
            if (rc < 0)
                return rc;
            rc = next_event(l, &event);
        }
        if (rc < 0) {
            mem_free(key);
            return rc;
        }
        struct yaml_node *child = NULL;
        rc = load_node(l, &event, depth + 1, &child);
        yaml_event_delete(&event);
        if (rc < 0) {
            mem_free(key);
            return rc;
        }
        child->key = key;
        child->key_line = key_line;
        node->end_line = child->end_line;
        node->end_column = child->end_column;
        *tail = child;
        tail = &child->next;
        node->n++;
    }
}

static int load_node(struct loader *l, const yaml_event_t *event, int depth, struct yaml_node **ret)
{
    int line = (int)event->start_mark.line + 1;
    if (event->type == YAML_ALIAS_EVENT)
        return fail(l, line, "aliases (*name) are not used here; write the value out");
    if (depth > YAML_DEPTH_MAX)
        return fail(l, line, "nested too deeply");
    if (++l->nodes > YAML_NODES_MAX)
        return fail(l, line, "too many values");
    int rc = check_bare(l, event);
    if (rc < 0)
        return rc;
    struct yaml_node *node = mem_alloc(sizeof(*node));
    node->line = line;
    node->column = (int)event->start_mark.column + 1;
    ends_at(node, &event->end_mark);
    if (event->type == YAML_SCALAR_EVENT) {
        node->kind = YAML_SCALAR;
        node->quoted = event->data.scalar.style != YAML_PLAIN_SCALAR_STYLE;
        rc = scalar_text(l, event, &node->text);
    } else {
        node->kind = event->type == YAML_MAPPING_START_EVENT ? YAML_MAP : YAML_LIST;
        rc = load_children(l, node, depth);
    }
    if (rc < 0)
        node_free(node);
    else
        *ret = node;
    return rc;
}

/* Loads one document, whose root is a map. */
static int load_stream(struct loader *l, struct yaml_node **root)
{
    for (;;) {
        yaml_event_t event;
        int rc = next_event(l, &event);
        if (rc < 0)
            return rc;
        yaml_event_type_t type = event.type;
        int line = (int)event.start_mark.line + 1;
        bool content = type == YAML_SCALAR_EVENT || type == YAML_SEQUENCE_START_EVENT ||
                       type == YAML_MAPPING_START_EVENT || type == YAML_ALIAS_EVENT;
        if (type == YAML_DOCUMENT_START_EVENT && *root)
            rc = fail(l, line, "more than one document");
        else if (content)
            rc = load_node(l, &event, 0, root);
        yaml_event_delete(&event);
        if (rc < 0 || type == YAML_STREAM_END_EVENT)
            return rc;
    }
}

int yaml_parse(const char *text, size_t len, const char *file, struct yaml_doc *ret,
               struct err *err)
{
    if (len > YAML_BYTES_MAX)
        return err_set(err, -ERR_LIMIT, "%s has %zu bytes, at most %u are allowed", file, len,
                       YAML_BYTES_MAX);
    struct loader l = {.file = file, .text = text, .len = len, .err = err};
    /* libyaml would read it, but nothing after it could. */
    if (len >= 2 && (memcmp(text, "\xff\xfe", 2) == 0 || memcmp(text, "\xfe\xff", 2) == 0))
        return fail(&l, 1, "this is UTF-16; save it as UTF-8");
    if (!yaml_parser_initialize(&l.parser))
        return err_set(err, -ENOMEM, "out of memory while reading %s", file);
    yaml_parser_set_input_string(&l.parser, (const unsigned char *)text, len);
    struct yaml_node *root = NULL;
    int rc = load_stream(&l, &root);
    yaml_parser_delete(&l.parser);
    if (rc == 0 && root && yaml_is_null(root)) {
        node_free(root);
        root = NULL;
    }
    if (rc == 0 && root && root->kind != YAML_MAP)
        rc = fail(&l, root->line, "expected keys with values (\"key: value\")");
    if (rc < 0) {
        node_free(root);
        return rc;
    }
    if (!root) {
        root = mem_alloc(sizeof(*root));
        root->kind = YAML_MAP;
        root->line = root->column = 1;
    }
    *ret = (struct yaml_doc){.file = str_dup(file), .root = root};
    return 0;
}

void yaml_release(struct yaml_doc *doc)
{
    node_free(doc->root);
    mem_free(doc->file);
    *doc = (struct yaml_doc){0};
}

const struct yaml_node *yaml_get(const struct yaml_node *map, const char *key)
{
    if (!map || map->kind != YAML_MAP)
        return NULL;
    for (const struct yaml_node *n = map->first; n; n = n->next)
        if (strcmp(n->key, key) == 0)
            return n;
    return NULL;
}

bool yaml_is_null(const struct yaml_node *node)
{
    if (node->kind != YAML_SCALAR || node->quoted)
        return false;
    return !*node->text || strcmp(node->text, "~") == 0 || strcmp(node->text, "null") == 0;
}
