#include "worker/train/ahead.h"

#include "worker/frozen/frozen_walk.h"
#include "worker/net/arena.h"

/* A frozen network, and its outputs for the next step's samples. */
struct network {
    struct frozen_walk *walk;
    char *out;      /* (batch) of `bytes` each, on the device */
    uint64_t bytes; /* per sample */
    bool runs;      /* the batch brings its inputs */
};

struct ahead {
    struct ahead_options opt;
    const struct net_encoders *e;
    struct device *dev;
    struct net_encoders table;
    struct arena arena;
    enum net_encoder which[NET_ENCODERS]; /* of each number */
    int n;
    struct network networks[NET_ENCODERS]; /* by number */
    int opened;                            /* number of open networks */
    unsigned begun, ready;                 /* samples being encoded; samples encoded */
    const unsigned *at;                    /* ahead_rows */

    /* First stage: the inputs of the encoded samples, on the host. */
    uint8_t *images;           /* (batch,S,S,3) */
    int32_t *tokens, *lengths; /* (batch,L), (batch) */
    char *null_states;         /* states of the empty caption, on the device */
    int32_t *null_tokens;      /* (L) */
};

int ahead_networks(const struct net_encoders *e, enum net_encoder ret[NET_ENCODERS])
{
    int n = 0;
    if (!e || !e->open)
        return 0;
    if (e->images && e->fly)
        ret[n++] = NET_IMAGES;
    if (e->captions)
        ret[n++] = NET_CAPTIONS;
    return n;
}

uint64_t ahead_out_bytes(const struct ahead_options *opt, enum net_encoder which)
{
    const struct model_spec *s = &opt->m->spec;
    return which == NET_IMAGES ? 2 * model_image_values(s) * sizeof(bf16)
                               : (uint64_t)s->caption_tokens * (uint64_t)s->caption *
                                     dtype_bytes(opt->encoders->dt);
}

static uint64_t image_bytes(const struct ahead_options *opt)
{
    const uint64_t side = opt->encoders->pixels;
    return MODEL_PIXEL_CHANNELS * side * side;
}

static void plan(struct ahead *a)
{
    a->n = ahead_networks(a->opt.encoders, a->which);
    for (int k = 0; k < a->n; k++) {
        struct network *n = &a->networks[k];
        n->bytes = ahead_out_bytes(&a->opt, a->which[k]);
        arena_add(&a->arena, &n->out, (uint64_t)a->opt.batch * n->bytes);
        if (a->opt.first && a->which[k] == NET_CAPTIONS)
            arena_add(&a->arena, &a->null_states, n->bytes);
    }
}

struct net_encoders ahead_far(const struct net_encoders *e)
{
    struct net_encoders far = *e;
    far.bytes = far.hold_bytes = 0;
    return far;
}

uint64_t ahead_bytes(const struct ahead_options *opt)
{
    const struct net_encoders *e = opt->encoders;
    struct ahead a = {.opt = *opt};
    plan(&a);
    return arena_measure(&a.arena) + FILL_UNDERWAY * e->hold_bytes + (opt->first ? 0 : e->bytes);
}

/* ---- in place of the encoders ---- */

/* Waits, as the table's functions must. */
static int copied(struct ahead *a, void *to, const void *from, uint64_t bytes, struct err *err)
{
    int rc = a->dev->ops->copy(a->dev, to, from, bytes, COPY_DEVICE, NULL);
    return rc < 0 ? err_set(err, rc, "taking what was encoded ahead failed on %s: %s", a->dev->name,
                            err_text(rc))
                  : a->dev->ops->sync(a->dev, NULL, err);
}

static const struct network *network_of(const struct ahead *a, enum net_encoder which)
{
    for (int k = 0; k < a->n; k++)
        if (a->which[k] == which && a->networks[k].runs)
            return &a->networks[k];
    return NULL;
}

/* The copy's sample that the network loads as its i-th. */
static unsigned row_of(const struct ahead *a, unsigned i)
{
    return a->at ? a->at[i] : i;
}

/* The number of samples from i on that are consecutive and alike: all encoded ahead, or none; known
 * NULL: all were. */
static unsigned run_of(const struct ahead *a, const bool *known, unsigned i, unsigned count)
{
    unsigned n = 1;
    while (i + n < count && (!known || known[i + n] == known[i]) &&
           row_of(a, i + n) == row_of(a, i) + n)
        n++;
    return n;
}

/* Copies a network's outputs from row_of(i) on to the place of the i-th. */
static int take_run(struct ahead *a, const struct network *n, void *to, unsigned i, unsigned count,
                    struct err *err)
{
    return copied(a, (char *)to + i * n->bytes, n->out + row_of(a, i) * n->bytes, count * n->bytes,
                  err);
}

