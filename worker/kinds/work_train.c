/* TRAIN: one phase of one replica, from module versions to contributions.
 *
 *    start    replica_get ─► the weights of the modules, or of a snapshot ─► data
 *    step     trainer_step; at.steps and at.samples count it ─► fragments contribute and merge,
 *             snapshots are sent
 *    finish   every module's contribution, the moments
 *
 * The device has finished at each of these points. */
#include "worker/kinds/work_train.h"

#include <time.h>

#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/log.h"
#include "common/base/rng.h"
#include "worker/engine/contribute.h"
#include "worker/engine/encoders.h"
#include "worker/engine/engine.h"
#include "worker/data/data.h"
#include "worker/engine/feed.h"
#include "worker/engine/prefetch.h"
#include "worker/engine/replica.h"
#include "worker/engine/snapshot.h"
#include "worker/engine/task_experts.h"
#include "worker/net/distill.h"
#include "worker/net/flops.h"
#include "worker/engine/fragment.h"
#include "worker/engine/fragment_net.h"
#include "worker/train/moments.h"
#include "worker/train/peak.h"
#include "worker/order/task_model.h"
#include "worker/kinds/kinds.h"
#include "worker/order/task_check.h"

#define CHECKPOINT_EVERY_NS (10 * CLOCK_NS_PER_S)
#define CHECKPOINT_SHARE 50
#define STREAM_DATA 0x7068617365ULL
#define WINDOW_BATCHES 4
#define WINDOW_SHARE 16
#define SETTLED_STEPS 3 /* steps after which a step's time is reported */
#define TRACED_STEP 2   /* the traced step of each phase: the first ones still allocate */
#define NAP_NS 20000000 /* between looks at whether the task is stopped */

/* If frozen encoders run a step ahead: the batch after the present one. */
struct upcoming {
    bool known;
    struct batch batch; /* count 0: there is none */
    uint64_t position;
    struct batch_held held; /* the present batch */
};

struct phase {
    struct engine *e;
    struct work *w;
    const Skerry__V1__TrainTask *t;
    struct replica *r;             /* r->trainer; weights by trainer_net(r->trainer)->weights */
    bool resumed;                  /* goes on in the middle, at `at` */
    struct task_experts *teachers; /* distillation: each rank's; else NULL */
    bool keeps;                    /* pictures' latents, as encoders_keep says */
    struct data *feed;
    struct upcoming upcoming;
    uint64_t position; /* position in the data after the present batch */
    struct replica_cursor at;
    struct step_result skip; /* the newest step that was skipped */
    uint32_t first;          /* at.steps when this run of it began */
    uint64_t window;         /* data_window(); 0: bounded by steps */
    uint64_t begun_ns;       /* time of the beginning, as if it had never been interrupted */
    uint64_t units, places;  /* texts: tokens that were predicted in this run, of so many places */
    double flops;            /* the model's, in the steps since counted_ns */
    uint64_t counted_ns;
    uint64_t least_ns; /* shortest time of a step */
    bool traced;       /* a step of it was traced */
    double peak_flops; /* the devices'; 0: unknown */
    struct prefetch ahead;
    struct fragments *fragments; /* NULL: everything is contributed at the end */
    struct fragment_net parts;
    struct snapshots *snapshots; /* NULL: none are wanted */
    struct snapshot_net saves;
};

static int check_fragments(const Skerry__V1__TrainTask *t, size_t n_modules, struct err *err)
{
    if (t->n_fragments == 0)
        return 0;
    if (t->n_fragments != n_modules || t->delay >= t->steps)
        return err_set(err, -ERR_FORMAT,
                       "task: train has %zu fragments for %zu modules, merged %u steps later in a "
                       "phase of %u",
                       t->n_fragments, n_modules, t->delay, t->steps);
    if (!(t->mix >= 0 && t->mix <= 1))
        return err_set(err, -ERR_LIMIT, "task: train.mix is %g, expected 0..1", (double)t->mix);
    for (size_t i = 0; i < t->n_fragments; i++) {
        const Skerry__V1__Fragment *f = t->fragments[i];
        bool twice = false;
        for (size_t j = 0; j < i; j++)
            twice |= t->fragments[j]->level == f->level;
        if (f->level >= n_modules || twice || f->step == 0 || f->step > t->steps)
            return err_set(err, -ERR_FORMAT,
                           "task: train.fragments[%zu] is level %u at step %u; expected each of "
                           "%zu levels once, at a step from 1 to %u",
                           i, f->level, f->step, n_modules, t->steps);
    }
    return 0;
}

