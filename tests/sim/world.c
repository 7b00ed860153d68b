#include "tests/sim/world.h"

#include <malloc.h>
#include <math.h>
#include <sys/stat.h>

#include "common/base/file.h"
#include "common/base/hash.h"
#include "common/base/log.h"
#include "coordinator/state/backup.h"
#include "coordinator/state/core.h"
#include "coordinator/view/view.h"
#include "coordinator/state/access.h"
#include "tests/sim/disk.h"
#include "tests/sim/host.h"
#include "tests/sim/http.h"
#include "tests/sim/net.h"
#include "tests/sim/oracle.h"
#include "tests/sim/sim.h"
#include "tests/sim/spec.h"
#include "tests/sim/store.h"
#include "tests/sim/worker.h"

#define FEW_WORKERS 6
#define WORKERS_MAX_HERE 150 /* of a crowd */
#define CROWDS 20            /* of a thousand worlds */
#define SHIPS 200            /* the same, of those with an object store */
#define JOBS_MAX_HERE 4
#define CHAOS_MS (20 * 60 * 1000)    /* of the world's time, at most */
#define CHAOS_EVENTS 2500            /* about */
#define CALM_MS (3ull * 3600 * 1000) /* in which all jobs must end */
#define DAY_MS (26ull * 3600 * 1000)
/* Until all is old: a file is as old as the first sweep's look at it, by a clock that was perhaps a
 * day ahead, and the coordinator's own may be one behind. */
#define CLEAN_DAYS 5
#define REMEMBERED 64  /* by the oracle, of everything: all that it looks at is on record */
#define CHURN_MS 10000 /* between two workers that are hurt, about */
#define REST_MS 61000  /* until all that were hurt are back */

static struct {
    char *root;
    struct coordinator *co; /* that serves; NULL: none does */
    struct worker_sim *workers[WORKERS_MAX_HERE];
    unsigned n_workers, n_jobs;
    uint64_t gap_ms;   /* between two mishaps, about */
    bool ships;        /* its coordinator keeps all in the object store */
    bool compares;     /* and has all made again that can be */
    bool divides;      /* in all of its jobs workers cut or divide the data, and one lies of it */
    bool folds;        /* all of its jobs have workers make outer steps */
    bool calm, evil;   /* evil: its last worker is, or was */
    uint8_t token[32]; /* the verifier of the one that workers join by */
    uint64_t token_id;
    bool listens;   /* to events */
    bool open;      /* others than its own workers are here: no job need go well */
    bool went_back; /* to a backup */
    struct world_figures figures;
} world;

bool world_went_back(void)
{
    return world.went_back;
}

const uint8_t *world_token(void)
{
    return world.token;
}

/* The newest token of workers that counts is the one that they have. */
static void hand_out_token(void)
{
    const struct state *s = &world.co->state;
    for (size_t i = 0; i < s->n_tokens; i++)
        if (s->tokens[i].role == TOKEN_ROLE_WORKER && s->tokens[i].revoked_unix_ms == 0) {
            memcpy(world.token, s->tokens[i].verifier, sizeof(world.token));
            world.token_id = s->tokens[i].id;
        }
}

/* ---- the coordinator --------------------------------------------------------- */

static void serves(struct coordinator *co)
{
    world.co = co;
    if (co == NULL)
        return;
    hand_out_token();
    oracle_look_closely(co);
}

static void stop(void)
{
    world.figures.stops++;
    host_stop();
}

/* Of no honest worker's outer step anything was ever in doubt. */
static void look_at_honest(void)
{
    for (unsigned i = 0; i + world.evil < world.n_workers; i++) {
        const struct worker *w = state_worker(&world.co->state, worker_sim_id(world.workers[i]));
        if (w != NULL && w->doubted_folds > 0)
            sim_fail("w%u is honest, and its outer step was doubted", i);
    }
}

/* ---- backups --------------------------------------------------------------------- */

static char *backups(void)
{
    return file_join(world.root, "backups");
}

