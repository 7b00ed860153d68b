#include "worker/frozen/frozen.h"

#include "worker/frozen/frozen_impl.h"

/* ---- planning ---- */

static const struct {
    int (*plan)(struct frozen *f, struct err *err);
    const char *what;
} parts[] = {
    [FROZEN_ENCODE] = {frozen_plan_encode, "encoder"},
    [FROZEN_DECODE] = {frozen_plan_decode, "decoder"},
    [FROZEN_TEXT] = {frozen_plan_text, "text encoder"},
};

/* An upper bound on the layers of any part of the component. */
static int most_layers(const struct component *c)
{
    return c->kind == COMPONENT_VAE ? c->vae.blocks * (c->vae.layers + 2) + 8 : c->text.layers + 2;
}

static int plan(struct frozen *f, const struct component *c, const struct frozen_options *opt,
                struct err *err)
{
    f->c = c;
    f->opt = *opt;
    f->kind = c->kind;
    if (c->kind == COMPONENT_VAE)
        f->vae = c->vae;
    else
        f->text = c->text;
    if ((c->kind == COMPONENT_VAE) != (opt->part != FROZEN_TEXT))
        return err_set(err, -ERR_CONFIG, "%s is an %s, of which there is no %s", c->folder,
                       component_kind_name(c->kind), parts[opt->part].what);
    if (opt->group < 1 || opt->group > 4096)
        return err_set(err, -EINVAL, "a group of %d samples, expected 1 to 4096", opt->group);
    f->cap = most_layers(c);
    f->layers = mem_try_array((size_t)f->cap, sizeof *f->layers);
    if (!f->layers)
        return err_set(err, -ENOMEM, "no memory for a chain of %d layers", f->cap);
    if (opt->pass && opt->pass < opt->group)
        return err_set(err, -EINVAL, "a pass of %d samples, expected at least a group of %d",
                       opt->pass, opt->group);
    int rc = parts[opt->part].plan(f, err);
    if (rc < 0)
        return rc;
    frozen_stream_plan(f);
    for (int i = 0; i < FROZEN_BUFFERS; i++)
        arena_add(&f->scratch, &f->scratch_base[i], f->buffers[i]);
    return 0;
}

/* Plans what a group or a pass needs besides, after the scratch in its arena. */
static void plan_inputs(struct frozen *f)
{
    const uint64_t n = (uint64_t)f->opt.group, pass = (uint64_t)f->opt.pass;
    if (f->opt.part != FROZEN_DECODE)
        arena_add(&f->scratch, &f->in, n * f->in_bytes);
    if (f->opt.part == FROZEN_TEXT)
        arena_add(&f->scratch, &f->lengths, (pass ? pass : n) * sizeof *f->lengths);
    if (pass > n)
        arena_add(&f->scratch, &f->hold, pass * frozen_hold(f));
}

static void drop(struct frozen *f)
{
    if (f->dev) {
        frozen_stream_close(f);
        arena_free(&f->weights, f->dev);
        arena_free(&f->scratch, f->dev);
        if (f->stream)
            f->dev->ops->stream_free(f->dev, f->stream);
    }
    mem_free(f->layers);
    mem_free(f->loads);
}

uint64_t frozen_hold(const struct frozen *f)
{
    uint64_t most = 0;
    for (int i = 0; i < f->n_layers; i++) {
        uint64_t sum = 0;
        for (int k = 0; k < FROZEN_LEFT; k++)
            sum += f->layers[i].left[k].bytes;
        most = sum > most ? sum : most;
    }
    return most;
}

int frozen_bytes(const struct component *c, const struct frozen_options *opt,
                 struct frozen_sizes *ret, struct err *err)
{
    struct frozen f = {0};
    int rc = plan(&f, c, opt, err);
    if (rc == 0)
        plan_inputs(&f);
    const struct frozen_sizes sizes = {
        .weights = arena_measure(&f.weights),
        .scratch = arena_measure(&f.scratch),
        .hold = frozen_hold(&f),
        .out = f.out_bytes,
        .all = f.all,
        .streamed = opt->pass ? f.all - f.common : 0,
    };
    if (rc == 0)
        *ret = sizes;
    drop(&f);
    return rc;
}

/* ---- life ---- */

/* Copies bytes of weights to the device, and waits. */
static int send(struct frozen *f, void *to, const void *from, uint64_t bytes, struct err *err)
{
    int rc = f->dev->ops->copy(f->dev, to, from, bytes, COPY_TO_DEVICE, f->stream);
    return rc < 0 ? err_set(err, rc, "copying weights to %s failed: %s", f->dev->name, err_text(rc))
                  : f->dev->ops->sync(f->dev, f->stream, err);
}

/* Stores values (count) at their place in all weights, which lie in the block in host memory, or,
 * if it is NULL, on the device; `narrow` has room for them as bf16. */
