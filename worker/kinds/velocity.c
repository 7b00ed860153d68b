#include "worker/kinds/velocity.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdbool.h>
#include <unistd.h>

#include "common/base/err.h"
#include "common/base/file.h"
#include "common/base/mem.h"
#include "common/st/st.h"
#include "worker/net/model.h"

static uint64_t values(int rows, int image)
{
    return (uint64_t)rows * MODEL_CHANNELS * (uint64_t)image * (uint64_t)image;
}

static int declare_images(struct st_writer *w, const char *name, int rows, int image,
                          struct err *err)
{
    const uint64_t side = (uint64_t)image;
    return st_writer_add(w, name, ST_F32, 4,
                         (uint64_t[]){(uint64_t)rows, MODEL_CHANNELS, side, side}, err);
}

int velocity_write(const char *path, const struct velocity_points *p, uint8_t sha256[32],
                   uint64_t *ret_bytes, struct err *err)
{
    const uint64_t rows = (uint64_t)p->rows;
    struct st_writer *w = st_writer_new();
    int rc = declare_images(w, "x", p->rows, p->image, err);
    if (rc == 0)
        rc = st_writer_add(w, "t", ST_F32, 1, &rows, err);
    if (rc == 0)
        rc = st_writer_add(w, "labels", ST_I32, 1, &rows, err);
    if (rc == 0)
        rc = st_writer_open(w, path, err);
    if (rc == 0)
        rc = st_writer_write(w, p->x, values(p->rows, p->image) * sizeof *p->x, err);
    if (rc == 0)
        rc = st_writer_write(w, p->t, rows * sizeof *p->t, err);
    if (rc == 0)
        rc = st_writer_write(w, p->labels, rows * sizeof *p->labels, err);
    if (rc == 0)
        rc = st_writer_commit(w, sha256, ret_bytes, err);
    st_writer_free(w);
    return rc;
}

int velocity_write_result(const char *path, const float *v, int rows, int image, uint8_t sha256[32],
                          uint64_t *ret_bytes, struct err *err)
{
    struct st_writer *w = st_writer_new();
    int rc = declare_images(w, "v", rows, image, err);
    if (rc == 0)
        rc = st_writer_open(w, path, err);
    if (rc == 0)
        rc = st_writer_write(w, v, values(rows, image) * sizeof *v, err);
    if (rc == 0)
        rc = st_writer_commit(w, sha256, ret_bytes, err);
    st_writer_free(w);
    return rc;
}

/* A file that is open, with its header. */
struct reader {
    const char *path;
    int fd;
    struct st st;
};

static int reader_open(struct reader *r, const char *path, struct err *err)
{
    *r = (struct reader){.path = path, .fd = open(path, O_RDONLY | O_CLOEXEC)};
    if (r->fd < 0)
        return err_errno(err, "cannot open %s", path);
    return st_read(r->fd, path, &r->st, err);
}

static void reader_close(struct reader *r)
{
    st_release(&r->st);
    if (r->fd >= 0)
        close(r->fd);
}

static int read_tensor(struct reader *r, const struct st_tensor *t, void *out, struct err *err)
{
    return file_pread_all(r->fd, out, t->bytes, t->offset, r->path, err);
}

static int check_finite(const float *v, uint64_t n, const char *what, struct err *err)
{
    for (uint64_t i = 0; i < n; i++)
        if (!isfinite(v[i]))
            return err_set(err, -ERR_FORMAT, "%s holds a value that is not finite", what);
    return 0;
}

static int expect_images(const struct reader *r, const char *name, int rows, int image,
                         const struct st_tensor **ret, struct err *err)
{
    const uint64_t side = (uint64_t)image;
    return st_expect(&r->st, name, ST_F32, 4,
                     (uint64_t[]){(uint64_t)rows, MODEL_CHANNELS, side, side}, ret, err);
}

static int check_points(const struct velocity_points *p, int classes, struct err *err)
{
    int rc = check_finite(p->x, values(p->rows, p->image), "x", err);
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

/* With the header checked. */
static int read_points(struct reader *r, const struct st_tensor *const tensors[3],
                       struct velocity_points *p, struct err *err)
{
    p->x = mem_try_array(tensors[0]->count, sizeof *p->x);
    p->t = mem_try_array(tensors[1]->count, sizeof *p->t);
    p->labels = mem_try_array(tensors[2]->count, sizeof *p->labels);
    if (!p->x || !p->t || !p->labels)
        return err_set(err, -ENOMEM, "out of memory for %d points", p->rows);
    int rc = read_tensor(r, tensors[0], p->x, err);
    if (rc == 0)
        rc = read_tensor(r, tensors[1], p->t, err);
    if (rc == 0)
        rc = read_tensor(r, tensors[2], p->labels, err);
    return rc;
}

int velocity_read(const char *path, int image, int classes, struct velocity_points *ret,
                  struct err *err)
{
    struct velocity_points p = {.image = image};
    const struct st_tensor *tensors[3] = {0};
    struct reader r;
    int rc = reader_open(&r, path, err);
    const struct st_tensor *t = rc == 0 ? st_find(&r.st, "t") : NULL;
    const uint64_t rows = t && t->rank == 1 ? t->shape[0] : 0;
    if (rc == 0 && (rows < 1 || rows > VELOCITY_ROWS_MAX))
        rc = err_set(err, -ERR_FORMAT, "%s: expected a tensor t of 1 to %d values", path,
                     VELOCITY_ROWS_MAX);
    p.rows = (int)rows;
    if (rc == 0)
        rc = expect_images(&r, "x", p.rows, image, &tensors[0], err);
    if (rc == 0)
        rc = st_expect(&r.st, "t", ST_F32, 1, &rows, &tensors[1], err);
    if (rc == 0)
        rc = st_expect(&r.st, "labels", ST_I32, 1, &rows, &tensors[2], err);
    if (rc == 0)
        rc = read_points(&r, tensors, &p, err);
    if (rc == 0 && (rc = check_points(&p, classes, err)) < 0)
        (void)err_wrap(err, "%s", path);
    reader_close(&r);
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
    *p = (struct velocity_points){0};
}

int velocity_read_result(const char *path, float *v, int rows, int image, struct err *err)
{
    const struct st_tensor *tensor = NULL;
    struct reader r;
    int rc = reader_open(&r, path, err);
    if (rc == 0)
        rc = expect_images(&r, "v", rows, image, &tensor, err);
    if (rc == 0)
        rc = read_tensor(&r, tensor, v, err);
    if (rc == 0 && (rc = check_finite(v, values(rows, image), "v", err)) < 0)
        (void)err_wrap(err, "%s", path);
    reader_close(&r);
    return rc;
}
