#include "worker/data/images.h"

#include <pthread.h>

#include "common/base/rng.h"
#include "common/data/captions.h"
#include "common/data/moments.h"
#include "worker/data/data_samples.h"
#include "worker/data/latents.h"

#define RING_BYTES_MAX (256u << 20)
#define STREAM_FLIP 0x666c6970ULL
#define STREAM_CROP 0x63726f70ULL
#define CAPTION_TOKENS_MAX 4096

/* ---- the cache: decoded images by sample id, open addressing, nothing is ever replaced ---- */

struct entry {
    uint64_t id;
    int32_t label;
    uint8_t *pixels; /* NULL: the place is free */
};

struct image_cache {
    pthread_mutex_t lock;
    size_t max_bytes, bytes;
    size_t image_bytes; /* size of every entry; 0: none yet */
    uint64_t shapes;    /* hash of the images' shapes */
    struct entry *table;
    size_t cap, used; /* cap is 0 or a power of two */
};

int image_cache_new(size_t max_bytes, struct image_cache **ret, struct err *err)
{
    struct image_cache *c = mem_try_zero(sizeof(*c));
    if (!c)
        return err_set(err, -ENOMEM, "out of memory for the image cache");
    c->max_bytes = max_bytes;
    pthread_mutex_init(&c->lock, NULL);
    *ret = c;
    return 0;
}

static void cache_clear(struct image_cache *c)
{
    for (size_t i = 0; i < c->cap; i++)
        mem_free(c->table[i].pixels);
    mem_free(c->table);
    c->table = NULL;
    c->cap = c->used = c->bytes = 0;
}

void image_cache_free(struct image_cache *c)
{
    if (!c)
        return;
    cache_clear(c);
    pthread_mutex_destroy(&c->lock);
    mem_free(c);
}

size_t image_cache_bytes(struct image_cache *c)
{
    pthread_mutex_lock(&c->lock);
    size_t bytes = c->bytes;
    pthread_mutex_unlock(&c->lock);
    return bytes;
}

/* Sets the size and shapes of images from now on; images of other sizes or shapes are dropped. */
static void cache_use(struct image_cache *c, size_t image_bytes, uint64_t shapes)
{
    pthread_mutex_lock(&c->lock);
    if (c->image_bytes != image_bytes || c->shapes != shapes)
        cache_clear(c);
    c->image_bytes = image_bytes;
    c->shapes = shapes;
    pthread_mutex_unlock(&c->lock);
}

/* The entry of id, or the free place where it belongs.  cap > used. */
static struct entry *find(const struct image_cache *c, uint64_t id)
{
    size_t i = (size_t)rng_mix(id, 0x5ca1ab1eULL) & (c->cap - 1);
    while (c->table[i].pixels && c->table[i].id != id)
        i = (i + 1) & (c->cap - 1);
    return &c->table[i];
}

/* Copies the image of a sample; false when it is not there. */
static bool cache_get(struct image_cache *c, uint64_t id, uint8_t *pixels, int32_t *ret_label)
{
    pthread_mutex_lock(&c->lock);
    const struct entry *e = c->cap ? find(c, id) : NULL;
    bool hit = e && e->pixels;
    if (hit) {
        memcpy(pixels, e->pixels, c->image_bytes);
        *ret_label = e->label;
    }
    pthread_mutex_unlock(&c->lock);
    return hit;
}

/* Keeps the table at most 3/4 full.  False without memory. */
static bool grow(struct image_cache *c)
{
    if (c->cap && c->used < c->cap / 4 * 3)
        return true;
    size_t cap = c->cap ? c->cap * 2 : 1024;
    struct entry *table = mem_try_array(cap, sizeof(*table));
    if (!table)
        return false;
    struct image_cache next = {.table = table, .cap = cap};
    for (size_t i = 0; i < c->cap; i++)
        if (c->table[i].pixels)
            *find(&next, c->table[i].id) = c->table[i];
    mem_free(c->table);
    c->table = table;
    c->cap = cap;
    return true;
}