static void back_up(void)
{
    struct backup_result made;
    struct err err = {0};
    if (world.co == NULL || disk_crashed() || world.ships)
        return;
    char *folder = backups();
    disk_elsewhere(true);
    const int rc = backup_make(disk_dir(), folder, 1, &made, &err);
    disk_elsewhere(false);
    mem_free(folder);
    if (rc == -EEXIST) /* the wall clock has been set back behind the last one */
        return;
    if (rc < 0)
        sim_fail("no backup can be made: %s", err.msg);
    sim_say("a backup of %llu files is made", (unsigned long long)made.files);
    world.figures.backups++;
}

static void restore(void)
{
    struct backup_result made;
    char *dir = disk_other();
    struct err err = {0};
    char *folder = backups();
    disk_elsewhere(true);
    if (backup_restore(folder, NULL, dir, &made, &err) < 0)
        sim_fail("a backup cannot be restored: %s", err.msg);
    disk_elsewhere(false);
    disk_move(dir, false);
    mem_free(folder);
}

/* Once in a while the machine is lost with what was on it. */
static void recover(void)
{
    if (world.ships && sim_chance(200))
        host_take_over();
    if (world.figures.backups == 0 || !sim_chance(30)) {
        disk_recover();
        return;
    }
    sim_say("another machine goes on from the last backup");
    net_lose_answers();
    http_lose_answers();
    restore();
    oracle_forget();
    world.went_back = true;
    world.figures.restored++;
}

/* After every event. */
static void look(void)
{
    if (disk_crashed()) {
        world.figures.kills += disk_lost() == DISK_KILLED;
        world.figures.power_losses += disk_lost() == DISK_POWER;
        host_crashed();
        recover();
    } else if (world.co != NULL) {
        oracle_look(world.co);
        look_at_honest();
    }
}

/* ---- what a person does -------------------------------------------------------- */

static int put_text(const char *text, uint8_t sha256[32], uint64_t *size)
{
    struct blob_id id;
    hash_sha256(text, strlen(text), id.sha256);
    memcpy(sha256, id.sha256, 32);
    *size = strlen(text);
    if (world.ships && store_is_busy(world.co->blobs, &id))
        return -EBUSY;
    return disk_upload(world.co->blobs, &id, text, strlen(text));
}

static int put_shards(bool texts, struct submit_shard *list, size_t n)
{
    char name[64];
    int rc = 0;
    for (size_t i = 0; i < n && rc == 0; i++) {
        (void)snprintf(name, sizeof(name), "shard %zu of %s", i, texts ? "text" : "images");
        rc = put_text(name, list[i].sha256, &list[i].size);
        list[i].holdout = i + 2 >= n;
        list[i].samples = list[i].holdout ? 6 : 20;
        list[i].tokens = texts ? list[i].samples * 10u : 0;
    }
    return rc;
}

static void submitted(void *arg, int rc)
{
    uint64_t *job = arg;
    if (rc == 0 && !disk_crashed()) {
        sim_say("job %llu is accepted", (unsigned long long)*job);
        if (!world.open)
            oracle_submitted(*job);
        world.figures.jobs++;
    }
    mem_free(job);
}

static void submit(const struct spec *spec)
{
    static const char *const classes[] = {"cat", "dog"};
    static const uint64_t counts[] = {20, 20};
    static const struct network_input input = {.channels = 4, .side = 8};
    const bool texts = spec->data == SPEC_TEXTS, latents = spec->data == SPEC_LATENTS;
    const bool cut = texts || latents || spec->data == SPEC_IMAGES;
    struct submit_shard shards[6] = {{.size = 0}};
    struct encoder_file vae = {.name = "config.json"};
    struct err err = {0};
    uint64_t id = 0;
    if (world.co == NULL || world.n_jobs == JOBS_MAX_HERE ||
        (cut && put_shards(texts, shards, 6) < 0) ||
        (latents && put_text("a vae", vae.blob.sha256, &vae.blob.size) < 0))
        return;
    const struct submit s = {.spec = spec->yaml,
                             .classes = classes,
                             .counts = counts,
                             .n_classes = cut && !texts ? 2 : 0,
                             .shards = shards,
                             .n_shards = cut ? 6 : 0,
                             .encoders = &vae,
                             .n_encoders = latents,
                             .input = latents ? &input : NULL,
                             .vocab = texts ? 257 : 0};
    if (view_job_submit(world.co, &s, &id, &err) < 0) {
        if (err.code != -ENOSPC && err.code != -EAGAIN && !disk_crashed())
            sim_fail("a job is refused: %s", err.msg);
        return;
    }
    world.n_jobs++;
    uint64_t *arg = mem_alloc(sizeof(*arg));
    *arg = id;
    view_when_durable(world.co, submitted, arg);
}