static int store(struct frozen *f, const struct frozen_load *l, const float *values, bf16 *narrow,
                 char *block, struct err *err)
{
    const uint64_t bytes = l->count * dtype_bytes(l->dt);
    const void *from = values;
    if (l->dt == DT_BF16) {
        for (uint64_t i = 0; i < l->count; i++)
            narrow[i] = bf16_from_f32(values[i]);
        from = narrow;
    }
    if (!block)
        return send(f, (char *)f->weights.base + l->at, from, bytes, err);
    memcpy(block + l->at, from, bytes);
    return 0;
}

/* Makes all weights; block as in store. */
static int load(struct frozen *f, char *block, struct err *err)
{
    uint64_t most = 0;
    for (size_t i = 0; i < f->n_loads; i++)
        most = f->loads[i].count > most ? f->loads[i].count : most;
    float *values = mem_try_array(most, sizeof *values);
    bf16 *narrow = f->opt.dt == DT_BF16 ? mem_try_array(most, sizeof *narrow) : NULL;
    int rc = 0;
    if (!values || (f->opt.dt == DT_BF16 && !narrow))
        rc = err_set(err, -ENOMEM, "no memory for a tensor of %llu values",
                     (unsigned long long)most);
    for (size_t i = 0; i < f->n_loads && rc == 0; i++) {
        rc = f->loads[i].make(f, &f->loads[i], values, err);
        if (rc == 0)
            rc = store(f, &f->loads[i], values, narrow, block, err);
    }
    mem_free(narrow);
    mem_free(values);
    return rc;
}

static int allocate(struct frozen *f, struct err *err)
{
    struct arena *arenas[] = {&f->weights, &f->scratch};
    int rc = f->dev->ops->stream_new(f->dev, &f->stream, err);
    for (int i = 0; i < 2 && rc == 0; i++) {
        rc = arena_alloc(arenas[i], f->dev, NULL);
        if (rc < 0)
            rc = err_set(err, rc, "no device memory on %s for %.1f MiB of a frozen %s's %s",
                         f->dev->name, (double)arena_bytes(arenas[i]) / (1 << 20),
                         component_kind_name(f->kind), i ? "working buffers" : "weights");
    }
    return rc;
}

int frozen_open(struct device *dev, const struct component *c, const struct frozen_options *opt,
                struct frozen **ret, struct err *err)
{
    struct frozen *f = mem_alloc(sizeof *f);
    f->dev = dev;
    int rc = plan(f, c, opt, err);
    if (rc == 0) {
        plan_inputs(f);
        rc = allocate(f, err);
    }
    if (rc == 0 && opt->pass)
        rc = frozen_stream_open(f, err);
    if (rc == 0)
        rc = opt->pass ? send(f, f->weights.base, opt->host->block, f->common, err)
                       : load(f, NULL, err);
    f->c = NULL;
    if (rc < 0) {
        frozen_close(f);
        return rc;
    }
    *ret = f;
    return 0;
}

void frozen_close(struct frozen *f)
{
    if (!f)
        return;
    drop(f);
    mem_free(f);
}

int frozen_host_new(struct device *dev, const struct component *c, const struct frozen_options *opt,
                    struct frozen_host **ret, struct err *err)
{
    struct frozen f = {0};
    struct frozen_host *h = mem_alloc(sizeof *h);
    *h = (struct frozen_host){.dev = dev};
    int rc = plan(&f, c, opt, err);
    if (rc == 0) {
        h->bytes = f.all;
        rc = dev->ops->alloc_host(dev, h->bytes, &h->block, err);
        if (rc < 0)
            h->block = NULL;
    }
    if (rc == 0)
        rc = load(&f, h->block, err);
    (void)arena_measure(&f.weights);
    (void)arena_measure(&f.scratch);
    drop(&f);
    if (rc < 0) {
        frozen_host_free(h);
        return rc;
    }
    *ret = h;
    return 0;
}

void frozen_host_free(struct frozen_host *h)
{
    if (!h)
        return;
    h->dev->ops->free_host(h->dev, h->block);
    mem_free(h);
}

uint64_t frozen_in_bytes(const struct frozen *f)
{
    return f->in_bytes;
}

uint64_t frozen_out_bytes(const struct frozen *f)
{
    return f->out_bytes;
}

int frozen_layers(const struct frozen *f)
{
    return f->n_layers;
}

uint64_t frozen_layer_cost(const struct frozen *f, int i)
{
    return f->layers[i].cost;
}

uint64_t frozen_layer_bytes(const struct frozen *f, int i)
{
    return f->layers[i].bytes;
}

/* ---- running ---- */

