#include "worker/order/work.h"

#include <sys/stat.h>
#include <unistd.h>

#include "common/base/file.h"
#include "common/base/log.h"
#include "common/data/tokenizer.h"
#include "common/job/family.h"
#include "worker/order/task_check.h"

/* The message belongs to the connection's arena: pack it and unpack it into ours. */
static int copy_task(struct work *w, const Skerry__V1__Task *task, struct err *err)
{
    size_t size = skerry__v1__task__get_packed_size(task);
    uint8_t *packed = mem_try(size ? size : 1);
    if (!packed)
        return err_set(err, -ENOMEM, "out of memory for a task of %zu bytes", size);
    skerry__v1__task__pack(task, packed);
    w->task = skerry__v1__task__unpack(pbmem_allocator(&w->mem), size, packed);
    mem_free(packed);
    if (!w->task)
        return err_set(err, -ERR_LIMIT, "the task takes more than %u bytes of memory",
                       WORK_MESSAGE_MAX);
    return 0;
}

static int check_labels(const struct work *w, struct err *err)
{
    if (w->kind->labels && w->task->vocab == 0 && w->task->n_classes == 0)
        return err_set(err, -ERR_FORMAT, "task: classes is empty");
    return 0;
}

/* Sizes of latents are believed only where a VAE is opened, which is compared with them: pictures
 * of other sizes than their network reads would be read past their ends. */
static int check_input(const struct work *w, struct err *err)
{
    const Skerry__V1__NetworkInput *in = w->task->input;
    bool vae = false;
    if (!in || (in->channels == 0 && in->side == 0))
        return 0;
    for (size_t i = 0; i < w->task->n_encoders; i++)
        vae = vae || w->task->encoders[i]->part == SKERRY__V1__ENCODER_PART__ENCODER_PART_VAE;
    if (vae && job_has_latents(&w->spec) && in->channels > 0 && in->side > 0)
        return 0;
    return err_set(err, -ERR_FORMAT,
                   "task: input has %u channels of side %u, expected those that a VAE makes, and "
                   "none without one",
                   in->channels, in->side);
}

/* Its root was made at the start; if it is gone, it is not made again. */
static int make_temp_dir(struct work *w, struct err *err)
{
    (void)file_remove_tree(w->temp_dir, NULL); /* the leftovers of an attempt before a crash */
    if (mkdir(w->temp_dir, 0700) < 0 && errno != EEXIST)
        return err_errno(err, "cannot create %s", w->temp_dir);
    return 0;
}

static struct work *bare(struct cache *cache)
{
    struct work *w = mem_alloc(sizeof(*w));
    w->cache = cache;
    pbmem_init(&w->mem, WORK_MESSAGE_MAX);
    progress_init(&w->progress);
    atomic_init(&w->stop, WORK_GO);
    return w;
}

int work_new_bare(struct cache *cache, const char *tmp_root, const char *name, struct work **ret,
                  struct err *err)
{
    struct work *w = bare(cache);
    w->temp_dir = str_printf("%s/%s", tmp_root, name);
    int rc = make_temp_dir(w, err);
    if (rc < 0)
        work_free(w);
    else
        *ret = w;
    return rc;
}

int work_new(const struct kind *const *kinds, const Skerry__V1__Task *task, struct cache *cache,
             const char *tmp_root, struct work **ret, struct err *err)
{
    const struct kind *kind = NULL;
    int rc = task_check(kinds, task, &kind, err);
    if (rc < 0)
        return rc;
    struct work *w = bare(cache);
    w->kind = kind;
    rc = copy_task(w, task, err);
    if (rc == 0)
        rc = job_parse_taken(w->task->spec, strlen(w->task->spec), "the job", &w->spec, err);
    if (rc == 0 && job_family(&w->spec)->external)
        w->kind = kind_external(kinds, kind);
    if (rc == 0)
        rc = check_labels(w, err);
    if (rc == 0)
        rc = check_input(w, err);
    if (rc == 0) {
        w->temp_dir = str_printf("%s/task-%" PRIu64 "-%u", tmp_root, w->task->id, w->task->attempt);
        rc = make_temp_dir(w, err);
    }
    if (rc < 0) {
        work_free(w);
        return rc;
    }
    *ret = w;
    return 0;
}

