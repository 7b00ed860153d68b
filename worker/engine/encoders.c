#include "worker/engine/encoders.h"

#include <unistd.h>

#include "common/base/file.h"
#include "common/base/log.h"
#include "common/component/component.h"
#include "common/data/caption_tokenizer.h"
#include "worker/data/latents.h"
#include "kernels/device/device.h"
#include "worker/engine/engine.h"
#include "worker/order/local_models.h"
#include "worker/order/work.h"
#include "worker/train/profile.h"
#include "worker/train/train.h"

/* Texts that run at a time: enough to fill a card; a few on a CPU, whose layers then stay in the
 * caches. */
#define CARD_TEXTS 32
#define HOST_TEXTS 4
/* Tokens that share a copy of streamed weights: a card computes on them for about as long as a copy
 * of bf16 weights takes (its operations a second over the bytes a second of its bus). */
#define STREAM_TOKENS 8192
/* The share of the host's free memory that streamed weights leave to others. */
#define HOST_SPARE 8
#define MIB (UINT64_C(1) << 20)

/* ---- files ---- */

/* A file in the owner's folder need not be fetched: the cache gets a link to it. */
static void take_local(const struct engine *e, struct work *w, const Skerry__V1__EncoderFile *f)
{
    char path[CACHE_PATH_MAX];
    struct err err = {0};
    const Skerry__V1__Blob *b = f->blob;
    if (!e->opt.models || cache_has(w->cache, b->sha256.data))
        return;
    progress_activity(&w->progress, "looking for %s in %s", f->name, e->opt.models);
    char *found = local_models_find(e->opt.models, b->size, b->sha256.data);
    char *whole = found ? realpath(found, NULL) : NULL;
    work_blob_path(w, b->sha256.data, path);
    if (whole && (unlink(path) == 0 || errno == ENOENT) && symlink(whole, path) == 0 &&
        cache_added(w->cache, b->sha256.data, &err) == 0)
        log_info("encoders", "%s is %s: not fetched", f->name, found);
    free(whole);
    mem_free(found);
}

int encoders_plan(struct engine *e, struct work *w, struct err *err)
{
    int rc = 0;
    for (size_t i = 0; i < w->task->n_encoders && rc == 0; i++) {
        rc = work_need_blob(w, w->task->encoders[i]->blob, w->task->encoders[i]->name, err);
        take_local(e, w, w->task->encoders[i]);
    }
    return rc;
}

/* Puts the files of a part under their names into a folder of the task; *ret NULL: it has none. */
static int lay_out(const struct work *w, Skerry__V1__EncoderPart part, const char *name, char **ret,
                   struct err *err)
{
    char folder[CACHE_PATH_MAX], blob[CACHE_PATH_MAX];
    int rc = 0;
    *ret = NULL;
    work_temp_path(w, name, folder);
    for (size_t i = 0; i < w->task->n_encoders && rc == 0; i++) {
        const Skerry__V1__EncoderFile *f = w->task->encoders[i];
        if (f->part != part)
            continue;
        if (!*ret) {
            *ret = str_dup(folder);
            rc = file_mkdirs(folder, 0700, err);
        }
        char *link = file_join(folder, f->name);
        work_blob_path(w, f->blob->sha256.data, blob);
        char *whole = realpath(blob, NULL); /* a relative link is relative to its own folder */
        if (rc == 0 && (!whole || (symlink(whole, link) < 0 && errno != EEXIST)))
            rc = err_errno(err, "linking %s to %s", link, blob);
        free(whole);
        mem_free(link);
    }
    return rc;
}

static void hash_files(struct hash *h, const struct work *w, bool vae)
{
    for (size_t i = 0; i < w->task->n_encoders; i++) {
        const Skerry__V1__EncoderFile *f = w->task->encoders[i];
        if ((f->part == SKERRY__V1__ENCODER_PART__ENCODER_PART_VAE) != vae)
            continue;
        hash_update(h, &(uint32_t){(uint32_t)f->part}, sizeof(uint32_t));
        hash_update(h, f->name, strlen(f->name) + 1);
        hash_update(h, f->blob->sha256.data, HASH_BYTES);
    }
}