static void submit_some(void)
{
    submit(world.divides ? spec_divided() : spec_some(world.folds));
}

/* ---- what a person does over HTTP -------------------------------------------------- */

/* What is asked of a thing by its number. */
struct errand {
    uint64_t id;
    enum { CANCEL, REVOKE_WORKER, REVOKE_TOKEN, MAKE_TOKEN } what;
};

static void ask(const char *method, const char *target, const char *body, http_said_fn said,
                void *arg)
{
    const struct http_ask a = {method, target, world.co != NULL ? world.co->user_text : "",
                               NULL,   body,   strlen(body)};
    if (http_ask(&a, said, arg) == NULL)
        said(arg, &(struct http_said){0});
}

static void send_errand(int what, uint64_t id);

static bool is_revoked_by(const struct errand *e, uint64_t worker)
{
    const struct worker *w = world.co != NULL ? state_worker(&world.co->state, worker) : NULL;
    return (e->what == REVOKE_WORKER && worker == e->id) ||
           (e->what == REVOKE_TOKEN && w != NULL && w->token_id == e->id);
}

static void done(void *arg, const struct http_said *s)
{
    struct errand *e = arg;
    const bool acknowledged = s->status == 200 || s->status == 201;
    sim_say("errand %d of %llu: %u", (int)e->what, (unsigned long long)e->id, s->status);
    if (acknowledged && e->what == CANCEL)
        oracle_cancelled(e->id);
    if (acknowledged && (e->what == REVOKE_WORKER || e->what == REVOKE_TOKEN))
        oracle_revoked(e->what == REVOKE_WORKER, e->id);
    for (unsigned i = 0; i < world.n_workers && acknowledged; i++)
        if (is_revoked_by(e, worker_sim_id(world.workers[i])))
            worker_sim_intrude(world.workers[i]);
    const uint64_t old = world.token_id;
    if (acknowledged && world.co != NULL && (e->what == MAKE_TOKEN || e->what == REVOKE_TOKEN))
        hand_out_token();
    if (acknowledged && e->what == MAKE_TOKEN && world.token_id != old)
        send_errand(REVOKE_TOKEN, old);
    mem_free(e);
}

static void send_errand(int what, uint64_t id)
{
    static const struct {
        const char *of, *verb;
    } targets[] = {{"jobs", "cancel"}, {"workers", "revoke"}, {"tokens", "revoke"}};
    struct errand *e = mem_alloc(sizeof(*e));
    char *target = what == MAKE_TOKEN ? str_dup("/v1/tokens")
                                      : str_printf("/v1/%s/%llu/%s", targets[what].of,
                                                   (unsigned long long)id, targets[what].verb);
    e->id = id;
    e->what = what;
    ask("POST", target, what == MAKE_TOKEN ? "{\"role\": \"worker\"}" : "", done, e);
    mem_free(target);
}

static void shown(void *arg, const struct http_said *s)
{
    if (s->status == 200 && s->promises)
        oracle_shown(s->body, s->len);
}

/* Somebody looks. */
static void read_something(void)
{
    static const char *const targets[] = {"/v1/status", "/v1/jobs",    "/v1/tasks", "/v1/modules",
                                          "/v1/tokens", "/v1/workers", "/v1/log",   "/v1/jobs/1"};
    ask("GET", targets[sim_below(sizeof(targets) / sizeof(targets[0]))], "", shown, NULL);
}

/* What events tell counts like what is read. */
static void heard(void *arg, const struct http_said *s)
{
    world.listens = s->status == 200;
    const char *at = s->status == 200 ? strstr(s->body, "\ndata: ") : NULL;
    for (; at != NULL && s->promises; at = strstr(at, "\ndata: ")) {
        at += strlen("\ndata: ");
        if (strchr(at, '\n') != NULL) /* else it was cut within the piece */
            oracle_shown(at, strcspn(at, "\n"));
    }
}

