#include "worker/measure.h"

#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "common/base/args.h"
#include "common/base/base.h"
#include "common/base/buf.h"
#include "common/base/file.h"
#include "common/job/family.h"
#include "common/job/job.h"
#include "common/job/recipe.h"
#include "kernels/device/device.h"
#include "worker/net/flops.h"
#include "worker/train/plan.h"
#include "worker/train/profile.h"

/* A stub's device, and the bytes of a caption's states on it. */
struct stub {
    struct device *dev;
    size_t state_bytes;
};

struct measure {
    const char *device;
    int threads, together, joined, classes, vocab, channels, side, caption, caption_tokens;
    bool router, size;

    struct job_spec spec;
    struct island *island;
    struct model *model;
    struct train_options opt;
    struct net_encoders encoders[ISLAND_MAX]; /* stubs in place of encoders */
    struct stub stubs[ISLAND_MAX];            /* their args */
    float *zeros;                             /* shift and scale of latents */
    int32_t null_tokens[MODEL_CAPTION_TOKENS_MAX];
    struct plan plan;
    bool refused;
    struct profile_time step;
    double forward_s; /* seconds for a batch */
};

/* path "-": standard input, which has no name in many containers' /dev. */
static int read_job(const char *path, struct job_spec *ret, struct err *err)
{
    struct buf text;
    const bool piped = strcmp(path, "-") == 0;
    if (piped)
        path = "standard input";
    int rc = piped ? file_read_fd(STDIN_FILENO, path, JOB_SPEC_MAX, &text, err)
                   : file_read(path, JOB_SPEC_MAX, &text, err);
    if (rc < 0)
        return err_wrap(err, "reading the job file");
    rc = job_parse(buf_str(&text), text.len, path, ret, err);
    buf_release(&text);
    if (rc < 0 || !job_family(ret)->external)
        return rc;
    job_release(ret);
    return err_set(err, -ERR_CONFIG, "%s: what its own trainer does with a step is not known here",
                   path);
}

/* The samples of a step of this network's first path. */
static int batch_of(const struct measure *m, int *ret, struct err *err)
{
    struct composition c;
    int rc = recipe_compose(&m->spec, &c, err);
    for (uint32_t p = 0; rc == 0 && p < c.n_paths; p++)
        if (c.paths[p].network == (m->router ? 1 : 0)) {
            *ret = (int)c.paths[p].batch;
            break;
        }
    if (rc == 0)
        composition_release(&c);
    return rc;
}

static int make_model(struct measure *m, struct err *err)
{
    struct composition c;
    struct model_spec spec;
    struct model_cut cut = {.n_levels = 1};
    int rc = recipe_compose(&m->spec, &c, err);
    if (rc < 0)
        return rc;
    const struct model_facts facts = {
        .router = m->router,
        .classes = m->classes,
        .channels = m->channels,
        .side = m->side,
        .caption = m->caption,
        .caption_tokens = m->caption_tokens,
        .partitions = (int)c.n_partitions,
        .vocab = (uint32_t)m->vocab,
        .cut = &cut,
    };
    composition_release(&c);
    rc = model_spec_from_job(&m->spec, &facts, &spec, err);
    return rc < 0 ? rc : model_new(&spec, &m->model, err);
}

/* ---- stubs in place of encoders ---- */

/* Gives zeros: the memory may hold NaNs, from which no step is made. */
static int no_captions(void *arg, const int32_t *tokens, const int32_t *lengths, unsigned count,
                       void *d_states, struct err *err)
{
    const struct stub *s = arg;
    int rc = s->dev->ops->zero(s->dev, d_states, count * s->state_bytes, NULL);
    return rc < 0 ? err_set(err, rc, "clearing captions on %s failed", s->dev->name) : 0;
}

static void stub_encoders(struct measure *m)
{
    const struct model_spec *s = &m->model->spec;
    if (!m->channels && !model_captioned(s))
        return;
    m->zeros = mem_alloc_array((size_t)(m->channels + 1), sizeof *m->zeros);
    for (int i = 0; i < island_size(m->island); i++) {
        struct device *dev = island_device(m->island, i);
        const enum dtype dt = net_dtype(dev, m->opt.precision);
        m->stubs[i] = (struct stub){dev, (size_t)s->caption_tokens * (size_t)s->caption *
                                             (size_t)dtype_bytes(dt)};
        m->encoders[i] = (struct net_encoders){
            .arg = &m->stubs[i],
            .captions = model_captioned(s) ? no_captions : NULL,
            .shift = m->channels ? m->zeros : NULL,
            .scale = m->channels ? m->zeros : NULL,
            .null_tokens = m->null_tokens,
            .null_length = s->caption_tokens,
            .dt = dt,
        };
    }
    m->opt.encoders = m->encoders;
}

