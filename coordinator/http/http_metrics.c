#include "coordinator/http/http_metrics.h"

#include "common/base/base.h"
#include "common/base/buf.h"
#include "common/net/blobstore.h"
#include "common/net/http/http_server.h"
#include "coordinator/view/view.h"

#define STATES_MAX 16
_Static_assert(JOB_STATES - 1 <= STATES_MAX, "each has a count");

/* A family must be written in one run, so the view is walked once per family,
 * which is cheap, since it is all in memory. */
struct writer {
    struct coordinator *co;
    struct buf *out;
    int rc;                       /* the first append that failed */
    const struct job_family *job; /* the family of the present walk */
    bool held_out;                /* numbers of evaluations */
    const struct worker_family *worker;
    const struct device_family *device;
};

static void text(struct writer *w, const char *s)
{
    if (w->rc == 0)
        w->rc = buf_append_str(w->out, s);
}

static void family(struct writer *w, const char *name, const char *type, const char *help)
{
    if (w->rc == 0)
        w->rc = buf_printf(w->out, "# HELP skerry_%s %s\n# TYPE skerry_%s %s\n", name, help, name,
                           type);
}

static void value(struct writer *w, double x)
{
    if (w->rc == 0)
        w->rc = buf_printf(w->out, " %.17g\n", x);
}

/* A label's value may hold any bytes: \ " and newline are escaped, and bytes that
 * are not UTF-8 are shown as '?'. */
static void label(struct writer *w, const char *name, const char *s)
{
    bool utf8 = str_is_utf8(s, strlen(s));
    text(w, name);
    text(w, "=\"");
    for (; *s && w->rc == 0; s++) {
        if (*s == '\\' || *s == '"')
            w->rc = buf_append_byte(w->out, '\\');
        if (*s == '\n')
            text(w, "\\n");
        else if (w->rc == 0)
            w->rc = buf_append_byte(w->out, utf8 || !(*s & 0x80) ? (uint8_t)*s : '?');
    }
    text(w, "\"");
}

static void plain(struct writer *w, const char *name, const char *labels, double x)
{
    if (w->rc == 0)
        w->rc = buf_printf(w->out, "skerry_%s%s %.17g\n", name, labels, x);
}

static void single(struct writer *w, const char *name, const char *type, const char *help, double x)
{
    family(w, name, type, help);
    if (!isnan(x))
        plain(w, name, "", x);
}

/* ---- the whole ----------------------------------------------------------- */

static void four_bytes(struct writer *w, const char *name, const struct traffic *b)
{
    plain(w, name, "{plane=\"control\",direction=\"up\"}", (double)b->control_up);
    plain(w, name, "{plane=\"control\",direction=\"down\"}", (double)b->control_down);
    plain(w, name, "{plane=\"data\",direction=\"up\"}", (double)b->data_up);
    plain(w, name, "{plane=\"data\",direction=\"down\"}", (double)b->data_down);
}

/* Counts by state. */
struct states {
    const char *names[STATES_MAX];
    unsigned counts[STATES_MAX];
    size_t n;
};

static void count(struct states *s, const char *state)
{
    for (size_t i = 0; i < s->n; i++)
        s->counts[i] += strcmp(s->names[i], state) == 0;
}

static void count_job(void *arg, const struct view_job *j)
{
    count(arg, j->state);
}

static void count_worker(void *arg, const struct view_worker *v)
{
    count(arg, v->state);
}

static void put_states(struct writer *w, const char *name, const struct states *s)
{
    for (size_t i = 0; i < s->n && w->rc == 0; i++)
        w->rc = buf_printf(w->out, "skerry_%s{state=\"%s\"} %u\n", name, s->names[i], s->counts[i]);
}

static void by_state(struct writer *w)
{
    struct states of_workers = {
        .names = {"idle", "busy", "late", "lost", "left", "draining", "quarantined"}, .n = 7};
    struct states of_jobs = {.n = 0};
    for (enum job_state s = JOB_PENDING; s < JOB_STATES; s++)
        of_jobs.names[of_jobs.n++] = job_state_name(s);
    view_each_job(w->co, count_job, &of_jobs);
    view_each_worker(w->co, count_worker, &of_workers);
    family(w, "jobs", "gauge", "Jobs by state.");
    put_states(w, "jobs", &of_jobs);
    family(w, "workers", "gauge", "Workers by state.");
    put_states(w, "workers", &of_workers);
}

