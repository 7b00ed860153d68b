#include "cli/job/job_file.h"

#include <unistd.h>

#include "cli/base/cli.h"
#include "cli/base/model_folder.h"
#include "common/base/moving.h"
#include "common/base/clock.h"
#include "cli/job/folders.h"
#include "cli/job/upload.h"
#include "cli/job/users_weights.h"
#include "common/job/family.h"
#include "common/base/file.h"
#include "common/job/recipe.h"
#include "common/data/captions.h"
#include "common/data/tokenizer.h"

#define GAIN_MAX 2       /* longest outer step, in lengths of the training before it */
#define LOOK_IMAGES 4096 /* seconds, of common sizes */

/* A path of the job file as the user means it: absolute, beside the job file, or from here. */
char *job_file_find(const char *job_path, const char *given)
{
    const char *slash = strrchr(job_path, '/');
    if (given[0] == '/' || !slash)
        return str_dup(given);
    char *dir = str_ndup(job_path, (size_t)(slash - job_path));
    char *beside = file_join(dir, given);
    mem_free(dir);
    if (file_exists(beside) || strpbrk(given, "*?{") || !file_exists(given))
        return beside; /* the error for a missing file names this path */
    mem_free(beside);
    return str_dup(given);
}

/* Checks that a job which writes texts has a prompt to begin with. */
static int check_prompt(const struct job_file *job, struct err *err)
{
    const struct tokenizer *t = job->tokenizer;
    const char *prompt = job->spec.sample.prompt;
    struct tokens ids = {0};
    int rc = tokenizer_encode(t, prompt, strlen(prompt), TOKENIZER_SPECIAL, &ids, err);
    if (rc == 0 && ids.n == 0 && tokenizer_bos(t) < 0 && tokenizer_eos(t) < 0)
        rc = err_set(err, -ERR_CONFIG,
                     "is empty, but data.tokenizer has no token that begins a text, such as "
                     "<|endoftext|>: give a prompt");
    tokens_release(&ids);
    return rc;
}

static int open_tokenizer(const char *job_path, struct job_file *job, struct err *err)
{
    const char *given = job->spec.data.tokenizer;
    if (!job_is_text(&job->spec))
        return given ? err_set(err, -ERR_CONFIG,
                               "%s: data.tokenizer is given, but model.type %s "
                               "is for %s",
                               job_path, job_family(&job->spec)->name, job_family(&job->spec)->what)
                     : 0;
    if (!given) {
        job->tokenizer = tokenizer_bytes();
        return 0;
    }
    job->tokenizer_path = job_file_find(job_path, given);
    int rc = tokenizer_open(job->tokenizer_path, &job->tokenizer, err);
    if (rc < 0)
        return err_wrap(err, "%s: data.tokenizer", job_path);
    if (!job_family(&job->spec)->external) /* a trainer may use a prompt in any way */
        rc = check_prompt(job, err);
    return rc < 0 ? err_wrap(err, "%s: sample.prompt", job_path) : 0;
}

static int check_images(const char *job_path, const struct job_file *job, struct err *err)
{
    uint64_t n = dataset_samples(job->dataset);
    if (n < (uint64_t)job->spec.train.batch)
        return err_set(
            err, -ERR_CONFIG,
            "%s: train.batch is %d but the dataset has only %llu image%s; lower the batch "
            "or add images",
            job_path, job->spec.train.batch, (unsigned long long)n, str_plural(n));
    uint64_t shards = n / (uint64_t)job->spec.data.shard_samples + 2;
    if (shards > DATASET_SHARDS_MAX) /* the last ones, held out or not, may be short */
        return err_set(err, -ERR_CONFIG,
                       "%s: %llu images make up to %llu shards of %d, at most %d are possible; "
                       "raise data.shard_samples",
                       job_path, (unsigned long long)n, (unsigned long long)shards,
                       job->spec.data.shard_samples, DATASET_SHARDS_MAX);
    return 0;
}

/* Tars are read whole when they are opened. */
static int show_look(void *ctx, uint64_t done, uint64_t total)
{
    struct moving *show = ctx;
    char line[64];
    if (cli_interrupted)
        return -ERR_CANCELLED;
    if (!moving_due(show))
        return 0;
    (void)snprintf(line, sizeof line, "%s: %llu samples", show->what, (unsigned long long)done);
    moving_say(line);
    return 0;
}

