#include "common/data/dataset.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common/data/dataset_internal.h"
#include "common/base/err.h"
#include "common/base/file_pattern.h"
#include "common/base/mem.h"
#include "common/base/str.h"
#include "common/data/tar.h"
#include "common/data/text_source.h"

#define ENTRIES_MAX (16u << 20)
#define TARS_MAX 65536

const char *dataset_sniff(const void *data, size_t len)
{
    if (len >= 3 && memcmp(data, "\xff\xd8\xff", 3) == 0)
        return "jpg";
    if (len >= 8 && memcmp(data, "\x89PNG\r\n\x1a\n", 8) == 0)
        return "png";
    if (len >= 12 && memcmp(data, "RIFF", 4) == 0 &&
        memcmp((const uint8_t *)data + 8, "WEBP", 4) == 0)
        return "webp";
    return NULL;
}

const char *dataset_image_ext(const char *name)
{
    const char *dot = strrchr(name, '.');
    if (!dot)
        return NULL;
    if (strcasecmp(dot, ".jpg") == 0 || strcasecmp(dot, ".jpeg") == 0)
        return "jpg";
    if (strcasecmp(dot, ".png") == 0)
        return "png";
    return strcasecmp(dot, ".webp") == 0 ? "webp" : NULL;
}

static bool is_tar_name(const char *name)
{
    return str_ends(name, ".tar") || str_ends(name, ".tar.gz") || str_ends(name, ".tgz") ||
           str_ends(name, ".tar.zst");
}

static int add_file(struct dataset *ds, size_t *cap, const char *name, uint32_t cls,
                    struct err *err)
{
    if (ds->n_files == DATASET_SAMPLES_MAX)
        return err_set(err, -ERR_LIMIT, "%s has more than %u images", ds->path,
                       DATASET_SAMPLES_MAX);
    if (ds->n_files == *cap) {
        *cap = *cap ? *cap * 2 : 1024;
        struct dataset_file *more = mem_try_realloc_array(ds->files, *cap, sizeof(*more));
        if (!more)
            return err_set(err, -ENOMEM, "out of memory while listing %s", ds->path);
        ds->files = more;
    }
    ds->files[ds->n_files++] = (struct dataset_file){.name = str_dup(name), .cls = cls};
    return 0;
}

/* The images of one class folder; none is an error that names it. */
static int add_class(struct dataset *ds, size_t *cap, const char *dir, const char *name,
                     struct err *err)
{
    struct file_names files;
    uint32_t cls = (uint32_t)ds->classes.n;
    size_t before = ds->n_files;
    int rc = file_list(dir, ENTRIES_MAX, &files, err);
    if (rc < 0)
        return rc;
    for (size_t i = 0; rc == 0 && i < files.n; i++)
        if (dataset_image_ext(files.items[i]))
            rc = add_file(ds, cap, files.items[i], cls, err);
    if (rc == 0 && ds->n_files == before)
        rc = err_set(err, -ERR_FORMAT,
                     "class folder %s has no images (.jpg .jpeg .png .webp): add some, or remove "
                     "the folder",
                     dir);
    file_names_release(&files);
    return rc < 0 ? rc : file_names_add(&ds->classes, DATASET_CLASSES_MAX, str_dup(name), err);
}

static int open_classes(struct dataset *ds, const struct file_names *entries, struct err *err)
{
    size_t cap = 0;
    bool images = false;
    for (size_t i = 0; i < entries->n; i++) {
        char *dir = file_join(ds->path, entries->items[i]);
        images = images || dataset_image_ext(entries->items[i]);
        int rc = file_is_dir(dir) ? add_class(ds, &cap, dir, entries->items[i], err) : 0;
        mem_free(dir);
        if (rc < 0)
            return rc;
    }
    if (ds->classes.n == 0 && images)
        return err_set(err, -ERR_FORMAT,
                       "%s has images but no class folders: put them into one folder per class, "
                       "such as %s/all",
                       ds->path, ds->path);
    if (ds->classes.n == 0)
        return err_set(err, -ERR_FORMAT,
                       "%s holds no dataset: expected a folder per class with images, or .tar "
                       "files",
                       ds->path);
    ds->is_folder = true;
    ds->samples = ds->n_files;
    return 0;
}

