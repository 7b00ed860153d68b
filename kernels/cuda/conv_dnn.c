#include "kernels/cuda/conv_dnn.h"

#include "kernels/cuda/dnn.h"

/* Why cuDNN cannot do it; NULL: it may. */
static const char *unfit(const struct conv2d *p)
{
    const uintptr_t all = (uintptr_t)p->x | (uintptr_t)p->w | (uintptr_t)p->y | (uintptr_t)p->add |
                          (uintptr_t)p->bias;
    if (p->Cin % 8 || p->Cout % 8 || all & 15)
        return "channels that are no multiple of 8, or alignment";
    if (p->up2)
        return "an enlarged input";
    return NULL;
}

int conv_dnn_fwd(const struct conv2d *p, struct stream *s)
{
    struct dnn_call call = {.kind = DNN_CONVOLUTION, .unfit = unfit(p)};
    call.shape.conv = (struct conv_shape){p->B,
                                          p->H,
                                          p->W,
                                          p->Cin,
                                          p->Cout,
                                          conv2d_side(p, p->H),
                                          conv2d_side(p, p->W),
                                          p->k,
                                          p->stride,
                                          p->pad_low,
                                          p->pad_high,
                                          p->bias != NULL,
                                          p->add != NULL};
    call.at[CONV_X] = (void *)p->x;
    call.at[CONV_W] = (void *)p->w;
    call.at[CONV_BIAS] = (void *)p->bias;
    call.at[CONV_ADD] = (void *)p->add;
    call.at[CONV_Y] = p->y;
    /* cuDNN does not promise that its engines read the whole residual before they write there. */
    const size_t bytes = (size_t)p->B * (size_t)call.shape.conv.Ho * (size_t)call.shape.conv.Wo *
                         (size_t)p->Cout * sizeof(bf16);
    call.room[CONV_Y] = p->add == p->y ? bytes : 0;
    int rc = dnn_run(&call, s);
    if (rc != 0 || p->add != p->y)
        return rc;
    return cuda_check(
        s->st, cudaMemcpyAsync(p->y, call.at[CONV_Y], bytes, cudaMemcpyDeviceToDevice, s->handle));
}
