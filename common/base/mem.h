/* Memory.  mem_alloc and its kin are for small allocations of the control plane:
 * without memory they print a line and abort.  Any size that a peer, a file or a
 * model configuration chooses goes through mem_try_*, which return NULL (the
 * caller returns -ENOMEM).  Everything is freed with mem_free, or free(3).
 *
 * Builds with SKERRY_FAULTS can fail the n-th mem_try_* call. */
#ifndef COMMON_BASE_MEM_H
#define COMMON_BASE_MEM_H

#include <stdbool.h>
#include <stddef.h>

void *mem_alloc(size_t size) __attribute__((malloc, returns_nonnull));         /* zeroed */
void *mem_alloc_array(size_t n, size_t size) __attribute__((returns_nonnull)); /* zeroed */
void *mem_realloc(void *p, size_t size) __attribute__((returns_nonnull));

void *mem_try(size_t size);                  /* not zeroed */
void *mem_try_zero(size_t size);             /* zeroed */
void *mem_try_array(size_t n, size_t size);  /* zeroed; NULL also when n*size overflows */
void *mem_try_realloc(void *p, size_t size); /* p stays valid on NULL */
void *mem_try_realloc_array(void *p, size_t n, size_t size);
void *mem_try_aligned(size_t align, size_t size); /* align: a power of two; not zeroed */

void mem_free(void *p); /* NULL is fine */

/* Arrays that live and die together: start with { 0 }, add all, check `failed` once, free all. */
#define MEM_ARRAYS_MAX 24
struct mem_arrays {
    void *items[MEM_ARRAYS_MAX];
    unsigned n;
    bool failed; /* one of them is NULL */
};
void *mem_arrays_add(struct mem_arrays *a, size_t n, size_t size); /* as mem_try_array */
void mem_arrays_free(struct mem_arrays *a);

/* *ret = a+b; false, with *ret untouched, if it overflows. */
bool mem_add(size_t a, size_t b, size_t *ret);

/* Makes the n-th mem_try_* of this process from now (1 = the next one) fail,
 * once; 0 disarms.  Returns false if the build has no fault injection. */
bool mem_fault_set(long n);
/* Has the armed fault fired? */
bool mem_fault_fired(void);

#endif
