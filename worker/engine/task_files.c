#include "worker/engine/task_files.h"

#include "common/st/st.h"
#include "worker/model/model.h"

/* ---- writing: the tensors of a file ------------------------------------------------ */

struct part {
    const char *name;
    enum st_dtype dtype;
    unsigned rank;
    uint64_t shape[4];
    const void *data; /* NULL: left out */
};

static uint64_t part_bytes(const struct part *p)
{
    uint64_t n = st_dtype_bytes(p->dtype);
    for (unsigned i = 0; i < p->rank; i++)
        n *= p->shape[i];
    return n;
}

static int write_parts(const char *path, const struct part *parts, size_t n,
                       uint8_t sha256[HASH_BYTES], uint64_t *ret_bytes, struct err *err)
{
    struct st_writer *w = st_writer_new();
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < n; i++)
        if (parts[i].data)
            rc =
                st_writer_add(w, parts[i].name, parts[i].dtype, parts[i].rank, parts[i].shape, err);
    if (rc == 0)
        rc = st_writer_open(w, path, err);
    for (size_t i = 0; rc == 0 && i < n; i++)
        if (parts[i].data)
            rc = st_writer_write(w, parts[i].data, part_bytes(&parts[i]), err);
    if (rc == 0)
        rc = st_writer_commit(w, sha256, ret_bytes, err);
    st_writer_free(w);
    return rc;
}

int features_write(const char *path, const struct features_write *f, uint8_t sha256[HASH_BYTES],
                   uint64_t *ret_bytes, struct err *err)
{
    const struct part parts[] = {
        {"ids", ST_U64, 1, {f->n}, f->ids},
        {"features", ST_F32, 2, {f->n, f->d}, f->x},
        {"chunks", ST_F32, 3, {f->n, f->columns, f->d}, f->chunks},
    };
    return write_parts(path, parts, 3, sha256, ret_bytes, err);
}

int scores_write(const char *path, const float *logp, const int32_t *tokens, const int32_t *bytes,
                 uint32_t n, uint32_t columns, uint8_t sha256[HASH_BYTES], uint64_t *ret_bytes,
                 struct err *err)
{
    const struct part parts[] = {
        {"logp", ST_F32, 2, {n, columns}, logp},
        {"tokens", ST_I32, 2, {n, columns}, tokens},
        {"bytes", ST_I32, 1, {n}, bytes},
    };
    return write_parts(path, parts, 3, sha256, ret_bytes, err);
}

int assignment_write(const char *path, const uint32_t *assign, uint64_t n, uint32_t top,
                     uint8_t sha256[HASH_BYTES], uint64_t *ret_bytes, struct err *err)
{
    const struct part parts[] = {{"assign", ST_I32, 2, {n, top}, assign}};
    return write_parts(path, parts, 1, sha256, ret_bytes, err);
}

static struct part images_part(const char *name, uint64_t rows, int channels, int image,
                               const void *data)
{
    const uint64_t side = (uint64_t)image;
    return (struct part){name, ST_F32, 4, {rows, (uint64_t)channels, side, side}, data};
}

int velocity_write(const char *path, const struct velocity_points *p, uint8_t sha256[HASH_BYTES],
                   uint64_t *ret_bytes, struct err *err)
{
    const uint64_t rows = (uint64_t)p->rows;
    const struct part parts[] = {
        images_part("x", rows, p->channels, p->image, p->x),
        {"t", ST_F32, 1, {rows}, p->t},
        {"labels", ST_I32, 1, {rows}, p->labels},
        images_part("beside", rows, p->channels, p->image, p->beside),
    };
    return write_parts(path, parts, 4, sha256, ret_bytes, err);
}

int velocity_write_result(const char *path, const float *v, int rows, int channels, int image,
                          uint8_t sha256[HASH_BYTES], uint64_t *ret_bytes, struct err *err)
{
    const struct part parts[] = {images_part("v", (uint64_t)rows, channels, image, v)};
    return write_parts(path, parts, 1, sha256, ret_bytes, err);
}

/* ---- reading ---------------------------------------------------------------------- */

/* Maps the file and reads its header; both are released by the caller, also on failure. */
static int open_map(const char *path, struct file_map *map, struct st *st, struct err *err)
{
    int rc = file_map_open(path, map, err);
    return rc < 0 ? rc : st_parse(map->data, map->len, map->len, path, st, err);
}

/* Finds a tensor's values; its shape must be the part's. */
static int find(const struct file_map *map, const struct st *st, const struct part *p,
                const uint8_t **ret, struct err *err)
{
    const struct st_tensor *t;
    int rc = st_expect(st, p->name, p->dtype, p->rank, p->shape, &t, err);
    if (rc == 0)
        *ret = map->data + t->offset;
    return rc;
}

