#define GEMM_BF16 1
#define GEMM_MUL(acc, a, b)                                                                        \
    _mm512_dpbf16_ps(acc, (__m512bh)_mm512_castps_si512(a), (__m512bh)_mm512_castps_si512(b))

#include "kernels/cpu/gemm_body.inc"

const struct gemm_kernel gemm_bf16_avx512 = {
    .packed = packed_table,
    .inplace = inplace_table,
    .pack_b_nn = pack_b_nn,
    .pack_b_nt = pack_b_nt,
    .pack_a_tn = pack_a_tn,
    .pack_a_nt = pack_a_nt,
    .direct = direct,
    .store = store_tile,
};
