#include "worker/engine/replica_file.h"

#include "common/base/file.h"
#include "common/base/log.h"
#include "common/st/st.h"
#include "worker/engine/phase_digest.h"
#include "worker/train/checkpoint.h"
#include "worker/train/moments.h"

#define ROUNDS_KEPT 4 /* of the files of other replicas: about as far apart are those of a job */

static void file_of(const char *dir, const struct replica *r, const char *suffix,
                    char path[CACHE_PATH_MAX])
{
    snprintf(path, CACHE_PATH_MAX, "%s/replica-%" PRIu64 "-%u-%u.%s", dir, r->job_id, r->path,
             r->index, suffix);
}

#define NUMBER_MAX 24
#define MET_MAX (21 * MODEL_LEVELS_MAX + 1)

static void write_met(const struct replica *r, char out[MET_MAX])
{
    size_t at = 0;
    out[0] = '\0';
    for (int l = 0; l < r->model->spec.cut.n_levels; l++)
        at += (size_t)snprintf(out + at, MET_MAX - at, "%" PRIu64 " ", r->met[l]);
}

static void read_met(struct replica *r, const char *text)
{
    for (int l = 0; l < MODEL_LEVELS_MAX; l++) {
        char *end = NULL;
        uint64_t v = text ? strtoull(text, &end, 10) : 0;
        bool found = end != NULL && end != text;
        r->met[l] = found ? v : NO_VERSION;
        text = found ? end : NULL;
    }
}

#define CURSOR_FORMAT "%u %" PRIu64 " %" PRIu64 " %a %a %a %a %u %u"

static bool read_cursor(const char *text, struct replica_cursor *c)
{
    double sum, first, last, seconds;
    if (!text || sscanf(text, "%u %" SCNu64 " %" SCNu64 " %la %la %la %la %u %u", &c->steps,
                        &c->samples, &c->position, &sum, &first, &last, &seconds, &c->skipped,
                        &c->skipped_row) < 7) /* of an older release: no skipped steps */
        return false;
    c->loss_sum = sum;
    c->loss_first = (float)first;
    c->loss_last = (float)last;
    c->seconds = seconds;
    return true;
}

/* Where the replica stands: at c in the phase of w. */
static int save(const char *dir, struct replica *r, const struct work *w, const char *suffix,
                const struct replica_cursor *c, bool local, struct err *err)
{
    char path[CACHE_PATH_MAX], digest[HASH_HEX_MAX], cursor[256], met[MET_MAX];
    char round[NUMBER_MAX], spec[NUMBER_MAX];
    file_of(dir, r, suffix, path);
    phase_digest(w, digest);
    write_met(r, met);
    snprintf(round, sizeof(round), "%u", w->task->train->round);
    snprintf(spec, sizeof(spec), "%" PRIu64, r->spec);
    snprintf(cursor, sizeof(cursor), CURSOR_FORMAT, c->steps, c->samples, c->position, c->loss_sum,
             (double)c->loss_first, (double)c->loss_last, c->seconds, c->skipped, c->skipped_row);
    struct st_meta pairs[] = {{(char *)(uintptr_t) "phase", digest},
                              {(char *)(uintptr_t) "cursor", cursor},
                              {(char *)(uintptr_t) "met", met},
                              {(char *)(uintptr_t) "round", round},
                              {(char *)(uintptr_t) "spec", spec}};
    return checkpoint_save(r->trainer, path, pairs, sizeof(pairs) / sizeof(pairs[0]), local, err);
}

/* Does the checkpoint stand at the step, in a job of this text?  Earlier releases noted no text. */
static bool stands_at(const char *path, const struct replica *r, uint64_t step)
{
    struct st st = {0};
    uint64_t at;
    if (st_open(path, &st, NULL) < 0)
        return false;
    const char *spec = checkpoint_pair(&st, "spec");
    const bool stands = st_meta_number(&st, path, "skerry.step", &at, NULL) == 0 && at == step &&
                        (!spec || strtoull(spec, NULL, 10) == r->spec);
    st_release(&st);
    return stands;
}

/* Is the file a checkpoint from rounds that are over by now? */
static bool is_left_behind(const char *path, uint32_t round)
{
    struct st st = {0};
    if (st_open(path, &st, NULL) < 0)
        return false;
    const char *text = checkpoint_pair(&st, "round");
    const bool old = text && strtoull(text, NULL, 10) + ROUNDS_KEPT < round;
    st_release(&st);
    return old;
}

/* Removes the files of the job's replicas that went on elsewhere: in the end each worker has
 * trained every path, and kept all of them. */
