/* INGEST: cuts one fetched source archive into shards. */

#include "common/base/base.h"
#include "common/base/file.h"
#include "common/job/family.h"
#include "common/data/dataset.h"
#include "common/data/tokenizer.h"
#include "worker/kinds/kinds.h"
#include "worker/order/work.h"
#include "worker/order/task_check.h"

static int on_shard(void *arg, const struct dataset_shard *shard, struct err *err)
{
    struct work *w = arg;
    struct work_output *o = work_output(w);
    if (!o)
        return err_set(err, -ERR_LIMIT,
                       "the archive makes more than %d shards; raise data.shard_samples",
                       WORK_OUTPUTS_MAX);
    o->role = WORK_SHARD;
    str_copy(o->path, sizeof(o->path), shard->path);
    memcpy(o->sha256, shard->sha256, 32);
    o->size = shard->bytes;
    o->samples = shard->samples;
    o->tokens = shard->tokens;
    o->holdout = shard->holdout;
    return 0;
}

static int on_progress(void *arg, uint64_t done, uint64_t total)
{
    struct work *w = arg;
    for (; total > UINT32_MAX; total >>= 10) /* bytes of texts */
        done >>= 10;
    progress_units(&w->progress, (uint32_t)done, (uint32_t)total);
    return work_stopped(w, NULL) ? -ERR_CANCELLED : 0;
}

static int take_classes(struct work *w, const struct dataset *ds, struct err *err)
{
    size_t n = dataset_classes(ds); /* texts have none */
    w->result.classes = mem_try_array(n ? n : 1, sizeof(char *));
    if (!w->result.classes)
        return err_set(err, -ENOMEM, "out of memory for %zu classes", n);
    for (size_t i = 0; i < n; i++)
        w->result.classes[i] = str_dup(dataset_class(ds, i));
    w->result.n_classes = n;
    return 0;
}

static void take_report(struct work *w, const struct dataset_report *report)
{
    struct work_result *r = &w->result;
    r->samples = report->samples;
    r->bad_count = report->bad_count;
    r->uncaptioned = report->uncaptioned;
    for (size_t i = 0; i < DATASET_BAD_NAMED && i < DATA_BAD_MAX && report->bad[i]; i++) {
        struct data_bad *b = &r->bad[r->n_bad++];
        memset(b, 0, sizeof(*b));
        str_copy(b->key, sizeof(b->key), report->bad[i]);
        str_copy(b->reason, sizeof(b->reason), report->bad_why[i]);
    }
}

/* Without a tokenizer the coordinator takes ids for bytes', and a network has rows for no others.
 */
static int check_vocab(const struct work *w, const struct dataset_options *opt, uint32_t vocab,
                       struct err *err)
{
    if (!opt->text || job_family(&w->spec)->external || vocab <= w->task->vocab)
        return 0;
    return err_set(err, -ERR_CONFIG,
                   "%s has token ids up to %u: name data.tokenizer, or bring the file by data.path",
                   opt->name, vocab - 1);
}

/* The address up to the end of the file's name, which says how the data are packed. */
static char *source_name(const struct work *w)
{
    char *url = str_dup(w->task->ingest->url);
    job_blank_url(url);
    return url;
}

static int open_tokenizer(const struct work *w, struct tokenizer **ret, struct err *err)
{
    char path[CACHE_PATH_MAX];
    if (!w->task->tokenizer)
        return 0;
    work_blob_path(w, w->task->tokenizer->sha256.data, path);
    return tokenizer_open(path, ret, err);
}

/* Opens the fetched archive and cuts it. */
static int cut_source(struct work *w, const struct dataset_options *opt, struct err *err)
{
    struct dataset *ds = NULL;
    struct dataset_report report = {0};
    const struct conf_strs *urls = &w->spec.data.url;
    struct dataset_cut cut = {
        .seed = w->spec.seed,
        .holdout = w->spec.data.holdout,
        .may_hold_all = urls->n > 1,
        .may_hold_none = urls->n > 1 && strcmp(w->task->ingest->url, urls->items[0]) != 0,
        .shard_samples = (uint32_t)w->spec.data.shard_samples,
        .max_bad = (uint32_t)w->spec.data.max_bad,
        .dir = w->temp_dir,
        .on_shard = on_shard,
        .on_progress = on_progress,
        .ctx = w,
    };
    int rc = dataset_open(opt, &ds, err);
    if (rc == 0)
        rc = take_classes(w, ds, err);
    if (rc == 0)
        rc = dataset_cut(ds, &cut, &report, err);
    if (rc == 0)
        rc = check_vocab(w, opt, report.vocab, err);
    if (rc == 0)
        take_report(w, &report);
    dataset_report_release(&report);
    dataset_close(ds);
    return rc;
}

static int check(const Skerry__V1__Task *t, struct err *err)
{
    return task_check_url(t->ingest->url, "ingest.url", err);
}

static int plan(struct engine *e, struct work *w, struct err *err)
{
    char path[CACHE_PATH_MAX];
    work_temp_path(w, "source.tar", path);
    mem_free(w->source_path); /* an earlier plan's */
    w->source_path = str_dup(path);
    return 0;
}

static int run(struct engine *e, struct work *w, struct err *err)
{
    struct tokenizer *tokenizer = NULL;
    char *name = source_name(w);
    uint64_t bytes;
    if (file_size(w->source_path, &bytes, NULL) == 0) /* else reading fails, with a message */
        cache_make_room(w->cache, bytes + bytes / 32 + (64u << 20)); /* see spool_emit() */
    progress_activity(&w->progress, "cutting shards");
    int rc = open_tokenizer(w, &tokenizer, err);
    struct dataset_options opt = {
        .path = w->source_path,
        .name = name,
        .column = w->spec.partition.column,
        .captions = w->task->ingest->captions,
        .text = job_is_text(&w->spec),
        .text_field = w->spec.data.text_field,
        .tokenizer = tokenizer,
        .context = (uint32_t)job_piece(&w->spec),
        .on_progress = on_progress,
        .ctx = w,
    };
    if (rc == 0)
        rc = cut_source(w, &opt, err);
    if (rc < 0 && rc != -ERR_CANCELLED && !str_starts(err->msg, name))
        (void)err_wrap(err, "%s", name);
    tokenizer_free(tokenizer);
    mem_free(name);
    return rc;
}

const struct kind kind_ingest = {
    .id = SKERRY__V1__TASK_KIND__TASK_KIND_INGEST,
    .name = "ingest",
    .part = offsetof(Skerry__V1__Task, ingest),
    .check = check,
    .plan = plan,
    .run = run,
};