static void look_on(void *arg)
{
    if (!world.listens) {
        world.listens = true;
        ask("GET", "/v1/events", "", heard, NULL);
    }
    read_something();
    if (!world.calm)
        (void)sim_in(sim_below(3000), look_on, NULL);
}

static const struct job *some_job(void)
{
    const struct state *s = &world.co->state;
    return s->n_jobs > 0 ? s->jobs[sim_below(s->n_jobs)] : NULL;
}

static void cancel(void)
{
    const struct job *j = world.co != NULL ? some_job() : NULL;
    if (j != NULL)
        send_errand(CANCEL, j->id);
}

static void revoke_something(void)
{
    if (world.co == NULL || world.co->state.n_workers == 0)
        return;
    const struct state *s = &world.co->state;
    if (sim_chance(700))
        send_errand(REVOKE_WORKER, s->workers[sim_below(s->n_workers)]->id);
    else
        send_errand(MAKE_TOKEN, 0); /* and then the old one goes */
}

/* Something, and perhaps it is not wanted any more at once. */
static void draw(void)
{
    const struct job *j = world.co != NULL ? some_job() : NULL;
    const struct draw_request ask = {.guidance = NAN, .temperature = NAN, .ema = -1};
    uint64_t task = 0;
    if (j != NULL && view_sample_request(world.co, j->id, &ask, &task, NULL) == 0 &&
        sim_chance(200))
        (void)view_task_cancel(world.co, task, NULL);
}

static void drain(void)
{
    if (world.co != NULL && world.co->state.n_workers > 0)
        (void)view_worker_drain(
            world.co, world.co->state.workers[sim_below(world.co->state.n_workers)]->id, NULL);
}

static void set_paused(bool paused)
{
    const struct job *j = world.co != NULL ? some_job() : NULL;
    if (j != NULL)
        (void)view_job_pause(world.co, j->id, paused, NULL);
}

static void adjust(void)
{
    const struct job *j = world.co != NULL ? some_job() : NULL;
    const struct view_adjust a = {.priority = (double)sim_below(3) - 1,
                                  .share = (double)sim_between(1, 3),
                                  .budget = sim_chance(300) ? 0.001 : 0};
    struct job_swarm quota;
    if (j != NULL)
        (void)view_job_adjust(world.co, j->id, &a, &quota, NULL);
}

static bool all_ended(void)
{
    for (size_t i = 0; world.co != NULL && i < world.co->state.n_jobs; i++)
        if (!job_is_ended(world.co->state.jobs[i]))
            return false;
    return world.co != NULL && world.co->state.n_open == 0;
}

/* Until all jobs have ended: each costs one of their rounds. */
static void roll_back(void *arg)
{
    for (size_t i = 0; world.co != NULL && i < world.co->state.n_jobs; i++) {
        const struct job *j = world.co->state.jobs[i];
        const uint64_t at = j->comp.n_modules > 0 ? j->modules[0].version : 0;
        if (at > 0 && sim_chance(100))
            (void)view_job_rollback(world.co, j->id, sim_chance(50) ? 0 : UINT32_MAX,
                                    at - 1 - sim_below(at < 4 ? at : 4), NULL);
    }
    if (!world.calm || !all_ended())
        (void)sim_in(sim_between(1000, 20000), roll_back, NULL);
}

static void resume_all(void)
{
    static const struct view_adjust free = {.priority = NAN, .share = NAN, .budget = 0};
    struct job_swarm quota;
    for (size_t i = 0; world.co != NULL && i < world.co->state.n_jobs; i++) {
        const struct job *j = world.co->state.jobs[i];
        (void)view_job_pause(world.co, j->id, false, NULL);
        if (j->quota.budget > 0)
            (void)view_job_adjust(world.co, j->id, &free, &quota, NULL);
    }
}

/* ---- what goes wrong ------------------------------------------------------------- */

static void start_worker(void *arg)
{
    worker_sim_start(arg);
}