static int check(const Skerry__V1__Task *task, struct err *err)
{
    const Skerry__V1__TrainTask *t = task->train;
    const size_t n_modules = task->n_modules;
    if ((t->steps == 0) == (t->seconds == 0))
        return err_set(err, -ERR_FORMAT, "task: train needs exactly one of steps and seconds");
    if (t->steps > TASK_STEPS_MAX || t->seconds > TASK_SECONDS_MAX)
        return err_set(err, -ERR_LIMIT,
                       "task: train asks for %u steps or %u seconds, at most %u and %u are allowed",
                       t->steps, t->seconds, TASK_STEPS_MAX, TASK_SECONDS_MAX);
    if (t->batch > TASK_BATCH_MAX)
        return err_set(err, -ERR_LIMIT, "task: train.batch is %u, at most %u are allowed", t->batch,
                       TASK_BATCH_MAX);
    int rc = t->moments ? task_check_blob(t->moments, "train.moments", err) : 0;
    if (rc == 0)
        rc = check_fragments(t, n_modules, err);
    if (rc == 0 && t->n_teachers > 0)
        rc = task_check_experts(t->teachers, t->n_teachers, false, "train.teachers", err);
    if (rc == 0)
        rc = task_check_count(t->n_ahead, TASK_AHEAD_MAX, "train.ahead", err);
    if (rc == 0 && t->resume)
        rc = snapshot_check(task, err);
    for (size_t i = 0; i < t->n_ahead && rc == 0; i++)
        rc = task_check_blob(t->ahead[i], "train.ahead", err);
    if (rc < 0 || t->n_ranges == 0) /* only a trainer may train without ranges */
        return rc;
    return task_check_ranges(t->ranges, t->n_ranges, "train.ranges", err);
}

static int plan(struct engine *e, struct work *w, struct err *err)
{
    const Skerry__V1__TrainTask *t = w->task->train;
    engine_keep(e, NULL, NULL); /* training may need the room */
    if (!replica_peek(e->replicas, w))
        encoders_rest(e);
    int rc = replica_plan(e->replicas, w, err);
    if (rc == 0)
        rc = work_need_ranges(w, t->ranges, t->n_ranges, err);
    if (rc == 0 && t->moments && !replica_stands(e->replicas, w))
        rc = work_need_blob(w, t->moments, "the optimiser's moments", err);
    return rc < 0 ? rc : snapshot_need(w, err);
}

uint64_t phase_window(uint64_t total, uint64_t batch)
{
    uint64_t batches = total / batch / WINDOW_SHARE;
    return batch * (batches < 1 ? 1 : batches < WINDOW_BATCHES ? batches : WINDOW_BATCHES);
}

bool phase_save_due(uint64_t now_ns, uint64_t begun_ns, const struct engine_saved *last)
{
    const uint64_t from_ns = last->at_ns > begun_ns ? last->at_ns : begun_ns;
    return now_ns - from_ns > CHECKPOINT_EVERY_NS &&
           now_ns - last->at_ns > CHECKPOINT_SHARE * last->cost_ns;
}

bool phase_time_over(uint64_t position, uint64_t total, uint64_t window, double middle,
                     double seconds)
{
    return position >= total || (middle >= seconds && position >= window);
}

uint64_t phase_used(uint64_t position, uint64_t total, uint64_t window)
{
    if (position >= total)
        return total;
    return window > 0 && position >= window ? position - position % window : position;
}

