#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/elem.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/matmul_onednn.h"

#if defined(__x86_64__)
static void install_avx2(struct cpu_state *st)
{
    elem_install_avx2(&st->inner);
    adaln_install_avx2(&st->inner);
    decoder_install_avx2(&st->inner);
    sample_install_avx2(&st->inner);
    attention_install_avx2(&st->inner);
    st->gemm[DT_F32] = &gemm_f32_avx2;
    st->inner.matmul = gemm_matmul;
}

static void install_avx512(struct cpu_state *st)
{
    elem_install_avx512(&st->inner);
    adaln_install_avx512(&st->inner);
    decoder_install_avx512(&st->inner);
    sample_install_avx512(&st->inner);
    attention_install_avx512(&st->inner);
    st->gemm[DT_F32] = &gemm_f32_avx512;
}

static void install_avx512_bf16(struct cpu_state *st)
{
    elem_install_avx512bf16(&st->inner);
    adaln_install_avx512bf16(&st->inner);
    decoder_install_avx512bf16(&st->inner);
    sample_install_avx512bf16(&st->inner);
    attention_install_avx512bf16(&st->inner);
    st->gemm[DT_BF16] = &gemm_bf16_avx512;
}

/* bf16 goes to oneDNN where that has tiles; the rest stays with us. */
static int tiles_matmul(struct device *dev, const struct matmul *mm, struct stream *s)
{
    return (mm->dt == DT_BF16 ? onednn_matmul : gemm_matmul)(dev, mm, s);
}
#endif

int cpu_fast_ops(struct cpu_state *st, const struct cpu_isa *isa, int threads)
{
#if defined(__x86_64__)
    if (!isa->avx2)
        return 0;
    install_avx2(st);
    if (isa->avx512)
        install_avx512(st);
    if (isa->avx512_bf16)
        install_avx512_bf16(st);
    const char *forced = getenv("SKERRY_CPU_MATMUL"); /* for tests: own, onednn */
    if (forced ? strcmp(forced, "onednn") != 0 : !isa->avx512_bf16 || !onednn_has_tiles())
        return 0;
    st->onednn = onednn_new(threads);
    if (!st->onednn)
        return -ENOMEM;
    st->inner.matmul = forced ? onednn_matmul : tiles_matmul;
#endif
    return 0;
}
