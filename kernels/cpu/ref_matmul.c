#include "kernels/cpu/ref.h"

static float a_at(const struct matmul *mm, int64_t i, int64_t p)
{
    int64_t lda = mm->lda ? mm->lda : (mm->layout == MM_TN ? mm->m : mm->k);
    int64_t at = mm->layout == MM_TN ? p * lda + i : i * lda + p;
    return dtype_get(mm->a, mm->dt, (size_t)at);
}

static float b_at(const struct matmul *mm, int64_t p, int64_t j)
{
    int64_t ldb = mm->ldb ? mm->ldb : (mm->layout == MM_NT ? mm->k : mm->n);
    int64_t at = mm->layout == MM_NT ? j * ldb + p : p * ldb + j;
    return dtype_get(mm->b, mm->dt, (size_t)at);
}

static void store(const struct matmul *mm, int64_t i, int64_t j, float v)
{
    size_t at = (size_t)(i * (mm->ldc ? mm->ldc : mm->n) + j);
    switch (mm->epilogue) {
    case MM_PLAIN:
        if (mm->accumulate)
            v += ((float *)mm->c)[at];
        break;
    case MM_GELU:
        if (mm->aux)
            dtype_set(mm->aux, mm->c_dt, at, v);
        v = ref_gelu(v);
        break;
    case MM_DGELU:
        v *= ref_gelu_grad(dtype_get(mm->aux, mm->c_dt, at));
        break;
    }
    dtype_set(mm->c, mm->c_dt, at, v);
}

int ref_matmul(struct device *dev, const struct matmul *mm, struct stream *s)
{
    for (int64_t i = 0; i < mm->m; i++) {
        for (int64_t j = 0; j < mm->n; j++) {
            float v = 0;
            for (int64_t p = 0; p < mm->k; p++)
                v += a_at(mm, i, p) * b_at(mm, p, j);
            store(mm, i, j, v + (mm->bias ? mm->bias[j] : 0));
        }
        for (int64_t p = 0; mm->a_colsum && p < mm->k; p++)
            mm->a_colsum[i] += a_at(mm, i, p);
    }
    return 0;
}

int ref_bias_grad(struct device *dev, float *db, const void *dy, int64_t m, int64_t n,
                  enum dtype dt, struct stream *s)
{
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++)
            db[j] += dtype_get(dy, dt, (size_t)(i * n + j));
    return 0;
}