static int open_data(struct phase *p, struct err *err)
{
    const struct job_spec *spec = &p->w->spec;
    const unsigned batch = (unsigned)island_trainer_options(p->r->ranks)->batch;
    uint64_t total = 0;
    for (size_t i = 0; i < p->t->n_ranges; i++)
        total += p->t->ranges[i]->count;
    const struct feed_options opt = {
        .batch = batch,
        .train = true,
        .repeat = p->t->steps > 0, /* good samples replace bad ones, so that all steps are done */
        .seed = rng_mix(rng_mix(spec->seed, STREAM_DATA),
                        rng_mix(rng_mix(p->t->path, p->t->replica), p->t->first_step)),
        .window = p->t->seconds ? (uint32_t)phase_window(total, batch) : 0,
        .all_rows = (uint64_t)p->t->steps * batch,
        .keep = p->keeps,
    };
    int rc = feed_open(p->e, p->w, p->t->ranges, p->t->n_ranges, &opt, &p->feed, err);
    if (rc == 0)
        p->window = data_window(p->feed);
    if (rc == 0 && p->at.position > 0)
        rc = data_seek(p->feed, p->at.position, err);
    return rc;
}

static int load_modules(struct phase *p, struct err *err)
{
    const Skerry__V1__Task *task = p->w->task;
    int rc = task_load(p->w, p->r->model, task->modules, task->n_modules, p->r->flat, err);
    return rc < 0 ? rc : trainer_set(p->r->trainer, p->r->flat, err);
}

static int get_level(void *arg, int level, float *flat, struct err *err)
{
    const struct replica *r = arg;
    return trainer_get_level(r->trainer, level, flat, err);
}

static int set_level(void *arg, int level, const float *flat, struct err *err)
{
    const struct replica *r = arg;
    int rc = trainer_set_level(r->trainer, level, flat, err);
    return rc < 0 ? rc : island_trainer_follow(r->ranks, ISLAND_WEIGHTS, err);
}

static void open_fragments(struct phase *p)
{
    p->parts = (struct fragment_net){
        .w = p->w,
        .state_dir = p->e->state_dir,
        .model = p->r->model,
        .flat = p->r->flat,
        .weights = contribute_there(trainer_net(p->r->trainer)),
        .get = get_level,
        .set = set_level,
        .arg = p->r,
    };
    const struct fragments_options opt = {
        .w = p->w,
        .modules = p->e->opt.modules,
        .met = p->r->met,
        .state_dir = p->e->state_dir,
        .contribute = fragment_net_contribute,
        .merge = fragment_net_merge,
        .arg = &p->parts,
    };
    p->fragments = fragments_open(&opt);
}

/* Without fragments a phase begins with the versions of its modules, whatever the
 * replica's own weights were.  Then all devices take over those of the first one. */
static int load_weights(struct phase *p, struct err *err)
{
    bool own = p->fragments && p->r->own;
    int rc = p->resumed || own ? 0 : load_modules(p, err);
    if (rc == 0 && p->fragments && !p->resumed)
        rc = fragments_load(p->fragments, own, err);
    return rc < 0 ? rc : island_trainer_follow(p->r->ranks, ISLAND_ALL, err);
}

static double seconds_so_far(const struct phase *p)
{
    return clock_since_s(p->begun_ns);
}

/* Logs how the devices divide a step, and how long one takes. */
static void say_training(struct phase *p)
{
    char took[48] = "", predicted[48] = "";
    if (p->least_ns > 0 && *p->r->way)
        (void)snprintf(took, sizeof took, ": %.3g s a step", (double)p->least_ns / 1e9);
    if (*took && p->r->predicted > 0)
        (void)snprintf(predicted, sizeof predicted, ", %.3g predicted", p->r->predicted);
    progress_activity(&p->w->progress, "training%s%s%s%s", p->r->way,
                      p->keeps ? ", keeping latents" : "", took, predicted);
    if (p->least_ns > 0)
        p->r->plan.told.measured_s = (double)p->least_ns / 1e9;
    progress_step_plan(&p->w->progress, &p->r->plan);
}

/* Makes room for weights and Adam's moments.  If it cannot be enough, nothing is dropped. */
static void make_room(struct engine *e, const struct replica *r)
{
    const uint64_t bytes = 3 * sizeof(float) * r->model->params;
    if (bytes <= cache_room(e->opt.cache))
        cache_make_room(e->opt.cache, bytes);
}

/* Logs once that the disk is too small. */
static void say_saved(struct log_change *trouble, int rc, const struct err *err)
{
    if (rc < 0)
        log_on_change(trouble, LOG_LEVEL_WARN, "phase", "no local checkpoint: %s", err->msg);
    else
        trouble->hash = 0;
}