static void hurt_worker(unsigned what, struct worker_sim *w)
{
    const uint64_t ms = sim_chance(200) ? sim_below(100000) : sim_below(5000);
    switch (what) {
    case 0:
        worker_sim_kill(w, sim_chance(300), sim_chance(800));
        (void)sim_in(sim_below(20000), start_worker, w);
        break;
    case 1:
        worker_sim_pause(w, ms);
        break;
    case 2:
        worker_sim_cut(w);
        break;
    case 3:
        worker_sim_block(w, sim_chance(700), sim_chance(700), ms);
        break;
    case 4:
        worker_sim_notice(w, 30000);
        (void)sim_in(sim_between(20000, 60000), start_worker, w);
        break;
    default:
        if (!worker_sim_runs(w))
            worker_sim_start(w);
        break;
    }
}

static void heal_disk(void *arg)
{
    disk_fill(false);
    disk_slow(0);
}

static void heal_store(void *arg)
{
    store_heal();
}

static void hurt_store(void)
{
    const unsigned what = (unsigned)sim_below(8);
    if (what < 3)
        host_take_over();
    else if (what < 4)
        host_cut();
    else if (what < 5)
        store_cut(0);
    else
        store_hurt(what < 7 ? 300 : 0, what < 6 ? 0 : 8000);
    if (what >= 3)
        (void)sim_in(sim_below(30000), heal_store, NULL);
}

static void hurt_coordinator(unsigned what)
{
    if (world.co == NULL || disk_crashed())
        return;
    if (what < 1) {
        disk_crash(DISK_KILLED);
    } else if (what < 3) {
        disk_crash(DISK_POWER);
    } else if (what < 5) {
        disk_arm((unsigned)sim_between(1, 30), DISK_KILLED);
    } else if (what < 10) {
        disk_arm((unsigned)sim_between(1, 30), DISK_POWER);
    } else if (what < 11) {
        stop();
    } else if (what < 12) {
        sim_stall(sim_below(40000));
    } else if (what < 13) {
        disk_fill(true);
        (void)sim_in(sim_below(20000), heal_disk, NULL);
    } else {
        disk_slow(300);
        (void)sim_in(sim_below(20000), heal_disk, NULL);
    }
}

/* A person or a time server sets it, a day either way at most, also while nothing runs. */
static void set_clock(void)
{
    static const uint64_t most_ms[] = {2000, 300000, DAY_MS};
    const uint64_t most = most_ms[sim_below(3)];
    sim_set_wall(sim_chance(200) ? 0 : (int64_t)sim_below(2 * most) - (int64_t)most);
    world.figures.clocks++;
}

static void mishap(void *arg)
{
    const unsigned what = (unsigned)sim_below(100);
    struct worker_sim *w = world.workers[sim_below(world.n_workers)];
    if (world.calm)
        return;
    if (world.ships && sim_chance(100))
        hurt_store();
    else if (what < 40)
        hurt_worker((unsigned)sim_below(6), w);
    else if (what < 85)
        hurt_coordinator((unsigned)sim_below(14));
    else if (what < 87)
        set_clock();
    else if (what < 94)
        submit_some();
    else if (what < 95)
        back_up();
    else if (what < 96)
        drain();
    else if (what < 97)
        draw();
    else if (what < 98 && sim_chance(500))
        set_paused(sim_chance(500));
    else if (what < 98)
        adjust();
    else if (what < 99)
        revoke_something();
    else
        cancel();
    (void)sim_in(sim_below(2 * world.gap_ms), mishap, NULL);
}

/* ---- a life ------------------------------------------------------------------------ */

static enum worker_sim_heart heart_of(unsigned number)
{
    if (!world.evil || number < world.n_workers - 1)
        return WORKER_SIM_HONEST;
    return world.folds ? WORKER_SIM_SLY : WORKER_SIM_EVIL;
}

static void begin_world(uint64_t seed, const char *root)
{
    memset(&world, 0, sizeof(world));
    sim_begin(seed);
    world.root = str_printf("%s/%llu", root, (unsigned long long)seed);
    struct err err = {0};
    if (file_mkdirs(world.root, 0700, &err) < 0)
        sim_fail("%s", err.msg);
    disk_begin(world.root);
}

/* In some worlds the liar is alone at first, and what it makes counts: also a version 0 with which
 * nobody can begin (remake.h). */
