/* TRAIN by a user's trainer: one phase of one replica, from module versions to contributions,
 * which are made like those of our own networks.
 *
 *    start    the trainer ─► the modules into the memory that it shares ─► its samples
 *    train    it works; its reports are progress
 *    finish   every module's contribution from the shared memory, the optimiser's state
 *
 * With fragments the trainer waits after some steps and hands the weights of a level over, or takes
 * newer ones (worker/engine/fragment.h).  Without, it waits now and then, and hands all of them
 * over if a snapshot is due (worker/engine/snapshot.h). */

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/hash.h"
#include "common/base/log.h"
#include "common/base/rng.h"
#include "common/outer/fold.h"
#include "common/outer/layout.h"
#include "worker/engine/contribute.h"
#include "worker/engine/engine.h"
#include "worker/engine/external_feed.h"
#include "worker/engine/fragment.h"
#include "worker/kinds/kinds.h"
#include "worker/engine/prefetch.h"
#include "worker/engine/snapshot.h"
#include "worker/engine/trainers.h"
#include "worker/kinds/work_train.h"
#include "worker/train/train.h"

#define STREAM_PHASE 0x65787465726eULL
#define STATE_MAX (1ull << 40) /* bytes of an optimiser's state */
#define CHUNK (1u << 20)
#define LOOK_NS CLOCK_NS_PER_S          /* most between waits at which a snapshot may be made */
#define BEGINS_NS (60 * CLOCK_NS_PER_S) /* most of a first step without a sign of work */

struct phase {
    struct engine *e;
    struct work *w;
    const Skerry__V1__TrainTask *t;
    struct external *x;
    struct external_feed *feed; /* NULL: the trainer reads its own data */
    struct prefetch ahead;
    uint64_t begun_ns, window;
    uint32_t batch, steps;
    uint64_t samples;
    double loss_sum, seconds;
    float loss_first, loss_last;
    struct fragments *fragments; /* NULL: everything is contributed at the end */
    uint64_t met[TENSORS_LEVELS_MAX];
    struct snapshots *snapshots; /* NULL: none are wanted, or none can be made */
    uint32_t first;              /* steps made by an earlier run of the phase */
    double before;               /* seconds that they took */
    uint64_t waited_ns;          /* when the trainer waited last */
    uint32_t waited;             /* the step after which it waited */
    bool saved;                  /* others can go on from the snapshot: no need to wait */
    uint64_t sign_ns;            /* last sign of work on its first step */
    struct err failed;           /* the trainer's fault while a snapshot was made */
    uint32_t pause;              /* after this step the trainer waits; 0: never */
    bool trains;                 /* the trainer has the weights */
};

static int plan(struct engine *e, struct work *w, struct err *err)
{
    const Skerry__V1__TrainTask *t = w->task->train;
    engine_rest(e); /* a trainer may need the room */
    int rc = trainers_need(w, err);
    if (rc == 0)
        rc = work_need_ranges(w, t->ranges, t->n_ranges, err);
    if (rc == 0 && t->moments)
        rc = work_need_blob(w, t->moments, "the optimiser's state", err);
    return rc < 0 ? rc : snapshot_need(w, err);
}

/* ---- while it trains ---- */

static int check_samples(const struct phase *p, struct err *err)
{
    if (!p->feed || p->samples <= external_feed_position(p->feed))
        return 0;
    return err_set(err, -ERR_TRAINER,
                   "the trainer counts %" PRIu64 " samples, but was given %" PRIu64, p->samples,
                   external_feed_position(p->feed));
}

static int go_on(struct phase *p, uint32_t pause, struct err *err)
{
    p->pause = pause;
    return external_go_on(p->x, pause > 0 ? pause - p->first : 0, err);
}

static struct replica_cursor cursor(const struct phase *p)
{
    return (struct replica_cursor){.steps = p->steps,
                                   .samples = p->samples,
                                   .position = p->feed ? p->samples : 0,
                                   .loss_sum = p->loss_sum,
                                   .loss_first = p->loss_first,
                                   .loss_last = p->loss_last,
                                   .seconds = p->before + clock_since_s(p->begun_ns)};
}