/* A hash of everything on which a picture's moments depend, except the picture. */
static void vae_digest(const struct work *w, enum dtype dt, uint8_t out[HASH_BYTES])
{
    const struct job_data *data = &w->spec.data;
    const int numbers[] = {data->image_size, (int)dt};
    struct hash h;
    hash_init(&h);
    hash_update(&h, numbers, sizeof numbers);
    for (size_t i = 0; i < data->buckets.n; i++)
        hash_update(&h, data->buckets.items[i], strlen(data->buckets.items[i]) + 1);
    hash_files(&h, w, true);
    hash_final(&h, out);
}

/* A hash of everything of which a set is made. */
static void set_digest(const struct work *w, enum dtype dt, uint8_t out[HASH_BYTES])
{
    const struct job_spec *s = &w->spec;
    const int numbers[] = {s->encoders.layer, s->encoders.run, s->encoders.cache, s->data.flip,
                           w->task->input ? (int)w->task->input->caption_tokens : 0};
    struct hash h;
    vae_digest(w, dt, out);
    hash_init(&h);
    hash_update(&h, out, HASH_BYTES);
    hash_update(&h, numbers, sizeof numbers);
    hash_files(&h, w, false);
    hash_final(&h, out);
}

/* ---- networks on devices ---- */

static struct frozen_options part_options(const struct encoders *enc, const struct device *dev,
                                          enum frozen_part part, bool streamed)
{
    const bool text = part == FROZEN_TEXT;
    const int group = dev->unified ? (text ? HOST_TEXTS : 1)
                      : text       ? CARD_TEXTS
                                   : ENCODERS_CARD_IMAGES;
    const int share = text ? STREAM_TOKENS / enc->caption_tokens : 0;
    return (struct frozen_options){
        .part = part,
        .dt = enc->tables[0].dt,
        .moments = DT_BF16,
        .group = group,
        .side = enc->pixels,
        .tokens = enc->caption_tokens,
        .layer = enc->layer,
        .pass = !streamed       ? 0
                : share > group ? share
                                : group,
    };
}

/* The weights of a part in the host's memory, read by the rank that comes first. */
static int host_weights(struct encoder_rank *r, const struct component *c,
                        struct frozen_options *opt, struct err *err)
{
    struct frozen_host **h = &r->set->host[opt->part];
    int rc = 0;
    pthread_mutex_lock(&r->set->lock);
    if (!*h)
        rc = frozen_host_new(r->dev, c, opt, h, err);
    opt->host = *h;
    pthread_mutex_unlock(&r->set->lock);
    return rc;
}

static int open_part(struct encoder_rank *r, const char *folder, enum frozen_part part,
                     struct frozen **f, struct err *err)
{
    struct frozen_options opt = part_options(r->set, r->dev, part, r->set->streamed);
    struct component *c = NULL;
    if (*f)
        return 0;
    int rc = component_open(folder, part == FROZEN_TEXT ? COMPONENT_ANY : COMPONENT_VAE, &c, err);
    if (rc == 0 && opt.pass)
        rc = host_weights(r, c, &opt, err);
    if (rc == 0)
        rc = frozen_open(r->dev, c, &opt, f, err);
    component_close(c);
    return work_own_file(rc, err);
}

static int run_images(void *arg, const uint8_t *images, const uint8_t *shapes, unsigned count,
                      bf16 *d_moments, struct err *err)
{
    struct encoder_rank *r = arg;
    const size_t values = encoders_moments(r->set), side = (size_t)r->set->pixels;
    const struct batch b = {.count = count, .shapes = shapes};
    int rc = open_part(r, r->set->vae_folder, FROZEN_ENCODE, &r->vae, err);
    r->stays[NET_IMAGES] |= rc == 0 && r->opened[NET_IMAGES] == 0;
    for (unsigned i = 0, n; i < count && rc == 0; i += n) {
        const struct image_shape shape = r->set->shapes[batch_shape(&b, i)];
        const struct frozen_io io = {.in = images + i * side * side * IMAGES_CHANNELS,
                                     .in_stride = side * side * IMAGES_CHANNELS,
                                     .out = d_moments + i * values,
                                     .height = shape.height,
                                     .width = shape.width};
        n = batch_run(&b, i, count);
        rc = frozen_run(r->vae, &io, (int)n, err);
    }
    return rc;
}

