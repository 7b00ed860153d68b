/* Optimiser and plain vectors: one pass over memory, 16 bytes at a time, and the bits of the
 * CPU, since no product is contracted into a sum. */
#include <math.h>

#include "kernels/cuda/common.cuh"

struct adamw_map {
    enum { STEP = 4 };
    struct adamw p;

    template <bool WIDE> __device__ void at(int64_t i, int64_t left) const
    {
        float x[4], m[4], v[4], g[4];
        const float gs = p.grad_scale ? *p.grad_scale : 1.0f;
        const struct adamw_now now = *p.now;
        load<WIDE, 4>(x, p.p + i, left);
        load<WIDE, 4>(m, p.m + i, left);
        load<WIDE, 4>(v, p.v + i, left);
        load<WIDE, 4>(g, p.grad + i, left);
#pragma unroll
        for (int k = 0; k < 4; k++) {
            g[k] = mul(g[k], gs);
            m[k] = add(mul(p.beta1, m[k]), mul(1.0f - p.beta1, g[k]));
            v[k] = add(mul(p.beta2, v[k]), mul(mul(1.0f - p.beta2, g[k]), g[k]));
            x[k] = add(x[k], -mul(mul(now.lr, p.weight_decay), x[k]));
            const float step =
                mul(now.lr, mul(m[k], now.correct1)) / add(sqrtf(mul(v[k], now.correct2)), p.eps);
            x[k] = add(x[k], -step);
        }
        if (!isfinite(gs)) /* asked here, nothing waits for it before it must */
            return;
        store<WIDE, 4>(p.p + i, x, left);
        store<WIDE, 4>(p.m + i, m, left);
        store<WIDE, 4>(p.v + i, v, left);
        if (p.p_bf16)
            store<WIDE, 4>(p.p_bf16 + i, x, left);
    }
};

extern "C" int cuda_adamw(struct device *dev, const struct adamw *p, struct stream *s)
{
    const struct adamw_map f = {*p};
    return map(s, f, p->n, aligned16(p->p, p->p_bf16, p->m, p->v, p->grad));
}

/* out = a x + b y; the same for all linear operations. */
struct linear_map {
    enum { STEP = 4 };
    float *out;
    const float *x, *y;
    float a, b;

    template <bool WIDE> __device__ void at(int64_t i, int64_t left) const
    {
        float u[4], w[4];
        load<WIDE, 4>(u, x + i, left);
        load<WIDE, 4>(w, y + i, left);
#pragma unroll
        for (int k = 0; k < 4; k++)
            u[k] = add(mul(a, u[k]), mul(b, w[k]));
        store<WIDE, 4>(out + i, u, left);
    }
};

extern "C" int cuda_axpby(struct device *dev, float *out, float a, const float *x, float b,
                          const float *y, int64_t n, struct stream *s)
{
    struct linear_map f = {out, x, y, a, b};
    return map(s, f, n, aligned16(out, x, y));
}

/* y + a x: 1 y is y to the bit. */
extern "C" int cuda_axpy(struct device *dev, float *y, float a, const float *x, int64_t n,
                         struct stream *s)
{
    return cuda_axpby(dev, y, 1.0f, y, a, x, n, s);
}

struct fill_map {
    enum { STEP = 4 };
    float *x;
    float value;

    template <bool WIDE> __device__ void at(int64_t i, int64_t left) const
    {
        const float v[4] = {value, value, value, value};
        store<WIDE, 4>(x + i, v, left);
    }
};

extern "C" int cuda_fill(struct device *dev, float *x, float value, int64_t n, struct stream *s)
{
    struct fill_map f = {x, value};
    return map(s, f, n, aligned16(x));
}

template <typename D, typename S> struct cast_map {
    enum { STEP = 8 };
    D *dst;
    const S *src;

    template <bool WIDE> __device__ void at(int64_t i, int64_t left) const
    {
        float v[8];
        load<WIDE, 8>(v, src + i, left);
        store<WIDE, 8>(dst + i, v, left);
    }
};