/* The step after which the trainer must wait for the next check whether a snapshot is due: about a
 * second on, or the time between two snapshots; 0: none before the last step. */
static uint32_t next_look(struct phase *p)
{
    const uint64_t now = clock_now_ns(), least = (uint64_t)p->t->snapshot_ms * 1000000;
    const uint64_t apart = least < LOOK_NS ? least : LOOK_NS, took = now - p->waited_ns;
    const uint64_t made = p->steps - p->waited, n = took > 0 ? apart * made / took : made;
    const uint64_t at = p->steps + (n < 1 ? 1 : n < 2 * made ? n : 2 * made);
    p->waited_ns = now;
    p->waited = p->steps;
    return at < (p->t->steps ? p->t->steps : UINT32_MAX) ? (uint32_t)at : 0;
}

/* After a step of a phase without fragments. */
static int save(struct phase *p, struct err *err)
{
    if (!p->snapshots || p->steps != p->pause) {
        snapshots_travel(p->snapshots);
        return 0;
    }
    const int rc = check_samples(p, err);
    if (rc < 0)
        return rc;
    const struct replica_cursor at = cursor(p);
    const bool last = atomic_load(&p->w->stop) == WORK_SAVING;
    if (last)
        snapshots_last(p->snapshots, &at);
    else
        snapshots_step(p->snapshots, &at);
    p->saved = last;
    if (p->failed.code < 0)
        return err_set(err, p->failed.code, "%s", p->failed.msg);
    return work_stopped(p->w, NULL) ? 0 : go_on(p, next_look(p), err); /* or a stop will come */
}

/* The exchanges due after a step, except the last, after which all weights are here. */
static int exchange(struct phase *p, struct err *err)
{
    const bool paused = p->steps == p->pause;
    if (!p->fragments)
        return save(p, err);
    if (p->steps >= p->t->steps)
        return 0;
    int rc = check_samples(p, err);
    if (rc == 0)
        rc = paused ? fragments_step(p->fragments, p->steps, p->samples, err)
                    : fragments_travel(p->fragments, p->steps, err);
    if (rc == -ERR_CANCELLED)
        return 0; /* the trainer gets a stop */
    if (rc < 0 || !paused)
        return rc;
    return go_on(p, fragments_next(p->fragments), err);
}

static int take_numbers(struct phase *p, const Skerry__Trainer__V1__Progress *m,
                        double out[PROGRESS_NUMBERS_MAX], struct err *err)
{
    for (size_t i = 0; i < PROGRESS_NUMBERS_MAX; i++)
        out[i] = (double)NAN;
    for (size_t i = 0; i < m->n_numbers; i++) {
        const int at = progress_number(&p->w->progress, m->numbers[i]->name, err);
        if (at < 0)
            return at;
        out[at] = m->numbers[i]->value;
    }
    return 0;
}

static int on_progress(void *arg, const Skerry__Trainer__V1__Progress *m, struct err *err)
{
    struct phase *p = arg;
    double numbers[PROGRESS_NUMBERS_MAX];
    if (!isfinite(m->loss))
        return err_set(err, -ERR_TRAINER, "the trainer's loss is no finite number after %u steps",
                       p->steps + 1);
    const int rc = take_numbers(p, m, numbers, err);
    if (rc < 0)
        return rc;
    p->loss_first = p->steps == 0 ? m->loss : p->loss_first;
    p->loss_last = m->loss;
    p->loss_sum += (double)m->loss;
    p->steps++;
    p->samples += m->samples;
    const struct progress_point point = {
        .step = p->t->first_step + p->steps, .loss = m->loss, .lr = m->lr, .numbers = numbers};
    progress_step(&p->w->progress, &point, m->grad_norm, p->steps, p->samples);
    prefetch_step(&p->ahead);
    return exchange(p, err);
}

static int on_samples(void *arg, Skerry__Trainer__V1__Samples *m, int *ret_fd, struct err *err)
{
    struct phase *p = arg;
    if (!p->feed) {
        m->last = true;
        return 0;
    }
    return external_feed_next(p->feed, m, ret_fd, err);
}

