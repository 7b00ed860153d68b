/* workerd: joins a coordinator and does its tasks.  Opens the work directory, the devices and the
 * connection, runs the loop, and says by its exit code why it ended (see --help).
 *
 * A device that fails is tried again by a new process in this one's place (restart.h). */
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "common/base/base.h"
#include "common/base/args.h"
#include "common/base/clock.h"
#include "common/base/cores.h"
#include "common/base/file.h"
#include "common/base/hash.h"
#include "common/data/image.h"
#include "common/base/log.h"
#include "common/net/loop.h"
#include "common/net/http/rate.h"
#include "common/net/token_source.h"
#include "common/net/http/transfer.h"
#include "kernels/device/device.h"
#include "worker/agent.h"
#include "worker/engine/engine.h"
#include "worker/link/share.h"
#include "worker/measure.h"
#include "worker/order/cache.h"
#include "worker/order/modules.h"
#include "worker/restart.h"
#include "worker/show_plan.h"
#include "worker/spot.h"
#include "worker/workdir.h"

#define THREADS_MAX 1024
#define TOKEN_FILE "SKERRY_TOKEN_FILE" /* set for the next process: a file that is gone */
#define IMAGE_CACHE_BYTES (256u << 20)
#define CACHE_MIN_BYTES (256u << 20)
#define PRICE_MAX 1e6            /* see JoinRequest.price_per_hour */
#define HUNG_MS (10 * 60 * 1000) /* a step takes less, and so does the end of a trainer */
#define LEAVE_END_MS 2000        /* of --grace: for the good-bye, and to end */

enum exit_code { EXIT_LEFT, EXIT_HERE, EXIT_REFUSED = 3, EXIT_DEVICE, EXIT_NOTICE };

struct options {
    const char *join, *also, *device, *work_dir, *name, *log_level, *bandwidth;
    uint64_t threads, cache_limit, bytes_per_s, grace_ms;
    double throttle;
    const char *models;
    bool allow_trainers;
    uint64_t trainer_memory;
    const char *plan, *profile;
    const char *spot, *spot_at;
    const char *share, *share_at;
    uint64_t max_source;
    const char *price;
    double dollars; /* per hour */
    bool private_sources;
};

struct daemon {
    struct options opt;
    struct token token;
    struct workdir dir;
    struct cache *cache;
    struct modules *modules;
    struct engine *engine;
    struct loop *loop;
    struct xfer *xfer;
    struct share *share;
    struct agent *agent;
    struct spot *spot;
    uint64_t started_ns, memory_bytes;
    unsigned threads;
    char name[65], device[129];
    char opened[32]; /* the name of its (first) device */
    int exit_code;
    bool asked;   /* a signal has asked it to leave */
    bool noticed; /* --spot has, and nothing before */
    bool images;  /* the image library is initialised */
    bool broken;  /* the device is broken: only another process can use it */
    bool hangs;   /* a thread will never end */
};

/* ---- command line ---- */

/* "0.9", "0.9/h", "$0.9/h" */
static int price_parse(const char *text, double *ret)
{
    char *end;
    errno = 0;
    const double x = strtod(text + (text[0] == '$'), &end);
    if (end == text || errno != 0 || (*end != '\0' && strcmp(end, "/h") != 0) || !(x > 0) ||
        x > PRICE_MAX)
        return -EINVAL;
    *ret = x;
    return 0;
}

static int check_options(struct options *o, struct err *err)
{
    enum log_level level;
    if (!o->join && !o->plan)
        return err_set(err, -EINVAL,
                       "--join is missing: @FILE with a worker token of the coordinator");
    if (o->profile && !o->plan)
        return err_set(err, -EINVAL, "--profile is for --plan: a worker measures its own");
    if (log_level_parse(o->log_level, &level) < 0)
        return err_set(err, -EINVAL, "--log-level %s: expected debug, info, warn or error",
                       o->log_level);
    if (o->bandwidth && rate_parse(o->bandwidth, &o->bytes_per_s, err) < 0)
        return err_wrap(err, "--max-bandwidth");
    if (o->price && price_parse(o->price, &o->dollars) < 0)
        return err_set(
            err, -EINVAL,
            "--price %s: expected dollars an hour, such as 0.9/h, more than 0 and at most "
            "%.0f; without it the machine counts as free",
            o->price, PRICE_MAX);
    if (o->share_at && !o->share)
        return err_set(err, -EINVAL, "--share-at is for --share, which names the site");
    if (o->models && !file_is_dir(o->models))
        return err_set(err, -EINVAL, "--models %s: expected a folder", o->models);
    log_set_level(level);
    return 0;
}

