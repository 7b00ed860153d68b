/* Iterating a dataset: files of a folder, or the members of tars gathered by
 * key. */
#include "common/data/dataset.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "common/data/dataset_internal.h"
#include "common/base/err.h"
#include "common/base/mem.h"
#include "common/base/str.h"
#include "common/data/tar.h"

int dataset_check_column(const struct dataset *ds, const char *where, const char *key,
                         struct err *err)
{
    if (!ds->column || ds->now.feature.n)
        return 0;
    return err_set(err, -ERR_FORMAT,
                   "%s: sample '%s' has no column '%s': expected \"%s\": [numbers] in %s.json, or "
                   "%s.%s.npy",
                   where, key, ds->column, ds->column, key, key, ds->column);
}

/* The array of the column's name, if the sample's JSON has one. */
static int column_of_json(const struct dataset *ds, struct gather *g, const json_t *root,
                          const char *key, struct err *err)
{
    const json_t *array = ds->column ? json_object_get(root, ds->column) : NULL;
    const char *why = array ? feature_from_json(array, &g->feature) : NULL;
    g->feature_named = array != NULL;
    return why ? err_set(err, -ERR_FORMAT, "the column '%s' of %s.json %s", ds->column, key, why)
               : 0;
}

/* Whether KEY.suffix holds the column: ".NAME.npy", or ".npy" if nothing has the name. */
static bool is_column(const struct dataset *ds, const struct gather *g, const char *suffix)
{
    size_t n = ds->column ? strlen(ds->column) : 0;
    if (n == 0 || g->feature_named)
        return false;
    return strcmp(suffix, ".npy") == 0 ||
           (strncmp(suffix + 1, ds->column, n) == 0 && strcmp(suffix + 1 + n, ".npy") == 0);
}

static int column_of_npy(const struct dataset *ds, struct gather *g, const struct buf *npy,
                         const char *key, const char *suffix, struct err *err)
{
    if (!is_column(ds, g, suffix))
        return 0;
    const char *why = feature_from_npy(npy->data, npy->len, &g->feature);
    g->feature_named = strcmp(suffix, ".npy") != 0;
    return why ? err_set(err, -ERR_FORMAT, "the column '%s': %s%s %s", ds->column, key, suffix, why)
               : 0;
}

/* BASE.json beside an image, if it is there. */
static int json_beside(struct dataset *ds, const char *base, struct err *err)
{
    char *path = str_printf("%s.json", base);
    struct buf text;
    int rc = 0;
    if (file_exists(path) && (rc = file_read(path, DATASET_JSON_MAX, &text, err)) == 0) {
        json_error_t fault;
        json_t *root = json_loadb(buf_str(&text), text.len, 0, &fault);
        rc = root ? column_of_json(ds, &ds->now, root, base, err)
                  : err_set(err, -ERR_FORMAT, "%s, line %d: %s", path, fault.line, fault.text);
        json_decref(root);
        buf_release(&text);
    }
    mem_free(path);
    return rc;
}

/* BASE.NAME.npy or BASE.npy beside an image, if it is there. */
static int npy_beside(struct dataset *ds, const char *base, const char *suffix, struct err *err)
{
    char *path = str_printf("%s%s", base, suffix);
    struct buf npy;
    int rc = 0;
    if (file_exists(path) && (rc = file_read(path, DATASET_NPY_MAX, &npy, err)) == 0) {
        rc = column_of_npy(ds, &ds->now, &npy, base, suffix, err);
        buf_release(&npy);
    }
    mem_free(path);
    return rc;
}

static int column_beside(struct dataset *ds, const char *base, struct err *err)
{
    char *named = str_printf(".%s.npy", ds->column);
    int rc = json_beside(ds, base, err);
    if (rc == 0)
        rc = npy_beside(ds, base, named, err);
    if (rc == 0)
        rc = npy_beside(ds, base, ".npy", err);
    mem_free(named);
    if (rc == -ERR_LIMIT) /* which would pass for an image that is too large */
        rc = err_set(err, -ERR_FORMAT, "the column '%s' of %s is larger than %u bytes", ds->column,
                     base, DATASET_NPY_MAX);
    return rc;
}

/* The column of the image file at `path`. */
static int read_column(struct dataset *ds, const char *path, struct err *err)
{
    if (!ds->column)
        return 0;
    char *base = str_ndup(path, (size_t)(strrchr(path, '.') - path));
    ds->now.feature.n = 0;
    ds->now.feature_named = false;
    int rc = column_beside(ds, base, err);
    if (rc == 0)
        rc = dataset_check_column(ds, ds->path, base, err);
    mem_free(base);
    return rc;
}

