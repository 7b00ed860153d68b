#include "worker/engine/residual.h"

#include "common/base/file.h"
#include "common/outer/contribution.h"

#define STATE_FILES_MAX 65536
#define PENDING ".pending-"

/* The task whose pending file of that prefix it is; 0: it is none. */
static uint64_t task_of(const char *name, const char *prefix)
{
    return str_starts(name, prefix) ? strtoull(name + strlen(prefix), NULL, 10) : 0;
}

/* The newest pending file becomes the current one, but for that of task_id; the others go. */
static int take_pending(const char *dir, const struct file_names *names, const char *prefix,
                        uint64_t task_id, const char *current, struct err *err)
{
    uint64_t newest = 0;
    int rc = 0;
    for (size_t i = 0; i < names->n; i++) {
        const uint64_t task = task_of(names->items[i], prefix);
        newest = task != task_id && task > newest ? task : newest;
    }
    for (size_t i = 0; i < names->n && rc == 0; i++) {
        const uint64_t task = task_of(names->items[i], prefix);
        if (task == 0)
            continue;
        char *path = file_join(dir, names->items[i]);
        rc = task == newest ? residual_commit(path, current, err) : residual_drop(path, err);
        mem_free(path);
    }
    return rc;
}

int residual_prepare(const char *dir, const struct residual_key *key, uint64_t task_id,
                     char ret_current[CACHE_PATH_MAX], char ret_pending[CACHE_PATH_MAX],
                     struct err *err)
{
    char prefix[160], name[128];
    snprintf(name, sizeof(name), "residual-%" PRIu64 "-%" PRIu64 "-%u-%u", key->job_id,
             key->module_id, key->path, key->replica);
    snprintf(prefix, sizeof(prefix), "%s%s", name, PENDING);
    snprintf(ret_current, CACHE_PATH_MAX, "%s/%s", dir, name);
    snprintf(ret_pending, CACHE_PATH_MAX, "%s/%s%" PRIu64, dir, prefix, task_id);
    struct file_names names;
    int rc = file_list(dir, STATE_FILES_MAX, &names, err);
    if (rc < 0)
        return rc;
    rc = take_pending(dir, &names, prefix, task_id, ret_current, err);
    file_names_release(&names);
    return rc;
}

int residual_settle(const char *dir, uint64_t task_id, bool accepted, struct err *err)
{
    char suffix[64];
    snprintf(suffix, sizeof(suffix), "%s%" PRIu64, PENDING, task_id);
    struct file_names names;
    int rc = file_list(dir, STATE_FILES_MAX, &names, err);
    if (rc < 0)
        return rc;
    for (size_t i = 0; i < names.n && rc == 0; i++) {
        if (!str_starts(names.items[i], "residual-") || !str_ends(names.items[i], suffix))
            continue;
        char *pending = file_join(dir, names.items[i]);
        char *current = str_ndup(pending, strlen(pending) - strlen(suffix));
        rc = accepted ? residual_commit(pending, current, err) : residual_drop(pending, err);
        mem_free(pending);
        mem_free(current);
    }
    file_names_release(&names);
    return rc;
}