/* The path that is no directory: one tar, or a pattern. */
static int find_tars(struct dataset *ds, struct err *err)
{
    if (file_exists(ds->path)) {
        if (!is_tar_name(ds->path))
            return err_set(err, -ERR_FORMAT,
                           "%s is neither a folder nor a tar (.tar .tar.gz .tar.zst)", ds->path);
        return file_names_add(&ds->tars, TARS_MAX, str_dup(ds->path), err);
    }
    int rc = file_pattern(ds->path, TARS_MAX, &ds->tars, err);
    if (rc == -EINVAL)
        rc = err_set(err, -ENOENT, "there is no dataset at %s", ds->path);
    return rc;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

long dataset_label(const struct dataset *ds, const struct gather *g)
{
    uint64_t number;
    if (ds->kind == CLASS_NUMBER)
        return g->kind == CLASS_NUMBER && str_parse_u64(g->label, &number) == 0 &&
                       number < ds->classes.n
                   ? (long)number
                   : -1;
    const char *label = g->label;
    char **hit = ds->classes.n ? bsearch(&label, ds->classes.items, ds->classes.n,
                                         sizeof(*ds->classes.items), by_text)
                               : NULL;
    return hit ? (long)(hit - ds->classes.items) : -1;
}

/* Takes note of the class of a sample while scanning. */
static int note_class(struct dataset *ds, const struct gather *g, struct err *err)
{
    if (!g->has_label)
        return err_set(err, -ERR_FORMAT,
                       "%s: sample '%s' has no class: expected %s.cls, or \"label\" in %s.json",
                       ds->tars.items[ds->at], g->key, g->key, g->key);
    if (ds->kind != CLASS_UNKNOWN && ds->kind != g->kind)
        return err_set(err, -ERR_FORMAT,
                       "%s: sample '%s' has the class '%s'; numbers and texts are mixed",
                       ds->tars.items[ds->at], g->key, g->label);
    ds->kind = g->kind;
    uint64_t number;
    if (g->kind == CLASS_NUMBER) {
        if (str_parse_u64(g->label, &number) < 0 || number >= DATASET_CLASSES_MAX)
            return err_set(err, -ERR_LIMIT, "%s: sample '%s' has class %s, at most %d are possible",
                           ds->tars.items[ds->at], g->key, g->label, DATASET_CLASSES_MAX - 1);
        ds->max_number = number > ds->max_number ? number : ds->max_number;
        return 0;
    }
    if (dataset_label(ds, g) >= 0)
        return 0;
    int rc = file_names_add(&ds->classes, DATASET_CLASSES_MAX, str_dup(g->label), err);
    if (rc == 0)
        qsort(ds->classes.items, ds->classes.n, sizeof(*ds->classes.items), by_text);
    return rc;
}

/* classes.txt beside the first tar, a name a line; absent is fine. */
static int read_class_names(struct dataset *ds, struct file_names *out, struct err *err)
{
    const char *tar = ds->tars.items[0], *slash = strrchr(tar, '/');
    char *path = str_printf("%.*sclasses.txt", slash ? (int)(slash - tar + 1) : 0, tar);
    struct buf text;
    int rc = 0;
    if (file_exists(path)) {
        rc = file_read(path, DATASET_JSON_MAX, &text, err);
        for (char *line = rc < 0 ? NULL : (char *)text.data, *end; rc == 0 && line && *line;
             line = end) {
            size_t n = strcspn(line, "\r\n");
            end = line + n + strspn(line + n, "\r\n");
            size_t kept = n < DATASET_CLASS_NAME_MAX ? n : DATASET_CLASS_NAME_MAX - 1;
            rc = file_names_add(out, DATASET_CLASSES_MAX, str_ndup(line, kept), err);
        }
        buf_release(&text);
    }
    mem_free(path);
    return rc;
}

static int name_numbers(struct dataset *ds, struct err *err)
{
    struct file_names names = {0};
    size_t n = (size_t)ds->max_number + 1;
    int rc = read_class_names(ds, &names, err);
    if (rc == 0 && names.n && names.n < n)
        rc = err_set(err, -ERR_FORMAT,
                     "classes.txt names %zu classes, but a sample has class %llu (from 0)", names.n,
                     (unsigned long long)ds->max_number);
    for (size_t i = names.n; rc == 0 && i < n; i++)
        rc = file_names_add(&names, DATASET_CLASSES_MAX, str_printf("%zu", i), err);
    ds->classes = names;
    return rc;
}

/* One pass over all tars: are they whole, what classes are there, how many
 * samples. */
static int scan_tars(struct dataset *ds, struct err *err)
{
    int rc;
    while ((rc = dataset_gather(ds, err)) > 0) {
        if (!ds->now.has_image)
            continue;
        rc = note_class(ds, &ds->now, err);
        if (rc == 0)
            rc = dataset_check_column(ds, ds->tars.items[ds->at], ds->now.key, err);
        if (rc < 0)
            break;
        if (++ds->samples > DATASET_SAMPLES_MAX)
            return err_set(err, -ERR_LIMIT, "%s has more than %u images", ds->path,
                           DATASET_SAMPLES_MAX);
    }
    if (rc == 0 && ds->samples == 0)
        rc = err_set(err, -ERR_FORMAT, "%s has no images (KEY.jpg KEY.png KEY.webp)", ds->path);
    if (rc == 0 && ds->kind == CLASS_NUMBER)
        rc = name_numbers(ds, err);
    return rc < 0 ? rc : dataset_rewind(ds, err);
}

static int open_directory(struct dataset *ds, struct err *err)
{
    struct file_names entries;
    int rc = file_list(ds->path, ENTRIES_MAX, &entries, err);
    if (rc < 0)
        return rc;
    for (size_t i = 0; rc == 0 && i < entries.n; i++)
        if (is_tar_name(entries.items[i]))
            rc = file_names_add(&ds->tars, TARS_MAX, file_join(ds->path, entries.items[i]), err);
    if (rc == 0 && ds->tars.n == 0)
        rc = open_classes(ds, &entries, err);
    file_names_release(&entries);
    return rc;
}

static int open_images(struct dataset *ds, struct err *err)
{
    int rc = file_is_dir(ds->path) ? open_directory(ds, err) : find_tars(ds, err);
    return rc == 0 && !ds->is_folder ? scan_tars(ds, err) : rc;
}

int dataset_open(const struct dataset_options *opt, struct dataset **ret, struct err *err)
{
    struct dataset *ds = mem_alloc(sizeof(*ds));
    ds->path = str_dup(opt->path);
    ds->column = str_dup(opt->column);
    buf_init(&ds->now.image, DATASET_IMAGE_MAX);
    buf_init(&ds->next.image, DATASET_IMAGE_MAX);
    buf_init(&ds->now.caption, DATASET_CAPTION_MAX);
    buf_init(&ds->next.caption, DATASET_CAPTION_MAX);
    int rc = opt->text ? dataset_open_text(ds, opt, err) : open_images(ds, err);
    if (rc < 0)
        dataset_close(ds);
    else
        *ret = ds;
    return rc;
}

void dataset_close(struct dataset *ds)
{
    if (!ds)
        return;
    tar_close(ds->tar);
    text_source_close(ds->text);
    text_source_close(ds->held_out);
    for (size_t i = 0; i < ds->n_files; i++)
        mem_free(ds->files[i].name);
    mem_free(ds->files);
    file_names_release(&ds->classes);
    file_names_release(&ds->tars);
    buf_release(&ds->now.image);
    buf_release(&ds->next.image);
    buf_release(&ds->now.caption);
    buf_release(&ds->next.caption);
    feature_release(&ds->now.feature);
    feature_release(&ds->next.feature);
    mem_free(ds->column);
    mem_free(ds->path);
    mem_free(ds);
}

size_t dataset_classes(const struct dataset *ds)
{
    return ds->classes.n;
}

const char *dataset_class(const struct dataset *ds, size_t i)
{
    return i < ds->classes.n ? ds->classes.items[i] : "?";
}

uint64_t dataset_samples(const struct dataset *ds)
{
    return ds->samples;
}