/* Is it in its first step?  That may compile the model: a trainer killed there would compile anew
 * in each phase. */
static bool begins(const struct phase *p)
{
    return p->steps == p->first && !work_abandoned(p->w) && clock_now_ns() - p->sign_ns < BEGINS_NS;
}

/* Must the trainer stop?  First a snapshot is sent, at the next step at which the trainer waits;
 * after the last such step the phase ends soon. */
static bool stopped(void *arg)
{
    const struct phase *p = arg;
    const bool saves = p->snapshots && !p->saved;
    return work_stopped(p->w, NULL) && !begins(p) &&
           !(saves && atomic_load(&p->w->stop) == WORK_SAVING);
}

static void goes_on(void *arg)
{
    struct phase *p = arg;
    p->sign_ns = clock_now_ns();
    progress_sign(&p->w->progress);
}

/* ---- the order ---- */

/* The seed for the replica's steps after the first `step`. */
static uint64_t seed_of(const struct phase *p, uint64_t step)
{
    return rng_mix(rng_mix(p->w->spec.seed, STREAM_PHASE),
                   rng_mix(rng_mix(p->t->path, p->t->replica), step));
}

static int open_feed(struct phase *p, struct err *err)
{
    uint64_t total = 0;
    if (p->t->n_ranges == 0)
        return 0;
    for (size_t i = 0; i < p->t->n_ranges; i++)
        total += p->t->ranges[i]->count;
    p->window = p->t->seconds ? phase_window(total, p->batch) : 0;
    const struct data_order order = {
        .shuffle = true, .seed = seed_of(p, p->t->first_step), .window = (uint32_t)p->window};
    /* For a phase bounded by steps: as many samples as its steps take. */
    const uint64_t most = (uint64_t)p->t->steps * p->batch;
    const int rc = external_feed_open(p->w, p->t->ranges, p->t->n_ranges, &order, p->batch, most,
                                      &p->feed, err);
    if (rc == 0)
        external_feed_seek(p->feed, p->samples);
    return rc;
}

/* The path of this replica's kept files: its optimiser's states, the weights of its last phase. */
static void state_path(const struct phase *p, const char *what, char out[CACHE_PATH_MAX])
{
    (void)snprintf(out, CACHE_PATH_MAX, "%s/external-%" PRIu64 "-%u-%u.%s", p->e->state_dir,
                   p->w->task->job_id, p->t->path, p->t->replica, what);
}

static bool stands(const struct phase *p, const struct trainer_stand *s)
{
    return s && s->job_id == p->w->task->job_id && s->path == p->t->path &&
           s->replica == p->t->replica && s->step > 0 &&
           (s->step == p->t->first_step || s->step == p->t->moments_step);
}

/* The kept state of the replica after so many steps; 0: of its last phase, by an earlier release.
 */
static void state_at(const struct phase *p, uint64_t step, char out[CACHE_PATH_MAX])
{
    char what[32];
    (void)snprintf(what, sizeof(what), step > 0 ? "state-%" PRIu64 : "state", step);
    state_path(p, what, out);
}

/* The step of a file among the replica's kept states; 0: it is none of them. */
static uint64_t state_step(const struct phase *p, const char *name)
{
    char start[CACHE_PATH_MAX];
    uint64_t step = 0;
    state_path(p, "state-", start);
    const char *stem = strrchr(start, '/') + 1;
    if (str_starts(name, stem))
        (void)str_parse_u64(name + strlen(stem), &step); /* else it is a temporary file */
    return step;
}

/* The step of the newest state with which the phase may begin, 0: there is none.  Later ones were
 * kept by a run of this very phase that did not count. */
static uint64_t newest_state(const struct phase *p)
{
    struct file_names names;
    uint64_t newest = 0;
    if (file_list(p->e->state_dir, WORK_STATE_FILES_MAX, &names, NULL) < 0)
        return 0;
    for (size_t i = 0; i < names.n; i++) {
        const uint64_t step = state_step(p, names.items[i]);
        newest = step <= p->t->first_step && step > newest ? step : newest;
    }
    file_names_release(&names);
    return newest;
}