/* Copies of parts' values, which the caller frees, also on failure. */
static int copy_parts(const struct file_map *map, const struct st *st, const struct part *parts,
                      size_t n, void *to[], struct err *err)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < n; i++) {
        const uint64_t bytes = part_bytes(&parts[i]);
        const uint8_t *from = NULL;
        rc = find(map, st, &parts[i], &from, err);
        if (rc == 0 && !(to[i] = mem_try(bytes + 1)))
            rc = err_set(err, -ENOMEM, "no memory for %" PRIu64 " bytes of %s", bytes,
                         parts[i].name);
        if (rc == 0)
            memcpy(to[i], from, bytes);
    }
    return rc;
}

static int32_t i32_at(const uint8_t *p, uint64_t i)
{
    int32_t v;
    memcpy(&v, p + i * sizeof(v), sizeof(v));
    return v;
}

static int open_file(const char *path, uint32_t count, struct features *f,
                     struct features_file *file, struct err *err)
{
    struct st st = {0};
    int rc = open_map(path, &file->map, &st, err);
    const struct st_tensor *x = rc == 0 ? st_find(&st, "features") : NULL;
    const struct st_tensor *c = rc == 0 ? st_find(&st, "chunks") : NULL;
    if (rc == 0 && (!x || x->rank != 2 || x->shape[1] == 0 || x->shape[1] > FEATURES_DIM_MAX))
        rc = err_set(err, -ERR_FORMAT, "%s: it holds no features", path);
    if (rc == 0 && f->d == 0)
        f->d = (uint32_t)x->shape[1];
    if (rc == 0 && c && (c->rank != 3 || c->shape[1] > FEATURES_COLUMNS_MAX))
        rc = err_set(err, -ERR_FORMAT, "%s: its chunks are of an impossible shape", path);
    file->n = count;
    file->columns = rc == 0 && c ? (uint32_t)c->shape[1] : 0;
    const struct part parts[] = {
        {"ids", ST_U64, 1, {count}, NULL},
        {"features", ST_F32, 2, {count, f->d}, NULL},
        {"chunks", ST_F32, 3, {count, file->columns, f->d}, NULL},
    };
    const uint8_t **to[] = {&file->ids, &file->x, &file->chunks};
    for (size_t i = 0; rc == 0 && i < (c ? 3 : 2); i++)
        rc = find(&file->map, &st, &parts[i], to[i], err);
    st_release(&st);
    return rc;
}

int features_open(const char *const *paths, const uint32_t *counts, size_t n_files,
                  struct features *ret, struct err *err)
{
    struct features f = {.n_files = n_files};
    f.files = mem_try_array(n_files ? n_files : 1, sizeof(*f.files));
    int rc = f.files ? 0 : err_set(err, -ENOMEM, "no memory for %zu files", n_files);
    for (size_t i = 0; rc == 0 && i < n_files; i++) {
        f.files[i].first = f.n;
        rc = open_file(paths[i], counts[i], &f, &f.files[i], err);
        f.n += counts[i];
    }
    if (rc < 0) {
        features_close(&f);
        return rc;
    }
    *ret = f;
    return 0;
}

void features_close(struct features *f)
{
    for (size_t i = 0; f->files && i < f->n_files; i++)
        file_map_close(&f->files[i].map);
    mem_free(f->files);
    *f = (struct features){0};
}

static int read_rows(const struct fit_source *s, uint64_t first, uint32_t count, float *out,
                     struct err *err)
{
    const struct features_rows *r = s->arg;
    size_t at = 0, end = r->n_files; /* first[at] <= first < first[at+1] */
    (void)err;                       /* reading a map does not fail */
    while (end - at > 1) {
        size_t mid = at + (end - at) / 2;
        if (r->first[mid] <= first)
            at = mid;
        else
            end = mid;
    }
    while (count > 0) {
        uint64_t from = first - r->first[at], left = r->first[at + 1] - first;
        uint32_t rows = left < count ? (uint32_t)left : count;
        memcpy(out, r->f->files[r->files[at]].x + from * s->d * sizeof(float),
               (size_t)rows * s->d * sizeof(float));
        out += (size_t)rows * s->d;
        first += rows;
        count -= rows;
        at++;
    }
    return 0;
}

