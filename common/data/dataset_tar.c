/* WebDataset tars: the members with one key make a sample. */
#include <jansson.h>
#include <strings.h>

#include "common/base/base.h"
#include "common/data/dataset_impl.h"
#include "common/data/tar.h"
#include "common/data/unicode.h"

#define TARS_MAX 65536
#define CLASS_NAME_MAX 256

/* The form of classes in tars. */
enum class_kind { CLASS_UNKNOWN, CLASS_NUMBER, CLASS_TEXT, CLASS_NONE };

/* The members of one key. */
struct gather {
    char key[1024];
    struct buf image;
    char label[CLASS_NAME_MAX]; /* "": none yet */
    bool has_image, too_large;  /* too_large: the sample is skipped */
    enum class_kind kind;
    struct dataset_column column;
    struct dataset_captions captions;
    bool captioned; /* it seems to have some, which are not read */
};

struct tars {
    struct file_names names; /* full paths */
    enum class_kind kind;
    uint64_t max_number; /* CLASS_NUMBER */

    size_t at; /* the tar being read */
    struct tar *tar;
    bool pending;         /* `next` holds the first member of the following key */
    uint64_t taken, most; /* images of this tar; when to go to the next one, 0: at its end */
    struct gather now, next;
    char key[DATASET_KEY_MAX];
};

static int tars_matches(const struct dataset_options *opt, struct err *err)
{
    return 1; /* the last of the table */
}

/* The name of the tar for messages; for a downloaded copy that of its source. */
static const char *tar_name(const struct dataset *ds)
{
    const struct tars *t = ds->own;
    return strcmp(ds->name, ds->path) != 0 ? ds->name : t->names.items[t->at];
}

/* ---- gathering the members of a key ---- */

static void gather_clear(struct gather *g)
{
    buf_clear(&g->image);
    g->key[0] = g->label[0] = '\0';
    g->has_image = g->too_large = g->captioned = false;
    g->kind = CLASS_UNKNOWN;
    dataset_column_clear(&g->column);
    dataset_captions_clear(&g->captions);
}

static void gather_release(struct gather *g)
{
    buf_release(&g->image);
    feature_release(&g->column.feature);
    buf_release(&g->captions.text);
}

/* Takes a class as text, trimmed; it becomes a number if it is one. */
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
    g->kind = strncmp(g->label, "0x", 2) != 0 && str_parse_u64(g->label, &number) == 0
                  ? CLASS_NUMBER
                  : CLASS_TEXT;
}

static int take_json(const struct dataset *ds, struct gather *g, const struct buf *text,
                     struct err *err)
{
    json_error_t fault;
    json_t *root = feature_json(buf_str(text), text->len, 0, &fault);
    if (!root)
        return err_set(err, -ERR_FORMAT, "%s.json, line %d: %s", g->key, fault.line, fault.text);
    const json_t *label = json_object_get(root, "label");
    const double value = json_number_value(label);
    char number[32];
    if (json_is_number(label) && value == floor(value) && !*g->label) {
        (void)snprintf(number, sizeof(number), "%.0f", value);
        set_label(g, number);
    } else if (json_is_string(label) && !*g->label) {
        set_label(g, json_string_value(label));
    }
    int rc = dataset_column_json(ds, &g->column, root, g->key, err);
    if (rc == 0 && ds->captions)
        rc = dataset_captions_json(&g->captions, root, g->key, err);
    else
        g->captioned = g->captioned || dataset_captions_in(root);
    json_decref(root);
    return rc;
}

/* Takes a member of the current key; ignores members of other kinds. */
static int take_member(struct dataset *ds, struct gather *g, const char *suffix, uint64_t bytes,
                       struct err *err)
{
    const struct tars *t = ds->own;
    const char *ext = strrchr(suffix, '.');
    if (dataset_is_image(ext)) {
        if (g->has_image)
            return err_set(err, -ERR_FORMAT, "%s: sample '%s' has two images", tar_name(ds),
                           g->key);
        g->has_image = true;
        g->too_large = bytes > DATASET_IMAGE_MAX;
        return g->too_large ? 0 : tar_read(t->tar, &g->image, err);
    }
    bool json = strcasecmp(ext, ".json") == 0, npy = dataset_column_is_npy(ds, &g->column, suffix);
    bool txt = strcasecmp(suffix, ".txt") == 0;
    g->captioned = g->captioned || txt;
    txt = txt && ds->captions;
    if (!json && !npy && !txt && strcasecmp(ext, ".cls") != 0) {
        (void)dataset_left_note(&ds->left, ext);
        return 0;
    }
    struct buf text;
    buf_init(&text, json || txt ? DATASET_JSON_MAX : npy ? DATASET_NPY_MAX : CLASS_NAME_MAX);
    int rc = tar_read(t->tar, &text, err);
    const bool read = rc == 0;
    if (read && npy)
        rc = dataset_column_npy(ds, &g->column, &text, g->key, suffix, err);
    else if (read && json)
        rc = take_json(ds, g, &text, err);
    else if (read && txt)
        rc = dataset_captions_txt(&g->captions, &text, g->key, err);
    else if (read)
        set_label(g, buf_str(&text));
    buf_release(&text);
    return read && rc < 0 ? err_wrap(err, "%s", tar_name(ds)) : rc;
}

