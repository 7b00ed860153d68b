/* The noised image of rectified flow (Liu et al. 2022; Lipman et al. 2022), from which all image
 * objectives start:
 *
 *    x_t = (1-t) x0 + t eps,   target = eps - x0,   t = sigmoid(normal) (Esser et al. 2024)
 *                                                       or uniform, or the batch's t
 *
 * Times that are drawn, and a sampler's, may be shifted towards noise (flow_shift).
 *
 *     flow_matching_load(f, &batch, err);        draws times and labels, sends all to the device
 *     flow_matching_mix(f, from, count, err);    noise, d_xt and d_target of some of them
 *     dit_forward(dit, NULL, 0, &io, err);   // io: d_xt, and d_t and d_labels from `from` on
 *
 * For latents x0 is drawn from the encoder's posterior, (mean + std noise - shift) * scale; the
 * moments come with the batch, or net_options.encoders makes them of its images.  It also encodes
 * the captions, a dropped one as the caption "".
 *
 * In a network of several parts (net.h) only the first one reads images and captions.
 *
 * Time, noise, the posterior's noise and label dropout of a sample are functions of (seed, key)
 * only: networks that share a seed and keys see the same task.  Fields without d_ are host memory.
 */
#ifndef WORKER_FLOW_MATCHING_H
#define WORKER_FLOW_MATCHING_H

#include "common/base/base.h"
#include "worker/net/arena.h"
#include "worker/net/net.h"

/* t in [0,1] where a time t would be without a shift s above 0: s t / (1 + (s - 1) t) (Esser et al.
 * 2024).  shift 0 or 1: t. */
float flow_shift(float t, float shift);

struct flow_matching {
    struct device *dev;
    struct stream *stream;
    struct net_options opt;
    const struct model_spec *spec;
    int channels;
    int classes;   /* labels 0..classes-1; `classes` is the null label; 0: no labels */
    int tokens;    /* L of captions; 0: no captions */
    enum dtype dt; /* type of the states */
    bool latent;
    bool reads;           /* reads images and captions: in a network of parts, the first one */
    size_t caption_bytes; /* size of one caption's states */
    int64_t most;         /* values of an image of S x S */
    int64_t n;            /* values of each image that was mixed last */
    uint64_t seed;        /* seed of the loaded batch */
    int loaded;           /* samples of the loaded batch */
                          /* What was loaded: N = net_load_most samples. */
    struct inputs inputs;
    float *t, *d_t;                     /* (N) in (0,1) */
    int32_t *labels, *d_labels;         /* (N) null label included; with captions 0..N-1 */
    int32_t *partitions, *d_partitions; /* (N) if the batch has them */
    uint64_t *noise, *d_noise;          /* (N) random streams */
    uint8_t *images, *d_images;         /* (N,S,S,3) for pixels; see flow_matching_load */
    uint64_t *posterior, *d_posterior;  /* (N) random streams, for latents */
    int32_t *lengths, *d_lengths;       /* (N) lengths of captions */
    struct inputs cached;               /* sent if the batch has moments: */
    uint16_t *moments;                  /* (N,2n) bf16, for latents */
    bf16 *d_moments;
    int32_t *ids;    /* (N,L) host */
    uint8_t *shapes; /* (N) host */

    /* What was mixed: B = opt.batch samples. */
    struct arena arena;
    float *d_x0, *d_eps, *d_xt, *d_target; /* (B,n) */
    void *d_states;                        /* (N,L,D) (dt), for captions */
    float *d_shift, *d_scale;              /* (Ch), for latents */
};

/* For up to opt->batch images of w's model at a time, on the device and stream of w.  release
 * accepts the state after a failed init, and { 0 }. */
int flow_matching_init(struct flow_matching *f, const struct weights *w,
                       const struct net_options *opt, struct err *err);
void flow_matching_release(struct flow_matching *f);
/* Device bytes that init takes for a network that computes in dt. */
uint64_t flow_matching_bytes(const struct model *m, const struct net_options *opt, enum dtype dt);

/* On the device the images and moments of a run of samples of one shape lie densely one after the
 * other, from the place of its first sample; samples that are mixed together have one shape.
 * Both only queue work on the stream, except that a load waits if encoders run; the stream must
 * have been waited for before the next load.
 * -EINVAL for a label that is not below classes, a caption's length out of range, or a batch that
 * lacks an input of the network. */
int flow_matching_load(struct flow_matching *f, const struct batch *b, struct err *err);
int flow_matching_mix(struct flow_matching *f, unsigned from, unsigned count, struct err *err);

/* Encoders of captions for a second network of pixels on f's stream, whose batches are loaded after
 * f's: a caption that f has loaded is copied, any other is encoded.  f has captions and must live
 * as long. */
void flow_matching_share(struct flow_matching *f, struct net_encoders *ret);

#endif
