/* skerry run: a private swarm from start to results. */
#include <signal.h>
#include <sys/stat.h>

#include "common/base/base.h"
#include "common/base/moving.h"
#include "cli/show/artifacts.h"
#include "cli/show/models.h"
#include "cli/command.h"
#include "cli/show/follow.h"
#include "cli/job/job_file.h"
#include "cli/job/predict.h"
#include "cli/job/warn.h"
#include "cli/sample.h"
#include "cli/swarm.h"
#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/job/recipe.h"
#include "common/base/rng.h"
#include "common/job/family.h"

#define JOIN_MS 30000 /* time for the workers to join; after it `follow` reports missing ones */
#define JOIN_LOOK_MS 50
#define DRILL_SEED 0x6472696c6cULL
#define ENTRIES_MAX 4096 /* earlier results among more entries are not told */

struct run {
    struct swarm swarm;
    struct cli *cli;
    int drill;       /* kill a worker when this round begins; 0: never */
    int drill_every; /* seconds between kills; 0: never */
    uint64_t drilled_ms;
    unsigned drills;
    long long drawn; /* task of the newest sample in out_dir; 0: none */
    const char *strategies;
    struct file_names before; /* what was in the folder for the results */
    struct timespec *times;   /* and when it had changed last */
    bool listed;              /* that is known */
    struct file_names models; /* their folders, once they are saved */
};

static const char *out_dir = "out";

/* Fetches a new sample, to be seen while the job goes on.  A failure is made good with the next
 * sample, or at the end. */
static void take_new_samples(struct run *run, const json_t *job)
{
    const json_t *list = json_object_get(job, "samples");
    long long newest = cli_int(json_array_get(list, json_array_size(list) - 1), "task", 0);
    if (newest != run->drawn)
        (void)artifacts_samples(run->cli, (uint64_t)cli_int(job, "id", 0), out_dir, NULL);
    run->drawn = newest;
}

/* Fails for a job that cannot begin because no worker has the memory: no others will join. */
static int check_fits(const struct run *run, const json_t *job, struct err *err)
{
    static const char small[] = "no worker here has the memory";
    const json_t *item, *misfit = NULL;
    json_t *workers = NULL;
    size_t i;
    json_array_foreach(json_object_get(job, "waiting_for"), i, item)
    {
        if (!strncmp(cli_str(item, "why", ""), small, strlen(small)))
            misfit = item;
    }
    if (!misfit || cli_int(job, "round", 0) > 0)
        return 0;
    if (cli_pages(run->cli, "/v1/workers", "after", &workers, NULL) < 0)
        return 0; /* the next poll of the job fails, too */
    const size_t n = json_array_size(json_object_get(workers, "items"));
    json_decref(workers);
    return n < (size_t)run->swarm.n_workers /* some have not joined yet */
               ? 0
               : err_set(err, -ENOMEM, "the job cannot begin: %s", cli_str(misfit, "why", ""));
}

/* Kills a worker if the drill's time has come. */
static int drill(struct run *run, const json_t *job, struct err *err)
{
    const uint64_t now = clock_now_ms();
    int rc = 0;
    if (run->drill && cli_int(job, "round", 0) >= run->drill) {
        rc = swarm_kill_worker(&run->swarm, 0, err);
        run->drill = 0;
    }
    if (run->drilled_ms == 0)
        run->drilled_ms = now;
    if (rc == 0 && run->drill_every && !cli_job_ended(cli_str(job, "state", "")) &&
        now - run->drilled_ms > (uint64_t)run->drill_every * 1000) {
        run->drilled_ms = now;
        rc = swarm_kill_worker(&run->swarm, (unsigned)rng_mix(DRILL_SEED, run->drills++), err);
    }
    return rc;
}

/* Has a path ended a round?  Then there is something to lose. */
static bool is_trained(const json_t *job)
{
    const json_t *path;
    size_t i;
    json_array_foreach(json_object_get(job, "path_list"), i, path)
    {
        if (cli_int(path, "round", 0) > 0)
            return true;
    }
    return false;
}

