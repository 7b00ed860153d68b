#include "worker/train/island_plan.h"

#include "worker/net/flops.h"

void island_share_options(const struct train_options *opt, int copies, struct train_options *ret)
{
    *ret = *opt;
    ret->batch = (opt->batch + copies - 1) / copies;
    if (ret->accumulate > ret->batch)
        ret->accumulate = ret->batch;
}

/* Cuts a chain into stages with about equally many blocks, per device if stages have unequal
 * numbers of devices. */
static void even_cut(struct pipe_cut *cut, int depth, int stages, int devices, int most)
{
    *cut = (struct pipe_cut){.n = stages, .samples = 1}; /* stages have whole micro-batches */
    for (int i = 0; i < stages; i++) {
        const int left = stages - i, warm = left < most ? left : most;
        const int device = devices * i / stages, next = devices * (i + 1) / stages;
        cut->stages[i] = (struct pipe_stage){.from = i + (depth - stages) * device / devices,
                                             .to = i + 1 + (depth - stages) * next / devices,
                                             .device = device,
                                             .devices = next - device,
                                             .warm = warm,
                                             .slots = warm};
    }
}

/* Puts the second chain's stages on the devices in reverse. */
static void reverse(struct pipe_plan *plan)
{
    struct pipe_cut *cut = &plan->cuts[1];
    plan->order = PIPE_BIDIRECTIONAL;
    for (int i = 0; i < cut->n; i++)
        cut->stages[i].device = cut->n - 1 - i;
}

/* Divides the devices of a copy: the first chain has the first ones. */
static void divide(struct pipe_plan *plan, const struct model *m, int micros)
{
    const struct model *base = model_chain(m, 0), *up = model_chain(m, 1);
    const double work[] = {flops_forward(base, 1, 0), flops_forward(up, 1, 0)};
    const int blocks[] = {base->spec.depth, up->spec.depth};
    const int first = pipe_divide(plan->devices, work, blocks), rest = plan->devices - first;
    plan->order = PIPE_DIVIDED;
    even_cut(&plan->cuts[0], blocks[0], first, first, micros);
    even_cut(&plan->cuts[1], blocks[1], rest, rest, micros);
    for (int i = 0; i < rest; i++)
        plan->cuts[1].stages[i].device += first;
}

/* Two chains on the same devices: joined, or bidirectional. */
static void pair(struct pipe_plan *plan, const struct model *m, int micros, bool joined)
{
    const int stages = plan->devices;
    for (int c = 0; c < plan->chains; c++) {
        even_cut(&plan->cuts[c], model_chain(m, c)->spec.depth, stages, stages,
                 joined ? plan->chains * micros : micros);
        for (int i = 0; i < stages; i++)
            if (plan->cuts[c].stages[i].slots > micros)
                plan->cuts[c].stages[i].slots = micros;
    }
    if (!joined)
        reverse(plan);
}

int island_most_stages(const struct model_spec *s, enum job_pipeline order)
{
    const bool may_divide = order == JOB_PIPELINE_DIVIDED || order == JOB_PIPELINE_AUTO;
    return may_divide ? model_blocks(s) : model_least_blocks(s);
}

/* Are two chains divided?  If asked for, or if only that can have so many stages. */
static bool divides(const struct model_spec *s, int stages, enum job_pipeline order)
{
    return order == JOB_PIPELINE_DIVIDED ||
           (order == JOB_PIPELINE_AUTO && stages > model_least_blocks(s));
}

static int check_stages(const struct model_spec *s, int stages, int n, enum job_pipeline order,
                        struct err *err)
{
    const int most = island_most_stages(s, order), chains = model_n_chains(s);
    const bool divided = divides(s, stages, order);
    if (stages < 1 || stages > n)
        return err_set(err, -ENOMEM, "train.stages is %d, but this worker has %d device%s", stages,
                       n, n == 1 ? "" : "s");
    if (stages > most)
        return err_set(err, -ENOMEM, "train.stages is %d, but the %s %s %d block%s", stages,
                       chains == 1        ? "model"
                       : divided          ? "base and the upscaler"
                       : most == s->depth ? "base"
                                          : "upscaler",
                       chains > 1 && divided ? "have" : "has", most, most == 1 ? "" : "s");
    if (stages > 1 && chains > 1 && n % stages != 0)
        return err_set(err, -ENOMEM,
                       "train.stages is %d, but this worker has %d devices, each of which has a "
                       "stage of %s: take a number that divides them",
                       stages, n, divided ? "one chain" : "both chains");
    return 0;
}

int island_even_plan(const struct island *is, const struct model *m, int stages, int micros,
                     enum job_pipeline order, struct pipe_plan *ret, struct err *err)
{
    const int n = island_size(is);
    int rc = check_stages(&m->spec, stages, n, order, err);
    if (rc < 0)
        return rc;
    *ret = (struct pipe_plan){.order = stages > 1 ? PIPE_1F1B : PIPE_DATA,
                              .chains = stages > 1 ? model_n_chains(&m->spec) : 1,
                              .copies = n % stages == 0 ? n / stages : 1};
    ret->devices = n / ret->copies;
    if (ret->chains == 1)
        even_cut(&ret->cuts[0], m->spec.depth, stages, ret->devices, micros);
    else if (divides(&m->spec, stages, order))
        divide(ret, m, micros);
    else
        pair(ret, m, micros, order != JOB_PIPELINE_BIDIRECTIONAL);
    return 0;
}

/* The stage of a chain at a place; NULL: none. */
static const struct pipe_stage *stage_at(const struct pipe_plan *plan, int chain, int place)
{
    const struct pipe_cut *cut = &plan->cuts[chain];
    const int stage = pipe_stage_of(cut, pipe_place(plan, place).device);
    return stage < 0 ? NULL : &cut->stages[stage];
}

void island_place_parts(const struct pipe_plan *plan, int place,
                        struct model_part ret[MODEL_CHAINS])
{
    for (int i = 0; i < plan->chains; i++) {
        const struct pipe_stage *s = stage_at(plan, i, place);
        ret[i] = s ? (struct model_part){s->from, s->to} : MODEL_PART_NONE;
    }
}

void island_place_options(const struct island *is, const struct pipe_plan *plan, int place,
                          struct train_options *opt)
{
    const int ahead = pipe_ahead(island_device(is, 0)->unified ? COSTS_HOST : COSTS_CARD, plan);
    int slots[MODEL_CHAINS] = {0};
    for (int i = 0; i < plan->chains; i++) {
        const struct pipe_stage *s = stage_at(plan, i, place);
        slots[i] = s ? s->slots + ahead : 0;
    }
    opt->slots = slots[0];
    opt->slots_upscaler = slots[1];
    opt->split = plan->order == PIPE_SPLIT;
    opt->width = pipe_place(plan, place).devices;
    opt->sharers = plan->shard ? opt->width * plan->copies : 0;
}
