#include "worker/engine/phase_fit.h"

#include "worker/train/ahead.h"
#include "worker/train/train.h"

/* Plans the memory of a place.  Its devices have the frozen networks, unless *far says that others
 * have them; *far becomes true if there is no room for them. */
static int plan_place(const struct phase_room *r, const struct model *part,
                      const struct train_options *opt, bool *far, struct plan *ret, struct err *err)
{
    const enum dtype dt = net_dtype(island_device(r->is, 0), opt->precision);
    struct train_options o = *opt;
    struct net_encoders none;
    if (!far)
        return plan_train(part, opt, dt, &r->each, ret, err);
    o.accumulate_auto = false; /* it would make the micro-batches of all stages smaller */
    if (!*far && plan_train(part, &o, dt, &r->each, ret, NULL) == 0)
        return 0;
    *far = true;
    none = ahead_far(opt->encoders);
    o = *opt;
    o.encoders = &none;
    return plan_train(part, &o, dt, &r->each, ret, err);
}

static void set_bare(struct pipe_plan *plan, int place, bool bare)
{
    const struct pipe_place p = pipe_place(plan, place);
    for (int d = p.device; d < p.device + p.devices; d++)
        plan->bare[d] = bare;
}

/* Fits place i of plan->pipe.  share: a copy's options, with the plan's numbers. */
static int fit_place(const struct phase_room *r, const struct model *m, struct train_options *share,
                     const struct phase_plan *plan, int i, bool *far, struct plan *ret,
                     struct err *err)
{
    struct model_part parts[MODEL_CHAINS];
    struct model *part = NULL;
    island_place_parts(&plan->pipe, i, parts);
    int rc = pipe_places(&plan->pipe) > 1 ? model_part_new(m, parts, &part, err) : 0;
    island_place_options(r->is, &plan->pipe, i, share);
    share->accumulate = plan->accumulate;
    share->lean = plan->lean && !share->split;
    if (rc == 0)
        rc = plan_place(r, part ? part : m, share, far, ret, err);
    model_free(part);
    return rc;
}

/* "in 2 stages the model needs 91.2 MiB and 80.1 MiB on a device (60.0 MiB of model and optimiser,
 * 31.2 MiB of micro-batches where it is most), but cpu has 64.0 MiB". */
static int refuse_stages(const struct phase_room *r, const struct model *m,
                         struct train_options *share, bool spread, const struct phase_plan *plan,
                         struct err *err)
{
    char needs[ISLAND_MAX * (STR_HUMAN_MAX + 8)] = "", one[STR_HUMAN_MAX], fixed[STR_HUMAN_MAX];
    const int n = pipe_places(&plan->pipe);
    struct plan most = {0};
    for (int i = 0; i < n; i++) {
        struct plan p = {0};
        bool far = false;
        (void)fit_place(r, m, share, plan, i, spread ? &far : NULL, &p, NULL);
        const size_t at = strlen(needs);
        (void)snprintf(needs + at, sizeof needs - at, "%s%s",
                       i == 0      ? ""
                       : i + 1 < n ? ", "
                                   : " and ",
                       str_human_bytes(p.need, one));
        most = p.need > most.need ? p : most;
    }
    const uint64_t model = most.weights + most.gradients + most.optimiser;
    char rest[STR_HUMAN_MAX];
    return err_set(err, -ENOMEM,
                   "in %d stages the model needs %s on a device (%s of model and optimiser, %s of "
                   "micro-batches where it is most), but %s has %s",
                   n, needs, str_human_bytes(model, fixed),
                   str_human_bytes(most.need - model, rest), r->each.device,
                   str_human_bytes(plan_room_bytes(&r->each), one));
}

/* Can the devices hold their parts of ret->pipe?  spread: the frozen networks lie wherever there is
 * room, at least on the devices of one stage; else on all devices if bubbles are filled, else on
 * the first stage's. */
static int fit_parts(const struct phase_room *r, const struct model *m,
                     const struct train_options *opt, bool spread, struct phase_plan *ret,
                     struct err *err)
{
    const int n = pipe_places(&ret->pipe);
    struct train_options share;
    int rc = 0, have = 0;
    island_share_options(opt, ret->pipe.copies, &share);
    share.fill = phase_plan_fills(ret) || spread;
    ret->memory = (struct plan){0};
    for (int i = 0; i < n && rc == 0; i++) {
        struct plan plan;
        bool far = false;
        rc = fit_place(r, m, &share, ret, i, spread ? &far : NULL, &plan, err);
        if (rc == -ENOMEM && n > 1)
            rc = refuse_stages(r, m, &share, spread, ret, err);
        set_bare(&ret->pipe, i, far);
        have = i == 0 ? !far : have + !far;
        if (rc == 0 && (plan.accumulate > ret->accumulate || plan.lean != ret->lean)) {
            ret->accumulate = plan.accumulate; /* it is the same for all stages, so begin again */
            ret->lean = plan.lean;
            i = -1;
        } else if (rc == 0 && plan.need > ret->memory.need) {
            ret->memory = plan;
        }
    }
    return rc == 0 && spread && have == 0
               ? err_set(err, -ENOMEM, "the frozen encoders fit beside no stage")
               : rc;
}

