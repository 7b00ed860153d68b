#include "worker/engine/phase_digest.h"

static void digest_modules(struct hash *h, Skerry__V1__ModuleRef *const *refs, size_t n)
{
    for (size_t i = 0; i < n; i++)
        hash_update(h, refs[i]->sha256.data, 32);
}

void phase_digest(const struct work *w, char ret_hex[HASH_HEX_MAX])
{
    const Skerry__V1__TrainTask *t = w->task->train;
    uint8_t sum[HASH_BYTES];
    uint64_t head[] = {w->task->job_id, t->path,        t->replica,   t->round,    t->steps,
                       t->seconds > 0,  t->first_step,  t->epoch,     t->n_ranges, t->batch,
                       t->delay,        t->n_fragments, t->n_teachers};
    struct hash h;
    hash_init(&h);
    hash_update(&h, head, sizeof(head));
    hash_update(&h, &t->mix, sizeof(t->mix));
    hash_update(&h, w->task->spec, strlen(w->task->spec));
    /* With fragments modules advance during the phase, as noted in met[]. */
    if (t->n_fragments == 0)
        digest_modules(&h, w->task->modules, w->task->n_modules);
    if (t->fresh) { /* an earlier attempt may have begun with moments */
        hash_update(&h, "fresh", 5);
        hash_update(&h, SKERRY_VERSION, strlen(SKERRY_VERSION));
    }
    for (size_t i = 0; i < t->n_teachers; i++)
        digest_modules(&h, t->teachers[i]->modules, t->teachers[i]->n_modules);
    for (size_t i = 0; i < t->n_fragments; i++) {
        uint32_t f[] = {t->fragments[i]->level, t->fragments[i]->step};
        hash_update(&h, f, sizeof(f));
    }
    for (size_t i = 0; i < t->n_ranges; i++) {
        uint32_t run[] = {t->ranges[i]->start, t->ranges[i]->count, t->ranges[i]->partition};
        hash_update(&h, t->ranges[i]->shard->sha256.data, 32);
        hash_update(&h, run, sizeof(run));
    }
    hash_final(&h, sum);
    hash_hex(sum, HASH_BYTES, ret_hex);
}