static const char exit_codes[] =
    "exit status:\n"
    "  0  left on request (SIGTERM, SIGINT, drained); a SIGINT after that ends\n"
    "     it at once, without a last snapshot\n"
    "  1  cannot run here (work dir, disk, memory)\n"
    "  2  wrong command line\n"
    "  3  refused by the coordinator (wrong or revoked token or key)\n"
    "  4  there is no such device, or it failed, and 3 restarts in 10 minutes\n"
    "     (in 3 hours where it hangs) did not bring it back\n"
    "  5  left after a notice of --spot, and nobody has drained it: start it again\n"
    "     if the machine stays";

static const struct options defaults = {.device = "auto",
                                        .log_level = "info",
                                        .throttle = 1,
                                        .grace_ms = 10000,
                                        .max_source = 64000000000,
                                        .spot_at = SPOT_METADATA};

static int parse(struct options *o, int argc, char **argv, struct err *err)
{
    *o = defaults;
    const struct args_flag flags[] = {
        {"join", 'j', ARGS_STR, &o->join, "@FILE|-|TOKEN", "a worker token, in a file or on stdin"},
        {"also", 0, ARGS_STR, &o->also, "HOST[:RPC[:HTTP]],...",
         "more addresses of the coordinator, tried after the token's (ports: the token's)"},
        {"device", 'd', ARGS_STR, &o->device, "auto|cpu|cuda:N,...",
         "devices to compute on; several: cuda:0,cuda:1, cuda:all, or CPUs by threads, "
         "cpu:3,cpu:1"},
        {"threads", 't', ARGS_U64, &o->threads, "N",
         "CPU threads (0: all that this process may use)", .max = THREADS_MAX},
        {"work-dir", 'w', ARGS_STR, &o->work_dir, "DIR",
         "cache, checkpoints and identity (default: the first free ~/.cache/skerry/worker-N)"},
        {"cache-limit", 0, ARGS_BYTES, &o->cache_limit, "SIZE",
         "most bytes of blobs to keep (0: 90% of the free disk)"},
        {"max-bandwidth", 0, ARGS_STR, &o->bandwidth, "RATE",
         "limit on file transfers, each way, such as 20Mbit (default: none)"},
        {"models", 0, ARGS_STR, &o->models, "DIR",
         "local folder where a job's frozen encoders are looked for first"},
        {"max-source", 0, ARGS_BYTES, &o->max_source, "SIZE",
         "largest archive to fetch for a job's data.url", .min = 1, .max = 1ull << 50},
        {"allow-private-sources", 0, ARGS_BOOL, &o->private_sources, NULL,
         "fetch a job's data.url also from private and local addresses: anybody who may submit "
         "jobs can then reach what this machine reaches"},
        {"spot", 0, ARGS_STR, &o->spot, "auto|aws|gcp|azure|PATH",
         "save the phase and leave when the cloud's metadata say that this machine is taken back, "
         "or when the program PATH ends with status 0 or the file PATH appears"},
        {"spot-metadata", 0, ARGS_STR, &o->spot_at, "URL", "metadata service for --spot"},
        {"grace", 0, ARGS_DURATION_MS, &o->grace_ms, "TIME",
         "time from SIGTERM to SIGKILL: a last snapshot may take all but 2 s", .max = 86400000},
        {"share", 0, ARGS_STR, &o->share, "SITE", "share downloads with workers of this site"},
        {"share-at", 0, ARGS_STR, &o->share_at, "HOST[:PORT]", "this machine's address for them"},
        {"allow-trainers", 0, ARGS_BOOL, &o->allow_trainers, NULL,
         "run trainers, the jobs' own programs: anybody who may submit jobs can then run commands "
         "here as this user"},
        {"trainer-memory", 0, ARGS_BYTES, &o->trainer_memory, "SIZE", "most memory of a trainer"},
        {"throttle", 0, ARGS_DOUBLE, &o->throttle, "N",
         "make each step take N times as long, to spare the machine or simulate a slow one",
         .min = 1, .max = 1000},
        {"price", 0, ARGS_STR, &o->price, "DOLLARS/h",
         "what this machine costs, such as 0.9/h, for `skerry cost` and budgets"},
        {"name", 'n', ARGS_STR, &o->name, "NAME", "shown to people (default: the host's name)"},
        {"plan", 0, ARGS_STR, &o->plan, "JOB",
         "print how an island would train this job file, and exit: the one of --device, measured "
         "now, or of --profile"},
        {"profile", 0, ARGS_STR, &o->profile, "FILE",
         "with --plan: file of the layers' costs on the island's devices"},
        {"log-level", 0, ARGS_STR, &o->log_level, "LEVEL", "debug, info, warn or error"},
        {0},
    };
    struct args args = {
        .program = "workerd",
        .usage = "--join @FILE | measure JOB | --plan JOB [--profile FILE] [FLAGS]",
        .about = "Joins a coordinator and trains its jobs until it is stopped.",
        .after = exit_codes,
        .flags = flags,
    };
    int rc = args_parse(&args, argc, argv, err);
    if (rc == 0)
        rc = check_options(o, err);
    return rc == 0 ? -1 : args_exit(&args, rc, err);
}