static void whole(struct writer *w, const struct view_status *s)
{
    family(w, "build_info", "gauge", "The version that runs.");
    text(w, "skerry_build_info{");
    label(w, "version", s->version);
    text(w, ",");
    label(w, "cluster", s->cluster);
    text(w, "} 1\n");
    single(w, "uptime_seconds", "gauge", "Since the daemon started.", (double)s->uptime_ms / 1000);
    single(w, "resident_memory_bytes", "gauge", "Memory of coordinatord.", (double)s->rss_bytes);
    single(w, "disk_room_bytes", "gauge", "Room on the disk of the data directory.",
           (double)s->disk_room_bytes);
    family(w, "bytes_total", "counter", "Bytes at the workers' sockets; up is to the coordinator.");
    four_bytes(w, "bytes_total", &s->bytes);
    family(w, "here_bytes_total", "counter", "Bytes at this daemon's sockets since it started.");
    four_bytes(w, "here_bytes_total", &s->bytes_here);
    single(w, "fp32_data_parallel_ratio", "gauge",
           "Parameter bytes that moved, over those that fp32 data-parallel would have moved.",
           s->ratio);
    by_state(w);
    family(w, "tasks", "gauge", "Open tasks.");
    plain(w, "tasks", "{state=\"pending\"}", s->tasks_pending);
    plain(w, "tasks", "{state=\"leased\"}", s->tasks_leased);
    family(w, "outer_steps", "gauge", "Outer steps in the executor.");
    plain(w, "outer_steps", "{state=\"running\"}", s->outer_busy);
    plain(w, "outer_steps", "{state=\"waiting\"}", s->outer_queue);
    single(w, "damaged_blobs", "gauge",
           "Blobs whose bytes the disk has lost, as the scrubber found.", s->blobs_damaged);
    single(w, "store_ok", "gauge", "Whether the state database can be written.", s->store_ok);
    single(w, "store_writing_seconds", "gauge",
           "For how long the commit has been under way that is.",
           (double)s->store_writing_ms / 1e3);
    single(w, "store_commits_total", "counter", "Commits to the state database.",
           (double)s->store_commits);
    single(w, "store_queue", "gauge", "Changes that wait for a commit.", (double)s->store_queue);
}

static void object_store(struct writer *w, const struct view_status *s)
{
    const struct blob_health *h = &s->blobs;
    single(w, "blob_store_failing", "gauge", "Whether the object store refused us last.",
           h->failing_since_unix_ms != 0);
    single(w, "blob_store_waiting_blobs", "gauge", "Blobs that the object store has yet to take.",
           (double)h->waiting);
    single(w, "blob_store_waiting_bytes", "gauge", "Their bytes.", (double)h->waiting_bytes);
    single(w, "blob_store_cache_bytes", "gauge", "Bytes of blobs on the disk before the store.",
           (double)h->cache_bytes);
    single(w, "blob_store_requests_total", "counter", "Requests to the object store.",
           (double)s->requests);
    single(w, "blob_store_repeats_total", "counter", "Of them tries after the first.",
           (double)h->repeats);
    single(w, "blob_store_sent_bytes_total", "counter", "Bytes sent to the object store.",
           (double)h->bytes_out);
    single(w, "blob_store_got_bytes_total", "counter", "Bytes got from the object store.",
           (double)h->bytes_in);
}

static void http_and_blobs(struct writer *w, const struct blobstore *store,
                           const struct http_counters *http)
{
    if (store != NULL) {
        single(w, "blob_bytes", "gauge", "Bytes in the blob store.", (double)store->used_bytes);
        single(w, "blobs", "gauge", "Blobs in the store.", (double)store->count);
    }
    if (http == NULL)
        return;
    single(w, "http_requests_total", "counter", "HTTP requests.", (double)http->requests);
    family(w, "http_errors_total", "counter", "HTTP requests answered with an error.");
    plain(w, "http_errors_total", "{class=\"4xx\"}", (double)http->errors_4xx);
    plain(w, "http_errors_total", "{class=\"5xx\"}", (double)http->errors_5xx);
    single(w, "http_connections", "gauge", "Open HTTP connections.", http->connections);
    single(w, "http_streams", "gauge", "Open event streams.", http->streams);
    single(w, "http_streams_cut_total", "counter", "Event streams cut for being slow.",
           (double)http->streams_cut);
}

/* ---- jobs ---------------------------------------------------------------- */

struct job_family {
    const char *name, *type, *help;
    double (*get)(const struct view_job *j);
    const char *more; /* further labels, or NULL */
};

