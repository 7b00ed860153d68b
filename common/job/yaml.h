/* Parses YAML into a small tree, by libyaml's events.  Every node knows its line
 * and column (from 1).  Bytes, nodes and depth are bounded.  Anchors and aliases,
 * tags, several documents and duplicate or non-scalar keys are refused with their
 * line: a job file needs none of them. */
#ifndef COMMON_JOB_YAML_H
#define COMMON_JOB_YAML_H

#include "common/base/base.h"

#define YAML_BYTES_MAX (1u << 20)
#define YAML_NODES_MAX 5000
#define YAML_DEPTH_MAX 16

/* Kinds of nodes. */
enum yaml_kind {
    YAML_UNSPECIFIED,
    YAML_SCALAR,
    YAML_LIST,
    YAML_MAP,
};

struct yaml_node {
    enum yaml_kind kind;
    int line, column;
    int end_line, end_column; /* after it; a list without brackets ends with its last child */
    char *text;               /* scalar: its value */
    bool quoted;              /* scalar: "..." '...' | > ; it is then never null, bool or number */
    char *key;                /* child of a map: its key (key_line is its line) */
    int key_line;
    struct yaml_node *next;  /* sibling */
    struct yaml_node *first; /* children, in order */
    size_t n;                /* number of children */
};

struct yaml_doc {
    char *file;             /* name for messages */
    struct yaml_node *root; /* a map; an empty text gives an empty map */
};

/* `file` names the text in messages: "job.yaml:12: ...".  Release the doc. */
int yaml_parse(const char *text, size_t len, const char *file, struct yaml_doc *ret,
               struct err *err);
void yaml_release(struct yaml_doc *doc);

/* Child of a map, NULL if absent. */
const struct yaml_node *yaml_get(const struct yaml_node *map, const char *key);
/* Is it a plain `null`, `~` or nothing at all? */
bool yaml_is_null(const struct yaml_node *node);

#endif