static int run_captions(void *arg, const int32_t *tokens, const int32_t *lengths, unsigned count,
                        void *d_states, struct err *err)
{
    struct encoder_rank *r = arg;
    const struct frozen_io io = {.in = tokens, .lengths = lengths, .out = d_states};
    int rc = open_part(r, r->set->text_folder, FROZEN_TEXT, &r->text, err);
    r->stays[NET_CAPTIONS] |= rc == 0 && r->opened[NET_CAPTIONS] == 0;
    return rc < 0 ? rc : frozen_run(r->text, &io, (int)count, err);
}

static int open_network(void *arg, enum net_encoder which, struct frozen **ret, struct err *err)
{
    struct encoder_rank *r = arg;
    const bool text = which == NET_CAPTIONS;
    struct frozen **f = text ? &r->text : &r->vae;
    int rc = text ? open_part(r, r->set->text_folder, FROZEN_TEXT, f, err)
                  : open_part(r, r->set->vae_folder, FROZEN_ENCODE, f, err);
    if (rc < 0)
        return rc;
    r->opened[which]++;
    *ret = *f;
    return 0;
}

static void close_network(void *arg, enum net_encoder which)
{
    struct encoder_rank *r = arg;
    struct frozen **f = which == NET_CAPTIONS ? &r->text : &r->vae;
    if (--r->opened[which] > 0 || r->stays[which])
        return;
    frozen_close(*f);
    *f = NULL;
}

/* The bytes of an encoder, on devices that are all of one kind; c NULL: there is none. */
static int size_part(struct encoders *enc, const struct component *c, enum net_encoder which,
                     bool streamed, struct err *err)
{
    struct frozen_sizes sizes = {0};
    if (!c)
        return 0;
    const struct frozen_options opt = part_options(
        enc, enc->ranks[0].dev, which == NET_CAPTIONS ? FROZEN_TEXT : FROZEN_ENCODE, streamed);
    int rc = frozen_bytes(c, &opt, &sizes, err);
    enc->sizes[streamed][which] = (struct encoder_sizes){.device = sizes.weights + sizes.scratch,
                                                         .hold = sizes.hold,
                                                         .host = streamed ? sizes.all : 0,
                                                         .streamed = sizes.streamed,
                                                         .pass = opt.pass};
    return rc;
}

static int size_all(struct encoders *enc, struct err *err)
{
    int rc = 0;
    for (int streamed = 0; streamed < 2 && rc == 0; streamed++) {
        rc = size_part(enc, enc->vae, NET_IMAGES, streamed, err);
        if (rc == 0)
            rc = size_part(enc, enc->text, NET_CAPTIONS, streamed, err);
    }
    return rc;
}

static void set_streamed(struct encoders *enc, bool streamed)
{
    const struct encoder_sizes *s = enc->sizes[streamed];
    enc->streamed = streamed;
    for (int k = 0; k < NET_ENCODERS; k++)
        enc->bytes[k] = s[k].device;
    for (int i = 0; i < enc->ranks_n; i++) {
        enc->tables[i].bytes = s[NET_IMAGES].device + s[NET_CAPTIONS].device;
        enc->tables[i].hold_bytes = s[NET_IMAGES].hold + s[NET_CAPTIONS].hold;
        enc->tables[i].open = streamed ? NULL : open_network;
    }
}

/* ---- a set ---- */

static int check_vae(const struct encoders *enc, const Skerry__V1__NetworkInput *in,
                     struct err *err)
{
    const struct component_vae *v = &enc->vae->vae;
    if (v->latent == (int)in->channels && enc->pixels >> (v->blocks - 1) == (int)in->side)
        return 0;
    return err_set(err, -ERR_CONFIG,
                   "the job's latents have %u channels of side %u, but its VAE makes %d of side %d",
                   in->channels, in->side, v->latent, enc->pixels >> (v->blocks - 1));
}

