#include "worker/order/local_models.h"

#include "common/base/file.h"
#include "common/base/log.h"

#define ENTRIES_MAX 100000 /* most entries of a folder */

static bool is_it(const char *path, uint64_t size, const uint8_t sha256[HASH_BYTES])
{
    uint8_t sum[HASH_BYTES];
    uint64_t bytes = 0;
    return file_size(path, &bytes, NULL) == 0 && bytes == size &&
           hash_file(path, sum, NULL, NULL) == 0 && hash_equal(sum, sha256, HASH_BYTES);
}

static char *find(const char *dir, uint64_t size, const uint8_t sha256[HASH_BYTES], int depth)
{
    struct file_names names;
    struct err err = {0};
    char *found = NULL;
    if (file_list(dir, ENTRIES_MAX, &names, &err) < 0) {
        log_warn("models", "%s is not looked through: %s", dir, err.msg);
        return NULL;
    }
    for (size_t i = 0; i < names.n && !found; i++) {
        char *path = file_join(dir, names.items[i]);
        if (!file_is_dir(path) && is_it(path, size, sha256))
            found = str_dup(path);
        else if (depth > 1 && file_is_dir(path))
            found = find(path, size, sha256, depth - 1);
        mem_free(path);
    }
    file_names_release(&names);
    return found;
}

char *local_models_find(const char *dir, uint64_t size, const uint8_t sha256[HASH_BYTES])
{
    return find(dir, size, sha256, LOCAL_MODELS_DEPTH);
}