/* Removes all states but these two: what the phase began with, should it be repeated, and its end.
 */
static void drop_states(const struct phase *p, uint64_t begun, uint64_t end)
{
    struct file_names names;
    char path[CACHE_PATH_MAX];
    if (file_list(p->e->state_dir, WORK_STATE_FILES_MAX, &names, NULL) < 0)
        return;
    for (size_t i = 0; i < names.n; i++) {
        const uint64_t step = state_step(p, names.items[i]);
        state_at(p, step, path);
        if (step != 0 && step != begun && step != end)
            (void)file_remove(path, NULL); /* it is tried again after the next phase */
    }
    file_names_release(&names);
    state_at(p, 0, path);
    (void)file_remove(path, NULL);
}

/* Opens the state that came with the task, or was kept here: a descriptor; -1: there is none. */
static int open_state(const struct phase *p)
{
    char path[CACHE_PATH_MAX];
    if (!external_keeps_state(p->x) || p->t->first_step == 0 || p->t->fresh)
        return -1;
    if (p->t->moments)
        work_blob_path(p->w, p->t->moments->sha256.data, path);
    else
        state_at(p, newest_state(p), path);
    return open(path, O_RDONLY | O_CLOEXEC);
}

/* The schedule at a step, or where a phase bounded by time has trained for `spent` seconds: then
 * without the warm-up, since only the trainer knows how many steps fit. */
static double lr_scale(const struct phase *p, uint64_t step, double spent)
{
    struct train_options o;
    train_options_from_job(&p->w->spec, false, (int)p->batch, 0, &o);
    o.warmup = p->t->seconds > 0 ? 0 : o.warmup;
    if (o.lr <= 0)
        return 1;
    return (p->t->done_to > 0
                ? train_lr_timed(&o, step, phase_done(p->t, step - p->t->first_step, spent))
                : train_lr(&o, step, p->t->total_steps)) /
           o.lr;
}

static void fill_order(const struct phase *p, Skerry__Trainer__V1__Phase *m)
{
    static const char *const precisions[] = {"auto", "bf16", "f32"};
    const Skerry__V1__TrainTask *t = p->t;
    const uint64_t first_step = t->first_step + p->first;
    const uint32_t seconds = t->seconds > p->before ? t->seconds - (uint32_t)p->before : 1;
    m->round = t->round;
    m->path = t->path;
    m->replica = t->replica;
    m->replicas = (uint32_t)p->w->spec.recipe.replicas;
    m->steps = t->steps ? t->steps - p->first : 0;
    m->seconds = t->seconds ? seconds : 0;
    m->first_step = first_step;
    m->total_steps = t->total_steps;
    m->batch = p->batch;
    m->seed = seed_of(p, first_step);
    m->goes_on = p->first == 0 && stands(p, trainers_stand(p->e));
    m->wants_state = t->send_moments && external_keeps_state(p->x);
    m->kind = external_feed_kind(p->w);
    m->samples = p->feed ? external_feed_total(p->feed) - external_feed_position(p->feed) : 0;
    m->lr_first = (float)lr_scale(p, first_step, p->before);
    m->lr_last = (float)lr_scale(p, t->first_step + (t->steps ? t->steps - 1 : 0), t->seconds);
    m->warmup = t->seconds ? (uint64_t)p->w->spec.train.warmup : 0;
    m->precision = (char *)(uintptr_t)precisions[p->w->spec.train.precision];
    m->pause = p->pause > 0 ? p->pause - p->first : 0;
}

/* ---- contributions ---- */

/* theta_end of a module, from the shared memory, checked to be what was handed over. */
struct end {
    struct external *x;
    int base; /* the version's file */
};

static int read_end(void *arg, const struct layout *layout, size_t t, uint64_t first, size_t n,
                    float *out, struct err *err)
{
    _Static_assert(FOLD_CHUNK == TENSORS_PIECE, "a contribution reads pieces");
    const struct end *e = arg;
    const struct tensors_end end = {
        .item = tensors_find(external_tensors(e->x), layout->st.tensors[t].name),
        .shared = external_shared(e->x),
        .seal = external_seal(e->x),
        .base = e->base,
        .from = &layout->st.tensors[t]};
    const struct tensors_item *item = end.item;
    if (!item || item->level < 0 || item->count != end.from->count)
        return err_set(err, -ERR_FORMAT, "the trainer has no tensor %s of this size",
                       end.from->name);
    return tensors_read_end(&end, first, n, out, err);
}