/* Keeps a copy while there is room. */
static void cache_put(struct image_cache *c, uint64_t id, const uint8_t *pixels, int32_t label)
{
    pthread_mutex_lock(&c->lock);
    size_t cost = c->image_bytes + 2 * sizeof(struct entry);
    if (c->bytes + cost <= c->max_bytes && grow(c)) {
        struct entry *e = find(c, id);
        uint8_t *copy = e->pixels ? NULL : mem_try(c->image_bytes);
        if (copy) {
            memcpy(copy, pixels, c->image_bytes);
            *e = (struct entry){.id = id, .label = label, .pixels = copy};
            c->used++;
            c->bytes += cost;
        }
    }
    pthread_mutex_unlock(&c->lock);
}

/* ---- the pipeline ---- */

enum slot_state { SLOT_FREE, SLOT_TAKEN, SLOT_GOOD, SLOT_BAD };

/* A sample in the ring.  TAKEN: owned by a decode thread; GOOD and BAD: by the
 * consumer; FREE: by the holder of the lock. */
struct slot {
    enum slot_state state;
    struct data_place place;
    uint64_t pass, id, key;
    int32_t label;
    bool mirror;
    uint8_t shape; /* number of its shape */
    uint8_t *pixels;
    uint16_t *moments;
    bool encoded; /* it has moments, no pixels */
    int32_t *caption, caption_length;
    char reason[257];
};

struct images {
    struct data base; /* head is under the lock, except that the consumer may read it */
    struct images_options opt;
    struct image_shape shapes[1 + IMAGES_SHAPES_MAX]; /* by number: the square, the options' */
    size_t image_bytes;                               /* bytes of a square image */
    struct mem_arrays arrays;

    /* Under the lock. */
    pthread_mutex_t lock;
    pthread_cond_t ready, room;
    uint64_t next; /* next position to decode; samples before base.head are consumed */
    struct slot *ring;
    uint64_t ring_size;
    bool stop;

    pthread_t threads[IMAGES_THREADS_MAX];
    unsigned n_threads;

    /* The consumer's. */
    uint8_t *ring_pixels, *images;
    int32_t *labels, *partitions;
    int32_t *ring_captions, *captions, *caption_lengths;
    uint64_t *ids, *keys;
    uint16_t *ring_moments, *moments;
    uint8_t *batch_shapes;
    /* With shapes: for sorting a batch by them. */
    unsigned *order, *left;
    uint8_t *row;
    /* With latents: the batch's samples without kept moments, whose pixels come first in `images`.
     */
    uint16_t *fresh;
    uint8_t *fresh_shapes;
    struct fresh {
        unsigned row;
        struct data_place place;
        bool mirror;
    } * fresh_of;
    unsigned n_fresh;
};

/* ---- opening ---- */

static size_t moments_bytes(const struct images *d)
{
    return d->opt.moments * sizeof(*d->moments);
}

/* Makes room for moments, in the same way. */
static void make_moments(struct images *d)
{
    const size_t row = moments_bytes(d);
    d->ring_moments = mem_arrays_add(&d->arrays, (size_t)d->ring_size, row);
    d->moments = mem_arrays_add(&d->arrays, d->opt.batch, row);
    if (!d->opt.latents)
        return;
    d->fresh = mem_arrays_add(&d->arrays, d->opt.batch, row);
    d->fresh_shapes = mem_arrays_add(&d->arrays, d->opt.batch, 1);
    d->fresh_of = mem_arrays_add(&d->arrays, d->opt.batch, sizeof(*d->fresh_of));
}

/* Makes room for the captions of the ring and of a batch. */
static void make_captions(struct images *d)
{
    const size_t row = d->opt.caption_tokens * sizeof(*d->captions);
    d->ring_captions = mem_arrays_add(&d->arrays, (size_t)d->ring_size, row);
    d->captions = mem_arrays_add(&d->arrays, d->opt.batch, row);
    d->caption_lengths = mem_arrays_add(&d->arrays, d->opt.batch, sizeof(*d->caption_lengths));
}

/* Makes room for sorting batches by their shapes. */
static void make_order(struct images *d)
{
    const size_t captions = d->opt.caption_tokens * sizeof(*d->captions);
    size_t row = d->image_bytes > captions ? d->image_bytes : captions;
    row = row > moments_bytes(d) ? row : moments_bytes(d);
    row = row > sizeof(uint64_t) ? row : sizeof(uint64_t);
    d->batch_shapes = mem_arrays_add(&d->arrays, d->opt.batch, 1);
    d->order = mem_arrays_add(&d->arrays, d->opt.batch, sizeof(*d->order));
    d->left = mem_arrays_add(&d->arrays, d->opt.batch, sizeof(*d->left));
    d->row = mem_arrays_add(&d->arrays, 1, row);
}

