#include "cli/job/trainer_files.h"

#include <sys/stat.h>
#include <unistd.h>

#include "cli/job/upload.h"
#include "common/base/file.h"
#include "common/data/tar.h"

#define NAME_MAX_BYTES 200 /* of a path in the folder, for ustar */
#define DEPTH_MAX 16
#define PART_TRAINER 3 /* EncoderPart of skerry.proto */

/* A walk over the folder; with tar the files are added to it. */
struct walk {
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
    int rc = file_read(path, TRAINER_BYTES_MAX, &bytes, err);
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
    if (w->files > TRAINER_FILES_MAX || w->bytes > TRAINER_BYTES_MAX)
        return err_set(err, -ERR_CONFIG,
                       "%s has more than %d files or %u MiB; data belong under data, and packages "
                       "into trainer.setup",
                       w->folder, TRAINER_FILES_MAX, TRAINER_BYTES_MAX >> 20);
    if (strlen(name) > NAME_MAX_BYTES || !str_is_utf8(name, strlen(name)))
        return err_set(err, -ERR_CONFIG, "%s: the name has more than %d bytes, or is no UTF-8",
                       path, NAME_MAX_BYTES);
    return w->tar ? add(w, path, name, st, err) : 0;
}

static int walk(struct walk *w, const char *dir, const char *prefix, int depth, struct err *err)
{
    struct file_names names = {0};
    if (depth > DEPTH_MAX)
        return err_set(err, -ERR_CONFIG, "%s is more than %d folders deep", dir, DEPTH_MAX);
    int rc = file_list(dir, TRAINER_FILES_MAX, &names, err);
    for (size_t i = 0; i < names.n && rc == 0; i++) {
        struct stat st;
        char *path = file_join(dir, names.items[i]);
        char *name = str_printf("%s%s%s", prefix, *prefix ? "/" : "", names.items[i]);
        if (lstat(path, &st) < 0)
            rc = err_errno(err, "looking at %s", path);
        else if (S_ISDIR(st.st_mode) && strcmp(names.items[i], "__pycache__") != 0)
            rc = walk(w, path, name, depth + 1, err);
        else if (S_ISREG(st.st_mode))
            rc = take_file(w, path, name, &st, err);
        mem_free(name);
        mem_free(path);
    }
    file_names_release(&names);
    return rc;
}

int trainer_files_check(const char *folder, struct err *err)
{
    struct walk w = {.folder = folder};
    if (!file_is_dir(folder))
        return err_set(err, -ERR_CONFIG, "trainer.files is %s, expected a folder", folder);
    int rc = walk(&w, folder, "", 0, err);
    if (rc == 0 && w.files == 0)
        rc = err_set(err, -ERR_CONFIG, "trainer.files is %s, which has no files", folder);
    return rc;
}

static int pack(const char *folder, const char *path, struct err *err)
{
    struct walk w = {.folder = folder};
    int rc = tar_writer_open(path, &w.tar, err);
    if (rc == 0)
        rc = walk(&w, folder, "", 0, err);
    if (rc == 0)
        rc = tar_writer_commit(w.tar, NULL, NULL, err);
    tar_writer_free(w.tar);
    return rc;
}

int trainer_files_upload(struct cli *cli, const char *folder, bool progress, json_t *body,
                         struct err *err)
{
    const char *tmp = getenv("TMPDIR");
    char *dir = str_printf("%s/skerry-trainer-XXXXXX", tmp && tmp[0] ? tmp : "/tmp");
    json_t *blob = NULL;
    if (!mkdtemp(dir)) {
        const int rc = err_errno(err, "making the temporary directory %s", dir);
        mem_free(dir);
        return rc;
    }
    char *path = file_join(dir, "trainer.tar");
    int rc = pack(folder, path, err);
    if (rc == 0)
        rc = upload_file(cli, path, "the trainer's files", progress, &blob, err);
    if (rc == 0) {
        json_object_set_new(blob, "part", json_integer(PART_TRAINER));
        json_object_set_new(blob, "name", json_string("trainer.tar"));
        json_object_set_new(body, "encoders", json_pack("[o]", blob));
    }
    (void)file_remove_tree(dir, NULL); /* in the temporary directory */
    mem_free(path);
    mem_free(dir);
    return rc;
}
