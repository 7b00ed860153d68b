/* A folder of class folders with images, or of images with captions. */

#include <sys/stat.h>

#include "common/base/base.h"
#include "common/data/dataset_impl.h"

struct image_file {
    char *name; /* inside the class folder */
    uint32_t cls;
    const struct dataset_line *line; /* its line of metadata.jsonl; NULL: none */
};

struct folder {
    struct image_file *files;
    size_t n, cap;
    bool flat;   /* the images lie in the folder itself */
    bool listed; /* there is a metadata.jsonl */
    bool texts;  /* a text lies in a class folder */
    struct dataset_metadata metadata;

    /* Only during a cut. */
    uint32_t *order;
    size_t at, to;
    struct buf image;
    struct dataset_column column;
    struct dataset_captions captions;
    char key[DATASET_KEY_MAX];
};

static int folder_matches(const struct dataset_options *opt, struct err *err)
{
    struct file_names entries;
    int rc;
    if (opt->text || !file_is_dir(opt->path))
        return 0;
    if ((rc = file_list(opt->path, DATASET_ENTRIES_MAX, &entries, err)) < 0)
        return rc;
    bool tars = false;
    for (size_t i = 0; i < entries.n; i++)
        tars = tars || dataset_is_tar(entries.items[i]);
    file_names_release(&entries);
    return !tars;
}

static int add_file(struct dataset *ds, const char *name, uint32_t cls, struct err *err)
{
    struct folder *f = ds->own;
    if (f->n == DATASET_SAMPLES_MAX)
        return err_set(err, -ERR_LIMIT, "%s has more than %u images", ds->path,
                       DATASET_SAMPLES_MAX);
    if (f->n == f->cap) {
        f->cap = f->cap ? f->cap * 2 : 1024;
        struct image_file *more = mem_try_realloc_array(f->files, f->cap, sizeof(*more));
        if (!more)
            return err_set(err, -ENOMEM, "out of memory while listing %s", ds->path);
        f->files = more;
    }
    f->files[f->n++] = (struct image_file){.name = str_dup(name), .cls = cls};
    return 0;
}

static bool is_folder(const char *dir, const char *name)
{
    char *path = file_join(dir, name);
    const bool is = file_is_dir(path);
    mem_free(path);
    return is;
}

/* Counts a file that is left out; captions and columns may be beside images. */
static void note_other(struct dataset_left *left, const char *dir, const char *name)
{
    static const char *const beside[] = {".txt", ".json", ".jsonl", ".npy"};
    for (size_t i = 0; i < sizeof(beside) / sizeof(beside[0]); i++)
        if (str_ends(name, beside[i]))
            return;
    if (dataset_left_note(left, name))
        return;
    if (is_folder(dir, name))
        left->folders++;
    else
        left->others++;
}

static int no_images(const char *dir, const struct dataset_left *left, struct err *err)
{
    char *there = dataset_left_say(left);
    const int rc = err_set(err, -ERR_FORMAT,
                           "class folder %s has no images (" DATASET_IMAGES
                           ")%s%s: add some, or remove the folder",
                           dir, there ? " but " : "", there ? there : "");
    mem_free(there);
    return rc;
}

/* Adds the images of one class folder; having none is an error that names the folder. */
static int add_class(struct dataset *ds, const char *dir, const char *name, struct err *err)
{
    struct folder *f = ds->own;
    struct dataset_left left = {0};
    struct file_names files;
    uint32_t cls = (uint32_t)ds->classes.n;
    size_t before = f->n;
    int rc = file_list(dir, DATASET_ENTRIES_MAX, &files, err);
    if (rc < 0)
        return rc;
    for (size_t i = 0; rc == 0 && i < files.n; i++) {
        if (dataset_is_image(files.items[i]))
            rc = add_file(ds, files.items[i], cls, err);
        else
            note_other(&left, dir, files.items[i]);
        f->texts = f->texts || str_ends(files.items[i], ".txt");
    }
    if (rc == 0 && f->n == before)
        rc = no_images(dir, &left, err);
    dataset_left_add(&ds->left, &left);
    file_names_release(&files);
    return rc < 0 ? rc : dataset_add_class(ds, str_dup(name), err);
}

static int no_dataset(const struct dataset *ds, const struct file_names *entries, struct err *err)
{
    struct dataset_left left = {0};
    for (size_t i = 0; i < entries->n; i++)
        (void)dataset_left_note(&left, entries->items[i]);
    char *there = dataset_left_say(&left);
    const int rc = err_set(
        err, -ERR_FORMAT,
        "%s holds no dataset%s%s: expected %s (" DATASET_IMAGES "), or .tar files", ds->path,
        there ? " but " : "", there ? there : "",
        ds->captions ? "images with captions beside them" : "a folder per class with images");
    mem_free(there);
    return rc;
}