/* At every poll: fetches new samples, checks that the job fits and that the daemons live. */
static int on_poll(void *arg, const json_t *job)
{
    struct run *run = arg;
    struct err err = {0};
    int rc = 0;

    if (job && !run->swarm.keep && is_trained(job))
        swarm_keep(&run->swarm);
    if (job) {
        take_new_samples(run, job);
        rc = drill(run, job, &err);
    }
    if (job && rc == 0)
        rc = check_fits(run, job, &err);
    if (rc < 0 || swarm_check(&run->swarm, &err) < 0) {
        moving_keep();
        (void)cli_fail(&err);
        return 1;
    }
    return 0;
}

/* Says that a card is not used: the sentence with the reason is in the worker's log. */
static void say_card(const struct run *run, const json_t *worker)
{
    if (run->swarm.device || run->swarm.extra.n > 0 || run->swarm.trainers ||
        !file_exists("/dev/nvidiactl") || str_starts(cli_str(worker, "device", "cuda"), "cuda"))
        return;
    moving_clear();
    fprintf(stderr, "skerry: a card is here and not used: `skerry doctor` says why\n");
}

/* Waits for the workers to join.  A job that began with only some of them would give them the
 * others' replicas, and have another result than other runs. */
static int wait_for_workers(struct run *run, struct err *err)
{
    const uint64_t deadline = clock_now_ms() + JOIN_MS;
    const size_t all = (size_t)run->swarm.n_workers;
    size_t n = 0;
    int rc = 0;
    while (rc == 0 && n < all && clock_now_ms() < deadline) {
        json_t *workers = NULL;
        if (cli_interrupted)
            return err_set(err, -ERR_CANCELLED, "interrupted");
        rc = cli_pages(run->cli, "/v1/workers", "after", &workers, err);
        n = json_array_size(json_object_get(workers, "items"));
        if (n == all)
            say_card(run, json_array_get(json_object_get(workers, "items"), 0));
        json_decref(workers);
        if (rc == 0 && n < all)
            rc = swarm_check(&run->swarm, err);
        if (rc == 0 && n < all)
            cli_sleep_ms(JOIN_LOOK_MS);
    }
    return rc;
}

/* Checks the strategies before the training, because they are used only at the end. */
static int check_strategies(const char *names, const struct job_spec *spec, struct err *err)
{
    if (!names)
        return 0;
    if (!recipe_mixes(spec->recipe.name))
        return err_set(err, -ERR_USAGE,
                       "--strategies is for a mixture of experts, and recipe.name is %.80s: leave "
                       "it out",
                       spec->recipe.name);
    char *list = str_dup(names), *save = NULL;
    int rc = 0, number;
    for (char *s = strtok_r(list, ",", &save); s && rc == 0; s = strtok_r(NULL, ",", &save))
        if (job_strategy_parse(s, &number) < 0)
            rc = err_set(err, -ERR_USAGE,
                         "--strategies has '%.80s', expected some of top1, topk, full, nucleus, "
                         "threshold, oracle, with commas between them",
                         s);
    mem_free(list);
    return rc;
}

/* Draws one more grid for each mixing strategy, as samples-NAME.png. */
static int draw_strategies(struct run *run, uint64_t id, const char *out, struct err *err)
{
    char *list = str_dup(run->strategies), *save = NULL;
    int rc = 0;
    for (char *s = strtok_r(list, ",", &save); s && rc == 0; s = strtok_r(NULL, ",", &save)) {
        char *file = str_printf("%s/samples-%s.png", out, s);
        json_t *ask = json_pack("{s:s}", "strategy", s);
        rc = sample_to_file(run->cli, id, ask, file, err);
        json_decref(ask);
        mem_free(file);
    }
    mem_free(list);
    return rc;
}

/* Is it what a run leaves beside its logs? */
static bool is_result(const char *name)
{
    static const char *const names[] = {"model",         "samples.png", "sample.txt", "loss.svg",
                                        "metrics.jsonl", "report.json", "unfinished"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(name, names[i]) == 0)
            return true;
    if (str_starts(name, "model-")) /* of several paths */
        return strcmp(name, "model-router") == 0 ||
               (name[6] && name[6 + strspn(name + 6, "0123456789")] == '\0');
    return str_starts(name, "samples-") && str_ends(name, ".png"); /* of experts and strategies */
}

/* Refuses to put results among the data, because the next run would read them as data; texts are
 * not searched for in subfolders. */
