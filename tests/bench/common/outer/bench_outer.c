/* How fast an outer step is, against the memory of the same machine in the same
 * run.  One JSON object a line on stdout.
 *
 * outer_bandwidth_share: the arithmetic of one outer step (fold_math_span: what
 * fold_run() does between reading and writing), K contributions of N parameters,
 * e3m0 both ways, one thread, all arrays in memory and far larger than the
 * caches.  The bytes it must touch, each once:
 *
 *     K (payload + scales)                  read
 *     theta_v                               read, theta_{v+1} written over it
 *     target, momentum, ema                 read and written
 *     delta payload + scales                written
 *
 * share = (those bytes / time) / (bytes memcpy touches / its time), where memcpy
 * of the same total size touches two bytes per byte copied (one read, one
 * write), as STREAM counts.  memcpy and fold alternate; each counts with its
 * best of ROUNDS (interference only ever slows one down), in time of the thread.
 *
 * outer_fold_s: fold_run() on files, whole: reads, arithmetic, SHA-256 of five
 * files, writes, fsync.  outer_check_s: fold_check() of K contributions.
 * outer_apply_s: what a worker does with the delta that comes back.
 * fold_rss_mib: peak resident memory of a process that does both and nothing
 * else, above what it had before.
 *
 *     bench_outer [--params N] [--contributions K] [--dir DIR] [--no-files] */
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/base/file.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/st/st.h"
#include "common/base/str.h"
#include "common/outer/contribution.h"
#include "common/outer/fold_check.h"
#include "common/outer/fold_math.h"
#include "common/outer/layout.h"
#include "common/outer/version.h"

#define ROUNDS 9
#define K_MAX 64
#define SPAN FOLD_CHUNK

struct options {
    size_t params, k;
    const char *dir;
    bool files;
};

static void die(const char *what, const struct err *err)
{
    (void)fprintf(stderr, "bench_outer: %s: %s\n", what, err ? err->msg : "failed");
    exit(1);
}

static void *need(size_t bytes)
{
    void *p = mem_try_aligned(4096, (bytes + 4095) / 4096 * 4096);
    if (!p)
        die("memory", NULL);
    memset(p, 1, bytes); /* pages exist before anything is timed */
    return p;
}

/* Cheap noise in the shape of weights; a table, repeated with an odd period. */
static void noise(uint64_t seed, float scale, size_t n, float *out)
{
    enum { PERIOD = 1000003 };
    size_t m = n < PERIOD ? n : PERIOD;
    rng_fill_normal(seed, 1, 0, out, m, 0.0f, scale);
    for (size_t i = m; i < n; i += m)
        memcpy(out + i, out, (n - i < m ? n - i : m) * sizeof *out);
}

static void report(const char *name, double value, const char *unit)
{
    (void)printf("{\"name\": \"%s\", \"value\": %.6g, \"unit\": \"%s\"}\n", name, value, unit);
    (void)fflush(stdout);
}

/* ---- in memory ---- */

struct arrays {
    float *theta, *mom, *target, *ema;
    uint8_t *payload[K_MAX], *delta;
    uint16_t *scales[K_MAX], *delta_scales;
    double weight[K_MAX];
};

static void arrays_init(struct arrays *a, const struct options *o)
{
    size_t n = o->params, bytes = n * sizeof(float);
    a->theta = need(bytes);
    a->mom = need(bytes);
    a->target = need(bytes);
    a->ema = need(bytes);
    a->delta = need(codec_payload_bytes(CODEC_E3M0, n));
    a->delta_scales = need(codec_scales(CODEC_E3M0, n) * 2);
    for (size_t i = 0; i < o->k; i++) {
        a->payload[i] = need(codec_payload_bytes(CODEC_E3M0, n));
        a->scales[i] = need(codec_scales(CODEC_E3M0, n) * 2);
        a->weight[i] = (double)(3200 + i);
        noise(10 + i, 1e-3f, n, a->mom);
        if (coding_encode(CODEC_E3M0, n, a->mom, a->payload[i], a->scales[i], a->ema) < 0)
            die("encoding", NULL);
    }
    noise(1, 2e-2f, n, a->theta);
    noise(2, 1e-3f, n, a->mom);
    memcpy(a->target, a->theta, bytes);
    memcpy(a->ema, a->theta, bytes);
}

static void fold_in_memory(const struct arrays *a, const struct options *o)
{
    struct fold_math m = {.arith = arith_best(),
                          .down = CODEC_E3M0,
                          .nesterov = {.lr = 0.7, .mu = 0.9, .scale = 1},
                          .ema_decay = 0.9};
    struct fold_squares squares = {0};
    for (size_t i = 0; i < o->k; i++)
        m.nesterov.total += a->weight[i];
    for (size_t first = 0; first < o->params; first += SPAN) {
        const void *payload[K_MAX];
        const uint16_t *scales[K_MAX];
        for (size_t i = 0; i < o->k; i++) {
            payload[i] = a->payload[i] + first / 2;
            scales[i] = a->scales[i] + first / CODEC_BLOCK;
        }
        const struct fold_group group = {
            .codec = CODEC_E3M0,
            .in = {.k = o->k, .payload = payload, .scales = scales, .weight = a->weight},
            .start = a->theta + first};
        struct fold_span s = {
            .n = o->params - first < SPAN ? o->params - first : SPAN,
            .groups = &group,
            .n_groups = 1,
            .theta = a->theta + first,
            .theta_new = a->theta + first,
            .mom = a->mom + first,
            .target = a->target + first,
            .ema = a->ema + first,
            .delta = a->delta + first / 2,
            .delta_scales = a->delta_scales + first / CODEC_BLOCK,
        };
        if (!fold_math_span(&m, &s, &squares))
            die("folding", NULL);
    }
}