static void save_mid(struct phase *p)
{
    struct err err = {0};
    const uint64_t begun = clock_now_ns();
    p->at.seconds = seconds_so_far(p);
    progress_activity(&p->w->progress, "writing a local checkpoint");
    make_room(p->e, p->r);
    if (p->at.steps > 0)
        say_saved(&p->e->no_mid, replica_save_mid(p->e->replicas, p->r, p->w, &p->at, &err), &err);
    p->e->mid.at_ns = clock_now_ns();
    p->e->mid.cost_ns = p->e->mid.at_ns - begun;
    say_training(p);
}

/* Saves the steps of a stopped phase for other workers. */
static void save_for_others(struct phase *p)
{
    p->at.seconds = seconds_so_far(p);
    if (p->at.steps > 0)
        snapshots_last(p->snapshots, &p->at);
    save_mid(p);
}

/* The devices' peak rate, measured in the first phase.  A device that cannot even multiply will
 * fail the first step, with a better message. */
static double measure_peak(struct engine *e, struct work *w, const struct replica *r)
{
    const struct train_options *opt = island_trainer_options(r->ranks);
    const enum dtype dt = net_dtype(e->dev, opt->precision);
    double *peak = &e->peak[dt];
    struct err err = {0};
    if (*peak == 0) {
        progress_activity(&w->progress, "measuring how fast the device is");
        int rc = peak_get(e->island, dt, e->state_dir, peak, &err);
        if (rc < 0)
            log_warn("phase", "the device's rate is not known: %s", err.msg);
        else
            log_info("phase", "products of %s: %.3g FLOP/s at best", dtype_name(dt), *peak);
    }
    return *peak;
}

/* While a new replica waits for megabytes, memory can be filled and the device measured.  Frozen
 * encoders would come first, but need blobs. */
static void prepare(struct engine *e, struct work *w)
{
    struct replica *r;
    if (w->task->n_encoders == 0 && replica_make(e->replicas, w, &r, NULL) == 0 &&
        !work_stopped(w, NULL))
        (void)measure_peak(e, w, r);
}

static void note_rate(struct phase *p, const struct batch *b)
{
    p->flops += flops_step(p->r->model, b);
    double seconds = clock_since_s(p->counted_ns);
    if (seconds <= 0)
        return;
    if (p->peak_flops > 0) /* the measurement shared the machine with other work */
        p->peak_flops = fmax(p->peak_flops, p->flops / seconds);
    progress_rates(&p->w->progress, p->flops / seconds, p->peak_flops);
}

static void keep_peak(const struct phase *p)
{
    const enum dtype dt = net_dtype(p->e->dev, island_trainer_options(p->r->ranks)->precision);
    if (p->peak_flops <= p->e->peak[dt])
        return;
    p->e->peak[dt] = p->peak_flops;
    peak_raise(p->e->island, dt, p->e->state_dir, p->peak_flops);
}

static void note_step(struct phase *p, const struct step_result *s, uint64_t samples)
{
    if (!p->e->stepped) {
        p->e->stepped = true;
        log_info("phase", "first step after %.2f s", clock_since_s(p->e->opt.started_ns));
    }
    p->at.skipped += s->skipped;
    p->at.skipped_row = s->skipped ? p->at.skipped_row + 1 : 0;
    if (!s->skipped) {
        if (p->at.steps + 1 - p->at.skipped == 1)
            p->at.loss_first = (float)s->loss;
        p->at.loss_last = (float)s->loss;
        p->at.loss_sum += s->loss;
    }
    p->at.steps++;
    p->at.samples += samples;
    p->at.position = p->position;
    const struct progress_point point = {.step = s->step,
                                         .loss = s->skipped ? NAN : (float)s->loss,
                                         .lr = (float)s->lr,
                                         .skipped = p->at.skipped};
    progress_step(&p->w->progress, &point, (float)s->grad_norm, p->at.steps, p->at.samples);
}

bool phase_diverged(const struct replica_cursor *at, bool ended)
{
    return at->skipped_row >= PHASE_SKIPS_MAX ||
           (at->skipped > PHASE_SKIPS_MAX && at->skipped > at->steps / 10) ||
           (ended && at->skipped == at->steps);
}

