/* The frozen networks of a job on this worker's devices: opened from the files of a task, kept from
 * task to task, and shared by the networks made with them.
 *
 *     encoders_plan(w, err)           before anything is fetched: the files that are needed
 *     encoders_get(e, w, &enc, err)   with all files in the cache; the same set for the same files
 *     enc->tables[rank]               for the networks of that rank (worker/net/net.h)
 *
 * A network is loaded onto a device when it is first used there: training on a shard of latents
 * never loads the VAE.  Where the devices have no room for all weights beside a model, those of the
 * set may stay in the host's memory (encoders_stream), once for all ranks: then networks run whole,
 * before a step, until no replica has the set.  Compute thread, except the tables' functions, which
 * run on their rank's thread, and encoders_caption. */
#ifndef WORKER_ENCODERS_H
#define WORKER_ENCODERS_H

#include <pthread.h>

#include "common/base/base.h"
#include "common/base/hash.h"
#include "worker/data/images.h"
#include "worker/frozen/frozen.h"
#include "worker/net/net.h"
#include "worker/train/island.h"

struct caption_tokenizer;
struct component;
struct engine;
struct latents;
struct work;

/* Pictures that run at a time: enough to fill a card; one on a CPU, whose layers then stay in the
 * caches. */
#define ENCODERS_CARD_IMAGES 8

struct encoder_rank {
    struct encoders *set;
    struct device *dev;
    struct frozen *vae, *text, *decoder; /* NULL: not loaded */
    unsigned opened[NET_ENCODERS];       /* by callers that run them in pieces */
    bool stays[NET_ENCODERS];            /* somebody runs them whole */
};

/* Bytes of a network: on a device; per sample between two layers; of all weights, if they are in
 * the host's memory, and of those that a pass of so many samples copies from there. */
struct encoder_sizes {
    uint64_t device, hold, host, streamed;
    int pass;
};

struct encoders {
    unsigned users;
    uint8_t hash[HASH_BYTES]; /* of the files and of what is made of them */
    char *vae_folder, *text_folder;
    struct component *vae, *text; /* what the folders say; NULL: the job has none */
    struct caption_tokenizer *tokenizer;
    int pixels, channels, side, caption_tokens;
    struct image_shape shapes[1 + IMAGES_SHAPES_MAX]; /* by number: the square, data.buckets */
    int layer;
    struct latents *kept;                        /* encoders.run: worker, or auto */
    double encode_s, put_s, get_s;               /* of a picture, measured; 0: not yet */
    uint64_t told;                               /* what was logged of keeping them */
    uint64_t bytes[NET_ENCODERS];                /* of each network on a device */
    bool streamed;                               /* the weights are in the host's memory */
    struct encoder_sizes sizes[2][NET_ENCODERS]; /* not streamed, streamed */
    pthread_mutex_t lock;                        /* of `host` while ranks open networks */
    struct frozen_host *host[FROZEN_PARTS];
    int32_t *null_tokens;
    int ranks_n;
    struct encoder_rank ranks[ISLAND_MAX];
    struct net_encoders tables[ISLAND_MAX];
};

/* Needs the files, those that lie in the worker's own folder of models from there. */
int encoders_plan(struct engine *e, struct work *w, struct err *err);

/* *ret NULL: the job has none.  Borrowed from the engine until it gets those of other jobs;
 * take keeps it.
 * -ERR_CONFIG when the files are not what the job says. */
int encoders_get(struct engine *e, struct work *w, struct encoders **ret, struct err *err);
/* Opens the latents that the worker keeps of the set's VAE, beside the engine's other state. */
int encoders_open_kept(struct encoders *enc, const struct engine *e, const struct work *w,
                       struct err *err);

/* encoders_keep.c: where pictures are encoded.
 *
 * Looks whether a TRAIN task, whose shards are in the cache, is on pictures, which are then encoded
 * in each step, or on latents. */
int encoders_look(struct encoders *enc, const struct work *w, struct err *err);
/* With encoders.run: auto, whether a TRAIN task in whose steps pictures are encoded is to keep
 * their latents (worker/data/keep.h); logs why.  filled: its pipeline's bubbles run the encoder.
 * Measures the encoder and the disk if it is the set's first such task.  Accepts NULL. */
int encoders_keep(struct encoders *enc, const struct engine *e, struct work *w, unsigned batch,
                  bool filled, bool *ret, struct err *err);

struct encoders *encoders_take(struct encoders *enc); /* accepts NULL */
void encoders_drop(struct encoders *enc);             /* accepts NULL */

/* Before memory is planned for a replica: networks of sets that no replica has leave the devices,
 * until they are asked for again.  A plan counts those of its own set, and those of another job are
 * in its way. */
void encoders_rest(struct engine *e);
/* The same, but for the set of the newest task that has any. */
void encoders_yield(struct engine *e);
/* Bytes of tables[0].bytes that lie on the first device already. */
uint64_t encoders_there(const struct encoders *enc); /* accepts NULL */
/* Bytes of a part that does not lie on the first device yet; 0: it does, or the job has none. */
uint64_t encoders_missing(const struct encoders *enc, enum frozen_part part); /* accepts NULL */

/* Would the devices need less memory for a set whose weights are in the host's, which has room for
 * them and some more?  False if they are there already, and on devices whose memory is the host's.
 * Accepts NULL. */
bool encoders_can_stream(const struct encoders *enc);
/* Puts the weights into the host's memory, or back: tables[] have the bytes of that.  Networks that
 * are open on the devices are closed, unless a trainer has them in pieces. */
void encoders_stream(struct encoders *enc, bool streamed);
/* Logs what a step that encodes so many samples on a device copies, and the time that this takes at
 * the rate measured now. */
void encoders_say_streamed(const struct encoders *enc, unsigned samples);

/* The shapes of data.buckets; how many. */
unsigned encoders_shapes(const struct job_spec *job, struct image_shape ret[IMAGES_SHAPES_MAX]);

/* Numbers of the moments of an S x S side; 0: the model sees pixels. */
unsigned encoders_moments(const struct encoders *enc);

/* moments (count,2,Ch,s,s) bf16 bits on the host, of images (count,S,S,3) of these shapes, NULL:
 * squares; places as in a batch. */
int encoders_images(struct encoders *enc, const uint8_t *images, const uint8_t *shapes,
                    unsigned count, uint16_t *moments, struct err *err);
/* Numbers of the moments of a side of a shape. */
unsigned encoders_values(const struct encoders *enc, int shape);
/* images (count,S,S,3) on the host, of latents (count,Ch,s,s) on the first device. */
int encoders_decode(struct encoders *enc, const float *d_latents, unsigned count, uint8_t *images,
                    struct err *err);

/* Captions, one a line ("": the empty one), encoded on the first device, with the null caption
 * behind them. */
struct encoder_prompts {
    struct net_captions captions; /* captions.n - 1 of them, and the null one */
    struct device *dev;
    void *states;
    int32_t *lengths;
    int cut; /* tokens of all of them beyond what the text encoder reads of each */
    int reads;
};
/* No more than `most` lines.  release accepts { 0 }. */
int encoders_prompts(struct encoders *enc, const char *lines, int most, struct encoder_prompts *ret,
                     struct err *err);
void encoder_prompts_release(struct encoder_prompts *p);

/* As images_options.caption; arg is the set.  Any thread. */
int encoders_caption(void *arg, const char *text, size_t len, int32_t *tokens, int32_t *ret_length);

#endif
