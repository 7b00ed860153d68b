#include "worker/fit/gram.h"

#include "kernels/kernels.h"

struct gram {
    struct device *dev;
    uint32_t m, n;
    void *a, *b, *c; /* device: (GRAM_ROWS,m), (GRAM_ROWS,n), (m,n) */
    float *host;     /* (m,n) of one block */
    double *sum;     /* (m,n) */
};

int gram_new(struct device *dev, uint32_t m, uint32_t n, struct gram **ret, struct err *err)
{
    if (m == 0 || n == 0)
        return err_set(err, -EINVAL, "a sum of shape %u x %u", m, n);
    struct gram *g = mem_try_zero(sizeof(*g));
    if (!g)
        return err_set(err, -ENOMEM, "no memory");
    g->dev = dev;
    g->m = m;
    g->n = n;
    size_t values = (size_t)m * n;
    g->host = mem_try_array(values, sizeof(float));
    g->sum = mem_try_array(values, sizeof(double));
    int rc = g->host && g->sum ? 0 : err_set(err, -ENOMEM, "no memory for %u x %u sums", m, n);
    if (rc == 0)
        rc = dev->ops->alloc(dev, (size_t)GRAM_ROWS * m * sizeof(float), &g->a, err);
    if (rc == 0)
        rc = dev->ops->alloc(dev, (size_t)GRAM_ROWS * n * sizeof(float), &g->b, err);
    if (rc == 0)
        rc = dev->ops->alloc(dev, values * sizeof(float), &g->c, err);
    if (rc < 0) {
        gram_free(g);
        return rc;
    }
    *ret = g;
    return 0;
}

void gram_free(struct gram *g)
{
    if (!g)
        return;
    g->dev->ops->free(g->dev, g->a);
    g->dev->ops->free(g->dev, g->b);
    g->dev->ops->free(g->dev, g->c);
    mem_free(g->host);
    mem_free(g->sum);
    mem_free(g);
}

void gram_clear(struct gram *g)
{
    memset(g->sum, 0, (size_t)g->m * g->n * sizeof(double));
}

int gram_add(struct gram *g, const float *a, const float *b, uint32_t rows, struct err *err)
{
    const struct matmul mm = {
        .layout = MM_TN,
        .m = g->m,
        .n = g->n,
        .k = rows,
        .c = g->c,
        .a = g->a,
        .b = g->b,
        .dt = DT_F32,
        .c_dt = DT_F32,
    };
    const struct kernel_ops *ops = g->dev->ops;
    size_t values = (size_t)g->m * g->n;
    int rc = rows <= GRAM_ROWS ? 0 : -EINVAL;
    if (rc == 0)
        rc = ops->copy(g->dev, g->a, a, (size_t)rows * g->m * sizeof(float), COPY_TO_DEVICE, NULL);
    if (rc == 0)
        rc = ops->copy(g->dev, g->b, b, (size_t)rows * g->n * sizeof(float), COPY_TO_DEVICE, NULL);
    if (rc == 0)
        rc = ops->matmul(g->dev, &mm, NULL);
    if (rc == 0)
        rc = ops->copy(g->dev, g->host, g->c, values * sizeof(float), COPY_FROM_DEVICE, NULL);
    if (rc == 0)
        rc = ops->sync(g->dev, NULL, NULL);
    if (rc < 0)
        return err_set(err, rc, "a product of %u x %u x %u on %s: %s", g->m, g->n, rows,
                       g->dev->name, err_text(rc));
    for (size_t i = 0; i < values; i++)
        g->sum[i] += (double)g->host[i];
    return 0;
}

double *gram_sum(struct gram *g)
{
    return g->sum;
}
