#include "worker/engine/replica.h"

#include "common/base/hash.h"
#include "common/base/log.h"
#include "common/base/rng.h"
#include "worker/engine/encoders.h"
#include "worker/engine/phase_fit.h"
#include "worker/engine/replica_file.h"
#include "worker/train/ahead.h"
#include "worker/pipe/planner.h"
#include "worker/train/plan.h"
#include "worker/train/profile.h"
#include "worker/order/task_model.h"

#define SMALLER_MAX 16
#define TRIED_MAX 16

/* Seconds of a step, by plans that were tried because their predictions were close. */
struct tried {
    uint64_t job_id; /* 0: none */
    uint32_t network;
    struct profile_time data, pipe;
};

/* A network whose steps turned out to need more memory than was planned. */
struct smaller {
    uint64_t job_id; /* 0: none */
    uint32_t network;
    int accumulate;
};

struct replicas {
    struct island *is;
    char *dir;
    uint64_t max_bytes, tick;
    replicas_more_fn *more;
    void *more_arg;
    float *flat;                         /* the host copy of the phase under way, or NULL */
    uint64_t flat_count;                 /* floats in it */
    struct replica slots[REPLICAS_MAX];  /* trainer NULL: free */
    struct smaller smaller[SMALLER_MAX]; /* ring */
    unsigned n_smaller;
    struct tried tried[TRIED_MAX]; /* ring */
    unsigned n_tried;
};

struct replicas *replicas_new(struct island *is, const char *dir, uint64_t max_bytes,
                              replicas_more_fn *more, void *arg)
{
    struct replicas *rs = mem_alloc(sizeof(*rs));
    rs->is = is;
    rs->dir = str_dup(dir);
    rs->max_bytes = max_bytes;
    rs->more = more;
    rs->more_arg = arg;
    return rs;
}

static void costs_free(struct costs *costs)
{
    if (costs)
        costs_release(costs);
    mem_free(costs);
}

static void replica_release(struct replica *r)
{
    island_trainer_free(r->ranks);
    model_free(r->model);
    encoders_drop(r->encoders);
    memset(r, 0, sizeof(*r));
}

static void drop_flat(struct replicas *rs)
{
    mem_free(rs->flat);
    rs->flat = NULL;
    rs->flat_count = 0;
}

/* All zeros, as what lies between the tensors must be. */
static int lend_flat(struct replicas *rs, struct replica *r, struct err *err)
{
    const uint64_t count = r->model->flat;
    if (count != rs->flat_count) /* a larger one's memory may be wanted, as the plan says */
        drop_flat(rs);
    if (rs->flat)
        memset(rs->flat, 0, count * sizeof *rs->flat);
    else if (!(rs->flat = model_flat_new(r->model)))
        return err_set(err, -ENOMEM, "out of memory for %" PRIu64 " weights", count);
    rs->flat_count = count;
    r->flat = rs->flat;
    return 0;
}

void replicas_free(struct replicas *rs)
{
    if (!rs)
        return;
    for (size_t i = 0; i < REPLICAS_MAX; i++)
        replica_release(&rs->slots[i]);
    drop_flat(rs);
    mem_free(rs->dir);
    mem_free(rs);
}

#define INDEX_CHECK 0x80000000u /* marks a CHECK: no job has so many replicas */

static bool is_check(const struct work *w)
{
    return w->task->kind == SKERRY__V1__TASK_KIND__TASK_KIND_CHECK;
}

static uint32_t index_of(const struct work *w)
{
    return w->task->train->replica | (is_check(w) ? INDEX_CHECK : 0);
}

static uint64_t spec_of(const struct work *w)
{
    uint8_t sum[HASH_BYTES];
    uint64_t ret;
    hash_sha256(w->task->spec, strlen(w->task->spec), sum);
    memcpy(&ret, sum, sizeof(ret));
    return ret;
}

