#include "worker/pipe/fill.h"

#define END_TRIES 24    /* halvings in the search for the end */
#define SMALLER_TRIES 8 /* most tries with smaller shares */
#define SMALLER 0.9
#define ROUNDING 1e-9 /* share of a step's seconds that sums of its parts may be off */

/* Idle time of a device, before an item of its list. */
struct bubble {
    int at;
    double seconds;
};

struct frozen_device {
    struct bubble *bubbles; /* the last one is after STEP, without length */
    int n;
    double end;       /* end of STEP */
    int quota, first; /* its samples */
};

struct filler {
    const struct costs *p;
    const struct pipe_plan *plan;
    const struct fill_options *opt;
    double share;    /* share of bubbles in this try */
    double rounding; /* seconds */
    int layers;      /* layers of all frozen networks, one after the other */
    struct {
        int frozen, layer;
    } * layer;
    int *waiting; /* samples that wait for each layer; [layers]: done */
    struct frozen_device devices[COSTS_DEVICES_MAX];
    int n_devices;
    struct pipe_schedule *out; /* gets the instructions; NULL: only try */
    int shift;                 /* number of items already inserted on this device */
    double inside;             /* seconds in bubbles */
    bool failed;               /* no memory */
};

/* ---- one device ---- */

static double layer_seconds(const struct filler *f, int d, int layer, int count)
{
    return frozen_seconds(f->p, d, f->layer[layer].frozen, f->layer[layer].layer,
                          f->layer[layer].layer + 1, count);
}

static void put(struct filler *f, int d, int at, int layer, int first, int count)
{
    struct pipe_list *l = &f->out->lists[d];
    const struct pipe_instr in = {.op = PIPE_FROZEN,
                                  .chain = f->layer[layer].frozen,
                                  .first = first,
                                  .count = count,
                                  .from = f->layer[layer].layer,
                                  .to = f->layer[layer].layer + 1};
    struct pipe_instr *last = at + f->shift > 0 ? &l->items[at + f->shift - 1] : NULL;
    if (last && last->op == PIPE_FROZEN && last->chain == in.chain && last->first == first &&
        last->count == count && last->to == in.from) {
        last->to = in.to;
        return;
    }
    f->failed |= schedule_insert(f->out, d, at + f->shift++, &in) < 0;
}

/* The most samples waiting for a layer that can pass it in the time; 0: none. */
static int fits(const struct filler *f, int d, int layer, int underway, double seconds)
{
    int count = f->waiting[layer];
    if (layer == 0 && count > FILL_UNDERWAY - underway)
        count = FILL_UNDERWAY - underway;
    count = count < f->opt->group ? count : f->opt->group;
    while (count > 0 && layer_seconds(f, d, layer, count) > seconds + f->rounding)
        count--;
    return count;
}

/* Runs the work that fits in a bubble, the deepest layer first. */
static void fill_bubble(struct filler *f, int d, int at, double seconds, int *underway)
{
    while (!f->failed) {
        int layer = f->layers, count = 0;
        int ahead = f->waiting[f->layers]; /* deeper samples, which have lower numbers */
        while (count == 0 && --layer >= 0) {
            count = f->waiting[layer] > 0 ? fits(f, d, layer, *underway, seconds) : 0;
            ahead += count == 0 ? f->waiting[layer] : 0;
        }
        if (count == 0)
            return;
        const double t = layer_seconds(f, d, layer, count);
        seconds -= t;
        if (f->out)
            put(f, d, at, layer, f->devices[d].first + ahead, count);
        if (f->out && at < f->devices[d].bubbles[f->devices[d].n - 1].at)
            f->inside += t;
        f->waiting[layer] -= count;
        f->waiting[layer + 1] += count;
        *underway += layer == 0 ? count : 0;
        *underway -= layer + 1 == f->layers ? count : 0;
    }
}

