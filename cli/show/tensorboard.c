#include "cli/show/tensorboard.h"

#include <unistd.h>

#include "cli/show/artifacts.h"
#include "cli/base/cli.h"
#include "cli/show/event_file.h"
#include "cli/show/metrics.h"
#include "common/base/clock.h"
#include "common/base/file.h"

#define POLL_MS 2000
#define STATE ".skerry.json"
#define STATE_MAX ((size_t)1 << 20)
#define PICTURE_MAX (EVENT_BYTES_MAX - 1024) /* the event has a few more bytes */
#define FILES_MAX 4096                       /* files of a run: one for each start with news */
#define TAG_MAX 160
#define STEPS_MAX 4096 /* rounds of a path whose steps are kept */

struct tensorboard {
    struct cli *cli;
    uint64_t job;
    char *dir; /* of the run */
    struct file_lock lock;
    struct event_file file; /* closed until there is news */
    /* These describe the events that are written, also before the state on the disk does. */
    bool job_file;    /* the job file is written */
    uint64_t records; /* n of the newest written record */
    json_t *samples;  /* task ids of the written samples */
    char file_name[64];
    uint64_t opened_s;  /* time in the file's name; later files have larger ones */
    uint64_t seen;      /* n of the newest record that was read */
    json_t *steps;      /* "PATH/ROUND": the inner step at its end */
    json_t *cluster;    /* the coordinator's id */
    uint64_t polled_ms; /* 0: not yet */
    bool broken;        /* the last error came from writing, not from fetching */
    bool paths;         /* there are several */
};

/* ---- state ---- */

static char *state_path(const struct tensorboard *tb)
{
    return file_join(tb->dir, STATE);
}

/* Saves the state: everything written so far counts. */
static int save(struct tensorboard *tb, struct err *err)
{
    char *path = state_path(tb);
    json_t *state =
        json_pack("{s:O,s:I,s:b,s:s,s:I,s:I,s:I,s:O}", "cluster", tb->cluster, "job",
                  (json_int_t)tb->job, "job_file", tb->job_file, "file", tb->file_name, "opened_s",
                  (json_int_t)tb->opened_s, "bytes", (json_int_t)tb->file.bytes, "records",
                  (json_int_t)tb->records, "samples", tb->samples);
    char *text = json_dumps(state, JSON_COMPACT);
    int rc = tb->file.fd >= 0 ? event_file_sync(&tb->file, err) : 0;
    if (rc == 0)
        rc = file_write_atomic(path, text, strlen(text), 0644, err);
    free(text);
    json_decref(state);
    mem_free(path);
    return rc;
}

/* Cuts off events that were written after the saved state: they will come again. */
static int cut(const struct tensorboard *tb, const json_t *state, struct err *err)
{
    const long long bytes = cli_int(state, "bytes", -1);
    char *path = file_join(tb->dir, tb->file_name);
    uint64_t size = 0;
    int rc = 0;
    if (file_exists(path)) /* people may remove files that they no longer need */
        rc = file_size(path, &size, err);
    if (rc == 0 && bytes >= 0 && size > (uint64_t)bytes && truncate(path, bytes) < 0)
        rc = err_errno(err, "cutting %s", path);
    mem_free(path);
    return rc;
}

static int take_state(struct tensorboard *tb, const json_t *state, struct err *err)
{
    const json_t *samples = json_object_get(state, "samples");
    str_copy(tb->file_name, sizeof tb->file_name, cli_str(state, "file", ""));
    if (!str_is_name(tb->file_name, sizeof tb->file_name - 1) || !json_is_array(samples))
        return err_set(err, -EINVAL,
                       "%s/" STATE " is damaged; remove %s, and all events are written again",
                       tb->dir, tb->dir);
    if (!json_equal(json_object_get(state, "cluster"), tb->cluster) ||
        cli_int(state, "job", 0) != (long long)tb->job)
        return err_set(err, -EINVAL,
                       "%s has the events of another coordinator's job; name another folder",
                       tb->dir);
    tb->records = (uint64_t)cli_int(state, "records", 0);
    tb->opened_s = (uint64_t)cli_int(state, "opened_s", 0);
    tb->job_file = json_is_true(json_object_get(state, "job_file"));
    json_array_extend(tb->samples, (json_t *)(uintptr_t)samples);
    return cut(tb, state, err);
}