void work_free(struct work *w)
{
    if (!w)
        return;
    for (size_t i = 0; i < w->n_needs; i++)
        cache_unpin(w->cache, w->needs[i].sha256);
    mem_free(w->needs);
    mem_free(w->result.outputs);
    mem_free(w->result.rows);
    for (size_t i = 0; i < w->result.n_classes; i++)
        mem_free(w->result.classes[i]);
    mem_free(w->result.classes);
    mem_free(w->result.text);
    buf_release(&w->result.trace);
    mem_free(w->result.sizes);
    struct err err = {0};
    if (w->temp_dir && file_remove_tree(w->temp_dir, &err) < 0)
        log_warn("work", "temporary files stay behind: %s", err.msg);
    mem_free(w->temp_dir);
    mem_free(w->source_path);
    job_release(&w->spec);
    progress_release(&w->progress);
    pbmem_release(&w->mem);
    mem_free(w);
}

bool work_stopped(struct work *w, struct err *err)
{
    int stop = atomic_load(&w->stop);
    if (stop == WORK_GO)
        return false;
    (void)err_set(err, -ERR_CANCELLED, "%s",
                  stop == WORK_LEAVING ? "the worker is leaving" : "the task was taken back");
    return true;
}

bool work_abandoned(struct work *w)
{
    const int stop = atomic_load(&w->stop);
    return stop != WORK_GO && !(stop == WORK_REVOKED && atomic_load(&w->job_goes_on));
}

int work_need(struct work *w, const uint8_t sha256[32], uint64_t size, const char *url,
              const char *what, struct err *err)
{
    for (size_t i = 0; i < w->n_needs; i++)
        if (memcmp(w->needs[i].sha256, sha256, 32) == 0)
            return 0;
    struct work_need *grown = mem_try_realloc_array(w->needs, w->n_needs + 1, sizeof(*grown));
    if (!grown)
        return err_set(err, -ENOMEM, "out of memory for %zu blobs", w->n_needs + 1);
    w->needs = grown;
    struct work_need *n = &w->needs[w->n_needs++];
    *n = (struct work_need){.size = size, .url = url};
    memcpy(n->sha256, sha256, 32);
    str_copy(n->what, sizeof(n->what), what);
    cache_pin(w->cache, sha256);
    return 0;
}

int work_need_blob(struct work *w, const Skerry__V1__Blob *blob, const char *what, struct err *err)
{
    return work_need(w, blob->sha256.data, blob->size, blob->url, what, err);
}

int work_need_ranges(struct work *w, Skerry__V1__Range *const *ranges, size_t n, struct err *err)
{
    int rc = 0;
    for (size_t i = 0; i < n && rc == 0; i++)
        rc = work_need_blob(w, ranges[i]->shard, "a data shard", err);
    return rc;
}

void work_check_needs(struct work *w)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < w->n_needs && !work_stopped(w, NULL); i++) {
        struct work_need *n = &w->needs[i];
        struct err err = {0};
        int rc = cache_check(w->cache, n->sha256, n->size, &err);
        n->missing = rc < 0;
        bytes += n->missing ? n->size : 0;
        if (rc < 0 && rc != -ERR_NOTFOUND)
            log_warn("work", "%s: %s; fetching it again", n->what, err.msg);
    }
    (void)cache_reserve(w->cache, bytes, NULL); /* where there is too little, fetching says so */
}

void work_blob_path(const struct work *w, const uint8_t sha256[32], char ret[CACHE_PATH_MAX])
{
    cache_path(w->cache, sha256, ret);
}