static int make_ring(struct images *d, struct err *err)
{
    uint64_t fits = RING_BYTES_MAX / d->image_bytes;
    uint64_t size = 2ull * d->opt.batch;
    if (size > fits)
        size = fits;
    if (size < d->opt.threads + 1)
        size = d->opt.threads + 1;
    d->ring_size = size;
    d->ring = mem_arrays_add(&d->arrays, (size_t)size, sizeof(*d->ring));
    d->ring_pixels = mem_arrays_add(&d->arrays, (size_t)size, d->image_bytes);
    d->images = mem_arrays_add(&d->arrays, d->opt.batch, d->image_bytes);
    d->labels = mem_arrays_add(&d->arrays, d->opt.batch, sizeof(*d->labels));
    d->partitions = mem_arrays_add(&d->arrays, d->opt.batch, sizeof(*d->partitions));
    d->ids = mem_arrays_add(&d->arrays, d->opt.batch, sizeof(*d->ids));
    d->keys = mem_arrays_add(&d->arrays, d->opt.batch, sizeof(*d->keys));
    if (d->opt.caption)
        make_captions(d);
    if (d->opt.moments)
        make_moments(d);
    if (d->opt.n_shapes)
        make_order(d);
    if (d->arrays.failed)
        return err_set(err, -ENOMEM, "out of memory for batches of %u images of %u x %u",
                       d->opt.batch, d->opt.image_size, d->opt.image_size);
    for (uint64_t i = 0; i < size; i++) {
        d->ring[i].pixels = d->ring_pixels + i * d->image_bytes;
        if (d->opt.caption)
            d->ring[i].caption = d->ring_captions + i * d->opt.caption_tokens;
        if (d->opt.moments)
            d->ring[i].moments = d->ring_moments + i * d->opt.moments;
    }
    return 0;
}

static int check_options(const struct images_options *o, struct err *err)
{
    if (o->image_size == 0 || o->image_size > 4096 || o->batch == 0 || o->batch > 65536)
        return err_set(err, -ERR_LIMIT, "batches of %u images of side %u cannot be made", o->batch,
                       o->image_size);
    if (o->n_shapes > IMAGES_SHAPES_MAX)
        return err_set(err, -ERR_LIMIT, "images of %u shapes; at most %d are possible", o->n_shapes,
                       IMAGES_SHAPES_MAX);
    for (unsigned i = 0; i < o->n_shapes; i++)
        if (o->shapes[i].width < 1 || o->shapes[i].height < 1 ||
            (uint64_t)o->shapes[i].width * (uint64_t)o->shapes[i].height >
                (uint64_t)o->image_size * o->image_size)
            return err_set(err, -ERR_LIMIT, "images of %d x %d in places for %u x %u",
                           o->shapes[i].width, o->shapes[i].height, o->image_size, o->image_size);
    if (o->caption && (o->caption_tokens == 0 || o->caption_tokens > CAPTION_TOKENS_MAX))
        return err_set(err, -ERR_LIMIT, "captions have %u tokens, expected 1..%d",
                       o->caption_tokens, CAPTION_TOKENS_MAX);
    return 0;
}

static void images_free(struct data *base)
{
    struct images *d = (struct images *)base;
    pthread_mutex_lock(&d->lock);
    d->stop = true;
    pthread_cond_broadcast(&d->room);
    pthread_mutex_unlock(&d->lock);
    for (unsigned i = 0; i < d->n_threads; i++)
        pthread_join(d->threads[i], NULL);
    data_close(base);
    pthread_cond_destroy(&d->ready);
    pthread_cond_destroy(&d->room);
    pthread_mutex_destroy(&d->lock);
    mem_arrays_free(&d->arrays);
    mem_free(d);
}

/* ---- decode threads ---- */