struct replica *replica_peek(struct replicas *rs, const struct work *w)
{
    const Skerry__V1__TrainTask *t = w->task->train;
    const uint64_t spec = spec_of(w);
    for (size_t i = 0; i < REPLICAS_MAX; i++) {
        struct replica *r = &rs->slots[i];
        if (r->trainer && r->job_id == w->task->job_id && r->spec == spec && r->path == t->path &&
            r->index == index_of(w))
            return r;
    }
    return NULL;
}

/* ---- memory ---- */

static struct replica *longest_unused(struct replicas *rs)
{
    struct replica *oldest = NULL;
    for (size_t i = 0; i < REPLICAS_MAX; i++) {
        struct replica *r = &rs->slots[i];
        if (r->trainer && (!oldest || r->used < oldest->used))
            oldest = r;
    }
    return oldest;
}

static uint64_t bytes_kept(const struct replicas *rs)
{
    uint64_t used = island_device(rs->is, 0)->unified ? rs->flat_count * sizeof *rs->flat : 0;
    for (size_t i = 0; i < REPLICAS_MAX; i++)
        used += rs->slots[i].bytes;
    return used;
}

/* The number of ranks that share the tightest device's memory. */
static uint64_t sharers(const struct replicas *rs)
{
    return island_device(rs->is, 0)->unified ? (uint64_t)island_size(rs->is) : 1;
}

static void room_of(const struct replicas *rs, uint64_t kept, struct plan_room *ret)
{
    struct device *devs[ISLAND_MAX];
    const int n = island_size(rs->is);
    for (int i = 0; i < n; i++)
        devs[i] = island_device(rs->is, i);
    plan_room(devs, (size_t)n, ret);
    ret->kept = kept / sharers(rs);
}

/* The room for a phase: memory of kept replicas can be given back. */
static struct phase_room phase_room_of(const struct replicas *rs)
{
    struct phase_room r = {.is = rs->is};
    room_of(rs, bytes_kept(rs), &r.each);
    return r;
}

/* Is there room for `bytes` more, of which each rank needs `need`? */
static bool fits(const struct replicas *rs, uint64_t bytes, uint64_t need)
{
    struct plan_room room;
    room_of(rs, 0, &room);
    return (!room.host || bytes_kept(rs) + bytes <= rs->max_bytes) &&
           need <= plan_room_bytes(&room);
}

/* A free slot, after dropping the least recently used replicas until there is room. */
static struct replica *make_room(struct replicas *rs, uint64_t bytes, uint64_t need)
{
    for (;;) {
        struct replica *empty = NULL, *oldest = longest_unused(rs);
        for (size_t i = 0; i < REPLICAS_MAX && !empty; i++)
            empty = rs->slots[i].trainer ? NULL : &rs->slots[i];
        if (empty && (!oldest || fits(rs, bytes, need)))
            return empty;
        replica_release(oldest);
    }
}

static bool got_more(const struct replicas *rs)
{
    return rs->more && rs->more(rs->more_arg);
}

void replicas_yield(struct replicas *rs, uint64_t need)
{
    struct replica *oldest;
    if (!fits(rs, 0, need)) /* the cheapest to make again goes first */
        drop_flat(rs);
    while ((oldest = longest_unused(rs)) && !fits(rs, 0, need))
        replica_release(oldest);
}

/* ---- making ---- */

static void options_of(const struct replicas *rs, const struct work *w,
                       const struct encoders *encoders, struct train_options *ret)
{
    const Skerry__V1__TrainTask *t = w->task->train;
    train_options_from_job(&w->spec, w->task->network == SKERRY__V1__NETWORK__NETWORK_ROUTER,
                           (int)t->batch, rng_mix(t->path, t->replica), ret);
    ret->distill = t->n_teachers > 0;
    ret->encoders = encoders ? encoders->tables : NULL;
    for (size_t i = 0; i < SMALLER_MAX && ret->accumulate_auto; i++) {
        const struct smaller *s = &rs->smaller[i];
        if (s->job_id == w->task->job_id && s->network == (uint32_t)w->task->network &&
            s->accumulate > ret->accumulate)
            ret->accumulate = s->accumulate < ret->batch ? s->accumulate : ret->batch;
    }
}

