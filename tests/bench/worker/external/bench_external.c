/* What a hand-over takes on two cores beside copying as many bytes: 100 M parameters of f32 out of
 * the shared memory into a contribution, and the next version into it.  Prints "NAME VALUE" a line.
 */
#include <fcntl.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/outer/contribution.h"
#include "common/outer/layout.h"
#include "worker/external/tensors.h"

#define COUNT 100000000ull
#define RUNS 3
#define THREADS 2

struct end {
    const struct tensors *tensors;
    const uint8_t *shared;
    int base;
};

static int read_end(void *arg, const struct layout *layout, size_t t, uint64_t first, size_t n,
                    float *out, struct err *err)
{
    const struct end *e = arg;
    return tensors_read_end(&e->tensors->items[t], e->shared, first, n, e->base,
                            &layout->st.tensors[t], out, err);
}

static void must(int rc, const struct err *err)
{
    if (rc >= 0)
        return;
    (void)fprintf(stderr, "bench_external: %s\n", err->msg);
    exit(1);
}

static double seconds_since(uint64_t begun_ns)
{
    return (double)(clock_now_ns() - begun_ns) / 1e9;
}

static double lesser(double a, double b)
{
    return a > 0 && a < b ? a : b;
}

static void make(struct tensors *t)
{
    uint64_t shape[] = {COUNT};
    Skerry__Trainer__V1__Hello hello = SKERRY__TRAINER__V1__HELLO__INIT;
    Skerry__Trainer__V1__Tensor one = SKERRY__TRAINER__V1__TENSOR__INIT, *list[] = {&one};
    struct err err = {0};
    one.name = (char *)(uintptr_t) "w";
    one.dtype = SKERRY__TRAINER__V1__DTYPE__DTYPE_F32;
    one.shape = shape;
    one.n_shape = 1;
    hello.tensors = list;
    hello.n_tensors = 1;
    must(tensors_from_hello(&hello, t, &err), &err);
    must(tensors_choose(t, &(struct job_trainer){0}, &(struct tensors_cut){.n_levels = 1}, &err),
         &err);
}

/* As worker/kinds/external_train.c does it: looked at before, coded with the residual of the round
 * before and that for the next one, looked at after, and once more while the next version comes. */
static double hand_over(const struct tensors *t, uint8_t *shared, const char *base, const char *out,
                        const char *residual, const char *pending, enum codec codec)
{
    struct err err = {0};
    struct end end = {t, shared, open(base, O_RDONLY | O_CLOEXEC)};
    struct contribution_job job = {.base_path = base,
                                   .read = read_end,
                                   .read_arg = &end,
                                   .threads = THREADS,
                                   .codec = codec,
                                   .samples = 1,
                                   .residual_path = residual,
                                   .residual_pending = pending,
                                   .out_path = out};
    struct contribution_result result;
    size_t count = 0;
    uint64_t was = 0;
    const uint64_t begun = clock_now_ns();
    const uint64_t sum = tensors_sum(t, -1, shared, THREADS);
    must(contribution_write(&job, &result, &err), &err);
    const uint64_t after = tensors_sum(t, -1, shared, THREADS);
    const struct tensors_source next = {.path = base, .was = &was};
    must(tensors_load(t, &next, shared, THREADS, &count, &err), &err);
    if (after != sum || was != sum)
        exit(1);
    (void)close(end.base);
    const double seconds = seconds_since(begun);
    must(residual_commit(pending, residual, &err), &err);
    return seconds;
}

int main(int argc, char **argv)
{
    const char *dir = argc > 1 ? argv[1] : "/dev/shm";
    char *base = file_join(dir, "bench-external-base"), *out = file_join(dir, "bench-external-out");
    char *residual = file_join(dir, "bench-external-residual"),
         *pending = file_join(dir, "bench-external-pending");
    struct tensors t;
    struct err err = {0};
    double copy = 0, f32 = 0, e3m0 = 0;
    make(&t);
    uint8_t *shared = mem_alloc(t.bytes), *other = mem_alloc(t.bytes);
    float *w = (float *)(void *)(shared + t.items[0].offset);
    for (uint64_t i = 0; i < COUNT; i++)
        w[i] = (float)(i % 1000) * 1e-3f;
    must(tensors_save(&t, 0, shared, base, NULL, NULL, &err), &err);
    for (int i = 0; i < RUNS; i++) {
        const uint64_t begun = clock_now_ns();
        memcpy(other, shared, t.bytes);
        copy = lesser(copy, seconds_since(begun) + other[0] * 1e-12);
        f32 = lesser(f32, hand_over(&t, shared, base, out, residual, pending, CODEC_F32));
        e3m0 = lesser(e3m0, hand_over(&t, shared, base, out, residual, pending, CODEC_E3M0));
    }
    printf("copy_ms %.1f\nf32_ms %.1f\ne3m0_ms %.1f\nf32_copies %.2f\ne3m0_copies %.2f\n",
           copy * 1e3, f32 * 1e3, e3m0 * 1e3, f32 / copy, e3m0 / copy);
    (void)unlink(base); /* of a scratch folder */
    (void)unlink(out);
    (void)unlink(residual);
    tensors_release(&t);
    mem_free(shared);
    mem_free(other);
    mem_free(base);
    mem_free(out);
    mem_free(residual);
    mem_free(pending);
    return 0;
}