/* Waits for room and takes the next position.  NULL: nothing is left to do. */
static struct slot *take(struct images *d)
{
    struct slot *s = NULL;
    pthread_mutex_lock(&d->lock);
    while (!d->stop && d->next - d->base.head >= d->ring_size)
        pthread_cond_wait(&d->room, &d->lock);
    if (!d->stop && data_has(&d->base, d->next)) {
        s = &d->ring[d->next % d->ring_size];
        s->state = SLOT_TAKEN;
        s->place = data_at(&d->base, d->next);
        s->pass = d->next / d->base.total;
        s->id = data_sample_id(d->base.hashes[s->place.shard], s->place.index);
        d->next++;
    }
    pthread_mutex_unlock(&d->lock);
    return s;
}

void images_mirror(uint8_t *pixels, struct image_shape shape)
{
    const unsigned width = (unsigned)shape.width;
    for (unsigned y = 0; y < (unsigned)shape.height; y++) {
        uint8_t *row = pixels + (size_t)y * width * IMAGES_CHANNELS;
        for (unsigned a = 0, b = width - 1; a < b; a++, b--)
            for (unsigned c = 0; c < IMAGES_CHANNELS; c++) {
                uint8_t keep = row[a * IMAGES_CHANNELS + c];
                row[a * IMAGES_CHANNELS + c] = row[b * IMAGES_CHANNELS + c];
                row[b * IMAGES_CHANNELS + c] = keep;
            }
    }
}

/* The tokens of one of the sample's captions; false when there are none. */
static bool take_caption(const struct images_options *o, struct slot *s,
                         const struct shard_sample *sample)
{
    const unsigned n = captions_count(sample->captions, sample->captions_len);
    const unsigned i = n > 1 ? caption_draw(o->order.seed, shard_name(sample), s->pass, n) : 0;
    size_t len;
    const char *text = captions_get(sample->captions, sample->captions_len, i, &len);
    if (o->caption(o->caption_arg, text, len, s->caption, &s->caption_length) == 0)
        return true;
    snprintf(s->reason, sizeof(s->reason), "its caption has no tokens");
    return false;
}

/* Is the sample mirrored? */
static bool draw_mirror(const struct images_options *o, const struct slot *s,
                        const struct shard_sample *sample)
{
    const char *name = shard_name(sample);
    const uint64_t id = o->moments ? data_content_key((const uint8_t *)name, strlen(name)) : s->id;
    return o->flip && (rng_at_u32(o->order.seed, rng_mix(STREAM_FLIP, s->pass), id) & 1);
}

static bool bad(struct slot *s, const char *reason)
{
    str_copy(s->reason, sizeof(s->reason), reason);
    return false;
}

/* The number of the latents' shape; -1: they have none of the shapes. */
static int find_shape(const struct images *d, const struct moments *m)
{
    const struct images_options *o = &d->opt;
    const uint64_t S = o->image_size, side = o->latent_side;
    for (unsigned i = o->n_shapes > 0; i <= o->n_shapes; i++) {
        const uint64_t height = (uint64_t)d->shapes[i].height, width = (uint64_t)d->shapes[i].width;
        if (m->height == height * side / S && m->width == width * side / S &&
            m->values == o->moments * height * width / (S * S))
            return (int)i;
    }
    return -1;
}

/* The moments of a sample of a shard of latents. */
static bool take_latents(const struct images *d, struct slot *s, const struct shard_sample *sample)
{
    const struct images_options *o = &d->opt;
    struct moments m;
    if (!o->moments)
        return bad(s, "latents, not an image");
    const bool whole = moments_parse(sample->data, sample->len, &m);
    if (whole && m.sides == 0) { /* a picture that could not be read */
        moments_why(sample->data, &m, s->reason, sizeof(s->reason));
        return *s->reason ? false : bad(s, "an image that could not be encoded");
    }
    const int shape = whole ? find_shape(d, &m) : -1;
    if (shape < 0)
        return bad(s, "latents of another size");
    s->shape = (uint8_t)shape;
    if (s->mirror && m.sides < 2)
        return bad(s, "latents without those of the mirrored image");
    s->key = o->order.shuffle ? 0 : m.key;
    s->label = (int32_t)sample->cls;
    s->encoded = true;
    return moments_decode(sample->data, &m, s->mirror, s->moments) || bad(s, "latents are damaged");
}

/* How far apart the aspects of two shapes are; 1: equal.  A quotient of whole numbers, which every
 * machine rounds alike. */