#define PREDICTED_OFF 0.1 /* a profile that is off by more is measured again */

/* The planner's options for the job, without the numbers of micro-batches. */
static struct planner_options planner_asked(const struct costs *costs,
                                            const struct train_options *opt, bool pipeline)
{
    /* With a fixed number of stages all copies have one order of sums, whatever was measured. */
    const bool repeats = opt->stages > 0 && costs->n_devices % opt->stages == 0;
    const unsigned split = opt->recompute ? PLANNER_BIT(PIPE_SPLIT) : 0;
    return (struct planner_options){.samples = opt->batch,
                                    .stages = pipeline ? opt->stages : 0,
                                    .width = repeats ? 1 : 0,
                                    .orders = pipeline ? planner_orders(opt->pipeline) & ~split
                                                       : PLANNER_BIT(PIPE_DATA),
                                    .shard = opt->shard,
                                    .fill = true,
                                    .group = FILL_GROUP,
                                    .estimate = opt->self_condition};
}

/* The fastest plan by the measured costs of blocks: data parallelism, or a pipeline in an order
 * that the job allows. */
static int fastest(const struct costs *costs, const struct train_options *opt, bool pipeline,
                   struct planner_candidate *ret, struct err *err)
{
    struct planner_options o = planner_asked(costs, opt, pipeline);
    struct planner_result found;
    if (opt->accumulate_auto && pipeline)
        planner_powers(&o, opt->accumulate, opt->batch);
    else
        o.micros[o.n_micros++] = opt->accumulate;
    int rc = planner_search(costs, &o, &found, err);
    if (rc < 0)
        return rc;
    *ret = found.of[found.chosen];
    ret->schedule = (struct pipe_schedule){0};
    planner_release(&found);
    return 0;
}

static void take_figures(struct phase_plan *plan, const struct planner_candidate *c)
{
    plan->seconds = c->seconds;
    plan->least = c->least;
    plan->idle_before = c->idle_before;
    plan->idle = c->idle;
    plan->inside = c->inside;
}

/* Predicts the plan again, since for lack of memory the frozen networks may lie elsewhere than the
 * planner had put them. */
static int predict_again(const struct train_options *opt, struct planner_candidate *pipe,
                         struct phase_plan *plan, struct err *err)
{
    const struct planner_options o = planner_asked(plan->costs, opt, true);
    int rc = 0;
    if (memcmp(plan->pipe.bare, pipe->plan.bare, sizeof pipe->plan.bare) != 0)
        rc = planner_time(plan->costs, &o, &plan->pipe, pipe, err);
    take_figures(plan, pipe);
    return rc;
}

static void say_predicted(const struct planner_candidate *pipe,
                          const struct planner_candidate *data, bool filled)
{
    char alone[64] = "", inside[96] = "";
    if (isfinite(data->seconds))
        (void)snprintf(alone, sizeof alone, ", data parallelism %.3g s", data->seconds);
    if (filled)
        (void)snprintf(inside, sizeof inside,
                       ", %.0f %% of the frozen encoders' work in bubbles, %.0f %% idle of %.0f",
                       100 * pipe->inside, 100 * pipe->idle, 100 * pipe->idle_before);
    log_info("replica", "predicted: %s of %d stages in %d micro-batches %.3g s a step%s%s",
             pipe_plan_name(&pipe->plan), pipe_places(&pipe->plan), pipe->plan.cuts[0].micros,
             pipe->seconds, inside, alone);
}

static bool are_close(double a, double b)
{
    return isfinite(a) && a < PROFILE_CLOSE * b && b < PROFILE_CLOSE * a;
}

/* The bytes that a replica keeps, in all ranks together. */
static uint64_t bytes_of(const struct replicas *rs, const struct plan *p)
{
    return (p->need - p->workspace - p->teachers) * sharers(rs);
}

