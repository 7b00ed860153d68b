#include "worker/train/plan.h"

#include "kernels/kernels.h"
#include "worker/net/experts.h"
#include "worker/pipe/costs.h"
#include "worker/train/train.h"

#define RESERVE_SHARE 16
#define RESERVE_MAX (UINT64_C(1) << 30)

void plan_room(struct device *const *devs, size_t n, struct plan_room *ret)
{
    *ret = (struct plan_room){.free = UINT64_MAX, .host = devs[0]->unified};
    ret->sharers = ret->host ? (int)n : 1;
    snprintf(ret->device, sizeof ret->device, "%s", devs[0]->name);
    for (size_t i = 0; i < n; i++) {
        uint64_t left;
        if (devs[i]->ops->memory(devs[i], &left, NULL) < 0)
            continue;
        left /= devs[i]->unified ? n : 1;
        if (left < ret->free) {
            ret->free = left;
            ret->known = true;
            snprintf(ret->device, sizeof ret->device, "%s", devs[i]->name);
        }
    }
}

uint64_t plan_room_bytes(const struct plan_room *room)
{
    if (!room->known)
        return UINT64_MAX;
    const uint64_t all = room->free + room->kept;
    const uint64_t reserve = all / RESERVE_SHARE;
    return all - (reserve < RESERVE_MAX ? reserve : RESERVE_MAX);
}

static void fill(const struct model *m, const struct train_options *opt, enum dtype dt, bool host,
                 struct plan *p)
{
    const struct net_options net = train_net_options(opt);
    const uint64_t values = weights_bytes(m, dt, true), whole = net_bytes(m, &net, dt);
    const bool taught = opt->distill && model_teaches(&m->spec);
    const uint64_t frozen = net.encoders && net_reads(m) ? net.encoders->bytes : 0;
    p->accumulate = opt->accumulate;
    p->lean = opt->lean;
    p->weights = weights_bytes(m, dt, false);
    p->gradients = values - p->weights;
    p->optimiser = trainer_bytes(m, opt, dt) - whole;
    p->activations = whole - values;
    p->teachers = taught ? experts_bytes(m, net.batch, dt) : 0;
    p->workspace = costs_workspace(host ? COSTS_HOST : COSTS_CARD, p->activations - frozen,
                                   (taught ? 2 : 1) * m->flat * sizeof(float));
    p->need = values + p->optimiser + p->activations + p->teachers + p->workspace;
}

/* The fewest micro-batches from opt->accumulate on whose need is at most room; else the most
 * possible.  The need falls with their number. */
static void find(const struct model *m, const struct train_options *opt, enum dtype dt, bool host,
                 struct plan *p)
{
    struct train_options o = *opt;
    int low = o.accumulate, high = o.batch;
    while (low < high) {
        o.accumulate = low + (high - low) / 2;
        fill(m, &o, dt, host, p);
        if (p->need <= p->room)
            high = o.accumulate;
        else
            low = o.accumulate + 1;
    }
    o.accumulate = low;
    fill(m, &o, dt, host, p);
}

/* Bytes that a step moves for lack of memory: each micro-batch adds to all gradients, and a lean
 * one writes once more what it does not keep. */
static double moved(const struct model *m, const struct train_options *opt, enum dtype dt,
                    bool host, const struct plan *p)
{
    struct train_options o = *opt;
    struct plan full;
    o.accumulate = p->accumulate;
    o.lean = false;
    fill(m, &o, dt, host, &full);
    return 2.0 * p->accumulate * (double)(p->gradients + full.activations - p->activations);
}

/* As find, and lean if that moves less, or nothing fits otherwise. */
static void choose(const struct model *m, const struct train_options *opt, enum dtype dt, bool host,
                   struct plan *p)
{
    struct train_options o = *opt;
    struct plan lean = {.room = p->room};
    find(m, opt, dt, host, p);
    if (opt->recompute || opt->split)
        return;
    o.lean = true;
    find(m, &o, dt, host, &lean);
    if (lean.need <= lean.room &&
        (p->need > p->room || moved(m, opt, dt, host, &lean) < moved(m, opt, dt, host, p)))
        *p = lean;
}

