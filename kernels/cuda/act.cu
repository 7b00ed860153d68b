/* Activations, and the epilogues of products that cuBLASLt does not take. */
#include "kernels/cuda/common.cuh"

static __device__ __forceinline__ float sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

#define GELU_A 0.7978845608028654f /* sqrt(2/pi) */
#define GELU_B 0.044715f

static __device__ __forceinline__ float gelu(float x)
{
    return 0.5f * x * (1.0f + tanhf(GELU_A * (x + GELU_B * x * x * x)));
}

static __device__ __forceinline__ float gelu_grad(float x)
{
    float t = tanhf(GELU_A * (x + GELU_B * x * x * x));
    return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * GELU_A * (1.0f + 3.0f * GELU_B * x * x);
}

template <typename T> struct silu_fwd_map {
    enum { STEP = 8 };
    T *y;
    const float *x;

    template <bool WIDE> __device__ void at(int64_t i, int64_t left) const
    {
        float v[8];
        load<WIDE, 8>(v, x + i, left);
#pragma unroll
        for (int k = 0; k < 8; k++)
            v[k] *= sigmoid(v[k]);
        store<WIDE, 8>(y + i, v, left);
    }
};

extern "C" int cuda_silu_fwd(struct device *dev, void *y, const float *x, int64_t n, enum dtype dt,
                             struct stream *s)
{
    struct silu_fwd_map<bf16> h = {
        (bf16 *)y, x
    };
    struct silu_fwd_map<float> f = {
        (float *)y, x
    };
    bool wide = aligned16(y, x);
    return dt == DT_BF16 ? map(s, h, n, wide) : map(s, f, n, wide);
}

template <typename T> struct silu_bwd_map {
    enum { STEP = 8 };
    float *dx;
    const T *dy;
    const float *x;
    bool accumulate;

    template <bool WIDE> __device__ void at(int64_t i, int64_t left) const
    {
        float v[8], d[8], old[8] = {0};
        load<WIDE, 8>(v, x + i, left);
        load<WIDE, 8>(d, dy + i, left);
        if (accumulate)
            load<WIDE, 8>(old, dx + i, left);
#pragma unroll
        for (int k = 0; k < 8; k++) {
            float g = sigmoid(v[k]);
            d[k] = old[k] + d[k] * g * (1.0f + v[k] * (1.0f - g));
        }
        store<WIDE, 8>(dx + i, d, left);
    }
};

extern "C" int cuda_silu_bwd(struct device *dev, float *dx, const void *dy, const float *x,
                             int64_t n, enum dtype dt, bool accumulate, struct stream *s)
{
    struct silu_bwd_map<bf16> h = {
        dx, (const bf16 *)dy, x, accumulate
    };
    struct silu_bwd_map<float> f = {
        dx, (const float *)dy, x, accumulate
    };
    bool wide = aligned16(dx, dy, x);
    return dt == DT_BF16 ? map(s, h, n, wide) : map(s, f, n, wide);
}

template <typename T> struct gelu_map {
    enum { STEP = 8 };
    T *y;
    const T *x;

    template <bool WIDE> __device__ void at(int64_t i, int64_t left) const
    {
        float v[8];
        load<WIDE, 8>(v, x + i, left);
#pragma unroll
        for (int k = 0; k < 8; k++)
            v[k] = gelu(v[k]);
        store<WIDE, 8>(y + i, v, left);
    }
};

extern "C" int cuda_gelu_fwd(struct device *dev, void *y, const void *x, int64_t n, enum dtype dt,
                             struct stream *s)
{
    struct gelu_map<bf16> h = {
        (bf16 *)y, (const bf16 *)x
    };
    struct gelu_map<float> f = {
        (float *)y, (const float *)x
    };
    return dt == DT_BF16 ? map(s, h, n, aligned16(y, x)) : map(s, f, n, aligned16(y, x));
}

/* One thread to 8 columns of a row; `pieces` of them make a row. */
template <typename T> struct swiglu_map {
    enum { STEP = 1 };
    T *out;
    const T *dact, *gu;
    int64_t M, pieces;
    bool wide, geglu; /* gelu instead of silu, without a backward */

    template <bool W> __device__ void run(int64_t r, int64_t c) const
    {
        const int64_t left = M - c, gate_at = 2 * r * M + c, up_at = gate_at + M;
        float gate[8], up[8], d[8];
        load<W, 8>(gate, gu + gate_at, left);
        load<W, 8>(up, gu + up_at, left);
        if (!dact) {
#pragma unroll
            for (int k = 0; k < 8; k++)
                d[k] = (geglu ? gelu(gate[k]) : gate[k] * sigmoid(gate[k])) * up[k];
            store<W, 8>(out + r * M + c, d, left);
            return;
        }
        load<W, 8>(d, dact + r * M + c, left);
#pragma unroll
        for (int k = 0; k < 8; k++) {
            float g = gate[k], sig = sigmoid(g);
            gate[k] = d[k] * up[k] * sig * (1.0f + g * (1.0f - sig));
            up[k] = d[k] * g * sig;
        }
        store<W, 8>(out + gate_at, gate, left);
        store<W, 8>(out + up_at, up, left);
    }

    template <bool W> __device__ void at(int64_t i, int64_t left) const
    {
        if (wide)
            run<true>(i / pieces, i % pieces * 8);
        else
            run<false>(i / pieces, i % pieces * 8);
    }
};