static int read_token(struct daemon *d, struct err *err)
{
    int rc = token_source_read(d->opt.join, &d->token, err);
    if (rc < 0)
        return err_wrap(err, "--join");
    token_source_wipe(d->opt.join);
    if (d->token.role != TOKEN_ROLE_WORKER)
        return err_set(err, -ERR_AUTH,
                       "--join: this is the token of a user, in the role '%s'; a worker needs "
                       "one of workers, such as worker.token in the coordinator's data directory",
                       token_role_name(d->token.role));
    return 0;
}

static bool is_file(const char *join)
{
    return join[0] == '@' || file_exists(join);
}

/* A token that was read, wiped or removed cannot be read again: the next process gets it on its
 * standard input.  A token file that is still there is read again. */
static int pass_token(const struct daemon *d, char **args, int argc, struct err *err)
{
    char text[TOKEN_STRING_MAX];
    int fds[2];
    const char *given = d->opt.join;
    if (is_file(given) && access(given + (given[0] == '@'), R_OK) == 0)
        return 0;
    if (is_file(given)) /* a new address may be written there later */
        (void)setenv(TOKEN_FILE, given, 1);
    int rc = token_format(&d->token, text, err);
    if (rc < 0)
        return rc;
    if (pipe(fds) < 0 || write(fds[1], text, strlen(text)) != (ssize_t)strlen(text) ||
        dup2(fds[0], STDIN_FILENO) < 0)
        return err_errno(err, "the token cannot be handed on");
    (void)close(fds[0]);
    (void)close(fds[1]);
    for (int i = 1; i < argc; i++) {
        if (args[i] == given)
            args[i] = (char *)(uintptr_t) "-";
        else if (str_starts(args[i], "--join=") && args[i] + strlen("--join=") == given)
            args[i] = (char *)(uintptr_t) "--join=-";
        else if (str_starts(args[i], "-j") && args[i] + strlen("-j") == given)
            args[i] = (char *)(uintptr_t) "-j-";
    }
    return 0;
}

/* Replaces this process by a new one with the same device: `auto` must not fall back to the CPU if
 * the card does not come back.  Returns only on failure. */
