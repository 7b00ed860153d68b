/* skerry submit, check, keys: from a job file to a job. */

#include "common/base/base.h"
#include "cli/command.h"
#include "cli/show/follow.h"
#include "cli/job/job_file.h"
#include "cli/job/predict.h"
#include "cli/job/settle.h"
#include "cli/job/warn.h"
#include "cli/swarm.h"
#include "common/base/clock.h"
#include "common/net/http/rate.h"

static bool submit_watch;
static const char *submit_link;

/* The choice for outer.fragments: auto. */
static json_t *settled_json(const struct settled *s)
{
    const struct fragments_choice *c = &s->choice;
    return c->taken ? json_pack("{s:i,s:i,s:f,s:s}", "fragments", c->fragments, "delay", c->delay,
                                "mix", FRAGMENTS_MIX, "why", s->why)
                    : json_pack("{s:i,s:s}", "fragments", 1, "why", s->why);
}

/* Settles the keys that the file leaves to its submission, and prints choice and reason if it
 * has such keys. */
static int submit(struct cli *cli, struct job_file *job, uint64_t bytes_per_s, uint64_t *ret_id,
                  struct err *err)
{
    struct settled settled;
    settle_fragments(cli, job, bytes_per_s, &settled);
    if (settled.asked && !cli->json && !cli_interrupted)
        (void)fprintf(stderr, "outer.fragments: auto: %s\n", settled.why);
    int rc = job_file_submit(cli, job, !cli->json, ret_id, err);
    if (rc < 0)
        return rc;
    if (!cli->json) {
        printf("job %llu (%s) is submitted; follow it with `skerry watch %llu`\n",
               (unsigned long long)*ret_id, job->spec.name, (unsigned long long)*ret_id);
        (void)fflush(stdout); /* before the output of --watch, which may be on stderr */
        json_t *warnings = warn_of_swarm(cli, job, false);
        warn_say(warnings);
        json_decref(warnings);
        return 0;
    }
    json_t *o = json_pack("{s:I}", "id", (json_int_t)*ret_id);
    json_t *warnings = warn_of_swarm(cli, job, false);
    if (json_array_size(warnings) > 0)
        json_object_set(o, "warnings", warnings);
    json_decref(warnings);
    if (settled.asked)
        json_object_set_new(o, "fragments", settled_json(&settled));
    cli_print_taken(o);
    return 0;
}

/* Reads --link; NULL: it was not given. */
static int take_link(const char *given, uint64_t *ret_bytes_per_s, struct err *err)
{
    struct err why = {0};
    return given && rate_parse(given, ret_bytes_per_s, &why) < 0
               ? err_set(err, -ERR_USAGE, "--link: %s", why.msg)
               : 0;
}

static int run_submit(struct cli *cli, const struct args *args, struct err *err)
{
    struct job_file job;
    uint64_t id = 0, bytes_per_s = 0;

    int rc = take_link(submit_link, &bytes_per_s, err);
    if (rc == 0)
        rc = job_file_open(args->rest[0], &job, err);
    if (rc < 0)
        return rc;
    rc = cli_connect(cli, err);
    if (rc == 0 && cli->role == TOKEN_ROLE_VIEWER) /* refused before the data are cut into shards */
        rc = err_set(err, -ERR_AUTH,
                     "submitting needs a token of role operator; yours has the role viewer");
    if (rc == 0)
        rc = submit(cli, &job, bytes_per_s, &id, err);
    job_file_close(&job);
    return rc == 0 && submit_watch ? follow_apart(cli, id, NULL) : rc;
}

const struct command command_submit = {
    .name = "submit",
    .what = "check a job file and its data, upload them, start the job",
    .usage = "job.yaml [--watch] [--link RATE]",
    .about = "Checks the job file and its data, uploads the data as shards (only "
             "those that the coordinator lacks) and starts the job.  If anything is "
             "wrong, nothing is started.  If outer.fragments is auto and the job may"
             " have fragments, it first measures a step and the link; the choice is "
             "printed and recorded.",
    .flags =
        (const struct args_flag[]){
            {"watch", 'w', ARGS_BOOL, &submit_watch, NULL, "follow the job to its end"},
            {"link", 0, ARGS_STR, &submit_link, "RATE",
             "rate of every link, for outer.fragments: auto (default: the link from "
             "here is measured)"},
            {0},
        },
    .rest_min = 1,
    .rest_max = 1,
    .needs = COMMAND_SERVER | COMMAND_JSON | COMMAND_SIGNALS,
    .run = run_submit,
};

