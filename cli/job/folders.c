#include "cli/job/folders.h"

#include <sys/stat.h>
#include <unistd.h>

#include "cli/base/cli.h"
#include "cli/base/model_folder.h"
#include "cli/job/upload.h"
#include "common/base/file.h"
#include "common/data/tar.h"

#define NAME_MAX_BYTES 200 /* bytes of a path in the folder, for ustar */
#define DEPTH_MAX 16

struct row {
    int part; /* EncoderPart of skerry.proto */
    const char *name, *what, *key, *advice;
};

static const struct row rows[] = {
    [FOLDER_TRAINER] = {3, "trainer.tar", "the trainer's files", "trainer.files",
                        "data belong under data, and packages into trainer.setup"},
    [FOLDER_COMPANIONS] = {4, "companions.tar", "the files beside the weights", "model.warm_start",
                           "name the file of weights, or the index of its shards, to leave the "
                           "others out"},
    [FOLDER_MODEL] = {4, "companions.tar", "the files beside the weights", "model.warm_start",
                      "name a folder with the model's own files alone"},
};

/* A walk over the folder; with tar the files are added to it. */
struct walk {
    enum folder_kind kind;
    const char *folder;
    struct tar_writer *tar;
    size_t files;
    uint64_t bytes;
};

static int add(struct walk *w, const char *path, const char *name, const struct stat *before,
               struct err *err)
{
    struct buf bytes;
    struct stat after;
    int rc = file_read(path, TAR_FOLDER_BYTES, &bytes, err);
    if (rc < 0)
        return rc;
    if (stat(path, &after) < 0 || after.st_size != before->st_size ||
        (uint64_t)bytes.len != (uint64_t)before->st_size ||
        after.st_mtim.tv_sec != before->st_mtim.tv_sec ||
        after.st_mtim.tv_nsec != before->st_mtim.tv_nsec)
        rc = err_set(err, -ERR_CONFIG,
                     "%s changed while it was read: submit again when nothing writes there", path);
    if (rc == 0)
        rc =
            tar_writer_add(w->tar, name, bytes.len ? (const void *)bytes.data : "", bytes.len, err);
    buf_release(&bytes);
    return rc;
}

static int take_file(struct walk *w, const char *path, const char *name, const struct stat *st,
                     struct err *err)
{
    w->files++;
    w->bytes += (uint64_t)st->st_size;
    if (w->files > TAR_FOLDER_FILES || w->bytes > TAR_FOLDER_BYTES)
        return err_set(err, -ERR_CONFIG, "%s has more than %d files or %u MiB; %s", w->folder,
                       TAR_FOLDER_FILES, TAR_FOLDER_BYTES >> 20, rows[w->kind].advice);
    if (strlen(name) > NAME_MAX_BYTES || !str_is_utf8(name, strlen(name)))
        return err_set(err, -ERR_CONFIG, "%s: the name has more than %d bytes, or is not UTF-8",
                       path, NAME_MAX_BYTES);
    return w->tar ? add(w, path, name, st, err) : 0;
}

static bool is_wanted(const struct walk *w, const char *name)
{
    return w->kind == FOLDER_TRAINER || !model_folder_is_weights(name);
}

/* A link beside weights stands for its file, as in the cache of Hugging Face's hub; other links
 * are left out. */
static int look_at(const struct walk *w, const char *path, struct stat *ret)
{
    struct stat behind;
    const int rc = lstat(path, ret);
    if (rc == 0 && S_ISLNK(ret->st_mode) && w->kind != FOLDER_TRAINER && stat(path, &behind) == 0 &&
        S_ISREG(behind.st_mode))
        *ret = behind;
    return rc;
}

static int walk(struct walk *w, const char *dir, const char *prefix, int depth, struct err *err)
{
    struct file_names names = {0};
    if (depth > DEPTH_MAX)
        return err_set(err, -ERR_CONFIG, "%s is more than %d folders deep", dir, DEPTH_MAX);
    int rc = file_list(dir, TAR_FOLDER_FILES, &names, err);
    for (size_t i = 0; i < names.n && rc == 0; i++) {
        struct stat st;
        char *path = file_join(dir, names.items[i]);
        char *name = str_printf("%s%s%s", prefix, *prefix ? "/" : "", names.items[i]);
        if (look_at(w, path, &st) < 0)
            rc = err_errno(err, "looking at %s", path);
        else if (S_ISDIR(st.st_mode) && w->kind != FOLDER_MODEL &&
                 strcmp(names.items[i], "__pycache__") != 0)
            rc = walk(w, path, name, depth + 1, err);
        else if (S_ISREG(st.st_mode) && is_wanted(w, names.items[i]))
            rc = take_file(w, path, name, &st, err);
        mem_free(name);
        mem_free(path);
    }
    file_names_release(&names);
    return rc;
}

int folder_check(enum folder_kind kind, const char *folder, size_t *ret_files, struct err *err)
{
    struct walk w = {.kind = kind, .folder = folder};
    if (!file_is_dir(folder))
        return err_set(err, -ERR_CONFIG, "%s is %s, expected a folder", rows[kind].key, folder);
    const int rc = walk(&w, folder, "", 0, err);
    if (rc == 0 && ret_files)
        *ret_files = w.files;
    return rc;
}

static int pack(enum folder_kind kind, const char *folder, const char *path, struct err *err)
{
    struct walk w = {.kind = kind, .folder = folder};
    int rc = tar_writer_open(path, &w.tar, err);
    if (rc == 0)
        rc = walk(&w, folder, "", 0, err);
    if (rc == 0)
        rc = tar_writer_commit(w.tar, NULL, NULL, err);
    tar_writer_free(w.tar);
    return rc;
}

int folder_upload(struct cli *cli, enum folder_kind kind, const char *folder, bool progress,
                  json_t *body, struct err *err)
{
    const struct row *row = &rows[kind];
    char *dir = NULL;
    json_t *blob = NULL, *list = json_object_get(body, "encoders");
    int rc = cli_temporary(&dir, err);
    if (rc < 0)
        return rc;
    char *path = file_join(dir, row->name);
    rc = pack(kind, folder, path, err);
    if (rc == 0)
        rc = upload_file(cli, path, row->what, progress, &blob, err);
    if (rc == 0) {
        json_object_set_new(blob, "part", json_integer(row->part));
        json_object_set_new(blob, "name", json_string(row->name));
        if (!list)
            json_object_set_new(body, "encoders", list = json_array());
        json_array_append_new(list, blob);
    }
    (void)file_remove_tree(dir, NULL); /* in the temporary directory */
    mem_free(path);
    mem_free(dir);
    return rc;
}