/* Are `quota` samples of device d done at `end`? */
static bool through(struct filler *f, int d, int quota, double end)
{
    const struct frozen_device *dev = &f->devices[d];
    int underway = 0;
    memset(f->waiting, 0, (size_t)(f->layers + 1) * sizeof *f->waiting);
    f->waiting[0] = quota;
    f->shift = 0;
    for (int i = 0; i < dev->n && f->waiting[f->layers] < quota; i++) {
        const bool last = i == dev->n - 1;
        fill_bubble(f, d, dev->bubbles[i].at,
                    last ? end - dev->end : dev->bubbles[i].seconds * f->share, &underway);
    }
    return f->waiting[f->layers] == quota;
}

/* ---- all devices ---- */

/* The most samples of device d that are done at `end`. */
static int capacity(struct filler *f, int d, double end)
{
    int low = 0, high = f->plan->bare[d] ? 0 : f->opt->samples;
    while (low < high) {
        const int mid = low + (high - low + 1) / 2;
        if (through(f, d, mid, end))
            low = mid;
        else
            high = mid - 1;
    }
    return low;
}

/* Divides the samples by capacity; false: there are more samples. */
static bool divide(struct filler *f, double end)
{
    int all = 0, given = 0;
    for (int d = 0; d < f->n_devices; d++)
        all += f->devices[d].quota = capacity(f, d, end);
    if (all < f->opt->samples)
        return false;
    /* The surplus is taken from the largest quotas, one by one. */
    for (; all > f->opt->samples; all--) {
        int most = 0;
        for (int d = 1; d < f->n_devices; d++)
            most = f->devices[d].quota > f->devices[most].quota ? d : most;
        f->devices[most].quota--;
    }
    for (int d = 0; d < f->n_devices; d++) {
        f->devices[d].first = given;
        given += f->devices[d].quota;
    }
    return true;
}

/* The earliest end at which all samples are done; sets the quotas. */
static double earliest(struct filler *f, double low, double work)
{
    double high = low + work;
    if (divide(f, low))
        return low;
    while (!divide(f, high)) /* one sample by one on one device: at most twice */
        high += work + low;
    for (int i = 0; i < END_TRIES && high - low > 1e-4 * high; i++) {
        const double mid = (low + high) / 2;
        if (divide(f, mid))
            high = mid;
        else
            low = mid;
    }
    (void)divide(f, high);
    return high;
}

/* ---- transfers ---- */

static bool wants(const struct filler *f, int d, int frozen)
{
    return f->p->frozen[frozen].all || pipe_begins(f->plan, d);
}

/* Sends device d's results to the devices that read them, at the ends of both lists. */
static void hand_over(struct filler *f, int d, int frozen)
{
    for (int w = 0; w < f->n_devices && f->devices[d].quota > 0; w++) {
        struct pipe_instr in = {.op = PIPE_SEND,
                                .what = PIPE_ENCODED,
                                .chain = frozen,
                                .peer = w,
                                .first = f->devices[d].first,
                                .count = f->devices[d].quota};
        if (w == d || !wants(f, w, frozen))
            continue;
        f->failed |= schedule_insert(f->out, d, f->out->lists[d].n, &in) < 0;
        in.op = PIPE_RECV;
        in.peer = d;
        f->failed |= schedule_insert(f->out, w, f->out->lists[w].n, &in) < 0;
    }
}

/* ---- the whole ---- */

int fill_place(const struct costs *p, struct pipe_plan *plan, struct err *err)
{
    const uint64_t frozen = frozen_networks_bytes(p, FILL_UNDERWAY);
    char need[STR_HUMAN_MAX], have[STR_HUMAN_MAX];
    uint64_t most = 0;
    bool none = true;
    for (int d = 0; d < plan->devices && p->n_frozen > 0; d++) {
        const uint64_t all = p->devices[d].memory, own = plan_trained_bytes(p, plan, d);
        const uint64_t left = all > own ? all - own : 0;
        most = !plan->bare[d] && left > most ? left : most;
        plan->bare[d] |= own > all || left < frozen;
        none &= plan->bare[d];
    }
    return p->n_frozen == 0 || !none
               ? 0
               : err_set(err, -ENOSPC,
                         "the frozen networks need %s on a device, and no device has more than %s "
                         "left",
                         str_human_bytes(frozen, need), str_human_bytes(most, have));
}

