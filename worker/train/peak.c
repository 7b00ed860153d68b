#include "worker/train/peak.h"

#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/rng.h"
#include "worker/train/island.h"

enum { SIDE_MIN = 256, SIDE_MAX = 8192, GROUPS = 6, TEXT_MAX = 512 };
#define RANDOM_VALUES 65536
#define CARD_SECONDS 0.3
#define CPU_SECONDS 0.05

struct bench {
    struct device *dev;
    enum dtype dt;
    int64_t side; /* present rows and columns of the matrices */
    void *a, *b, *c;
};

static void release(struct bench *x)
{
    x->dev->ops->free(x->dev, x->a);
    x->dev->ops->free(x->dev, x->b);
    x->dev->ops->free(x->dev, x->c);
    x->a = x->b = x->c = NULL;
}

/* Fills memory with a block of random values, which is doubled until all is full. */
static int fill(struct bench *x, void *dst, size_t bytes)
{
    const size_t each = dtype_bytes(x->dt);
    float *values = mem_alloc_array(RANDOM_VALUES, sizeof *values);
    rng_fill_normal(1, 2, 3, values, RANDOM_VALUES, 0.0f, 1.0f);
    for (size_t i = 0; each == sizeof(bf16) && i < RANDOM_VALUES; i++)
        ((bf16 *)(void *)values)[i] = bf16_from_f32(values[i]);
    size_t done = RANDOM_VALUES * each < bytes ? RANDOM_VALUES * each : bytes;
    int rc = x->dev->ops->copy(x->dev, dst, values, done, COPY_TO_DEVICE, NULL);
    while (rc == 0 && done < bytes) {
        size_t more = done < bytes - done ? done : bytes - done;
        rc = x->dev->ops->copy(x->dev, (char *)dst + done, dst, more, COPY_DEVICE, NULL);
        done += more;
    }
    if (rc == 0)
        rc = x->dev->ops->sync(x->dev, NULL, NULL);
    mem_free(values);
    return rc;
}

static int resize(struct bench *x, int64_t side, struct err *err)
{
    const struct kernel_ops *ops = x->dev->ops;
    const size_t bytes = (size_t)side * (size_t)side * dtype_bytes(x->dt);
    release(x);
    x->side = side;
    int rc = ops->alloc(x->dev, bytes, &x->a, err);
    if (rc == 0)
        rc = ops->alloc(x->dev, bytes, &x->b, err);
    if (rc == 0)
        rc = ops->alloc(x->dev, bytes, &x->c, err);
    if (rc < 0)
        return rc;
    if ((rc = fill(x, x->a, bytes)) < 0 || (rc = fill(x, x->b, bytes)) < 0)
        return err_set(err, rc, "matrices of %lld rows cannot be filled", (long long)side);
    return 0;
}

/* Makes n products, one after the other; *ret: seconds of one. */
static int multiply(struct bench *x, int n, double *ret, struct err *err)
{
    const struct matmul mm = {.layout = MM_NT,
                              .m = x->side,
                              .n = x->side,
                              .k = x->side,
                              .a = x->a,
                              .b = x->b,
                              .c = x->c,
                              .dt = x->dt,
                              .c_dt = x->dt};
    const uint64_t begun = clock_now_ns();
    int rc = 0;
    for (int i = 0; rc == 0 && i < n; i++)
        rc = x->dev->ops->matmul(x->dev, &mm, NULL);
    if (rc < 0)
        return err_set(err, rc, "products of %lld rows: %s", (long long)x->side, err_text(rc));
    rc = x->dev->ops->sync(x->dev, NULL, err);
    *ret = fmax(clock_since_s(begun) / n, 1e-9);
    return rc;
}

/* Chooses the largest matrices of which several products fit into the time; the first product of a
 * size warms up. */