static int open_vae(struct encoders *enc, const struct work *w, struct err *err)
{
    int rc = lay_out(w, SKERRY__V1__ENCODER_PART__ENCODER_PART_VAE, "vae", &enc->vae_folder, err);
    if (rc == 0 && !enc->vae_folder)
        return 0;
    if (rc == 0)
        rc = component_open(enc->vae_folder, COMPONENT_VAE, &enc->vae, err);
    return work_own_file(rc < 0 ? rc : check_vae(enc, w->task->input, err), err);
}

static int open_text(struct encoders *enc, const struct work *w, struct err *err)
{
    char *tokenizer = NULL;
    int len = 0;
    int rc =
        lay_out(w, SKERRY__V1__ENCODER_PART__ENCODER_PART_TEXT, "text", &enc->text_folder, err);
    if (rc == 0 && !enc->text_folder)
        return 0;
    if (rc == 0)
        rc = lay_out(w, SKERRY__V1__ENCODER_PART__ENCODER_PART_TOKENIZER, "tokenizer", &tokenizer,
                     err);
    if (rc == 0)
        rc = component_open(enc->text_folder, COMPONENT_ANY, &enc->text, err);
    if (rc == 0)
        rc = caption_tokenizer_open(tokenizer ? tokenizer : enc->text_folder, &enc->tokenizer, err);
    mem_free(tokenizer);
    if (rc == 0 && enc->text->text.dim != (int)w->task->input->caption)
        rc = err_set(err, -ERR_CONFIG,
                     "the job's captions have states of %u numbers, but its text encoder makes %d",
                     w->task->input->caption, enc->text->text.dim);
    if (rc == 0) {
        enc->null_tokens = mem_alloc_array((size_t)enc->caption_tokens, sizeof *enc->null_tokens);
        rc = caption_tokenizer_encode(enc->tokenizer, "", 0, enc->caption_tokens, enc->null_tokens,
                                      &len, err);
    }
    enc->tables[0].null_length = len;
    return work_own_file(rc, err);
}

int encoders_open_kept(struct encoders *enc, const struct engine *e, const struct work *w,
                       struct err *err)
{
    char *dir = file_join(e->state_dir, "latents");
    struct latents_options opt = {.dir = dir,
                                  .max_bytes = (uint64_t)w->spec.encoders.cache * MIB,
                                  .values = encoders_moments(enc),
                                  .mirrored = w->spec.data.flip,
                                  .spare = w->spec.encoders.run != JOB_ENCODE_WORKER};
    vae_digest(w, enc->tables[0].dt, opt.encoder);
    int rc = latents_open(&opt, &enc->kept, err);
    mem_free(dir);
    return rc;
}

static int fill_tables(struct encoders *enc, struct engine *e, struct err *err)
{
    const struct net_encoders first = enc->tables[0];
    enc->ranks_n = island_size(e->island);
    for (int i = 0; i < enc->ranks_n; i++) {
        struct device *dev = island_device(e->island, i);
        struct net_encoders *t = &enc->tables[i];
        enc->ranks[i] = (struct encoder_rank){.set = enc, .dev = dev};
        *t = (struct net_encoders){
            .arg = &enc->ranks[i],
            .images = enc->vae ? run_images : NULL,
            .captions = enc->text ? run_captions : NULL,
            .pixels = (unsigned)enc->pixels,
            .shift = enc->vae ? enc->vae->vae.shift : NULL,
            .scale = enc->vae ? enc->vae->vae.scale : NULL,
            .null_tokens = enc->null_tokens,
            .null_length = first.null_length,
            .null_pad = enc->text ? caption_tokenizer_pad(enc->tokenizer) : 0,
            .dt = first.dt,
            .close = close_network,
        };
    }
    const int rc = size_all(enc, err);
    set_streamed(enc, false);
    return rc;
}