static double unlikeness(struct image_shape a, struct image_shape b)
{
    const double p = (double)a.width * b.height, q = (double)a.height * b.width;
    return p > q ? p / q : q / p;
}

/* Chooses the shape whose aspect is nearest to the image's, the first of equal ones. */
static bool choose_shape(const struct images *d, struct slot *s, const struct shard_sample *sample)
{
    struct image_shape is;
    struct err err = {0};
    if (d->opt.n_shapes == 0)
        return true;
    if (image_info(sample->data, sample->len, &is.width, &is.height, &err) < 0)
        return bad(s, err.msg);
    s->shape = 1;
    for (unsigned i = 2; i <= d->opt.n_shapes; i++)
        if (unlikeness(d->shapes[i], is) < unlikeness(d->shapes[s->shape], is))
            s->shape = (uint8_t)i;
    return true;
}

static bool take_pixels(const struct images *d, struct slot *s, const struct shard_sample *sample)
{
    const struct images_options *o = &d->opt;
    const uint32_t crop = rng_at_u32(o->order.seed, rng_mix(STREAM_CROP, s->pass), s->id);
    struct err err = {0};
    s->key = o->order.shuffle ? 0 : data_content_key(sample->data, sample->len);
    if (o->cache && cache_get(o->cache, s->id, s->pixels, &s->label))
        return true;
    if (image_decode(sample->data, sample->len, d->shapes[s->shape], o->random_crop ? &crop : NULL,
                     s->pixels, &err) < 0)
        return bad(s, err.msg);
    s->label = (int32_t)sample->cls;
    if (o->cache)
        cache_put(o->cache, s->id, s->pixels, s->label);
    return true;
}

static struct latents_place place_of(const struct images *d, const struct data_place *p,
                                     bool mirrored)
{
    return (struct latents_place){.shard_sha256 = d->base.hashes[p->shard],
                                  .samples = (uint32_t)d->base.shards[p->shard].n,
                                  .index = p->index,
                                  .mirror = mirrored};
}

/* Moments that this worker has kept of a shard of images. */
static bool take_kept(const struct images *d, struct slot *s, const struct shard_sample *sample)
{
    const struct latents_place at = place_of(d, &s->place, s->mirror);
    s->encoded = d->opt.latents && latents_get(d->opt.latents, &at, s->moments);
    if (s->encoded) {
        s->key = d->opt.order.shuffle ? 0 : data_content_key(sample->data, sample->len);
        s->label = (int32_t)sample->cls;
    }
    return s->encoded;
}

static enum slot_state decode(const struct images *d, struct slot *s)
{
    const struct images_options *o = &d->opt;
    const struct shard *shard = &d->base.shards[s->place.shard];
    const struct shard_sample *sample = &shard->samples[s->place.index];
    bool good = true;
    s->encoded = false;
    s->shape = 0;
    s->mirror = draw_mirror(o, s, sample);
    if (shard->kind == SHARD_TEXT)
        good = bad(s, "a piece of text, not an image");
    if (good && o->caption)
        good = take_caption(o, s, sample);
    if (good && o->classes && sample->cls >= o->classes) {
        snprintf(s->reason, sizeof(s->reason), "class %u, but there are %u", sample->cls,
                 o->classes);
        good = false;
    }
    if (good && shard->kind == SHARD_LATENTS)
        good = take_latents(d, s, sample);
    else if (good && (good = choose_shape(d, s, sample)) && !take_kept(d, s, sample))
        good = take_pixels(d, s, sample);
    if (good && !s->encoded && s->mirror)
        images_mirror(s->pixels, d->shapes[s->shape]);
    return good ? SLOT_GOOD : SLOT_BAD;
}

static void *decode_thread(void *arg)
{
    struct images *d = arg;
    struct slot *s;
    while ((s = take(d)) != NULL) {
        enum slot_state state = decode(d, s);
        pthread_mutex_lock(&d->lock);
        s->state = state;
        if (s == &d->ring[d->base.head % d->ring_size])
            pthread_cond_signal(&d->ready);
        pthread_mutex_unlock(&d->lock);
    }
    image_thread_exit();
    return NULL;
}

/* ---- the consumer ---- */

