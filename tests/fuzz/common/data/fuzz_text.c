/* Any bytes as a text dataset: JSON lines, packed or not, a token file, a .npy. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/data/feature.h"
#include "common/base/file.h"
#include "common/data/text_source.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_all(const char *path, const char *name, const char *column)
{
    struct text_source_options opt = {.path = path, .name = name, .column = column};
    struct text_source *s;
    struct text_document d;
    if (text_source_open(&opt, &s, NULL) < 0)
        return;
    while (text_source_next(s, &d, NULL) > 0) {
        volatile uint8_t sum = 0; /* every byte given out is there to be read */
        for (size_t i = 0; i < d.len; i++)
            sum = (uint8_t)(sum + (uint8_t)d.text[i]);
        for (size_t i = 0; i < d.n_ids; i++) {
            uint32_t id;
            if (text_source_ids(s, i, 1, &id, NULL) < 0)
                abort();
        }
        if (!d.text && d.n_ids == 0)
            abort();
    }
    text_source_close(s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static char path[64];
    static int fd = -1;
    if (fd < 0) {
        fd = memfd_create("fuzz", 0);
        (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    }
    struct feature f = {0};
    (void)feature_from_npy(data, size, &f);
    feature_release(&f);
    if (ftruncate(fd, 0) < 0 || pwrite(fd, data, size, 0) != (ssize_t)size)
        abort();
    read_all(path, "x.jsonl", NULL);
    read_all(path, "x.jsonl", "v");
    read_all(path, "x.jsonl.zst", NULL);
    read_all(path, "x.txt", NULL);
    read_all(path, "x.bin", NULL);
    return 0;
}
