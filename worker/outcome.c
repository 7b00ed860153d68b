#include "worker/outcome.h"

#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/log.h"
#include "worker/order/work.h"

/* Reads of protobuf-c structs need char pointers; nothing writes through them. */
static char *text(const char *s)
{
    return (char *)(uintptr_t)s;
}

static ProtobufCBinaryData hash_of(const uint8_t sha256[32])
{
    return (ProtobufCBinaryData){32, (uint8_t *)(uintptr_t)sha256};
}

static Skerry__V1__Blob *blob_new(const struct work_output *o)
{
    Skerry__V1__Blob *b = mem_alloc(sizeof(*b));
    skerry__v1__blob__init(b);
    b->sha256 = hash_of(o->sha256);
    b->size = o->size;
    return b;
}

static void add_contribution(Skerry__V1__ReportRequest *r, const struct work_output *o)
{
    Skerry__V1__Contribution *c = mem_alloc(sizeof(*c));
    skerry__v1__contribution__init(c);
    c->module_id = o->module_id;
    c->base_version = o->base_version;
    c->samples = o->samples;
    c->blob = blob_new(o);
    r->contributions[r->n_contributions++] = c;
}

static void add_shard(Skerry__V1__ReportRequest *r, const struct work_output *o)
{
    Skerry__V1__ShardInfo *s = mem_alloc(sizeof(*s));
    skerry__v1__shard_info__init(s);
    s->blob = blob_new(o);
    s->samples = (uint32_t)o->samples;
    s->holdout = o->holdout;
    s->tokens = o->tokens;
    s->partition = o->partition;
    r->shards[r->n_shards++] = s;
}

/* Adds every file that the task made, in the field of its role. */
static void add_outputs(Skerry__V1__ReportRequest *r, const struct work_result *res)
{
    r->contributions = mem_alloc_array(res->n_outputs + 1, sizeof(*r->contributions));
    r->shards = mem_alloc_array(res->n_outputs + 1, sizeof(*r->shards));
    for (size_t i = 0; i < res->n_outputs; i++) {
        const struct work_output *o = &res->outputs[i];
        switch (o->role) {
        case WORK_CONTRIBUTION:
            add_contribution(r, o);
            break;
        case WORK_SHARD:
            add_shard(r, o);
            break;
        case WORK_ASSIGNMENT:
            r->assignment = blob_new(o);
            break;
        case WORK_MOMENTS:
            r->moments = blob_new(o);
            break;
        case WORK_RESULT:
            r->output = blob_new(o);
            break;
        }
    }
}

static void add_bad(Skerry__V1__ReportRequest *r, const struct work_result *res)
{
    r->bad = mem_alloc_array(res->n_bad + 1u, sizeof(*r->bad));
    for (unsigned i = 0; i < res->n_bad; i++) {
        Skerry__V1__BadSample *b = mem_alloc(sizeof(*b));
        skerry__v1__bad_sample__init(b);
        b->shard_sha256 = hash_of(res->bad[i].shard_sha256);
        b->key = text(res->bad[i].key);
        b->reason = text(res->bad[i].reason);
        r->bad[r->n_bad++] = b;
    }
    r->bad_count = res->bad_count;
}

static void add_rows(Skerry__V1__ReportRequest *r, const struct work_result *res)
{
    r->rows = mem_alloc_array(res->n_rows + 1, sizeof(*r->rows));
    for (size_t i = 0; i < res->n_rows; i++) {
        Skerry__V1__Row *row = mem_alloc(sizeof(*row));
        skerry__v1__row__init(row);
        row->name = text(res->rows[i].name);
        row->value = res->rows[i].value;
        row->unit = text(res->rows[i].unit);
        r->rows[r->n_rows++] = row;
    }
}

static Skerry__V1__Failure fault_of(int code)
{
    switch (code) {
    case -ERR_DEVICE:
        return SKERRY__V1__FAILURE__FAILURE_DEVICE;
    case -ERR_TRAINER:
        return SKERRY__V1__FAILURE__FAILURE_TRAINER;
    case -ENOMEM:
        return SKERRY__V1__FAILURE__FAILURE_MEMORY;
    case -EDOM:
        return SKERRY__V1__FAILURE__FAILURE_DIVERGED;
    case -EAGAIN:
    case -ETIMEDOUT:
    case -ECONNREFUSED:
    case -ECONNRESET:
    case -EPIPE:
    case -EHOSTUNREACH:
    case -ENETUNREACH:
    case -ENOSPC:   /* the coordinator's disk is full; our own counts as memory */
    case -ERR_AUTH: /* tickets expire */
    case -ERR_REMOTE:
        return SKERRY__V1__FAILURE__FAILURE_NETWORK;
    default:
        return SKERRY__V1__FAILURE__FAILURE_TASK;
    }
}