template <typename T>
static int swiglu(void *out, const void *dact, const void *gu, int64_t rows, int64_t M, bool geglu,
                  struct stream *s)
{
    struct swiglu_map<T> f = {
        (T *)out, (const T *)dact, (const T *)gu, M,
            (M + 7) / 8, M % 8 == 0 && aligned16(out, dact, gu), geglu
    };
    return map(s, f, rows * f.pieces, false);
}

extern "C" int cuda_swiglu_bwd(struct device *dev, void *dgu, const void *dact, const void *gu,
                               int64_t rows, int64_t M, enum dtype dt, struct stream *s)
{
    return dt == DT_BF16 ? swiglu<bf16>(dgu, dact, gu, rows, M, false, s)
                         : swiglu<float>(dgu, dact, gu, rows, M, false, s);
}

extern "C" int cuda_swiglu_fwd(struct device *dev, void *act, const void *gu, int64_t rows,
                               int64_t M, enum dtype dt, struct stream *s)
{
    return cuda_swiglu_bwd(dev, act, NULL, gu, rows, M, dt, s);
}

extern "C" int cuda_geglu_fwd(struct device *dev, void *act, const void *gu, int64_t rows,
                              int64_t M, enum dtype dt, struct stream *s)
{
    return dt == DT_BF16 ? swiglu<bf16>(act, NULL, gu, rows, M, true, s)
                         : swiglu<float>(act, NULL, gu, rows, M, true, s);
}

template <typename T> struct activation_map {
    enum { STEP = 8 };
    T *y;
    const T *x;
    enum activation act;

    template <bool WIDE> __device__ void at(int64_t i, int64_t left) const
    {
        float v[8];
        load<WIDE, 8>(v, x + i, left);
#pragma unroll
        for (int k = 0; k < 8; k++) {
            if (act == ACT_GELU)
                v[k] *= 0.5f * erfcf(-0.70710678f * v[k]);
            else if (act == ACT_RELU)
                v[k] = v[k] < 0 ? 0 : v[k];
            else
                v[k] *= sigmoid(act == ACT_SILU ? v[k] : 1.702f * v[k]);
        }
        store<WIDE, 8>(y + i, v, left);
    }
};

extern "C" int cuda_activation(struct device *dev, void *y, const void *x, int64_t n,
                               enum activation act, enum dtype dt, struct stream *s)
{
    struct activation_map<bf16> h = {
        (bf16 *)y, (const bf16 *)x, act
    };
    struct activation_map<float> f = {
        (float *)y, (const float *)x, act
    };
    bool wide = aligned16(y, x);
    return dt == DT_BF16 ? map(s, h, n, wide) : map(s, f, n, wide);
}

/* Bias and epilogue of a product that lies in `from`. */
template <typename C, typename F> struct epilogue_map {
    enum { STEP = 1 };
    C *c, *aux;
    const F *from;
    const float *bias;
    int64_t n, ldc, from_ld, pieces;
    enum mm_epilogue epilogue;
    bool accumulate, wide;

    template <bool W> __device__ void run(int64_t r, int64_t j) const
    {
        const int64_t left = n - j, at = r * ldc + j;
        float v[8], b[8], u[8];
        load<W, 8>(v, from + r * from_ld + j, left);
        if (bias)
            load<W, 8>(b, bias + j, left);
        if (accumulate)
            load<W, 8>(u, c + at, left);
        if (epilogue == MM_DGELU)
            load<W, 8>(u, (const C *)aux + at, left);
#pragma unroll
        for (int k = 0; k < 8; k++) {
            v[k] += bias ? b[k] : 0.0f;
            if (accumulate)
                v[k] += u[k];
            if (epilogue == MM_DGELU)
                v[k] *= gelu_grad(u[k]);
        }
        if (epilogue == MM_GELU && aux)
            store<W, 8>(aux + at, v, left);
        if (epilogue == MM_GELU) {
#pragma unroll
            for (int k = 0; k < 8; k++)
                v[k] = gelu(v[k]);
        }
        store<W, 8>(c + at, v, left);
    }

    template <bool W> __device__ void at(int64_t i, int64_t left) const
    {
        if (wide)
            run<true>(i / pieces, i % pieces * 8);
        else
            run<false>(i / pieces, i % pieces * 8);
    }
};

template <typename C, typename F>
static int epilogue(const struct matmul *mm, const void *from, int64_t from_ld, struct stream *s)
{
    struct epilogue_map<C, F> f;
    f.c = (C *)mm->c;
    f.aux = (C *)mm->aux;
    f.from = (const F *)from;
    f.bias = mm->bias;
    f.n = mm->n;
    f.ldc = mm->ldc ? mm->ldc : mm->n;
    f.from_ld = from_ld;
    f.pieces = (mm->n + 7) / 8;
    f.epilogue = mm->epilogue;
    f.accumulate = mm->accumulate;
    f.wide = mm->n % 8 == 0 && f.ldc % 8 == 0 && from_ld % 8 == 0 &&
             aligned16(mm->c, mm->aux, from, mm->bias);
    return map(s, f, mm->m * f.pieces, false);
}

extern "C" int cuda_epilogue(const struct matmul *mm, const void *from, int64_t from_ld,
                             enum dtype from_dt, struct stream *s)
{
    if (from_dt == DT_BF16)
        return mm->c_dt == DT_BF16 ? epilogue<bf16, bf16>(mm, from, from_ld, s)
                                   : epilogue<float, bf16>(mm, from, from_ld, s);
    return mm->c_dt == DT_BF16 ? epilogue<bf16, float>(mm, from, from_ld, s)
                               : epilogue<float, float>(mm, from, from_ld, s);
}