/* Encodes a module's contribution; snapshot: that of the phase so far. */
static int encode(struct phase *p, const Skerry__V1__ModuleRef *base, uint64_t samples,
                  bool snapshot, struct work_output *ret, struct err *err)
{
    char path[CACHE_PATH_MAX];
    work_blob_path(p->w, base->sha256.data, path);
    struct end end = {.x = p->x};
    const struct contribute c = {.w = p->w,
                                 .snapshot = snapshot,
                                 .state_dir = p->e->state_dir,
                                 .base = base,
                                 .read = read_end,
                                 .read_arg = &end,
                                 .threads = p->e->opt.threads,
                                 .samples = samples};
    if ((end.base = open(path, O_RDONLY | O_CLOEXEC)) < 0)
        return err_errno(err, "opening %s", path);
    const int rc = contribute(&c, ret, err);
    (void)close(end.base);
    return rc;
}

/* Seals the values that were handed over: of a level, or of all (-1). */
static void seal(const struct phase *p, int level)
{
    tensors_seal(external_tensors(p->x), level, external_shared(p->x), p->e->opt.threads,
                 external_seal(p->x));
}

/* Encodes the contributions of all modules. */
static int contribute_all(struct phase *p, struct err *err)
{
    const Skerry__V1__Task *task = p->w->task;
    int rc = 0;
    seal(p, -1);
    for (size_t i = 0; rc == 0 && i < task->n_modules; i++) {
        struct work_output *o = work_output(p->w);
        rc = o ? encode(p, task->modules[i], p->samples, false, o, err)
               : err_set(err, -ENOMEM, "out of memory");
    }
    trainers_handed(p->e);
    return rc;
}

/* ---- snapshots ---- */

/* A failure to save does not fail the phase, but a fault of the trainer does. */
static int make_snapshot(void *arg, uint64_t samples, struct work_output *outs, struct err *err)
{
    struct phase *p = arg;
    const Skerry__V1__Task *task = p->w->task;
    int rc = 0;
    for (size_t i = 0; i < task->n_modules && rc == 0; i++)
        rc = external_give(p->x, task->modules[i]->level, err);
    const bool given = rc == 0;
    if (rc == 0)
        seal(p, -1);
    for (size_t i = 0; i < task->n_modules && rc == 0; i++)
        rc = encode(p, task->modules[i], samples, true, &outs[i], err);
    if (rc == -ERR_TRAINER || (rc == -ENOMEM && !given)) /* it lacked memory */
        p->failed = *err;
    return rc;
}

/* Opens snapshots if the trainer can hand its weights over during a phase, without fragments, whose
 * contributions are safe anyway. */
static void open_snapshots(struct phase *p)
{
    const struct snapshots_options opt = {
        .w = p->w,
        .window = p->window,
        .make = make_snapshot,
        .arg = p,
        .took_ns = engine_snapshots(p->e, p->w->task->job_id),
    };
    if (!p->fragments && external_exchanges(p->x))
        p->snapshots = snapshots_open(&opt);
}

static int load_snapshot(struct phase *p, struct err *err)
{
    const size_t n = p->t->resume->n_modules;
    char made[CACHE_PATH_MAX];
    size_t loaded = 0;
    int rc = 0;
    work_temp_path(p->w, "resumed", made);
    for (size_t i = 0; i < n && rc == 0; i++) {
        const struct tensors_source from = {.path = made};
        rc = snapshot_module(p->w, i, made, err);
        if (rc == 0)
            rc = tensors_load(external_tensors(p->x), &from, external_shared(p->x),
                              p->e->opt.threads, &loaded, err);
    }
    return rc;
}