static int try_plan(struct replicas *rs, const struct model *m, const struct train_options *opt,
                    const struct phase_plan *plan, struct profile_time *ret)
{
    struct train_options o = *opt;
    struct err err = {0};
    (void)make_room(rs, bytes_of(rs, &plan->memory), plan->memory.need);
    o.accumulate = plan->accumulate;
    o.lean = plan->lean;
    int rc = profile_try(rs->is, m, &o, &plan->pipe, plan->costs, ret, &err);
    if (rc < 0)
        log_info("replica", "a plan cannot be tried: %s", err.msg);
    return rc;
}

/* Times both plans, once per job; their seconds replace the predictions. */
static void try_both(struct replicas *rs, const struct work *w, const struct model *m,
                     const struct train_options *opt, struct phase_plan *data,
                     struct phase_plan *pipe)
{
    struct tried *t = NULL;
    for (size_t i = 0; i < TRIED_MAX; i++)
        if (rs->tried[i].job_id == w->task->job_id &&
            rs->tried[i].network == (uint32_t)w->task->network)
            t = &rs->tried[i];
    if (!t) {
        struct tried new = {.job_id = w->task->job_id, .network = (uint32_t)w->task->network};
        if (try_plan(rs, m, opt, data, &new.data) < 0 || try_plan(rs, m, opt, pipe, &new.pipe) < 0)
            return;
        log_info("replica", "tried: data parallelism %.3g s a step, %d stages %.3g s",
                 new.data.least, pipe_places(&pipe->pipe), new.pipe.least);
        t = &rs->tried[rs->n_tried++ % TRIED_MAX];
        *t = new;
    }
    data->seconds = data->least = t->data.least;
    pipe->seconds = pipe->least = t->pipe.least;
}

/* A plan does not fit: is there one that needs less memory? */
static bool give_way(struct train_options *opt, const struct phase_plan *plan,
                     const struct err *why)
{
    const enum pipe_order order = plan->pipe.order;
    if (order >= PIPE_SPLIT && opt->pipeline == JOB_PIPELINE_AUTO) {
        log_info("replica", "%s does not fit: %s", pipe_plan_name(&plan->pipe), why->msg);
        opt->pipeline = JOB_PIPELINE_1F1B;
        return true;
    }
    if (!plan->costs || !opt->fill)
        return false;
    log_info("replica", "frozen encoders do not fit beside each stage: bubbles stay empty");
    opt->fill = false;
    return true;
}

/* May frozen networks be timed?  They are opened on every device, beside kept replicas, which are
 * dropped if the plan depends on the times. */
static bool may_time_frozen(struct replicas *rs, const struct train_options *opt, bool spread)
{
    struct plan_room room;
    if (!opt->fill || !opt->encoders)
        return false;
    if (spread)
        (void)make_room(rs, 0, opt->encoders->bytes);
    room_of(rs, 0, &room);
    return opt->encoders->bytes <= plan_room_bytes(&room);
}

/* Plans by measurements: a pipeline if it is faster, with the fastest cut.  A failure leaves the
 * present plan.  Returns < 0, with the reason, if nothing could be measured. */