static int open_dataset(const char *job_path, struct job_file *job, struct err *err)
{
    const struct job_spec *s = &job->spec;
    bool text = job_is_text(&job->spec);
    if (s->data.holdout_path && (!text || !s->data.path))
        return err_set(err, -ERR_CONFIG,
                       "%s: data.holdout_path is for texts with a data.path; use data.holdout",
                       job_path);
    if (!s->data.path || s->recipe.teacher)
        return 0;
    job->data_path = job_file_find(job_path, s->data.path);
    char *holdout = s->data.holdout_path ? job_file_find(job_path, s->data.holdout_path) : NULL;
    struct moving show = moving_begin("looking through the data");
    struct dataset_options opt = {
        .path = job->data_path,
        .column = s->partition.column,
        .captions = job_has_captions(s),
        .text = text,
        .holdout_path = holdout,
        .text_field = s->data.text_field,
        .tokenizer = s->data.tokenizer ? job->tokenizer : NULL,
        .context = (uint32_t)job_piece(s),
        .on_progress = show_look,
        .ctx = &show,
    };
    int rc = dataset_open(&opt, &job->dataset, err);
    moving_clear();
    if (rc < 0)
        rc = err_wrap(err, "%s: %s", job_path, holdout ? "data" : "data.path");
    mem_free(holdout);
    return rc < 0 || text ? rc : check_images(job_path, job, err);
}

static int check_trainer(const char *job_path, struct job_file *job, struct err *err)
{
    if (!job->spec.trainer.files)
        return 0;
    job->trainer_files = job_file_find(job_path, job->spec.trainer.files);
    size_t files = 0;
    int rc = folder_check(FOLDER_TRAINER, job->trainer_files, &files, err);
    if (rc == 0 && files == 0)
        rc = err_set(err, -ERR_CONFIG, "trainer.files is %s, which has no files",
                     job->trainer_files);
    return rc < 0 ? err_wrap(err, "%s", job_path) : 0;
}

static int check_warm_start(const char *job_path, struct job_file *job, struct err *err)
{
    const char *given = job->spec.model.warm_start;
    if (!given)
        return 0;
    job->warm_start = job_file_find(job_path, given);
    if (users_weights_check(job->warm_start, &job->spec, err) < 0)
        return err_wrap(err, "%s: model.warm_start", job_path);
    if (job_family(&job->spec)->external)
        return 0;
    const size_t classes = job->dataset ? dataset_classes(job->dataset) : 0;
    const char **names = mem_alloc_array(classes + 1, sizeof *names);
    for (size_t i = 0; i < classes; i++)
        names[i] = dataset_class(job->dataset, i);
    const struct model_folder_facts facts = {
        .tokenizer = job->tokenizer,
        .classes = classes,
        .class_names = names,
        .channels = (uint32_t)job->encoders.channels,
        .side = (uint32_t)job->encoders.side,
        .caption = (uint32_t)job->encoders.caption,
        .caption_tokens = (uint32_t)job->encoders.caption_tokens,
    };
    const int rc = model_folder_check(job->warm_start, &job->spec, &facts, err);
    mem_free(names);
    return rc < 0 ? err_wrap(err, "%s", job_path) : 0;
}

static char *find_beside(void *arg, const char *given)
{
    return job_file_find(arg, given);
}

static int open_encoders(const char *job_path, struct job_file *job, struct err *err)
{
    char *path = str_dup(job_path);
    int rc = encoders_open(&job->spec, find_beside, path, &job->encoders, err);
    mem_free(path);
    return rc < 0 ? err_wrap(err, "%s", job_path) : 0;
}

/* Warns of momentum that only adds up: with a single replica, because no other contributions oppose
 * its own, and in the first rounds of a fresh model, where all agree. */
static void warn_of_momentum(const char *job_path, const struct job_spec *s, bool alone)
{
    const struct job_outer *o = &s->outer;
    const double gain = o->lr / (1 - o->momentum);
    if (gain <= GAIN_MAX || o->warmup > 0)
        return;
    if (alone)
        fprintf(stderr,
                "warning: %s: with one replica of each module, outer.lr %g and outer.momentum %g "
                "make steps up to %.1f times as long as what was trained, and the loss jumps after "
                "the first rounds; leave both out to train plainly\n",
                job_path, o->lr, o->momentum, gain);
    else if (!s->model.warm_start)
        fprintf(stderr,
                "warning: %s: the first updates of a fresh model all point the same "
                "way; with outer.warmup 0, outer.lr %g and outer.momentum %g stretch "
                "them to up to %.1f times their length, and the loss jumps in the first"
                " rounds; leave outer.warmup out\n",
                job_path, o->lr, o->momentum, gain);
}