static int check_skips(const struct phase *p, bool ended, struct err *err)
{
    const struct step_result *s = &p->skip;
    if (!phase_diverged(&p->at, ended))
        return 0;
    return err_set(err, -EDOM,
                   "step %" PRIu64 " diverged: loss %g, gradient norm %g; of %u steps %u were "
                   "skipped, the last %u in a row; lower train.lr or lengthen train.warmup",
                   s->step, s->loss, s->grad_norm, p->at.steps, p->at.skipped, p->at.skipped_row);
}

/* After a step that was skipped; not each is logged. */
static int note_skip(struct phase *p, const struct step_result *s, struct err *err)
{
    const uint32_t n = p->at.skipped;
    p->skip = *s;
    if ((n & (n - 1)) == 0)
        log_warn("phase",
                 "step %" PRIu64 " is skipped: loss %g, gradient norm %g; the phase has "
                 "skipped %u of %u steps so far task=%" PRIu64,
                 s->step, s->loss, s->grad_norm, n, p->at.steps, p->w->task->id);
    return check_skips(p, false, err);
}

/* Are the phase's steps or seconds over? */
static bool over(const struct phase *p)
{
    if (p->t->steps)
        return p->at.steps >= p->t->steps;
    double spent = seconds_so_far(p);
    return phase_time_over(p->at.position, data_total(p->feed), p->window,
                           spent + spent / p->at.steps / 2, (double)p->t->seconds);
}

/* Prolongs a step that took `ns` to the throttle's time. */
static void slow_down(struct phase *p, uint64_t ns)
{
    double factor = p->e->opt.throttle;
    uint64_t until = clock_now_ns() + (factor > 1 ? (uint64_t)((factor - 1) * (double)ns) : 0);
    for (uint64_t now; (now = clock_now_ns()) < until && !work_stopped(p->w, NULL);) {
        uint64_t nap = until - now < NAP_NS ? until - now : NAP_NS;
        (void)nanosleep(&(struct timespec){.tv_nsec = (long)nap}, NULL); /* a shorter nap is fine */
    }
}

/* The path of the newest trace, which stays. */
static char *trace_path(const struct phase *p)
{
    return file_join(p->e->state_dir, "trace.json");
}

static void trace_next(struct phase *p)
{
    char *path = trace_path(p);
    (void)file_remove(path, NULL); /* so that an older one is not sent */
    island_trainer_trace(p->r->ranks, path);
    p->traced = true;
    mem_free(path);
}

/* Adds the trace to the report; one that is too large stays here. */
static void send_trace(const struct phase *p)
{
    struct err err = {0};
    char *path = trace_path(p);
    if (p->traced && file_read(path, TASK_TRACE_MAX, &p->w->result.trace, &err) < 0)
        log_info("phase", "the trace of a step stays here: %s", err.msg);
    mem_free(path);
}

/* The next batch; *ret_next: the one after it, if it is wanted. */
static int take_batch(struct phase *p, struct batch *ret, const struct batch **ret_next,
                      struct err *err)
{
    struct upcoming *u = &p->upcoming;
    const bool last = p->t->steps && p->at.steps + 1 == p->t->steps;
    int rc = 0;
    *ret = u->batch;
    *ret_next = NULL;
    if (!u->known)
        rc = data_next(p->feed, ret, err);
    p->position = u->known ? u->position : data_position(p->feed);
    u->known = false;
    if (rc < 0 || ret->count == 0 || last || !island_trainer_fills(p->r->ranks))
        return rc;
    const struct net *net = trainer_net(p->r->trainer);
    const struct batch_sizes sizes = net_batch_sizes(p->r->model, &net->opt);
    rc = batch_hold(&u->held, ret, &sizes, err);
    if (rc == 0)
        rc = data_next(p->feed, &u->batch, err);
    if (rc < 0)
        return rc;
    u->known = true;
    u->position = data_position(p->feed);
    *ret = u->held.batch;
    *ret_next = u->batch.count > 0 ? &u->batch : NULL;
    return 0;
}