static bool open_device(struct filler *f, int d, const struct pipe_list *l, const struct trace *t)
{
    struct frozen_device *dev = &f->devices[d];
    double end = 0;
    dev->bubbles = mem_try_array((size_t)l->n + 1, sizeof *dev->bubbles);
    if (!dev->bubbles)
        return false;
    for (int i = 0; i < l->n; i++) {
        if (!pipe_computes(l->items[i].op))
            continue;
        if (t->rows[i].start > end)
            dev->bubbles[dev->n++] = (struct bubble){i, t->rows[i].start - end};
        end = t->rows[i].end;
    }
    dev->end = end;
    dev->bubbles[dev->n++] = (struct bubble){.at = l->n};
    return true;
}

static bool open_filler(struct filler *f, const struct pipe_schedule *s,
                        const struct simulation *run)
{
    bool good = true;
    f->n_devices = s->n_devices;
    for (int k = 0; k < f->p->n_frozen; k++)
        f->layers += f->p->frozen[k].n;
    f->layer = mem_try_array((size_t)f->layers, sizeof *f->layer);
    f->waiting = mem_try_array((size_t)f->layers + 1, sizeof *f->waiting);
    for (int k = 0, n = 0; k < f->p->n_frozen && f->layer; k++)
        for (int l = 0; l < f->p->frozen[k].n; l++, n++) {
            f->layer[n].frozen = k;
            f->layer[n].layer = l;
        }
    for (int d = 0; d < s->n_devices; d++)
        good &= open_device(f, d, &s->lists[d], &run->traces[d]);
    return good && f->layer && f->waiting;
}

/* The seconds of all frozen work on device d alone, in its usual groups. */
static double work_of(const struct filler *f, int d)
{
    const int group = f->opt->group < f->opt->samples ? f->opt->group : f->opt->samples;
    double sum = 0;
    for (int l = 0; l < f->layers; l++)
        sum += layer_seconds(f, d, l, group);
    return sum * ((f->opt->samples + group - 1) / group);
}

/* Makes the instructions for the quotas; work after STEP runs in the largest possible groups. */
static void emit(struct filler *f, struct pipe_schedule *out)
{
    f->out = out;
    f->inside = 0;
    for (int d = 0; d < f->n_devices; d++)
        (void)through(f, d, f->devices[d].quota, INFINITY);
    for (int k = 0; k < f->p->n_frozen; k++)
        for (int d = 0; d < f->n_devices; d++)
            hand_over(f, d, k);
    f->out = NULL;
}

/* When the last STEP ends, which is when the pipeline itself does. */
static double step_end(const struct pipe_schedule *s, const struct simulation *run)
{
    double end = 0;
    for (int d = 0; d < s->n_devices; d++)
        for (int i = 0; i < s->lists[d].n; i++)
            if (s->lists[d].items[i].op == PIPE_STEP)
                end = fmax(end, run->traces[d].rows[i].end);
    return end;
}

/* Fills a copy of the schedule; *delayed: the share by which the pipeline became slower. */
static int fill_once(struct filler *f, const struct pipe_schedule *s, struct pipe_schedule *ret,
                     struct fill_report *report, double *delayed, struct err *err)
{
    struct simulation run;
    double low = 0, work = 0;
    for (int d = 0; d < f->n_devices; d++) {
        low = fmax(low, f->devices[d].end);
        if (!f->plan->bare[d])
            work = fmax(work, work_of(f, d));
    }
    (void)earliest(f, low, work);
    if (schedule_copy(s, ret) < 0)
        return err_set(err, -ENOMEM, "no memory for a filled schedule");
    emit(f, ret);
    int rc = f->failed ? err_set(err, -ENOMEM, "no memory for a filled schedule")
                       : simulate(f->p, f->plan, ret, &run, err);
    if (rc < 0) {
        schedule_release(ret);
        return rc;
    }
    double all = 0;
    for (int d = 0; d < ret->n_devices; d++)
        for (int i = 0; i < ret->lists[d].n; i++)
            if (ret->lists[d].items[i].op == PIPE_FROZEN)
                all += run.traces[d].rows[i].end - run.traces[d].rows[i].start;
    *delayed = report->before > 0 ? step_end(ret, &run) / report->before - 1 : 0;
    report->seconds = run.seconds;
    report->idle = run.idle;
    report->inside = all > 0 ? f->inside / all : 0;
    simulation_release(&run);
    return 0;
}

