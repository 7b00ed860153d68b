/* Shards of little coloured images for the tests of this folder. */
#ifndef TESTS_UNIT_WORKER_SHARDS_H
#define TESTS_UNIT_WORKER_SHARDS_H

#include "common/data/image.h"
#include "common/data/tar.h"
#include "tests/unit/common/base/util.h"

#define SHARD_SIDE 12

struct test_shard {
    char *path;
    uint8_t sha256[32];
};

/* n samples of n_classes classes, every third with the caption "number I"; sample `bad` (or -1) is
 * a text. */
static inline struct test_shard shard_make(const char *dir, int number, int n, int n_classes,
                                           int bad)
{
    struct test_shard s;
    char name[64];
    snprintf(name, sizeof(name), "shard-%d", number);
    s.path = in(dir, name);
    struct tar_writer *w;
    OK(tar_writer_open(s.path, &w, err));
    for (int i = 0; i < n; i++) {
        uint8_t rgb[SHARD_SIDE * SHARD_SIDE * 3];
        for (size_t p = 0; p < sizeof(rgb); p++)
            rgb[p] = (uint8_t)(p * 7 + (size_t)i * 31 + (size_t)number * 101);
        struct buf png;
        buf_init(&png, 1 << 20);
        OK(image_png(rgb, SHARD_SIDE, SHARD_SIDE, &png, err));
        snprintf(name, sizeof(name), "s%d-%04d.png", number, i);
        if (i == bad)
            OK(tar_writer_add(w, name, "this is no image", 16, err));
        else
            OK(tar_writer_add(w, name, png.data, png.len, err));
        buf_release(&png);
        snprintf(name, sizeof(name), "s%d-%04d.cls", number, i);
        char cls[16];
        snprintf(cls, sizeof(cls), "%d", i % n_classes);
        OK(tar_writer_add(w, name, cls, strlen(cls), err));
        if (i % 3)
            continue;
        char caption[32];
        snprintf(name, sizeof(name), "s%d-%04d.txt", number, i);
        snprintf(caption, sizeof(caption), "number %d", i);
        OK(tar_writer_add(w, name, caption, strlen(caption), err));
    }
    OK(tar_writer_commit(w, s.sha256, NULL, err));
    tar_writer_free(w);
    return s;
}

#endif