static void start_all(void)
{
    const bool alone = world.evil && !world.folds && sim_chance(700);
    host_begin(world.ships, world.compares, serves);
    host_start();
    for (unsigned i = 0; i < world.n_workers; i++) {
        char name[16];
        (void)snprintf(name, sizeof(name), "w%u", i);
        char *dir = file_join(world.root, name);
        world.workers[i] = worker_sim_new(i, heart_of(i), dir);
        mem_free(dir);
        if (alone && heart_of(i) == WORKER_SIM_HONEST)
            (void)sim_in(sim_between(5000, 60000), start_worker, world.workers[i]);
        else
            worker_sim_start(world.workers[i]);
    }
}

static void open_world(uint64_t seed, const char *root)
{
    begin_world(seed, root);
    oracle_begin(0);
    world.gap_ms = sim_chance(500) ? sim_between(100, 500) : sim_between(500, 8000);
    world.n_workers = (unsigned)sim_between(2, FEW_WORKERS);
    if (sim_chance(CROWDS))
        world.n_workers = (unsigned)sim_between(50, WORKERS_MAX_HERE);
    world.folds = sim_chance(250);
    world.ships = sim_chance(SHIPS);
    world.evil = world.n_workers > 2 && sim_chance(500);
    world.divides = world.n_workers > 2 && !world.folds && sim_chance(300);
    world.evil |= world.divides;
    world.compares = sim_chance(500);
    const bool guards = !world.evil && sim_chance(300); /* no person rolls back */
    start_all();
    submit_some();
    (void)sim_in(sim_between(1000, 5000), mishap, NULL);
    if (guards)
        oracle_guards();
    else
        (void)sim_in(sim_between(1000, 20000), roll_back, NULL);
    (void)sim_in(sim_below(3000), look_on, NULL);
}

static void say_waiting(void *arg, const struct view_waiting *w)
{
    fprintf(stderr, "waiting for %s: %s\n", w->what, w->why);
}

static void run_until(uint64_t ms)
{
    while (sim_now_ms() < ms && sim_step())
        look();
}

/* Everybody is well and honest: now all jobs must end. */
static void calm_down(void)
{
    const uint64_t until = sim_now_ms() + CALM_MS;
    sim_say("all is well from now on");
    world.calm = true;
    disk_arm(0, DISK_KILLED);
    heal_disk(NULL);
    store_heal();
    for (unsigned i = 0; i < world.n_workers; i++) {
        worker_sim_reform(world.workers[i]);
        worker_sim_start(world.workers[i]);
    }
    while ((!all_ended() || !host_is_settled()) && sim_step()) {
        look();
        for (unsigned i = 0; i < world.n_workers; i++)
            worker_sim_start(world.workers[i]); /* one that was drained comes back */
        resume_all();                           /* a coordinator that was killed has no command */
        if (sim_now_ms() < until)
            continue;
        if (world.co != NULL)
            view_each_waiting(world.co, 0, say_waiting, NULL);
        sim_fail("a job does not end");
    }
}

/* Of jobs that have ended. */
static void look_at_leftovers(void)
{
    struct file_names names = {0};
    struct err err = {0};
    char *dir = file_join(disk_dir(), "outer");
    if (file_is_dir(dir) && file_list(dir, 64, &names, &err) < 0)
        sim_fail("%s", err.msg);
    if (names.n > 0)
        sim_fail("%s has %s, and no job runs", dir, names.items[0]);
    file_names_release(&names);
    mem_free(dir);
}

/* What nobody needs any more is gone after a day, also from what a restart finds. */
static void clean_up(void)
{
    run_until(sim_now_ms() + 5000);
    for (int day = 0; day < CLEAN_DAYS; day++) {
        sim_stall(DAY_MS);
        run_until(sim_now_ms() + 10000);
    }
    oracle_look_at_end(world.co);
    look_at_leftovers();
    stop();
    while (world.co == NULL && sim_step())
        look();
    oracle_look_closely(world.co);
}

static void close_world(void)
{
    struct err err = {0};
    for (unsigned i = 0; i < world.n_workers; i++)
        worker_sim_free(world.workers[i]);
    host_end();
    net_end();
    http_end();
    disk_end();
    oracle_end();
    if (file_remove_tree(world.root, &err) < 0)
        sim_fail("%s", err.msg);
    mem_free(world.root);
}