/* Splits off the key, which ends at the first dot of the last component.  Returns the
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

/* Reads the next member into `now`, or into `next` if it starts another key.  1: `now`
 * is complete; 0: go on; -ENODATA: end of this tar. */
static int next_member(struct dataset *ds, struct err *err)
{
    struct tars *t = ds->own;
    struct tar_entry entry;
    char key[sizeof(t->now.key)];
    int rc = tar_next(t->tar, &entry, err);
    if (rc <= 0)
        return rc < 0 ? rc : -ENODATA;
    const char *suffix = split_key(entry.name, key, sizeof(key));
    if (!suffix)
        return 0;
    struct gather *g = &t->now;
    bool other = *g->key && strcmp(g->key, key) != 0;
    if (other) {
        g = &t->next;
        gather_clear(g);
        t->pending = true;
    }
    (void)str_copy(g->key, sizeof(g->key), key);
    rc = take_member(ds, g, suffix, entry.size, err);
    return rc < 0 ? rc : other ? 1 : 0;
}

/* 1 with a key in `now`, 0 at the end of the tar. */
static int gather_in_tar(struct dataset *ds, struct err *err)
{
    struct tars *t = ds->own;
    gather_clear(&t->now);
    if (t->pending) {
        struct gather swap = t->now;
        t->now = t->next;
        t->next = swap;
        t->pending = false;
    }
    for (;;) {
        int rc = next_member(ds, err);
        if (rc == -ENODATA)
            return *t->now.key ? 1 : 0;
        if (rc != 0)
            return rc;
    }
}

static void leave_tar(struct tars *t)
{
    tar_close(t->tar);
    t->tar = NULL;
    t->pending = false;
    t->taken = 0;
}

/* The next key of all tars into `now`: 1, 0 at the end. */
static int gather_next(struct dataset *ds, struct err *err)
{
    struct tars *t = ds->own;
    for (; t->at < t->names.n; t->at++) {
        int rc = t->tar ? 0 : tar_open(t->names.items[t->at], &t->tar, err);
        if (rc == 0)
            rc = gather_in_tar(ds, err);
        if (rc != 0)
            return rc;
        leave_tar(t);
    }
    return 0;
}

static void rewind_tars(struct tars *t)
{
    leave_tar(t);
    t->at = 0;
    gather_clear(&t->now);
    gather_clear(&t->next);
}

/* ---- classes ---- */

/* Index of a label in the classes, -1 if none. */
static long find_class(const struct dataset *ds, const struct gather *g)
{
    const struct tars *t = ds->own;
    uint64_t number;
    if (t->kind == CLASS_NONE)
        return *g->label ? -1 : 0;
    if (t->kind == CLASS_NUMBER)
        return g->kind == CLASS_NUMBER && str_parse_u64(g->label, &number) == 0 &&
                       number < ds->classes.n
                   ? (long)number
                   : -1;
    const char *label = g->label;
    char **hit = ds->classes.n ? bsearch(&label, ds->classes.items, ds->classes.n,
                                         sizeof(*ds->classes.items), str_order)
                               : NULL;
    return hit ? (long)(hit - ds->classes.items) : -1;
}

/* Adds the class of a sample during the scan. */
static int note_class(struct dataset *ds, const struct gather *g, struct err *err)
{
    struct tars *t = ds->own;
    if (!*g->label && ds->captions && (t->kind == CLASS_UNKNOWN || t->kind == CLASS_NONE)) {
        t->kind = CLASS_NONE;
        return ds->classes.n ? 0 : dataset_add_class(ds, str_dup(DATASET_ALL), err);
    }
    if (!*g->label)
        return err_set(err, -ERR_FORMAT,
                       "%s: sample '%s' has no class: expected %s.cls, or \"label\" in %s.json",
                       tar_name(ds), g->key, g->key, g->key);
    if (t->kind != CLASS_UNKNOWN && t->kind != g->kind)
        return err_set(err, -ERR_FORMAT, "%s: sample '%s' has the class '%s'; %s", tar_name(ds),
                       g->key, g->label,
                       t->kind == CLASS_NONE ? "the samples before it have none"
                                             : "numbers and texts are mixed");
    t->kind = g->kind;
    uint64_t number;
    if (g->kind == CLASS_NUMBER) {
        if (str_parse_u64(g->label, &number) < 0 || number >= DATASET_CLASSES_MAX)
            return err_set(err, -ERR_LIMIT, "%s: sample '%s' has class %s, at most %d are possible",
                           tar_name(ds), g->key, g->label, DATASET_CLASSES_MAX - 1);
        t->max_number = number > t->max_number ? number : t->max_number;
        return 0;
    }
    if (find_class(ds, g) >= 0)
        return 0;
    int rc = dataset_add_class(ds, str_dup(g->label), err);
    if (rc == 0)
        qsort(ds->classes.items, ds->classes.n, sizeof(*ds->classes.items), str_order);
    return rc;
}

