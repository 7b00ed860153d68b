/* Any bytes as a contribution or a delta of a small module: refused with a
 * sentence, or every tensor can be read, is in range when the check says so, and
 * decodes to finite numbers. */
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

static const char header[] =
    "{\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,12]},"
    "\"b\":{\"dtype\":\"F32\",\"shape\":[2,150],\"data_offsets\":[12,1212]}} ";

/* A file in memory, by a path that open(2) takes. */
static int memory_file(const void *data, size_t size, char path[64])
{
    int fd = memfd_create("fuzz", MFD_CLOEXEC);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size)
        abort();
    (void)snprintf(path, 64, "/proc/self/fd/%d", fd);
    return fd;
}

static void open_layout(struct layout *l)
{
    static uint8_t file[8 + sizeof header - 1 + 1212];
    struct err err = {0};
    char path[64];
    uint64_t len = sizeof header - 1;
    memcpy(file, &len, 8);
    memcpy(file + 8, header, len);
    int fd = memory_file(file, sizeof file, path);
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
        if (!coding_check(w->info.codec, n, payload, scales))
            continue;
        coding_decode(w->info.codec, n, payload, scales, x);
        for (size_t i = 0; i < n; i++)
            if (!isfinite(x[i]))
                abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct layout layout;
    struct err err = {0};
    struct wire_info info;
    char path[64];
    if (!layout.count)
        open_layout(&layout);
    int fd = memory_file(data, size, path);
    struct wire w = {.fd = -1};
    if (wire_info_read(path, &info, &err) == 0 && wire_open(path, &info, &layout, &w, &err) == 0)
        read_all(&w, &layout);
    else if (!err.msg[0])
        abort();
    wire_close(&w);
    close(fd);
    return 0;
}