/* One step; *ret_ended: no samples were left. */
static int step(struct phase *p, bool *ret_ended, struct err *err)
{
    struct batch b;
    const struct batch *next;
    struct step_result s;
    int rc = take_batch(p, &b, &next, err);
    if (rc < 0)
        return rc;
    *ret_ended = b.count == 0;
    if (*ret_ended)
        return 0; /* a phase bounded by time has used up its samples */
    if (p->at.steps == TRACED_STEP && island_size(p->e->island) > 1)
        trace_next(p);
    island_trainer_set_done(p->r->ranks, phase_done(p->t, p->at.steps, seconds_so_far(p)));
    uint64_t begun = clock_now_ns();
    rc = island_trainer_step(p->r->ranks, &b, next, &s, err);
    if (rc < 0)
        return err_wrap(err, "step %" PRIu64, trainer_next_step(p->r->trainer));
    const uint64_t took = clock_now_ns() - begun;
    if (next || !island_trainer_fills(p->r->ranks)) /* else it was shorter, with empty bubbles */
        p->least_ns = p->least_ns == 0 || took < p->least_ns ? took : p->least_ns;
    if (p->at.steps == p->first + SETTLED_STEPS)
        say_training(p);
    slow_down(p, took);
    times_take(&p->w->times, TIMES_STEPS);
    p->units += batch_units(&b);
    p->places += (uint64_t)b.count * b.seq;
    note_step(p, &s, b.samples);
    note_rate(p, &b);
    if (s.skipped && (rc = note_skip(p, &s, err)) < 0)
        return rc;
    uint64_t all = data_total(p->feed); /* some samples may have been used twice */
    uint64_t used = p->at.samples < all ? p->at.samples : all;
    return p->fragments ? fragments_step(p->fragments, p->at.steps, used, err) : 0;
}

static int train(struct phase *p, struct err *err)
{
    p->begun_ns = clock_now_ns() - (uint64_t)(p->at.seconds * 1e9);
    p->counted_ns = clock_now_ns();
    bool ended = p->at.steps > 0 && over(p); /* cut at its end: only the report is missing */
    p->ahead.w = p->w;
    times_take(&p->w->times, TIMES_LOADED);
    while (!ended) {
        prefetch_step(&p->ahead);
        int rc = work_stopped(p->w, err) ? -ERR_CANCELLED : step(p, &ended, err);
        if (rc == -ERR_CANCELLED && atomic_load(&p->w->stop) != WORK_REVOKED)
            save_for_others(p);
        if (rc < 0)
            return rc;
        if (ended || over(p))
            break;
        p->at.seconds = seconds_so_far(p);
        snapshots_step(p->snapshots, &p->at);
        if (phase_save_due(clock_now_ns(), p->counted_ns, &p->e->mid)) {
            save_mid(p);
            snapshots_go_on(p->snapshots);
        }
        times_take(&p->w->times, TIMES_BETWEEN);
    }
    if (p->at.steps == 0)
        return err_set(err, -ERR_FORMAT, "no sample of the phase can be read");
    return check_skips(p, true, err);
}

static uint64_t samples_used(const struct phase *p)
{
    return phase_used(p->at.position, data_total(p->feed), p->window);
}

static int send_moments(struct phase *p, struct err *err)
{
    struct work_output *o;
    int rc = work_output_new(p->w, WORK_MOMENTS, "moments", &o, err);
    cache_make_room(p->w->cache, sizeof(float) * p->r->model->params); /* more than it needs */
    return rc < 0 ? rc : moments_save(p->r->trainer, o->path, o->sha256, &o->size, err);
}

/* Writes every module's contribution and, if asked for, the moments. */
static int contribute_all(struct phase *p, struct err *err)
{
    const Skerry__V1__Task *task = p->w->task;
    struct contribute c = {
        .w = p->w,
        .state_dir = p->e->state_dir,
        .model = p->r->model,
        .weights = contribute_there(trainer_net(p->r->trainer)),
        .flat = p->r->flat,
        .samples = p->at.samples,
    };
    progress_activity(&p->w->progress, "encoding the contribution");
    int rc = p->fragments ? fragments_finish(p->fragments, samples_used(p), err)
             : c.weights  ? 0
                          : trainer_get(p->r->trainer, p->r->flat, err);
    for (size_t i = 0; rc == 0 && !p->fragments && i < task->n_modules; i++) {
        struct work_output *o = work_output(p->w);
        c.base = task->modules[i];
        rc = o ? contribute(&c, o, err) : err_set(err, -ENOMEM, "out of memory");
    }
    if (rc == 0 && p->t->send_moments)
        rc = send_moments(p, err);
    return rc;
}