static int check_apart(const struct job_file *job, const char *out, struct err *err)
{
    const enum file_place at = job->data_path ? file_place(out, job->data_path) : FILE_APART;
    if (at == FILE_APART || (at == FILE_INSIDE && job_is_text(&job->spec)))
        return 0;
    return err_set(err, -ERR_USAGE,
                   "--out %s is in the folder of the data, %s, where the results would be taken "
                   "for data: give another folder",
                   out, job->data_path);
}

/* Refuses to put results where the job reads `given`: in that folder, or over it. */
static int check_beside(const char *key, const char *given, const char *out, struct err *err)
{
    struct file_names names = {0};
    int rc = 0;
    if (file_is_dir(given) && file_place(out, given) == FILE_SAME)
        return err_set(err, -ERR_USAGE, "--out %s is the folder of %s: give another folder", out,
                       key);
    if (file_list(out, ENTRIES_MAX, &names, NULL) < 0)
        return 0;
    for (size_t i = 0; i < names.n && rc == 0; i++) {
        char *result = file_join(out, names.items[i]);
        if (is_result(names.items[i]) && file_place(given, result) != FILE_APART)
            rc = err_set(err, -ERR_USAGE,
                         "%s is %s, and the results of this run would replace it: give another "
                         "folder with --out",
                         key, given);
        mem_free(result);
    }
    file_names_release(&names);
    return rc;
}

static int check_out(const struct job_file *job, const char *path, const char *out, struct err *err)
{
    const struct job_spec *s = &job->spec;
    const struct {
        const char *key, *given;
    } reads[] = {
        {"model.warm_start", s->model.warm_start},   {"data.path", s->data.path},
        {"data.holdout_path", s->data.holdout_path}, {"data.tokenizer", s->data.tokenizer},
        {"encoders.path", s->encoders.path},         {"encoders.vae", s->encoders.vae},
        {"encoders.text", s->encoders.text},         {"encoders.tokenizer", s->encoders.tokenizer},
        {"trainer.files", s->trainer.files},
    };
    int rc = check_apart(job, out, err);
    for (size_t i = 0; i < sizeof reads / sizeof *reads && rc == 0; i++) {
        char *found = reads[i].given ? job_file_find(path, reads[i].given) : NULL;
        if (found)
            rc = check_beside(reads[i].key, found, out, err);
        mem_free(found);
    }
    return rc;
}

static int collect(struct run *run, uint64_t id, const char *out, bool done, struct err *err)
{
    struct cli *cli = run->cli;
    char *model = file_join(out, "model");

    /* First: no failure may cost them. */
    int rc = models_take(cli, id, -1, true, model, true, &run->models, err);
    mem_free(model);
    if (rc < 0)
        return rc;
    swarm_saved(&run->swarm);
    rc = artifacts_metrics(cli, id, out, err);
    if (rc == 0)
        rc = artifacts_report(cli, id, out, err);
    if (rc == 0 && (rc = artifacts_samples(cli, id, out, err)) == -ERR_NOTFOUND) {
        if (done && !run->swarm.trainers)
            fprintf(stderr, "skerry: %s\n", err->msg);
        rc = 0; /* not all trainers draw */
    }
    return rc == 0 && done && run->strategies ? draw_strategies(run, id, out, err) : rc;
}

/* Saves what a run that ends early has trained, apart from the results of one that was done, in
 * place of those of an earlier one that ended early. */
static void save_unfinished(struct run *run, uint64_t id, const char *out)
{
    char *folder = file_join(out, "unfinished"), *part = file_join(out, ".unfinished");
    struct err err = {0};
    (void)signal(SIGHUP, SIG_IGN); /* a terminal that closes may say so twice */
    cli_interrupted = 0;           /* another Ctrl-C ends this, too */
    moving_now("saving what was trained; another Ctrl-C ends that, too");
    int rc = file_remove_tree(part, &err);
    if (rc == 0)
        rc = collect(run, id, part, false, &err);
    moving_clear();
    if (run->swarm.keep)
        (void)file_remove_tree(part, NULL);
    else if (file_remove_tree(folder, rc < 0 ? NULL : &err) < 0 ||
             file_move(part, folder, rc < 0 ? NULL : &err) < 0)
        rc = rc < 0 ? rc : err.code;
    if (rc == 0)
        fprintf(stderr, "skerry: what was trained is in %s\n", folder);
    else
        (void)cli_fail(&err);
    mem_free(part);
    mem_free(folder);
}