/* Plans as many micro-batches as memory requires. */
static int plan(struct measure *m, struct err *err)
{
    struct train_options share;
    struct plan_room room;
    const int n = island_size(m->island);
    island_share_options(&m->opt, n, &share);
    plan_room(island_devices(m->island), (size_t)n, &room);
    int rc = plan_train(m->model, &share, net_dtype(island_device(m->island, 0), m->opt.precision),
                        &room, &m->plan, err);
    m->opt.accumulate = m->plan.accumulate;
    m->opt.lean = m->plan.lean;
    return rc;
}

/* Makes the model of m->spec, and an island on which to train it. */
static int open_model(struct measure *m, struct err *err)
{
    int batch = 0, rc = batch_of(m, &batch, err);
    if (rc == 0)
        rc = make_model(m, err);
    if (rc == 0)
        rc = island_open(m->device, m->threads, &m->island, err);
    if (rc < 0)
        return rc;
    train_options_from_job(&m->spec, m->router, batch, 0, &m->opt);
    stub_encoders(m);
    return plan(m, err);
}

static int measure(struct measure *m, struct err *err)
{
    int rc = open_model(m, err);
    if (rc == 0)
        rc = profile_try(m->island, m->model, &m->opt, NULL, NULL, &m->step, err);
    m->refused = rc == -ENOMEM && m->island; /* else there is nothing to tell of */
    if (rc == 0 && profile_forward(m->island, m->model, &m->opt, &m->forward_s, err) < 0)
        m->forward_s = m->step.mean / 3; /* the whole batch at once does not fit */
    return m->refused ? 0 : rc;
}

static void train_beside(struct measure *m, pid_t parent, int began)
{
    struct err err = {0};
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    int rc = getppid() == parent ? open_model(m, &err) : -ESRCH;
    while (rc == 0) {
        rc = profile_try(m->island, m->model, &m->opt, NULL, NULL, &m->step, &err);
        if (rc == 0 && began >= 0)
            rc = write(began, "", 1) == 1 ? close(began) : -EIO;
        began = -1;
    }
    _exit(0);
}

/* Starts other workers that train on this machine until this one has measured: each is a process,
 * made before there are threads.  Returns when all of them train; one that cannot leaves the
 * machine to the others. */
static int join_others(struct measure *m, struct err *err)
{
    const pid_t parent = getpid();
    int began[2], rc = 0;
    if (pipe2(began, O_CLOEXEC) < 0)
        return err_errno(err, "making a pipe");
    for (int i = 1; i < m->together && rc == 0; i++) {
        const pid_t child = fork();
        if (child == 0) {
            struct measure mine = *m;
            close(began[0]);
            train_beside(&mine, parent, began[1]);
        }
        rc = child < 0 ? err_errno(err, "starting %d processes", m->together) : 0;
    }
    close(began[1]);
    for (char byte; rc == 0 && read(began[0], &byte, 1) == 1; m->joined++)
        ;
    close(began[0]);
    return rc;
}

static void say(const struct measure *m, const struct err *err)
{
    char device[256];
    island_text(m->island, device, sizeof device);
    json_t *o =
        json_pack("{s:s,s:i,s:i,s:I,s:i,s:i,s:I,s:I}", "device", device, "cards", device_cards(),
                  "together", m->joined + 1, "parameters", (json_int_t)m->model->params, "batch",
                  m->opt.batch, "micro_batches", m->opt.accumulate, "memory_bytes",
                  (json_int_t)m->plan.need, "room_bytes", (json_int_t)m->plan.room);
    if (m->refused)
        json_object_set_new(o, "refused", json_string(err->msg));
    else
        json_object_update_new(o, json_pack("{s:f,s:f,s:f}", "step_s", m->step.mean, "forward_s",
                                            m->forward_s / m->opt.batch, "flops",
                                            3 * flops_forward(m->model, (uint64_t)m->opt.batch,
                                                              (uint64_t)m->model->spec.context)));
    (void)json_dumpf(o, stdout, JSON_COMPACT);
    (void)putchar('\n');
    json_decref(o);
}

static void release(struct measure *m)
{
    island_close(m->island);
    model_free(m->model);
    mem_free(m->zeros);
    job_release(&m->spec);
}