uint64_t world_run(uint64_t seed, const char *root, struct world_figures *sum)
{
    open_world(seed, root);
    const uint64_t scale = 1 + (world.n_workers - 1) / FEW_WORKERS, begin = sim_now_ms(),
                   most = scale * sim_between(CHAOS_EVENTS / 2, CHAOS_EVENTS * 2);
    while (sim_events() < most && sim_now_ms() < begin + CHAOS_MS && sim_step())
        look();
    const uint64_t well = sim_now_ms();
    calm_down();
    const uint64_t calm = sim_now_ms() - well;
    sim_say("all jobs have ended in %llu s", (unsigned long long)calm / 1000);
    sum->calm_ms = calm > sum->calm_ms ? calm : sum->calm_ms;
    clean_up();
    const uint64_t digest = sim_digest();
    sum->events += sim_events();
    sum->ms += sim_now_ms() - begin;
    sum->kills += world.figures.kills;
    sum->power_losses += world.figures.power_losses;
    sum->stops += world.figures.stops;
    sum->jobs += world.figures.jobs;
    sum->backups += world.figures.backups;
    sum->restored += world.figures.restored;
    sum->clocks += world.figures.clocks;
    sum->taken_over += host_taken_over();
    close_world();
    return digest;
}

/* ---- a long life ------------------------------------------------------------------- */

/* Workers come, go and are killed; the coordinator lives. */
static void churn(void *arg)
{
    if (world.calm)
        return;
    hurt_worker((unsigned)sim_below(6), world.workers[sim_below(world.n_workers)]);
    (void)sim_in(sim_below(2 * world.gap_ms), churn, NULL);
}

/* Bytes that are in use but for those of the disk. */
static int64_t heap(void)
{
    const struct mallinfo2 m = mallinfo2();
    return (int64_t)(m.uordblks + m.hblkhd) - (int64_t)disk_held();
}

static uint64_t database(void)
{
    struct stat st = {0};
    char *path = file_join(disk_dir(), "coordinator.db");
    if (stat(path, &st) < 0)
        sim_fail("there is no %s", path);
    mem_free(path);
    return (uint64_t)st.st_size;
}

static struct world_at now_at(void)
{
    struct view_job j = {0};
    const struct state *s = &world.co->state;
    if (s->n_jobs == 1)
        (void)view_job(world.co, s->jobs[0]->id, &j, NULL);
    return (struct world_at){j.round, database(), s->n_workers - s->n_here};
}

void world_live(uint64_t seed, uint64_t ms, const char *root, struct world_life *ret)
{
    const int64_t nothing = heap();
    begin_world(seed, root);
    oracle_begin(REMEMBERED);
    world.gap_ms = CHURN_MS;
    world.n_workers = FEW_WORKERS;
    start_all();
    while (world.n_jobs == 0)
        submit(spec_endless(seed));
    (void)sim_in(1000, churn, NULL);
    (void)sim_in(sim_below(3000), look_on, NULL);
    const uint64_t begin = sim_now_ms();
    run_until(begin + ms / 3 * 2);
    ret->before = now_at();
    run_until(begin + ms);
    world.calm = true;
    run_until(sim_now_ms() + REST_MS);
    ret->end = now_at();
    oracle_look_closely(world.co);
    ret->events = sim_events();
    const int64_t all = heap();
    host_down();
    ret->held = all - heap();
    close_world();
    ret->left = heap() - nothing;
}

/* ---- a world without mishaps -------------------------------------------------------- */

struct coordinator *world_coordinator(void)
{
    return disk_crashed() ? NULL : world.co;
}

void world_open(uint64_t seed, const char *root, unsigned workers)
{
    begin_world(seed, root);
    oracle_begin(0);
    world.open = true;
    world.n_workers = workers < WORKERS_MAX_HERE ? workers : WORKERS_MAX_HERE;
    start_all();
}

void world_submit(const struct spec *spec)
{
    submit(spec);
}

void world_pass(uint64_t ms)
{
    run_until(sim_now_ms() + ms);
}

void world_restart(void)
{
    if (world.co != NULL)
        stop();
    while (world.co == NULL && sim_step())
        look();
}

void world_close(void)
{
    close_world();
}
