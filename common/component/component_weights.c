#include <fcntl.h>
#include <jansson.h>
#include <unistd.h>

#include "common/base/file.h"
#include "common/component/component_impl.h"

#define INDEX_MAX (16u << 20)

/* A tensor that the files have. */
struct found {
    const struct st_tensor *t;
    size_t file; /* index in component.files */
    bool used;
};

struct search {
    struct component *c;
    struct st st[COMPONENT_FILES_MAX]; /* headers, by file of the weights */
    size_t first;                      /* index of the first file with weights in component.files */
    size_t n_st;
    struct found *found; /* sorted by name */
    size_t n_found;
    size_t cap; /* room of component.tensors */
    struct err *err;
};

static void add_file(struct component *c, const char *name)
{
    c->files = mem_realloc(c->files, (c->n_files + 1) * sizeof *c->files);
    c->files[c->n_files++] = str_dup(name);
}

/* ---- which files ---- */

/* The names of whole files and indices, in the order in which they are tried. */
static const char *const names[] = {
    "diffusion_pytorch_model.safetensors",
    "diffusion_pytorch_model.safetensors.index.json",
    "model.safetensors",
    "model.safetensors.index.json",
    "diffusion_pytorch_model.fp16.safetensors",
    "diffusion_pytorch_model.safetensors.index.fp16.json",
    "diffusion_pytorch_model.fp16.safetensors.index.json",
    "model.fp16.safetensors",
    "model.safetensors.index.fp16.json",
    "model.fp16.safetensors.index.json",
    "adapter_model.safetensors",
};

int component_find_weights(const char *folder, const char **ret, struct err *err)
{
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char *path = file_join(folder, names[i]);
        const bool there = file_exists(path);
        mem_free(path);
        if (there) {
            *ret = names[i];
            return 0;
        }
    }
    return err_set(
        err, -ERR_CONFIG,
        "%s has no model.safetensors or diffusion_pytorch_model.safetensors, whole or in "
        "pieces: save it again with save_pretrained(..., safe_serialization=True)",
        folder);
}

/* Adds a file that an index names, which must be in the same folder. */
static int add_piece(struct file_names *pieces, const char *path, const char *name, struct err *err)
{
    for (size_t i = 0; i < pieces->n; i++)
        if (strcmp(pieces->items[i], name) == 0)
            return 0;
    if (!str_is_name(name, 200) || !str_ends(name, ".safetensors"))
        return err_set(err, -ERR_CONFIG,
                       "%s names the file '%s', expected a .safetensors in the same folder", path,
                       name);
    if (pieces->n == COMPONENT_FILES_MAX)
        return err_set(err, -ERR_LIMIT, "%s names more than %d files", path, COMPONENT_FILES_MAX);
    return file_names_add(pieces, COMPONENT_FILES_MAX, str_dup(name), err);
}

static int read_map(const char *path, const json_t *index, struct file_names *ret, struct err *err)
{
    json_t *map = json_object_get(index, "weight_map"), *value;
    const char *key;
    int rc = 0;
    if (json_object_size(map) == 0)
        return err_set(err, -ERR_CONFIG, "%s has no weight_map", path);
    json_object_foreach(map, key, value)
    {
        if (rc == 0 && !json_is_string(value))
            rc = err_set(err, -ERR_CONFIG, "%s: %s is in no file", path, key);
        else if (rc == 0)
            rc = add_piece(ret, path, json_string_value(value), err);
    }
    return rc;
}

int component_index(const char *path, struct file_names *ret, struct err *err)
{
    struct buf text = {0};
    json_t *index = NULL;
    int rc = file_read(path, INDEX_MAX, &text, err);
    if (rc == 0)
        rc = component_json(path, buf_str(&text), text.len, &index, err);
    if (rc == 0)
        rc = read_map(path, index, ret, err);
    json_decref(index);
    buf_release(&text);
    return rc;
}

static int add_pieces(struct search *s, const char *index)
{
    struct file_names pieces = {0};
    char *path = file_join(s->c->folder, index);
    const int rc = component_index(path, &pieces, s->err);
    for (size_t i = 0; i < pieces.n && rc == 0; i++)
        add_file(s->c, pieces.items[i]);
    file_names_release(&pieces);
    mem_free(path);
    return rc;
}

static int list_files(struct search *s)
{
    const char *name = NULL;
    int rc = component_find_weights(s->c->folder, &name, s->err);
    if (rc < 0)
        return rc;
    const bool whole = str_ends(name, ".safetensors");
    add_file(s->c, "config.json");
    if (!whole)
        add_file(s->c, name);
    s->first = s->c->n_files;
    if (!whole)
        return add_pieces(s, name);
    add_file(s->c, name);
    return 0;
}

/* ---- what is in them ---- */

