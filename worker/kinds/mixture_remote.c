/* Experts that stay where they are: points go out as blobs, velocities come back. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#include "common/base/err.h"
#include "common/base/mem.h"
#include "worker/kinds/mixture_impl.h"
#include "worker/link/uplink.h"
#include "worker/kinds/velocity.h"

#define EVALUATE_WAIT_MS 25000
#define EVALUATE_DEADLINE_MS (EVALUATE_WAIT_MS + 10000)

/* One call on its way: put, evaluate (again until there is an answer), get. */
struct trip {
    const struct mix_call *call;
    const Skerry__V1__Expert *expert;
    char path[CACHE_PATH_MAX]; /* of the points */
    uint8_t sha256[32];
    uint64_t size;
    uint8_t result[32];
    struct uplink_job *job;
};

static int copy_points(struct mixture *m, const struct mix_call *c, float *x, struct err *err)
{
    const size_t bytes = (size_t)c->rows * (size_t)model_image_values(m->spec) * sizeof *x;
    struct stream *s = dit_weights(m->router)->stream;
    int rc = m->dev->ops->copy(m->dev, x, c->x, bytes, COPY_FROM_DEVICE, s);
    if (rc < 0)
        return err_set(err, rc, "reading points from %s failed: %s", m->dev->name, err_text(rc));
    return weights_sync(dit_weights(m->router), err);
}

/* Writes the points and begins to send them. */
static int send(struct mixture *m, struct trip *t, struct err *err)
{
    const struct mix_call *c = t->call;
    const uint64_t n = model_image_values(m->spec);
    char name[64];
    float *x = mem_try_array((size_t)c->rows * n, sizeof *x);
    if (!x)
        return err_set(err, -ENOMEM, "out of memory for %d points", c->rows);
    snprintf(name, sizeof name, "points-%d", c->expert);
    work_temp_path(m->w, name, t->path);
    struct velocity_points p = {.rows = c->rows, .image = m->spec->image, .x = x};
    p.t = (float *)(uintptr_t)c->t; /* only read */
    p.labels = (int32_t *)(uintptr_t)c->labels;
    int rc = copy_points(m, c, x, err);
    if (rc == 0)
        rc = velocity_write(t->path, &p, t->sha256, &t->size, err);
    mem_free(x);
    if (rc == 0)
        t->job = uplink_put(m->w->uplink, m->w, t->path, t->sha256, t->size);
    return rc;
}

static void ask(struct mixture *m, struct trip *t)
{
    Skerry__V1__Blob input = SKERRY__V1__BLOB__INIT;
    input.sha256 = (ProtobufCBinaryData){32, t->sha256};
    input.size = t->size;
    Skerry__V1__EvaluateRequest req = SKERRY__V1__EVALUATE_REQUEST__INIT;
    req.task_id = m->w->task->id;
    req.attempt = m->w->task->attempt;
    req.path = t->expert->path;
    req.input = &input;
    req.wait_ms = EVALUATE_WAIT_MS;
    uplink_free(t->job);
    t->job = uplink_call(m->w->uplink, m->w, SKERRY__V1__METHOD__METHOD_EVALUATE, &req.base,
                         &skerry__v1__evaluate_reply__descriptor, EVALUATE_DEADLINE_MS);
}

/* Waits for the velocities to exist, then begins to get them. */
static int await_result(struct mixture *m, struct trip *t, struct err *err)
{
    for (;;) {
        int rc = uplink_wait(t->job, err);
        if (rc < 0)
            return err_wrap(err, "asking for the velocity of expert %d (path %" PRIu32 ")",
                            t->call->expert, t->expert->path);
        const Skerry__V1__EvaluateReply *r =
            (const Skerry__V1__EvaluateReply *)(const void *)uplink_reply(t->job);
        if (r->output && r->output->sha256.len == 32) {
            for (int i = 0; i < 32; i++)
                t->result[i] = r->output->sha256.data[i];
            struct uplink_job *get = uplink_get(m->w->uplink, m->w, t->result, r->output->size,
                                                r->output->url, "velocities of an expert");
            uplink_free(t->job);
            t->job = get;
            return 0;
        }
        if (r->output)
            return err_set(err, -ERR_FORMAT, "the coordinator named velocities without a hash");
        if (r->waiting_for && r->waiting_for[0])
            progress_activity(&m->w->progress, "%s: waiting for expert %d: %s",
                              m->opt.doing ? m->opt.doing : "asking", t->call->expert + 1,
                              r->waiting_for);
        ask(m, t);
    }
}

static int take_result(struct mixture *m, struct trip *t, struct err *err)
{
    const struct mix_call *c = t->call;
    const size_t n = (size_t)model_image_values(m->spec);
    char path[CACHE_PATH_MAX];
    int rc = uplink_wait(t->job, err);
    float *v = rc == 0 ? mem_try_array((size_t)c->rows * n, sizeof *v) : NULL;
    if (rc == 0 && !v)
        rc = err_set(err, -ENOMEM, "out of memory for %d velocities", c->rows);
    if (rc == 0) {
        work_blob_path(m->w, t->result, path);
        rc = velocity_read_result(path, v, c->rows, m->spec->image, err);
    }
    if (rc == 0) {
        rc = m->dev->ops->copy(m->dev, c->v, v, (size_t)c->rows * n * sizeof *v, COPY_TO_DEVICE,
                               dit_weights(m->router)->stream);
        rc = rc < 0 ? err_set(err, rc, "%s: %s", m->dev->name, err_text(rc))
                    : weights_sync(dit_weights(m->router), err);
    }
    mem_free(v);
    uplink_free(t->job);
    t->job = NULL;
    cache_remove(m->w->cache, t->result); /* nobody asks for it again */
    return rc;
}

/* All groups travel at the same time. */
static int run(void *arg, const struct mix_call *calls, int n, struct err *err)
{
    struct mixture *m = arg;
    if (!m->w->uplink)
        return err_set(err, -ENOTCONN, "remote experts need a coordinator");
    struct trip *trips = mem_try_zero((size_t)n * sizeof *trips);
    if (!trips)
        return err_set(err, -ENOMEM, "out of memory for %d experts", n);
    if (m->opt.doing)
        progress_activity(&m->w->progress, "%s: %d experts elsewhere", m->opt.doing, n);
    int rc = 0;
    for (int i = 0; i < n && rc == 0; i++) {
        trips[i].call = &calls[i];
        trips[i].expert = m->experts.by_partition[calls[i].expert];
        rc = send(m, &trips[i], err);
    }
    for (int i = 0; i < n && rc == 0; i++)
        if ((rc = uplink_wait(trips[i].job, err)) == 0)
            ask(m, &trips[i]);
    for (int i = 0; i < n && rc == 0; i++)
        rc = await_result(m, &trips[i], err);
    for (int i = 0; i < n && rc == 0; i++)
        rc = take_result(m, &trips[i], err);
    for (int i = 0; i < n; i++)
        uplink_free(trips[i].job);
    mem_free(trips);
    return rc;
}

struct mix_experts mixture_remote(struct mixture *m)
{
    return (struct mix_experts){.count = m->experts.count, .arg = m, .run = run};
}