template <typename D, typename S>
static int cast_to(void *dst, const void *src, int64_t n, struct stream *s)
{
    struct cast_map<D, S> f = {
        (D *)dst, (const S *)src
    };
    return map(s, f, n, aligned16(dst, src));
}

extern "C" int cuda_cast(struct device *dev, void *dst, enum dtype dst_dt, const void *src,
                         enum dtype src_dt, int64_t n, struct stream *s)
{
    if (dst_dt == src_dt)
        return cuda_copy(dev, dst, src, (size_t)n * dtype_bytes(src_dt), COPY_DEVICE, s);
    return dst_dt == DT_BF16 ? cast_to<bf16, float>(dst, src, n, s)
                             : cast_to<float, bf16>(dst, src, n, s);
}

struct add_row_map {
    enum { STEP = 4 };
    float *x;
    const float *row;
    int64_t m;

    template <bool WIDE> __device__ void at(int64_t i, int64_t left) const
    {
        float v[4], r[4];
        load<WIDE, 4>(v, x + i, left);
        if (WIDE) {
            load<true, 4>(r, row + i % m, 4);
        } else {
#pragma unroll
            for (int k = 0; k < 4; k++)
                r[k] = k < left ? row[(i + k) % m] : 0.0f;
        }
#pragma unroll
        for (int k = 0; k < 4; k++)
            v[k] += r[k];
        store<WIDE, 4>(x + i, v, left);
    }
};

extern "C" int cuda_add_row(struct device *dev, float *x, const float *row, int B, int64_t m,
                            struct stream *s)
{
    struct add_row_map f = {x, row, m};
    return map(s, f, B * m, m % 4 == 0 && aligned16(x, row));
}

struct flow_map {
    enum { STEP = 4 };
    float *xt, *target;
    const float *x0, *eps, *t;
    int64_t n;

    template <bool WIDE> __device__ void at(int64_t i, int64_t left) const
    {
        float a[4], e[4], d[4];
        load<WIDE, 4>(a, x0 + i, left);
        load<WIDE, 4>(e, eps + i, left);
        float now = t[i / n];
#pragma unroll
        for (int k = 0; k < 4; k++) {
            if (!WIDE && k < left)
                now = t[(i + k) / n];
            d[k] = e[k] - a[k];
            a[k] = add(mul(1.0f - now, a[k]), mul(now, e[k]));
        }
        store<WIDE, 4>(xt + i, a, left);
        store<WIDE, 4>(target + i, d, left);
    }
};

extern "C" int cuda_flow_mix(struct device *dev, float *xt, float *target, const float *x0,
                             const float *eps, const float *t, int B, int64_t n, struct stream *s)
{
    struct flow_map f = {xt, target, x0, eps, t, n};
    return map(s, f, B * n, n % 4 == 0 && aligned16(xt, target, x0, eps));
}

/* ---- the posterior of a VAE ---- */

template <typename T> struct posterior_map {
    enum { STEP = 1 };
    float *x0;
    const T *moments;
    const float *noise;
    const float *shift, *mul;
    int C;
    int64_t n;

    template <bool WIDE> __device__ void at(int64_t i, int64_t left) const
    {
        const int64_t all = C * n, c = i % all / n;
        const T *mean = moments + i / all * 2 * all + i % all;
        const float logvar = fminf(fmaxf(widen(mean[all]), -30.0f), 20.0f);
        x0[i] = (widen(mean[0]) + expf(0.5f * logvar) * noise[i] - shift[c]) * mul[c];
    }
};

extern "C" int cuda_posterior(struct device *dev, float *x0, const void *moments,
                              const float *noise, const float *shift, const float *mul, int B,
                              int C, int64_t n, enum dtype dt, struct stream *s)
{
    struct posterior_map<bf16> h = {
        x0, (const bf16 *)moments, noise, shift, mul, C, n
    };
    struct posterior_map<float> f = {
        x0, (const float *)moments, noise, shift, mul, C, n
    };
    return dt == DT_BF16 ? map(s, h, B * C * n, false) : map(s, f, B * C * n, false);
}