static int start(struct images *d, struct err *err)
{
    if (d->n_threads == 0)
        d->next = d->base.head;
    for (; d->n_threads < d->opt.threads; d->n_threads++) {
        int rc = pthread_create(&d->threads[d->n_threads], NULL, decode_thread, d);
        if (rc != 0 && d->n_threads == 0)
            return err_set(err, -rc, "cannot start a thread to decode images: %s", err_text(-rc));
        if (rc != 0) {
            d->opt.threads = d->n_threads; /* fewer threads are enough */
            break;
        }
        pthread_setname_np(d->threads[d->n_threads], "decode");
    }
    return 0;
}

/* Waits for the sample at the head. */
static struct slot *await(struct images *d)
{
    pthread_mutex_lock(&d->lock);
    struct slot *s = &d->ring[d->base.head % d->ring_size];
    while (s->state != SLOT_GOOD && s->state != SLOT_BAD)
        pthread_cond_wait(&d->ready, &d->lock);
    pthread_mutex_unlock(&d->lock);
    return s;
}

static void consume(struct images *d, struct slot *s)
{
    pthread_mutex_lock(&d->lock);
    s->state = SLOT_FREE;
    d->base.head++;
    pthread_cond_signal(&d->room);
    pthread_mutex_unlock(&d->lock);
}

static void take_caption_row(struct images *d, unsigned i, const struct slot *s)
{
    const unsigned tokens = d->opt.caption_tokens;
    if (!d->opt.caption)
        return;
    memcpy(d->captions + (size_t)i * tokens, s->caption, tokens * sizeof(*s->caption));
    d->caption_lengths[i] = s->caption_length;
}

/* Takes the pixels or moments of sample n of a batch. */
static void take_picture(struct images *d, unsigned n, const struct slot *s)
{
    const unsigned row = d->opt.latents ? d->n_fresh : n;
    if (s->encoded) {
        memcpy(d->moments + (size_t)n * d->opt.moments, s->moments,
               d->opt.moments * sizeof(*s->moments));
        return;
    }
    memcpy(d->images + row * d->image_bytes, s->pixels, d->image_bytes);
    if (d->opt.latents) {
        d->fresh_shapes[d->n_fresh] = s->shape;
        d->fresh_of[d->n_fresh++] = (struct fresh){n, s->place, s->mirror};
    }
}

/* Encodes the samples without kept moments, and keeps theirs. */
static int encode_fresh(struct images *d, struct err *err)
{
    const size_t values = d->opt.moments;
    int rc = d->n_fresh ? d->opt.encode(d->opt.encode_arg, d->images, d->fresh_shapes, d->n_fresh,
                                        d->fresh, err)
                        : 0;
    for (unsigned i = 0; i < d->n_fresh && rc == 0; i++) {
        const struct fresh *f = &d->fresh_of[i];
        const struct latents_place at = place_of(d, &f->place, f->mirror);
        memcpy(d->moments + f->row * values, d->fresh + i * values, values * sizeof(*d->moments));
        latents_put(d->opt.latents, &at, d->fresh + i * values);
    }
    d->n_fresh = 0;
    return rc;
}

/* Takes the good sample of a slot as number n of the batch. */
static void take_good(struct images *d, unsigned n, const struct slot *s)
{
    take_picture(d, n, s);
    d->labels[n] = s->label;
    d->partitions[n] = s->place.partition;
    d->ids[n] = s->id;
    d->keys[n] = s->key;
    if (d->batch_shapes)
        d->batch_shapes[n] = s->shape;
    take_caption_row(d, n, s);
}

/* Permutes rows (n) of `bytes`: row i becomes the old row order[i]. */
static void move_rows(struct images *d, void *rows, size_t bytes, unsigned n)
{
    uint8_t *p = rows;
    if (!rows)
        return;
    memcpy(d->left, d->order, n * sizeof(*d->left));
    for (unsigned i = 0; i < n; i++) {
        unsigned at = i;
        if (d->left[i] == i)
            continue;
        memcpy(d->row, p + i * bytes, bytes);
        while (d->left[at] != i) {
            const unsigned from = d->left[at];
            memcpy(p + at * bytes, p + from * bytes, bytes);
            d->left[at] = at;
            at = from;
        }
        memcpy(p + at * bytes, d->row, bytes);
        d->left[at] = at;
    }
}