/* Warns of a pipeline whose stages wait for most of a step, since it has few micro-batches.  How
 * many stages a chain of a cascade will have is not known here. */
static void warn_of_bubbles(const char *job_path, const struct job_spec *s)
{
    const struct job_train *t = &s->train;
    if (t->accumulate == 0 || t->accumulate >= t->stages || job_has_upscaler(s))
        return;
    fprintf(stderr,
            "warning: %s: train.accumulate is %d with %d stages: %d %% of the devices' time is "
            "idle%s; %d would leave a fifth\n",
            job_path, t->accumulate, t->stages,
            100 * (t->stages - 1) / (t->accumulate + t->stages - 1),
            job_has_latents(s) || job_has_captions(s) ? ", or has only the encoders to run" : "",
            4 * t->stages);
}

static int check_recipe(const char *job_path, struct job_file *job, struct err *err)
{
    struct composition comp;
    int rc = recipe_check(&job->spec, &comp, err);
    if (rc < 0)
        return err_wrap(err, "%s", job_path);
    warn_of_momentum(job_path, &job->spec, !composition_shares(&comp));
    warn_of_bubbles(job_path, &job->spec);
    job->partitions = comp.n_partitions;
    composition_release(&comp);
    return 0;
}

/* Explains an error about a path that only a shell would have understood. */
static void say_shell(const struct job_spec *s, struct err *err)
{
    const struct err why = *err;
    const char *const given[] = {s->data.path,          s->data.holdout_path, s->data.tokenizer,
                                 s->encoders.path,      s->encoders.vae,      s->encoders.text,
                                 s->encoders.tokenizer, s->model.warm_start,  s->trainer.files};
    for (size_t i = 0; i < sizeof given / sizeof *given; i++) {
        const char *path = given[i];
        if (path && (str_starts(path, "~/") || strchr(path, '$')) && strstr(why.msg, path)) {
            (void)err_set(err, why.code,
                          "%s: ~ and $ are a shell's, and mean nothing here; write the path out",
                          why.msg);
            return;
        }
    }
}

int job_file_take(const char *path, struct buf *text, struct job_file *ret, struct err *err)
{
    struct job_file job = {.text = *text};
    int rc = job_parse(buf_str(&job.text), job.text.len, path, &job.spec, err);
    if (rc == 0)
        rc = job_check_scope(buf_str(&job.text), job.text.len, path, &job.spec, err);
    if (rc == 0)
        rc = check_recipe(path, &job, err);
    if (rc == 0)
        rc = open_tokenizer(path, &job, err);
    if (rc == 0)
        rc = open_encoders(path, &job, err);
    if (rc == 0)
        rc = open_dataset(path, &job, err);
    if (rc == 0)
        rc = check_warm_start(path, &job, err);
    if (rc == 0)
        rc = check_trainer(path, &job, err);
    if (rc == 0) {
        *ret = job;
        return 0;
    }
    if (err->code == -ENOENT)
        say_shell(&job.spec, err);
    job_file_close(&job);
    if (cli_interrupted)
        return err_set(err, -ERR_CANCELLED, "interrupted");
    err->code = -ERR_CONFIG;
    return -ERR_CONFIG;
}

int job_file_open(const char *path, struct job_file *ret, struct err *err)
{
    struct buf text = {0};
    const int rc = file_read(path, JOB_SPEC_MAX, &text, err);
    if (rc == 0)
        return job_file_take(path, &text, ret, err);
    char *longer = str_printf("%s.yaml", path);
    if (rc == -EISDIR)
        err_set(err, rc, "%s is a folder, expected a job file; `skerry new` writes one", path);
    else if (rc == -ENOENT && file_exists(longer))
        err_set(err, rc, "there is no file %s; did you mean %s?", path, longer);
    mem_free(longer);
    err_wrap(err, "reading the job file");
    err->code = -ERR_CONFIG;
    return -ERR_CONFIG;
}

