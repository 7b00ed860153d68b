/* Buffers between guard zones, random contents and comparison, for the kernel tests.
 *
 * Every buffer lies between two zones of known bytes; guard_check_all() fails the test when
 * an operation wrote outside.  The end of the payload is not padded to any boundary, so one
 * element too many is seen.  Outputs start as NaN bytes: reading them before writing shows. */
#ifndef TESTS_UNIT_KERNELS_GUARD_H
#define TESTS_UNIT_KERNELS_GUARD_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "kernels/device/device.h"

enum { GUARD_BYTES = 256, GUARD_MAX = 64 };

/* What is compared with the reference, and memory that it and the tests can both reach. */
#ifndef GUARD_DEVICE
#define GUARD_DEVICE "cpu"
#define guard_alloc(bytes) aligned_alloc(64, bytes)
#define guard_free(p) free(p)
#define guard_profile() NULL
#define GUARD_ROUNDS_BIAS 0
#define GUARD_ROUNDS_TANH 0
#else
const char *guard_device(void); /* check_ops: chosen when it runs */
void *guard_alloc(size_t bytes);
void guard_free(void *p);
struct profile *guard_profile(void);
#define GUARD_ROUNDS_BIAS 1 /* a card: bias and product to the bf16 of C, before the sum */
#define GUARD_ROUNDS_TANH 1 /* where C is bf16 */
#endif

struct guard {
    unsigned char *raw;
    size_t bytes;
};

static struct guard guards[GUARD_MAX];
static int guards_n;
static uint64_t guard_rng_state = 0x9e3779b97f4a7c15u;

static inline uint64_t guard_rng(void)
{
    uint64_t z = guard_rng_state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* About normal, |x| < 3.5. */
static inline float guard_rand(void)
{
    float sum = 0;
    for (int i = 0; i < 4; i++)
        sum += (float)(guard_rng() >> 40) / 16777216.0f - 0.5f;
    return sum * 1.7320508f;
}

static inline void *guard_new(size_t bytes)
{
    assert_true(guards_n < GUARD_MAX);
    struct guard *g = &guards[guards_n++];
    g->bytes = bytes;
    g->raw = guard_alloc((bytes + 2 * GUARD_BYTES + 63) / 64 * 64);
    assert_non_null(g->raw);
    memset(g->raw, 0xa5, GUARD_BYTES);
    memset(g->raw + GUARD_BYTES, 0xff, bytes);
    memset(g->raw + GUARD_BYTES + bytes, 0x5a, GUARD_BYTES);
    return g->raw + GUARD_BYTES;
}

static inline void *guard_randn(size_t n, enum dtype dt, float scale)
{
    void *p = guard_new(n * dtype_bytes(dt));
    for (size_t i = 0; i < n; i++)
        dtype_set(p, dt, i, scale * guard_rand());
    return p;
}

/* A second buffer with the same contents. */
static inline void *guard_copy(const void *src, size_t bytes)
{
    void *p = guard_new(bytes);
    memcpy(p, src, bytes);
    return p;
}

/* A buffer of these values: guard_of(float, 1, 2, 3). */
#define guard_of(type, ...)                                                                        \
    guard_copy((const type[]){__VA_ARGS__}, sizeof((const type[]){__VA_ARGS__}))

/* Checks the zones of all buffers made since the last call, and frees them. */
static inline void guard_check_all(void)
{
    char found[128] = "";
    for (int i = 0; i < guards_n; i++) {
        struct guard *g = &guards[i];
        for (size_t j = 0; j < GUARD_BYTES && !found[0]; j++) {
            const bool before = g->raw[j] != 0xa5;
            if (before || g->raw[GUARD_BYTES + g->bytes + j] != 0x5a)
                snprintf(found, sizeof found, "buffer %d of %zu bytes: written %zu bytes %s", i,
                         g->bytes, before ? GUARD_BYTES - j : j,
                         before ? "before its start" : "after its end");
        }
        guard_free(g->raw);
    }
    guards_n = 0;
    if (found[0])
        fail_msg("%s", found);
}

/* |got - want| <= abs_tol + rel_tol * |want| everywhere; NaN never passes. */
static inline void guard_close(const char *what, const void *got, const void *want, size_t n,
                               enum dtype dt, float abs_tol, float rel_tol)
{
    for (size_t i = 0; i < n; i++) {
        float g = dtype_get(got, dt, i), w = dtype_get(want, dt, i);
        float bound = abs_tol + rel_tol * fabsf(w);
        if (!(fabsf(g - w) <= bound))
            fail_msg("%s[%zu of %zu] = %.9g, reference %.9g, allowed difference %.3g", what, i, n,
                     (double)g, (double)w, (double)bound);
    }
}

/* Both devices of a comparison.  The one of GUARD_DEVICE waits for each operation, as it does
 * with a profile, so that a test sees its results and errors at once. */
struct devices {
    struct device *ref, *fast;
};

static inline int devices_setup(void **state)
{
    struct devices *d = calloc(1, sizeof *d);
    struct err err = {0};
    *state = d;
    if (!d || device_open("cpu-ref", 0, &d->ref, &err) < 0 ||
        device_open(GUARD_DEVICE, 3, &d->fast, &err) < 0) {
        printf("%s\n", err.msg);
        return -1;
    }
    d->fast->profile = guard_profile();
    printf("comparing \"%s\" with the reference, seed %llx\n", d->fast->about,
           (unsigned long long)guard_rng_state);
    return 0;
}

static inline int devices_teardown(void **state)
{
    struct devices *d = *state;
    if (d) {
        device_close(d->ref);
        device_close(d->fast);
    }
    free(d);
    return 0;
}

#endif
