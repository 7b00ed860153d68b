#include "worker/engine/phase_plan.h"

#include "common/base/log.h"
#include "worker/train/island_train.h"

bool phase_plan_fills(const struct phase_plan *plan)
{
    return plan->costs && plan->costs->n_frozen > 0;
}

/* The number of a copy's devices on which the frozen encoders lie. */
static int with_encoders(const struct phase_plan *plan)
{
    int n = 0;
    for (int d = 0; d < plan->pipe.devices; d++)
        n += !plan->pipe.bare[d];
    return n;
}

const char *phase_plan_why_whole(const struct phase_plan *plan, const struct train_options *opt,
                                 bool may_cut)
{
    const bool asked = train_wants_pipeline(opt) || opt->pipeline >= JOB_PIPELINE_SPLIT;
    if (pipe_places(&plan->pipe) > 1 || !asked)
        return NULL;
    if (plan->pipe.copies * plan->pipe.devices == 1)
        return "this worker has one device";
    if (!may_cut)
        return "this network is not cut";
    return train_wants_pipeline(opt) ? "no number of stages suits its blocks and the devices here"
                                     : NULL;
}

bool phase_plan_idles(const struct phase_plan *plan, const struct train_options *opt, char *out,
                      size_t size)
{
    const bool divided = pipe_is_divided(&plan->pipe);
    const int chains = divided ? 1 : plan->pipe.chains, base = plan->pipe.cuts[0].n;
    const int up = divided ? plan->pipe.cuts[1].n : 0, stages = base > up ? base : up;
    struct train_options share;
    island_share_options(opt, plan->pipe.copies, &share);
    const int micros = share.accumulate * chains;
    if (micros >= stages)
        return false;
    int enough = PHASE_MICROS_PER_STAGE * stages / chains; /* and the next that a job may ask for */
    while (enough < share.batch && opt->batch % enough != 0)
        enough++;
    (void)snprintf(out, size,
                   "train.accumulate is %d with %d stages: %d %% of the devices' time is idle; %d "
                   "would leave a fifth%s",
                   share.accumulate, stages, 100 * (stages - 1) / (micros + stages - 1), enough,
                   enough > share.batch ? ", of a larger train.batch" : "");
    return true;
}

void phase_plan_say(const struct phase_plan *plan, const struct train_options *opt, bool may_cut)
{
    char need[STR_HUMAN_MAX], fixed[STR_HUMAN_MAX], grows[STR_HUMAN_MAX], room[STR_HUMAN_MAX];
    char each[40] = "", over[120] = "";
    const struct plan *p = &plan->memory;
    const int copies = plan->pipe.copies, stages = pipe_places(&plan->pipe);
    struct train_options share;
    island_share_options(opt, copies, &share);
    if (copies * plan->pipe.devices > 1)
        snprintf(each, sizeof each, " on each of %d devices", copies * plan->pipe.devices);
    if (stages > 1)
        snprintf(over, sizeof over, " over %d pipeline%s of %d stages (%s)", copies,
                 copies == 1 ? "" : "s", stages, pipe_plan_name(&plan->pipe));
    else if (copies > 1)
        snprintf(over, sizeof over, " over %d devices", copies);
    if (plan->pipe.shard)
        str_copy(over + strlen(over), sizeof over - strlen(over),
                 ", the optimiser's state shared out,");
    log_info("replica",
             "training needs %s%s (%s of model and optimiser, %s of a micro-batch), %s are free; "
             "batch %d%s in %d micro-batch%s%s",
             str_human_bytes(p->need, need), each,
             str_human_bytes(p->weights + p->gradients + p->optimiser, fixed),
             str_human_bytes(p->activations + p->workspace, grows), str_human_bytes(p->room, room),
             opt->batch, over, share.accumulate, share.accumulate == 1 ? "" : "es",
             opt->lean ? ", GELUs made twice" : "");
    const char *why = phase_plan_why_whole(plan, opt, may_cut);
    if (why)
        log_warn("replica",
                 "the job asks for a pipeline, but %s: the whole model trains on each device", why);
    const int with = with_encoders(plan);
    if (with < plan->pipe.devices)
        log_info("replica", "the frozen encoders lie on %d of %d devices, which encode for all",
                 with * copies, copies * plan->pipe.devices);
    char idle[160];
    if (phase_plan_idles(plan, opt, idle, sizeof idle))
        log_warn("replica", "%s", idle);
}