/* When the file changed last; 0: it is not there. */
static struct timespec changed(const char *out, const char *name)
{
    struct stat st = {0};
    char *path = file_join(out, name);
    (void)stat(path, &st);
    mem_free(path);
    return st.st_mtim;
}

static void note_earlier(struct run *run, const char *out)
{
    run->listed = file_list(out, ENTRIES_MAX, &run->before, NULL) == 0;
    run->times = mem_alloc_array(run->before.n, sizeof *run->times);
    for (size_t i = 0; i < run->before.n; i++)
        run->times[i] = changed(out, run->before.items[i]);
}

/* Is the i-th entry still the one that was there before? */
static bool is_earlier(const struct run *run, const char *out, size_t i)
{
    const struct timespec was = run->times[i], now = changed(out, run->before.items[i]);
    return was.tv_sec == now.tv_sec && was.tv_nsec == now.tv_nsec;
}

/* Whoever finds them beside this run's logs would take them for its results. */
static void say_earlier(const struct run *run, const char *out)
{
    unsigned n = 0;
    for (size_t i = 0; i < run->before.n; i++) {
        if (!is_result(run->before.items[i]) || !is_earlier(run, out, i))
            continue;
        fprintf(stderr, "%s%s",
                n++ > 0 ? ", " : "skerry: still of an earlier run: ", run->before.items[i]);
    }
    if (n > 0)
        fprintf(stderr, " in %s\n", out);
    char *unsaved = file_join(out, ".swarm-unsaved"); /* a later run would not tell of it */
    if (file_exists(unsaved))
        fprintf(stderr,
                "skerry: what an earlier run trained and did not save is in %s until you remove "
                "it\n",
                unsaved);
    mem_free(unsaved);
}

/* Is it there, and surely not of an earlier run? */
static bool is_new(const struct run *run, const char *out, const char *name)
{
    bool earlier = false;
    for (size_t i = 0; i < run->before.n; i++)
        earlier |= strcmp(name, run->before.items[i]) == 0 && is_earlier(run, out, i);
    return run->listed && !earlier && changed(out, name).tv_sec != 0;
}

static int run_job(struct run *run, struct job_file *job, int workers, const char *out,
                   struct err *err)
{
    struct follow_hook hook = {on_poll, run};
    uint64_t id;

    moving_now("starting a coordinator and %d worker%s", workers, str_plural((uint64_t)workers));
    int rc = swarm_start(&run->swarm, out, err);
    if (rc == 0)
        note_earlier(run, out);
    for (int i = 0; i < workers && rc == 0; i++)
        rc = swarm_add_worker(&run->swarm, err);
    if (rc < 0)
        return rc;
    run->cli->token = run->swarm.user_token;
    rc = cli_connect(run->cli, err);
    if (rc == 0)
        rc = wait_for_workers(run, err);
    moving_clear();
    if (rc == 0)
        rc = job_file_submit(run->cli, job, !run->cli->json, &id, err);
    if (rc == 0 && !run->cli->json) {
        json_t *warnings = warn_of_swarm(run->cli, job, true);
        warn_say(warnings);
        json_decref(warnings);
    }
    if (rc == 0)
        rc = follow_job(run->cli, id, &hook);
    if (rc == CLI_OK)
        return collect(run, id, out, true, err);
    if (run->swarm.keep && run->swarm.coordinator > 0)
        save_unfinished(run, id, out);
    return rc;
}

static void print_results(const struct run *run, const struct job_spec *spec, const char *out)
{
    static const char *const samples[] = {"samples.png", "sample.txt"};
    for (size_t i = 0; i < 2; i++) /* not every trainer draws */
        if (is_new(run, out, samples[i]))
            printf("samples   %s/%s\n", out, samples[i]);
    printf("loss      %s/loss.svg\nmetrics   %s/metrics.jsonl\n", out, out);
    for (size_t i = 0; i < run->models.n; i++) {
        const char *folder = run->models.items[i];
        const bool captioned = job_has_captions(spec) && !str_ends(folder, "/model-router");
        printf("model     %s/%s.safetensors\n", folder,
               captioned ? "diffusion_pytorch_model" : "model");
    }
}