double phase_done(const Skerry__V1__TrainTask *t, uint64_t steps, double spent)
{
    const double share = t->seconds > 0 ? fmin(1.0, spent / t->seconds)
                         : t->steps > 0 ? fmin(1.0, (double)steps / t->steps)
                                        : 0;
    return fmin(1.0, fmax(0.0, t->done_from + (t->done_to - t->done_from) * share));
}

float phase_computed(double took, uint64_t waited_ms)
{
    const double waited = (double)waited_ms / 1e3;
    return took > waited ? (float)(took - waited) : 0;
}

static int finish(struct phase *p, struct err *err)
{
    struct work_result *res = &p->w->result;
    const uint64_t waited_ms = p->fragments ? fragments_waited_ms(p->fragments) : 0;
    p->at.seconds = seconds_so_far(p);
    res->seconds = phase_computed(p->at.seconds, waited_ms);
    res->steps = p->at.steps;
    res->skipped = p->at.skipped;
    res->samples = samples_used(p);
    res->loss_first = p->at.loss_first;
    res->loss_last = p->at.loss_last;
    res->loss_mean = (float)(p->at.loss_sum / (p->at.steps - p->at.skipped));
    res->waited_ms += waited_ms;
    feed_take_bad(p->feed, p->w);
    if (p->places > 0)
        log_info("phase", "the rows of text were filled to %.1f %%",
                 100.0 * (double)p->units / (double)p->places);
    if (p->at.steps - p->first > 2)
        replica_stepped(p->e->replicas, p->r, (double)p->least_ns / 1e9);
    send_trace(p);
    int rc = contribute_all(p, err);
    if (rc == 0) {
        p->r->whole = true;
        p->r->end = p->at;
    }
    return rc;
}

/* Sets the experts from which a rank learns. */
static int teach_rank(void *arg, int rank, struct err *err)
{
    struct phase *p = arg;
    struct task_experts *x = &p->teachers[rank];
    struct device *dev = island_device(p->e->island, rank);
    struct net *net = trainer_net(island_trainer_rank(p->r->ranks, rank));
    const uint64_t sharers = dev->unified ? (uint64_t)island_size(p->e->island) : 1;
    const uint64_t most = p->e->opt.memory_bytes / 2 / sharers;
    const uint64_t room = p->r->room_for_teachers < most ? p->r->room_for_teachers : most;
    int rc = task_experts_order(x, p->w, p->t->teachers, p->t->n_teachers, err);
    x->silent = rank > 0;
    if (rc == 0)
        rc = task_experts_open(x, p->e, dev, net->opt.batch, room, err);
    if (rc < 0)
        return rc;
    const struct mix_experts experts = experts_mix(x->experts);
    return distill_teach(net, &experts, err);
}

static int open_teachers(struct phase *p, struct err *err)
{
    p->teachers = mem_alloc_array((size_t)island_size(p->e->island), sizeof *p->teachers);
    return island_run(p->e->island, teach_rank, p, err);
}

static void close_teachers(struct phase *p)
{
    for (int i = 0; p->teachers && i < island_size(p->e->island); i++) {
        if (p->teachers[i].experts)
            (void)distill_teach(trainer_net(island_trainer_rank(p->r->ranks, i)), NULL, NULL);
        task_experts_close(&p->teachers[i]);
    }
    mem_free(p->teachers);
}

/* Goes on from an earlier attempt's snapshot, unless our own checkpoint is newer.  If the snapshot
 * cannot be used, its steps are lost. */
static int go_on(struct phase *p, struct err *err)
{
    const Skerry__V1__Snapshot *s = p->t->resume;
    struct replica_cursor at;
    if (s == NULL || (p->resumed && p->at.steps >= s->steps))
        return 0;
    int rc = snapshot_load(p->w, p->r->model, p->r->flat, &at, err);
    if (rc == -ERR_FORMAT) {
        log_warn("phase", "%s; the phase %s", err->msg,
                 p->resumed ? "goes on from this worker's own checkpoint" : "begins anew");
        return 0;
    }
    if (rc == 0)
        rc = trainer_set(p->r->trainer, p->r->flat, err);
    if (rc < 0)
        return rc;
    trainer_position(p->r->trainer, p->t->first_step + at.steps, p->t->total_steps);
    p->at = at;
    p->resumed = true;
    return 0;
}