int dataset_read_file(struct dataset *ds, size_t n, struct dataset_sample *ret, struct err *err)
{
    const struct dataset_file *f = &ds->files[n];
    const char *cls = ds->classes.items[f->cls];
    char *path = str_printf("%s/%s/%s", ds->path, cls, f->name);
    buf_release(&ds->now.image);
    int rc = read_column(ds, path, err);
    if (rc == 0)
        rc = file_read(path, DATASET_IMAGE_MAX, &ds->now.image, err);
    mem_free(path);
    if (rc < 0)
        return rc;
    (void)snprintf(ds->key, sizeof(ds->key), "%s/%s", cls, f->name); /* for people */
    *ret = (struct dataset_sample){
        .key = ds->key,
        .cls = f->cls,
        .ext = dataset_sniff(ds->now.image.data, ds->now.image.len),
        .data = ds->now.image.data,
        .len = ds->now.image.len,
        .feature = ds->column ? ds->now.feature.v : NULL,
        .dim = ds->column ? ds->now.feature.n : 0,
    };
    return 0;
}

static void gather_clear(struct gather *g)
{
    buf_clear(&g->image);
    buf_clear(&g->caption);
    g->key[0] = g->label[0] = '\0';
    g->has_image = g->has_label = false;
    g->kind = CLASS_UNKNOWN;
    g->feature.n = 0;
    g->feature_named = false;
}

/* A class as text: trimmed; a number if it reads as one. */
static void set_label(struct gather *g, const char *text)
{
    uint64_t number;
    text += strspn(text, " \t\r\n");
    size_t n = strlen(text);
    while (n && strchr(" \t\r\n", text[n - 1]))
        n--;
    if (n >= sizeof(g->label))
        n = sizeof(g->label) - 1;
    if (n == 0)
        return;
    memcpy(g->label, text, n);
    g->label[n] = '\0';
    g->has_label = true;
    g->kind = strncmp(g->label, "0x", 2) != 0 && str_parse_u64(g->label, &number) == 0
                  ? CLASS_NUMBER
                  : CLASS_TEXT;
}

static int take_json(const struct dataset *ds, struct gather *g, const struct buf *text,
                     struct err *err)
{
    json_error_t fault;
    json_t *root = json_loadb(buf_str(text), text->len, 0, &fault);
    if (!root)
        return err_set(err, -ERR_FORMAT, "%s.json, line %d: %s", g->key, fault.line, fault.text);
    const json_t *label = json_object_get(root, "label");
    const char *caption = json_string_value(json_object_get(root, "caption"));
    char number[32];
    if (json_is_integer(label) && !g->has_label) {
        (void)snprintf(number, sizeof(number), "%lld", (long long)json_integer_value(label));
        set_label(g, number);
    } else if (json_is_string(label) && !g->has_label) {
        set_label(g, json_string_value(label));
    }
    int rc = 0;
    if (caption && g->caption.len == 0 && strlen(caption) <= DATASET_CAPTION_MAX)
        rc = buf_append_str(&g->caption, caption);
    rc = rc < 0 ? err_set(err, rc, "no room for the caption of %s", g->key)
                : column_of_json(ds, g, root, g->key, err);
    json_decref(root);
    return rc;
}

/* A member of the current key; members of other kinds are passed over. */
static int take_member(struct dataset *ds, struct gather *g, const char *suffix, struct err *err)
{
    const char *ext = strrchr(suffix, '.');
    if (dataset_image_ext(ext)) {
        if (g->has_image)
            return err_set(err, -ERR_FORMAT, "%s: sample '%s' has two images",
                           ds->tars.items[ds->at], g->key);
        g->has_image = true;
        return tar_read(ds->tar, &g->image, err);
    }
    if (strcmp(ext, ".txt") == 0)
        return tar_read(ds->tar, &g->caption, err);
    bool json = strcmp(ext, ".json") == 0, npy = is_column(ds, g, suffix);
    if (!json && !npy && strcmp(ext, ".cls") != 0)
        return 0;
    struct buf text;
    buf_init(&text, json ? DATASET_JSON_MAX : npy ? DATASET_NPY_MAX : DATASET_CLASS_NAME_MAX);
    int rc = tar_read(ds->tar, &text, err);
    if (rc == 0 && npy)
        rc = column_of_npy(ds, g, &text, g->key, suffix, err);
    else if (rc == 0 && json)
        rc = take_json(ds, g, &text, err);
    else if (rc == 0)
        set_label(g, buf_str(&text));
    buf_release(&text);
    return rc;
}

