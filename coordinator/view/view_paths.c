/* The grid's side of view.h: paths, partitions, and their figures. */
#include "common/base/base.h"
#include "coordinator/state/core.h"
#include "coordinator/view/view.h"
#include "coordinator/work/query.h"
#include "coordinator/work/shards.h"

#define LN2 0.69314718055994530942

static double bits_per_byte(const struct eval_rec *e)
{
    return e->bytes > 0 && !isnan(e->loss) ? e->loss_sum / LN2 / (double)e->bytes : (double)NAN;
}

double view_job_bits_per_byte(const struct job *j)
{
    struct eval_rec all = {.loss = NAN};
    for (uint32_t p = 0; p < j->comp.n_paths; p++)
        if (j->comp.paths[p].network == 0 && !isnan(j->paths[p].eval.loss)) {
            all.loss = 0;
            all.loss_sum += j->paths[p].eval.loss_sum;
            all.bytes += j->paths[p].eval.bytes;
        }
    return bits_per_byte(&all);
}

/* The mean of the newest losses of the replicas that have one. */
static double path_loss(const struct job *j, uint32_t p)
{
    double sum = 0;
    unsigned n = 0;
    for (uint32_t r = 0; r < j->comp.paths[p].replicas; r++)
        if (!isnan(j->paths[p].replicas[r].loss)) {
            sum += (double)j->paths[p].replicas[r].loss;
            n++;
        }
    return n > 0 ? sum / n : (double)NAN;
}

static const char *path_state(const struct job *j, const struct path_rec *p)
{
    if (p->round >= (uint32_t)j->spec.outer.rounds || j->state == JOB_DONE)
        return "done";
    if (job_is_ended(j))
        return "stopped";
    return p->ready ? "running" : "waiting";
}

static void fill_path(const struct job *j, uint32_t n, uint64_t *modules, uint64_t *versions,
                      struct view_path *v)
{
    const struct composition_path *c = &j->comp.paths[n];
    const struct path_rec *p = &j->paths[n];
    struct shards_sum train = shards_sum(j, c->partition, false);
    bool known = j->generation > 0 || !j->comp.partitioned;
    *v = (struct view_path){
        .path = n,
        .network = c->network ? "router" : "main",
        .state = path_state(j, p),
        .partition = j->comp.partitioned ? c->partition : PARTITION_ALL,
        .samples = known ? train.samples : 0,
        .tokens = known ? train.tokens : 0,
        .holdout = known ? shards_sum(j, c->partition, true).samples : 0,
        .batch = c->batch,
        .round = p->round,
        .rounds = (uint32_t)j->spec.outer.rounds,
        .n_modules = composition_levels(&j->comp, n),
        .modules = modules,
        .versions = versions,
        .loss = path_loss(j, n),
        .eval_loss = (double)p->eval.loss,
        .eval_round = p->eval.round,
        .bits_per_byte = bits_per_byte(&p->eval),
        .best_loss = p->best ? (double)p->best_loss : (double)NAN,
        .best_round = p->best_round,
        .best = p->best,
        .bytes_up = p->bytes_up,
        .bytes_down = p->bytes_down,
    };
    for (uint32_t l = 0; l < v->n_modules; l++) {
        const struct module_rec *m = &j->modules[c->modules[l]];
        modules[l] = m->id;
        versions[l] = module_told(m) ? m->versions[module_told(m) - 1].version : 0;
    }
}

void view_each_path(struct coordinator *co, uint64_t job_id, view_path_fn fn, void *arg)
{
    const struct job *j = state_job(&co->state, job_id);
    uint64_t modules[COMPOSITION_LEVELS_MAX], versions[COMPOSITION_LEVELS_MAX];
    for (uint32_t p = 0; j != NULL && p < j->comp.n_paths; p++) {
        struct view_path v;
        fill_path(j, p, modules, versions, &v);
        v.replicas = query_replicas(&co->state, j, p);
        fn(arg, &v);
    }
}

void view_each_partition(struct coordinator *co, uint64_t job_id, view_partition_fn fn, void *arg)
{
    const struct job *j = state_job(&co->state, job_id);
    if (j == NULL || !j->comp.partitioned)
        return;
    uint64_t all = 0;
    for (uint32_t k = 0; k < j->comp.n_partitions; k++)
        all += j->sizes[k];
    for (uint32_t k = 0; k < j->comp.n_partitions; k++) {
        struct shards_sum train = {0}, held = {0};
        if (j->generation > 0) {
            train = shards_sum(j, k, false);
            held = shards_sum(j, k, true);
        }
        const struct view_partition v = {
            .partition = k,
            .shards = (uint32_t)train.shards,
            .samples = j->sizes[k],
            .tokens = train.tokens,
            .holdout = held.samples,
            .share = all > 0 ? (double)j->sizes[k] / (double)all : (double)NAN,
        };
        fn(arg, &v);
    }
}