int features_rows_init(struct features_rows *r, const struct features *f, const uint32_t *files,
                       size_t n_files, struct err *err)
{
    *r = (struct features_rows){.f = f, .files = files, .n_files = n_files};
    r->first = mem_try_array(n_files + 1, sizeof(*r->first));
    if (!r->first)
        return err_set(err, -ENOMEM, "no memory for %zu files", n_files);
    for (size_t i = 0; i < n_files; i++)
        r->first[i + 1] = r->first[i] + f->files[files[i]].n;
    r->source = (struct fit_source){.n = r->first[n_files], .d = f->d, .read = read_rows, .arg = r};
    return 0;
}

void features_rows_release(struct features_rows *r)
{
    mem_free(r->first);
    *r = (struct features_rows){0};
}

void features_rows_ids(const struct features_rows *r, uint64_t *out)
{
    for (size_t i = 0; i < r->n_files; i++) {
        const struct features_file *file = &r->f->files[r->files[i]];
        memcpy(out + r->first[i], file->ids, file->n * sizeof(*out));
    }
}

void features_chunk(const struct features *f, uint32_t file, uint32_t row, uint32_t column,
                    float *out)
{
    const struct features_file *v = &f->files[file];
    if (!v->chunks || column >= v->columns) {
        memset(out, 0, f->d * sizeof(float));
        return;
    }
    uint64_t at = ((uint64_t)row * v->columns + column) * f->d;
    memcpy(out, v->chunks + at * sizeof(float), f->d * sizeof(float));
}

int scores_read(const char *path, uint32_t n, struct scores *ret, struct err *err)
{
    struct scores s = {.n = n};
    struct file_map map = {0};
    struct st st = {0};
    int rc = open_map(path, &map, &st, err);
    const struct st_tensor *t = rc == 0 ? st_find(&st, "logp") : NULL;
    if (rc == 0 && (!t || t->rank != 2 || t->shape[1] == 0 || t->shape[1] > FEATURES_COLUMNS_MAX))
        rc = err_set(err, -ERR_FORMAT, "%s: it holds no scores", path);
    s.columns = rc == 0 ? (uint32_t)t->shape[1] : 0;
    const struct part parts[] = {
        {"logp", ST_F32, 2, {n, s.columns}, NULL},
        {"tokens", ST_I32, 2, {n, s.columns}, NULL},
        {"bytes", ST_I32, 1, {n}, NULL},
    };
    void *to[3] = {NULL, NULL, NULL};
    if (rc == 0)
        rc = copy_parts(&map, &st, parts, 3, to, err);
    s.logp = to[0];
    s.tokens = to[1];
    s.bytes = to[2];
    st_release(&st);
    file_map_close(&map);
    for (uint64_t i = 0; rc == 0 && i < (uint64_t)n * s.columns; i++)
        if (!isfinite(s.logp[i]) || s.tokens[i] < 0)
            rc = err_set(err, -ERR_FORMAT, "%s: the score of row %" PRIu64 " is not a number", path,
                         i / s.columns);
    for (uint32_t i = 0; rc == 0 && i < n; i++)
        if (s.bytes[i] < 0)
            rc = err_set(err, -ERR_FORMAT, "%s: row %u stands for %d bytes", path, i, s.bytes[i]);
    if (rc < 0)
        scores_release(&s);
    else
        *ret = s;
    return rc;
}

void scores_release(struct scores *s)
{
    mem_free(s->logp);
    mem_free(s->tokens);
    mem_free(s->bytes);
    *s = (struct scores){0};
}

int assignment_read(const char *path, uint64_t first, uint64_t count, uint32_t partitions,
                    uint32_t **ret, uint32_t *ret_top, struct err *err)
{
    struct file_map map = {0};
    struct st st = {0};
    uint32_t *out = NULL;
    int rc = open_map(path, &map, &st, err);
    const struct st_tensor *t = rc == 0 ? st_find(&st, "assign") : NULL;
    if (rc == 0 &&
        (!t || t->dtype != ST_I32 || t->rank != 2 || t->shape[1] == 0 || t->shape[1] > partitions))
        rc = err_set(err, -ERR_FORMAT, "%s: it holds no assignment to %u partitions", path,
                     partitions);
    if (rc == 0 && (first > t->shape[0] || count > t->shape[0] - first))
        rc = err_set(err, -ERR_FORMAT,
                     "%s: it assigns %" PRIu64 " samples, rows %" PRIu64 " to %" PRIu64
                     " are wanted",
                     path, t->shape[0], first, first + count);
    const uint64_t top = rc == 0 ? t->shape[1] : 0;
    if (rc == 0 && !(out = mem_try_array(count * top, sizeof(*out))))
        rc = err_set(err, -ENOMEM, "no memory for the partitions of %" PRIu64 " samples", count);
    for (uint64_t i = 0; rc == 0 && i < count * top; i++) {
        int32_t v = i32_at(map.data + t->offset, first * top + i);
        out[i] = (uint32_t)v;
        if (v < 0 || (uint32_t)v >= partitions)
            rc = err_set(err, -ERR_FORMAT, "%s: sample %" PRIu64 " is in partition %d, of %u", path,
                         first + i / top, v, partitions);
    }
    st_release(&st);
    file_map_close(&map);
    if (rc < 0) {
        mem_free(out);
        return rc;
    }
    *ret = out;
    *ret_top = (uint32_t)top;
    return 0;
}

