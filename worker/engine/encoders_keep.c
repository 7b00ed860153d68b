#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/data/shard.h"
#include "worker/data/keep.h"
#include "worker/data/latents.h"
#include "kernels/device/device.h"
#include "worker/engine/encoders.h"
#include "worker/engine/engine.h"
#include "worker/order/work.h"

/* Is the TRAIN task on pictures? */
static int has_pictures(const struct work *w, bool *ret, struct err *err)
{
    const Skerry__V1__TrainTask *t = w->task->train;
    char path[CACHE_PATH_MAX];
    struct shard shard = {0};
    *ret = false;
    if (t->n_ranges == 0)
        return 0;
    work_blob_path(w, t->ranges[0]->shard->sha256.data, path);
    int rc = shard_open(path, &shard, err);
    *ret = rc == 0 && shard.kind == SHARD_IMAGES;
    shard_close(&shard);
    return rc;
}

int encoders_look(struct encoders *enc, const struct work *w, struct err *err)
{
    bool fly = false;
    int rc = enc->vae && w->spec.encoders.run != JOB_ENCODE_WORKER ? has_pictures(w, &fly, err) : 0;
    for (int i = 0; i < enc->ranks_n; i++)
        enc->tables[i].fly = fly;
    return rc;
}

/* The share of the task's samples of which latents are kept. */
static double share_kept(const struct encoders *enc, const Skerry__V1__TrainTask *t)
{
    double all = 0, there = 0;
    for (size_t i = 0; i < t->n_ranges; i++) {
        const Skerry__V1__Range *r = t->ranges[i];
        all += r->count;
        there += r->count * latents_share(enc->kept, r->shard->sha256.data, r->start, r->count);
    }
    return all > 0 ? there / all : 0;
}

/* How long the first device takes for a blank picture, once its weights are there. */
static int measure_encoder(struct encoders *enc, struct err *err)
{
    const unsigned count = enc->ranks[0].dev->unified ? 1 : ENCODERS_CARD_IMAGES;
    const size_t pixels = (size_t)enc->pixels * (size_t)enc->pixels * IMAGES_CHANNELS;
    uint8_t *images = mem_try_zero(count * pixels);
    uint16_t *moments = mem_try_array((size_t)count * encoders_moments(enc), sizeof *moments);
    int rc = images && moments ? encoders_images(enc, images, NULL, count, moments, err)
                               : err_set(err, -ENOMEM, "no memory for %u pictures", count);
    const uint64_t begun = clock_now_ns();
    if (rc == 0)
        rc = encoders_images(enc, images, NULL, count, moments, err);
    if (rc == 0)
        enc->encode_s = clock_since_s(begun) / count;
    mem_free(images);
    mem_free(moments);
    return rc;
}

/* Opens the latents that may be kept, and measures the disk. */
static int look_at_disk(struct encoders *enc, const struct engine *e, const struct work *w,
                        struct keep_in *in, struct err *err)
{
    int rc = enc->kept ? 0 : encoders_open_kept(enc, e, w, err);
    if (rc == 0 && enc->put_s == 0)
        rc = latents_measure(enc->kept, &enc->put_s, &enc->get_s, err);
    if (rc < 0)
        return rc;
    const uint64_t record = latents_record(enc->kept), room = latents_room(enc->kept);
    const uint64_t shard = record * (in->flip ? 2 : 1) * (uint64_t)w->spec.data.shard_samples;
    in->there = share_kept(enc, w->task->train);
    in->record_bytes = record;
    in->room_bytes = shard <= room ? room : 0; /* they are kept by shard */
    in->put_s = enc->put_s;
    in->get_s = enc->get_s;
    return 0;
}

static int decide(struct encoders *enc, const struct engine *e, struct work *w, struct keep_in *in,
                  struct keep_decision *ret, struct err *err)
{
    struct err why = {0};
    if (!in->filled && in->left > 0 && look_at_disk(enc, e, w, in, &why) < 0) {
        *ret = (struct keep_decision){0};
        (void)snprintf(ret->reason, sizeof ret->reason, "pictures are encoded in each step: %.200s",
                       why.msg);
        return 0;
    }
    if (!keep_depends(in, ret))
        return 0;
    progress_activity(&w->progress, "measuring the VAE's encoder");
    int rc = enc->encode_s > 0 ? 0 : measure_encoder(enc, err);
    in->encode_s = enc->encode_s;
    if (rc == 0)
        keep_decide(in, ret);
    return rc;
}

int encoders_keep(struct encoders *enc, const struct engine *e, struct work *w, unsigned batch,
                  bool filled, bool *ret, struct err *err)
{
    const Skerry__V1__TrainTask *t = w->task->train;
    const uint64_t steps = t->total_steps > t->first_step ? t->total_steps - t->first_step : 0;
    struct keep_in in = {.filled = filled,
                         .done = (double)t->first_step * batch,
                         .left = (double)steps * batch,
                         .samples = t->epoch_samples,
                         .replicas = t->replicas,
                         .flip = w->spec.data.flip,
                         .devices = (unsigned)island_size(e->island)};
    struct keep_decision d;
    bool pictures = false;
    *ret = false;
    const bool may = enc && enc->vae && job_may_keep_latents(&w->spec);
    int rc = may ? has_pictures(w, &pictures, err) : 0;
    if (rc == 0 && pictures)
        rc = decide(enc, e, w, &in, &d, err);
    if (rc < 0 || !pictures)
        return rc;
    const uint64_t what = 1 + w->task->job_id * 4 + d.keep + 2 * (d.each_s > 0);
    if (what != enc->told) /* its numbers change from phase to phase */
        log_info("encoders", "%s", d.reason);
    enc->told = what;
    *ret = d.keep;
    return 0;
}
