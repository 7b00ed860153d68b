#include "worker/engine/trainers.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>

#include "common/base/file.h"
#include "common/base/hash.h"
#include "common/base/log.h"
#include "common/data/tar.h"
#include "worker/engine/engine.h"

#define HELLO_MS 300000 /* enough to import a framework from a slow disk */
#define SETUP_BYTES                                                                                \
    (UINT64_C(8) << 30) /* PyTorch with its libraries, and what pip has beside them */

struct trainers {
    struct external *running;
    uint8_t digest[HASH_BYTES]; /* hash of all with which it was started */
    struct trainer_stand stand;
    bool stands;
    bool used;   /* it may have other weights than those with which it began */
    bool handed; /* the weights are those that it handed over, and are sealed */
};

/* ---- its digest ---- */

static const Skerry__V1__EncoderFile *files_of(const struct work *w)
{
    for (size_t i = 0; i < w->task->n_encoders; i++)
        if (w->task->encoders[i]->part == SKERRY__V1__ENCODER_PART__ENCODER_PART_TRAINER)
            return w->task->encoders[i];
    return NULL;
}

int trainers_need(struct work *w, struct err *err)
{
    const Skerry__V1__EncoderFile *f = files_of(w);
    return f ? work_need_blob(w, f->blob, "the trainer's files", err) : 0;
}

static void hash_text(struct hash *h, const char *text)
{
    hash_update(h, text ? text : "", strlen(text ? text : "") + 1);
}

static void hash_list(struct hash *h, const struct conf_strs *list)
{
    for (size_t i = 0; i < list->n; i++)
        hash_text(h, list->items[i]);
    hash_text(h, "");
}

/* A hash of the folder's contents. */
static void folder_digest(const struct work *w, uint8_t out[HASH_BYTES])
{
    const Skerry__V1__EncoderFile *f = files_of(w);
    struct hash h;
    hash_init(&h);
    hash_text(&h, w->spec.trainer.setup);
    hash_list(&h, &w->spec.trainer.env);
    if (f)
        hash_update(&h, f->blob->sha256.data, HASH_BYTES);
    hash_final(&h, out);
}

static void take_cut(const struct work *w, struct tensors_cut *cut)
{
    const Skerry__V1__Task *t = w->task;
    *cut = (struct tensors_cut){.n_levels = t->n_levels ? (int)t->n_levels : 1,
                                .n_blocks = w->spec.model.depth};
    for (size_t l = 0; l < t->n_levels; l++) {
        for (size_t i = 0; i < t->levels[l]->n_blocks; i++)
            cut->block_level[t->levels[l]->blocks[i] % TENSORS_BLOCKS_MAX] = (uint8_t)l;
        if (t->levels[l]->embedders)
            cut->rest_level = (uint8_t)l;
    }
}

/* The job is in it: another job would begin with the weights, and whatever else, that this one's
 * phases have left in the trainer. */
static void digest_of(const struct work *w, const struct tensors_cut *cut, uint8_t out[HASH_BYTES])
{
    const struct job_trainer *t = &w->spec.trainer;
    struct hash h;
    folder_digest(w, out);
    hash_init(&h);
    hash_update(&h, &w->task->job_id, sizeof(w->task->job_id));
    hash_update(&h, out, HASH_BYTES);
    hash_text(&h, t->command);
    hash_list(&h, &t->tensors);
    hash_update(&h, &t->buffers, sizeof(t->buffers));
    hash_list(&h, &t->levels);
    hash_update(&h, cut, sizeof(*cut));
    hash_final(&h, out);
}

/* ---- its folder ---- */

static int unpack(const struct work *w, const char *folder, struct err *err)
{
    const Skerry__V1__EncoderFile *f = files_of(w);
    char path[CACHE_PATH_MAX];
    if (!f)
        return 0;
    work_blob_path(w, f->blob->sha256.data, path);
    const struct tar_unpack how = {.mode = 0700, .max = TAR_FOLDER_BYTES};
    return work_own_file(tar_unpack(path, folder, &how, err), err);
}

/* Removes unfinished folders: a failed setup may leave gigabytes. */
static void forget_halves(const char *state_dir, const struct file_names *names, const char *but)
{
    for (size_t i = 0; i < names->n; i++) {
        char *path = file_join(state_dir, names->items[i]), *ready = str_printf("%s.ready", path);
        if (str_starts(names->items[i], "trainer-") && !str_ends(path, ".ready") &&
            !file_exists(ready) && strcmp(path, but) != 0)
            (void)file_remove_tree(path, NULL); /* tried again with the next trainer */
        mem_free(ready);
        mem_free(path);
    }
}