#define GET_JOB(fn, field)                                                                         \
    static double fn(const struct view_job *j)                                                     \
    {                                                                                              \
        return (double)j->field;                                                                   \
    }
GET_JOB(job_round, round)
GET_JOB(job_rounds, rounds)
GET_JOB(job_step, step)
GET_JOB(job_loss, loss)
GET_JOB(job_eval, eval_loss)
GET_JOB(job_speed, images_per_s)
GET_JOB(job_params, params)
GET_JOB(job_up, bytes_up)
GET_JOB(job_down, bytes_down)
GET_JOB(job_data, data_bytes_down)
GET_JOB(job_param_up, per_param_up)
GET_JOB(job_param_down, per_param_down)
GET_JOB(job_ratio, ratio)
GET_JOB(job_bad, bad_samples)
GET_JOB(job_skipped, skipped)
GET_JOB(job_paused, paused)
GET_JOB(job_dollars, dollars)
GET_JOB(job_egress, egress)

static double job_stalled(const struct view_job *j)
{
    return j->stalled[0] != '\0' && !j->paused;
}

static double job_eta(const struct view_job *j)
{
    return j->eta_ms < 0 ? (double)NAN : (double)j->eta_ms / 1000;
}

/* A NULL help continues the family of the row before. */
static const struct job_family job_families[] = {
    {"job_round", "gauge", "Finished rounds.", job_round, NULL},
    {"job_rounds", "gauge", "Planned rounds.", job_rounds, NULL},
    {"job_step", "gauge", "Inner steps of the slowest path.", job_step, NULL},
    {"job_loss", "gauge", "Newest training loss.", job_loss, NULL},
    {"job_eval_loss", "gauge", "Newest held-out loss.", job_eval, NULL},
    {"job_images_per_second", "gauge", "Training speed.", job_speed, NULL},
    {"job_eta_seconds", "gauge", "Expected time to the end.", job_eta, NULL},
    {"job_parameters", "gauge", "Parameters of a path.", job_params, NULL},
    {"job_bytes_total", "counter", "Parameters and data on the wire.", job_up,
     "direction=\"up\",what=\"parameters\""},
    {"job_bytes_total", NULL, NULL, job_down, "direction=\"down\",what=\"parameters\""},
    {"job_bytes_total", NULL, NULL, job_data, "direction=\"down\",what=\"data\""},
    {"job_bytes_per_parameter", "gauge", "Bytes per parameter, worker and round.", job_param_up,
     "direction=\"up\""},
    {"job_bytes_per_parameter", NULL, NULL, job_param_down, "direction=\"down\""},
    {"job_fp32_data_parallel_ratio", "gauge",
     "Parameter bytes that moved, over those that fp32 data-parallel would have moved.", job_ratio,
     NULL},
    {"job_cost_dollars_total", "counter", "What it has cost, up to the ends of leases.",
     job_dollars, "what=\"workers\""},
    {"job_cost_dollars_total", NULL, NULL, job_egress, "what=\"egress\""},
    {"job_bad_samples", "gauge", "Images that were skipped.", job_bad, NULL},
    {"job_skipped_steps", "gauge",
     "Inner steps without an update, since their loss or gradient was no number.", job_skipped,
     NULL},
    {"job_paused", "gauge", "1: a person has paused it, and its tasks are given to nobody.",
     job_paused, NULL},
    {"job_stalled", "gauge", "1: it makes no progress, and nobody has paused it.", job_stalled,
     NULL},
};

static void job_labels(struct writer *w, const struct view_job *j, const char *more)
{
    char id[24];
    (void)snprintf(id, sizeof id, "%" PRIu64, j->id);
    text(w, "{");
    label(w, "job", id);
    text(w, ",");
    label(w, "name", j->name);
    if (more != NULL) {
        text(w, ",");
        text(w, more);
    }
    text(w, "}");
}

static void job_line(void *arg, const struct view_job *j)
{
    struct writer *w = arg;
    double x = w->job->get(j);
    if (isnan(x))
        return;
    text(w, "skerry_");
    text(w, w->job->name);
    job_labels(w, j, w->job->more);
    value(w, x);
}

static void job_state_line(void *arg, const struct view_job *j)
{
    struct writer *w = arg;
    char more[48];
    (void)snprintf(more, sizeof more, "state=\"%s\"", j->state);
    text(w, "skerry_job_state");
    job_labels(w, j, more);
    value(w, 1);
}