/* Goes on from an earlier attempt's snapshot.  If it cannot be used, its steps are lost. */
static int resume(struct phase *p, struct err *err)
{
    if (!p->t->resume || (p->t->steps > 0 && p->t->resume->steps >= p->t->steps))
        return 0;
    const int rc = load_snapshot(p, err);
    if (rc == -ERR_FORMAT) {
        log_warn("phase", "%s; the phase begins anew", err->msg);
        return trainers_load(p->e, p->x, p->w, err);
    }
    if (rc < 0)
        return rc;
    const struct replica_cursor at = snapshot_cursor(p->w);
    p->steps = p->first = at.steps;
    p->samples = at.samples;
    p->loss_sum = at.loss_sum;
    p->loss_first = at.loss_first;
    p->loss_last = at.loss_last;
    p->before = at.seconds;
    log_info("phase", "going on at step %u of a phase that was cut task=%" PRIu64, p->steps,
             p->w->task->id);
    return 0;
}

/* ---- fragments ---- */

static int contribute_level(void *arg, const Skerry__V1__ModuleRef *base, uint64_t samples,
                            struct work_output *ret, struct err *err)
{
    struct phase *p = arg;
    const int rc = p->trains ? external_give(p->x, base->level, err) : 0;
    if (rc < 0)
        return rc;
    seal(p, (int)base->level);
    return encode(p, base, samples, false, ret, err);
}

static int merge_level(void *arg, uint32_t level, const char *path, double mix, struct err *err)
{
    struct phase *p = arg;
    const struct tensors_source from = {.path = path, .mix = mix};
    size_t loaded = 0;
    int rc = p->trains && mix > 0 ? external_give(p->x, level, err) : 0;
    if (rc == 0)
        rc = tensors_load(external_tensors(p->x), &from, external_shared(p->x), p->e->opt.threads,
                          &loaded, err);
    return rc < 0 || !p->trains ? rc : external_take(p->x, level, err);
}

static int open_fragments(struct phase *p, struct err *err)
{
    if (p->t->n_fragments == 0)
        return 0;
    if (p->w->task->n_modules > TENSORS_LEVELS_MAX)
        return err_set(err, -ERR_LIMIT, "task: %zu modules, at most %d are possible",
                       p->w->task->n_modules, TENSORS_LEVELS_MAX);
    const struct fragments_options opt = {.w = p->w,
                                          .modules = p->e->opt.modules,
                                          .met = p->met,
                                          .state_dir = p->e->state_dir,
                                          .contribute = contribute_level,
                                          .merge = merge_level,
                                          .arg = p};
    p->fragments = fragments_open(&opt);
    return 0;
}

/* Loads the weights of a file of keep_own(), if they are those with which this phase begins, and
 * the versions with which each level was last merged.  -ERR_TRAINER: the trainer was dropped. */
static int load_kept(struct phase *p, const char *what, bool *ret, struct err *err)
{
    char path[CACHE_PATH_MAX], key[32];
    struct st st = {0};
    struct err why = {0};
    uint64_t step = 0;
    *ret = false;
    state_path(p, what, path);
    if (p->t->first_step == 0 || !file_exists(path))
        return 0;
    int rc = st_open(path, &st, &why);
    if (rc == 0)
        rc = st_meta_number(&st, path, "skerry.step", &step, &why);
    const bool stands = rc == 0 && step == p->t->first_step;
    for (size_t l = 0; stands && rc == 0 && l < p->w->task->n_modules; l++) {
        (void)snprintf(key, sizeof(key), "skerry.met.%zu", l);
        rc = st_meta_number(&st, path, key, &p->met[l], &why);
    }
    st_release(&st);
    if (stands && rc == 0)
        rc = trainers_load_kept(p->e, p->x, path, &why);
    if (rc == -ERR_TRAINER)
        return err_set(err, rc, "%s", why.msg);
    if (rc < 0)
        log_warn("phase", "%s: the phase does not begin with it", why.msg);
    *ret = stands && rc == 0;
    return 0;
}

/* Loads the weights at the end of the replica's last phase, if that was here; the spare has them if
 * a later end was kept but not reported.  Without either, the training since the merges is lost. */