/* Measures in a temporary folder. */
static int profile(struct measure *m, struct costs *ret, struct err *err)
{
    char dir[] = "/tmp/skerry-plan-XXXXXX";
    struct plan_room room;
    plan_room(island_devices(m->island), (size_t)island_size(m->island), &room);
    if (!mkdtemp(dir))
        return err_errno(err, "making a folder in /tmp");
    m->opt.fill = false;
    const int rc = profile_get(m->island, m->model, &m->opt, plan_room_bytes(&room), dir, ret, err);
    (void)file_remove_tree(dir, NULL);
    return rc;
}

int measure_costs(const char *job, const char *device, int threads, struct costs *ret,
                  struct err *err)
{
    struct measure *m = mem_alloc(sizeof *m);
    *m = (struct measure){
        .device = device, .threads = threads, .classes = 1, .vocab = 257, .together = 1};
    int rc = read_job(job, &m->spec, err);
    if (rc == 0 && (job_has_latents(&m->spec) || job_has_captions(&m->spec)))
        rc =
            err_set(err, -ERR_CONFIG,
                    "%s: what its encoders make and cost is not known here: give --profile, which "
                    "a worker that trains it leaves in its work directory (state-*/profile-*.json)",
                    job);
    if (rc == 0)
        rc = open_model(m, err);
    if (rc == -ENOMEM && m->island)
        rc = 0; /* without costs it is whole on each device; the plan will see whether that fits */
    if (rc == 0 && island_size(m->island) == 1)
        rc = err_set(err, -ERR_CONFIG,
                     "--device %s is one device, and there is nothing to plan: give several, as in "
                     "cpu,cpu or cuda:all, or --profile",
                     device);
    if (rc == 0)
        rc = profile(m, ret, err);
    release(m);
    mem_free(m);
    return rc;
}

int measure_main(int argc, char **argv)
{
    static struct measure m = {.device = "auto", .vocab = 257, .together = 1};
    const struct args_flag flags[] = {
        {"device", 'd', ARGS_STR, &m.device, "auto|cpu|cuda:N,...", "where to compute"},
        {"threads", 't', ARGS_INT, &m.threads, "N", "CPU threads (0: all)", .max = 1024},
        {"together", 0, ARGS_INT, &m.together, "N", "as many compute here at the same time",
         .min = 1, .max = 64},
        {"router", 0, ARGS_BOOL, &m.router, NULL, "the job's router, in place of its model"},
        {"size", 0, ARGS_BOOL, &m.size, NULL, "the parameters alone, without a step"},
        {"classes", 0, ARGS_INT, &m.classes, "N", "of the data", .max = MODEL_CLASSES_MAX},
        {"vocab", 0, ARGS_INT, &m.vocab, "N", "of the data", .min = 2, .max = MODEL_VOCAB_MAX},
        {"channels", 0, ARGS_INT, &m.channels, "N", "of latents (0: pixels)",
         .max = MODEL_CHANNELS_MAX},
        {"side", 0, ARGS_INT, &m.side, "N", "of latents", .max = 1024},
        {"caption", 0, ARGS_INT, &m.caption, "N", "channels of a caption (0: there are none)",
         .max = MODEL_CAPTION_MAX},
        {"caption-tokens", 0, ARGS_INT, &m.caption_tokens, "N", "of a caption",
         .max = MODEL_CAPTION_TOKENS_MAX},
        {0},
    };
    struct args args = {
        .program = "workerd measure",
        .usage = "JOB|- [--device auto|cpu|cuda:N,...] [--threads N]",
        .about = "Prints what this machine does with a job file, as JSON: parameters, memory, and "
                 "the seconds of a step, measured without the job's data and encoders, whose "
                 "figures the flags give.",
        .flags = flags,
        .rest_min = 1,
        .rest_max = 1,
    };
    struct err err = {0};
    int rc = args_parse(&args, argc, argv, &err);
    if (rc)
        return args_exit(&args, rc, &err);
    rc = read_job(args.rest[0], &m.spec, &err);
    if (rc == 0 && !m.size)
        rc = join_others(&m, &err);
    if (rc == 0)
        rc = m.size ? make_model(&m, &err) : measure(&m, &err);
    if (rc == 0 && m.size)
        (void)printf("{\"parameters\":%" PRIu64 "}\n", (uint64_t)m.model->params);
    else if (rc == 0)
        say(&m, &err);
    else
        (void)fprintf(stderr, "workerd: %s\n", err.msg);
    release(&m);
    return rc < 0;
}