static int open_set(struct engine *e, const struct work *w, const uint8_t hash[HASH_BYTES],
                    enum dtype dt, struct encoders **ret, struct err *err)
{
    struct encoders *enc = mem_alloc(sizeof *enc);
    enc->users = 1;
    pthread_mutex_init(&enc->lock, NULL);
    memcpy(enc->hash, hash, HASH_BYTES);
    enc->pixels = w->spec.data.image_size;
    enc->shapes[0] = image_square(enc->pixels);
    (void)encoders_shapes(&w->spec, enc->shapes + 1);
    enc->channels = (int)w->task->input->channels;
    enc->side = (int)w->task->input->side;
    enc->caption_tokens = (int)w->task->input->caption_tokens;
    enc->layer = w->spec.encoders.layer;
    enc->tables[0].dt = dt;
    int rc = open_vae(enc, w, err);
    if (rc == 0)
        rc = open_text(enc, w, err);
    if (rc == 0 && enc->vae && w->spec.encoders.run == JOB_ENCODE_WORKER)
        rc = encoders_open_kept(enc, e, w, err);
    if (rc == 0)
        rc = fill_tables(enc, e, err);
    if (rc < 0) {
        encoders_drop(enc);
        return rc;
    }
    *ret = enc;
    return 0;
}

/* Follows to this task's folders, since those of an earlier task are gone. */
static int follow(struct encoders *enc, const struct work *w, struct err *err)
{
    mem_free(enc->vae_folder);
    mem_free(enc->text_folder);
    enc->text_folder = NULL;
    int rc = lay_out(w, SKERRY__V1__ENCODER_PART__ENCODER_PART_VAE, "vae", &enc->vae_folder, err);
    return rc < 0 ? rc
                  : lay_out(w, SKERRY__V1__ENCODER_PART__ENCODER_PART_TEXT, "text",
                            &enc->text_folder, err);
}

static bool is_set(const struct encoders *enc, const uint8_t hash[HASH_BYTES])
{
    return enc && memcmp(enc->hash, hash, HASH_BYTES) == 0;
}

int encoders_get(struct engine *e, struct work *w, struct encoders **ret, struct err *err)
{
    uint8_t hash[HASH_BYTES];
    struct train_options train;
    *ret = NULL;
    if (w->task->n_encoders == 0 || !w->task->input)
        return 0;
    train_options_from_job(&w->spec, false, 0, 0, &train);
    const enum dtype dt = net_dtype(e->dev, train.precision);
    set_digest(w, dt, hash);
    int at = 0, rc;
    while (at < ENGINE_ENCODERS - 1 && !is_set(e->encoders[at], hash))
        at++;
    struct encoders *enc = e->encoders[at]; /* the set, or the oldest one */
    if (is_set(enc, hash)) {
        rc = follow(enc, w, err);
    } else {
        progress_activity(&w->progress, "opening the frozen encoders");
        encoders_drop(enc);
        e->encoders[at] = enc = NULL;
        rc = open_set(e, w, hash, dt, &enc, err);
    }
    memmove(&e->encoders[1], &e->encoders[0], (size_t)at * sizeof *e->encoders);
    e->encoders[0] = enc;
    if (rc == 0)
        *ret = enc;
    return rc;
}

struct encoders *encoders_take(struct encoders *enc)
{
    if (enc)
        enc->users++;
    return enc;
}

/* After the networks that read them. */
static void drop_host(struct encoders *enc)
{
    for (int i = 0; i < FROZEN_PARTS; i++) {
        frozen_host_free(enc->host[i]);
        enc->host[i] = NULL;
    }
}

static void close_networks(struct encoders *enc)
{
    for (int i = 0; i < enc->ranks_n; i++) {
        struct encoder_rank *r = &enc->ranks[i];
        frozen_close(r->vae);
        frozen_close(r->text);
        frozen_close(r->decoder);
        *r = (struct encoder_rank){.set = r->set, .dev = r->dev};
    }
    drop_host(enc);
}

