#include "worker/engine/contribute.h"

#include "common/base/file.h"
#include "common/base/log.h"
#include "common/outer/contribution.h"
#include "common/outer/layout.h"
#include "worker/engine/contribute_card.h"
#include "worker/model/model.h"
#include "worker/net/net.h"
#include "worker/engine/residual.h"
#include "worker/order/work.h"

/* Reads theta_end from the flat vector. */
static int read_end(void *arg, const struct layout *layout, size_t t, uint64_t first, size_t n,
                    float *out, struct err *err)
{
    const struct contribute *c = arg;
    const char *name = layout->st.tensors[t].name;
    const struct model_tensor *tensor = model_find(c->model, name);
    if (!tensor || first > tensor->count || n > tensor->count - first)
        return err_set(err, -ERR_FORMAT, "the model has no tensor %s of this size", name);
    memcpy(out, c->flat + tensor->offset + first, n * sizeof(*out));
    return 0;
}

struct weights *contribute_there(struct net *net)
{
    const bool whole = net_model(net)->part.to == 0;
    return whole && card_codes(net->weights) ? net->weights : NULL;
}

static int write_blob(const struct contribute *c, struct contribution_job *job,
                      struct contribution_result *ret, struct err *err)
{
    struct card *card = NULL;
    int rc = c->weights ? card_open(c->weights, job->codec, &card, err) : 0;
    if (rc < 0)
        return rc;
    job->coder = card ? card_coder(card) : NULL;
    rc = contribution_write(job, ret, err);
    if (rc == -ERR_FORMAT && job->residual_path && file_exists(job->residual_path) &&
        file_remove(job->residual_path, NULL) == 0) {
        log_warn("contribute", "%s; once more without the residual of earlier rounds", err->msg);
        rc = contribution_write(job, ret, err);
    }
    card_close(card);
    return rc;
}

/* Is it unrelated to what this worker sent before, or will send (a CHECK)? */
static bool is_alone(const struct contribute *c)
{
    return c->snapshot || c->w->task->kind == SKERRY__V1__TASK_KIND__TASK_KIND_CHECK;
}

static enum codec codec_of(const struct contribute *c)
{
    const enum codec up = (enum codec)c->w->spec.wire.up;
    return c->snapshot ? codec_of_part(up) : up;
}

int contribute(const struct contribute *c, struct work_output *ret, struct err *err)
{
    const Skerry__V1__Task *task = c->w->task;
    char base[CACHE_PATH_MAX], current[CACHE_PATH_MAX], pending[CACHE_PATH_MAX], name[64];
    struct residual_key key = {task->job_id, c->base->module_id, task->train->path,
                               task->train->replica};
    const bool alone = is_alone(c);
    uint64_t bytes;
    int rc = alone ? 0 : residual_prepare(c->state_dir, &key, task->id, current, pending, err);
    /* A residual before a first phase is another job's, which had this number before the
     * coordinator's state was restored. */
    if (rc == 0 && !alone && (task->train->fresh || task->train->first_step == 0))
        rc = file_remove(current, err);
    if (rc < 0)
        return rc;
    snprintf(name, sizeof(name), "%s-%" PRIu64, c->snapshot ? "snapshot" : "contribution",
             c->base->module_id);
    work_temp_path(c->w, name, ret->path);
    work_blob_path(c->w, c->base->sha256.data, base);
    if (file_size(base, &bytes, NULL) == 0) /* else writing fails, with a message */
        cache_make_room(c->w->cache, 2 * bytes);
    struct contribution_job job = {
        .base_path = base,
        .read = c->read ? c->read : read_end,
        .read_arg = c->read ? c->read_arg : (void *)(uintptr_t)c, /* only read */
        .threads = c->threads,
        .codec = codec_of(c),
        .module_id = c->base->module_id,
        .base = c->base->version,
        .samples = c->samples,
        .residual_path = alone ? NULL : current,
        .residual_pending = alone ? NULL : pending,
        .out_path = ret->path,
    };
    struct contribution_result result;
    rc = write_blob(c, &job, &result, err);
    if (rc < 0)
        return err_wrap(err, "the contribution to module %" PRIu64, c->base->module_id);
    ret->role = WORK_CONTRIBUTION;
    memcpy(ret->sha256, result.sha256, 32);
    ret->size = result.bytes;
    ret->module_id = c->base->module_id;
    ret->base_version = c->base->version;
    return 0;
}