static void start_again(const struct daemon *d, int argc, char **argv)
{
    struct err err = {0};
    char **args = mem_alloc_array((size_t)argc + 3, sizeof(*args));
    memcpy(args, argv, (size_t)argc * sizeof(*args));
    if (strcmp(d->opt.device, "auto") == 0) {
        args[argc] = (char *)(uintptr_t) "--device";
        args[argc + 1] = (char *)(uintptr_t)d->opened;
    }
    if (pass_token(d, args, argc, &err) == 0)
        (void)restart_self(args, d->hangs, &err);
    log_error("workerd", "%s", err.msg);
    mem_free(args);
}

/* ---- start ---- */

static void describe_host(struct daemon *d)
{
    d->memory_bytes = device_host_memory();
    d->threads = d->opt.threads ? (unsigned)d->opt.threads : (unsigned)cores_usable();
    char host[65] = "worker";
    (void)gethostname(host, sizeof(host) - 1); /* on failure it stays "worker" */
    str_copy(d->name, sizeof(d->name), d->opt.name ? d->opt.name : host);
}

static int open_disk(struct daemon *d, struct err *err)
{
    int rc = workdir_open(d->opt.work_dir, d->token.cluster_id, &d->dir, err);
    if (rc < 0)
        return rc == -EBUSY ? rc : err_wrap(err, "the work dir cannot be used (--work-dir)");
    uint64_t limit = d->opt.cache_limit, free_bytes;
    if ((rc = cache_open(d->dir.blobs, limit, &d->cache, err)) < 0)
        return rc;
    if (limit == 0) { /* cached bytes count as free, so that a restart does not shrink the cache */
        if ((rc = file_disk_free(d->dir.dir, &free_bytes, err)) < 0)
            return rc;
        limit = (free_bytes + cache_used_bytes(d->cache)) / 10 * 9;
        limit = limit < CACHE_MIN_BYTES ? CACHE_MIN_BYTES : limit;
        if ((rc = cache_set_limit(d->cache, limit, err)) < 0)
            return rc;
    }
    d->modules = modules_open(d->dir.held, d->cache);
    return 0;
}

/* On a machine of several cards `auto` is one of them, since others may be somebody else's. */
static void say_idle_cards(const struct daemon *d)
{
    const int n = strcmp(d->opt.device, "auto") == 0 ? device_cards() : 0;
    if (n > 1)
        log_warn("workerd",
                 "it computes on one of the %d GPUs that it sees, %s; with --device cuda:all it "
                 "would on all of them",
                 n, d->opened);
}

static int open_engine(struct daemon *d, struct err *err)
{
    struct engine_options opt = {
        .device = d->opt.device,
        .again = restart_happened(),
        .threads = (int)d->threads,
        .decode_threads = d->threads >= 8 ? d->threads / 4 : 1,
        .memory_bytes = d->memory_bytes / 2,
        .image_cache_bytes = IMAGE_CACHE_BYTES,
        .throttle = d->opt.throttle,
        .models = d->opt.models,
        .allow_trainers = d->opt.allow_trainers,
        .trainer_memory = d->opt.trainer_memory,
        .state_dir = d->dir.state,
        .cache = d->cache,
        .modules = d->modules,
        .started_ns = d->started_ns,
    };
    int rc = engine_open(&opt, &d->engine, err);
    if (rc < 0)
        return rc;
    engine_device_text(d->engine, d->device, sizeof(d->device));
    str_copy(d->opened, sizeof(d->opened), d->engine->dev->name);
    say_idle_cards(d);
    return 0;
}

static void on_end(void *arg, int code, const struct err *err)
{
    struct daemon *d = arg;
    if (code < 0) {
        d->broken = code == -ERR_DEVICE;
        d->exit_code = d->broken ? EXIT_DEVICE : code == -EIO ? EXIT_HERE : EXIT_REFUSED;
        log_error("workerd", "%s", err ? err->msg : err_text(code));
    } else if (d->noticed && !d->asked && code == 0) {
        d->exit_code = EXIT_NOTICE;
    }
    loop_stop(d->loop);
}