/* Adds the lines as names; a blank one has its number in place of a name. */
static int split_names(const char *text, struct file_names *out, struct err *err)
{
    size_t len = strlen(text);
    int rc = 0;
    while (len && strchr("\r\n", text[len - 1]))
        len--;
    for (const char *line = text, *end; rc == 0 && line < text + len; line = end) {
        const size_t n = strcspn(line, "\r\n"), kept = n < CLASS_NAME_MAX ? n : CLASS_NAME_MAX - 1;
        end = line + n + (strncmp(line + n, "\r\n", 2) == 0 ? 2 : 1);
        rc = file_names_add(out, DATASET_CLASSES_MAX,
                            n > 0 ? str_ndup(line, kept) : str_printf("%zu", out->n), err);
    }
    return rc;
}

/* Reads classes.txt beside the first tar, one name per line, if it is there. */
static int read_class_names(const struct tars *t, struct file_names *out, struct err *err)
{
    const char *tar = t->names.items[0], *slash = strrchr(tar, '/');
    char *path = str_printf("%.*sclasses.txt", slash ? (int)(slash - tar + 1) : 0, tar);
    struct buf text;
    int rc = 0;
    if (file_exists(path) && (rc = file_read(path, DATASET_JSON_MAX, &text, err)) == 0) {
        const char *names = buf_str(&text);
        rc = split_names(names + unicode_mark(names, text.len), out, err);
        buf_release(&text);
        if (rc < 0)
            (void)err_wrap(err, "%s, whose lines name the classes", path);
    }
    mem_free(path);
    return rc;
}

static int name_numbers(struct dataset *ds, struct err *err)
{
    const struct tars *t = ds->own;
    struct file_names names = {0};
    size_t n = (size_t)t->max_number + 1;
    int rc = read_class_names(t, &names, err);
    if (rc == 0 && names.n && names.n < n)
        rc = err_set(err, -ERR_FORMAT,
                     "classes.txt names %zu classes, but a sample has class %llu (from 0)", names.n,
                     (unsigned long long)t->max_number);
    for (size_t i = names.n; rc == 0 && i < n; i++)
        rc = file_names_add(&names, DATASET_CLASSES_MAX, str_printf("%zu", i), err);
    ds->classes = names;
    return rc;
}

/* ---- opening ---- */

/* One pass over all tars: checks that they are whole, and finds the classes and the number
 * of samples. */
static int scan_tars(struct dataset *ds, const struct dataset_options *opt, struct err *err)
{
    struct tars *t = ds->own;
    uint64_t keys = 0;
    int rc;
    while ((rc = gather_next(ds, err)) > 0) {
        if (opt->on_progress && (rc = opt->on_progress(opt->ctx, ++keys, 0)) < 0)
            return err_set(err, rc, "looking through the dataset was stopped");
        if (!t->now.has_image)
            continue;
        rc = note_class(ds, &t->now, err);
        if (rc == 0)
            rc = dataset_column_check(ds, &t->now.column, tar_name(ds), t->now.key, err);
        if (rc < 0)
            break;
        ds->any_captions =
            ds->any_captions || (ds->captions ? t->now.captions.text.len > 0 : t->now.captioned);
        ds->bytes += t->now.image.len;
        if (++ds->samples > DATASET_SAMPLES_MAX)
            return err_set(err, -ERR_LIMIT, "%s has more than %u images", ds->name,
                           DATASET_SAMPLES_MAX);
    }
    if (rc == 0 && ds->samples == 0)
        rc = err_set(err, -ERR_FORMAT, "%s has no images (" DATASET_IMAGES ")", ds->name);
    if (rc == 0 && t->kind == CLASS_NUMBER)
        rc = name_numbers(ds, err);
    return rc;
}

static int tars_of_dir(struct dataset *ds, struct err *err)
{
    struct tars *t = ds->own;
    struct file_names entries;
    int rc = file_list(ds->path, DATASET_ENTRIES_MAX, &entries, err);
    if (rc < 0)
        return rc;
    for (size_t i = 0; rc == 0 && i < entries.n; i++) {
        char *path = file_join(ds->path, entries.items[i]);
        if (dataset_is_tar(path)) {
            rc = file_names_add(&t->names, TARS_MAX, path, err);
            continue;
        }
        ds->left.beside_tars += file_is_dir(path);
        mem_free(path);
    }
    file_names_release(&entries);
    return rc;
}

