/* Work of the emulated card: done when its stream does it, or kept while that is captured. */
#ifndef TESTS_GPU_EMULATE_RECORD_H
#define TESTS_GPU_EMULATE_RECORD_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

struct CUstream_st;

/* run(copy of arg), on the stream or at each launch of the graph. */
void emu_do(struct CUstream_st *s, void (*run)(void *arg), const void *arg, size_t bytes);

/* Graphs launched so far; and kernels, products and copies of the last one. */
int emu_launches(void);
int emu_works(void);

/* From now on allocations of so many bytes and more fail, on the card and of pinned memory, and no
 * more is said to be free. */
void emu_refuse(size_t bytes);

/* From now on launches of kernels and graphs fail with this error of the runtime; 0: with none. */
void emu_refuse_launches(int error);

/* So many graphs to come lack the memory to be made. */
void emu_refuse_graphs(int count);

/* A launch begins; 0: it is refused, and the runtime's last error says so. */
int emu_launch_begins(void);

/* While it is on there are two cards, and the first does not open. */
void emu_second_card(int on);

#ifdef __cplusplus
}
#endif

#endif
