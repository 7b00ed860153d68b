
#include <stdatomic.h>
#include <unistd.h>

#include "common/base/base.h"

#ifdef SKERRY_FAULTS
static _Atomic long fault_in; /* calls until the failing one; 0: none fails */
static _Atomic bool fault_hit;

static bool fault(void)
{
    long left = atomic_load(&fault_in);
    while (left > 0) {
        if (atomic_compare_exchange_weak(&fault_in, &left, left - 1)) {
            if (left == 1)
                atomic_store(&fault_hit, true);
            return left == 1;
        }
    }
    return false;
}

bool mem_fault_set(long n)
{
    atomic_store(&fault_hit, false);
    atomic_store(&fault_in, n > 0 ? n : 0);
    return true;
}

bool mem_fault_fired(void)
{
    return atomic_load(&fault_hit);
}
#else
static bool fault(void)
{
    return false;
}

bool mem_fault_set(long n)
{
    (void)n;
    return false;
}

bool mem_fault_fired(void)
{
    return false;
}
#endif

static void *check(void *p)
{
    if (!p) {
        /* write, not printf: that might allocate. */
        static const char text[] = "out of memory: aborting\n";
        ssize_t unused = write(STDERR_FILENO, text, sizeof(text) - 1);
        (void)unused;
        abort();
    }
    return p;
}

/* malloc(0) may be NULL, which would look like a failure. */
static size_t at_least_one(size_t size)
{
    return size ? size : 1;
}

bool mem_add(size_t a, size_t b, size_t *ret)
{
    size_t r;
    if (__builtin_add_overflow(a, b, &r))
        return false;
    *ret = r;
    return true;
}

void *mem_alloc(size_t size)
{
    return check(calloc(1, at_least_one(size)));
}

void *mem_alloc_array(size_t n, size_t size)
{
    return check(calloc(at_least_one(n), at_least_one(size)));
}

void *mem_realloc(void *p, size_t size)
{
    return check(realloc(p, at_least_one(size)));
}

void *mem_try(size_t size)
{
    return fault() ? NULL : malloc(at_least_one(size));
}

void *mem_try_zero(size_t size)
{
    return fault() ? NULL : calloc(1, at_least_one(size));
}

void *mem_try_array(size_t n, size_t size)
{
    return fault() ? NULL : calloc(at_least_one(n), at_least_one(size));
}

void *mem_try_realloc(void *p, size_t size)
{
    return fault() ? NULL : realloc(p, at_least_one(size));
}

void *mem_try_realloc_array(void *p, size_t n, size_t size)
{
    size_t bytes;
    return __builtin_mul_overflow(n, size, &bytes) ? NULL : mem_try_realloc(p, bytes);
}

void *mem_try_aligned(size_t align, size_t size)
{
    void *p = NULL;
    if (align < sizeof(void *))
        align = sizeof(void *);
    if (fault() || posix_memalign(&p, align, at_least_one(size)) != 0)
        return NULL;
    return p;
}

void mem_free(void *p)
{
    free(p);
}

void *mem_arrays_add(struct mem_arrays *a, size_t n, size_t size)
{
    void *p = a->n < MEM_ARRAYS_MAX ? mem_try_array(n, size) : NULL;
    if (p)
        a->items[a->n++] = p;
    else
        a->failed = true;
    return p;
}

void mem_arrays_free(struct mem_arrays *a)
{
    while (a->n)
        mem_free(a->items[--a->n]);
}