static int add_classes(struct dataset *ds, const struct file_names *entries, struct err *err)
{
    uint64_t images = 0;
    for (size_t i = 0; i < entries->n; i++) {
        char *dir = file_join(ds->path, entries->items[i]);
        images += dataset_is_image(entries->items[i]);
        int rc = file_is_dir(dir) ? add_class(ds, dir, entries->items[i], err) : 0;
        mem_free(dir);
        if (rc < 0)
            return rc;
    }
    ds->left.beside = ds->classes.n > 0 ? images : 0;
    if (ds->classes.n == 0 && images && ds->captions) {
        struct folder *f = ds->own;
        f->flat = true;
        return add_class(ds, ds->path, DATASET_ALL, err);
    }
    if (ds->classes.n == 0 && images)
        return err_set(err, -ERR_FORMAT,
                       "%s has images but no class folders: put them into one folder per class, "
                       "such as %s/all, or train on captions beside them (`skerry new` with "
                       "--captions and --encoders; in a job file, `encoders`)",
                       ds->path, ds->path);
    return ds->classes.n == 0 ? no_dataset(ds, entries, err) : 0;
}

/* "cat/1.jpg", or "1.jpg"; mem_free. */
static char *file_name(const struct dataset *ds, const struct image_file *file)
{
    const struct folder *f = ds->own;
    return f->flat ? str_dup(file->name) : file_join(ds->classes.items[file->cls], file->name);
}

