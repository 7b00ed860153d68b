#include "kernels/cpu/ref.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "kernels/cpu/cpu.h"

static int mem_alloc_aligned(struct device *dev, size_t bytes, void **ret, struct err *err)
{
    if (bytes > SIZE_MAX - 63)
        return err_set(err, -ENOMEM, "%zu bytes of device memory cannot be addressed", bytes);
    void *p = aligned_alloc(64, bytes ? (bytes + 63) / 64 * 64 : 64);
    if (!p)
        return err_set(err, -ENOMEM, "no memory for %zu bytes on device %s", bytes, dev->name);
    *ret = p;
    return 0;
}

static void mem_release(struct device *dev, void *p)
{
    free(p);
}

static int copy(struct device *dev, void *dst, const void *src, size_t bytes, enum copy_kind kind,
                struct stream *s)
{
    if (bytes)
        memcpy(dst, src, bytes);
    return 0;
}

static int zero(struct device *dev, void *dst, size_t bytes, struct stream *s)
{
    if (bytes)
        memset(dst, 0, bytes);
    return 0;
}

static int stream_new(struct device *dev, struct stream **ret, struct err *err)
{
    *ret = NULL;
    return 0;
}

static void stream_free(struct device *dev, struct stream *s)
{
}

static int sync_stream(struct device *dev, struct stream *s, struct err *err)
{
    return 0;
}

static int stream_follow(struct device *dev, struct stream *s, struct stream *after)
{
    return 0;
}

const struct kernel_ops cpu_ref_ops = {
    .alloc = mem_alloc_aligned,
    .free = mem_release,
    .copy = copy,
    .zero = zero,
    .memory = cpu_memory,
    .stream_new = stream_new,
    .stream_free = stream_free,
    .sync = sync_stream,
    .stream_follow = stream_follow,
    .alloc_host = mem_alloc_aligned,
    .free_host = mem_release,
    .matmul = ref_matmul,
    .adaln_fwd = ref_adaln_fwd,
    .adaln_bwd = ref_adaln_bwd,
    .rmsnorm_fwd = ref_rmsnorm_fwd,
    .rmsnorm_bwd = ref_rmsnorm_bwd,
    .rope = ref_rope,
    .swiglu_fwd = ref_swiglu_fwd,
    .swiglu_bwd = ref_swiglu_bwd,
    .cross_entropy = ref_cross_entropy,
    .mean_tokens = ref_mean_tokens,
    .attention_fwd = ref_attention_fwd,
    .attention_bwd = ref_attention_bwd,
    .bias_grad = ref_bias_grad,
    .silu_fwd = ref_silu_fwd,
    .silu_bwd = ref_silu_bwd,
    .gelu_fwd = ref_gelu_fwd,
    .gelu_bwd = ref_gelu_bwd,
    .embed_fwd = ref_embed_fwd,
    .embed_bwd = ref_embed_bwd,
    .timestep_embed = ref_timestep_embed,
    .patchify = ref_patchify,
    .unpatchify = ref_unpatchify,
    .image_from_u8 = ref_image_from_u8,
    .image_to_u8 = ref_image_to_u8,
    .flow_mix = ref_flow_mix,
    .mse = ref_mse,
    .adamw = ref_adamw,
    .sumsq = ref_sumsq,
    .clip_scale = ref_clip_scale,
    .ema = ref_ema,
    .axpy = ref_axpy,
    .axpby = ref_axpby,
    .scale = ref_scale,
    .fill = ref_fill,
    .cast = ref_cast,
    .add_row = ref_add_row,
    .sum_rows = ref_sum_rows,
    .normal = ref_normal,
    .sum = ref_sum,
};