/* The same step on n of the devices that share this room: each has more of the step and the room.
 */
static void fewer(const struct model *m, const struct train_options *opt, enum dtype dt,
                  const struct plan_room *room, int n, struct plan *p)
{
    struct train_options o = *opt;
    struct plan_room more = *room;
    const uint64_t all = (uint64_t)room->sharers, some = (uint64_t)n;
    o.batch = (opt->batch * room->sharers + n - 1) / n;
    more.free = room->free * all / some;
    more.kept = room->kept * all / some;
    *p = (struct plan){.room = plan_room_bytes(&more)};
    if (o.accumulate_auto)
        find(m, &o, dt, room->host, p);
    else
        fill(m, &o, dt, room->host, p);
}

/* "; train.recompute: true needs 6.1 GiB": says what would fit, or what else can be done. */
static void advise(const struct model *m, const struct train_options *opt, enum dtype dt,
                   const struct plan_room *room, const struct plan *p, char *out, size_t size)
{
    char human[STR_HUMAN_MAX];
    struct train_options o = *opt;
    struct plan other = {.room = p->room};
    if (!o.accumulate_auto) {
        find(m, &o, dt, room->host, &other);
        if (other.need <= other.room) {
            snprintf(out, size, "train.accumulate: auto (%d parts) needs %s", other.accumulate,
                     str_human_bytes(other.need, human));
            return;
        }
    }
    for (int n = room->sharers - 1; n > 0; n--) {
        fewer(m, opt, dt, room, n, &other);
        if (other.need <= other.room) {
            snprintf(out, size, "%d of the %d devices would do with %s each", n, room->sharers,
                     str_human_bytes(other.need, human));
            return;
        }
    }
    if (!o.recompute) {
        o.recompute = true;
        other.room = p->room;
        find(m, &o, dt, room->host, &other);
        if (other.need <= other.room) {
            snprintf(out, size, "train.recompute: true%s needs %s",
                     opt->accumulate_auto ? "" : " with train.accumulate: auto",
                     str_human_bytes(other.need, human));
            return;
        }
    }
    snprintf(out, size, "no key of train helps: take a smaller model or a larger device");
}

static int refuse(const struct model *m, const struct train_options *opt, enum dtype dt,
                  const struct plan_room *room, const struct plan *p, struct err *err)
{
    char need[STR_HUMAN_MAX], have[STR_HUMAN_MAX], fixed[STR_HUMAN_MAX], grows[STR_HUMAN_MAX];
    char advice[128] = "", teacher[STR_HUMAN_MAX + 16] = "";
    if (p->teachers > 0)
        snprintf(teacher, sizeof teacher, ", %s of a teacher", str_human_bytes(p->teachers, have));
    if (!room->brief)
        advise(m, opt, dt, room, p, advice, sizeof advice);
    return err_set(err, -ENOMEM,
                   "training %.1f M parameters needs %s on %s (%s of model and optimiser, %s of a "
                   "micro-batch of %d%s), %s are free%s%s",
                   (double)m->params / 1e6, str_human_bytes(p->need, need), room->device,
                   str_human_bytes(p->weights + p->gradients + p->optimiser, fixed),
                   str_human_bytes(p->activations + p->workspace, grows),
                   (opt->batch + p->accumulate - 1) / p->accumulate, teacher,
                   str_human_bytes(p->room, have), room->brief ? "" : "; ", advice);
}

int plan_train(const struct model *m, const struct train_options *opt, enum dtype dt,
               const struct plan_room *room, struct plan *ret, struct err *err)
{
    *ret = (struct plan){.room = plan_room_bytes(room)};
    fill(m, opt, dt, room->host, ret);
    if (ret->need > ret->room && opt->accumulate_auto)
        choose(m, opt, dt, room->host, ret);
    return ret->need <= ret->room ? 0 : refuse(m, opt, dt, room, ret, err);
}

bool plan_smaller(const struct train_options *opt, int *ret_accumulate)
{
    if (!opt->accumulate_auto || opt->accumulate >= opt->batch)
        return false;
    *ret_accumulate = opt->accumulate <= opt->batch / 2 ? 2 * opt->accumulate : opt->batch;
    return true;
}
