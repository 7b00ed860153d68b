/* The noised image of rectified flow (Liu et al. 2022; Lipman et al. 2022), which all image
 * objectives start from:
 *
 *    x_t = (1-t) x0 + t eps,   target = eps - x0,   t = sigmoid(normal) (Esser et al. 2024)
 *                                                       or uniform, or as the batch says
 *
 *     flow_matching_load(f, &batch, err);        draws times and labels, sends all to the device
 *     flow_matching_mix(f, from, count, err);    noise, d_xt and d_target of some of them
 *     dit_forward(dit, NULL, 0, &io, err);   // io: d_xt, and d_t and d_labels from `from` on
 *
 * Of latents x0 is a draw from the encoder's posterior, (mean + std noise - shift) * scale, where
 * moments come with the batch or are made of its images by net_options.encoders; and captions are
 * encoded there, a dropped one as the caption "".
 *
 * Of a network in several parts (net.h) the first one reads images and captions.
 *
 * Time, noise, the posterior's noise and label dropout of a sample are functions of (seed, key)
 * alone: networks that share a seed and keys see the same task.  Fields without d_ are host memory.
 */
#ifndef WORKER_FLOW_MATCHING_H
#define WORKER_FLOW_MATCHING_H

#include "common/base/base.h"
#include "worker/net/arena.h"
#include "worker/net/net.h"

struct flow_matching {
    struct device *dev;
    struct stream *stream;
    struct net_options opt;
    const struct model_spec *spec;
    int channels;
    int classes;   /* labels 0..classes-1; classes is null; 0: there are none */
    int tokens;    /* L of captions; 0: there are none */
    enum dtype dt; /* of states */
    bool latent;
    bool reads;           /* images and captions: of a network in parts, the first one */
    size_t caption_bytes; /* of one */
    int64_t most;         /* values of an image of S x S */
    int64_t n;            /* those of each image that was mixed last */
    uint64_t seed;        /* the loaded batch's */
    int loaded;           /* samples of it */
                          /* What was loaded: N = net_load_most samples. */
    struct inputs inputs;
    float *t, *d_t;                     /* (N) in (0,1) */
    int32_t *labels, *d_labels;         /* (N) null label included; with captions 0..N-1 */
    int32_t *partitions, *d_partitions; /* (N) where the batch has them */
    uint64_t *noise, *d_noise;          /* (N) random streams */
    uint8_t *images, *d_images;         /* (N,S,S,3), of pixels; see flow_matching_load */
    uint64_t *posterior, *d_posterior;  /* (N) random streams, of latents */
    int32_t *lengths, *d_lengths;       /* (N) of captions */
    struct inputs cached;               /* sent when the batch has moments: */
    uint16_t *moments;                  /* (N,2n) bf16, of latents */
    bf16 *d_moments;
    int32_t *ids;    /* (N,L) host */
    uint8_t *shapes; /* (N) host */

    /* What was mixed: B = opt.batch samples. */
    struct arena arena;
    float *d_x0, *d_eps, *d_xt, *d_target; /* (B,n) */
    void *d_states;                        /* (N,L,D) (dt), of captions */
    float *d_shift, *d_scale;              /* (Ch), of latents */
};

/* For opt->batch images of m at a time on the device and stream of w.  release accepts what
 * init left on failure, and { 0 }. */
int flow_matching_init(struct flow_matching *f, const struct weights *w,
                       const struct net_options *opt, struct err *err);
void flow_matching_release(struct flow_matching *f);
/* On the device, for a network that computes in dt. */
uint64_t flow_matching_bytes(const struct model *m, const struct net_options *opt, enum dtype dt);

/* On the device, images and moments of a run of samples of one shape lie densely behind each other
 * from the place of its first sample; what is mixed at once is of one shape.
 * Both only queue work on the stream, but that a load waits where encoders run; before the next
 * load it must have been waited for.
 * -EINVAL for a label that is not below classes, a caption's length out of range, a batch without
 * what the network reads. */
int flow_matching_load(struct flow_matching *f, const struct batch *b, struct err *err);
int flow_matching_mix(struct flow_matching *f, unsigned from, unsigned count, struct err *err);

#endif
