/* The specification: every operation as plain loops on one thread.  Entries of
 * cpu_ref_ops; shapes, types and `=`/`+=` are those of kernels/kernels.h. */
#ifndef KERNELS_CPU_REF_H
#define KERNELS_CPU_REF_H

#include "kernels/kernels.h"

/* ref_matmul.c */
int ref_matmul(struct device *dev, const struct matmul *mm, struct stream *s);
int ref_bias_grad(struct device *dev, float *db, const void *dy, int64_t m, int64_t n,
                  enum dtype dt, struct stream *s);

/* ref_adaln.c */
int ref_adaln_fwd(struct device *dev, const struct adaln_fwd *p, struct stream *s);
int ref_adaln_bwd(struct device *dev, const struct adaln_bwd *p, struct stream *s);

/* ref_attention.c */
int ref_attention_fwd(struct device *dev, const struct attention_fwd *p, struct stream *s);
int ref_attention_bwd(struct device *dev, const struct attention_bwd *p, struct stream *s);

/* ref_decoder.c: what a Llama decoder needs besides attention */
int ref_rmsnorm_fwd(struct device *dev, const struct rmsnorm_fwd *p, struct stream *s);
int ref_rmsnorm_bwd(struct device *dev, const struct rmsnorm_bwd *p, struct stream *s);
float ref_rope_freq(float theta, int i, int D); /* theta^(-2i/D) */
int ref_rope(struct device *dev, const struct rope *p, struct stream *s);
int ref_swiglu_fwd(struct device *dev, void *act, const void *gu, int64_t rows, int64_t M,
                   enum dtype dt, struct stream *s);
int ref_swiglu_bwd(struct device *dev, void *dgu, const void *dact, const void *gu, int64_t rows,
                   int64_t M, enum dtype dt, struct stream *s);
int ref_cross_entropy(struct device *dev, const struct cross_entropy *p, struct stream *s);
int ref_mean_tokens(struct device *dev, float *out, const void *x, int B, int T, int C, int begin,
                    int end, const int32_t *len, enum dtype dt, struct stream *s);

/* ref_act.c: activations and embeddings */
float ref_gelu(float x);
float ref_gelu_grad(float x);
int ref_silu_fwd(struct device *dev, void *y, const float *x, int64_t n, enum dtype dt,
                 struct stream *s);
int ref_silu_bwd(struct device *dev, float *dx, const void *dy, const float *x, int64_t n,
                 enum dtype dt, bool accumulate, struct stream *s);
int ref_gelu_fwd(struct device *dev, void *y, const void *x, int64_t n, enum dtype dt,
                 struct stream *s);
int ref_gelu_bwd(struct device *dev, void *dx, const void *dy, const void *x, int64_t n,
                 enum dtype dt, struct stream *s);
int ref_embed_fwd(struct device *dev, float *out, const float *table, const int32_t *ids, int B,
                  int C, int rows, bool accumulate, struct stream *s);
int ref_embed_bwd(struct device *dev, float *dtable, const float *dout, const int32_t *ids, int B,
                  int C, int rows, struct stream *s);
float ref_time_freq(int i, int half); /* 10000^(-i/half) */
int ref_timestep_embed(struct device *dev, void *out, const float *t, int B, int dim, enum dtype dt,
                       struct stream *s);

/* ref_image.c: pixels, patches, flow and loss */
int ref_patchify(struct device *dev, void *out, const float *img, int B, int Ch, int S, int p,
                 enum patch_order order, enum dtype dt, struct stream *s);
int ref_unpatchify(struct device *dev, float *img, const void *in, int B, int Ch, int S, int p,
                   enum patch_order order, enum dtype dt, struct stream *s);
int ref_image_from_u8(struct device *dev, float *img, const uint8_t *u8, int B, int Ch, int S,
                      struct stream *s);
int ref_image_to_u8(struct device *dev, uint8_t *u8, const float *img, int B, int Ch, int S,
                    struct stream *s);
int ref_flow_mix(struct device *dev, float *xt, float *target, const float *x0, const float *eps,
                 const float *t, int B, int64_t n, struct stream *s);
int ref_mse(struct device *dev, float *loss, float *dpred, const float *pred, const float *target,
            const float *w, float grad_scale, int B, int64_t n, struct stream *s);

/* ref_vector.c: optimiser and plain vectors */
int ref_adamw(struct device *dev, const struct adamw *p, struct stream *s);
int ref_sumsq(struct device *dev, double *sum, const float *x, int64_t n, struct stream *s);
int ref_clip_scale(struct device *dev, float *scale, const double *sum, const double *also,
                   float max_norm, struct stream *s);
int ref_ema(struct device *dev, float *ema, const float *x, float decay, int64_t n,
            struct stream *s);
int ref_axpy(struct device *dev, float *y, float a, const float *x, int64_t n, struct stream *s);
int ref_axpby(struct device *dev, float *out, float a, const float *x, float b, const float *y,
              int64_t n, struct stream *s);
int ref_scale(struct device *dev, float *x, float a, int64_t n, struct stream *s);
int ref_fill(struct device *dev, float *x, float value, int64_t n, struct stream *s);
int ref_cast(struct device *dev, void *dst, enum dtype dst_dt, const void *src, enum dtype src_dt,
             int64_t n, struct stream *s);
int ref_add_row(struct device *dev, float *x, const float *row, int B, int64_t m, struct stream *s);
int ref_sum_rows(struct device *dev, float *row, const float *x, int B, int64_t m,
                 struct stream *s);
int ref_sum(struct device *dev, double *sum, const float *x, int64_t n, struct stream *s);
int ref_normal(struct device *dev, float *out, uint64_t seed, const uint64_t *streams, int B,
               int64_t n, struct stream *s);

#endif
