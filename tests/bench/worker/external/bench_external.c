/* What a hand-over takes on two cores beside copying as many bytes: 100 M parameters of f32 out of
 * the shared memory into a contribution, and the next version into it.  Rounds as a worker has
 * them, with weights that have changed and the residual of the round before: the middle one counts,
 * after two in which files are made.  Prints "NAME VALUE" a line. */
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/outer/contribution.h"
#include "common/outer/layout.h"
#include "common/trainer/channel.h"
#include "worker/external/tensors.h"

#define COUNT 100000000ull
#define ROUNDS 7
#define FIRST 2 /* rounds in which files are made */
#define COPIES 5
#define THREADS 2

struct bench {
    struct tensors t;
    uint8_t *shared;
    uint64_t *seal;
    char *base, *out, *residual, *pending;
    int base_fd;
};

static int read_end(void *arg, const struct layout *layout, size_t t, uint64_t first, size_t n,
                    float *out, struct err *err)
{
    const struct bench *b = arg;
    const struct tensors_end end = {&b->t.items[t], b->shared, b->seal, b->base_fd,
                                    &layout->st.tensors[t]};
    return tensors_read_end(&end, first, n, out, err);
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

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double middle(double *seconds, size_t n)
{
    qsort(seconds, n, sizeof(*seconds), by_value);
    return seconds[n / 2];
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

/* As a worker shares it. */
static uint8_t *share(uint64_t bytes)
{
    struct err err = {0};
    int fd = -1;
    must(channel_memory("bench-external", bytes, &fd, &err), &err);
    uint8_t *shared = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    must(shared == MAP_FAILED ? err_errno(&err, "mapping weights") : 0, &err);
    (void)madvise(shared, bytes, MADV_HUGEPAGE);
    (void)close(fd);
    return shared;
}

/* A phase: every weight moves, by different amounts. */
static void train(struct bench *b, uint32_t round)
{
    float *w = (float *)(void *)(b->shared + b->t.items[0].offset);
    uint32_t x = round * 2654435761u + 1;
    for (uint64_t i = 0; i < COUNT; i++) {
        x = x * 1664525u + 1013904223u;
        w[i] += (float)(int32_t)x * 0x1p-41f;
    }
}

/* As worker/kinds/external_train.c does it: sealed, coded with the residual of the round before and
 * that for the next one, and looked at once more while the next version comes. */
static double hand_over(struct bench *b, enum codec codec)
{
    struct err err = {0};
    struct contribution_job job = {.base_path = b->base,
                                   .read = read_end,
                                   .read_arg = b,
                                   .threads = THREADS,
                                   .codec = codec,
                                   .samples = 1,
                                   .residual_path = b->residual,
                                   .residual_pending = b->pending,
                                   .out_path = b->out};
    struct contribution_result result;
    size_t count = 0;
    const uint64_t begun = clock_now_ns();
    tensors_seal(&b->t, -1, b->shared, THREADS, b->seal);
    b->base_fd = open(b->base, O_RDONLY | O_CLOEXEC);
    must(contribution_write(&job, &result, &err), &err);
    const struct tensors_source next = {.path = b->base, .seal = b->seal};
    must(tensors_load(&b->t, &next, b->shared, THREADS, &count, &err), &err);
    (void)close(b->base_fd);
    const double seconds = seconds_since(begun);
    must(residual_commit(b->pending, b->residual, &err), &err);
    return seconds;
}

static double copy(const struct bench *b)
{
    uint8_t *other = mem_alloc(b->t.bytes);
    double seconds[COPIES];
    for (int i = -1; i < COPIES; i++) { /* once before, which makes its pages */
        const uint64_t begun = clock_now_ns();
        memcpy(other, b->shared, b->t.bytes);
        seconds[i < 0 ? 0 : i] = seconds_since(begun) + other[0] * 1e-12;
    }
    mem_free(other);
    return middle(seconds, COPIES);
}

static double rounds(struct bench *b, enum codec codec, double *ret_worst)
{
    double seconds[ROUNDS];
    for (uint32_t i = 0; i < ROUNDS; i++) {
        train(b, i);
        seconds[i] = hand_over(b, codec);
    }
    const double found = middle(seconds + FIRST, ROUNDS - FIRST);
    *ret_worst = seconds[ROUNDS - 1];
    return found;
}

int main(int argc, char **argv)
{
    const char *dir = argc > 1 ? argv[1] : "/dev/shm";
    struct bench b = {.base = file_join(dir, "bench-external-base"),
                      .out = file_join(dir, "bench-external-out"),
                      .residual = file_join(dir, "bench-external-residual"),
                      .pending = file_join(dir, "bench-external-pending")};
    char *spare = str_printf("%s.spare", b.residual);
    struct err err = {0};
    make(&b.t);
    b.shared = share(b.t.bytes);
    b.seal = mem_alloc(b.t.n_pieces * sizeof(*b.seal));
    train(&b, 0);
    must(tensors_save(&b.t, 0, b.shared, b.base, NULL, NULL, &err), &err);
    double worst = 0, worst_f32 = 0;
    const double e3m0 = rounds(&b, CODEC_E3M0, &worst), one = copy(&b),
                 f32 = rounds(&b, CODEC_F32, &worst_f32);
    printf("copy_ms %.1f\nf32_ms %.1f\ne3m0_ms %.1f\n", one * 1e3, f32 * 1e3, e3m0 * 1e3);
    printf("f32_copies %.2f\ne3m0_copies %.2f\ne3m0_worst_copies %.2f\n", f32 / one, e3m0 / one,
           worst / one);
    char *files[] = {b.base, b.out, b.residual, b.pending, spare};
    for (size_t i = 0; i < sizeof(files) / sizeof(*files); i++) {
        (void)unlink(files[i]); /* of a scratch folder */
        mem_free(files[i]);
    }
    (void)munmap(b.shared, b.t.bytes);
    mem_free(b.seal);
    tensors_release(&b.t);
    return 0;
}