static double bytes_touched(const struct options *o)
{
    size_t n = o->params;
    double coded = (double)(codec_payload_bytes(CODEC_E3M0, n) + 2 * codec_scales(CODEC_E3M0, n));
    return coded * (double)(o->k + 1) + 8.0 * 4.0 * (double)n;
}

static double seconds_since(uint64_t begin)
{
    return (double)(clock_now_ns() - begin) * 1e-9;
}

/* Time this thread ran: on an idle machine the same as time, on a busy one not
 * spoilt by being taken off the core. */
static uint64_t cpu_ns(void)
{
    struct timespec t;
    if (clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t) != 0)
        die("the clock of the thread", NULL);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void bench_memory(const struct options *o)
{
    struct arrays a = {0};
    arrays_init(&a, o);
    double touched = bytes_touched(o), fold_s = 1e9, copy_s = 1e9;
    size_t half = (size_t)(touched / 2);
    uint8_t *src = need(half), *dst = need(half);
    for (int i = 0; i < ROUNDS; i++) {
        uint64_t t = cpu_ns();
        memcpy(dst, src, half);
        double s = (double)(cpu_ns() - t) * 1e-9;
        src[i] = dst[half - 1]; /* keeps the copy alive */
        copy_s = s < copy_s ? s : copy_s;
        t = cpu_ns();
        fold_in_memory(&a, o);
        s = (double)(cpu_ns() - t) * 1e-9;
        fold_s = s < fold_s ? s : fold_s;
    }
    report("outer_kernels_s", fold_s, "s");
    report("outer_kernels_gb_s", touched / fold_s * 1e-9, "GB/s");
    report("copy_gb_s", touched / copy_s * 1e-9, "GB/s");
    report("outer_bandwidth_share", copy_s / fold_s, "ratio");
}

/* ---- on files, in a process of its own ---- */

/* One tensor per 2^20 parameters or so, like the layers of a model. */
static void make_full(const char *path, size_t params, uint64_t seed)
{
    enum { TENSOR = 1 << 20 };
    struct err err = {0};
    struct st_writer *w = st_writer_new();
    float *x = need(TENSOR * sizeof(float));
    noise(seed, 2e-2f, TENSOR, x);
    for (size_t first = 0; first < params; first += TENSOR) {
        uint64_t n = params - first < TENSOR ? params - first : TENSOR;
        char name[64];
        (void)snprintf(name, sizeof name, "blocks.%zu.weight", first / TENSOR);
        if (st_writer_add(w, name, ST_F32, 1, &n, &err) < 0)
            die("layout", &err);
    }
    int rc = st_writer_open(w, path, &err);
    for (size_t first = 0; rc == 0 && first < params; first += TENSOR) {
        size_t n = params - first < TENSOR ? params - first : TENSOR;
        rc = st_writer_write(w, x, n * sizeof *x, &err);
    }
    if (rc < 0 || st_writer_commit(w, NULL, NULL, &err) < 0)
        die(path, &err);
    st_writer_free(w);
    mem_free(x);
}

/* theta_end: theta_start plus noise that nobody has to store. */
struct drift {
    const struct layout *layout;
    int fd;
    const char *path;
    float noise[FOLD_CHUNK];
};

static int read_end(void *arg, const struct layout *layout, size_t t, uint64_t first, size_t n,
                    float *out, struct err *err)
{
    const struct drift *d = arg;
    int rc = file_pread_all(d->fd, out, n * sizeof *out,
                            layout->st.tensors[t].offset + first * sizeof *out, d->path, err);
    for (size_t i = 0; i < n; i++)
        out[i] += d->noise[i];
    return rc;
}

static void make_contribution(const char *full, const char *path, uint64_t seed)
{
    struct err err = {0};
    struct drift *d = mem_alloc(sizeof *d);
    FILE *f = fopen(full, "rb");
    if (!f)
        die(full, NULL);
    d->fd = fileno(f);
    d->path = full;
    noise(seed, 1e-3f, FOLD_CHUNK, d->noise);
    struct contribution_job job = {.base_path = full,
                                   .read = read_end,
                                   .read_arg = d,
                                   .codec = CODEC_E3M0,
                                   .module_id = 1,
                                   .base = 1,
                                   .samples = 3200 + seed,
                                   .out_path = path};
    struct contribution_result r;
    if (contribution_write(&job, &r, &err) < 0)
        die(path, &err);
    (void)fclose(f);
    mem_free(d);
}

