#include "coordinator/state/worker.h"

#include "common/base/rng.h"
#include "proto/skerry.pb-c.h"

#include <arpa/inet.h>

void worker_free(struct worker *w)
{
    mem_free(w->verdicts);
    mem_free(w->devices.list);
    mem_free(w);
}

uint64_t worker_origin(const struct worker *w)
{
    return worker_origin_of(w->token_id, w->address);
}

uint64_t worker_origin_of(uint64_t token_id, const char *address)
{
    const char *port = strrchr(address, ':');
    size_t n = port ? (size_t)(port - address) : strlen(address);
    char host[sizeof(((struct worker *)0)->address)] = {0};
    struct in6_addr ip;
    if (n >= sizeof(host))
        n = sizeof(host) - 1;
    if (n > 1 && address[0] == '[') /* [IPv6]:port */
        memcpy(host, address + 1, n - 2);
    else
        memcpy(host, address, n);
    if (inet_pton(AF_INET6, host, &ip) == 1) {
        memset(host, 0, sizeof(host));
        if (IN6_IS_ADDR_V4MAPPED(&ip)) /* as a socket for both families shows an IPv4 peer */
            (void)inet_ntop(AF_INET, &ip.s6_addr[12], host, sizeof(host));
        else
            memcpy(host, &ip, sizeof(ip) / 2);
    }
    uint64_t mixed = token_id;
    for (size_t i = 0; i < sizeof(host); i += sizeof(uint64_t)) {
        uint64_t part;
        memcpy(&part, host + i, sizeof(part));
        mixed = rng_mix(mixed, part);
    }
    return mixed;
}

/* ---- verdicts ------------------------------------------------------------ */

bool worker_add_verdict(struct worker *w, const struct verdict *v)
{
    worker_drop_verdict(w, v->task_id, v->module_id);
    const bool fits = w->n_verdicts < VERDICTS_MAX;
    if (!fits)
        memmove(&w->verdicts[0], &w->verdicts[1], --w->n_verdicts * sizeof(*w->verdicts));
    w->verdicts = mem_realloc(w->verdicts, (w->n_verdicts + 1) * sizeof(*w->verdicts));
    w->verdicts[w->n_verdicts] = *v;
    w->verdicts[w->n_verdicts++].told = false;
    w->verdicts_edited = true;
    return fits;
}

void worker_drop_verdict(struct worker *w, uint64_t task_id, uint64_t module_id)
{
    unsigned kept = 0;
    for (unsigned i = 0; i < w->n_verdicts; i++)
        if (w->verdicts[i].task_id != task_id || w->verdicts[i].module_id != module_id)
            w->verdicts[kept++] = w->verdicts[i];
    w->verdicts_edited |= kept != w->n_verdicts;
    w->n_verdicts = kept;
}

void worker_untell_verdicts(struct worker *w)
{
    for (unsigned i = 0; i < w->n_verdicts; i++)
        w->verdicts[i].told = false;
}

bool worker_was_told(const struct worker *w)
{
    for (unsigned i = 0; i < w->n_verdicts; i++)
        if (w->verdicts[i].told)
            return true;
    return false;
}

void worker_confirm_verdicts(struct worker *w)
{
    unsigned kept = 0;
    for (unsigned i = 0; i < w->n_verdicts; i++)
        if (!w->verdicts[i].told)
            w->verdicts[kept++] = w->verdicts[i];
    w->verdicts_edited |= kept != w->n_verdicts;
    w->n_verdicts = kept;
}

/* ---- devices ------------------------------------------------------------- */

/* Copies a text, cut to fit. */
#define TEXT(to, from) (void)str_copy((to), sizeof(to), (from))

static void take_one(struct device_state *d, const Skerry__V1__DeviceState *m)
{
    *d = (struct device_state){
        .memory_used = m->memory_used,
        .memory_total = m->memory_total,
        .utilization = m->utilization < -1 || m->utilization > 100 ? -1 : m->utilization,
        .temperature = m->temperature < 1000 ? m->temperature : 0,
        .power = isfinite(m->power) && m->power > 0 ? m->power : 0,
        .ecc_errors = m->ecc_errors < 0 ? -1 : m->ecc_errors,
    };
    TEXT(d->name, m->name);
    TEXT(d->model, m->model);
    TEXT(d->throttled, m->throttled);
    TEXT(d->trouble, m->trouble);
}

static void take_rate(double *to, double from)
{
    if (isfinite(from) && from > 0)
        *to = from;
}

static double share_of(const Skerry__V1__StepPlan *m, float x)
{
    return m->predicted_s > 0 && x >= 0 && x <= 1 ? (double)x : (double)NAN;
}

static void take_plan(struct step_plan *p, const Skerry__V1__StepPlan *m)
{
    static const char *const schedules[] = {
        [SKERRY__V1__SCHEDULE__SCHEDULE_UNKNOWN] = "",
        [SKERRY__V1__SCHEDULE__SCHEDULE_DATA] = "data",
        [SKERRY__V1__SCHEDULE__SCHEDULE_1F1B] = "1f1b",
        [SKERRY__V1__SCHEDULE__SCHEDULE_SPLIT] = "split",
        [SKERRY__V1__SCHEDULE__SCHEDULE_BIDIRECTIONAL] = "bidirectional",
        [SKERRY__V1__SCHEDULE__SCHEDULE_JOINED] = "joined",
        [SKERRY__V1__SCHEDULE__SCHEDULE_DIVIDED] = "divided",
    };
    const bool known =
        m->schedule >= 0 && (size_t)m->schedule < sizeof schedules / sizeof *schedules;
    *p = (struct step_plan){
        .schedule = known ? schedules[m->schedule] : "",
        .devices = m->devices,
        .copies = m->copies,
        .stages = m->stages,
        .widest_stage = m->widest_stage > 0 ? m->widest_stage : 1,
        .micro_batches = m->micro_batches,
        .idle_before = share_of(m, m->idle_before),
        .idle = share_of(m, m->idle),
        .inside = share_of(m, m->inside),
    };
    TEXT(p->filled_with, m->filled_with);
    take_rate(&p->predicted_s, m->predicted_s);
    take_rate(&p->measured_s, m->measured_s);
}

void devices_take(struct devices *d, const Skerry__V1__HeartbeatRequest *m)
{
    const size_t n = m->n_devices < WORKER_DEVICES_MAX ? m->n_devices : WORKER_DEVICES_MAX;
    if (n > 0 && n != d->n)
        d->list = mem_realloc(d->list, n * sizeof(*d->list));
    for (size_t i = 0; i < n; i++)
        take_one(&d->list[i], m->devices[i]);
    if (n > 0)
        d->n = n;
    take_rate(&d->flops, m->flops);
    take_rate(&d->peak_flops, m->peak_flops);
    if (m->plan && m->plan->devices > 0)
        take_plan(&d->plan, m->plan);
}

void devices_gone(struct devices *d)
{
    d->n = 0;
    mem_free(d->list);
    d->list = NULL;
    d->flops = d->peak_flops = 0;
}

double devices_mfu(const struct devices *d)
{
    return d->flops > 0 && d->peak_flops > 0 ? d->flops / d->peak_flops : (double)NAN;
}
