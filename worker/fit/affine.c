#include "worker/fit/affine.h"

#include "kernels/kernels.h"

#define ROWS_MAX 4096
#define BLOCK_VALUES (4u << 20) /* most values of a block of x or y */

struct affine {
    struct device *dev;
    uint32_t d, k, rows;
    void *w, *b, *x, *y; /* device: (k,d), (k), (rows,d), (rows,k) */
    float *host;         /* (rows,k) */
};

static uint32_t rows_of(uint32_t d, uint32_t k)
{
    uint32_t wide = d > k ? d : k;
    uint32_t rows = BLOCK_VALUES / wide;
    rows = rows > ROWS_MAX ? ROWS_MAX : rows;
    return rows < 64 ? 64 : rows / 64 * 64;
}

int affine_new(struct device *dev, uint32_t d, uint32_t k, struct affine **ret, struct err *err)
{
    if (d == 0 || k == 0)
        return err_set(err, -EINVAL, "a product of %u columns into %u", d, k);
    struct affine *a = mem_try_zero(sizeof(*a));
    if (!a)
        return err_set(err, -ENOMEM, "no memory");
    a->dev = dev;
    a->d = d;
    a->k = k;
    a->rows = rows_of(d, k);
    a->host = mem_try_array((size_t)a->rows * k, sizeof(float));
    int rc = a->host ? 0 : err_set(err, -ENOMEM, "no memory for %u scores of a block", k);
    if (rc == 0)
        rc = dev->ops->alloc(dev, (size_t)k * d * sizeof(float), &a->w, err);
    if (rc == 0)
        rc = dev->ops->alloc(dev, (size_t)k * sizeof(float), &a->b, err);
    if (rc == 0)
        rc = dev->ops->alloc(dev, (size_t)a->rows * d * sizeof(float), &a->x, err);
    if (rc == 0)
        rc = dev->ops->alloc(dev, (size_t)a->rows * k * sizeof(float), &a->y, err);
    if (rc < 0) {
        affine_free(a);
        return rc;
    }
    *ret = a;
    return 0;
}

void affine_free(struct affine *a)
{
    if (!a)
        return;
    a->dev->ops->free(a->dev, a->w);
    a->dev->ops->free(a->dev, a->b);
    a->dev->ops->free(a->dev, a->x);
    a->dev->ops->free(a->dev, a->y);
    mem_free(a->host);
    mem_free(a);
}

static int upload(struct affine *a, void *to, const float *from, size_t n, struct err *err)
{
    int rc = a->dev->ops->copy(a->dev, to, from, n * sizeof(float), COPY_TO_DEVICE, NULL);
    if (rc == 0)
        rc = a->dev->ops->sync(a->dev, NULL, NULL);
    return rc < 0 ? err_set(err, rc, "copying to %s: %s", a->dev->name, err_text(rc)) : 0;
}

int affine_set(struct affine *a, const float *w, const float *b, struct err *err)
{
    int rc = upload(a, a->w, w, (size_t)a->k * a->d, err);
    if (rc < 0)
        return rc;
    if (b)
        return upload(a, a->b, b, a->k, err);
    rc = a->dev->ops->zero(a->dev, a->b, a->k * sizeof(float), NULL);
    return rc < 0 ? err_set(err, rc, "clearing on %s: %s", a->dev->name, err_text(rc)) : 0;
}

int affine_set_centroids(struct affine *a, const float *c, const float *bias, struct err *err)
{
    float *b = a->host; /* it has at least k values, and is unused between blocks */
    for (uint32_t k = 0; k < a->k; k++) {
        double sum = 0;
        for (uint32_t j = 0; j < a->d; j++)
            sum += (double)c[(size_t)k * a->d + j] * (double)c[(size_t)k * a->d + j];
        b[k] = (float)(-0.5 * sum + (bias ? (double)bias[k] : 0.0));
    }
    return affine_set(a, c, b, err);
}

uint32_t affine_rows(const struct affine *a)
{
    return a->rows;
}

int affine_block(struct affine *a, const float *x, uint32_t rows, const float **ret_y,
                 struct err *err)
{
    const struct matmul mm = {
        .layout = MM_NT,
        .m = rows,
        .n = a->k,
        .k = a->d,
        .c = a->y,
        .a = a->x,
        .b = a->w,
        .bias = a->b,
        .dt = DT_F32,
        .c_dt = DT_F32,
    };
    const struct kernel_ops *ops = a->dev->ops;
    size_t in = (size_t)rows * a->d * sizeof(float), out = (size_t)rows * a->k * sizeof(float);
    int rc = ops->copy(a->dev, a->x, x, in, COPY_TO_DEVICE, NULL);
    if (rc == 0)
        rc = ops->matmul(a->dev, &mm, NULL);
    if (rc == 0)
        rc = ops->copy(a->dev, a->host, a->y, out, COPY_FROM_DEVICE, NULL);
    if (rc == 0)
        rc = ops->sync(a->dev, NULL, NULL);
    if (rc < 0)
        return err_set(err, rc, "a product of %u x %u x %u on %s: %s", rows, a->k, a->d,
                       a->dev->name, err_text(rc));
    *ret_y = a->host;
    return 0;
}

void affine_top(const float *y, uint32_t k, uint32_t top, uint32_t *index, float *value)
{
    if (top == 1) {
        uint32_t best = 0;
        for (uint32_t j = 1; j < k; j++)
            if (y[j] > y[best])
                best = j;
        index[0] = best;
        if (value)
            value[0] = y[best];
        return;
    }
    uint32_t held = 0;
    for (uint32_t j = 0; j < k; j++) {
        if (held == top && !(y[j] > y[index[top - 1]]))
            continue;
        uint32_t at = held < top ? held++ : top - 1;
        for (; at > 0 && y[j] > y[index[at - 1]]; at--)
            index[at] = index[at - 1];
        index[at] = j;
    }
    for (uint32_t j = 0; value && j < top; j++)
        value[j] = y[index[j]];
}

int affine_best(struct affine *a, const float *x, uint64_t n, uint32_t top, uint32_t *index,
                float *value, struct err *err)
{
    if (top == 0 || top > a->k)
        return err_set(err, -EINVAL, "the top %u of %u", top, a->k);
    for (uint64_t at = 0; at < n; at += a->rows) {
        uint32_t rows = n - at < a->rows ? (uint32_t)(n - at) : a->rows;
        const float *y;
        int rc = affine_block(a, x + at * a->d, rows, &y, err);
        if (rc < 0)
            return rc;
        for (uint32_t i = 0; i < rows; i++)
            affine_top(y + (size_t)i * a->k, a->k, top, index + (at + i) * top,
                       value ? value + (at + i) * top : NULL);
    }
    return 0;
}
