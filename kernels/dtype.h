/* Element types of tensors and the exact conversions between them.
 *
 * f32 is IEEE single.  bf16 is its upper half: the conversion rounds to nearest,
 * ties to even, and keeps NaN a (quiet) NaN; widening is exact.  Every
 * implementation of the operations rounds this way, except that a vectorised
 * one may flush bf16 denormals (below 1.2e-38) to zero, as the CPU does. */
#ifndef KERNELS_DTYPE_H
#define KERNELS_DTYPE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* A profile's kind holds these numbers (matmul_kind). */
enum dtype {
    DT_F32 = 0,
    DT_BF16 = 1,
};

/* Storage of one bf16 element. */
typedef uint16_t bf16;

/* Bytes of one element. */
static inline size_t dtype_bytes(enum dtype dt)
{
    return dt == DT_BF16 ? 2 : 4;
}

static inline const char *dtype_name(enum dtype dt)
{
    return dt == DT_BF16 ? "bf16" : "f32";
}

/* Exact. */
static inline float bf16_to_f32(bf16 h)
{
    uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

/* To the nearest, ties to even. */
static inline bf16 bf16_from_f32(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (bf16)((u >> 16) | 0x0040u);
    return (bf16)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

/* Element i of a tensor of either type; for references and tests, not for speed. */
static inline float dtype_get(const void *p, enum dtype dt, size_t i)
{
    return dt == DT_BF16 ? bf16_to_f32(((const bf16 *)p)[i]) : ((const float *)p)[i];
}

static inline void dtype_set(void *p, enum dtype dt, size_t i, float v)
{
    if (dt == DT_BF16)
        ((bf16 *)p)[i] = bf16_from_f32(v);
    else
        ((float *)p)[i] = v;
}

#endif