static int by_name(const void *a, const void *b)
{
    const struct found *x = a, *y = b;
    return strcmp(x->t->name, y->t->name);
}

static int open_files(struct search *s, size_t *ret)
{
    int rc = 0;
    for (size_t i = s->first; i < s->c->n_files && rc == 0; i++) {
        char *path = file_join(s->c->folder, s->c->files[i]);
        rc = st_open(path, &s->st[s->n_st], s->err);
        if (rc == 0)
            *ret += s->st[s->n_st++].n_tensors;
        if (rc == 0 && *ret > ST_TENSORS_MAX)
            rc = err_set(s->err, -ERR_LIMIT, "%s has more than %d tensors", s->c->folder,
                         ST_TENSORS_MAX);
        mem_free(path);
    }
    return rc;
}

static int gather(struct search *s)
{
    size_t n = 0;
    int rc = open_files(s, &n);
    if (rc < 0)
        return rc;
    s->found = mem_try_array(n + 1, sizeof *s->found);
    if (!s->found)
        return err_set(s->err, -ENOMEM, "no memory for a table of %zu tensors", n);
    for (size_t i = 0; i < s->n_st; i++)
        for (size_t k = 0; k < s->st[i].n_tensors; k++)
            s->found[s->n_found++] =
                (struct found){.t = &s->st[i].tensors[k], .file = s->first + i};
    qsort(s->found, s->n_found, sizeof *s->found, by_name);
    for (size_t i = 1; i < s->n_found; i++)
        if (by_name(&s->found[i - 1], &s->found[i]) == 0)
            return err_set(s->err, -ERR_CONFIG, "%s: two files hold %s", s->c->folder,
                           s->found[i].t->name);
    return 0;
}

static struct found *look_up(const struct search *s, const char *name)
{
    const struct st_tensor wanted = {.name = (char *)name};
    const struct found key = {.t = &wanted};
    return name ? bsearch(&key, s->found, s->n_found, sizeof key, by_name) : NULL;
}

static int check(const struct search *s, const struct found *f, const struct component_want *want)
{
    const struct st_tensor *t = f->t;
    const char *file = s->c->files[f->file];
    char has[ST_SHAPE_TEXT], wants[ST_SHAPE_TEXT];
    if (t->rank != want->rank || memcmp(t->shape, want->shape, t->rank * sizeof *t->shape) != 0)
        return err_set(s->err, -ERR_CONFIG, "%s/%s: %s is %s, but config.json makes it %s",
                       s->c->folder, file, t->name, st_shape_text(t->rank, t->shape, has),
                       st_shape_text(want->rank, want->shape, wants));
    if (t->dtype != ST_F32 && t->dtype != ST_BF16 && t->dtype != ST_F16)
        return err_set(s->err, -ERR_CONFIG, "%s/%s: %s is of type %s, expected F32, BF16 or F16",
                       s->c->folder, file, t->name, st_dtype_name(t->dtype));
    return 0;
}

static int take(void *arg, const struct component_want *want)
{
    struct search *s = arg;
    struct component *c = s->c;
    struct found *f = look_up(s, want->name);
    if (!f)
        f = look_up(s, want->other);
    if (!f)
        return err_set(s->err, -ERR_CONFIG, "%s has no tensor %s, which config.json asks for",
                       c->folder, want->name);
    int rc = check(s, f, want);
    if (rc < 0)
        return rc;
    if (c->n_tensors == s->cap) {
        s->cap = s->cap ? 2 * s->cap : 256;
        c->tensors = mem_realloc(c->tensors, s->cap * sizeof *c->tensors);
    }
    struct component_tensor *t = &c->tensors[c->n_tensors++];
    *t = (struct component_tensor){.name = str_dup(want->name),
                                   .rank = want->rank,
                                   .count = f->t->count,
                                   .file = f->file,
                                   .at = *f->t};
    memcpy(t->shape, want->shape, sizeof t->shape);
    t->at.name = str_dup(f->t->name);
    f->used = true;
    return 0;
}

int component_weights(struct component *c, struct err *err)
{
    struct search *s = mem_alloc(sizeof *s);
    s->c = c;
    s->err = err;
    int rc = list_files(s);
    if (rc == 0)
        rc = gather(s);
    if (rc == 0)
        rc = component_wants(c, take, s);
    for (size_t i = 0; i < s->n_found && rc == 0; i++)
        if (!s->found[i].used && !component_passes_over(c, s->found[i].t->name))
            rc =
                err_set(err, -ERR_CONFIG,
                        "%s/%s holds the tensor %s, which a model of its config.json does not have",
                        c->folder, c->files[s->found[i].file], s->found[i].t->name);
    for (size_t i = 0; i < s->n_st; i++)
        st_release(&s->st[i]);
    mem_free(s->found);
    mem_free(s);
    return rc;
}