struct work_output *work_output(struct work *w)
{
    struct work_result *r = &w->result;
    if (r->n_outputs == WORK_OUTPUTS_MAX)
        return NULL;
    if (r->n_outputs == r->cap) {
        const size_t cap = r->cap ? r->cap * 2 : 4;
        struct work_output *grown = mem_try_realloc_array(r->outputs, cap, sizeof(*grown));
        if (!grown)
            return NULL;
        r->outputs = grown;
        r->cap = cap;
    }
    struct work_output *o = &r->outputs[r->n_outputs++];
    memset(o, 0, sizeof(*o));
    return o;
}

void work_row(struct work *w, double value, const char *unit, const char *fmt, ...)
{
    struct work_result *r = &w->result;
    if (!r->rows)
        r->rows = mem_alloc_array(WORK_ROWS_MAX, sizeof(*r->rows));
    if (r->n_rows == WORK_ROWS_MAX)
        return;
    struct work_row *row = &r->rows[r->n_rows++];
    va_list args;
    va_start(args, fmt);
    vsnprintf(row->name, sizeof(row->name), fmt, args);
    va_end(args);
    row->value = value;
    str_copy(row->unit, sizeof(row->unit), unit);
}

int work_output_new(struct work *w, enum work_role role, const char *name, struct work_output **ret,
                    struct err *err)
{
    if (w->result.n_outputs == WORK_OUTPUTS_MAX)
        return err_set(err, -ERR_LIMIT, "the task makes more than %d files", WORK_OUTPUTS_MAX);
    struct work_output *o = work_output(w);
    if (!o)
        return err_set(err, -ENOMEM, "out of memory for %zu files", w->result.n_outputs + 1);
    o->role = role;
    work_temp_path(w, name, o->path);
    *ret = o;
    return 0;
}

void work_keep_output(const struct work *w, const struct work_output *o)
{
    char to[CACHE_PATH_MAX];
    cache_path(w->cache, o->sha256, to);
    if (o->size > 0 && link(o->path, to) == 0)
        (void)cache_added(w->cache, o->sha256, NULL);
}

void work_temp_path(const struct work *w, const char *name, char ret[CACHE_PATH_MAX])
{
    snprintf(ret, CACHE_PATH_MAX, "%s/%s", w->temp_dir, name);
}

int work_ranges(const struct work *w, Skerry__V1__Range *const *ranges, size_t n,
                struct data_range **ret, struct err *err)
{
    /* The paths follow the table, in the same allocation. */
    struct data_range *out = mem_try_zero(n * (sizeof(*out) + CACHE_PATH_MAX));
    if (!out)
        return err_set(err, -ENOMEM, "out of memory for %zu ranges", n);
    char *paths = (char *)(out + n);
    for (size_t i = 0; i < n; i++) {
        char *path = paths + i * CACHE_PATH_MAX;
        work_blob_path(w, ranges[i]->shard->sha256.data, path);
        out[i].path = path;
        out[i].start = ranges[i]->start;
        out[i].count = ranges[i]->count;
        out[i].partition = (int32_t)ranges[i]->partition;
        memcpy(out[i].sha256, ranges[i]->shard->sha256.data, 32);
    }
    *ret = out;
    return 0;
}

int work_own_file(int rc, struct err *err)
{
    if (rc != -ERR_FORMAT && rc != -ERR_LIMIT && rc != -ERR_NOTFOUND)
        return rc;
    if (err)
        err->code = -ERR_CONFIG;
    return -ERR_CONFIG;
}

int work_tokenizer(const struct work *w, struct tokenizer **ret, struct err *err)
{
    const Skerry__V1__Blob *b = w->task->tokenizer;
    char path[CACHE_PATH_MAX];
    if (!b) {
        *ret = w->task->vocab > TOKENIZER_BYTES_VOCAB ? NULL : tokenizer_bytes();
        return 0;
    }
    work_blob_path(w, b->sha256.data, path);
    return work_own_file(tokenizer_open(path, ret, err), err);
}