static void put(char *out, size_t size, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* Appends text, as far as there is room. */
static void put(char *out, size_t size, const char *fmt, ...)
{
    const size_t n = strlen(out);
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(out + n, size - n, fmt, ap);
    va_end(ap);
}

void phase_plan_way(const struct phase_plan *plan, char *out, size_t size)
{
    const struct pipe_cut *cut = &plan->pipe.cuts[0];
    const int copies = plan->pipe.copies, stages = pipe_places(&plan->pipe);
    out[0] = '\0';
    if (stages == 1) {
        if (copies > 1)
            put(out, size, " on %d devices", copies * plan->pipe.devices);
        return;
    }
    put(out, size, " in ");
    if (copies > 1)
        put(out, size, "%d x ", copies);
    put(out, size, "%d stages", stages);
    const bool wide = pipe_width(&plan->pipe) > 1;
    for (int i = 0; i < stages && wide; i++)
        put(out, size, "%s%d", i > 0 ? " + " : " on ", cut->stages[i].devices);
    if (wide)
        put(out, size, " devices");
    if (plan->pipe.order != PIPE_1F1B || plan->pipe.chains > 1)
        put(out, size, " (%s", pipe_plan_name(&plan->pipe));
    if (pipe_is_divided(&plan->pipe))
        put(out, size, ", %d + %d", cut->n, plan->pipe.cuts[1].n);
    if (plan->pipe.order != PIPE_1F1B || plan->pipe.chains > 1)
        put(out, size, ")");
    put(out, size, ", %d micro-batches", plan->accumulate);
    if (plan->seconds > 0)
        put(out, size, ", idle %.0f %%", 100 * plan->idle_before);
    if (plan->seconds > 0 && phase_plan_fills(plan))
        put(out, size, ", filled %.0f %%", 100 * plan->idle);
}

void phase_plan_tell(const struct phase_plan *plan, struct progress_plan *ret)
{
    static const Skerry__V1__Schedule schedules[PIPE_ORDERS] = {
        [PIPE_DATA] = SKERRY__V1__SCHEDULE__SCHEDULE_DATA,
        [PIPE_1F1B] = SKERRY__V1__SCHEDULE__SCHEDULE_1F1B,
        [PIPE_SPLIT] = SKERRY__V1__SCHEDULE__SCHEDULE_SPLIT,
        [PIPE_DIVIDED] = SKERRY__V1__SCHEDULE__SCHEDULE_DIVIDED,
        [PIPE_BIDIRECTIONAL] = SKERRY__V1__SCHEDULE__SCHEDULE_BIDIRECTIONAL,
    };
    const struct pipe_plan *p = &plan->pipe;
    *ret = (struct progress_plan){.told = SKERRY__V1__STEP_PLAN__INIT};
    if (p->copies * p->devices == 1)
        return;
    ret->told.schedule = p->order == PIPE_1F1B && p->chains > 1
                             ? SKERRY__V1__SCHEDULE__SCHEDULE_JOINED
                             : schedules[p->order];
    ret->told.widest_stage = (uint32_t)pipe_width(p);
    ret->told.devices = (uint32_t)(p->copies * p->devices);
    ret->told.copies = (uint32_t)p->copies;
    ret->told.stages = (uint32_t)pipe_places(p);
    ret->told.micro_batches = (uint32_t)plan->accumulate;
    ret->told.predicted_s = plan->least;
    ret->told.idle_before = pipe_places(p) > 1 ? (float)plan->idle_before : -1;
    ret->told.idle = pipe_places(p) > 1 ? (float)plan->idle : -1;
    ret->told.inside = (float)plan->inside;
    for (int i = 0; plan->costs && i < plan->costs->n_frozen; i++)
        (void)snprintf(ret->filled_with + strlen(ret->filled_with),
                       sizeof ret->filled_with - strlen(ret->filled_with), "%s%s", i ? ", " : "",
                       plan->costs->frozen[i].name);
}