static void number_lines(void *arg, const struct view_job *j)
{
    struct writer *w = arg;
    for (size_t i = 0; i < j->job->n_numbers; i++) {
        const struct metric_number *n = &j->job->numbers[i];
        char more[METRIC_NAME_MAX + 16];
        const double newest = w->held_out ? n->held_out : n->value;
        if (isnan(newest))
            continue;
        (void)snprintf(more, sizeof more, "number=\"%s\"", n->name);
        text(w, w->held_out ? "skerry_job_held_out_number" : "skerry_job_number");
        job_labels(w, j, more);
        value(w, newest);
    }
}

static void jobs(struct writer *w)
{
    for (size_t i = 0; i < sizeof job_families / sizeof job_families[0]; i++) {
        w->job = &job_families[i];
        if (w->job->help != NULL)
            family(w, w->job->name, w->job->type, w->job->help);
        view_each_job(w->co, job_line, w);
    }
    family(w, "job_state", "gauge", "1 for the state that the job is in.");
    view_each_job(w->co, job_state_line, w);
    family(w, "job_number", "gauge", "Newest of a number that the job's trainer names.");
    w->held_out = false;
    view_each_job(w->co, number_lines, w);
    family(w, "job_held_out_number", "gauge",
           "Newest of a number that the job's trainer names in an evaluation.");
    w->held_out = true;
    view_each_job(w->co, number_lines, w);
}

/* ---- workers ------------------------------------------------------------- */

struct worker_family {
    const char *name, *type, *help;
    double (*get)(const struct view_worker *v);
    const char *more;
};

#define GET_WORKER(fn, expression)                                                                 \
    static double fn(const struct view_worker *v)                                                  \
    {                                                                                              \
        return (double)(expression);                                                               \
    }
static bool is_there(const struct view_worker *v)
{
    return strcmp(v->state, "lost") != 0 && strcmp(v->state, "left") != 0;
}

static double if_known(double rate)
{
    return rate > 0 ? rate : (double)NAN;
}

GET_WORKER(worker_up, is_there(v))
GET_WORKER(worker_busy, v->worker->task_id != 0)
GET_WORKER(worker_speed, v->images_per_s)
GET_WORKER(worker_loss, v->loss)
GET_WORKER(worker_heartbeat, (double)v->heartbeat_age_ms / 1000)
GET_WORKER(worker_strikes, v->worker->strikes)
GET_WORKER(worker_disk, if_known((double)v->worker->disk_room_bytes))
GET_WORKER(worker_control_up, v->worker->bytes[0])
GET_WORKER(worker_control_down, v->worker->bytes[1])
GET_WORKER(worker_data_up, v->worker->bytes[2])
GET_WORKER(worker_data_down, v->worker->bytes[3])
GET_WORKER(worker_done, v->worker->tasks_done)
GET_WORKER(worker_failed, v->worker->tasks_failed)
GET_WORKER(worker_flops, if_known(v->worker->devices.flops))
GET_WORKER(worker_peak, if_known(v->worker->devices.peak_flops))
GET_WORKER(worker_mfu, if_known(devices_mfu(&v->worker->devices)))

/* For a worker with several devices; unknown numbers have no line. */
#define GET_PLAN(fn, expression)                                                                   \
    static double fn(const struct view_worker *v)                                                  \
    {                                                                                              \
        const struct step_plan *p = &v->worker->devices.plan;                                      \
        return p->devices > 0 ? (double)(expression) : (double)NAN;                                \
    }
GET_PLAN(plan_devices, p->devices)
GET_PLAN(plan_copies, p->copies)
GET_PLAN(plan_stages, p->stages)
GET_PLAN(plan_widest, p->widest_stage)
GET_PLAN(plan_micros, p->micro_batches)
GET_PLAN(plan_idle_before, p->idle_before)
GET_PLAN(plan_idle, p->idle)
GET_PLAN(plan_inside, *p->filled_with ? p->inside : (double)NAN)
GET_PLAN(plan_predicted, p->predicted_s > 0 ? p->predicted_s : (double)NAN)
GET_PLAN(plan_measured, p->measured_s > 0 ? p->measured_s : (double)NAN)

