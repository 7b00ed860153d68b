/* The product through oneDNN: for bf16 if oneDNN has tile instructions (AMX), and for all
 * products with SKERRY_CPU_MATMUL=onednn.
 *
 * Our team cuts C into slabs of rows, and each thread runs oneDNN sequentially on its
 * slab: oneDNN's own OpenMP team would wait for a core that our team holds.  Slabs
 * are fixed by the shape, so the number of threads does not change the result; the
 * kernel that oneDNN picks on another CPU may.
 *
 * oneDNN picks a kernel also by the leading dimensions, and another kernel adds in another order.
 * So it gets only dense matrices, copies if the call's are not, and the bits depend only on the
 * shape and the types. */
#ifndef KERNELS_CPU_MATMUL_ONEDNN_H
#define KERNELS_CPU_MATMUL_ONEDNN_H

#include "kernels/kernels.h"

struct onednn;

/* Does oneDNN use tiles for bf16 on this CPU? */
bool onednn_has_tiles(void);

struct onednn *onednn_new(int threads);
void onednn_free(struct onednn *dn); /* accepts NULL */

/* The table's entry; products that oneDNN cannot take as they are go to gemm_matmul. */
int onednn_matmul(struct device *dev, const struct matmul *mm, struct stream *s);

#endif