/* Closes the networks of unused sets, from this one on. */
static void rest_from(struct engine *e, int first)
{
    for (int i = first; i < ENGINE_ENCODERS; i++)
        if (e->encoders[i] && e->encoders[i]->users == 1) {
            close_networks(e->encoders[i]);
            encoders_stream(e->encoders[i], false);
        }
}

void encoders_rest(struct engine *e)
{
    rest_from(e, 0);
}

void encoders_yield(struct engine *e)
{
    rest_from(e, 1);
}

/* ---- weights in the host's memory ---- */

/* Is the device's memory another than the host's?  In builds with faults a CPU that says how little
 * memory it has (kernels/cpu/state.c) stands for a card. */
static bool is_apart(const struct device *dev)
{
#ifdef SKERRY_FAULTS
    if (getenv("SKERRY_FAULT_MEMORY"))
        return true;
#endif
    return !dev->unified;
}

bool encoders_can_stream(const struct encoders *enc)
{
    char need[STR_HUMAN_MAX], have[STR_HUMAN_MAX];
    uint64_t before = 0, after = 0, host = 0;
    for (int k = 0; enc && k < NET_ENCODERS; k++) {
        before += enc->sizes[false][k].device;
        after += enc->sizes[true][k].device;
        host += enc->sizes[true][k].host;
    }
    if (after >= before || enc->streamed || !is_apart(enc->ranks[0].dev))
        return false;
    const uint64_t left = device_host_free();
    if (host <= left - left / HOST_SPARE || left == 0)
        return true;
    log_info("encoders",
             "the weights of the frozen encoders (%s) have no room on the devices, nor in the "
             "host's memory, of which %s are free",
             str_human_bytes(host, need), str_human_bytes(left, have));
    return false;
}

void encoders_stream(struct encoders *enc, bool streamed)
{
    if (enc->streamed == streamed)
        return;
    for (int i = 0; i < enc->ranks_n; i++) {
        struct encoder_rank *r = &enc->ranks[i];
        struct frozen **f[NET_ENCODERS] = {[NET_IMAGES] = &r->vae, [NET_CAPTIONS] = &r->text};
        for (int k = 0; k < NET_ENCODERS; k++) {
            r->stays[k] = false;
            if (r->opened[k] > 0)
                continue;
            frozen_close(*f[k]);
            *f[k] = NULL;
        }
        frozen_close(r->decoder);
        r->decoder = NULL;
    }
    drop_host(enc);
    set_streamed(enc, streamed);
}

void encoders_say_streamed(const struct encoders *enc, unsigned samples)
{
    char host[STR_HUMAN_MAX], device[STR_HUMAN_MAX], copied[STR_HUMAN_MAX], rate[STR_HUMAN_MAX];
    char time[STR_HUMAN_MAX + 96] = "";
    const struct net_encoders *t = &enc->tables[0];
    uint64_t all = 0, bytes = 0;
    for (int k = 0; k < NET_ENCODERS; k++) {
        const struct encoder_sizes *s = &enc->sizes[true][k];
        const unsigned pass = (unsigned)s->pass;
        all += s->host;
        if (pass > 0 && (k == NET_CAPTIONS || t->fly))
            bytes += s->streamed * ((samples + pass - 1) / pass);
    }
    const double per_s = profile_host_rate(enc->ranks[0].dev);
    if (per_s > 0)
        (void)snprintf(time, sizeof time, ", which takes %.2g s at the measured %s/s",
                       (double)bytes / per_s, str_human_bytes((uint64_t)per_s, rate));
    log_info("encoders",
             "the frozen encoders do not fit beside the model: their weights (%s) stay in the "
             "host's memory, and each layer's are copied ahead of its use (encoders on a device: "
             "%s); a step of %u samples copies %s%s, beside the layers' computation",
             str_human_bytes(all, host), str_human_bytes(t->bytes, device), samples,
             str_human_bytes(bytes, copied), time);
}

uint64_t encoders_there(const struct encoders *enc)
{
    return enc ? (enc->ranks[0].vae ? enc->bytes[NET_IMAGES] : 0) +
                     (enc->ranks[0].text ? enc->bytes[NET_CAPTIONS] : 0)
               : 0;
}

