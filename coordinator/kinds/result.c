/* The common part of several kinds' results. */
#include "coordinator/kinds/result.h"

#include "common/base/clock.h"
#include "common/job/family.h"
#include "coordinator/job/agree.h"
#include "coordinator/kinds/kind.h"
#include "proto/skerry.pb-c.h"

int result_blob(struct coordinator *co, const Skerry__V1__Blob *b, const char *what,
                struct blob_ref *ret, struct err *err)
{
    struct blob_id id;
    uint64_t size = 0;
    if (b == NULL || b->sha256.len != 32 || b->size == 0)
        return err_set(err, -EINVAL, "%s is missing or has no hash or size", what);
    memcpy(id.sha256, b->sha256.data, 32);
    if (!blobstore_has(co->blobs, &id, &size))
        return err_set(err, -ERR_NOTFOUND, "%s has not been uploaded", what);
    if (size != b->size)
        return err_set(err, -EINVAL, "%s has %llu bytes in the store, the report says %llu", what,
                       (unsigned long long)size, (unsigned long long)b->size);
    *ret = (struct blob_ref){.id = id, .size = size};
    return 0;
}

void result_drawn(struct job *j, const struct task *t)
{
    struct path_rec *p = job_edit_path(j, t->path);
    p->drew_worker = t->worker_id;
    p->drew_version = t->draw.version;
}

int result_shard(struct coordinator *co, const struct job *j, const Skerry__V1__ShardInfo *s,
                 struct shard_rec *ret, struct err *err)
{
    int rc = result_blob(co, s->blob, "a shard", &ret->blob, err);
    if (rc < 0)
        return rc;
    if (s->samples == 0 || s->samples > SHARD_SAMPLES_MAX)
        return err_set(err, -EINVAL, "a shard of %u samples, expected 1 to %d", s->samples,
                       SHARD_SAMPLES_MAX);
    if (s->tokens > SHARD_TOKENS_MAX || (job_is_text(&j->spec) && s->tokens < s->samples))
        return err_set(err, -EINVAL,
                       "a shard of %u pieces of text with %llu tokens, expected at least one each "
                       "and at most %llu",
                       s->samples, (unsigned long long)s->tokens, SHARD_TOKENS_MAX);
    ret->samples = s->samples;
    ret->tokens = s->tokens;
    ret->holdout = s->holdout;
    ret->partition = s->partition;
    return 0;
}

void result_hash_blob(struct hash *h, const struct blob_ref *b)
{
    hash_update(h, b->sha256, sizeof(b->sha256));
    hash_update(h, &b->size, sizeof(b->size));
}

void result_hash_shards(struct hash *h, const struct shard_rec *made, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        result_hash_blob(h, &made[i].blob);
        hash_update(h, &made[i].samples, sizeof(made[i].samples));
        hash_update(h, &made[i].tokens, sizeof(made[i].tokens));
        hash_update(h, &made[i].partition, sizeof(made[i].partition));
        hash_update(h, &made[i].holdout, sizeof(made[i].holdout));
    }
}

int result_file_waits(struct coordinator *co, struct job *j, struct task *t,
                      const struct blob_ref *made, enum alike_of of, struct err *err)
{
    struct agree_result result = {.of = of, .file = made};
    memcpy(result.hash, made->sha256, sizeof(result.hash));
    const int rc = agree_look(co, j, t, &result, err);
    return rc < 0 ? rc : agree_hear(co, j, t, &result) ? 0 : KIND_WAITS;
}

void result_rows(struct coordinator *co, struct job *j, const struct task *t,
                 const Skerry__V1__ReportRequest *r)
{
    const struct worker *w = state_worker(&co->state, t->worker_id);
    for (size_t i = 0; i < r->n_rows && i < 256; i++) {
        struct row_rec row = {
            .kind = t->kind,
            .path = t->kind == TASK_EVAL && !t->draw.mixture ? t->path : UINT32_MAX,
            .round = task_round(t),
            .value = r->rows[i]->value,
            .at_unix_ms = (int64_t)clock_wall_ms(),
            .by = w != NULL ? worker_origin(w) : 0,
        };
        (void)str_copy(row.name, sizeof(row.name), r->rows[i]->name);
        (void)str_copy(row.unit, sizeof(row.unit), r->rows[i]->unit);
        if (row.name[0] == '\0' || !isfinite(row.value) || job_put_row(j, &row) || j->rows_refused)
            continue;
        j->rows_refused = true;
        core_say(co, j->id, t->worker_id,
                 "the figure '%s' of worker %llu is left out, as a job has at most %d; so are "
                 "further ones",
                 row.name, (unsigned long long)t->worker_id, JOB_ROWS_MAX);
    }
}