static int not_there(const struct ahead *a, unsigned i, struct err *err)
{
    return err_set(err, -EINVAL, "sample %u of a step on %s was not encoded before it", i,
                   a->dev->name);
}

/* Is sample i the one that was encoded as the copy's `row`? */
static bool is_image(const struct ahead *a, const uint8_t *images, unsigned i, unsigned row)
{
    const uint64_t bytes = image_bytes(&a->opt);
    return row < a->ready && memcmp(images + i * bytes, a->images + row * bytes, bytes) == 0;
}

static bool is_caption(const struct ahead *a, const int32_t *tokens, const int32_t *lengths,
                       unsigned i, unsigned row)
{
    const size_t L = (size_t)a->opt.m->spec.caption_tokens;
    return row < a->ready && a->lengths[row] == lengths[i] &&
           memcmp(a->tokens + row * L, tokens + i * L, L * sizeof *tokens) == 0;
}

static bool is_empty(const struct ahead *a, const int32_t *tokens, const int32_t *lengths,
                     unsigned i)
{
    const size_t L = (size_t)a->opt.m->spec.caption_tokens;
    return lengths[i] == a->e->null_length &&
           memcmp(tokens + i * L, a->null_tokens, L * sizeof *tokens) == 0;
}

static int take_images(void *arg, const uint8_t *images, const uint8_t *shapes, unsigned count,
                       bf16 *d_moments, struct err *err)
{
    struct ahead *a = arg;
    const struct network *n = network_of(a, NET_IMAGES);
    int rc = 0;
    for (unsigned i = 0; i < count; i++)
        if (!n || shapes || !is_image(a, images, i, row_of(a, i)))
            return not_there(a, i, err);
    for (unsigned i = 0, m; i < count && rc == 0; i += m) {
        m = run_of(a, NULL, i, count);
        rc = take_run(a, n, d_moments, i, m, err);
    }
    return rc;
}

static int take_captions(void *arg, const int32_t *tokens, const int32_t *lengths, unsigned count,
                         void *d_states, struct err *err)
{
    struct ahead *a = arg;
    const struct network *n = network_of(a, NET_CAPTIONS);
    const uint64_t bytes = ahead_out_bytes(&a->opt, NET_CAPTIONS);
    bool *known = mem_try_array(count, sizeof *known);
    int rc = known ? 0 : err_set(err, -ENOMEM, "no memory for %u captions", count);
    for (unsigned i = 0; i < count && rc == 0; i++) {
        known[i] = n && is_caption(a, tokens, lengths, i, row_of(a, i));
        if (!known[i] && !is_empty(a, tokens, lengths, i))
            rc = not_there(a, i, err);
    }
    for (unsigned i = 0, m; i < count && rc == 0; i += m) {
        m = known[i] ? run_of(a, known, i, count) : 1;
        rc = known[i] ? take_run(a, n, d_states, i, m, err)
                      : copied(a, (char *)d_states + i * bytes, a->null_states, bytes, err);
    }
    mem_free(known);
    return rc;
}

const struct net_encoders *ahead_table(const struct ahead *a)
{
    return &a->table;
}

/* ---- life ---- */

static int keep_inputs(struct ahead *a, struct err *err)
{
    const size_t B = (size_t)a->opt.batch, L = (size_t)a->opt.m->spec.caption_tokens;
    const bool images = a->e->images && a->e->fly, captions = a->e->captions != NULL;
    a->table = *a->e;
    a->table.arg = a;
    a->table.made = true;
    a->table.images = images ? take_images : NULL; /* else batches bring moments */
    a->table.captions = captions ? take_captions : NULL;
    if (images)
        a->images = mem_try_array(B, image_bytes(&a->opt));
    if (captions) {
        a->tokens = mem_try_array(B * L, sizeof *a->tokens);
        a->lengths = mem_try_array(B, sizeof *a->lengths);
    }
    if ((images && !a->images) || (captions && (!a->tokens || !a->lengths)))
        return err_set(err, -ENOMEM, "no memory for the inputs of %zu samples", B);
    return 0;
}

/* Keeps the tokens of the empty caption. */
static int keep_empty(struct ahead *a, struct err *err)
{
    const size_t L = (size_t)a->opt.m->spec.caption_tokens, n = (size_t)a->e->null_length;
    if (!a->e->captions)
        return 0;
    a->null_tokens = mem_try_array(L, sizeof *a->null_tokens);
    if (!a->null_tokens)
        return err_set(err, -ENOMEM, "no memory for a caption of %zu tokens", L);
    for (size_t i = 0; i < L; i++)
        a->null_tokens[i] = i < n ? a->e->null_tokens[i] : a->e->null_pad;
    return 0;
}