int phase_fit_parts(const struct phase_room *r, const struct model *m,
                    const struct train_options *opt, struct phase_plan *ret, struct err *err)
{
    if (ret->spread)
        return fit_parts(r, m, opt, true, ret, err);
    if (phase_plan_fills(ret) && fit_parts(r, m, opt, true, ret, NULL) == 0)
        return 0;
    return fit_parts(r, m, opt, false, ret, err);
}

static int plan_stages(const struct phase_room *r, const struct model *m,
                       const struct train_options *opt, int stages, bool shard, bool spread,
                       struct phase_plan *ret, struct err *err)
{
    const int n = island_size(r->is), micros = PHASE_MICROS_PER_STAGE * stages;
    const int width = n % stages == 0 ? 1 : n / stages + 1;
    struct train_options share;
    island_share_options(opt, n % stages == 0 ? n / stages : 1, &share);
    const int most = pipe_most(share.batch, width), wanted = most < micros ? most : micros;
    if (stages > 1 && opt->accumulate_auto && share.accumulate < wanted)
        share.accumulate = wanted;
    *ret = (struct phase_plan){.accumulate = share.accumulate, .spread = spread};
    int rc = island_even_plan(r->is, m, stages, share.accumulate, opt->pipeline, &ret->pipe, err);
    ret->pipe.shard = shard && pipe_shares(&ret->pipe);
    if (opt->pipeline == JOB_PIPELINE_SPLIT && ret->pipe.order == PIPE_1F1B)
        pipe_plan_split(&ret->pipe);
    return rc < 0 ? rc : phase_fit_parts(r, m, opt, ret, err);
}

/* With a sharded optimiser's state if the job asks for it, or nothing fits otherwise. */
static int plan_shared(const struct phase_room *r, const struct model *m,
                       const struct train_options *opt, int stages, bool spread,
                       struct phase_plan *ret, struct err *err)
{
    const bool asked = opt->shard == JOB_SHARD_OPTIMIZER;
    struct err why = {0};
    int rc = plan_stages(r, m, opt, stages, asked, spread, ret, err);
    if (rc != -ENOMEM || opt->shard != JOB_SHARD_AUTO || !pipe_shares(&ret->pipe))
        return rc;
    return plan_stages(r, m, opt, stages, true, spread, ret, &why) < 0 ? rc : 0;
}

bool phase_may_cut(const struct model *m, const struct train_options *opt)
{
    const struct net_options net = train_net_options(opt);
    return opt->parallel != JOB_PARALLEL_DATA && net_has_parts(m, &net);
}

void phase_take(struct train_options *opt, const struct phase_plan *plan)
{
    if (!opt->accumulate_auto)
        return;
    opt->accumulate = plan->accumulate;
    opt->lean = plan->lean;
}

/* Data parallelism if it fits and the job asks for nothing else, else the fewest stages that fit;
 * with one chain also numbers that do not divide the devices, if none that does fits.  Sets
 * opt->accumulate if it is automatic. */
static int plan_so(const struct phase_room *r, const struct model *m, struct train_options *opt,
                   bool spread, struct phase_plan *ret, struct err *err)
{
    const int n = island_size(r->is);
    const bool cut = n > 1 && phase_may_cut(m, opt);
    const bool asked = train_wants_pipeline(opt), joins = model_n_chains(&m->spec) > 1;
    const int from = !cut ? 1 : opt->stages > 0 ? opt->stages : asked ? 2 : 1;
    const int to = !cut ? 1 : opt->stages > 0 ? opt->stages : n;
    struct err first = {0};
    int rc = 0, tried = 0;
    for (int i = 0; i < (from < to ? 2 * (to - from + 1) : 1); i++) {
        const int s = from + i % (to - from + 1);
        const bool divides = i <= to - from;
        struct err why = {0};
        if (cut && opt->stages == 0 &&
            ((n % s == 0) != divides || (joins && !divides) ||
             s > island_most_stages(&m->spec, opt->pipeline)))
            continue;
        rc = plan_shared(r, m, opt, s, spread, ret, &why);
        if (tried++ == 0)
            first = why;
        if (rc != -ENOMEM)
            break;
    }
    if (tried == 0)
        rc = plan_shared(r, m, opt, 1, spread, ret, &first);
    if (rc < 0 && err)
        *err = first;
    phase_take(opt, ret);
    return rc;
}