void job_file_close(struct job_file *job)
{
    dataset_close(job->dataset);
    tokenizer_free(job->tokenizer);
    encoders_close(&job->encoders);
    mem_free(job->data_path);
    mem_free(job->tokenizer_path);
    mem_free(job->warm_start);
    mem_free(job->trainer_files);
    job_release(&job->spec);
    buf_release(&job->text);
    memset(job, 0, sizeof *job);
}

struct upload {
    struct cli *cli; /* NULL: nothing is sent, the data are only checked */
    json_t *shards;
    bool text;
    bool failed; /* sending a shard failed, so the data are not at fault */
    bool progress;
    uint64_t most; /* images that are read; 0: all */
    struct moving moving;
    uint64_t bytes_sent, bytes_there;
    uint64_t bytes_all; /* of all shards, as the share says that the finished ones have */
    uint64_t sends_ms;  /* when the first shard began to travel; 0: none has */
};

/* Of what is to be sent this much of a shard, and the shards before it. */
static void show_sent(void *ctx, uint64_t done, uint64_t total)
{
    struct upload *up = ctx;
    if (!up->sends_ms)
        up->sends_ms = clock_now_ms();
    struct moving show = {"uploading the data", up->sends_ms, up->moving.shown_ms};
    moving_show(&show, up->bytes_sent + done, up->bytes_all - up->bytes_there);
    up->moving.shown_ms = show.shown_ms;
}

static void show_images(struct upload *up, uint64_t done, uint64_t total)
{
    char sent[STR_HUMAN_MAX], uploaded[STR_HUMAN_MAX + 16] = "", line[128];
    if (!moving_due(&up->moving))
        return;
    if (up->bytes_sent)
        (void)snprintf(uploaded, sizeof uploaded, ", %s uploaded",
                       str_human_bytes(up->bytes_sent, sent));
    (void)snprintf(line, sizeof line, "%s: %llu of %llu images%s", up->moving.what,
                   (unsigned long long)done, (unsigned long long)total, uploaded);
    moving_say(line);
}

/* Texts are sent once all of them are read. */
static int show_cut(void *ctx, uint64_t done, uint64_t total)
{
    struct upload *up = ctx;
    if (cli_interrupted)
        return -ERR_CANCELLED;
    if (up->progress && !up->text)
        show_images(up, done, total);
    else if (up->progress && up->bytes_sent)
        show_sent(up, 0, 0);
    else if (up->progress)
        moving_show(&up->moving, done, total);
    return 0;
}

/* Uploads a finished shard unless it is there, and removes the local file. */
static int take_shard(void *ctx, const struct dataset_shard *shard, struct err *err)
{
    struct upload *up = ctx;
    char hex[HASH_HEX_MAX];
    uint64_t sent = 0;
    int rc = 0;

    if (json_array_size(up->shards) == DATASET_SHARDS_MAX)
        return err_set(err, -ERR_CONFIG,
                       "the data make more than %d shards; raise data.shard_samples",
                       DATASET_SHARDS_MAX);
    up->bytes_all =
        (uint64_t)((double)(up->bytes_sent + up->bytes_there + shard->bytes) / shard->share);
    if (up->cli)
        rc = upload_blob(up->cli, shard->path, shard->sha256, shard->bytes, "a shard",
                         up->progress ? show_sent : NULL, up, &sent, err);
    (void)unlink(shard->path); /* its temporary directory is removed later anyway */
    if (rc < 0) {
        up->failed = true;
        return rc;
    }
    up->bytes_sent += sent;
    up->bytes_there += shard->bytes - sent;
    hash_hex(shard->sha256, HASH_BYTES, hex);
    json_t *item = json_pack("{s:s,s:I,s:i,s:b}", "sha256", hex, "size", (json_int_t)shard->bytes,
                             "samples", (int)shard->samples, "holdout", (int)shard->holdout);
    if (up->text)
        json_object_set_new(item, "tokens", json_integer((json_int_t)shard->tokens));
    json_array_append_new(up->shards, item);
    return 0;
}