static int plan_by_profile(struct replicas *rs, const struct work *w, const struct model *m,
                           struct train_options *opt, struct phase_plan *ret, struct err *why)
{
    const bool asked = train_wants_pipeline(opt);
    const struct phase_room room = phase_room_of(rs);
    struct planner_candidate data = {.seconds = INFINITY}, pipe;
    struct err err = {0};
    if (island_size(rs->is) == 1 || !phase_may_cut(m, opt) || model_blocks(&m->spec) < 2)
        return 0;
    opt->fill = may_time_frozen(rs, opt, ret->spread);
    struct costs *costs = mem_alloc(sizeof *costs);
    int rc = profile_get(rs->is, m, opt, plan_room_bytes(&room.each), rs->dir, costs, why);
    if (rc < 0) {
        log_warn("replica", "what a block costs here is not known: %s", why->msg);
        mem_free(costs);
        return rc;
    }
    if (!asked && pipe_places(&ret->pipe) == 1 && fastest(costs, opt, false, &data, NULL) == 0) {
        ret->seconds = data.seconds;
        ret->least = data.least;
    }
    struct phase_plan other = {0};
    rc = fastest(costs, opt, true, &pipe, &err);
    if (rc == 0) {
        other = (struct phase_plan){
            .pipe = pipe.plan, .accumulate = pipe.plan.cuts[0].micros, .costs = costs};
        rc = phase_fit_parts(&room, m, opt, &other, &err);
        if (rc == 0)
            rc = predict_again(opt, &pipe, &other, &err);
        say_predicted(&pipe, &data, costs->n_frozen > 0);
    }
    double beaten = data.seconds;
    if (rc == 0 && are_close(data.seconds, pipe.seconds)) {
        try_both(rs, w, m, opt, ret, &other);
        beaten = ret->seconds;
    }
    if (rc == 0 && other.seconds < (1 - PLANNER_SAME) * beaten)
        *ret = other;
    if (ret->spread && costs->n_frozen > 0)
        ret->costs = costs; /* the present plan, with bubbles filled by these costs */
    phase_take(opt, ret);
    if (ret->costs != costs)
        costs_free(costs);
    if (rc == -ENOMEM && !ret->spread && give_way(opt, &other, &err))
        return plan_by_profile(rs, w, m, opt, ret, why);
    return 0;
}

static int plan_all(struct replicas *rs, const struct work *w, const struct model *m,
                    struct train_options *opt, struct phase_plan *ret, struct err *err)
{
    const struct phase_room room = phase_room_of(rs);
    struct err tight = {0}, why = {0};
    int rc = phase_fit(&room, m, opt, ret, &tight);
    const int known = rc == 0 ? plan_by_profile(rs, w, m, opt, ret, &why) : 0;
    const bool lacks = rc == 0 && ret->spread && !phase_plan_fills(ret);
    if (lacks && known < 0)
        return err_set(err, known,
                       "the frozen encoders have no room beside the first stage, and what they "
                       "cost elsewhere is not known: %s",
                       why.msg);
    rc = lacks ? -ENOMEM : rc;
    return rc < 0 ? err_set(err, rc, "%s", tight.msg) : 0;
}

/* Plans with the frozen encoders on the devices, and where they do not fit there, with their
 * weights in the host's memory. */
static int plan_encoded(struct replicas *rs, const struct work *w, const struct model *m,
                        struct encoders *encoders, struct train_options *opt,
                        struct phase_plan *ret, struct err *err)
{
    struct train_options again;
    struct err why = {0};
    opt->fill &= encoders && !encoders->streamed && m->spec.n_shapes == 0;
    again = *opt;
    int rc = plan_all(rs, w, m, opt, ret, &why);
    if (rc == -ENOMEM && got_more(rs)) {
        *opt = again;
        rc = plan_all(rs, w, m, opt, ret, &why);
    }
    if (rc == -ENOMEM && encoders_can_stream(encoders)) {
        encoders_stream(encoders, true);
        again.fill = false;
        *opt = again;
        rc = plan_all(rs, w, m, opt, ret, &why);
        if (rc < 0) {
            encoders_stream(encoders, false);
            (void)err_wrap(&why, "with the frozen encoders' weights in the host's memory");
        }
    }
    if (rc == 0 && encoders && encoders->streamed) {
        const int sharers = ret->pipe.copies * pipe_place(&ret->pipe, 0).devices;
        encoders_say_streamed(encoders, (unsigned)((opt->batch + sharers - 1) / sharers));
    }
    return rc < 0 ? err_set(err, rc, "%s", why.msg) : 0;
}