static int load(struct tensorboard *tb, struct err *err)
{
    struct buf text;
    struct file_names names;
    char *path = state_path(tb);
    int rc = 0;
    if (file_exists(path)) {
        rc = file_read(path, STATE_MAX, &text, err);
        if (rc == 0) {
            json_t *state = json_loadb(buf_str(&text), text.len, 0, NULL);
            rc = take_state(tb, state, err);
            json_decref(state);
            buf_release(&text);
        }
    } else if ((rc = file_list(tb->dir, FILES_MAX, &names, err)) == 0) {
        for (size_t i = 0; i < names.n && rc == 0; i++)
            if (strstr(names.items[i], "tfevents"))
                rc = err_set(err, -EINVAL,
                             "%s has events, but no " STATE
                             " that says how far they are; remove %s, and all events are written "
                             "again",
                             tb->dir, tb->dir);
        file_names_release(&names);
    }
    mem_free(path);
    return rc;
}

/* ---- events ---- */

/* The file, made with the first event: a job without news leaves none.  The state names the file
 * before it exists, so that none is ever of unknown origin. */
static struct event_file *file_of(struct tensorboard *tb, struct err *err)
{
    if (tb->file.fd >= 0)
        return &tb->file;
    const uint64_t now_s = clock_wall_ms() / 1000;
    tb->opened_s = now_s > tb->opened_s ? now_s : tb->opened_s + 1;
    (void)snprintf(tb->file_name, sizeof tb->file_name, "events.out.tfevents.%010llu.skerry",
                   (unsigned long long)tb->opened_s);
    char *path = file_join(tb->dir, tb->file_name);
    int rc = save(tb, err);
    if (rc == 0)
        rc = event_file_open(&tb->file, path, err);
    mem_free(path);
    tb->broken = rc < 0;
    return rc < 0 ? NULL : &tb->file;
}

/* "first/path-2/rest", or without the path where there is only one; NULL for no rest. */
static const char *tag_of(const struct tensorboard *tb, const char *first, const json_t *path,
                          const char *rest, char out[TAG_MAX])
{
    char middle[32] = "";
    if (tb->paths && json_is_integer(path)) /* else the mixture of all */
        (void)snprintf(middle, sizeof middle, "/path-%lld", (long long)json_integer_value(path));
    (void)snprintf(out, TAG_MAX, "%s%s%s%s", first, middle, rest ? "/" : "", rest ? rest : "");
    return out;
}

static int scalar(struct tensorboard *tb, const char *tag, int64_t step, double value,
                  struct err *err)
{
    struct event_file *f = isfinite(value) ? file_of(tb, err) : NULL;
    if (!f)
        return isfinite(value) ? err->code : 0;
    int rc = event_scalar(f, tag, step, value, err);
    tb->broken = rc < 0;
    return rc;
}

/* Writes a trainer's numbers, under the replica or "held_out". */
static int write_numbers(struct tensorboard *tb, const json_t *record, const char *whose,
                         int64_t step, struct err *err)
{
    const json_t *value, *numbers = json_object_get(record, "numbers");
    const json_t *path = json_object_get(record, "path");
    const char *name;
    int rc = 0;
    json_object_foreach((json_t *)(uintptr_t)numbers, name, value)
    {
        char tag[TAG_MAX], rest[TAG_MAX / 2 + 32];
        (void)snprintf(rest, sizeof rest, "%.64s/%.31s", name, whose);
        if (rc == 0)
            rc = scalar(tb, tag_of(tb, "numbers", path, rest, tag), step, json_number_value(value),
                        err);
    }
    return rc;
}

static int write_eval(struct tensorboard *tb, const json_t *record, int64_t step, struct err *err)
{
    char tag[TAG_MAX];
    int rc = scalar(tb, tag_of(tb, "held_out", json_object_get(record, "path"), NULL, tag), step,
                    cli_num(record, "eval_loss", NAN), err);
    return rc < 0 ? rc : write_numbers(tb, record, "held_out", step, err);
}

static int write_loss(struct tensorboard *tb, const json_t *record, struct err *err)
{
    char tag[TAG_MAX], replica[32];
    const json_t *path = json_object_get(record, "path");
    const int64_t step = cli_int(record, "step", 0);
    const long long r = cli_int(record, "replica", 0);
    (void)snprintf(replica, sizeof replica, "replica-%lld", r);
    int rc =
        scalar(tb, tag_of(tb, "loss", path, replica, tag), step, cli_num(record, "loss", NAN), err);
    if (rc == 0 && r == 0)
        rc = scalar(tb, tag_of(tb, "lr", path, NULL, tag), step, cli_num(record, "lr", NAN), err);
    return rc < 0 ? rc : write_numbers(tb, record, replica, step, err);
}