uint64_t encoders_missing(const struct encoders *enc, enum frozen_part part)
{
    const struct encoder_rank *r = enc ? &enc->ranks[0] : NULL;
    const struct component *c = !enc ? NULL : part == FROZEN_TEXT ? enc->text : enc->vae;
    struct frozen_sizes sizes = {0};
    if (!c || (part == FROZEN_TEXT ? r->text : part == FROZEN_ENCODE ? r->vae : r->decoder))
        return 0;
    const struct frozen_options opt = part_options(enc, r->dev, part, enc->streamed);
    (void)frozen_bytes(c, &opt, &sizes, NULL); /* what it cannot make is told when it is opened */
    return sizes.weights + sizes.scratch;
}

void encoders_drop(struct encoders *enc)
{
    if (!enc || --enc->users > 0)
        return;
    close_networks(enc);
    latents_close(enc->kept);
    component_close(enc->vae);
    component_close(enc->text);
    caption_tokenizer_free(enc->tokenizer);
    mem_free(enc->null_tokens);
    mem_free(enc->vae_folder);
    mem_free(enc->text_folder);
    pthread_mutex_destroy(&enc->lock);
    mem_free(enc);
}

unsigned encoders_shapes(const struct job_spec *job, struct image_shape ret[IMAGES_SHAPES_MAX])
{
    const size_t n = job->data.buckets.n;
    _Static_assert(JOB_BUCKETS_MAX <= IMAGES_SHAPES_MAX, "all shapes of a job");
    for (size_t i = 0; i < n && i < JOB_BUCKETS_MAX; i++) {
        const struct job_shape b = job_bucket(job, i);
        ret[i] = (struct image_shape){b.width, b.height};
    }
    return (unsigned)(n < JOB_BUCKETS_MAX ? n : JOB_BUCKETS_MAX);
}

unsigned encoders_values(const struct encoders *enc, int shape)
{
    const uint64_t S = (uint64_t)enc->pixels, width = (uint64_t)enc->shapes[shape].width;
    const uint64_t height = (uint64_t)enc->shapes[shape].height;
    return (unsigned)(encoders_moments(enc) * height * width / (S * S));
}

unsigned encoders_moments(const struct encoders *enc)
{
    return enc && enc->vae ? 2u * (unsigned)(enc->channels * enc->side * enc->side) : 0;
}

/* ---- host to host ---- */

/* Makes room on the first device for a part's output. */
static int room(struct encoders *enc, size_t bytes, void **ret, struct err *err)
{
    struct device *dev = enc->ranks[0].dev;
    return dev->ops->alloc(dev, bytes, ret, err);
}

static int bring(struct encoders *enc, void *host, void *d, size_t bytes, struct err *err)
{
    struct device *dev = enc->ranks[0].dev;
    int rc = dev->ops->copy(dev, host, d, bytes, COPY_FROM_DEVICE, NULL);
    if (rc < 0)
        return err_set(err, rc, "reading from %s failed: %s", dev->name, err_text(rc));
    return dev->ops->sync(dev, NULL, err);
}

/* Moves moments that lie densely in runs to their own places. */
static void spread(const struct encoders *enc, const struct batch *b, uint16_t *moments)
{
    const size_t most = encoders_moments(enc);
    for (unsigned i = 0, n; i < b->count; i += n) {
        const size_t values = encoders_values(enc, batch_shape(b, i));
        n = batch_run(b, i, b->count);
        for (unsigned k = n - 1; k > 0; k--)
            memmove(moments + (i + k) * most, moments + i * most + k * values,
                    values * sizeof *moments);
    }
}

int encoders_images(struct encoders *enc, const uint8_t *images, const uint8_t *shapes,
                    unsigned count, uint16_t *moments, struct err *err)
{
    const size_t bytes = (size_t)count * encoders_moments(enc) * sizeof *moments;
    void *d = NULL;
    int rc = room(enc, bytes, &d, err);
    if (rc == 0)
        rc = run_images(&enc->ranks[0], images, shapes, count, d, err);
    if (rc == 0)
        rc = bring(enc, moments, d, bytes, err);
    if (rc == 0)
        spread(enc, &(struct batch){.count = count, .shapes = shapes}, moments);
    enc->ranks[0].dev->ops->free(enc->ranks[0].dev, d);
    return rc;
}

