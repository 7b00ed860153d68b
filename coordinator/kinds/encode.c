/* ENCODE: turns a shard of images into a shard of their latents, which replaces it. */
#include "coordinator/kinds/kind.h"

#include "coordinator/kinds/result.h"
#include "coordinator/work/gc.h"

static void encode_message(struct message *b, Skerry__V1__Task *msg)
{
    Skerry__V1__EncodeTask *m = message_new(b, &skerry__v1__encode_task__descriptor);
    size_t n = 0;
    Skerry__V1__Range **ranges = message_ranges(b, &n);
    if (b->failed)
        return;
    m->range = ranges[0];
    msg->encode = m;
}

static int encode_apply(struct coordinator *co, struct job *j, struct task *t,
                        const Skerry__V1__ReportRequest *r, struct err *err)
{
    const uint32_t shard = t->ranges[0].shard;
    struct blob_ref made;
    if (r->n_shards != 1 || r->shards[0]->samples != j->shards[shard].samples)
        return err_set(err, -EINVAL,
                       "the report has %zu shards of latents with %u samples in the first, "
                       "expected one shard of %u",
                       r->n_shards, r->n_shards ? r->shards[0]->samples : 0,
                       j->shards[shard].samples);
    int rc = result_blob(co, r->shards[0]->blob, "a shard of latents", &made, err);
    if (rc == 0)
        rc = result_file_waits(co, j, t, &made, ALIKE_LATENTS, err);
    if (rc != 0)
        return rc;
    gc_drop(co, &j->shards[shard].blob);
    job_edit_shard(j, shard)->blob = made;
    return 0;
}

const struct kind kind_encode = {.message = encode_message, .apply = encode_apply};