/* Also plans whose first stage has no room for the frozen encoders, if nothing else fits. */
static int fit_any(const struct phase_room *r, const struct model *m, struct train_options *opt,
                   struct phase_plan *ret, struct err *err)
{
    struct train_options spread = *opt;
    const int rc = plan_so(r, m, opt, false, ret, err);
    if (rc != -ENOMEM || !opt->fill || !opt->encoders || !phase_may_cut(m, opt))
        return rc;
    if (plan_so(r, m, &spread, true, ret, NULL) < 0)
        return rc;
    *opt = spread;
    return 0;
}

/* ---- what would fit ---- */

/* Keys that a job could change. */
enum {
    OTHER_STAGES = 1,
    OTHER_MICROS = 2,
    OTHER_SHARD = 4,
    OTHER_RECOMPUTE = 8,
    OTHER_ALL = 15,
    OTHER_PARALLEL = 16, /* with OTHER_STAGES: data parallelism was asked for */
};

/* Sets some of these keys in opt to what needs the least memory; returns those that changed. */
static unsigned ease(struct train_options *opt, unsigned keys)
{
    unsigned changed = 0;
    if ((keys & OTHER_STAGES) && opt->parallel == JOB_PARALLEL_DATA) {
        opt->parallel = JOB_PARALLEL_AUTO;
        changed |= OTHER_PARALLEL;
    } else if ((keys & OTHER_STAGES) && opt->stages > 0) {
        opt->stages = 0;
        changed |= OTHER_STAGES;
    }
    if ((keys & OTHER_MICROS) && !opt->accumulate_auto) {
        opt->accumulate_auto = true;
        opt->accumulate = 1;
        changed |= OTHER_MICROS;
    }
    if ((keys & OTHER_SHARD) && opt->shard == JOB_SHARD_NONE) {
        opt->shard = JOB_SHARD_AUTO;
        changed |= OTHER_SHARD;
    }
    if ((keys & OTHER_RECOMPUTE) && !opt->recompute && opt->pipeline != JOB_PIPELINE_SPLIT) {
        opt->recompute = true;
        changed |= OTHER_RECOMPUTE;
    }
    return changed;
}

static void say_eased(unsigned changed, const struct phase_plan *p, char *out, size_t size)
{
    const int stages = pipe_places(&p->pipe);
    char human[STR_HUMAN_MAX], cut[48] = "";
    if (changed & OTHER_PARALLEL)
        (void)snprintf(cut, sizeof cut, "train.parallel: auto (%d stages), ", stages);
    else if ((changed & OTHER_STAGES) && stages > 1)
        (void)snprintf(cut, sizeof cut, "train.stages: %d, ", stages);
    else if (changed & OTHER_STAGES)
        (void)snprintf(cut, sizeof cut, "leaving out train.stages, ");
    (void)snprintf(out, size, "%s%s%s%s", cut,
                   changed & OTHER_MICROS ? "train.accumulate: auto, " : "",
                   changed & OTHER_SHARD ? "train.shard: auto, " : "",
                   changed & OTHER_RECOMPUTE ? "train.recompute: true, " : "");
    const size_t n = strlen(out) - 2;
    (void)snprintf(out + n, size - n, " needs %s on each device",
                   str_human_bytes(p->memory.need, human));
}

/* Finds the first key, or all of them, with which it would fit; false: none. */
static bool what_would(const struct phase_room *r, const struct model *m,
                       const struct train_options *opt, char *out, size_t size)
{
    static const unsigned tries[] = {OTHER_STAGES, OTHER_MICROS, OTHER_SHARD, OTHER_RECOMPUTE,
                                     OTHER_ALL};
    for (size_t i = 0; i < sizeof tries / sizeof *tries; i++) {
        struct train_options o = *opt;
        struct phase_plan p;
        const unsigned changed = ease(&o, tries[i]);
        if (changed == 0 || fit_any(r, m, &o, &p, NULL) < 0)
            continue;
        say_eased(changed, &p, out, size);
        return true;
    }
    return false;
}

int phase_fit(const struct phase_room *r, const struct model *m, struct train_options *opt,
              struct phase_plan *ret, struct err *err)
{
    const struct net_options net = train_net_options(opt);
    struct phase_room brief = *r;
    struct train_options again = *opt;
    struct err why = {0};
    char would[192];
    const int rc = fit_any(r, m, opt, ret, err);
    if (rc != -ENOMEM || !err || island_size(r->is) == 1 || !net_has_parts(m, &net))
        return rc;
    brief.each.brief = what_would(r, m, opt, would, sizeof would);
    if (!brief.each.brief && pipe_places(&ret->pipe) <= 1)
        return rc;
    (void)fit_any(&brief, m, &again, ret, &why);
    return err_set(
        err, rc, "%s; %s", why.msg,
        brief.each.brief ? would : "no key of train helps: take a smaller model or larger devices");
}