int replica_plan(struct replicas *rs, const struct work *w, struct err *err)
{
    struct train_options opt;
    struct model *model = NULL;
    struct phase_plan plan;
    int rc = replica_peek(rs, w) ? 1 : task_model(w, w->task->network, &model, err);
    if (rc != 0)
        return rc < 0 ? rc : 0;
    options_of(rs, w, NULL, &opt);
    do {
        const struct phase_room room = phase_room_of(rs);
        rc = phase_fit(&room, model, &opt, &plan, err);
    } while (rc == -ENOMEM && got_more(rs));
    model_free(model);
    return rc;
}

static int try_trainer(struct replicas *rs, struct replica *r, const struct train_options *opt,
                       const struct phase_plan *plan, struct err *err)
{
    int rc = lend_flat(rs, r, err);
    if (rc == 0)
        rc = island_trainer_new(rs->is, r->model, opt, &plan->pipe, plan->costs, &r->ranks, err);
    if (rc == 0)
        r->trainer = island_trainer_first(r->ranks);
    return rc;
}

/* Tries the plan; memory may be fragmented, or taken by others meanwhile. */
static int make_trainer(struct replicas *rs, struct replica *r, struct train_options *opt,
                        const struct phase_plan *plan, struct err *err)
{
    for (;;) {
        int rc = try_trainer(rs, r, opt, plan, err);
        struct replica *oldest = rc == -ENOMEM ? longest_unused(rs) : NULL;
        if (oldest)
            replica_release(oldest);
        else if (rc != -ENOMEM || !plan_smaller(opt, &opt->accumulate))
            return rc;
        log_info("replica", "no memory for a trainer: %s",
                 oldest ? "one that was kept goes" : "smaller micro-batches");
    }
}

/* The memory for teachers: what the plan and the kept replicas leave free, and the one teacher in
 * the plan. */
static uint64_t room_for_teachers(const struct replicas *rs, const struct model *m,
                                  const struct plan *p, enum dtype dt)
{
    struct plan_room room;
    room_of(rs, 0, &room);
    const uint64_t all = plan_room_bytes(&room), one = weights_bytes(m, dt, false);
    const uint64_t spare = all > p->need ? all - p->need : 0;
    return spare < UINT64_MAX - one ? spare + one : UINT64_MAX;
}

static int create(struct replicas *rs, const struct work *w, struct encoders *encoders,
                  struct replica **ret, struct err *err)
{
    const Skerry__V1__Task *task = w->task;
    struct train_options opt;
    struct model *model = NULL;
    struct phase_plan phase;
    int rc = task_model(w, task->network, &model, err);
    if (rc < 0)
        return rc;
    options_of(rs, w, encoders, &opt);
    rc = encoders ? encoders_look(encoders, w, err) : 0;
    if (rc == 0)
        rc = plan_encoded(rs, w, model, encoders, &opt, &phase, err);
    if (rc < 0) {
        model_free(model);
        return rc;
    }
    phase_plan_say(&phase, &opt, phase_may_cut(model, &opt));
    const struct plan plan = phase.memory;
    const uint64_t bytes = bytes_of(rs, &plan);
    struct replica *r = make_room(rs, bytes, plan.need);
    *r = (struct replica){.job_id = task->job_id,
                          .spec = spec_of(w),
                          .path = task->train->path,
                          .index = index_of(w),
                          .encoders = encoders_take(encoders),
                          .model = model};
    if (opt.distill)
        r->room_for_teachers =
            room_for_teachers(rs, model, &plan, net_dtype(island_device(rs->is, 0), opt.precision));
    rc = make_trainer(rs, r, &opt, &phase, err);
    r->predicted = phase.least;
    phase_plan_way(&phase, r->way, sizeof r->way);
    phase_plan_tell(&phase, &r->plan);
    costs_free(phase.costs);
    r->bytes = bytes;
    if (rc < 0) {
        replica_release(r);
        return rc;
    }
    *ret = r;
    return 0;
}

void replica_drop(struct replicas *rs, const struct work *w)
{
    struct replica *r = replica_peek(rs, w);
    if (r)
        replica_release(r);
}