/* Also removes the folders that were used longest ago; `but` stays. */
static void forget_old(const char *state_dir, const char *but)
{
    struct file_names names = {0};
    size_t others = 0;
    if (file_list(state_dir, WORK_STATE_FILES_MAX, &names, NULL) < 0)
        return;
    forget_halves(state_dir, &names, but);
    for (size_t i = 0; i < names.n; i++)
        others += str_starts(names.items[i], "trainer-") && str_ends(names.items[i], ".ready");
    for (; others > TRAINERS_KEPT; others--) {
        char *oldest = NULL;
        struct stat then = {0}, st;
        for (size_t i = 0; i < names.n; i++) {
            char *path = file_join(state_dir, names.items[i]);
            const bool marks = str_starts(names.items[i], "trainer-") && str_ends(path, ".ready") &&
                               !str_starts(path, but);
            if (marks && stat(path, &st) == 0 && (!oldest || st.st_mtime < then.st_mtime)) {
                mem_free(oldest);
                oldest = str_dup(path);
                then = st;
            }
            mem_free(path);
        }
        if (!oldest)
            break;
        (void)file_remove(oldest, NULL);
        oldest[strlen(oldest) - strlen(".ready")] = '\0';
        (void)file_remove_tree(oldest, NULL);
        mem_free(oldest);
    }
    file_names_release(&names);
}

bool trainers_stopped(void *arg)
{
    return work_stopped(arg, NULL);
}

void trainers_goes_on(void *arg)
{
    struct work *w = arg;
    progress_sign(&w->progress);
}

/* While a trainer is made ready.  If the task is taken away meanwhile for its time, the next task
 * finds the trainer. */
static bool making_stopped(void *arg)
{
    return work_abandoned(arg);
}

static void fill_options(struct engine *e, struct work *w, const char *folder,
                         const struct tensors_cut *cut, struct external_options *opt)
{
    *opt = (struct external_options){
        .job = &w->spec.trainer,
        .cut = cut,
        .folder = folder,
        .memory_bytes = e->opt.trainer_memory,
        .threads = e->opt.threads,
        .hello_ms = HELLO_MS,
        .stopped = making_stopped,
        .goes_on = trainers_goes_on,
        .arg = w,
    };
}

/* Makes room for a trainer's folder; nothing of the cache goes where it would not be enough. */
static void make_room(const struct work *w)
{
    const uint64_t all = TAR_FOLDER_BYTES + (w->spec.trainer.setup ? SETUP_BYTES : 0);
    cache_make_room(w->cache, all <= cache_room(w->cache) ? all : TAR_FOLDER_BYTES);
}

/* The folder with the files, after the setup. */
static int prepare(struct engine *e, struct work *w, const char *folder, struct err *err)
{
    char *ready = str_printf("%s.ready", folder);
    struct external_options opt;
    int rc = 0;
    if (utimensat(AT_FDCWD, ready, NULL, 0) < 0) { /* else the folder is in use as of now */
        forget_old(e->state_dir, folder);
        make_room(w);
        rc = file_remove_tree(folder, err);
        if (rc == 0)
            rc = file_mkdirs(folder, 0700, err);
        if (rc == 0)
            rc = unpack(w, folder, err);
        if (rc == 0 && w->spec.trainer.setup) {
            progress_activity(&w->progress, "setting the trainer up");
            fill_options(e, w, folder, NULL, &opt);
            rc = external_setup(&opt, w->spec.trainer.setup, err);
            if (rc == 0) /* its files are on the disk before `ready` is */
                rc = file_sync_all(folder, err);
        }
        if (rc == 0)
            rc = file_write_atomic(ready, "", 0, 0600, err);
    }
    mem_free(ready);
    return rc;
}

/* ---- the running trainer ---- */

void trainers_drop(struct engine *e)
{
    struct trainers *t = e->trainers;
    if (!t)
        return;
    external_close(t->running);
    *t = (struct trainers){0};
}

bool trainers_yield(struct engine *e)
{
    const bool runs = e->trainers && e->trainers->running;
    if (runs) {
        log_info("trainer", "ended: another job needs its memory");
        trainers_drop(e);
    }
    return runs;
}

void trainers_free(struct trainers *t)
{
    if (t)
        external_close(t->running);
    mem_free(t);
}

static int start(struct engine *e, struct work *w, const struct tensors_cut *cut, struct err *err)
{
    uint8_t digest[HASH_BYTES];
    char hex[HASH_HEX_MAX];
    struct external_options opt;
    folder_digest(w, digest);
    hash_hex(digest, 8, hex);
    char *name = str_printf("trainer-%s", hex), *folder = file_join(e->state_dir, name);
    int rc = prepare(e, w, folder, err);
    if (rc == 0) {
        progress_activity(&w->progress, "starting the trainer");
        fill_options(e, w, folder, cut, &opt);
        rc = external_open(&opt, &e->trainers->running, err);
    }
    mem_free(folder);
    mem_free(name);
    return rc;
}

