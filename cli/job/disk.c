#include "cli/job/disk.h"

#include "cli/job/predict.h"

/* As the daemons have them, whose headers are not ours. */
#define VERSIONS_KEPT 4
#define VERSIONS_KEPT_MAX 32
#define STATES_KEPT 2        /* of the outer optimiser */
#define STEPS_AT_ONCE 4      /* outer steps of a job */
#define SAVED_S 10           /* shorter phases write no checkpoints */
#define F32 4ull             /* bytes of a parameter */
#define CHECKPOINT (3 * F32) /* weights, and Adam's two moments */

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t most(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* Parameters of all modules of a network, whose blocks are taken for alike. */
static uint64_t of_modules(const struct composition_network *n, uint64_t parameters)
{
    uint64_t blocks = 0, copies = 0;
    for (uint32_t l = 0; l < n->n_levels; l++) {
        blocks += n->levels[l].n_blocks;
        copies += (uint64_t)n->levels[l].n_blocks * n->levels[l].modules;
    }
    return blocks ? (uint64_t)((double)parameters * (double)copies / (double)blocks) : parameters;
}

struct sums {
    uint64_t modules;             /* parameters of all of them */
    uint64_t paths, phases;       /* parameters of all paths, of all phases of a round */
    uint64_t largest;             /* parameters of the largest path */
    uint64_t replicas;            /* phases of a round */
    uint64_t up, snapshots, down; /* bytes of a round's contributions and snapshots; of deltas */
};

static uint64_t workers_of(const struct composition *c, const struct disk_options *opt)
{
    return opt->workers > 0 ? (uint64_t)opt->workers : predict_workers(c);
}

static void add_up(const struct job_spec *s, const struct composition *c,
                   const struct disk_options *opt, struct sums *ret)
{
    for (int i = 0; i < COMPOSITION_NETWORKS; i++)
        if (c->networks[i].n_levels > 0)
            ret->modules += of_modules(&c->networks[i], opt->parameters[i]);
    for (uint32_t p = 0; p < c->n_paths; p++) {
        const uint64_t n = opt->parameters[c->paths[p].network];
        const uint64_t k = predict_replicas(c, p, workers_of(c, opt));
        const double apart = job_snapshot_s(s, n);
        const bool sends =
            opt->phase_s == 0 ? apart > 0 : predict_snapshots(opt->phase_s, apart, 0) > 0;
        ret->paths += n;
        ret->phases += k * n;
        ret->replicas += k;
        ret->largest = most(ret->largest, n);
        ret->up += k * codec_bytes((enum codec)s->wire.up, n);
        ret->snapshots += sends ? k * codec_bytes(codec_of_part((enum codec)s->wire.up), n) : 0;
    }
    ret->down = codec_bytes((enum codec)s->wire.down, ret->modules);
}

/* The most versions that are on record. */
static uint64_t versions(const struct job_spec *s, const struct sums *sum)
{
    const uint64_t want = s->outer.async ? most(2 * sum->replicas, VERSIONS_KEPT) : VERSIONS_KEPT;
    return least(want, VERSIONS_KEPT_MAX);
}

/* What a worker keeps at most. */
static uint64_t latents_kept(const struct job_spec *s, const struct disk_options *opt)
{
    const uint64_t room = (uint64_t)s->encoders.cache << 20;
    return opt->latents_bytes > 0 ? least(room, opt->latents_bytes) : room;
}

static uint64_t at_worker(const struct job_spec *s, const struct composition *c,
                          const struct disk_options *opt, const struct sums *sum)
{
    const uint64_t n = sum->largest, workers = workers_of(c, opt);
    /* Where workers have several replicas, these move between them, and files stay four rounds. */
    const uint64_t each = (sum->replicas + workers - 1) / workers;
    const uint64_t replicas = each > 1 ? least(2 * each, sum->replicas) : 1;
    const bool saves = opt->phase_s == 0 || opt->phase_s > SAVED_S;
    const uint64_t residual = s->wire.up == CODEC_F32 ? 0 : F32 * n;
    const uint64_t up = codec_bytes((enum codec)s->wire.up, n);
    const uint64_t down = codec_bytes((enum codec)s->wire.down, n);
    /* The checkpoint and the residual of a phase's end, those of the phase before, and within. */
    uint64_t bytes = replicas * (2 * CHECKPOINT * n + 2 * residual + saves * CHECKPOINT * n);
    bytes += 2 * F32 * n + F32 * n + up + down; /* a version and the next, and an average */
    if (s->outer.where == JOB_WHERE_WORKER)     /* what it folds, and what that makes */
        bytes += 2 * F32 * n + 4 * F32 * n + sum->up / c->n_paths;
    if (job_has_latents(s) && s->encoders.run == JOB_ENCODE_WORKER)
        bytes += latents_kept(s, opt);
    return bytes + (uint64_t)(opt->phase_share * (double)opt->shard_bytes) + opt->files_bytes;
}

void disk_predict(const struct job_spec *s, const struct composition *c,
                  const struct disk_options *opt, struct disk_need *ret)
{
    struct sums sum = {0};
    add_up(s, c, opt, &sum);
    /* An async job folds each contribution into a version. */
    const uint64_t last = (uint64_t)s->outer.rounds * (s->outer.async ? sum.replicas : 1);
    const uint64_t all = sum.modules, kept = versions(s, &sum);
    const uint64_t state = (s->outer.async ? 3 : 2) * F32 * all; /* target, momentum, buffer */
    const uint64_t best = s->recipe.early_stop ? F32 * sum.paths : 0;
    const uint64_t moments = s->recipe.moments == JOB_MOMENTS_TRAVEL ? 2 * F32 * sum.phases : 0;
    const bool may = job_may_keep_latents(s), once = s->encoders.run == JOB_ENCODE_JOB;
    const uint64_t latents = job_has_latents(s) && once ? opt->latents_bytes : 0;
    const uint64_t uploaded = opt->shard_bytes + opt->files_bytes + latents;
    const uint64_t made = (uint64_t)((double)(2 * F32 * all + state + sum.down) *
                                     (double)least(c->n_modules, STEPS_AT_ONCE) / c->n_modules);
    /* While the last version is made; version 0 has whole files alone. */
    const uint64_t states = least(last - 1, STATES_KEPT) * state;
    const uint64_t versions = least(last, kept) * F32 * all + least(last - 1, kept) * sum.down +
                              least(last - 1, VERSIONS_KEPT) * F32 * all;
    /* The newest step's contributions, and those of the round under way: in it, each phase has a
     * snapshot and another on its way; at its end contributions, and a step is made of them. */
    const uint64_t before = last > 1 ? sum.up : 0;
    const uint64_t round = most(2 * sum.snapshots, sum.up + made);
    *ret = (struct disk_need){
        .outer = states + made,
        .peak = uploaded + versions + states + before + round + 2 * best + 2 * moments,
        .end = uploaded + least(last + 1, VERSIONS_KEPT) * F32 * all + F32 * all +
               least(last, kept) * sum.down + best,
        .worker = at_worker(s, c, opt, &sum),
        .latents = may ? latents_kept(s, opt) : 0,
        .made = may ? opt->latents_bytes : 0,
    };
}

void disk_show(const struct disk_need *need, FILE *out)
{
    char peak[STR_HUMAN_MAX], outer[STR_HUMAN_MAX], end[STR_HUMAN_MAX], worker[STR_HUMAN_MAX];
    char room[STR_HUMAN_MAX], made[STR_HUMAN_MAX], latents[2 * STR_HUMAN_MAX + 64] = "";
    if (need->made > 0)
        (void)snprintf(latents, sizeof latents,
                       ";\n          latents: %s at the coordinator, or at most %s at a worker",
                       str_human_bytes(need->made, made), str_human_bytes(need->latents, room));
    else if (need->latents > 0)
        (void)snprintf(latents, sizeof latents, ", and latents at most %s",
                       str_human_bytes(need->latents, room));
    (void)fprintf(
        out,
        "disk      coordinator: %s at an outer step (%s if blobs are in an object store), "
        "%s at the end;\n          a worker: %s, and its cache takes more while there "
        "is room%s\n",
        str_human_bytes(need->peak, peak), str_human_bytes(need->outer, outer),
        str_human_bytes(need->end, end), str_human_bytes(need->worker, worker), latents);
}