static int write_round(struct tensorboard *tb, const json_t *record, struct err *err)
{
    static const char *const names[] = {"seconds", "bytes_up", "bytes_down"};
    char tag[TAG_MAX];
    const json_t *path = json_object_get(record, "path");
    const int64_t step = cli_int(record, "step", 0);
    int rc =
        scalar(tb, tag_of(tb, "loss", path, "round", tag), step, cli_num(record, "loss", NAN), err);
    for (size_t i = 0; i < sizeof names / sizeof *names && rc == 0; i++)
        rc = scalar(tb, tag_of(tb, "round", path, names[i], tag), step,
                    cli_num(record, names[i], NAN), err);
    return rc;
}

/* The step at the end of a path's round; 0 for an untrained model, and for a mixture the step of
 * its first path. */
static int64_t step_of(const struct tensorboard *tb, const json_t *path, long long round)
{
    char key[64];
    (void)snprintf(key, sizeof key, "%lld/%lld", (long long)json_integer_value(path), round);
    return cli_int(tb->steps, key, 0);
}

/* After a restart takes the steps of records that were read before: later ones need them. */
static int take_record(void *arg, const json_t *record, const char *line, size_t len,
                       struct err *err)
{
    struct tensorboard *tb = arg;
    char key[64];
    const char *kind = cli_str(record, "kind", "");
    const json_t *path = json_object_get(record, "path");
    const long long round = cli_int(record, "round", 0);
    const uint64_t n = (uint64_t)cli_int(record, "n", 0);
    int rc = 0;
    if (!strcmp(kind, "round")) {
        (void)snprintf(key, sizeof key, "%lld/%lld", (long long)json_integer_value(path), round);
        json_object_set_new(tb->steps, key, json_integer(cli_int(record, "step", 0)));
        (void)snprintf(key, sizeof key, "%lld/%lld", (long long)json_integer_value(path),
                       round - STEPS_MAX);
        (void)json_object_del(tb->steps, key); /* most often there was none */
    }
    if (n <= tb->records)
        return 0;
    if (!strcmp(kind, "loss"))
        rc = write_loss(tb, record, err);
    else if (!strcmp(kind, "round"))
        rc = write_round(tb, record, err);
    else if (!strcmp(kind, "eval"))
        rc = write_eval(tb, record, cli_int(record, "step", step_of(tb, path, round)), err);
    if (rc == 0)
        tb->records = n;
    return rc;
}

/* -ERR_FORMAT: it is no PNG. */
static int write_picture(struct tensorboard *tb, const char *tag, int64_t step, const char *blob,
                         struct err *err)
{
    struct buf png;
    char *path = file_join(tb->dir, ".picture.png");
    int rc = artifacts_blob(tb->cli, blob, path, err);
    if (rc == 0 && (rc = file_read(path, PICTURE_MAX, &png, err)) == 0) {
        struct event_file *f = file_of(tb, err);
        rc = f ? event_image(f, tag, step, png.data, png.len, err) : err->code;
        tb->broken = rc < 0 && rc != -ERR_FORMAT;
        buf_release(&png);
    }
    (void)file_remove(path, NULL);
    mem_free(path);
    return rc;
}

static int write_text(struct tensorboard *tb, const char *tag, int64_t step, const char *text,
                      struct err *err)
{
    struct event_file *f = file_of(tb, err);
    int rc = f ? event_text(f, tag, step, text, err) : err->code;
    tb->broken = rc < 0;
    return rc;
}

static bool has_sample(const struct tensorboard *tb, const json_t *task)
{
    const json_t *known;
    size_t i;
    json_array_foreach(tb->samples, i, known)
    {
        if (json_equal(known, task))
            return true;
    }
    return false;
}

static int write_sample(struct tensorboard *tb, const json_t *sample, struct err *err)
{
    char tag[TAG_MAX], size[STR_HUMAN_MAX];
    const json_t *path = json_object_get(sample, "path");
    const int64_t step = step_of(tb, path, cli_int(sample, "round", 0));
    const char *text = cli_str(sample, "text", NULL), *blob = cli_str(sample, "blob", NULL);
    (void)tag_of(tb, "samples", path, NULL, tag);
    if (text)
        return write_text(tb, tag, step, text, err);
    if (!blob)
        return 0;
    const bool large = cli_int(sample, "size", 0) > (long long)PICTURE_MAX;
    const int rc = large ? -ERR_FORMAT : write_picture(tb, tag, step, blob, err);
    if (rc != -ERR_FORMAT)
        return rc;
    fprintf(stderr, "skerry: the picture of task %lld is left out, as it %s%s\n",
            cli_int(sample, "task", 0), large ? "has " : "is no PNG",
            large ? cli_bytes(sample, "size", size) : "");
    return 0;
}