/* WebDataset: the key ends at the first dot of the last component.  Returns the
 * rest, from that dot. */
static const char *split_key(const char *name, char *key, size_t size)
{
    const char *slash = strrchr(name, '/'), *base = slash ? slash + 1 : name;
    const char *dot = strchr(base, '.');
    if (!dot || dot == base || (size_t)(dot - name) >= size)
        return NULL;
    memcpy(key, name, (size_t)(dot - name));
    key[dot - name] = '\0';
    return dot;
}

/* Next member into `now`, or into `next` when it starts another key.  1: `now`
 * is complete; 0: go on; -ENODATA: end of this tar. */
static int next_member(struct dataset *ds, struct err *err)
{
    struct tar_entry entry;
    char key[sizeof(ds->now.key)];
    int rc = tar_next(ds->tar, &entry, err);
    if (rc <= 0)
        return rc < 0 ? rc : -ENODATA;
    const char *suffix = split_key(entry.name, key, sizeof(key));
    if (!suffix)
        return 0;
    struct gather *g = &ds->now;
    bool other = *g->key && strcmp(g->key, key) != 0;
    if (other) {
        g = &ds->next;
        gather_clear(g);
        ds->pending = true;
    }
    (void)str_copy(g->key, sizeof(g->key), key);
    rc = take_member(ds, g, suffix, err);
    return rc < 0 ? rc : other ? 1 : 0;
}

/* 1 with a key in `now`, 0 at the end of the tar. */
static int gather_in_tar(struct dataset *ds, struct err *err)
{
    gather_clear(&ds->now);
    if (ds->pending) {
        struct gather swap = ds->now;
        ds->now = ds->next;
        ds->next = swap;
        ds->pending = false;
    }
    for (;;) {
        int rc = next_member(ds, err);
        if (rc == -ENODATA)
            return *ds->now.key ? 1 : 0;
        if (rc != 0)
            return rc;
    }
}

int dataset_gather(struct dataset *ds, struct err *err)
{
    for (; ds->at < ds->tars.n; ds->at++) {
        int rc = ds->tar ? 0 : tar_open(ds->tars.items[ds->at], &ds->tar, err);
        if (rc == 0)
            rc = gather_in_tar(ds, err);
        if (rc != 0)
            return rc;
        tar_close(ds->tar);
        ds->tar = NULL;
    }
    return 0;
}

/* "part-000/key": the tar's name without folder and endings. */
static void tar_key(struct dataset *ds)
{
    const char *path = ds->tars.items[ds->at], *slash = strrchr(path, '/');
    const char *base = slash ? slash + 1 : path;
    (void)snprintf(ds->key, sizeof(ds->key), "%.*s/%s", (int)strcspn(base, "."), base,
                   ds->now.key); /* for people */
}

int dataset_next(struct dataset *ds, struct dataset_sample *ret, struct err *err)
{
    if (ds->is_folder) {
        if (ds->at == ds->n_files)
            return 0;
        int rc = dataset_read_file(ds, ds->at++, ret, err);
        return rc < 0 ? rc : 1;
    }
    for (;;) {
        int rc = dataset_gather(ds, err);
        if (rc <= 0)
            return rc;
        if (!ds->now.has_image)
            continue;
        tar_key(ds);
        long cls = dataset_label(ds, &ds->now);
        if (cls < 0)
            return err_set(err, -ERR_STALE, "%s changed while it was read", ds->path);
        *ret = (struct dataset_sample){
            .key = ds->key,
            .cls = (uint32_t)cls,
            .ext = dataset_sniff(ds->now.image.data, ds->now.image.len),
            .data = ds->now.image.data,
            .len = ds->now.image.len,
            .caption = ds->now.caption.len ? buf_str(&ds->now.caption) : NULL,
            .feature = ds->column ? ds->now.feature.v : NULL,
            .dim = ds->column ? ds->now.feature.n : 0,
        };
        return 1;
    }
}

int dataset_rewind(struct dataset *ds, struct err *err)
{
    (void)err; /* nothing can fail today; readers of remote data will */
    tar_close(ds->tar);
    ds->tar = NULL;
    ds->at = 0;
    ds->pending = false;
    gather_clear(&ds->now);
    gather_clear(&ds->next);
    return 0;
}