static int check_finite(const float *v, uint64_t n, const char *what, struct err *err)
{
    for (uint64_t i = 0; i < n; i++)
        if (!isfinite(v[i]))
            return err_set(err, -ERR_FORMAT, "%s holds a value that is not finite", what);
    return 0;
}

static int check_points(const struct velocity_points *p, int classes, struct err *err)
{
    const uint64_t side = (uint64_t)p->image;
    const uint64_t n = (uint64_t)p->rows * (uint64_t)p->channels * side * side;
    int rc = check_finite(p->x, n, "x", err);
    if (rc == 0 && p->beside)
        rc = check_finite(p->beside, n, "beside", err);
    for (int i = 0; i < p->rows && rc == 0; i++) {
        if (!(p->t[i] >= 0 && p->t[i] <= 1))
            rc = err_set(err, -ERR_FORMAT, "t of point %d is %g, expected 0 to 1", i,
                         (double)p->t[i]);
        else if (p->labels[i] < 0 || p->labels[i] > classes)
            rc = err_set(err, -ERR_FORMAT, "label %d of point %d is not in 0 to %d",
                         (int)p->labels[i], i, classes);
    }
    return rc;
}

int velocity_read(const char *path, const struct velocity_sizes *sizes, struct velocity_points *ret,
                  struct err *err)
{
    struct velocity_points p = {.channels = sizes->channels, .image = sizes->image};
    struct file_map map = {0};
    struct st st = {0};
    int rc = open_map(path, &map, &st, err);
    const struct st_tensor *t = rc == 0 ? st_find(&st, "t") : NULL;
    const uint64_t rows = t && t->rank == 1 ? t->shape[0] : 0;
    if (rc == 0 && (rows < 1 || rows > VELOCITY_ROWS_MAX))
        rc = err_set(err, -ERR_FORMAT, "%s: expected a tensor t of 1 to %d values", path,
                     VELOCITY_ROWS_MAX);
    const bool upscaler = rc == 0 && sizes->upscaled > 0 && st_find(&st, "beside");
    p.rows = (int)rows;
    p.image = upscaler ? sizes->upscaled : sizes->image;
    const struct part parts[] = {
        images_part("x", rows, p.channels, p.image, NULL),
        {"t", ST_F32, 1, {rows}, NULL},
        {"labels", ST_I32, 1, {rows}, NULL},
        images_part("beside", rows, p.channels, p.image, NULL),
    };
    void *to[4] = {NULL, NULL, NULL, NULL};
    if (rc == 0)
        rc = copy_parts(&map, &st, parts, upscaler ? 4 : 3, to, err);
    p.x = to[0];
    p.t = to[1];
    p.labels = to[2];
    p.beside = to[3];
    if (rc == 0 && (rc = check_points(&p, sizes->classes, err)) < 0)
        (void)err_wrap(err, "%s", path);
    st_release(&st);
    file_map_close(&map);
    if (rc < 0) {
        velocity_points_release(&p);
        return rc;
    }
    *ret = p;
    return 0;
}

void velocity_points_release(struct velocity_points *p)
{
    mem_free(p->x);
    mem_free(p->t);
    mem_free(p->labels);
    mem_free(p->beside);
    *p = (struct velocity_points){0};
}

int velocity_read_result(const char *path, float *v, int rows, int channels, int image,
                         struct err *err)
{
    const struct part part = images_part("v", (uint64_t)rows, channels, image, NULL);
    const uint8_t *from;
    struct file_map map = {0};
    struct st st = {0};
    int rc = open_map(path, &map, &st, err);
    if (rc == 0)
        rc = find(&map, &st, &part, &from, err);
    if (rc == 0) {
        memcpy(v, from, part_bytes(&part));
        if ((rc = check_finite(v, part_bytes(&part) / sizeof(*v), "v", err)) < 0)
            (void)err_wrap(err, "%s", path);
    }
    st_release(&st);
    file_map_close(&map);
    return rc;
}