static json_t *describe(const struct job_file *job, const struct dataset_report *report,
                        json_t *shards)
{
    json_t *classes = json_array(), *counts = json_array(), *bad = json_array();
    for (size_t i = 0; i < report->classes; i++) {
        json_array_append_new(classes, json_string(dataset_class(job->dataset, i)));
        json_array_append_new(counts, json_integer((json_int_t)report->counts[i]));
    }
    for (size_t i = 0; i < DATASET_BAD_NAMED && report->bad[i]; i++)
        json_array_append_new(bad, json_pack("{s:o,s:o}", "key", cli_text(report->bad[i]), "reason",
                                             cli_text(report->bad_why[i])));
    return json_pack("{s:o,s:o,s:O,s:o}", "classes", classes, "counts", counts, "shards", shards,
                     "bad", bad);
}

/* "192 images in 3 classes (10 held out)" */
static void say_size(FILE *out, const struct job_file *job, const struct dataset_report *r)
{
    const bool text = job_is_text(&job->spec), documents = r->holdout_documents > 0;
    if (!text)
        fprintf(out, "%llu image%s in %zu class%s", (unsigned long long)r->samples,
                str_plural(r->samples), r->classes, r->classes == 1 ? "" : "es");
    else
        fprintf(out, "%llu document%s, %llu piece%s, %llu tokens", (unsigned long long)r->documents,
                str_plural(r->documents), (unsigned long long)r->samples, str_plural(r->samples),
                (unsigned long long)r->tokens);
    if (r->holdout_samples == 0)
        return;
    if (!text)
        fprintf(out, " (%llu held out)", (unsigned long long)r->holdout_samples);
    else if (documents)
        fprintf(out, " (held out: %llu document%s, %llu piece%s, %llu tokens)",
                (unsigned long long)r->holdout_documents, str_plural(r->holdout_documents),
                (unsigned long long)r->holdout_samples, str_plural(r->holdout_samples),
                (unsigned long long)r->holdout_tokens);
    else /* spans of long ones */
        fprintf(out, " (held out: %llu piece%s, %llu tokens)",
                (unsigned long long)r->holdout_samples, str_plural(r->holdout_samples),
                (unsigned long long)r->holdout_tokens);
}

static void say_left(const struct job_file *job)
{
    const char *left = job->dataset ? dataset_left_out(job->dataset) : NULL;
    if (left)
        fprintf(stderr, "left out: %s; %s\n", left, dataset_reads(job->dataset));
    if (!job->dataset || !dataset_leaves_captions(job->dataset))
        return;
    if (job_family(&job->spec)->external)
        fprintf(stderr, "not used: the images' captions; a trainer gets images and classes\n");
    else
        fprintf(stderr, "not used: the images' captions, as the job has no text encoder; to train "
                        "on them name one as encoders.text, or a pipeline as encoders.path "
                        "(`skerry new`: --captions with --encoders)\n");
}

static void say_bad(const struct job_file *job, const struct dataset_report *report)
{
    say_left(job);
    if (report->uncaptioned)
        fprintf(stderr, "without a caption: %llu image%s; the first is %s\n",
                (unsigned long long)report->uncaptioned, str_plural(report->uncaptioned),
                report->uncaptioned_first);
    const bool texts = job_is_text(&job->spec);
    if (report->not_utf8)
        fprintf(stderr,
                "not UTF-8: %s%llu %s%s%s; the first is '%s': `iconv -f LATIN1 -t UTF-8` makes it "
                "UTF-8 if it is Latin-1\n",
                texts ? "" : "the captions of ", (unsigned long long)report->not_utf8,
                texts ? "document" : "image", str_plural(report->not_utf8),
                texts ? ", trained on byte by byte" : ", which count as without a caption",
                report->not_utf8_first);
    if (report->vocab > TOKENIZER_BYTES_VOCAB && !job->tokenizer_path &&
        !job_family(&job->spec)->external)
        fprintf(stderr,
                "token ids up to %u of an unknown tokenizer: no texts are generated, "
                "and held-out losses are not in bits per byte; name it as "
                "data.tokenizer\n",
                report->vocab - 1);
    if (report->captions_cut)
        fprintf(stderr, "cut, to %u bytes: the captions of %llu image%s\n", CAPTIONS_MAX,
                (unsigned long long)report->captions_cut, str_plural(report->captions_cut));
    if (report->bad_count == 0)
        return;
    fprintf(stderr, "%u %s%s cannot be read and %s left out:\n", report->bad_count,
            texts ? "line" : "image file", str_plural(report->bad_count),
            report->bad_count == 1 ? "is" : "are");
    size_t i = 0;
    for (; i < CLI_NAMED_MAX && report->bad[i]; i++)
        fprintf(stderr, "  %s: %s\n", report->bad[i], report->bad_why[i]);
    if (report->bad_count > i)
        fprintf(stderr, "  and %zu more\n", (size_t)report->bad_count - i);
}

