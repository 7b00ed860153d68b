/* Any bytes as a file that one task makes for another, which a worker gets from a coordinator or
 * others: refused with a sentence, or with every value in its range. */
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "worker/engine/task_files.h"

#define ROWS 3
#define PARTITIONS 4
#define CLASSES 2
#define CHANNELS 3
#define IMAGE 2
#define UPSCALED 4

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char path[] = "/dev/shm/skerry-fuzz.XXXXXX";

static void expect(bool holds)
{
    if (!holds)
        abort();
}

static bool is_read(int rc, const struct err *err)
{
    expect(rc == 0 || (rc < 0 && err->msg[0] != '\0'));
    return rc == 0;
}

static void expect_finite(const float *v, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        expect(isfinite(v[i]));
}

static void read_features(void)
{
    const uint32_t counts[] = {ROWS, ROWS}, both[] = {0, 1};
    const char *const paths[] = {path, path};
    struct features f = {0};
    struct features_rows rows = {0};
    struct err err = {0};
    uint64_t ids[2 * ROWS];
    if (!is_read(features_open(paths, counts, 2, &f, &err), &err))
        return;
    float *x = mem_alloc_array((size_t)2 * ROWS * f.d, sizeof *x);
    expect(features_rows_init(&rows, &f, both, 2, &err) == 0 && rows.source.n == 2 * ROWS);
    expect(rows.source.read(&rows.source, 1, 2 * ROWS - 1, x, &err) == 0);
    features_rows_ids(&rows, ids);
    for (uint32_t c = 0; c <= f.files[0].columns; c++)
        features_chunk(&f, 0, ROWS - 1, c, x);
    features_rows_release(&rows);
    features_close(&f);
    mem_free(x);
}

static void read_scores(void)
{
    struct scores s = {0};
    struct err err = {0};
    if (!is_read(scores_read(path, ROWS, &s, &err), &err))
        return;
    const uint64_t n = (uint64_t)ROWS * s.columns;
    expect_finite(s.logp, n);
    for (uint64_t i = 0; i < n; i++)
        expect(s.tokens[i] >= 0);
    for (uint32_t i = 0; i < ROWS; i++)
        expect(s.bytes[i] >= 0);
    scores_release(&s);
}

static void read_assignment(uint64_t first, uint64_t count)
{
    uint32_t *assign = NULL, top = 0;
    struct err err = {0};
    if (!is_read(assignment_read(path, first, count, PARTITIONS, &assign, &top, &err), &err))
        return;
    expect(top >= 1 && top <= PARTITIONS);
    for (uint64_t i = 0; i < count * top; i++)
        expect(assign[i] < PARTITIONS);
    mem_free(assign);
}

static void read_points(int upscaled)
{
    const struct velocity_sizes sizes = {CHANNELS, IMAGE, upscaled, CLASSES};
    struct velocity_points p = {0};
    struct err err = {0};
    if (!is_read(velocity_read(path, &sizes, &p, &err), &err))
        return;
    expect(p.rows >= 1 && p.rows <= VELOCITY_ROWS_MAX && p.channels == CHANNELS);
    expect(p.image == (p.beside ? upscaled : IMAGE));
    const uint64_t n = (uint64_t)p.rows * CHANNELS * (uint64_t)(p.image * p.image);
    expect_finite(p.x, n);
    if (p.beside)
        expect_finite(p.beside, n);
    for (int i = 0; i < p.rows; i++)
        expect(p.t[i] >= 0 && p.t[i] <= 1 && p.labels[i] >= 0 && p.labels[i] <= CLASSES);
    velocity_points_release(&p);
}

static void read_velocities(void)
{
    float v[ROWS * CHANNELS * IMAGE * IMAGE];
    struct err err = {0};
    if (is_read(velocity_read_result(path, v, ROWS, CHANNELS, IMAGE, &err), &err))
        expect_finite(v, sizeof v / sizeof *v);
}

static void remove_it(void)
{
    (void)unlink(path);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    const int fd = mkstemp(path);
    expect(fd >= 0 && close(fd) == 0 && atexit(remove_it) == 0);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const int fd = open(path, O_WRONLY | O_TRUNC | O_CLOEXEC);
    expect(fd >= 0 && write(fd, data, size) == (ssize_t)size && close(fd) == 0);
    read_features();
    read_scores();
    read_assignment(0, ROWS);
    read_assignment(1, UINT64_MAX);
    read_points(0);
    read_points(UPSCALED);
    read_velocities();
    return 0;
}