/* The shape of a run: 0 stands for the options' side. */
static int take_shape(const struct frozen *f, int *height, int *width, struct err *err)
{
    const int S = f->opt.side;
    *height = *height ? *height : S;
    *width = *width ? *width : S;
    if (f->kind != COMPONENT_VAE)
        return 0;
    const int unit = 1 << (f->vae.blocks - 1);
    if (*height < unit || *width < unit || *height % unit || *width % unit ||
        (int64_t)*height * *width > (int64_t)S * S)
        return err_set(err, -EINVAL,
                       "pictures of %d x %d pixels, expected multiples of %d and no more pixels "
                       "than %d x %d have",
                       *width, *height, unit, S, S);
    return 0;
}

/* Scales the bytes of a sample of the options' side to another shape. */
static uint64_t shaped(const struct frozen *f, uint64_t bytes, int height, int width)
{
    const uint64_t S = (uint64_t)f->opt.side;
    return f->kind == COMPONENT_VAE ? bytes * (uint64_t)height * (uint64_t)width / (S * S) : bytes;
}

int frozen_run_layers(struct frozen *f, const struct frozen_group *g, int from, int to,
                      struct stream *s, struct err *err)
{
    struct frozen_pass p = {.f = f, .g = g, .s = s};
    if (g->n < 0 || g->n > f->opt.group || from < 0 || to > f->n_layers)
        return err_set(err, -EINVAL, "layers %d to %d of %d samples, expected up to %d of %d", from,
                       to, g->n, f->n_layers, f->opt.group);
    for (int i = 0; i < FROZEN_BUFFERS; i++)
        p.buf[i] = f->scratch_base[i];
    for (int i = from; i < to && p.rc == 0 && g->n > 0; i++) {
        frozen_note(&p, frozen_stream_begin(f, i, s), "bringing weights");
        f->layers[i].run(&p, &f->layers[i]);
        frozen_note(&p, frozen_stream_end(f, i, s), "bringing weights");
    }
    if (p.rc < 0)
        return err_set(err, p.rc, "%s failed on %s: %s", p.failed, f->dev->name, err_text(p.rc));
    return 0;
}

/* An array of a group on the device: (n) samples, `stride` bytes apart in host memory; without a
 * buffer they are already on the device. */
static const void *sent(struct frozen_pass *p, void *to, const void *from, int n, uint64_t bytes,
                        uint64_t stride)
{
    struct device *dev = p->f->dev;
    const int copies = stride == bytes ? 1 : n;
    if (!to)
        return from;
    for (int i = 0; i < copies; i++)
        frozen_note(p,
                    dev->ops->copy(dev, (char *)to + (uint64_t)i * bytes,
                                   (const char *)from + (uint64_t)i * stride,
                                   copies == 1 ? (uint64_t)n * bytes : bytes, COPY_TO_DEVICE, p->s),
                    "copy");
    return to;
}

int frozen_group_of(struct frozen *f, const struct frozen_io *io, int first, int n, bool inputs,
                    struct stream *s, struct frozen_group *ret, struct err *err)
{
    struct frozen_pass p = {.f = f, .s = s};
    struct frozen_group g = {.n = n, .height = io->height, .width = io->width};
    int rc = take_shape(f, &g.height, &g.width, err);
    if (rc < 0)
        return rc;
    const uint64_t bytes = shaped(f, f->in_bytes, g.height, g.width);
    const uint64_t stride = io->in_stride ? io->in_stride : bytes;
    const int place = f->opt.pass ? first % f->opt.pass : 0;
    int32_t *lengths = f->lengths ? f->lengths + place : NULL;
    g.out = (char *)io->out + (uint64_t)first * shaped(f, f->out_bytes, g.height, g.width);
    g.host_lengths = io->lengths ? io->lengths + first : NULL;
    if (inputs)
        g.in = sent(&p, f->in, (const char *)io->in + (uint64_t)first * stride, n, bytes, stride);
    /* Later layers of a pass find them there: this small copy would wait for those of weights. */
    g.lengths = inputs || !f->opt.pass
                    ? sent(&p, lengths, g.host_lengths, n, sizeof *g.lengths, sizeof *g.lengths)
                    : lengths;
    if (p.rc < 0)
        return err_set(err, p.rc, "copying inputs to %s failed: %s", f->dev->name, err_text(p.rc));
    *ret = g;
    return 0;
}

uint64_t frozen_left(const struct frozen *f, const struct frozen_group *g, int i, int k)
{
    return shaped(f, f->layers[i].left[k].bytes, g->height, g->width);
}

int frozen_check(const struct frozen *f, const struct frozen_io *io, int count, struct err *err)
{
    for (int i = 0; i < count && f->opt.part == FROZEN_TEXT; i++)
        if (io->lengths[i] < 1 || io->lengths[i] > f->opt.tokens)
            return err_set(err, -EINVAL, "text %d has %d tokens, expected 1 to %d", i,
                           io->lengths[i], f->opt.tokens);
    return 0;
}
