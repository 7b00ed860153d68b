#include "worker/engine/residual.h"

#include <pthread.h>

#include "common/base/file.h"
#include "common/outer/contribution.h"
#include "worker/order/work.h"

#define PENDING ".pending-"
#define SENT ".sent-"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of the files of all folders */

/* The task in a name that begins with stem and stage; 0: it does not. */
static uint64_t task_of(const char *name, const char *stem, const char *stage)
{
    const size_t n = strlen(stem);
    return str_starts(name, stem) && str_starts(name + n, stage)
               ? strtoull(name + n + strlen(stage), NULL, 10)
               : 0;
}

/* The newest sent file of an earlier task becomes the current one; of this task only that stays. */
static int take_earlier(const char *dir, const struct file_names *names, const char *stem,
                        uint64_t task_id, const char *current, struct err *err)
{
    uint64_t newest = 0;
    int rc = 0;
    for (size_t i = 0; i < names->n; i++) {
        const uint64_t task = task_of(names->items[i], stem, SENT);
        newest = task != task_id && task > newest ? task : newest;
    }
    for (size_t i = 0; i < names->n && rc == 0; i++) {
        const uint64_t sent = task_of(names->items[i], stem, SENT);
        const bool pending = task_of(names->items[i], stem, PENDING) != 0;
        if (!pending && (sent == 0 || sent == task_id))
            continue;
        char *path = file_join(dir, names->items[i]);
        rc = !pending && sent == newest ? residual_commit(path, current, err)
                                        : residual_drop(path, err);
        mem_free(path);
    }
    return rc;
}

int residual_prepare(const char *dir, const struct residual_key *key, uint64_t task_id,
                     char ret_current[CACHE_PATH_MAX], char ret_pending[CACHE_PATH_MAX],
                     struct err *err)
{
    char stem[128];
    snprintf(stem, sizeof(stem), "residual-%" PRIu64 "-%" PRIu64 "-%u-%u", key->job_id,
             key->module_id, key->path, key->replica);
    snprintf(ret_current, CACHE_PATH_MAX, "%s/%s", dir, stem);
    snprintf(ret_pending, CACHE_PATH_MAX, "%s/%s" PENDING "%" PRIu64, dir, stem, task_id);
    struct file_names names;
    pthread_mutex_lock(&lock);
    int rc = file_list(dir, WORK_STATE_FILES_MAX, &names, err);
    if (rc == 0) {
        rc = take_earlier(dir, &names, stem, task_id, ret_current, err);
        file_names_release(&names);
    }
    pthread_mutex_unlock(&lock);
    return rc;
}

/* Is it a residual of this stage and of what the word is about? */
static bool is_meant(const char *name, const char *suffix, const struct residual_word *w)
{
    uint64_t job, module;
    return sscanf(name, "residual-%" SCNu64 "-%" SCNu64 "-", &job, &module) == 2 &&
           str_ends(name, suffix) && (w->module_id == 0 || w->module_id == module);
}

static int mark_sent(const char *pending, const char *current, uint64_t task_id, struct err *err)
{
    char *sent = str_printf("%s" SENT "%" PRIu64, current, task_id);
    int rc = file_exists(sent) ? residual_drop(pending, err) : file_move(pending, sent, err);
    mem_free(sent);
    return rc;
}

static int hear_of(const char *path, size_t suffix_len, bool sent, const struct residual_word *w,
                   struct err *err)
{
    char *current = str_ndup(path, strlen(path) - suffix_len);
    const bool said = sent || !w->spares_pending;
    int rc = 0;
    if (w->news == RESIDUAL_SENT && !sent)
        rc = mark_sent(path, current, w->task_id, err);
    else if ((w->news == RESIDUAL_UNSENT && !sent) || (w->news == RESIDUAL_REFUSED && said))
        rc = residual_drop(path, err);
    else if (w->news == RESIDUAL_APPLIED && said)
        rc = residual_commit(path, current, err);
    mem_free(current);
    return rc;
}

static int hear_of_all(const char *dir, const struct residual_word *w, struct err *err)
{
    char suffixes[2][64];
    snprintf(suffixes[0], sizeof(suffixes[0]), PENDING "%" PRIu64, w->task_id);
    snprintf(suffixes[1], sizeof(suffixes[1]), SENT "%" PRIu64, w->task_id);
    struct file_names names;
    int rc = file_list(dir, WORK_STATE_FILES_MAX, &names, err);
    if (rc < 0)
        return rc;
    /* Sorted: what an earlier attempt has sent comes after what this one has made, and counts. */
    for (size_t i = 0; i < names.n && rc == 0; i++) {
        const bool sent = str_ends(names.items[i], suffixes[1]);
        if (!is_meant(names.items[i], suffixes[sent], w))
            continue;
        char *path = file_join(dir, names.items[i]);
        rc = hear_of(path, strlen(suffixes[sent]), sent, w, err);
        mem_free(path);
    }
    file_names_release(&names);
    return rc;
}

int residual_hear(const char *dir, const struct residual_word *w, struct err *err)
{
    pthread_mutex_lock(&lock);
    const int rc = hear_of_all(dir, w, err);
    pthread_mutex_unlock(&lock);
    return rc;
}
