#include "common/outer/layout.h"

#include <fcntl.h>
#include <unistd.h>

#include "common/base/file.h"

static int check_tensors(const struct st *st, const char *path, uint64_t *ret_count,
                         struct err *err)
{
    uint64_t count = 0;
    if (!st->n_tensors)
        return err_set(err, -ERR_FORMAT, "%s holds no tensors, expected a module", path);
    for (size_t t = 0; t < st->n_tensors; t++) {
        const struct st_tensor *tensor = &st->tensors[t];
        if (tensor->dtype != ST_F32)
            return err_set(err, -ERR_FORMAT,
                           "%s: tensor %s is %s, but a full version holds only F32", path,
                           tensor->name, st_dtype_name(tensor->dtype));
        if (!tensor->count)
            return err_set(err, -ERR_FORMAT, "%s: tensor %s has no elements", path, tensor->name);
        count += tensor->count;
    }
    *ret_count = count;
    return 0;
}

/* ---- buffers ---- */

static int by_name(const void *a, const void *b)
{
    const struct st_tensor *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

/* Takes one line of the metadata; *at moves behind it. */
static int take_line(struct layout *l, const struct st_tensor **sorted, const char **at,
                     enum layout_role role, const char *path, struct err *err)
{
    char name[ST_NAME_MAX + 1];
    const size_t len = strcspn(*at, "\n");
    const struct st_tensor key = {.name = name}, *k = &key;
    (void)snprintf(name, sizeof(name), "%.*s", len < ST_NAME_MAX ? (int)len : ST_NAME_MAX, *at);
    const struct st_tensor **found =
        len < sizeof(name) ? bsearch(&k, sorted, l->st.n_tensors, sizeof(*sorted), by_name) : NULL;
    if (!found)
        return err_set(err, -ERR_FORMAT, "%s names a buffer %.80s, which it does not hold", path,
                       name);
    if (l->role[*found - l->st.tensors] != LAYOUT_TRAINED)
        return err_set(err, -ERR_FORMAT, "%s names the buffer %.80s twice", path, name);
    l->role[*found - l->st.tensors] = (uint8_t)role;
    *at += len + ((*at)[len] == '\n');
    return 0;
}

static int find_buffers(struct layout *l, const char *path, struct err *err)
{
    static const char *const keys[] = {
        [LAYOUT_MEAN] = LAYOUT_META_MEAN, [LAYOUT_FIRST] = LAYOUT_META_FIRST};
    const size_t n = l->st.n_tensors;
    const struct st_tensor **sorted = mem_try_array(n, sizeof(*sorted));
    l->role = mem_try_array(n, sizeof(*l->role));
    int rc = sorted && l->role ? 0 : err_set(err, -ENOMEM, "%s: no memory for its tensors", path);
    for (size_t t = 0; rc == 0 && t < n; t++)
        sorted[t] = &l->st.tensors[t];
    if (rc == 0)
        qsort(sorted, n, sizeof(*sorted), by_name);
    for (int role = LAYOUT_MEAN; rc == 0 && role <= LAYOUT_FIRST; role++) {
        const char *at = st_meta_get(&l->st, keys[role]);
        l->buffers |= at != NULL;
        while (rc == 0 && at && *at)
            rc = take_line(l, sorted, &at, (enum layout_role)role, path, err);
    }
    mem_free(sorted);
    return rc;
}

bool layout_is_buffer(const struct layout *l, size_t t)
{
    return l->role[t] != LAYOUT_TRAINED;
}

enum codec layout_codec(const struct layout *l, size_t t, enum codec c)
{
    return layout_is_buffer(l, t) ? CODEC_F32 : c;
}

/* ---- the file ---- */

int layout_read(int fd, const char *path, struct layout *ret, struct err *err)
{
    struct layout l = {0};
    int rc = st_read(fd, path, &l.st, err);
    if (rc < 0)
        return rc;
    rc = check_tensors(&l.st, path, &l.count, err);
    if (rc == 0)
        rc = find_buffers(&l, path, err);
    if (rc < 0)
        goto out;
    l.header = mem_try((size_t)l.st.payload); /* at most ST_HEADER_MAX and its length */
    if (!l.header) {
        rc = err_set(err, -ENOMEM, "%s: no memory for its header", path);
        goto out;
    }
    rc = file_pread_all(fd, l.header, (size_t)l.st.payload, 0, path, err);
out:
    if (rc < 0)
        layout_release(&l);
    else
        *ret = l;
    return rc;
}

int layout_open(const char *path, struct layout *ret, struct err *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return err_errno(err, "opening %s", path);
    int rc = layout_read(fd, path, ret, err);
    (void)close(fd); /* read only: nothing to lose */
    return rc;
}

void layout_release(struct layout *l)
{
    if (!l)
        return;
    st_release(&l->st);
    mem_free(l->header);
    mem_free(l->role);
    *l = (struct layout){0};
}

uint64_t layout_first(const struct layout *l, size_t t)
{
    return (l->st.tensors[t].offset - l->st.payload) / sizeof(float);
}

static bool same_shape(const struct st_tensor *a, const struct st_tensor *b)
{
    return a->rank == b->rank && !memcmp(a->shape, b->shape, a->rank * sizeof a->shape[0]);
}

int layout_same(const struct layout *a, const struct layout *b, const char *name, struct err *err)
{
    if (a->st.n_tensors != b->st.n_tensors)
        return err_set(err, -ERR_FORMAT, "%s has %zu tensors, expected %zu", name, b->st.n_tensors,
                       a->st.n_tensors);
    for (size_t t = 0; t < a->st.n_tensors; t++) {
        const struct st_tensor *x = &a->st.tensors[t], *y = &b->st.tensors[t];
        if (strcmp(x->name, y->name) != 0)
            return err_set(err, -ERR_FORMAT, "%s: tensor %zu is %s, expected %s", name, t, y->name,
                           x->name);
        if (!same_shape(x, y))
            return err_set(err, -ERR_FORMAT, "%s: tensor %s does not have the module's shape", name,
                           x->name);
    }
    return 0;
}

static uint64_t cells_of(const struct layout *l, size_t t)
{
    return (l->st.tensors[t].count + LAYOUT_CELL - 1) / LAYOUT_CELL;
}

uint64_t layout_cells(const struct layout *l)
{
    uint64_t n = 0;
    for (size_t t = 0; t < l->st.n_tensors; t++)
        n += cells_of(l, t);
    return n;
}

void layout_cell_at(const struct layout *l, uint64_t number, struct layout_cell *ret)
{
    uint64_t left = number;
    size_t t = 0;
    for (; left >= cells_of(l, t); t++)
        left -= cells_of(l, t);
    const uint64_t rest = l->st.tensors[t].count - left * LAYOUT_CELL;
    *ret = (struct layout_cell){number, t, left * LAYOUT_CELL,
                                rest < LAYOUT_CELL ? rest : LAYOUT_CELL};
}