static double status_mib(const char *key)
{
    char line[256];
    double kib = 0;
    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(line, sizeof line, f))
        if (str_starts(line, key))
            kib = strtod(line + strlen(key), NULL);
    if (f)
        (void)fclose(f);
    return kib / 1024.0;
}

static void fold_files(const struct options *o, char **in)
{
    struct err err = {0};
    struct fold_input inputs[K_MAX];
    char *out[5], *full = file_join(o->dir, "full"), *mom = file_join(o->dir, "mom");
    static const char *const names[5] = {"o.full", "o.delta", "o.ema", "o.target", "o.mom"};
    double before = status_mib("VmRSS:");
    for (size_t i = 0; i < 5; i++)
        out[i] = file_join(o->dir, names[i]);
    uint64_t t = clock_now_ns();
    for (size_t i = 0; i < o->k; i++) {
        const struct fold_origin origin = {CODEC_E3M0, 1, full};
        struct fold_norm norm;
        if (fold_check(in[i], &origin, 1, &norm, &err) < 0)
            die("check", &err);
        inputs[i] =
            (struct fold_input){.path = in[i], .origin = origin, .weight = (double)norm.samples};
    }
    report("outer_check_s", seconds_since(t), "s");
    struct fold_step step = {.module_id = 1,
                             .base = 1,
                             .full = full,
                             .mom = mom,
                             .inputs = inputs,
                             .n_inputs = o->k,
                             .down = CODEC_E3M0,
                             .lr = 0.7,
                             .momentum = 0.9,
                             .scale = 1,
                             .ema_decay = 0.9,
                             .full_out = out[0],
                             .delta_out = out[1],
                             .ema_out = out[2],
                             .target_out = out[3],
                             .mom_out = out[4]};
    struct fold_result r;
    t = clock_now_ns();
    if (fold_run(&step, &r, &err) < 0)
        die("fold", &err);
    report("outer_fold_s", seconds_since(t), "s");
    report("fold_rss_mib", status_mib("VmHWM:") - before, "MiB");
    t = clock_now_ns();
    if (version_apply_delta(full, out[1], 1, 1, out[0], NULL, r.full.sha256, NULL, &err) < 0)
        die("apply", &err);
    report("outer_apply_s", seconds_since(t), "s");
    report("delta_bytes_per_param", (double)r.delta.bytes / (double)o->params, "B/param");
    for (size_t i = 0; i < 5; i++)
        mem_free(out[i]);
    mem_free(full);
    mem_free(mom);
}

/* Runs fn in a child, so that its memory is its own. */
static void in_child(void (*fn)(const struct options *, char **), const struct options *o,
                     char **in)
{
    int status = 0;
    pid_t pid = fork();
    if (pid < 0)
        die("fork", NULL);
    if (pid == 0) {
        fn(o, in);
        _exit(0);
    }
    if (waitpid(pid, &status, 0) != pid || !WIFEXITED(status) || WEXITSTATUS(status))
        die("the fold of files", NULL);
}

static void make_files(const struct options *o, char **in)
{
    char *full = file_join(o->dir, "full"), *mom = file_join(o->dir, "mom");
    make_full(full, o->params, 1);
    make_full(mom, o->params, 2);
    for (size_t i = 0; i < o->k; i++)
        make_contribution(full, in[i], i);
    mem_free(full);
    mem_free(mom);
}

static void bench_files(const struct options *o)
{
    char *in[K_MAX];
    struct err err = {0};
    for (size_t i = 0; i < o->k; i++)
        in[i] = str_printf("%s/c%zu", o->dir, i);
    if (file_mkdirs(o->dir, 0700, &err) < 0)
        die(o->dir, &err);
    in_child(make_files, o, in);
    in_child(fold_files, o, in);
    for (size_t i = 0; i < o->k; i++)
        mem_free(in[i]);
    if (file_remove_tree(o->dir, &err) < 0)
        die(o->dir, &err);
}

static void parse(int argc, char **argv, struct options *o)
{
    for (int i = 1; i < argc; i++) {
        uint64_t n = 0;
        bool value = i + 1 < argc;
        if (!strcmp(argv[i], "--no-files"))
            o->files = false;
        else if (!strcmp(argv[i], "--dir") && value)
            o->dir = argv[++i];
        else if (!strcmp(argv[i], "--params") && value && str_parse_u64(argv[++i], &n) == 0)
            o->params = n;
        else if (!strcmp(argv[i], "--contributions") && value &&
                 str_parse_u64(argv[++i], &n) == 0 && n >= 1 && n <= K_MAX)
            o->k = n;
        else
            die("usage: bench_outer [--params N] [--contributions 1..64] [--dir DIR] "
                "[--no-files]",
                NULL);
    }
    if (!o->params)
        die("--params must be positive", NULL);
}

int main(int argc, char **argv)
{
    char dir[64];
    struct options o = {.params = 100000000, .k = 8, .dir = dir, .files = true};
    (void)snprintf(dir, sizeof dir, "/tmp/bench_outer.%d", (int)getpid());
    parse(argc, argv, &o);
    if (o.files)
        bench_files(&o);
    bench_memory(&o);
    return 0;
}
