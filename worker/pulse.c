#include "worker/pulse.h"

void pulse_take(struct pulse *p, struct progress *from)
{
    const struct progress_view *v = &p->view;
    progress_take(from, &p->view);
    if (v->told.samples_per_second > 0)
        p->throughput = v->told.samples_per_second;
    if (v->flops > 0) {
        p->flops = v->flops;
        p->peak_flops = v->peak_flops;
    }
    if (v->plan.told.devices > 0)
        p->plan = v->plan;
}

void pulse_put(struct pulse *p, struct progress *progress, uint64_t task_id, uint32_t attempt,
               Skerry__V1__HeartbeatRequest *req)
{
    if (progress)
        pulse_take(p, progress);
    req->throughput = p->throughput;
    req->flops = p->flops;
    req->peak_flops = p->peak_flops;
    p->told_flops |= p->flops > 0;
    p->plan.told.filled_with = p->plan.filled_with;
    req->plan = p->plan.told.devices > 0 ? &p->plan.told : NULL;
    p->view.told.task_id = task_id;
    p->view.told.attempt = attempt;
    req->progress = progress ? &p->view.told : NULL;
    const size_t n = progress ? p->view.told.n_points : 0;
    p->points_next = n > 0 ? p->view.points[n - 1].step + 1 : 0;
}

void pulse_heard(const struct pulse *p, struct progress *progress)
{
    progress_heard(progress, p->points_next);
}

bool pulse_over(struct pulse *p)
{
    p->points_next = 0;
    return p->flops > 0 && !p->told_flops;
}