int encoders_decode(struct encoders *enc, const float *d_latents, unsigned count, uint8_t *images,
                    struct err *err)
{
    struct encoder_rank *r = &enc->ranks[0];
    const size_t bytes = (size_t)count * (size_t)enc->pixels * (size_t)enc->pixels * 3;
    struct frozen_io io = {.in = d_latents};
    int rc = room(enc, bytes, &io.out, err);
    if (rc == 0)
        rc = open_part(r, enc->vae_folder, FROZEN_DECODE, &r->decoder, err);
    if (rc == 0)
        rc = frozen_run(r->decoder, &io, (int)count, err);
    if (rc == 0)
        rc = bring(enc, images, io.out, bytes, err);
    r->dev->ops->free(r->dev, io.out);
    return rc;
}

static int count_lines(const char *text)
{
    int n = 1;
    for (const char *p = text; (p = strchr(p, '\n')) != NULL; p++)
        n++;
    return n;
}

/* ids (n,L) and lengths (n) of n - 1 lines and of the null caption; *cut: number of tokens that are
 * cut off. */
static int tokenize(struct encoders *enc, const char *lines, int n, int32_t *ids, int32_t *lengths,
                    int *cut, struct err *err)
{
    const int L = enc->caption_tokens;
    int rc = 0;
    for (int i = 0; i < n && rc == 0; i++) {
        const size_t len = i + 1 < n ? strcspn(lines, "\n") : 0;
        int used = 0;
        rc = caption_tokenizer_encode(enc->tokenizer, i + 1 < n ? lines : "", len, L,
                                      ids + (size_t)i * (size_t)L, &used, err);
        lengths[i] = used;
        *cut += used == L ? caption_tokenizer_cut(enc->tokenizer, lines, len, L) : 0;
        lines += len + (lines[len] != '\0');
    }
    return rc;
}

int encoders_prompts(struct encoders *enc, const char *lines, int most, struct encoder_prompts *ret,
                     struct err *err)
{
    const int n = count_lines(lines) + 1, L = enc->caption_tokens;
    struct encoder_prompts p = {.dev = enc->ranks[0].dev, .reads = L};
    if (n - 1 > most)
        return err_set(err, -ERR_LIMIT, "%d captions, at most %d are possible", n - 1, most);
    const size_t states = (size_t)n * (size_t)L * (size_t)enc->text->text.dim;
    int32_t *ids = mem_try_array((size_t)n * (size_t)L, sizeof *ids);
    p.lengths = mem_try_array((size_t)n, sizeof *p.lengths);
    int rc = ids && p.lengths ? tokenize(enc, lines, n, ids, p.lengths, &p.cut, err)
                              : err_set(err, -ENOMEM, "no memory for %d captions", n);
    if (rc == 0)
        rc = room(enc, states * dtype_bytes(enc->tables[0].dt), &p.states, err);
    if (rc == 0)
        rc = run_captions(&enc->ranks[0], ids, p.lengths, (unsigned)n, p.states, err);
    mem_free(ids);
    if (rc < 0) {
        encoder_prompts_release(&p);
        return rc;
    }
    p.captions = (struct net_captions){.n = n, .states = p.states, .lengths = p.lengths};
    *ret = p;
    return 0;
}

void encoder_prompts_release(struct encoder_prompts *p)
{
    if (p->dev)
        p->dev->ops->free(p->dev, p->states);
    mem_free(p->lengths);
    *p = (struct encoder_prompts){0};
}

int encoders_caption(void *arg, const char *text, size_t len, int32_t *tokens, int32_t *ret_length)
{
    const struct encoders *enc = arg;
    int n = 0, rc = caption_tokenizer_encode(enc->tokenizer, text, len, enc->caption_tokens, tokens,
                                             &n, NULL);
    *ret_length = n;
    return rc;
}
