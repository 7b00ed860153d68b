#include "coordinator/ship/ship_keys.h"

#include "common/base/file.h"
#include "common/base/hash.h"
#include "coordinator/state/place.h"

#define FILE_MAX 8192

int ship_keys_read(const char *data_dir, struct buf *out, struct err *err)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < PLACE_IDENTITY; i++) {
        struct buf text;
        char hex[2 * FILE_MAX + 1], *path = file_join(data_dir, place_identity[i]);
        rc = file_read(path, FILE_MAX, &text, err);
        if (rc == 0) {
            rc = buf_printf(out, "%s %s\n", place_identity[i], hash_hex(text.data, text.len, hex));
            buf_release(&text);
        }
        mem_free(path);
    }
    return rc;
}

static int write_one(const char *data_dir, const char *name, const char *line, size_t len,
                     struct err *err)
{
    uint8_t bytes[FILE_MAX];
    char *hex = str_ndup(line, len), *path = file_join(data_dir, name);
    int rc = len % 2 == 0 && len / 2 <= sizeof(bytes) && hash_unhex(hex, bytes, len / 2) >= 0
                 ? 0
                 : err_set(err, -ERR_FORMAT, "the keys in the store: %s is damaged", name);
    if (rc == 0)
        rc = file_write_atomic(path, bytes, len / 2, strstr(name, "cert") ? 0644 : 0600, err);
    mem_free(hex);
    mem_free(path);
    return rc;
}

int ship_keys_write(const char *data_dir, const char *text, struct err *err)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < PLACE_IDENTITY; i++) {
        const size_t n = strlen(place_identity[i]);
        const char *line = text;
        while (line && !(strncmp(line, place_identity[i], n) == 0 && line[n] == ' '))
            line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL;
        rc = line ? write_one(data_dir, place_identity[i], line + n + 1,
                              strcspn(line + n + 1, "\n"), err)
                  : err_set(err, -ERR_FORMAT, "the keys in the store lack %s", place_identity[i]);
    }
    return rc;
}