static int start(struct phase *p, struct err *err)
{
    progress_total(&p->w->progress, p->t->steps);
    progress_activity(&p->w->progress, "loading the model");
    struct encoders *encoders = NULL;
    int rc = encoders_get(p->e, p->w, &encoders, err);
    if (rc == 0)
        rc = replica_get(p->e->replicas, p->w, encoders, &p->r, &p->resumed, &p->at, err);
    if (rc == 0)
        rc = go_on(p, err);
    if (rc == 0 && p->t->n_fragments > 0)
        open_fragments(p);
    if (rc == 0)
        rc = load_weights(p, err);
    if (rc == 0 && p->t->n_teachers > 0)
        rc = open_teachers(p, err);
    if (rc == 0)
        rc = encoders_keep(encoders, p->e, p->w,
                           (unsigned)island_trainer_options(p->r->ranks)->batch,
                           island_trainer_fills(p->r->ranks), &p->keeps, err);
    if (rc == 0)
        rc = open_data(p, err);
    if (rc < 0)
        return rc;
    p->saves = (struct snapshot_net){p->w, p->r};
    const struct snapshots_options saves = {
        .w = p->w,
        .window = p->window,
        .make = snapshot_net_make,
        .arg = &p->saves,
        .took_ns = engine_snapshots(p->e, p->w->task->job_id),
    };
    p->snapshots = snapshots_open(&saves);
    return 0;
}

static int run_once(struct phase *p, struct err *err)
{
    int rc = start(p, err);
    p->first = p->at.steps;
    if (rc == 0) {
        p->peak_flops = measure_peak(p->e, p->w, p->r);
        say_training(p);
        if (p->resumed)
            log_info("phase", "going on at step %u of a phase that was cut task=%" PRIu64,
                     p->at.steps, p->w->task->id);
        rc = train(p, err);
        keep_peak(p);
    }
    if (rc == 0)
        rc = finish(p, err);
    if (rc == -EDOM &&
        p->r) /* the next attempt begins anew, as the coordinator's snapshot goes, too */
        (void)replica_drop_mid(p->e->replicas, p->r, NULL);
    prefetch_end(&p->ahead);
    snapshots_close(p->snapshots);
    fragments_close(p->fragments);
    close_teachers(p);
    batch_release(&p->upcoming.held);
    data_free(p->feed);
    return rc;
}

static int run(struct engine *e, struct work *w, struct err *err)
{
    struct phase p;
    int rc;
    do { /* until the first step has room: only it shows all the memory that a step needs */
        p = (struct phase){.e = e, .w = w, .t = w->task->train};
        w->result.n_outputs = 0;
        rc = run_once(&p, err);
    } while (rc == -ENOMEM && p.at.steps == p.first && replica_smaller(e->replicas, w));
    return rc;
}

/* Writes the local checkpoint. */
static void after(struct engine *e, struct work *w)
{
    struct replica *r = replica_peek(e->replicas, w);
    struct err err = {0};
    if (!r || !r->whole)
        return;
    make_room(e, r);
    say_saved(&e->no_end, replica_save_end(e->replicas, r, w, &err), &err);
}

const struct kind kind_train = {
    .id = SKERRY__V1__TASK_KIND__TASK_KIND_TRAIN,
    .name = "train",
    .part = offsetof(Skerry__V1__Task, train),
    .encoders = true,
    .saves = true,
    .modules = KIND_MODULES_NEEDED,
    .labels = true,
    .check = check,
    .plan = plan,
    .prepare = prepare,
    .run = run,
    .after = after,
};

static void after_check(struct engine *e, struct work *w)
{
    replica_drop(e->replicas, w);
}

/* Repeats a phase of another worker: it uses no state that is kept here, and leaves none. */
const struct kind kind_check = {
    .id = SKERRY__V1__TASK_KIND__TASK_KIND_CHECK,
    .name = "train",
    .part = offsetof(Skerry__V1__Task, train),
    .encoders = true,
    .modules = KIND_MODULES_NEEDED,
    .labels = true,
    .check = check,
    .plan = plan,
    .run = run,
    .after = after_check,
};