static double is_schedule(const struct view_worker *v, const char *name)
{
    const double devices = plan_devices(v);
    return isnan(devices) ? devices : strcmp(v->worker->devices.plan.schedule, name) == 0;
}
GET_PLAN(plan_data, is_schedule(v, "data"))
GET_PLAN(plan_1f1b, is_schedule(v, "1f1b"))
GET_PLAN(plan_split, is_schedule(v, "split"))
GET_PLAN(plan_bidirectional, is_schedule(v, "bidirectional"))
GET_PLAN(plan_divided, is_schedule(v, "divided"))
GET_PLAN(plan_joined, is_schedule(v, "joined"))
GET_PLAN(fills_images, strstr(p->filled_with, "images") != NULL)
GET_PLAN(fills_captions, strstr(p->filled_with, "captions") != NULL)

static const struct worker_family worker_families[] = {
    {"worker_up", "gauge", "Whether the worker is there.", worker_up, NULL},
    {"worker_busy", "gauge", "Whether the worker holds a task.", worker_busy, NULL},
    {"worker_images_per_second", "gauge", "Training speed, while it trains.", worker_speed, NULL},
    {"worker_loss", "gauge", "Newest training loss.", worker_loss, NULL},
    {"worker_heartbeat_age_seconds", "gauge", "Since its last sign of life.", worker_heartbeat,
     NULL},
    {"worker_strikes", "gauge", "How often it was in quarantine.", worker_strikes, NULL},
    {"worker_disk_room_bytes", "gauge",
     "Room on the disk of its work directory, its cache counted as free.", worker_disk, NULL},
    {"worker_bytes_total", "counter", "Bytes at the worker's sockets.", worker_control_up,
     "plane=\"control\",direction=\"up\""},
    {"worker_bytes_total", NULL, NULL, worker_control_down, "plane=\"control\",direction=\"down\""},
    {"worker_bytes_total", NULL, NULL, worker_data_up, "plane=\"data\",direction=\"up\""},
    {"worker_bytes_total", NULL, NULL, worker_data_down, "plane=\"data\",direction=\"down\""},
    {"worker_tasks_total", "counter", "Tasks that the worker ended.", worker_done,
     "result=\"done\""},
    {"worker_tasks_total", NULL, NULL, worker_failed, "result=\"failed\""},
    {"worker_model_flops_per_second", "gauge", "Of its newest training phase.", worker_flops, NULL},
    {"worker_peak_flops_per_second", "gauge", "Matrix products, as measured there.", worker_peak,
     NULL},
    {"worker_mfu", "gauge", "Model FLOP utilisation, 0 to 1.", worker_mfu, NULL},
    {"worker_step_devices", "gauge", "That share a training step, where they are several.",
     plan_devices, NULL},
    {"worker_pipeline_copies", "gauge", "Copies of the pipeline, or of the whole model.",
     plan_copies, NULL},
    {"worker_pipeline_stages", "gauge", "Stages of each; 1: data parallelism.", plan_stages, NULL},
    {"worker_pipeline_widest_stage", "gauge", "Devices of the stage that has most.", plan_widest,
     NULL},
    {"worker_pipeline_micro_batches", "gauge", "Of each copy, in a step.", plan_micros, NULL},
    {"worker_pipeline_schedule", "gauge", "1 for the schedule of its steps.", plan_data,
     "schedule=\"data\""},
    {"worker_pipeline_schedule", NULL, NULL, plan_1f1b, "schedule=\"1f1b\""},
    {"worker_pipeline_schedule", NULL, NULL, plan_split, "schedule=\"split\""},
    {"worker_pipeline_schedule", NULL, NULL, plan_bidirectional, "schedule=\"bidirectional\""},
    {"worker_pipeline_schedule", NULL, NULL, plan_divided, "schedule=\"divided\""},
    {"worker_pipeline_schedule", NULL, NULL, plan_joined, "schedule=\"joined\""},
    {"worker_step_idle_ratio", "gauge",
     "Predicted share of the devices' time in bubbles, without and with frozen networks in them.",
     plan_idle_before, "filled=\"no\""},
    {"worker_step_idle_ratio", NULL, NULL, plan_idle, "filled=\"yes\""},
    {"worker_step_filled", "gauge", "Whether bubbles run the frozen encoders of these.",
     fills_images, "with=\"images\""},
    {"worker_step_filled", NULL, NULL, fills_captions, "with=\"captions\""},
    {"worker_step_frozen_inside_ratio", "gauge",
     "Predicted share of the frozen networks' work that lies in bubbles.", plan_inside, NULL},
    {"worker_step_seconds", "gauge", "Of a training step on several devices.", plan_predicted,
     "is=\"predicted\""},
    {"worker_step_seconds", NULL, NULL, plan_measured, "is=\"measured\""},
};