static void on_signal(void *arg, int signo)
{
    struct daemon *d = arg;
    if (signo == SIGHUP)
        return;
    if (d->asked) { /* schedulers may send SIGTERM more than once */
        if (signo == SIGINT && !d->opt.allow_trainers)
            _exit(EXIT_LEFT); /* a step and its checkpoint may take minutes */
        if (signo == SIGINT)
            loop_stop(d->loop); /* which also ends a trainer's processes */
        return;
    }
    d->asked = true;
    const uint64_t ms = d->opt.grace_ms;
    agent_leave(d->agent, signo == SIGTERM ? "terminated" : "interrupted",
                ms > LEAVE_END_MS ? (uint32_t)ms - LEAVE_END_MS : 0);
}

static void on_spot(void *arg, const struct spot_notice *n)
{
    struct daemon *d = arg;
    if (n->leave)
        d->noticed |= agent_notice(d->agent, n->reason, n->ms);
    else
        agent_save(d->agent, n->reason);
}

static int open_share(struct daemon *d, struct err *err)
{
    const struct share_options o = {.loop = d->loop,
                                    .cache = d->cache,
                                    .keys = d->dir.keys,
                                    .site = d->opt.share,
                                    .at = d->opt.share_at,
                                    .coordinator = d->token.host};
    const int rc = d->opt.share ? share_open(&o, &d->share, err) : 0;
    if (rc == -EINVAL)
        d->exit_code = ARGS_EXIT_USAGE;
    return rc;
}

/* Builds with faults may say another time in SKERRY_FAULT_HUNG_MS. */
static uint32_t hung_ms(void)
{
#ifdef SKERRY_FAULTS
    const char *text = getenv("SKERRY_FAULT_HUNG_MS");
    const int ms = text ? atoi(text) : 0;
    (void)unsetenv("SKERRY_FAULT_HUNG_MS"); /* not for the next process */
    if (ms > 0)
        return (uint32_t)ms;
#endif
    return HUNG_MS;
}

static int open_agent(struct daemon *d, struct err *err)
{
    struct xfer_options xfer = {.user_agent = "workerd/" SKERRY_VERSION,
                                .up_bytes_per_s = d->opt.bytes_per_s,
                                .down_bytes_per_s = d->opt.bytes_per_s};
    int rc = loop_new(&d->loop, err);
    if (rc == 0)
        rc = loop_on_signals(d->loop, on_signal, d, err);
    if (rc == 0)
        rc = xfer_new(d->loop, &xfer, &d->xfer, err);
    if (rc == 0)
        rc = open_share(d, err);
    if (rc < 0)
        return rc;
    struct agent_options opt = {
        .env = {.loop = d->loop,
                .xfer = d->xfer,
                .cache = d->cache,
                .token = &d->token,
                .near = d->share != NULL,
                .private_sources = d->opt.private_sources,
                .source_max_bytes = d->opt.max_source},
        .engine = d->engine,
        .modules = d->modules,
        .tmp_dir = d->dir.tmp,
        .hung_ms = hung_ms(),
        .session = {.loop = d->loop,
                    .token = &d->token,
                    .token_file = is_file(d->opt.join) ? d->opt.join : getenv(TOKEN_FILE),
                    .also = d->opt.also,
                    .keys = d->dir.keys,
                    .name = d->name,
                    .device = d->device,
                    .memory_bytes = d->memory_bytes,
                    .allows_trainers = d->opt.allow_trainers,
                    .price = d->opt.dollars,
                    .threads = d->threads,
                    .share = d->share ? share_word(d->share) : NULL},
        .arg = d,
        .on_end = on_end,
    };
    hash_random(opt.session.instance, sizeof(opt.session.instance));
    memcpy(opt.session.identity, d->dir.identity, sizeof(opt.session.identity));
    return agent_new(&opt, &d->agent, err);
}