/* An error if a metadata.jsonl has no text, or lies in a class folder. */
static int miss_captions(const struct dataset *ds, struct err *err)
{
    const struct folder *f = ds->own;
    if (f->listed)
        return err_set(err, -ERR_FORMAT,
                       "%s/metadata.jsonl has no captions: none of its lines has a \"text\" or "
                       "\"caption\", which is a caption or a list of captions",
                       ds->path);
    for (size_t i = 0; i < ds->classes.n && !f->flat; i++) {
        char *dir = file_join(ds->path, ds->classes.items[i]);
        char *path = file_join(dir, "metadata.jsonl");
        const int rc = !file_exists(path)
                           ? 0
                           : err_set(err, -ERR_FORMAT,
                                     "%s is not read, since %s is a class folder of the dataset: "
                                     "name that folder as the dataset",
                                     path, dir);
        mem_free(path);
        mem_free(dir);
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* Is there a text beside one of the images? */
static bool has_texts(const struct dataset *ds)
{
    const struct folder *f = ds->own;
    bool ret = false;
    for (size_t i = 0; i < f->n && f->texts && !ret; i++) {
        char *name = file_name(ds, &f->files[i]), *path = file_join(ds->path, name);
        char *txt = dataset_captions_path(path);
        ret = file_exists(txt);
        mem_free(txt);
        mem_free(path);
        mem_free(name);
    }
    return ret;
}

/* Looks for captions that nobody has asked for; whatever is wrong with them is no error. */
static void notice_captions(struct dataset *ds)
{
    struct dataset_metadata m = {0};
    ds->any_captions = has_texts(ds);
    if (!ds->any_captions && dataset_metadata_open(&m, ds->path, NULL) == 0)
        for (size_t i = 0; i < m.n && !ds->any_captions; i++)
            ds->any_captions = m.lines[i].captions != NULL;
    dataset_metadata_release(&m);
}

/* Assigns the lines of metadata.jsonl to images; without it looks for texts beside images. */
static int find_captions(struct dataset *ds, struct err *err)
{
    struct folder *f = ds->own;
    char beside[DATASET_BESIDE_MAX];
    int rc = dataset_metadata_open(&f->metadata, ds->path, err);
    f->listed = f->metadata.n > 0;
    for (size_t i = 0; rc == 0 && f->listed && i < f->n; i++) {
        char *name = file_name(ds, &f->files[i]);
        f->files[i].line = dataset_metadata_use(&f->metadata, name);
        if (f->files[i].line && f->files[i].line->captions)
            ds->any_captions = true;
        mem_free(name);
    }
    if (rc == 0 && !f->listed)
        ds->any_captions = has_texts(ds);
    if (rc == 0 && (rc = dataset_metadata_check(&f->metadata, ds->path, err)) < 0 && err)
        (void)err_set(err, rc, "%s%s", err->msg, dataset_left_beside(&ds->left, beside));
    return rc == 0 && !ds->any_captions ? miss_captions(ds, err) : rc;
}

static int folder_open(struct dataset *ds, const struct dataset_options *opt, struct err *err)
{
    struct folder *f = ds->own = mem_alloc(sizeof(*f));
    struct file_names entries;
    buf_init(&f->image, DATASET_IMAGE_MAX);
    dataset_captions_init(&f->captions);
    int rc = file_list(ds->path, DATASET_ENTRIES_MAX, &entries, err);
    if (rc < 0)
        return rc;
    rc = add_classes(ds, &entries, err);
    file_names_release(&entries);
    ds->samples = f->n;
    if (rc == 0 && ds->captions)
        rc = find_captions(ds, err);
    else if (rc == 0)
        notice_captions(ds);
    return rc;
}

static void folder_close(struct dataset *ds)
{
    struct folder *f = ds->own;
    if (!f)
        return;
    for (size_t i = 0; i < f->n; i++)
        mem_free(f->files[i].name);
    mem_free(f->files);
    mem_free(f->order);
    buf_release(&f->image);
    feature_release(&f->column.feature);
    buf_release(&f->captions.text);
    dataset_metadata_release(&f->metadata);
    mem_free(f);
}

/* Reads the captions of an image. */
static int take_captions(struct dataset *ds, const struct image_file *file, const char *path,
                         struct dataset_image *m, struct err *err)
{
    struct folder *f = ds->own;
    const struct dataset_line *line = file->line;
    int rc = ds->captions && !f->listed ? dataset_captions_beside(&f->captions, path, err) : 0;
    if (line) {
        m->captions = line->captions;
        m->captions_len = line->len;
        m->captions_cut = line->cut;
    } else if (f->captions.text.len) {
        m->captions = (char *)f->captions.text.data;
        m->captions_len = f->captions.text.len;
        m->captions_cut = f->captions.cut;
    }
    m->captions_not_utf8 = !line && f->captions.not_utf8;
    return rc;
}

/* True for a regular file: neither a folder nor a pipe, which would block. */
static bool is_file(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

static int next_file(struct dataset *ds, struct dataset_image *ret, struct err *err)
{
    struct folder *f = ds->own;
    if (f->at == f->to)
        return 0;
    const struct image_file *file = &f->files[f->order[f->at++]];
    char *name = file_name(ds, file), *path = file_join(ds->path, name);
    *ret = (struct dataset_image){.key = f->key, .cls = file->cls};
    (void)str_copy(f->key, sizeof(f->key), name); /* for people */
    mem_free(name);
    buf_release(&f->image);
    int rc = dataset_column_beside(ds, &f->column, path, err);
    if (rc == 0)
        rc = take_captions(ds, file, path, ret, err);
    if (rc == 0 && !is_file(path))
        ret->fault = "no file, or a link that leads to none";
    else if (rc == 0)
        rc = file_read(path, DATASET_IMAGE_MAX, &f->image, err);
    mem_free(path);
    if (rc == -ERR_LIMIT)
        ret->fault = DATASET_TOO_LARGE;
    else if (rc < 0)
        return rc;
    ret->data = f->image.data;
    ret->len = f->image.len;
    ret->feature = ds->column ? f->column.feature.v : NULL;
    ret->dim = ds->column ? f->column.feature.n : 0;
    return 1;
}

/* The error for a class without a readable image; names the first of its files. */
static int refuse_class(const struct cutter *c, const struct dataset *ds, size_t cls)
{
    const struct dataset_report *r = &c->report;
    const char *name = ds->classes.items[cls];
    const size_t len = strlen(name);
    size_t i = 0;
    while (i < DATASET_BAD_NAMED && r->bad[i] &&
           (strncmp(r->bad[i], name, len) != 0 || r->bad[i][len] != '/'))
        i++;
    const bool known = i < DATASET_BAD_NAMED && r->bad[i];
    return err_set(c->err, -ERR_FORMAT, "class '%s' of %s has no image that can be read%s%s%s%s",
                   name, ds->path, known ? "; the first bad file is " : "", known ? r->bad[i] : "",
                   known ? ": " : "", known ? r->bad_why[i] : "");
}

/* Cuts every file once, or as many as are asked for, in a global shuffle. */
static int folder_cut(struct cutter *c, struct dataset *ds)
{
    struct folder *f = ds->own;
    const uint64_t most = c->opt->most;
    f->at = 0;
    f->to = most && most < f->n ? (size_t)most : f->n;
    mem_free(f->order);
    f->order = cut_order(c, f->n);
    if (!f->order)
        return err_set(c->err, -ENOMEM, "out of memory while shuffling %s", ds->path);
    int rc = cut_images(c, ds, next_file, true);
    for (size_t i = 0; rc == 0 && f->to == f->n && i < c->report.classes; i++)
        if (c->report.counts[i] == 0)
            rc = refuse_class(c, ds, i);
    return rc;
}

const struct dataset_source dataset_folder = {
    .matches = folder_matches,
    .open = folder_open,
    .close = folder_close,
    .cut = folder_cut,
    .reads = "only files " DATASET_IMAGES " are read, in one folder for each class",
    .reads_captioned = "only files " DATASET_IMAGES " are read, with captions beside them",
};