static int load_own(struct phase *p, bool *ret, struct err *err)
{
    const int rc = load_kept(p, "end", ret, err);
    return rc < 0 || *ret ? rc : load_kept(p, "end.spare", ret, err);
}

static void keep_own(const struct phase *p)
{
    struct st_meta pairs[1 + TENSORS_LEVELS_MAX];
    char path[CACHE_PATH_MAX], text[1 + TENSORS_LEVELS_MAX][2][32];
    struct err err = {0};
    size_t n = 0;
    for (; n <= p->w->task->n_modules; n++) {
        const uint64_t value = n > 0 ? p->met[n - 1] : p->t->first_step + p->steps;
        (void)snprintf(text[n][0], 32, n > 0 ? "skerry.met.%zu" : "skerry.step", n - 1);
        (void)snprintf(text[n][1], 32, "%" PRIu64, value);
        pairs[n] = (struct st_meta){text[n][0], text[n][1]};
    }
    state_path(p, "end", path);
    cache_make_room(p->w->cache, external_tensors(p->x)->bytes);
    if (tensors_keep(external_tensors(p->x), external_shared(p->x), pairs, n, path, &err) < 0)
        log_warn("phase", "no local checkpoint: %s", err.msg);
    seal(p, -1);
    trainers_handed(p->e);
}

/* After the last step: all weights are in the shared memory. */
static int finish_fragments(struct phase *p, struct err *err)
{
    int rc = fragments_step(p->fragments, p->t->steps, p->samples, err);
    if (rc == 0)
        rc = fragments_finish(p->fragments, p->samples, err);
    return rc;
}

static int load_weights(struct phase *p, struct err *err)
{
    bool own = false;
    int rc = p->fragments ? load_own(p, &own, err) : 0;
    if (rc == 0 && !own)
        rc = trainers_load(p->e, p->x, p->w, err);
    if (rc < 0)
        return rc;
    return p->fragments ? fragments_load(p->fragments, own, err) : resume(p, err);
}

/* ---- the optimiser's state ---- */

static int copy_state(int from, const char *path, uint64_t size, struct err *err)
{
    struct file_out out;
    uint8_t *data = mem_try(CHUNK);
    int rc = data ? file_out_open(&out, path, 0600, err)
                  : err_set(err, -ENOMEM, "no memory for the optimiser's state");
    if (rc < 0) {
        mem_free(data);
        return rc;
    }
    for (uint64_t at = 0; at < size && rc == 0; at += CHUNK) {
        const size_t n = size - at < CHUNK ? (size_t)(size - at) : CHUNK;
        rc = file_pread_all(from, data, n, at, "the optimiser's state", err);
        if (rc == 0)
            rc = file_out_write(&out, data, n, err);
    }
    if (rc == 0)
        rc = file_out_commit(&out, err);
    file_out_abort(&out);
    mem_free(data);
    return rc;
}

/* Keeps the state here, and sends it with the result. */
static int take_state(struct phase *p, int fd, struct err *err)
{
    char path[CACHE_PATH_MAX];
    struct stat st;
    struct work_output *o;
    if (fd < 0 || !p->t->send_moments)
        return 0;
    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_size == 0 ||
        (uint64_t)st.st_size > STATE_MAX)
        return err_set(err, -ERR_TRAINER, "the trainer's state is no file of 1 to %llu bytes",
                       STATE_MAX);
    int rc = work_output_new(p->w, WORK_MOMENTS, "moments", &o, err);
    cache_make_room(p->w->cache, 2 * (uint64_t)st.st_size);
    if (rc == 0)
        rc = copy_state(fd, o->path, (uint64_t)st.st_size, err);
    if (rc == 0)
        rc = hash_file(o->path, o->sha256, &o->size, err);
    const uint64_t end = p->t->first_step + p->steps;
    state_at(p, end, path);
    struct err why = {0};
    if (rc == 0 && copy_state(fd, path, (uint64_t)st.st_size, &why) < 0) {
        log_warn("phase", "the optimiser's state is not kept here: %s", why.msg);
        (void)file_remove(path, NULL); /* that of an earlier run would be taken for it */
    }
    drop_states(p, newest_state(p), end);
    return rc;
}

