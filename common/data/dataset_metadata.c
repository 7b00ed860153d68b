/* metadata.jsonl: the captions of a folder of images, in the form of Hugging Face's imagefolder. */
#include <jansson.h>

#include "common/base/base.h"
#include "common/data/dataset_impl.h"
#include "common/data/unicode.h"

#define METADATA_MAX (4ull << 30) /* bytes of the file: as many lines as a folder has files */

static int grow(struct dataset_metadata *m, const char *name, struct err *err)
{
    if (m->n < m->cap)
        return 0;
    if (m->n == DATASET_SAMPLES_MAX)
        return err_set(err, -ERR_LIMIT, "%s names more than %u images", name, DATASET_SAMPLES_MAX);
    const size_t cap = m->cap ? m->cap * 2 : 256;
    struct dataset_line *more = mem_try_realloc_array(m->lines, cap, sizeof(*more));
    if (!more)
        return err_set(err, -ENOMEM, "out of memory while reading %s", name);
    m->lines = more;
    m->cap = cap;
    return 0;
}

static int take_object(struct dataset_metadata *m, struct dataset_captions *c, const json_t *root,
                       size_t number, const char *name, struct err *err)
{
    const json_t *file = json_object_get(root, "file_name");
    if (!json_is_string(file) || json_string_length(file) == 0)
        return err_set(err, -ERR_FORMAT, "%s, line %zu: expected \"file_name\", an image", name,
                       number);
    dataset_captions_clear(c);
    const char *key = "text", *why;
    const json_t *value = dataset_captions_under(root, key);
    if (!value)
        value = dataset_captions_of(root, &key);
    why = dataset_captions_value(c, value);
    if (why)
        return err_set(err, -ERR_FORMAT, "%s, line %zu: \"%s\" %s", name, number, key, why);
    int rc = grow(m, name, err);
    if (rc == 0)
        m->lines[m->n++] = (struct dataset_line){
            .name = str_dup(json_string_value(file)),
            .captions = c->text.len ? str_ndup(buf_str(&c->text), c->text.len) : NULL,
            .len = c->text.len,
            .number = number,
            .cut = c->cut,
        };
    return rc;
}

static int take_line(struct dataset_metadata *m, struct dataset_captions *c, const char *line,
                     size_t len, size_t number, const char *name, struct err *err)
{
    json_error_t fault;
    if (len > DATASET_JSON_MAX)
        return err_set(err, -ERR_LIMIT, "%s, line %zu is longer than %u bytes", name, number,
                       DATASET_JSON_MAX);
    json_t *root = feature_json(line, len, 0, &fault);
    int rc = root ? take_object(m, c, root, number, name, err)
                  : err_set(err, -ERR_FORMAT, "%s, line %zu: %s", name, number, fault.text);
    json_decref(root);
    return rc;
}

static bool is_blank(const char *line, size_t len)
{
    size_t i = 0;
    while (i < len && strchr(" \t\r", line[i]) && line[i])
        i++;
    return i == len;
}

static int by_name(const void *a, const void *b)
{
    const struct dataset_line *x = a, *y = b;
    int order = strcmp(x->name, y->name);
    return order ? order : (x->number > y->number) - (x->number < y->number);
}

static int sort(struct dataset_metadata *m, const char *name, struct err *err)
{
    if (m->n)
        qsort(m->lines, m->n, sizeof(*m->lines), by_name);
    for (size_t i = 1; i < m->n; i++)
        if (strcmp(m->lines[i - 1].name, m->lines[i].name) == 0)
            return err_set(err, -ERR_FORMAT,
                           "%s, line %zu names the image '%s', as line %zu does; write a list as "
                           "\"text\" of one of them",
                           name, m->lines[i].number, m->lines[i].name, m->lines[i - 1].number);
    return 0;
}

int dataset_metadata_parse(struct dataset_metadata *m, const void *data, size_t len,
                           const char *name, struct err *err)
{
    struct dataset_captions c;
    const char *text = data;
    size_t at = unicode_mark(text, len);
    int rc = 0;
    dataset_captions_init(&c);
    for (size_t number = 1; rc == 0 && at < len; number++) {
        const char *line = text + at, *stop = memchr(line, '\n', len - at);
        const size_t n = stop ? (size_t)(stop - line) : len - at;
        if (!is_blank(line, n))
            rc = take_line(m, &c, line, n, number, name, err);
        at += n + 1;
    }
    buf_release(&c.text);
    return rc < 0 ? rc : sort(m, name, err);
}

int dataset_metadata_open(struct dataset_metadata *m, const char *dir, struct err *err)
{
    char *path = file_join(dir, "metadata.jsonl"), *csv = file_join(dir, "metadata.csv");
    struct buf text;
    int rc = 0;
    if (file_exists(path) && (rc = file_read(path, METADATA_MAX, &text, err)) == 0) {
        rc = dataset_metadata_parse(m, text.data, text.len, path, err);
        buf_release(&text);
    } else if (rc == 0 && file_exists(csv)) {
        rc = err_set(err, -ERR_FORMAT,
                     "%s is not read; write its rows to %s, as lines such as {\"file_name\": "
                     "\"1.jpg\", \"text\": \"a red boot\"}",
                     csv, path);
    }
    mem_free(csv);
    mem_free(path);
    return rc;
}

static int compare_name(const void *key, const void *line)
{
    return strcmp(key, ((const struct dataset_line *)line)->name);
}

const struct dataset_line *dataset_metadata_use(struct dataset_metadata *m, const char *name)
{
    struct dataset_line *line =
        m->n ? bsearch(name, m->lines, m->n, sizeof(*line), compare_name) : NULL;
    if (line)
        line->used = true;
    return line;
}

int dataset_metadata_check(const struct dataset_metadata *m, const char *dir, struct err *err)
{
    const struct dataset_line *first = NULL;
    for (size_t i = 0; i < m->n; i++)
        if (!m->lines[i].used && (!first || m->lines[i].number < first->number))
            first = &m->lines[i];
    return first ? err_set(err, -ERR_FORMAT,
                           "%s/metadata.jsonl, line %zu names '%s', but there is no such image "
                           "among those of the dataset",
                           dir, first->number, first->name)
                 : 0;
}

void dataset_metadata_release(struct dataset_metadata *m)
{
    for (size_t i = 0; i < m->n; i++) {
        mem_free(m->lines[i].name);
        mem_free(m->lines[i].captions);
    }
    mem_free(m->lines);
    *m = (struct dataset_metadata){0};
}