static int choose(struct bench *x, double seconds, double *ret_each, struct err *err)
{
    int64_t side = SIDE_MIN;
    int rc = resize(x, side, err);
    for (;;) {
        double ignored;
        if (rc == 0)
            rc = multiply(x, 1, &ignored, err);
        if (rc == 0)
            rc = multiply(x, 1, ret_each, err);
        if (rc < 0 || side == SIDE_MAX || 8 * *ret_each > seconds / GROUPS)
            return rc;
        rc = resize(x, side * 2, err);
        if (rc == -ENOMEM)
            return resize(x, side, err);
        side *= 2;
    }
}

int peak_measure(struct device *dev, enum dtype dt, double seconds, double *ret, struct err *err)
{
    struct bench x = {.dev = dev, .dt = dt};
    double each = 1, best = 0;
    int rc = choose(&x, seconds, &each, err);
    const double wanted = seconds / GROUPS / each;
    const int n = wanted > 1 ? (int)fmin(wanted, 10000) : 1;
    for (int i = 0; rc == 0 && i < GROUPS; i++) {
        rc = multiply(&x, n, &each, err);
        best = fmax(best, 2 * pow((double)x.side, 3) / each);
    }
    release(&x);
    *ret = rc == 0 ? best : 0;
    return rc;
}

/* ---- an island's ---- */

struct together {
    struct island *is;
    enum dtype dt;
    double each[ISLAND_MAX];
};

static int measure_rank(void *arg, int rank, struct err *err)
{
    struct together *t = arg;
    struct device *dev = island_device(t->is, rank);
    double seconds = strncmp(dev->name, "cuda:", 5) == 0 ? CARD_SECONDS : CPU_SECONDS;
    return peak_measure(dev, t->dt, seconds, &t->each[rank], err);
}

/* Reads "cpu: CPU, 2 threads, AVX-512\n1.23e+11\n"; 0: nothing valid for these devices. */
static double read_kept(const char *path, const char *devices)
{
    struct buf text;
    double rate = 0;
    if (file_read(path, TEXT_MAX, &text, NULL) < 0)
        return 0;
    const size_t len = strlen(devices);
    const char *s = buf_str(&text);
    if (strncmp(s, devices, len) == 0 && s[len] == '\n')
        rate = strtod(s + len + 1, NULL);
    buf_release(&text);
    return isfinite(rate) && rate > 0 ? rate : 0;
}

/* What is in state_dir/peak-TYPE; 0: nothing valid for these devices (mem_free *ret_path). */
static double kept(struct island *is, enum dtype dt, const char *state_dir, char devices[256],
                   char **ret_path)
{
    char name[32];
    island_text(is, devices, 256);
    snprintf(name, sizeof name, "peak-%s", dtype_name(dt));
    *ret_path = file_join(state_dir, name);
    return read_kept(*ret_path, devices);
}

/* Without the file the next process measures again. */
static void keep(const char *path, const char *devices, double rate)
{
    char text[TEXT_MAX];
    const int n = snprintf(text, sizeof text, "%s\n%.6g\n", devices, rate);
    (void)file_write_atomic(path, text, (size_t)n, 0644, NULL);
}

int peak_get(struct island *is, enum dtype dt, const char *state_dir, double *ret, struct err *err)
{
    char devices[256], *path;
    struct together t = {.is = is, .dt = dt};
    *ret = kept(is, dt, state_dir, devices, &path);
    int rc = 0;
    if (*ret == 0) {
        rc = island_run(is, measure_rank, &t, err);
        for (int i = 0; rc == 0 && i < island_size(is); i++)
            *ret += t.each[i];
        if (rc == 0)
            keep(path, devices, *ret);
    }
    mem_free(path);
    return rc;
}

void peak_raise(struct island *is, enum dtype dt, const char *state_dir, double rate)
{
    char devices[256], *path;
    if (rate > kept(is, dt, state_dir, devices, &path))
        keep(path, devices, rate);
    mem_free(path);
}
