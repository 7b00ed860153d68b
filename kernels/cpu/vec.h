/* Vectors of the instruction set that a *_vec.c file is being built for, and functions of whole
 * vectors, written once for all of them.
 *
 * The Makefile builds each *_vec.c once per instruction set, with ISA as its name (avx2,
 * avx512, avx512bf16) and ISA_BITS as the width of a vector. */
#ifndef KERNELS_CPU_VEC_H
#define KERNELS_CPU_VEC_H

#ifndef ISA /* a tool that reads this file alone */
#define ISA avx2
#define ISA_BITS 256
#endif

#if ISA_BITS == 512
#include "kernels/cpu/vec_avx512.h"
#else
#include "kernels/cpu/vec_avx2.h"
#endif

/* FOR_ISA(name) is the name followed by that of the instruction set: one per build. */
#define FOR_ISA(name) ISA_NAME(name, ISA)
#define ISA_NAME(name, isa) ISA_JOIN(name, isa)
#define ISA_JOIN(name, isa) name##_##isa

/* Lane by lane, rounded once. */
static inline vf v_add(vf a, vf b)
{
    return a + b;
}

static inline vf v_sub(vf a, vf b)
{
    return a - b;
}

static inline vf v_mul(vf a, vf b)
{
    return a * b;
}

static inline vf v_div(vf a, vf b)
{
    return a / b;
}

/* exp(x): x = n ln2 + r, |r| <= ln2/2, the series to degree 6; below
 * 3 ulp.  Clamped to [-87.3, 88.7]; NaN stays NaN. */
static inline vf v_exp(vf x)
{
    /* max and min return the second operand on NaN, so x comes second. */
    x = v_min(v_set(88.72283f), v_max(v_set(-87.33654f), x));
    vf n = v_round(v_mul(x, v_set(1.44269504f)));
    vf r = v_fnma(n, v_set(0.693145752f), x);
    r = v_fnma(n, v_set(1.42860677e-6f), r);
    vf p = v_fma(v_set(1.38888889e-3f), r, v_set(8.33333333e-3f));
    p = v_fma(p, r, v_set(4.16666667e-2f));
    p = v_fma(p, r, v_set(1.66666667e-1f));
    p = v_fma(p, r, v_set(0.5f));
    p = v_fma(v_mul(p, r), r, r);
    return v_scale2(v_add(p, v_set(1.0f)), n);
}

/* cos(x), and sin(x) in *ret_sin, for |x| up to 2^21; below 2e-7 off.  x = n pi/2 + r with
 * |r| <= pi/4 (the products are exact up to that n), then the series of both and a
 * rotation by n quarters: q = n mod 4 in -2..2, whose cosine is 1-|q| and sine q(2-|q|). */
static inline vf v_cos_sin(vf x, vf *ret_sin)
{
    vf one = v_set(1), two = v_set(2);
    vf n = v_round(v_mul(x, v_set(0.636619772f)));
    vf r = v_fnma(n, v_set(1.57079637f), x);
    r = v_fnma(n, v_set(-4.37113883e-8f), r);
    vf rr = v_mul(r, r);
    vf s = v_fma(v_fma(v_set(-1.9515295891e-4f), rr, v_set(8.3321608736e-3f)), rr,
                 v_set(-1.6666654611e-1f));
    s = v_fma(v_mul(s, rr), r, r);
    vf c = v_fma(v_fma(v_set(2.443315711809948e-5f), rr, v_set(-1.388731625493765e-3f)), rr,
                 v_set(4.166664568298827e-2f));
    c = v_fma(v_mul(rr, rr), c, v_fnma(rr, v_set(0.5f), one));
    vf q = v_fnma(v_round(v_mul(n, v_set(0.25f))), v_set(4), n);
    vf size = v_max(q, v_sub(v_zero(), q));
    vf qc = v_sub(one, size), qs = v_mul(q, v_sub(two, size));
    *ret_sin = v_fma(qc, s, v_mul(qs, c));
    return v_fnma(qs, s, v_mul(qc, c));
}

static inline vf v_sigmoid(vf x)
{
    return v_rcp(v_add(v_set(1.0f), v_exp(v_sub(v_zero(), x))));
}

/* gelu_tanh(x) = x * sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x³), since
 * (1 + tanh u)/2 = sigmoid(2u). */
static inline vf v_gelu(vf x)
{
    vf u2 = v_mul(
        x, v_fma(v_mul(x, x), v_set(2 * 0.7978845608f * 0.044715f), v_set(2 * 0.7978845608f)));
    return v_mul(x, v_sigmoid(u2));
}

/* d gelu = s + x s (1-s) 2u' with s = sigmoid(2u). */
static inline vf v_gelu_grad(vf x)
{
    vf xx = v_mul(x, x);
    vf u2 = v_mul(x, v_fma(xx, v_set(2 * 0.7978845608f * 0.044715f), v_set(2 * 0.7978845608f)));
    vf du2 = v_fma(xx, v_set(6 * 0.7978845608f * 0.044715f), v_set(2 * 0.7978845608f));
    vf s = v_sigmoid(u2);
    return v_fma(v_mul(v_mul(x, s), v_sub(v_set(1.0f), s)), du2, s);
}

/* x (1 + erf(x / sqrt 2)) / 2, for the error function by Abramowitz and Stegun's 7.1.26, below
 * 2e-7 off: with z = |x| / sqrt 2 and t = 1 / (1 + 0.3275911 z), erfc(z) = poly(t) exp(-z²). */
static inline vf v_gelu_erf(vf x)
{
    vf size = v_max(x, v_sub(v_zero(), x));
    vf t = v_rcp(v_fma(size, v_set(0.3275911f * 0.70710678f), v_set(1)));
    vf p = v_fma(v_set(0.5f * 1.061405429f), t, v_set(0.5f * -1.453152027f));
    p = v_fma(p, t, v_set(0.5f * 1.421413741f));
    p = v_fma(p, t, v_set(0.5f * -0.284496736f));
    p = v_fma(p, t, v_set(0.5f * 0.254829592f));
    vf tail = v_mul(v_mul(p, t), v_exp(v_mul(v_mul(x, x), v_set(-0.5f))));
    /* x times 1 - tail from 0 on, times tail below: x⁺ - |x| tail. */
    return v_fnma(size, tail, v_max(v_zero(), x));
}

/* Load and store of either type; dt is a constant where these are inlined. */
static inline vf v_load_dt(const void *p, enum dtype dt, int64_t i, vmask m)
{
    return dt == DT_BF16 ? v_load_bf16((const bf16 *)p + i, m) : v_load((const float *)p + i, m);
}

static inline void v_store_dt(void *p, enum dtype dt, int64_t i, vmask m, vf x)
{
    if (dt == DT_BF16)
        v_store_bf16((bf16 *)p + i, m, x);
    else
        v_store((float *)p + i, m, x);
}

#endif
