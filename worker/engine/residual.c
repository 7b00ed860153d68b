#include "worker/engine/residual.h"

#include "common/base/file.h"
#include "common/outer/contribution.h"

#define STATE_FILES_MAX 65536
#define PENDING ".pending-"

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
    for (size_t i = 0; i < names.n && rc == 0; i++)
        if (str_starts(names.items[i], prefix)) {
            char *path = file_join(dir, names.items[i]);
            rc = file_remove(path, err);
            mem_free(path);
        }
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
