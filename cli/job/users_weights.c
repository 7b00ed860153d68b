#include "cli/job/users_weights.h"

#include "cli/base/cli.h"
#include "cli/base/merge.h"
#include "cli/base/model_folder.h"
#include "cli/job/folders.h"
#include "cli/job/upload.h"
#include "common/base/file.h"
#include "common/job/family.h"
#include "common/st/st.h"

/* A dit's config.json is made anew. */
static bool has_companions(const char *given, const struct job_spec *spec)
{
    return spec->model.type != JOB_MODEL_DIT && file_is_dir(given);
}

static enum folder_kind beside(const struct job_spec *spec)
{
    return job_family(spec)->external ? FOLDER_COMPANIONS : FOLDER_MODEL;
}

static int check_file(const char *path, struct err *err)
{
    struct st st = {0};
    const int rc = st_open(path, &st, err);
    st_release(&st);
    return rc;
}

int users_weights_check(const char *given, const struct job_spec *spec, struct err *err)
{
    struct file_names files = {0};
    int rc = model_folder_weights(given, spec, &files, err);
    for (size_t i = 0; i < files.n && rc == 0; i++)
        rc = check_file(files.items[i], err);
    file_names_release(&files);
    return rc == 0 && has_companions(given, spec) ? folder_check(beside(spec), given, NULL, err)
                                                  : rc;
}

static int send_weights(struct cli *cli, const char *path, bool progress, json_t *body,
                        struct err *err)
{
    json_t *blob = NULL;
    const int rc = upload_file(cli, path, "the warm start", progress, &blob, err);
    if (rc == 0)
        json_object_set_new(body, "warm_start", blob);
    return rc;
}

static int send_pieces(struct cli *cli, const struct file_names *files, bool progress, json_t *body,
                       struct err *err)
{
    char *dir = NULL;
    int rc = cli_temporary(&dir, err);
    if (rc < 0)
        return rc;
    char *path = file_join(dir, "model.safetensors");
    rc = merge_safetensors(files->items, files->n, path, err);
    if (rc == 0)
        rc = send_weights(cli, path, progress, body, err);
    (void)file_remove_tree(dir, NULL); /* in the temporary directory */
    mem_free(path);
    mem_free(dir);
    return rc;
}

int users_weights_upload(struct cli *cli, const char *given, const struct job_spec *spec,
                         bool progress, json_t *body, struct err *err)
{
    struct file_names files = {0};
    size_t companions = 0;
    int rc = model_folder_weights(given, spec, &files, err);
    if (rc == 0)
        rc = files.n == 1 ? send_weights(cli, files.items[0], progress, body, err)
                          : send_pieces(cli, &files, progress, body, err);
    file_names_release(&files);
    if (rc == 0 && has_companions(given, spec))
        rc = folder_check(beside(spec), given, &companions, err);
    return rc == 0 && companions > 0 ? folder_upload(cli, beside(spec), given, progress, body, err)
                                     : rc;
}
