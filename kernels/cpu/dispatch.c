#include "kernels/cpu/cpu.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/elem.h"
#include "kernels/cpu/gemm.h"

void cpu_fast_ops(struct cpu_state *st, const struct cpu_isa *isa)
{
#if defined(__x86_64__)
    if (isa->avx2) {
        elem_install_avx2(&st->inner);
        adaln_install_avx2(&st->inner);
        attention_install_avx2(&st->inner);
        st->gemm[DT_F32] = &gemm_f32_avx2;
        st->inner.matmul = gemm_matmul;
    }
    if (isa->avx512) {
        elem_install_avx512(&st->inner);
        adaln_install_avx512(&st->inner);
        attention_install_avx512(&st->inner);
        st->gemm[DT_F32] = &gemm_f32_avx512;
    }
    if (isa->avx512_bf16) {
        elem_install_avx512bf16(&st->inner);
        adaln_install_avx512bf16(&st->inner);
        attention_install_avx512bf16(&st->inner);
        st->gemm[DT_BF16] = &gemm_bf16_avx512;
    }
#endif
}