Skerry__V1__ReportRequest *outcome_new(uint64_t task_id, uint32_t attempt, struct work *w,
                                       const struct outcome_failure *failure,
                                       struct progress_view *view)
{
    Skerry__V1__ReportRequest *r = mem_alloc(sizeof(*r));
    skerry__v1__report_request__init(r);
    r->task_id = task_id;
    r->attempt = attempt;
    r->failed = failure->code < 0;
    if (r->failed) {
        r->retryable = failure->retryable;
        r->failure = fault_of(failure->code);
        if (r->failure == SKERRY__V1__FAILURE__FAILURE_NETWORK && !r->retryable)
            r->failure = SKERRY__V1__FAILURE__FAILURE_TASK; /* a source refuses everybody */
        if (r->failure == SKERRY__V1__FAILURE__FAILURE_TASK && w && w->kind->external)
            r->failure = SKERRY__V1__FAILURE__FAILURE_TRAINER; /* the fault is in the job */
        r->reason = text(failure->reason);
        return r;
    }
    const struct work_result *res = &w->result;
    r->steps = res->steps;
    r->skipped = res->skipped;
    r->samples = res->samples;
    r->loss_first = res->loss_first;
    r->loss_last = res->loss_last;
    r->loss_mean = res->loss_mean;
    r->seconds = res->seconds;
    r->waited_ms = res->waited_ms;
    r->steps_ms = w->times.ns[TIMES_STEPS] / CLOCK_NS_PER_MS;
    r->loss_sum = res->loss_sum;
    r->units = res->units;
    r->bytes = res->bytes;
    r->numbers = (double *)(uintptr_t)res->numbers; /* only read */
    r->n_numbers = res->n_numbers;
    r->sizes = res->sizes;
    r->n_sizes = res->n_sizes;
    if (res->text)
        r->text = text(res->text);
    r->trace = (ProtobufCBinaryData){res->trace.len, (uint8_t *)(uintptr_t)buf_str(&res->trace)};
    r->classes = res->classes;
    r->n_classes = res->n_classes;
    r->uncaptioned = res->uncaptioned;
    add_outputs(r, res);
    add_bad(r, res);
    add_rows(r, res);
    progress_take(&w->progress, view);
    r->points = view->told.points;
    r->n_points = view->told.n_points;
    r->number_names = view->told.number_names;
    r->n_number_names = view->told.n_number_names;
    return r;
}

void outcome_free(Skerry__V1__ReportRequest *r)
{
    if (!r)
        return;
    for (size_t i = 0; i < r->n_contributions; i++) {
        mem_free(r->contributions[i]->blob);
        mem_free(r->contributions[i]);
    }
    for (size_t i = 0; i < r->n_shards; i++) {
        mem_free(r->shards[i]->blob);
        mem_free(r->shards[i]);
    }
    for (size_t i = 0; i < r->n_bad; i++)
        mem_free(r->bad[i]);
    for (size_t i = 0; i < r->n_rows; i++)
        mem_free(r->rows[i]);
    mem_free(r->rows);
    mem_free(r->contributions);
    mem_free(r->shards);
    mem_free(r->bad);
    mem_free(r->output);
    mem_free(r->moments);
    mem_free(r->assignment);
    mem_free(r);
}

bool outcome_own(int code)
{
    return code == -ERR_DEVICE || code == -ENOMEM;
}

static bool is_full(int code)
{
    return code == -EDQUOT || code == -EFBIG;
}

int outcome_blame(int code, int disk, bool uploading)
{
    if (outcome_own(code))
        return code;
    if (disk == -ENOSPC || is_full(disk) || is_full(code) || (code == -ENOSPC && !uploading))
        return -ENOMEM;
    return disk == 0 ? code : -ERR_DEVICE;
}

bool outcome_retryable(int code, bool ingest)
{
    switch (code) {
    case -ERR_CONFIG:
        return false;
    case -ERR_FORMAT:
    case -ERR_LIMIT:
    case -ERR_NOTFOUND:
    case -ERR_AUTH:
    case -ERR_REMOTE:
        return !ingest;
    default:
        return true;
    }
}

bool outcome_breaks(int code, int blamed, const char *detail, const char *disk, struct err *ret)
{
    if (code == -ERR_DEVICE)
        (void)err_set(ret, code, "the device failed: %s", detail);
    else if (blamed == -ERR_DEVICE)
        (void)err_set(ret, -EIO,
                      "the work dir cannot be used any more: %s; see to it, or give another "
                      "--work-dir, and start workerd again",
                      disk);
    return code == -ERR_DEVICE || blamed == -ERR_DEVICE;
}

int outcome_try_disk(const char *tmp_dir, struct err *err)
{
    char *path = file_join(tmp_dir, "probe");
    int rc = file_write_atomic(path, path, strlen(path), 0600, err);
    if (rc == 0)
        rc = file_remove(path, err);
    mem_free(path);
    return rc;
}

void outcome_log(uint64_t task_id, const struct work *w)
{
    const struct work_result *r = &w->result;
    if (r->steps > 0)
        log_info("agent",
                 "done task=%" PRIu64 " train steps=%u samples=%" PRIu64
                 " loss=%.4f seconds=%.2f bad=%u skipped=%u",
                 task_id, r->steps, r->samples, (double)r->loss_mean, (double)r->seconds,
                 r->bad_count, r->skipped);
    else
        log_info("agent", "done task=%" PRIu64 " %s seconds=%.2f", task_id, w->kind->name,
                 (double)r->seconds);
}