int trainers_get(struct engine *e, struct work *w, struct external **ret, struct err *err)
{
    struct tensors_cut cut;
    uint8_t digest[HASH_BYTES];
    if (!e->opt.allow_trainers)
        return err_set(err, -EPERM,
                       "this worker runs no trainers: it was started without "
                       "--allow-trainers");
    if (!e->trainers)
        e->trainers = mem_alloc(sizeof(*e->trainers));
    struct trainers *t = e->trainers;
    take_cut(w, &cut);
    digest_of(w, &cut, digest);
    if (!t->running || memcmp(digest, t->digest, sizeof(digest)) != 0) {
        trainers_drop(e);
        int rc = start(e, w, &cut, err);
        if (rc < 0)
            return rc;
        memcpy(t->digest, digest, sizeof(digest));
        if (w->spec.recipe.moments == JOB_MOMENTS_TRAVEL && !external_keeps_state(t->running))
            log_warn("trainer",
                     "recipe.moments: travel does nothing: the trainer hands no state of an "
                     "optimiser over");
        if (work_stopped(w, err))
            return -ERR_CANCELLED;
    }
    if (job_streams(&w->spec) && !external_exchanges(t->running))
        return err_set(err, -ERR_CONFIG,
                       "the trainer cannot exchange weights in mid-phase, which outer.fragments, "
                       "outer.delay and outer.mix ask for: leave them out, or see "
                       "docs/trainers.md");
    *ret = t->running;
    return 0;
}

int trainers_get_new(struct engine *e, struct work *w, struct external **ret, struct err *err)
{
    if (e->trainers && e->trainers->used)
        trainers_drop(e);
    return trainers_get(e, w, ret, err);
}

int trainers_ask(struct engine *e, struct work *w, const Skerry__Trainer__V1__FromWorker *order,
                 int passed, const struct external_events *ev, struct external_done *ret,
                 struct err *err)
{
    bool alive = false;
    int rc = external_ask(e->trainers->running, order, passed, ev, ret, &alive, err);
    if (order->what_case == SKERRY__TRAINER__V1__FROM_WORKER__WHAT_PHASE)
        e->trainers->stands = false; /* other orders do not touch its optimiser */
    e->trainers->used |= order->what_case != SKERRY__TRAINER__V1__FROM_WORKER__WHAT_BEGIN;
    if (!alive)
        trainers_drop(e);
    return rc;
}

void trainers_handed(struct engine *e)
{
    e->trainers->handed = true;
}

/* Files on their way into the memory that the trainer shares. */
struct loading {
    struct engine *e;
    struct external *x;
    size_t loaded;
    bool handed;
};

static struct loading begin_loading(struct engine *e, struct external *x)
{
    const struct loading l = {.e = e, .x = x, .handed = e->trainers->handed};
    e->trainers->handed = false;
    return l;
}

static int load_file(struct loading *l, const char *path, bool kept, struct err *err)
{
    const struct tensors_source from = {
        .path = path, .users = kept, .seal = l->handed ? external_seal(l->x) : NULL};
    return tensors_load(external_tensors(l->x), &from, external_shared(l->x), l->e->opt.threads,
                        &l->loaded, err);
}

/* Ends loading: all values are there, and the trainer has not written meanwhile. */
static int end_loading(const struct loading *l, int rc, const char *what, struct err *err)
{
    if (rc == -ERR_TRAINER) /* between hand-over and the next order the memory is the worker's */
        trainers_drop(l->e);
    if (rc < 0)
        return rc;
    const size_t wanted = tensors_chosen(external_tensors(l->x), -1);
    if (l->loaded != wanted)
        return err_set(err, -ERR_CONFIG,
                       "%s has %zu tensors, but the trainer has %zu to be synchronised", what,
                       l->loaded, wanted);
    return 0;
}

int trainers_load(struct engine *e, struct external *x, const struct work *w, struct err *err)
{
    const Skerry__V1__Task *t = w->task;
    struct loading l = begin_loading(e, x);
    int rc = 0;
    for (size_t i = 0; i < t->n_modules && rc == 0; i++) {
        char path[CACHE_PATH_MAX];
        work_blob_path(w, t->modules[i]->sha256.data, path);
        rc = load_file(&l, path, false, err);
    }
    return end_loading(&l, rc, "version 0", err);
}

int trainers_load_kept(struct engine *e, struct external *x, const char *path, struct err *err)
{
    struct loading l = begin_loading(e, x);
    const int rc = load_file(&l, path, true, err);
    return end_loading(&l, rc, "what the last phase left", err);
}

const struct trainer_stand *trainers_stand(const struct engine *e)
{
    return e->trainers && e->trainers->stands ? &e->trainers->stand : NULL;
}

void trainers_set_stand(struct engine *e, const struct trainer_stand *stand)
{
    e->trainers->stand = *stand;
    e->trainers->stands = true;
}