bool replica_smaller(struct replicas *rs, const struct work *w)
{
    struct replica *r = replica_peek(rs, w);
    int accumulate;
    if (!r || !plan_smaller(island_trainer_options(r->ranks), &accumulate))
        return false;
    log_info("replica", "no memory for a step in %d micro-batches: %d from now on task=%" PRIu64,
             island_trainer_options(r->ranks)->accumulate, accumulate, w->task->id);
    rs->smaller[rs->n_smaller++ % SMALLER_MAX] =
        (struct smaller){w->task->job_id, (uint32_t)w->task->network, accumulate};
    replica_release(r);
    return true;
}

void replica_stepped(struct replicas *rs, struct replica *r, double seconds)
{
    if (r->predicted == 0 || r->compared)
        return;
    const double off = seconds / r->predicted;
    r->compared = true;
    log_info("replica", "a step took %.3g s, %.2f times what was predicted", seconds, off);
    if (off > 1 + PREDICTED_OFF || off < 1 - PREDICTED_OFF)
        profile_forget(rs->is, r->model, island_trainer_options(r->ranks), rs->dir);
}

/* ---- files ---- */

int replica_save_mid(struct replicas *rs, struct replica *r, const struct work *w,
                     const struct replica_cursor *c, struct err *err)
{
    /* A CHECK that is cut begins anew. */
    return is_check(w) ? 0 : replica_file_mid(rs->dir, r, w, c, err);
}

int replica_save_end(struct replicas *rs, struct replica *r, const struct work *w, struct err *err)
{
    return replica_file_end(rs->dir, r, w, err);
}

int replica_drop_mid(struct replicas *rs, const struct replica *r, struct err *err)
{
    return replica_file_drop_mid(rs->dir, r, err);
}

bool replica_stands(struct replicas *rs, const struct work *w)
{
    const Skerry__V1__TrainTask *t = w->task->train;
    const struct replica *r = replica_peek(rs, w);
    const uint64_t at = r ? trainer_next_step(r->trainer) : 0;
    return r && r->whole && !is_check(w) && !t->fresh &&
           (at == t->first_step || (at > 0 && at == t->moments_step));
}

int replica_make(struct replicas *rs, const struct work *w, struct replica **ret, struct err *err)
{
    struct replica *r = replica_peek(rs, w);
    int rc = r ? 0 : create(rs, w, NULL, &r, err);
    if (rc < 0)
        return rc;
    r->used = ++rs->tick;
    *ret = r;
    return 0;
}

int replica_get(struct replicas *rs, const struct work *w, struct encoders *encoders,
                struct replica **ret, bool *ret_resumed, struct replica_cursor *cursor,
                struct err *err)
{
    const Skerry__V1__TrainTask *t = w->task->train;
    struct replica *r = replica_peek(rs, w);
    if (r && r->encoders != encoders) { /* its encoders were freed meanwhile: make it anew */
        replica_release(r);
        r = NULL;
    }
    const bool goes_on = replica_stands(rs, w);
    int rc = r ? lend_flat(rs, r, err) : create(rs, w, encoders, &r, err);
    if (rc < 0)
        return rc;
    r->used = ++rs->tick;
    *cursor = (struct replica_cursor){0};
    *ret_resumed = false;
    r->own = goes_on;
    if (!goes_on) {
        *ret_resumed = !is_check(w) && replica_file_resume(rs->dir, r, w, cursor);
        r->own = !*ret_resumed && !is_check(w) && !t->fresh &&
                 (replica_file_load_end(rs->dir, r, t->first_step) ||
                  replica_file_load_end(rs->dir, r, t->moments_step));
        if (!*ret_resumed && !r->own && !replica_file_load_moments(r, w))
            rc = trainer_reset_moments(r->trainer, err);
    }
    r->whole = false;
    if (rc == 0 && !*ret_resumed)
        trainer_position(r->trainer, t->first_step, t->total_steps);
    if (rc == 0)
        *ret = r;
    return rc;
}