static int open_networks(struct ahead *a, struct err *err)
{
    int rc = 0;
    for (int k = 0; k < a->n && rc == 0; k++) {
        struct frozen *f = NULL;
        rc = a->e->open(a->e->arg, a->which[k], &f, err);
        a->opened += rc == 0;
        if (rc == 0)
            rc = frozen_walk_new(f, FILL_UNDERWAY, &a->networks[k].walk, err);
    }
    return rc;
}

int ahead_new(struct device *dev, const struct ahead_options *opt, struct ahead **ret,
              struct err *err)
{
    struct ahead *a = mem_alloc(sizeof *a);
    *a = (struct ahead){.opt = *opt, .e = opt->encoders, .dev = dev};
    plan(a);
    int rc = arena_alloc(&a->arena, dev, err);
    if (rc == 0 && opt->first)
        rc = keep_inputs(a, err);
    if (rc == 0)
        rc = keep_empty(a, err);
    if (rc == 0 && !opt->far)
        rc = open_networks(a, err);
    if (rc < 0) {
        ahead_free(a);
        return rc;
    }
    *ret = a;
    return 0;
}

void ahead_free(struct ahead *a)
{
    if (!a)
        return;
    for (int k = 0; k < a->n; k++)
        frozen_walk_free(a->networks[k].walk);
    for (int k = 0; k < a->opened; k++)
        a->e->close(a->e->arg, a->which[k]);
    arena_free(&a->arena, a->dev);
    mem_free(a->images);
    mem_free(a->tokens);
    mem_free(a->lengths);
    mem_free(a->null_tokens);
    mem_free(a);
}

/* ---- ahead ---- */

int ahead_empty(struct ahead *a, struct comm_piece *ret, struct err *err)
{
    const struct network *n = NULL;
    for (int k = 0; k < a->n; k++)
        n = a->which[k] == NET_CAPTIONS ? &a->networks[k] : n;
    *ret = (struct comm_piece){0};
    if (!n)
        return 0;
    /* A rank outside the first stage passes it on through its outputs, which are unused until the
     * first step. */
    *ret = (struct comm_piece){a->opt.first ? a->null_states : n->out, n->bytes};
    return a->opt.far
               ? 0
               : a->e->captions(a->e->arg, a->null_tokens, &a->e->null_length, 1, ret->x, err);
}

bool ahead_has(const struct ahead *a, const struct batch *b)
{
    const bool images = a->images && b->images, captions = a->tokens && b->captions;
    bool same = b->count == a->ready && (!images || network_of(a, NET_IMAGES)) &&
                (!captions || network_of(a, NET_CAPTIONS));
    for (unsigned i = 0; i < b->count && same; i++)
        same = (!images || is_image(a, b->images, i, i)) &&
               (!captions || is_caption(a, b->captions, b->caption_lengths, i, i));
    return same;
}

static void take_inputs(struct ahead *a, const struct batch *b)
{
    const size_t L = (size_t)a->opt.m->spec.caption_tokens;
    if (a->images && network_of(a, NET_IMAGES))
        memcpy(a->images, b->images, b->count * image_bytes(&a->opt));
    if (a->tokens && network_of(a, NET_CAPTIONS)) {
        memcpy(a->tokens, b->captions, b->count * L * sizeof *a->tokens);
        memcpy(a->lengths, b->caption_lengths, b->count * sizeof *a->lengths);
    }
}

int ahead_begin(struct ahead *a, const struct batch *b, struct err *err)
{
    int rc = 0;
    a->ready = 0;
    a->begun = b->count;
    if (b->count > (unsigned)a->opt.batch)
        return err_set(err, -EINVAL, "%u samples ahead of steps of %d", b->count, a->opt.batch);
    for (int k = 0; k < a->n && rc == 0; k++) {
        struct network *n = &a->networks[k];
        const bool images = a->which[k] == NET_IMAGES;
        const struct frozen_io io = {.in = images ? (const void *)b->images : b->captions,
                                     .lengths = images ? NULL : b->caption_lengths,
                                     .out = n->out};
        n->runs = io.in && !(images && b->shapes);
        if (n->runs && n->walk)
            rc = frozen_walk_begin(n->walk, &io, (int)b->count, err);
    }
    if (rc == 0)
        take_inputs(a, b);
    return rc;
}

int ahead_run(struct ahead *a, const struct pipe_instr *in, struct stream *s, struct err *err)
{
    struct network *n = &a->networks[in->chain];
    return n->runs ? frozen_walk_run(n->walk, in->first, in->count, in->from, in->to, s, err) : 0;
}

struct comm_piece ahead_piece(const struct ahead *a, const struct pipe_instr *in)
{
    const struct network *n = &a->networks[in->chain];
    return (struct comm_piece){n->out + (uint64_t)in->first * n->bytes,
                               (uint64_t)in->count * n->bytes};
}

void ahead_rows(struct ahead *a, const unsigned *at)
{
    a->at = at;
}

void ahead_end(struct ahead *a)
{
    a->ready = a->begun;
}
