#include "kernels/cpu/cpu.h"
#include "kernels/cpu/gemm.h"

void cpu_fast_ops(struct cpu_state *st, const struct cpu_isa *isa)
{
#if defined(__x86_64__)
    if (isa->avx512) {
        st->gemm[DT_F32] = &gemm_f32_avx512;
        st->inner.matmul = gemm_matmul;
    }
    if (isa->avx512_bf16)
        st->gemm[DT_BF16] = &gemm_bf16_avx512;
#endif
}
