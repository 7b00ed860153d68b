#include "common/component/component.h"

#include <fcntl.h>
#include <unistd.h>

#include "common/base/file.h"
#include "common/component/component_impl.h"

#define JSON_MAX (1u << 20)

static int read_config(struct component *c, enum component_kind kind, struct err *err)
{
    char *path = file_join(c->folder, "config.json");
    char *pipeline = file_join(c->folder, "model_index.json");
    struct buf text = {0};
    int rc = file_read(path, JSON_MAX, &text, err);
    if (rc == -ENOENT && file_exists(pipeline))
        rc = err_set(err, -ERR_CONFIG,
                     "%s is a whole pipeline: name one of the folders in it (encoders.path takes "
                     "it whole)",
                     c->folder);
    else if (rc == -ENOENT)
        rc = err_set(err, -ERR_CONFIG,
                     "%s has no config.json: name a folder that save_pretrained of diffusers or "
                     "transformers wrote",
                     c->folder);
    if (rc == 0)
        rc = component_config(path, buf_str(&text), text.len, kind, c, err);
    buf_release(&text);
    mem_free(pipeline);
    mem_free(path);
    return rc;
}

int component_open(const char *folder, enum component_kind kind, struct component **ret,
                   struct err *err)
{
    struct component *c = mem_alloc(sizeof *c);
    c->folder = str_dup(folder);
    int rc = read_config(c, kind, err);
    if (rc == 0)
        rc = component_weights(c, err);
    if (rc < 0) {
        component_close(c);
        return rc;
    }
    *ret = c;
    return 0;
}

void component_close(struct component *c)
{
    if (!c)
        return;
    for (size_t i = 0; i < c->n_tensors; i++) {
        mem_free(c->tensors[i].name);
        mem_free(c->tensors[i].at.name);
    }
    for (size_t i = 0; i < c->n_files; i++)
        mem_free(c->files[i]);
    mem_free(c->tensors);
    mem_free(c->files);
    mem_free(c->folder);
    mem_free(c);
}

const struct component_tensor *component_find(const struct component *c, const char *name)
{
    for (size_t i = 0; i < c->n_tensors; i++)
        if (strcmp(c->tensors[i].name, name) == 0)
            return &c->tensors[i];
    return NULL;
}

int component_read(const struct component *c, const struct component_tensor *t, float *out,
                   struct err *err)
{
    char *path = file_join(c->folder, c->files[t->file]);
    int rc = 0, fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        rc = err_errno(err, "opening the weights %s", path);
    if (rc == 0) {
        rc = st_read_f32(fd, path, &t->at, out, err);
        (void)close(fd); /* read only: nothing to lose */
    }
    mem_free(path);
    return rc;
}

/* ---- pipelines ---- */

static int part_listed(const char *path, const char *part, struct err *err)
{
    struct buf text = {0};
    json_t *index = NULL;
    int rc = file_read(path, JSON_MAX, &text, err);
    if (rc == 0)
        rc = component_json(path, buf_str(&text), text.len, &index, err);
    const json_t *row = json_object_get(index, part);
    if (rc == 0 && (json_array_size(row) != 2 || !json_is_string(json_array_get(row, 1))))
        rc = err_set(err, -ERR_CONFIG, "%s lists no %s: this pipeline does not have one", path,
                     part);
    json_decref(index);
    buf_release(&text);
    return rc;
}

int component_root(const char *folder, const char *part, char **ret, struct err *err)
{
    char *path = file_join(folder, "model_index.json");
    int rc =
        file_exists(path)
            ? part_listed(path, part, err)
            : err_set(err, -ERR_CONFIG,
                      "%s has no model_index.json: name the folder of a diffusers pipeline, or "
                      "its parts one by one",
                      folder);
    if (rc == 0)
        *ret = file_join(folder, part);
    mem_free(path);
    return rc;
}