static int start(struct daemon *d, struct err *err)
{
    describe_host(d);
    int rc = read_token(d, err);
    if (rc < 0) {
        d->exit_code = ARGS_EXIT_USAGE;
        return rc;
    }
    d->exit_code = EXIT_HERE;
    if ((rc = image_init(err)) < 0)
        return rc;
    d->images = true;
    if ((rc = open_disk(d, err)) < 0)
        return rc;
    if ((rc = open_engine(d, err)) < 0) {
        const bool asked_wrong = rc == -EINVAL || rc == -ERR_LIMIT; /* --device cannot be met */
        d->exit_code = asked_wrong ? ARGS_EXIT_USAGE : EXIT_DEVICE;
        return rc;
    }
    if ((rc = open_agent(d, err)) < 0)
        return rc;
    if (d->opt.spot &&
        (rc = spot_open(d->loop, d->opt.spot, d->opt.spot_at, on_spot, d, &d->spot, err)) < 0) {
        d->exit_code = rc == -EINVAL ? ARGS_EXIT_USAGE : EXIT_HERE;
        return rc;
    }
    char used[STR_HUMAN_MAX], limit[STR_HUMAN_MAX];
    log_info("workerd",
             "workerd %s name=\"%s\" device=\"%s\" work_dir=%s cache=\"%s of %s\"; joining %s:%u",
             SKERRY_VERSION, d->name, d->device, d->dir.dir,
             str_human_bytes(cache_used_bytes(d->cache), used),
             str_human_bytes(cache_limit_bytes(d->cache), limit), d->token.host, d->token.rpc_port);
    d->exit_code = EXIT_LEFT;
    return 0;
}

static void stop(struct daemon *d)
{
    d->hangs = !agent_stop(d->agent);
    if (d->hangs) /* the thread may still use all that would be freed */
        return;
    spot_close(d->spot);
    agent_free(d->agent);
    share_close(d->share);
    xfer_free(d->xfer);
    if (d->loop)
        loop_free(d->loop);
    if (!d->broken) /* closing a broken device may take for ever, and the process ends anyway */
        engine_close(d->engine);
    modules_close(d->modules);
    cache_close(d->cache);
    workdir_close(&d->dir);
    if (d->images)
        image_exit();
}

/* Ends the process at once: nothing is lost before the loop handles signals, and by default a
 * signal would not even end the first process of a container. */
static void on_early_signal(int signo)
{
    _exit(EXIT_LEFT);
}

static int plan_job(const struct options *o, struct err *err)
{
    struct costs costs;
    if (o->profile)
        return show_plan(o->plan, o->profile, stdout, err);
    int rc = show_plan_check(o->plan, err);
    if (rc == 0)
        rc = measure_costs(o->plan, o->device, (int)o->threads, &costs, err);
    if (rc < 0)
        return rc;
    rc = show_plan_of(o->plan, o->device, &costs, stdout, err);
    costs_release(&costs);
    return rc;
}

int main(int argc, char **argv)
{
    static struct daemon d;
    struct err err = {0};
    file_first();
    if (argc > 1 && strcmp(argv[1], "measure") == 0)
        return measure_main(argc - 1, argv + 1);
    d.started_ns = clock_now_ns();
    /* Streams that share one of a card's queues wait for each other: it has 8 queues unless more
     * are asked for, and a pipeline's courier has up to 10 streams. */
    (void)setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    int code = parse(&d.opt, argc, argv, &err);
    if (code >= 0)
        return code;
    if (d.opt.plan) {
        if (plan_job(&d.opt, &err) == 0)
            return EXIT_LEFT;
        log_error("workerd", "%s", err.msg);
        return EXIT_HERE;
    }
    (void)signal(SIGTERM, on_early_signal);
    (void)signal(SIGINT, on_early_signal);
    int rc = start(&d, &err);
    if (d.opt.allow_trainers) /* as the same user they could otherwise trace or read this process */
        (void)prctl(PR_SET_DUMPABLE, 0);
    if (rc < 0)
        log_error("workerd", "%s", err.msg);
    else
        loop_run(d.loop);
    stop(&d);
    if (d.broken && !d.asked)
        start_again(&d, argc, argv);
    if (d.hangs) /* what a driver does in exit() may wait for the thread */
        _exit(d.exit_code);
    return d.exit_code;
}