static void say_report(const struct job_file *job, const struct upload *up,
                       const struct dataset_report *report)
{
    char sent[STR_HUMAN_MAX], there[STR_HUMAN_MAX];
    say_size(stderr, job, report);
    fprintf(stderr, ", %zu shard%s: %s uploaded, %s were there\n", json_array_size(up->shards),
            str_plural(json_array_size(up->shards)), str_human_bytes(up->bytes_sent, sent),
            str_human_bytes(up->bytes_there, there));
    say_bad(job, report);
}

/* Checks that all rows of a batch can hold different pieces, and that no partition is empty. */
static int check_report(const struct job_file *job, const struct dataset_report *report,
                        struct err *err)
{
    uint64_t train = report->samples - report->holdout_samples;
    if (job_is_text(&job->spec) && train < (uint64_t)job->spec.train.batch)
        return err_set(
            err, -ERR_CONFIG,
            "train.batch is %d but the text has only %llu piece%s of at most %d tokens; lower "
            "the batch or add text",
            job->spec.train.batch, (unsigned long long)train, str_plural(train),
            job_piece(&job->spec));
    if (job->partitions > train)
        return err_set(err, -ERR_CONFIG,
                       "the recipe has %u partitions, but the dataset has only %llu sample%s to "
                       "train on",
                       job->partitions, (unsigned long long)train, str_plural(train));
    return 0;
}

/* Sets the error of a failed cut by its origin: the data, this machine, or the network. */
static int blame(const struct upload *up, int rc, struct err *err)
{
    if (cli_interrupted)
        return err_set(err, -ERR_CANCELLED, "interrupted; nothing was submitted");
    if (rc == -ENOSPC && !up->failed) {
        const struct err why = *err;
        return err_set(err, rc, "%s; set TMPDIR to a directory with more space", why.msg);
    }
    if (up->failed || rc == -ENOSPC || rc == -ENOMEM || rc == -EIO)
        return rc;
    err->code = -ERR_CONFIG;
    return -ERR_CONFIG;
}

/* Cuts the data; shards go to the coordinator as they are made. */
static int cut(struct job_file *job, struct upload *up, struct dataset_report *ret, struct err *err)
{
    char *dir = NULL;
    int rc = cli_temporary(&dir, err);
    if (rc < 0)
        return rc;
    struct dataset_cut how = {
        .seed = job->spec.seed,
        .holdout = job->spec.data.holdout,
        .shard_samples = (uint32_t)job->spec.data.shard_samples,
        .max_bad = (uint32_t)job->spec.data.max_bad,
        .look = !up->cli,
        .most = up->most,
        .dir = dir,
        .on_shard = take_shard,
        .on_progress = show_cut,
        .ctx = up,
    };
    if (up->progress)
        moving_now("%s", up->moving.what);
    rc = dataset_cut(job->dataset, &how, ret, err);
    moving_clear();
    if (rc == 0)
        rc = up->most ? 0 : check_report(job, ret, err);
    if (rc < 0 && !up->failed && !cli_interrupted)
        say_left(job);                 /* the user may miss them */
    (void)file_remove_tree(dir, NULL); /* leftovers in a temporary directory */
    mem_free(dir);
    return rc < 0 ? blame(up, rc, err) : 0;
}

/* Cuts and uploads; the dataset and its vocabulary go into the submission. */
static int upload_dataset(struct cli *cli, struct job_file *job, bool progress, json_t *body,
                          struct err *err)
{
    struct dataset_report report = {0};
    struct upload up = {.cli = cli,
                        .shards = json_array(),
                        .text = job_is_text(&job->spec),
                        .progress = progress,
                        .moving = moving_begin("reading the data")};
    int rc = cut(job, &up, &report, err);
    if (rc == 0) {
        if (progress)
            say_report(job, &up, &report);
        json_object_set_new(body, "dataset", describe(job, &report, up.shards));
        if (up.text)
            json_object_set_new(body, "vocab", json_integer(report.vocab));
    }
    dataset_report_release(&report);
    json_decref(up.shards);
    return rc;
}

