/* The image pipeline: samples are decoded ahead of the step by background threads.
 *
 *    order of the pass:  s7 s2 s9 s4 s1 ...        (positions)
 *                        │  │  │  │
 *     decode threads  ───┴──┴──┴──┘  each takes the next position
 *                        ▼
 *     ring of decoded samples (bounded), read in position order
 *                        ▼
 *     data_next() on the compute thread:  batch of the next `count` good samples
 *
 * A batch's keys are data_content_key()s, or NULL if shuffled (training).
 *
 * If the model reads latents, a sample may come with its moments instead of pixels: from a shard
 * of latents, or from those that this worker keeps (latents.h).  Batches have either; with
 * `latents` they always have moments, since data_next encodes and keeps missing ones.
 *
 * caption_draw() chooses among several captions; a sample without captions has the null caption,
 * "".
 *
 * image_cache keeps decoded images between phases, so that later epochs do not
 * decode again.  It has a maximum and keeps the first images: the access
 * pattern is cyclic, where replacing the oldest would never hit.  Any thread. */
#ifndef WORKER_DATA_IMAGES_H
#define WORKER_DATA_IMAGES_H

#include "common/data/image.h"
#include "worker/data/data.h"

struct image_cache;
struct latents;

#define IMAGES_CHANNELS 3
#define IMAGES_THREADS_MAX 64
#define IMAGES_SHAPES_MAX 16

struct images_options {
    unsigned image_size; /* S, pixels of a side; images are scaled to cover it and cropped */
    /* Shapes in place of the square, none with more pixels, or NULL.  An image gets the shape of
     * the nearest aspect, and a batch is in their order.  Shape i is i + 1 in a batch's shapes. */
    const struct image_shape *shapes; /* copied */
    unsigned n_shapes;
    unsigned batch;   /* samples of a batch */
    unsigned threads; /* decode threads, 0 = 1 */
    unsigned classes; /* a sample of a class from here on is bad; 0: any class is fine */
    bool flip;        /* mirror half of the samples, by (seed, pass, sample id) */
    bool random_crop; /* else the centre: by (seed, pass, sample id), never cached */
    struct data_order order;
    /* May be NULL; must outlive the data.  A cache holds one image size at a
     * time: images_open with another size empties it. */
    struct image_cache *cache;
    /* If the model reads latents: the numbers in the moments of an S x S image, and the latents'
     * side; 0: it reads pixels.  Flips are then drawn by a sample's name, which shards of latents
     * keep, not by its number. */
    unsigned moments, latent_side;
    struct latents *latents; /* kept moments, or NULL; must outlive the data */
    /* With `latents`: makes moments (count,moments) of images (count,S,S,3) of these shapes, laid
     * out as in a batch; called on the consumer's thread. */
    int (*encode)(void *arg, const uint8_t *images, const uint8_t *shapes, unsigned count,
                  uint16_t *moments, struct err *err);
    void *encode_arg;
    /* Turns a caption into (caption_tokens) tokens, of which the first *ret_length are its own;
     * called on several decode threads at once.  A negative return makes the sample bad.  NULL:
     * batches have no captions. */
    int (*caption)(void *arg, const char *text, size_t len, int32_t *tokens, int32_t *ret_length);
    void *caption_arg; /* must outlive the data */
    unsigned caption_tokens;
};

/* Opens the shards' indexes; data_free joins the threads.  Fails if a shard cannot be read or a
 * range lies outside its shard. */
int images_open(const struct images_options *opt, const struct data_range *ranges, size_t n_ranges,
                struct data **ret, struct err *err);

/* Mirrors an image in place. */
void images_mirror(uint8_t *pixels, struct image_shape shape);

/* A cache of at most max_bytes of decoded pixels. */
int image_cache_new(size_t max_bytes, struct image_cache **ret, struct err *err);
void image_cache_free(struct image_cache *c);    /* accepts NULL */
size_t image_cache_bytes(struct image_cache *c); /* held now; for tests */

#endif