/* Writes new samples; forgets those that the coordinator has forgotten. */
static int take_samples(struct tensorboard *tb, const json_t *job, struct err *err)
{
    const json_t *sample, *list = json_object_get(job, "samples");
    json_t *kept = json_array();
    size_t i;
    int rc = 0;
    json_array_foreach(list, i, sample)
    {
        json_t *task = json_object_get(sample, "task");
        if (rc == 0 && !has_sample(tb, task))
            rc = write_sample(tb, sample, err);
        if (rc == 0 || has_sample(tb, task))
            json_array_append(kept, task);
    }
    json_decref(tb->samples);
    tb->samples = kept;
    return rc;
}

/* ---- following ---- */

/* Writes the job file as a block of code. */
static int write_job(struct tensorboard *tb, const json_t *job, struct err *err)
{
    char *text = str_printf("```\n%s\n```\n", cli_str(job, "spec", ""));
    int rc = write_text(tb, "job", 0, text, err);
    mem_free(text);
    tb->job_file = rc == 0;
    return rc;
}

int tensorboard_poll(void *arg, const json_t *job)
{
    struct tensorboard *tb = arg;
    struct err err = {0}, why = {0};
    const uint64_t now = clock_now_ms(), before = tb->file.bytes;
    const bool last = cli_job_ended(cli_str(job, "state", ""));
    if (!job || (tb->polled_ms && now - tb->polled_ms < POLL_MS && !last))
        return 0;
    tb->polled_ms = now;
    tb->paths = cli_int(job, "paths", 1) > 1;
    tb->broken = false;
    int rc = 0;
    if (!tb->job_file)
        rc = write_job(tb, job, &err);
    if (rc == 0)
        rc = metrics_each(tb->cli, tb->job, &tb->seen, take_record, tb, &err);
    if (rc == 0)
        rc = take_samples(tb, job, &err);
    if (tb->file.bytes != before && !tb->broken && save(tb, &why) < 0) {
        tb->broken = true;
        err = why;
    }
    if (!tb->broken && !(rc < 0 && last && rc != -ERR_CANCELLED))
        return 0;
    (void)cli_fail(&err);
    return 1;
}

static int open_run(struct tensorboard *tb, const char *dir, struct err *err)
{
    json_t *job = NULL, *status = NULL;
    int rc =
        cli_call(tb->cli, "GET", NULL, &job, err, "/v1/jobs/%llu", (unsigned long long)tb->job);
    if (rc == 0)
        rc = cli_call(tb->cli, "GET", NULL, &status, err, "/v1/status");
    if (rc == 0) {
        const char *name = cli_str(job, "name", "");
        char *run = str_printf("%s-%llu", str_is_name(name, 64) ? name : "job",
                               (unsigned long long)tb->job);
        tb->dir = file_join(dir, run);
        tb->cluster = json_incref(json_object_get(status, "cluster"));
        mem_free(run);
        rc = file_mkdirs(tb->dir, 0777, err);
    }
    json_decref(status);
    json_decref(job);
    if (rc == 0)
        rc = file_lock_dir(tb->dir, ".lock", &tb->lock, err);
    return rc < 0 ? rc : load(tb, err);
}

int tensorboard_open(struct cli *cli, uint64_t job, const char *dir, struct tensorboard **ret,
                     struct err *err)
{
    struct tensorboard *tb = mem_alloc(sizeof *tb);
    *tb = (struct tensorboard){.cli = cli,
                               .job = job,
                               .lock = {.fd = -1},
                               .file = {.fd = -1},
                               .samples = json_array(),
                               .steps = json_object()};
    int rc = open_run(tb, dir, err);
    if (rc < 0)
        tensorboard_close(tb);
    else
        *ret = tb;
    return rc;
}

void tensorboard_close(struct tensorboard *tb)
{
    if (!tb)
        return;
    event_file_close(&tb->file);
    file_unlock(&tb->lock);
    json_decref(tb->samples);
    json_decref(tb->steps);
    json_decref(tb->cluster);
    mem_free(tb->dir);
    mem_free(tb);
}