/* Of all images as many were held out and bad as of those that were read. */
static void say_some(const struct job_file *job, const struct dataset_report *report,
                     struct job_file_size *size)
{
    const uint64_t all = dataset_samples(job->dataset), read = report->samples + report->bad_count;
    if (read >= all)
        return;
    fprintf(stderr, "looked at %llu of %llu images; `skerry check` reads all of them\n",
            (unsigned long long)read, (unsigned long long)all);
    const double more = (double)all / (double)read;
    size->samples = (uint64_t)((double)size->samples * more);
    size->holdout = (uint64_t)((double)size->holdout * more);
    size->bytes = (uint64_t)((double)size->bytes * more);
}

/* out: NULL: nothing is said of the size. */
static int read_data(struct job_file *job, struct upload *up, FILE *out, struct job_file_size *ret,
                     struct err *err)
{
    struct dataset_report report = {0};
    up->shards = json_array();
    up->text = job_is_text(&job->spec);
    up->moving = moving_begin("reading the data");
    encoders_say_cut(&job->encoders, &job->spec);
    int rc = job->dataset ? cut(job, up, &report, err) : 0;
    if (rc == 0 && job->dataset) {
        if (out)
            say_size(out, job, &report);
        say_bad(job, &report);
    }
    *ret = (struct job_file_size){.documents = report.documents,
                                  .samples = report.samples - report.holdout_samples,
                                  .holdout = report.holdout_samples,
                                  .tokens = report.tokens - report.holdout_tokens,
                                  .vocab = report.vocab,
                                  .bytes = up->bytes_there};
    if (rc == 0 && job->dataset && up->most)
        say_some(job, &report, ret);
    dataset_report_release(&report);
    json_decref(up->shards);
    return rc;
}

int job_file_read_all(struct job_file *job, bool progress, FILE *out, struct job_file_size *ret,
                      struct err *err)
{
    struct upload up = {.progress = progress};
    return read_data(job, &up, out, ret, err);
}

int job_file_read_some(struct job_file *job, struct job_file_size *ret, struct err *err)
{
    struct upload up = {.progress = true, .most = job_is_text(&job->spec) ? 0 : LOOK_IMAGES};
    return read_data(job, &up, NULL, ret, err);
}

/* The tokenizer, as a blob. */
static int upload_tokenizer(struct cli *cli, const struct job_file *job, bool progress,
                            json_t *body, struct err *err)
{
    json_t *blob = NULL;
    const int rc = upload_file(cli, job->tokenizer_path, "the tokenizer", progress, &blob, err);
    if (rc == 0)
        json_object_set_new(body, "tokenizer", blob);
    return rc;
}

int job_file_submit(struct cli *cli, struct job_file *job, bool progress, uint64_t *ret_id,
                    struct err *err)
{
    json_t *answer = NULL, *body = json_pack("{s:s}", "spec", buf_str(&job->text));

    if (job->tokenizer)
        json_object_set_new(body, "vocab", json_integer(tokenizer_vocab(job->tokenizer)));
    if (progress)
        encoders_say_cut(&job->encoders, &job->spec);
    int rc = job->tokenizer_path ? upload_tokenizer(cli, job, progress, body, err) : 0;
    if (rc == 0)
        rc = encoders_upload(cli, &job->encoders, progress, body, err);
    if (rc == 0 && job->warm_start)
        rc = users_weights_upload(cli, job->warm_start, &job->spec, progress, body, err);
    if (rc == 0 && job->trainer_files)
        rc = folder_upload(cli, FOLDER_TRAINER, job->trainer_files, progress, body, err);
    if (rc == 0 && job->dataset)
        rc = upload_dataset(cli, job, progress, body, err);
    if (cli_interrupted)
        rc = err_set(err, -ERR_CANCELLED, "interrupted; nothing was submitted");
    if (rc < 0) {
        json_decref(body);
        return rc;
    }
    rc = cli_call(cli, "POST", body, &answer, err, "/v1/jobs");
    json_decref(body);
    /* The coordinator refuses the job itself. */
    if (rc == -EINVAL || rc == -EBUSY || rc == -ERR_LIMIT || rc == -ERR_NOTFOUND)
        err->code = -ERR_CONFIG;
    if (rc < 0)
        return err_wrap(err, "submitting the job");
    *ret_id = (uint64_t)cli_int(answer, "id", 0);
    json_decref(answer);
    return 0;
}