static void drop_left_behind(const char *dir, const struct replica *r, uint32_t round)
{
    struct file_names names;
    char job[NUMBER_MAX + 16], own[2 * NUMBER_MAX + 32];
    snprintf(job, sizeof(job), "replica-%" PRIu64 "-", r->job_id);
    snprintf(own, sizeof(own), "%s%u-%u.", job, r->path, r->index);
    if (round <= ROUNDS_KEPT || file_list(dir, WORK_STATE_FILES_MAX, &names, NULL) < 0)
        return;
    for (size_t i = 0; i < names.n; i++) {
        char *path = file_join(dir, names.items[i]);
        if (str_starts(names.items[i], job) && !str_starts(names.items[i], own) &&
            is_left_behind(path, round))
            (void)file_remove(path, NULL); /* it is tried again after the next phase */
        mem_free(path);
    }
    file_names_release(&names);
}

int replica_file_mid(const char *dir, struct replica *r, const struct work *w,
                     const struct replica_cursor *c, struct err *err)
{
    return save(dir, r, w, "mid", c, false, err);
}

int replica_file_end(const char *dir, struct replica *r, const struct work *w, struct err *err)
{
    char path[CACHE_PATH_MAX];
    file_of(dir, r, "end", path);
    /* Every phase makes one, and the next phase waits for it: flushing is not worth the time.  The
     * end of a phase that is done again takes the place of its own first one, and the spare, with
     * which both began, stays: only a flushed file leaves it alone. */
    const bool again = stands_at(path, r, trainer_next_step(r->trainer));
    int rc = save(dir, r, w, "end", &r->end, !again, err);
    if (rc == 0)
        drop_left_behind(dir, r, w->task->train->round);
    return rc < 0 ? rc : replica_file_drop_mid(dir, r, err);
}

int replica_file_drop_mid(const char *dir, const struct replica *r, struct err *err)
{
    char path[CACHE_PATH_MAX];
    file_of(dir, r, "mid", path);
    return file_remove(path, err);
}

/* Goes on in this very phase, where the file has saved it. */
static bool load_cut(const char *dir, struct replica *r, const struct work *w, const char *suffix,
                     struct replica_cursor *cursor)
{
    char path[CACHE_PATH_MAX], digest[HASH_HEX_MAX];
    file_of(dir, r, suffix, path);
    if (!file_exists(path))
        return false;
    phase_digest(w, digest);
    /* The header first, since the file may belong to another phase. */
    struct st meta = {0};
    struct err err = {0};
    bool ours = false;
    if (st_open(path, &meta, &err) == 0) {
        const char *phase = checkpoint_pair(&meta, "phase");
        ours = phase && strcmp(phase, digest) == 0 &&
               read_cursor(checkpoint_pair(&meta, "cursor"), cursor);
        read_met(r, checkpoint_pair(&meta, "met"));
        st_release(&meta);
    }
    if (ours && checkpoint_load(r->trainer, path, NULL, &err) == 0)
        return true;
    if (err.code < 0)
        log_warn("replica", "a cut phase starts anew: %s", err.msg);
    *cursor = (struct replica_cursor){0};
    return false;
}

/* Goes on from the end of the replica's last phase; the spare has it if a later end was saved but
 * not reported. */
bool replica_file_load_end(const char *dir, struct replica *r, uint64_t step)
{
    static const char *const files[] = {"end", "end.spare"};
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]) && step > 0; i++) {
        char path[CACHE_PATH_MAX];
        struct st meta = {0};
        struct err err = {0};
        file_of(dir, r, files[i], path);
        if (!stands_at(path, r, step))
            continue;
        if (checkpoint_load(r->trainer, path, &meta, &err) == 0) {
            read_met(r, checkpoint_pair(&meta, "met"));
            st_release(&meta);
            return true;
        }
        log_warn("replica", "fresh moments: %s", err.msg);
    }
    return false;
}

/* Loads the moments that came with the task, from the replica's last worker. */
bool replica_file_load_moments(struct replica *r, const struct work *w)
{
    const Skerry__V1__Blob *blob = w->task->train->moments;
    char path[CACHE_PATH_MAX];
    struct err err = {0};
    if (!blob)
        return false;
    work_blob_path(w, blob->sha256.data, path);
    if (moments_load(r->trainer, path, &err) == 0)
        return true;
    log_warn("replica", "fresh moments: %s", err.msg);
    return false;
}

/* A phase that was cut, at its end or in the middle. */
bool replica_file_resume(const char *dir, struct replica *r, const struct work *w,
                         struct replica_cursor *cursor)
{
    /* In fragments most of it is in versions by then. */
    const bool end = w->task->train->n_fragments == 0 && !w->anew;
    return (end && load_cut(dir, r, w, "end", cursor)) || load_cut(dir, r, w, "mid", cursor);
}
