/* What a frozen network makes of inputs, for comparison with another implementation
 * (tests/latents/test_frozen.py), and how fast:
 *
 *    frozen_probe PART DEVICE DTYPE FOLDER SIZE LAYER GROUP IN.safetensors OUT.safetensors [TIMES]
 *
 * PART is encode, decode or text; SIZE the side of pictures or the tokens of texts.  IN holds `in`:
 * pixels U8 (n,S,S,3), latents F32 (n,Ch,s,s) or ids I32 (n,L), of texts also `lengths` I32 (n).
 * OUT gets `out` F32: moments, planar pictures, states.  With TIMES the chain runs so often, and
 * the samples of a second in the fastest run are printed. */
#include <fcntl.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/st/st.h"
#include "kernels/device/device.h"
#include "worker/frozen/frozen.h"

struct probe {
    struct device *dev;
    struct component *c;
    struct frozen *f;
    struct frozen_options opt;
    void *in;
    int32_t *lengths;
    void *out; /* on the device */
    int n;     /* samples */
};

/* A tensor's bytes; mem_free. */
static int read_bytes(const char *path, const char *name, void **ret, uint64_t *ret_n,
                      struct err *err)
{
    struct st st = {0};
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    int rc = fd < 0 ? err_errno(err, "opening %s", path) : st_read(fd, path, &st, err);
    const struct st_tensor *t = rc == 0 ? st_find(&st, name) : NULL;
    if (rc == 0 && (!t || t->rank < 1))
        rc = err_set(err, -ERR_FORMAT, "%s has no %s", path, name);
    if (rc == 0) {
        *ret = mem_alloc(t->bytes + 1);
        *ret_n = t->shape[0];
        rc = file_pread_all(fd, *ret, t->bytes, t->offset, path, err);
    }
    st_release(&st);
    if (fd >= 0)
        (void)close(fd);
    return rc;
}

/* What the chain reads: latents lie on the device. */
static int read_inputs(struct probe *p, const char *path, struct err *err)
{
    uint64_t n = 0;
    void *on_device = NULL;
    int rc = read_bytes(path, "in", &p->in, &n, err);
    p->n = (int)n;
    if (rc == 0 && p->opt.part == FROZEN_TEXT) {
        void *lengths = NULL;
        rc = read_bytes(path, "lengths", &lengths, &n, err);
        p->lengths = lengths;
    }
    if (rc < 0 || p->opt.part != FROZEN_DECODE)
        return rc;
    const size_t bytes = (size_t)p->n * frozen_in_bytes(p->f);
    rc = p->dev->ops->alloc(p->dev, bytes, &on_device, err);
    if (rc == 0)
        rc = p->dev->ops->copy(p->dev, on_device, p->in, bytes, COPY_TO_DEVICE, NULL);
    if (rc == 0)
        rc = p->dev->ops->sync(p->dev, NULL, err);
    mem_free(p->in);
    p->in = on_device;
    return rc;
}

static int open_probe(struct probe *p, char **argv, struct err *err)
{
    static const char *const parts[] = {"encode", "decode", "text"};
    for (int i = 0; i < 3; i++)
        if (strcmp(argv[1], parts[i]) == 0)
            p->opt.part = (enum frozen_part)i;
    p->opt.dt = strcmp(argv[3], "bf16") == 0 ? DT_BF16 : DT_F32;
    p->opt.side = p->opt.tokens = atoi(argv[5]);
    p->opt.layer = atoi(argv[6]);
    p->opt.group = atoi(argv[7]);
    p->opt.planar = true;
    p->opt.moments = p->opt.dt;
    int rc = device_open(argv[2], 2, &p->dev, err);
    if (rc == 0)
        rc = component_open(argv[4], COMPONENT_ANY, &p->c, err);
    if (rc == 0)
        rc = frozen_open(p->dev, p->c, &p->opt, &p->f, err);
    if (rc == 0)
        rc = read_inputs(p, argv[8], err);
    if (rc == 0)
        rc = p->dev->ops->alloc(p->dev, (size_t)p->n * frozen_out_bytes(p->f), &p->out, err);
    return rc;
}

static enum dtype out_type(const struct probe *p)
{
    return p->opt.part == FROZEN_DECODE ? DT_F32 : p->opt.dt;
}

static int write_out(struct probe *p, const char *path, struct err *err)
{
    const size_t bytes = (size_t)p->n * frozen_out_bytes(p->f),
                 n = bytes / dtype_bytes(out_type(p));
    char *raw = mem_alloc(bytes);
    float *values = mem_alloc_array(n, sizeof *values);
    struct st_writer *w = st_writer_new();
    int rc = p->dev->ops->copy(p->dev, raw, p->out, bytes, COPY_FROM_DEVICE, NULL);
    if (rc == 0)
        rc = p->dev->ops->sync(p->dev, NULL, err);
    for (size_t i = 0; i < n; i++)
        values[i] = dtype_get(raw, out_type(p), i);
    const uint64_t shape[] = {(uint64_t)p->n, n / (size_t)p->n};
    if (rc == 0)
        rc = st_writer_add(w, "out", ST_F32, 2, shape, err);
    if (rc == 0)
        rc = st_writer_open(w, path, err);
    if (rc == 0)
        rc = st_writer_write(w, values, n * sizeof *values, err);
    if (rc == 0)
        rc = st_writer_commit(w, NULL, NULL, err);
    st_writer_free(w);
    mem_free(values);
    mem_free(raw);
    return rc;
}

static int run(struct probe *p, int times, struct err *err)
{
    const struct frozen_io io = {.in = p->in, .lengths = p->lengths, .out = p->out};
    uint64_t best = UINT64_MAX;
    int rc = 0;
    for (int i = 0; i < (times ? times : 1) && rc == 0; i++) {
        const uint64_t start = clock_now_ns();
        rc = frozen_run(p->f, &io, p->n, err);
        const uint64_t took = clock_now_ns() - start;
        best = took < best ? took : best;
    }
    if (times && rc == 0)
        (void)printf("%.4f\n", (double)p->n * 1e9 / (double)best);
    return rc;
}

int main(int argc, char **argv)
{
    struct probe p = {0};
    struct err err = {0};
    if (argc != 10 && argc != 11) {
        (void)fprintf(stderr,
                      "usage: frozen_probe PART DEVICE DTYPE FOLDER SIZE LAYER GROUP IN OUT "
                      "[TIMES]\n");
        return 2;
    }
    int rc = open_probe(&p, argv, &err);
    if (rc == 0)
        rc = run(&p, argc == 11 ? atoi(argv[10]) : 0, &err);
    if (rc == 0)
        rc = write_out(&p, argv[9], &err);
    if (rc < 0)
        (void)fprintf(stderr, "frozen_probe: %s\n", err.msg);
    if (p.dev) {
        p.dev->ops->free(p.dev, p.out);
        if (p.opt.part == FROZEN_DECODE)
            p.dev->ops->free(p.dev, p.in);
        else
            mem_free(p.in);
    }
    mem_free(p.lengths);
    frozen_close(p.f);
    component_close(p.c);
    if (p.dev)
        device_close(p.dev);
    return rc < 0;
}