/* Of those that are gone only that is told: old rates would count in sums. */
static void worker_line(void *arg, const struct view_worker *v)
{
    struct writer *w = arg;
    double x = w->worker->get(v);
    if (isnan(x) || (!is_there(v) && w->worker->get != worker_up))
        return;
    char id[24];
    (void)snprintf(id, sizeof id, "%" PRIu64, v->worker->id);
    text(w, "skerry_");
    text(w, w->worker->name);
    text(w, "{");
    label(w, "worker", id);
    text(w, ",");
    label(w, "name", v->worker->name);
    if (w->worker->more != NULL) {
        text(w, ",");
        text(w, w->worker->more);
    }
    text(w, "}");
    value(w, x);
}

struct device_family {
    const char *name, *help;
    double (*get)(const struct device_state *d); /* NAN: unknown */
};

#define GET_DEVICE(fn, known, expression)                                                          \
    static double fn(const struct device_state *d)                                                 \
    {                                                                                              \
        return (known) ? (double)(expression) : (double)NAN;                                       \
    }
GET_DEVICE(device_used, d->memory_total > 0, d->memory_used)
GET_DEVICE(device_total, d->memory_total > 0, d->memory_total)
GET_DEVICE(device_utilization, d->utilization >= 0, d->utilization / 100.0)
GET_DEVICE(device_temperature, d->temperature > 0, d->temperature)
GET_DEVICE(device_power, d->power > 0, d->power)
GET_DEVICE(device_ecc, d->ecc_errors >= 0, d->ecc_errors)
GET_DEVICE(device_throttled, d->trouble[0] == '\0', d->throttled[0] != '\0')

static const struct device_family device_families[] = {
    {"device_memory_used_bytes", "Of a CPU: by the worker.", device_used},
    {"device_memory_bytes", "What it has.", device_total},
    {"device_utilization", "Share of the time that it worked, 0 to 1.", device_utilization},
    {"device_temperature_celsius", "Temperature.", device_temperature},
    {"device_power_watts", "Power drawn.", device_power},
    {"device_ecc_errors", "Uncorrected memory errors since its driver was loaded.", device_ecc},
    {"device_throttled", "Whether its clock is held down.", device_throttled},
};

static void device_lines(void *arg, const struct view_worker *v)
{
    struct writer *w = arg;
    char id[24];
    (void)snprintf(id, sizeof id, "%" PRIu64, v->worker->id);
    for (size_t i = 0; is_there(v) && i < v->worker->devices.n; i++) {
        const struct device_state *d = &v->worker->devices.list[i];
        double x = w->device->get(d);
        if (isnan(x))
            continue;
        text(w, "skerry_");
        text(w, w->device->name);
        text(w, "{");
        label(w, "worker", id);
        text(w, ",");
        label(w, "device", d->name);
        text(w, ",");
        label(w, "model", d->model);
        text(w, "}");
        value(w, x);
    }
}

/* Families that do not fit are left out, whole, with a comment: their number grows with the
 * workers, and without them the rest can still be scraped. */
static void workers(struct writer *w)
{
    static const char rest[] = "# More of workers and devices does not fit, and is left out.\n";
    const size_t max = w->out->max, n = sizeof worker_families / sizeof worker_families[0];
    size_t fits = w->out->len;
    w->out->max -= max > sizeof rest ? sizeof rest : 0;
    for (size_t i = 0; i < n && w->rc == 0; i++) {
        w->worker = &worker_families[i];
        if (w->worker->help != NULL) {
            fits = w->out->len;
            family(w, w->worker->name, w->worker->type, w->worker->help);
        }
        view_each_worker(w->co, worker_line, w);
    }
    for (size_t i = 0; i < sizeof device_families / sizeof device_families[0] && w->rc == 0; i++) {
        w->device = &device_families[i];
        fits = w->out->len;
        family(w, w->device->name, "gauge", w->device->help);
        view_each_worker(w->co, device_lines, w);
    }
    w->out->max = max;
    if (w->rc == -ERR_LIMIT) {
        buf_cut(w->out, fits);
        w->rc = buf_append_str(w->out, rest);
    }
}

int http_metrics_write(struct coordinator *co, const struct blobstore *store,
                       const struct http_counters *http, struct buf *out)
{
    struct writer w = {.co = co, .out = out};
    struct view_status s;
    view_status(co, &s);
    whole(&w, &s);
    if (s.far)
        object_store(&w, &s);
    http_and_blobs(&w, store, http);
    jobs(&w);
    if (w.rc == 0)
        workers(&w);
    return w.rc;
}