static const char *check_link;
static int check_workers;
static bool check_here;

static struct disk_need disk_of(const struct job_file *job, const struct composition *c,
                                const struct measured *at, const struct job_file_size *size,
                                const struct predict_options *opt, const struct prediction *p)
{
    const struct job_outer *outer = &job->spec.outer;
    const double phases = (double)p->phases * outer->rounds;
    struct disk_need need;
    struct disk_options o = {
        .workers = opt->workers,
        .phase_s = outer->steps ? outer->steps * at->networks[0].step_s : outer->seconds,
        .shard_bytes = size->bytes,
        .phase_share =
            phases > 0 && size->samples ? (double)p->seen / phases / (double)size->samples : 1,
        .files_bytes = encoders_bytes(&job->encoders),
        .latents_bytes =
            encoders_latents_bytes(&job->encoders, &job->spec, size->samples + size->holdout),
    };
    o.phase_share = fmin(o.phase_share, 1);
    for (int i = 0; i < COMPOSITION_NETWORKS; i++)
        o.parameters[i] = at->networks[i].parameters;
    disk_predict(&job->spec, c, &o, &need);
    return need;
}

static json_t *disk_json(const struct disk_need *d)
{
    return json_pack("{s:I,s:I,s:I,s:I,s:I,s:I}", "peak_bytes", (json_int_t)d->peak, "outer_bytes",
                     (json_int_t)d->outer, "end_bytes", (json_int_t)d->end, "worker_bytes",
                     (json_int_t)d->worker, "latents_bytes", (json_int_t)d->latents,
                     "latents_made_bytes", (json_int_t)d->made);
}

static json_t *prediction_json(const struct measured *at, int workers, const struct prediction *p,
                               const struct disk_need *disk)
{
    json_t *o = json_pack("{s:s,s:I,s:I,s:I,s:i}", "device", at->device, "parameters",
                          (json_int_t)at->networks[0].parameters, "memory_bytes",
                          (json_int_t)at->networks[0].memory_bytes, "room_bytes",
                          (json_int_t)at->room_bytes, "workers", workers);
    if (at->refused[0])
        json_object_set_new(o, "refused", json_string(at->refused));
    else
        json_object_update_new(
            o, json_pack("{s:f,s:f,s:f,s:f,s:I,s:I,s:I}", "step_s", at->networks[0].step_s,
                         "round_s", p->train_s + p->fold_s + p->link_s, "link_s", p->link_s,
                         "seconds", p->total_s, "up_bytes", (json_int_t)p->up_bytes, "down_bytes",
                         (json_int_t)p->down_bytes, "seen", (json_int_t)p->seen));
    json_object_set_new(o, "disk", disk_json(disk));
    if (p->parts.fragments)
        json_object_set_new(o, "fragments",
                            json_pack("{s:i,s:i,s:f,s:b,s:s}", "fragments", p->parts.fragments,
                                      "delay", p->parts.delay, "left_s", p->parts.left_s, "taken",
                                      p->parts.taken, "why", p->parts.why ? p->parts.why : ""));
    return o;
}

/* Warns of a pipeline if a machine such as this one cannot have it. */
static void warn_of_one_device(const char *path, const struct job_train *t,
                               const struct measured *at)
{
    char stages[48];
    if (at->cards > 1 || (t->stages == 0 && t->parallel != JOB_PARALLEL_PIPELINE))
        return;
    (void)snprintf(stages, sizeof stages, "train.stages is %d", t->stages);
    (void)fprintf(
        stderr,
        "warning: %s: %s, but this machine has one device: a worker like it trains the "
        "whole model; a pipeline needs several devices, as in workerd --device cuda:all\n",
        path, t->stages > 0 ? stages : "train.parallel is pipeline");
}