/* Sorts the batch by shape; samples of one shape keep their order. */
static void sort_batch(struct images *d, unsigned n, bool moments)
{
    unsigned k = 0;
    for (unsigned shape = 0; shape <= d->opt.n_shapes; shape++)
        for (unsigned i = 0; i < n; i++)
            if (d->batch_shapes[i] == shape)
                d->order[k++] = i;
    move_rows(d, moments ? NULL : d->images, d->image_bytes, n);
    move_rows(d, moments ? d->moments : NULL, moments_bytes(d), n);
    move_rows(d, d->captions, d->opt.caption_tokens * sizeof(*d->captions), n);
    move_rows(d, d->caption_lengths, sizeof(*d->caption_lengths), n);
    move_rows(d, d->labels, sizeof(*d->labels), n);
    move_rows(d, d->partitions, sizeof(*d->partitions), n);
    move_rows(d, d->ids, sizeof(*d->ids), n);
    move_rows(d, d->keys, sizeof(*d->keys), n);
    move_rows(d, d->batch_shapes, sizeof(*d->batch_shapes), n);
}

static int images_next(struct data *base, struct batch *ret, struct err *err)
{
    struct images *d = (struct images *)base;
    int rc = start(d, err);
    unsigned n = 0, encoded = 0;
    while (rc == 0 && n < d->opt.batch && data_has(base, base->head)) {
        struct slot *s = await(d);
        if (s->state == SLOT_GOOD && !d->opt.latents && n > 0 && s->encoded != (encoded > 0))
            break; /* a batch has pixels or moments, and shards of both kinds meet here */
        if (s->state == SLOT_GOOD) {
            take_good(d, n++, s);
            encoded += s->encoded;
            base->bad_run = 0;
        } else {
            rc = data_found_bad(base, &s->place, "images of the phase can be read", s->reason, err);
        }
        consume(d, s);
    }
    if (rc == 0)
        rc = encode_fresh(d, err);
    if (rc < 0)
        return rc;
    const bool moments = d->opt.latents || encoded > 0;
    if (d->batch_shapes)
        sort_batch(d, n, moments);
    *ret = (struct batch){.count = n,
                          .samples = n,
                          .images = moments ? NULL : d->images,
                          .moments = moments ? d->moments : NULL,
                          .shapes = d->batch_shapes,
                          .labels = d->labels,
                          .partitions = d->partitions,
                          .captions = d->captions,
                          .caption_lengths = d->caption_lengths,
                          .ids = d->ids,
                          .keys = d->opt.order.shuffle ? NULL : d->keys};
    return 0;
}

int images_open(const struct images_options *opt, const struct data_range *ranges, size_t n_ranges,
                struct data **ret, struct err *err)
{
    static const struct data_ops ops = {.next = images_next, .free = images_free};
    int rc = check_options(opt, err);
    if (rc < 0)
        return rc;
    struct images *d = mem_try_zero(sizeof(*d));
    if (!d)
        return err_set(err, -ENOMEM, "out of memory");
    d->opt = *opt;
    d->image_bytes = (size_t)opt->image_size * opt->image_size * IMAGES_CHANNELS;
    if (d->opt.threads == 0)
        d->opt.threads = 1;
    if (d->opt.threads > IMAGES_THREADS_MAX)
        d->opt.threads = IMAGES_THREADS_MAX;
    pthread_mutex_init(&d->lock, NULL);
    pthread_cond_init(&d->ready, NULL);
    pthread_cond_init(&d->room, NULL);
    if (opt->random_crop)
        d->opt.cache = NULL; /* no two passes see the same pixels */
    d->shapes[0] = image_square((int)opt->image_size);
    uint64_t shapes = 0;
    for (unsigned i = 0; i < opt->n_shapes; i++) {
        d->shapes[i + 1] = opt->shapes[i];
        shapes = rng_mix(rng_mix(shapes, (uint64_t)opt->shapes[i].width),
                         (uint64_t)opt->shapes[i].height);
    }
    if (d->opt.cache)
        cache_use(d->opt.cache, d->image_bytes, shapes);
    rc = data_open(&d->base, &ops, &opt->order, ranges, n_ranges, err);
    if (rc == 0)
        rc = make_ring(d, err);
    if (rc < 0)
        images_free(&d->base);
    else
        *ret = &d->base;
    return rc;
}