/* ---- a phase ---- */

static int finish(struct phase *p, const struct external_done *done, struct err *err)
{
    struct work_result *res = &p->w->result;
    if (p->steps == 0 || p->samples == 0)
        return err_set(err, -ERR_TRAINER, "the trainer ended a phase without a step");
    const uint64_t waited_ms = p->fragments ? fragments_waited_ms(p->fragments) : 0;
    int rc = check_samples(p, err);
    if (rc < 0)
        return rc;
    res->waited_ms += waited_ms;
    res->seconds = phase_computed(p->seconds, waited_ms);
    res->steps = p->steps;
    res->samples =
        p->feed ? phase_used(p->samples, external_feed_total(p->feed), p->window) : p->samples;
    res->loss_first = p->loss_first;
    res->loss_last = p->loss_last;
    res->loss_mean = (float)(p->loss_sum / p->steps);
    progress_activity(&p->w->progress, "encoding the contribution");
    rc = p->fragments ? finish_fragments(p, err) : contribute_all(p, err);
    if (rc == 0)
        rc = take_state(p, done->passed, err);
    if (rc < 0)
        return rc;
    if (p->fragments)
        keep_own(p);
    const struct trainer_stand stand = {p->w->task->job_id, p->t->path, p->t->replica,
                                        p->t->first_step + p->steps};
    trainers_set_stand(p->e, &stand);
    return 0;
}

static int train(struct phase *p, struct external_done *done, struct err *err)
{
    const struct external_events ev = {.progress = on_progress,
                                       .samples = on_samples,
                                       .stopped = stopped,
                                       .goes_on = goes_on,
                                       .arg = p};
    Skerry__Trainer__V1__FromWorker m = SKERRY__TRAINER__V1__FROM_WORKER__INIT;
    Skerry__Trainer__V1__Phase order = SKERRY__TRAINER__V1__PHASE__INIT;
    p->begun_ns = p->waited_ns = p->sign_ns = clock_now_ns();
    p->waited = p->steps;
    p->pause = p->fragments ? fragments_next(p->fragments) : p->snapshots ? next_look(p) : 0;
    fill_order(p, &order);
    m.what_case = SKERRY__TRAINER__V1__FROM_WORKER__WHAT_PHASE;
    m.phase = &order;
    const int state = order.goes_on ? -1 : open_state(p);
    order.has_state = state >= 0;
    progress_total(&p->w->progress, p->t->steps);
    progress_activity(&p->w->progress, "training");
    p->trains = true;
    const int rc = trainers_ask(p->e, p->w, &m, state, &ev, done, err);
    p->trains = false;
    p->seconds = p->before + clock_since_s(p->begun_ns);
    if (state >= 0)
        (void)close(state);
    return rc;
}

static int run(struct engine *e, struct work *w, struct err *err)
{
    struct phase p = {.e = e, .w = w, .t = w->task->train, .ahead = {.w = w}};
    p.batch = p.t->batch ? p.t->batch : (uint32_t)w->spec.train.batch;
    struct external_done done = {.passed = -1};
    int rc = trainers_get(e, w, &p.x, err);
    if (rc == 0)
        rc = open_fragments(&p, err);
    if (rc == 0)
        rc = load_weights(&p, err);
    if (rc == 0)
        rc = open_feed(&p, err);
    if (rc == 0)
        open_snapshots(&p);
    if (rc == 0)
        rc = train(&p, &done, err);
    if (rc == 0 && (rc = finish(&p, &done, err)) < 0)
        trainers_drop(e); /* its weights cannot be trusted */
    prefetch_end(&p.ahead);
    fragments_close(p.fragments);
    snapshots_close(p.snapshots);
    external_done_release(&done);
    external_feed_close(p.feed);
    return rc;
}

const struct kind kind_external_train = {
    .id = SKERRY__V1__TASK_KIND__TASK_KIND_TRAIN,
    .name = "train",
    .external = true,
    .saves = true,
    .part = offsetof(Skerry__V1__Task, train),
    .modules = KIND_MODULES_NEEDED,
    .plan = plan,
    .run = run,
};