static struct run options;
static int n_workers = PREDICT_WORKERS, n_threads;

static int run_run(struct cli *cli, const struct args *args, struct err *err)
{
    struct run *run = &options;
    struct job_file job;

    run->cli = cli;
    run->swarm.threads = n_threads ? n_threads : cli_threads_each(n_workers);
    int rc = job_file_open(args->rest[0], &job, err);
    if (rc < 0)
        return rc;
    run->swarm.trainers = job_family(&job.spec)->external; /* the user brings the trainer */
    if ((rc = check_strategies(run->strategies, &job.spec, err)) < 0 ||
        (rc = check_out(&job, args->rest[0], out_dir, err)) < 0) {
        job_file_close(&job);
        return rc;
    }
    char *model = file_join(out_dir, "model");
    rc = file_mkdirs(out_dir, 0777, err);
    if (rc == 0)
        rc = models_check_folders(&job.spec, model, err); /* now, and not after all the work */
    mem_free(model);
    if (rc == 0) {
        rc = run_job(run, &job, n_workers, out_dir, err);
        cli_close(cli);
    }
    if (rc < 0)
        rc = cli_interrupted ? CLI_INTERRUPTED : cli_fail(err);
    const bool kept = run->swarm.keep;
    swarm_stop(&run->swarm);
    if (rc == CLI_OK && !cli->json)
        print_results(run, &job.spec, out_dir);
    else if (rc == CLI_INTERRUPTED)
        fprintf(stderr, "skerry: interrupted; the swarm is stopped%s\n",
                kept ? "" : " and its state removed");
    say_earlier(run, out_dir);
    file_names_release(&run->before);
    file_names_release(&run->models);
    mem_free(run->times);
    run->times = NULL;
    job_file_close(&job);
    return rc;
}

const struct command command_run = {
    .name = "run",
    .what = "run a job on a private swarm on this machine, into a folder",
    .usage = "job.yaml [--workers N] [--out DIR]",
    .about = "Starts a coordinator and workers on free loopback ports and runs the "
             "job to its end.  DIR then has samples.png (or sample.txt), which is "
             "updated during training, loss.svg, metrics.jsonl, report.json and "
             "model/; a job with several paths leaves model-0/, model-1/ and so on, "
             "and model-router/ if a router mixes them.  Cleans up after itself, also "
             "on Ctrl-C and on errors; what was trained by then is in DIR/unfinished, "
             "and what cannot be saved stays in DIR/.swarm, which the next run moves "
             "to DIR/.swarm-unsaved, where it is until you remove it.  The logs stay in DIR/logs, "
             "and what is there of "
             "an earlier run stays until it is replaced.",
    .flags =
        (const struct args_flag[]){
            {"workers", 'w', ARGS_INT, &n_workers, "N", "workers to start", .min = 1,
             .max = SWARM_WORKERS_MAX},
            {"out", 'o', ARGS_STR, &out_dir, "DIR", "folder for the results"},
            {"threads", 0, ARGS_INT, &n_threads, "N",
             "threads of each worker (default: an equal share of the cores)", .min = 1,
             .max = 1024},
            {"device", 0, ARGS_STR, &options.swarm.device, "NAME",
             "device of each worker: auto, cpu, cuda:N or several with commas"},
            {"drill", 0, ARGS_INT, &options.drill, "ROUND",
             "SIGKILL a worker after this round, to see the swarm continue", .min = 1, .max = 1e9},
            {"drill-every", 0, ARGS_INT, &options.drill_every, "SECONDS",
             "SIGKILL a random worker this often; another takes its place", .min = 1, .max = 1e6},
            {"workerd", 0, ARGS_LIST, &options.swarm.extra, "ARGS",
             "additional arguments of the first worker; repeat for the second, ..; "
             "the last one applies to all others"},
            {"strategies", 0, ARGS_STR, &options.strategies, "A,B,..",
             "mixtures: also draw a grid for each strategy, as samples-A.png"},
            {0},
        },
    .rest_min = 1,
    .rest_max = 1,
    .needs = COMMAND_JSON | COMMAND_SIGNALS,
    .run = run_run,
};