/* Predicts the job's needs; a prediction that fails does not make the job wrong. */
static int say_prediction(const struct cli *cli, const char *path, const struct job_file *job,
                          const struct job_file_size *size, struct predict_options opt,
                          struct err *err)
{
    struct composition c;
    struct measured at;
    struct prediction p = {0};
    struct err why = {0};
    int rc = recipe_compose(&job->spec, &c, err);
    if (rc < 0)
        return rc;
    int phases = 0; /* phases of a round: no more workers train at a time */
    for (uint32_t i = 0; i < c.n_paths; i++)
        phases += (int)c.paths[i].replicas;
    if (check_workers == 0 && !opt.here)
        opt.workers = (int)predict_workers(&c);
    struct predict_way way = {0};
    if (opt.here)
        way = (struct predict_way){.together = opt.workers < phases ? opt.workers : phases,
                                   .threads = cli_threads_each(opt.workers)};
    rc = predict_measure(job, &c, size->vocab, &way, &at, &why);
    if (rc == -ERR_CANCELLED) {
        *err = why;
    } else if (rc < 0) {
        rc = 0; /* the job may still be right */
        if (cli->json)
            cli_print_taken(json_pack("{s:o}", "refused", cli_text(why.msg)));
        else
            (void)fprintf(stderr, "nothing is predicted: %s\n", why.msg);
    } else {
        warn_of_one_device(path, &job->spec.train, &at);
        if (!at.refused[0])
            predict(&job->spec, &c, &at, &opt, &p);
        const struct disk_need disk = disk_of(job, &c, &at, size, &opt, &p);
        if (cli->json) {
            cli_print_taken(prediction_json(&at, opt.workers, &p, &disk));
        } else {
            predict_show(&job->spec, &at, &opt, &p, size->samples, stdout);
            disk_show(&disk, stdout);
        }
    }
    composition_release(&c);
    return rc;
}

static int run_check(struct cli *cli, const struct args *args, struct err *err)
{
    struct job_file job;
    struct job_file_size size = {0};
    struct predict_options opt = {.workers = check_workers, .here = check_here};
    char *text = NULL;
    size_t len = 0;

    if (check_here && !check_workers)
        opt.workers = PREDICT_WORKERS;
    if (check_here && opt.workers > SWARM_WORKERS_MAX)
        return err_set(err, -ERR_USAGE, "--here with %d workers: expected at most %d", opt.workers,
                       SWARM_WORKERS_MAX);
    int rc = take_link(check_link, &opt.bytes_per_s, err);
    if (rc == 0)
        rc = job_file_open(args->rest[0], &job, err);
    if (rc < 0)
        return rc;
    const uint64_t begun = clock_now_ns();
    FILE *out = open_memstream(&text, &len);
    rc = out ? job_file_read_all(&job, !cli->json, out, &size, err) : err_errno(err, "no memory");
    if (out)
        fclose(out);
    if (rc == 0 && !cli->json)
        printf("%s: fine%s%s\n", args->rest[0], len ? "; " : "", text);
    free(text);
    opt.data_s = clock_since_s(begun);
    opt.holdout = size.holdout;
    if (rc == 0)
        rc = say_prediction(cli, args->rest[0], &job, &size, opt, err);
    job_file_close(&job);
    return rc;
}

const struct command command_check = {
    .name = "check",
    .what = "check a job file and its data; predict time, memory, disk and traffic",
    .usage = "job.yaml [--workers N] [--here] [--link RATE]",
    .about = "Says whether `skerry submit` would accept this job file and its data: "
             "reads all of them and sends nothing.  Then measures some steps on this"
             " machine and predicts time, memory, disk and traffic.  The prediction leaves"
             " out frozen encoders, generated texts, and the making of partitions.",
    .flags =
        (const struct args_flag[]){
            {"workers", 'w', ARGS_INT, &check_workers, "N",
             "number of machines like this one (default: one for each phase of a "
             "round; 2 if recipe.replicas is auto)",
             .min = 1, .max = 1024},
            {"here", 0, ARGS_BOOL, &check_here, NULL,
             "the workers share this machine, as those of `skerry run` do (default then: 2)"},
            {"link", 0, ARGS_STR, &check_link, "RATE",
             "rate of every link, the coordinator's too, such as 20Mbit (default: "
             "unlimited)"},
            {0},
        },
    .rest_min = 1,
    .rest_max = 1,
    .needs = COMMAND_JSON | COMMAND_SIGNALS,
    .run = run_check,
};

static bool keys_markdown;

static int run_keys(struct cli *cli, const struct args *args, struct err *err)
{
    struct buf text;
    buf_init(&text, 1 << 20);
    if (job_document(keys_markdown ? CONF_MARKDOWN : CONF_TEXT, &text) == 0)
        fputs(buf_str(&text), stdout);
    buf_release(&text);
    return CLI_OK;
}

const struct command command_keys = {
    .name = "keys",
    .what = "list every key of a job file, with its default",
    .usage = "[--markdown]",
    .about = "Prints every key of a job file with its type, range, default and "
             "meaning.",
    .flags =
        (const struct args_flag[]){
            {"markdown", 0, ARGS_BOOL, &keys_markdown, NULL, "print Markdown tables"},
            {0},
        },
    .run = run_keys,
};
