/* The common parts of the sources of images: file names, and the column of an
 * image, in a tar or beside it in a folder. */
#include <strings.h>

#include "common/base/base.h"
#include "common/data/dataset_impl.h"

bool dataset_is_image(const char *name)
{
    const char *dot = strrchr(name, '.');
    const size_t len = dot ? strlen(dot) : 0;
    for (const char *e = DATASET_IMAGES; len > 0 && *e; e += strspn(e, " ")) {
        const size_t n = strcspn(e, " ");
        if (n == len && strncasecmp(dot, e, n) == 0)
            return true;
        e += n;
    }
    return false;
}

int dataset_add_class(struct dataset *ds, char *name, struct err *err)
{
    int rc = file_names_add(&ds->classes, DATASET_CLASSES_MAX, name, err);
    return rc != -ERR_LIMIT
               ? rc
               : err_set(err, rc,
                         "%s has more than %d classes, one for each folder of images or each text "
                         "in KEY.cls: put several into one",
                         ds->name, DATASET_CLASSES_MAX);
}

size_t dataset_tar_stem(const char *name)
{
    static const char *const endings[] = {".tar", ".tar.gz", ".tgz", ".tar.zst"};
    for (size_t i = 0; i < sizeof(endings) / sizeof(endings[0]); i++)
        if (str_ends(name, endings[i]))
            return strlen(name) - strlen(endings[i]);
    return strlen(name);
}

bool dataset_is_tar(const char *name)
{
    return name[dataset_tar_stem(name)] != '\0';
}

void dataset_column_clear(struct dataset_column *c)
{
    c->feature.n = 0;
    c->named = false;
}

int dataset_column_check(const struct dataset *ds, const struct dataset_column *c,
                         const char *where, const char *key, struct err *err)
{
    if (!ds->column || c->feature.n)
        return 0;
    return err_set(err, -ERR_FORMAT,
                   "%s: sample '%s' has no column '%s': expected \"%s\": [numbers] in %s.json, or "
                   "%s.%s.npy",
                   where, key, ds->column, ds->column, key, key, ds->column);
}

int dataset_column_json(const struct dataset *ds, struct dataset_column *c, const json_t *root,
                        const char *key, struct err *err)
{
    const json_t *array = ds->column ? json_object_get(root, ds->column) : NULL;
    const char *why = array ? feature_from_json(array, &c->feature) : NULL;
    c->named = c->named || array;
    return why ? err_set(err, -ERR_FORMAT, "the column '%s' of %s.json %s", ds->column, key, why)
               : 0;
}

bool dataset_column_is_npy(const struct dataset *ds, const struct dataset_column *c,
                           const char *suffix)
{
    size_t n = ds->column ? strlen(ds->column) : 0;
    if (n == 0 || c->named)
        return false;
    return strcmp(suffix, ".npy") == 0 ||
           (strncmp(suffix + 1, ds->column, n) == 0 && strcmp(suffix + 1 + n, ".npy") == 0);
}

int dataset_column_npy(const struct dataset *ds, struct dataset_column *c, const struct buf *npy,
                       const char *key, const char *suffix, struct err *err)
{
    if (!dataset_column_is_npy(ds, c, suffix))
        return 0;
    const char *why = feature_from_npy(npy->data, npy->len, &c->feature);
    c->named = strcmp(suffix, ".npy") != 0;
    return why ? err_set(err, -ERR_FORMAT, "the column '%s': %s%s %s", ds->column, key, suffix, why)
               : 0;
}

/* Reads the column from BASE.json beside an image, if that is there. */
static int json_beside(const struct dataset *ds, struct dataset_column *c, const char *base,
                       struct err *err)
{
    char *path = str_printf("%s.json", base);
    struct buf text;
    int rc = 0;
    if (file_exists(path) && (rc = file_read(path, DATASET_JSON_MAX, &text, err)) == 0) {
        json_error_t fault;
        json_t *root = feature_json(buf_str(&text), text.len, 0, &fault);
        rc = root ? dataset_column_json(ds, c, root, base, err)
                  : err_set(err, -ERR_FORMAT, "%s, line %d: %s", path, fault.line, fault.text);
        json_decref(root);
        buf_release(&text);
    }
    mem_free(path);
    return rc;
}

/* Reads the column from BASE.NAME.npy or BASE.npy beside an image, if that is there. */
static int npy_beside(const struct dataset *ds, struct dataset_column *c, const char *base,
                      const char *suffix, struct err *err)
{
    char *path = str_printf("%s%s", base, suffix);
    struct buf npy;
    int rc = 0;
    if (file_exists(path) && (rc = file_read(path, DATASET_NPY_MAX, &npy, err)) == 0) {
        rc = dataset_column_npy(ds, c, &npy, base, suffix, err);
        buf_release(&npy);
    }
    mem_free(path);
    return rc;
}

static int find_beside(const struct dataset *ds, struct dataset_column *c, const char *base,
                       struct err *err)
{
    char *named = str_printf(".%s.npy", ds->column);
    int rc = json_beside(ds, c, base, err);
    if (rc == 0)
        rc = npy_beside(ds, c, base, named, err);
    if (rc == 0)
        rc = npy_beside(ds, c, base, ".npy", err);
    mem_free(named);
    if (rc == -ERR_LIMIT) /* the code would mean an image that is too large */
        rc = err_set(err, -ERR_FORMAT, "the column '%s' of %s is larger than %u bytes", ds->column,
                     base, DATASET_NPY_MAX);
    return rc;
}

int dataset_column_beside(const struct dataset *ds, struct dataset_column *c, const char *path,
                          struct err *err)
{
    if (!ds->column)
        return 0;
    char *base = str_ndup(path, (size_t)(strrchr(path, '.') - path));
    dataset_column_clear(c);
    int rc = find_beside(ds, c, base, err);
    if (rc == 0)
        rc = dataset_column_check(ds, c, ds->path, base, err);
    mem_free(base);
    return rc;
}