static int fill_until(struct filler *f, struct pipe_schedule *schedule, struct fill_report *report,
                      struct err *err)
{
    struct pipe_schedule out;
    int rc = 0;
    for (int i = 0;; i++) {
        double delayed = 0;
        rc = fill_once(f, schedule, &out, report, &delayed, err);
        if (rc < 0)
            return rc;
        if (delayed <= FILL_DELAY_MAX)
            break;
        schedule_release(&out);
        f->share = i < SMALLER_TRIES ? f->share * SMALLER : 0;
    }
    schedule_release(schedule);
    *schedule = out;
    return 0;
}

static int measure_prologue(const struct filler *f, const struct pipe_schedule *s,
                            struct fill_report *report, struct err *err)
{
    struct pipe_schedule alone;
    struct simulation run;
    int rc = fill_prologue(s, &alone, err);
    if (rc < 0)
        return rc;
    rc = simulate(f->p, f->plan, &alone, &run, err);
    schedule_release(&alone);
    if (rc < 0)
        return rc;
    report->prologue = run.seconds;
    simulation_release(&run);
    return 0;
}

int fill_schedule(const struct costs *p, const struct pipe_plan *plan,
                  const struct fill_options *opt, struct pipe_schedule *schedule,
                  struct fill_report *ret, struct err *err)
{
    struct filler f = {.p = p, .plan = plan, .opt = opt, .share = opt->share};
    struct fill_report report = {0};
    struct simulation run;
    int rc = simulate(p, plan, schedule, &run, err), with = 0;
    if (rc < 0)
        return rc;
    report = (struct fill_report){
        .before = run.seconds, .seconds = run.seconds, .idle_before = run.idle, .idle = run.idle};
    f.rounding = ROUNDING * run.seconds;
    if (p->n_frozen > 0) {
        rc = open_filler(&f, schedule, &run) ? 0 : err_set(err, -ENOMEM, "no memory for filling");
        for (int d = 0; d < f.n_devices && rc == 0; d++)
            with += !plan->bare[d];
        if (rc == 0 && with == 0)
            rc = err_set(err, -EINVAL, "no device has the frozen networks");
        if (rc == 0)
            rc = fill_until(&f, schedule, &report, err);
        if (rc == 0)
            rc = measure_prologue(&f, schedule, &report, err);
    }
    simulation_release(&run);
    mem_free(f.layer);
    mem_free(f.waiting);
    for (int d = 0; d < f.n_devices; d++)
        mem_free(f.devices[d].bubbles);
    if (rc == 0)
        *ret = report;
    return rc;
}

int fill_prologue(const struct pipe_schedule *filled, struct pipe_schedule *ret, struct err *err)
{
    struct pipe_schedule out = {.n_devices = filled->n_devices};
    for (int d = 0; d < filled->n_devices; d++)
        for (int i = 0; i < filled->lists[d].n; i++) {
            const struct pipe_instr *in = &filled->lists[d].items[i];
            const bool moves = in->op == PIPE_SEND || in->op == PIPE_RECV;
            if (in->op != PIPE_FROZEN && !(moves && in->what == PIPE_ENCODED))
                continue;
            if (schedule_insert(&out, d, out.lists[d].n, in) < 0) {
                schedule_release(&out);
                return err_set(err, -ENOMEM, "no memory for the schedule of the first batch");
            }
        }
    *ret = out;
    return 0;
}
