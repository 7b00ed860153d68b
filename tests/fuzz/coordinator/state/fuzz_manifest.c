/* Manifests of backups, from a folder that anybody may have written to; what parses must survive a
 * round trip and names nothing outside the data directory. */
#include "coordinator/state/manifest.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    char *text = mem_alloc(len + 1);
    struct manifest m, again = {0};
    struct buf out;
    buf_init(&out, MANIFEST_BYTES_MAX);
    memcpy(text, data, len);
    if (manifest_parse(text, &m, NULL) == 0) {
        for (size_t i = 0; i < m.n; i++)
            if (m.files[i].path[0] == '/' || strstr(m.files[i].path, "..") == m.files[i].path ||
                strstr(m.files[i].path, "/..") != NULL)
                abort();
        if (manifest_format(&m, &out, NULL) < 0 ||
            manifest_parse(buf_str(&out), &again, NULL) < 0 || again.n != m.n ||
            again.at_unix_ms != m.at_unix_ms)
            abort();
    }
    manifest_release(&m);
    manifest_release(&again);
    buf_release(&out);
    mem_free(text);
    return 0;
}
