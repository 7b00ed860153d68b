/* The product through oneDNN: the way taken for bf16 where oneDNN has tile instructions
 * (AMX), and everywhere with SKERRY_CPU_MATMUL=onednn.
 *
 * Our team cuts C into slabs of rows and each thread runs oneDNN sequentially on its
 * slab: oneDNN's own OpenMP team would wait for a core that our team holds. Slabs
 * are fixed by the shape, so the number of threads does not show in the result; which
 * kernel oneDNN picks on another CPU does.
 *
 * oneDNN picks one also by the leading dimensions, and another kernel adds in another order: it
 * is shown dense matrices only, copies where those of the call are not, so that the bits follow
 * from the shape and the types alone. */
#ifndef KERNELS_CPU_MATMUL_ONEDNN_H
#define KERNELS_CPU_MATMUL_ONEDNN_H

#include "kernels/kernels.h"

struct onednn;

/* True when oneDNN uses tiles for bf16 on this CPU. */
bool onednn_has_tiles(void);

struct onednn *onednn_new(int threads);
void onednn_free(struct onednn *dn); /* accepts NULL */

/* Entry for the table; products that oneDNN cannot take as they are go to gemm_matmul. */
int onednn_matmul(struct device *dev, const struct matmul *mm, struct stream *s);

#endif