/* Finds the tars of a directory or a pattern, or the one tar. */
static int find_tars(struct dataset *ds, struct err *err)
{
    struct tars *t = ds->own;
    if (file_is_dir(ds->path))
        return tars_of_dir(ds, err);
    if (file_exists(ds->path)) {
        if (!dataset_is_tar(ds->path))
            return err_set(err, -ERR_FORMAT,
                           "%s is neither a folder nor a tar (.tar .tar.gz .tar.zst)", ds->path);
        return file_names_add(&t->names, TARS_MAX, str_dup(ds->path), err);
    }
    int rc = file_pattern(ds->path, TARS_MAX, &t->names, err);
    if (rc == -EINVAL)
        rc = err_set(err, -ENOENT, "there is no dataset at %s", ds->path);
    for (size_t i = 0; rc == 0 && i < t->names.n; i++)
        if (file_is_dir(t->names.items[i]))
            rc = err_set(err, -ERR_FORMAT,
                         "the pattern %s, which is for tars, matches %s, a folder: give it by its "
                         "name, without a pattern",
                         ds->path, t->names.items[i]);
    return rc;
}

/* If no dataset is in the tars, it may be in the folders beside them. */
static int tell_left(const struct dataset *ds, int rc, struct err *err)
{
    char *left = rc == -ERR_FORMAT && ds->left.beside_tars ? dataset_left_say(&ds->left) : NULL;
    if (left && err)
        (void)err_set(err, rc, "%s; left out: %s", err->msg, left);
    mem_free(left);
    return rc;
}

static int tars_open(struct dataset *ds, const struct dataset_options *opt, struct err *err)
{
    struct tars *t = ds->own = mem_alloc(sizeof(*t));
    buf_init(&t->now.image, DATASET_IMAGE_MAX);
    buf_init(&t->next.image, DATASET_IMAGE_MAX);
    dataset_captions_init(&t->now.captions);
    dataset_captions_init(&t->next.captions);
    int rc = find_tars(ds, err);
    return rc < 0 ? rc : tell_left(ds, scan_tars(ds, opt, err), err);
}

static void tars_close(struct dataset *ds)
{
    struct tars *t = ds->own;
    if (!t)
        return;
    tar_close(t->tar);
    file_names_release(&t->names);
    gather_release(&t->now);
    gather_release(&t->next);
    mem_free(t);
}

/* ---- cutting ---- */

/* "part-000/key": the tar's name without folder and ending, which may have other dots. */
static void tar_key(const struct dataset *ds)
{
    struct tars *t = ds->own;
    const char *path = tar_name(ds), *slash = strrchr(path, '/');
    const char *base = slash ? slash + 1 : path;
    (void)snprintf(t->key, sizeof(t->key), "%.*s/%s", (int)dataset_tar_stem(base), base,
                   t->now.key); /* for people */
}

static int next_image(struct dataset *ds, struct dataset_image *ret, struct err *err)
{
    struct tars *t = ds->own;
    int rc;
    if (t->most && t->taken == t->most) {
        leave_tar(t);
        t->at++;
    }
    while ((rc = gather_next(ds, err)) > 0 && !t->now.has_image)
        ;
    if (rc <= 0)
        return rc;
    t->taken++;
    tar_key(ds);
    long cls = find_class(ds, &t->now);
    if (cls < 0)
        return err_set(err, -ERR_STALE, "%s changed while it was read", ds->name);
    *ret = (struct dataset_image){
        .key = t->key,
        .cls = (uint32_t)cls,
        .data = t->now.image.data,
        .len = t->now.image.len,
        .fault = t->now.too_large ? DATASET_TOO_LARGE : NULL,
        .feature = ds->column ? t->now.column.feature.v : NULL,
        .dim = ds->column ? t->now.column.feature.n : 0,
        .captions = t->now.captions.text.len ? (char *)t->now.captions.text.data : NULL,
        .captions_len = t->now.captions.text.len,
        .captions_cut = t->now.captions.cut,
        .captions_not_utf8 = t->now.captions.not_utf8,
    };
    return 1;
}

/* Each tar is read once more, or its beginning, and its images are shuffled on disk. */
static int tars_cut(struct cutter *c, struct dataset *ds)
{
    struct tars *t = ds->own;
    rewind_tars(t);
    t->most = (c->opt->most + t->names.n - 1) / t->names.n;
    return cut_images(c, ds, next_image, false);
}

const struct dataset_source dataset_tars = {
    .matches = tars_matches,
    .open = tars_open,
    .close = tars_close,
    .cut = tars_cut,
    .reads = "only files " DATASET_IMAGES
             " in the tars are read: without tars beside them folders are classes",
};
