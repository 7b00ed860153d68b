/* Any bytes as a contribution or a delta of a small module, with and without buffers: refused with
 * a sentence, or every tensor can be read, is in range when the check says so, and decodes to
 * finite numbers. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/base/err.h"
#include "common/outer/layout.h"
#include "common/outer/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *const headers[2] = {
    "{\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,12]},"
    "\"b\":{\"dtype\":\"F32\",\"shape\":[2,150],\"data_offsets\":[12,1212]}} ",
    "{\"__metadata__\":{\"skerry.mean\":\"a\\n\"},"
    "\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,12]},"
    "\"b\":{\"dtype\":\"F32\",\"shape\":[2,150],\"data_offsets\":[12,1212]}} "};

/* A file in memory, by a path that open(2) takes. */
static int memory_file(const void *data, size_t size, char path[64])
{
    int fd = memfd_create("fuzz", MFD_CLOEXEC);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size)
        abort();
    (void)snprintf(path, 64, "/proc/self/fd/%d", fd);
    return fd;
}

static void open_layout(const char *header, struct layout *l)
{
    uint8_t file[2048] = {0};
    struct err err = {0};
    char path[64];
    uint64_t len = strlen(header);
    memcpy(file, &len, 8);
    memcpy(file + 8, header, len);
    int fd = memory_file(file, 8 + len + 1212, path);
    if (layout_open(path, l, &err) < 0)
        abort();
    close(fd);
}

static void read_all(const struct wire *w, const struct layout *l)
{
    uint8_t payload[1200];
    uint16_t scales[2];
    float x[300];
    struct err err = {0};
    for (size_t t = 0; t < l->st.n_tensors; t++) {
        size_t n = (size_t)l->st.tensors[t].count;
        if (wire_read(w, t, 0, n, payload, scales, &err) < 0)
            abort(); /* the header said it is there */
        if (!coding_check(w->at[t].codec, n, payload, scales))
            continue;
        coding_decode(w->at[t].codec, n, payload, scales, x);
        for (size_t i = 0; i < n; i++)
            if (!isfinite(x[i]))
                abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct layout layouts[2];
    struct wire_info info;
    char path[64];
    int fd = memory_file(data, size, path);
    for (int i = 0; i < 2; i++) {
        struct err err = {0};
        struct wire w = {.fd = -1};
        if (!layouts[i].count)
            open_layout(headers[i], &layouts[i]);
        if (wire_info_read(path, &info, &err) == 0 &&
            wire_open(path, &info, &layouts[i], &w, &err) == 0)
            read_all(&w, &layouts[i]);
        else if (!err.msg[0])
            abort();
        wire_close(&w);
    }
    close(fd);
    return 0;
}
