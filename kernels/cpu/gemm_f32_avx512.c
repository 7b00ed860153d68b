#define GEMM_BF16 0
#define GEMM_MUL(acc, a, b) _mm512_fmadd_ps(a, b, acc)

#include "kernels/cpu/gemm_body.inc"

const struct gemm_kernel gemm_f32_avx512 = {
    .packed = packed_table,
    .inplace = inplace_table,
    .pack_b_nn = pack_b_nn,
    .pack_b_nt = pack_b_nt,
    .pack_a_tn = pack_a_tn,
    .pack_a_nt = pack_a_nt,
    .direct = direct,
    .store = store_tile,
};
