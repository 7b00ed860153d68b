/* Shards of little coloured images, and of texts, for the tests of this folder. */
#ifndef TESTS_UNIT_WORKER_SHARDS_H
#define TESTS_UNIT_WORKER_SHARDS_H

#include "common/data/image.h"
#include "common/data/shard.h"
#include "common/data/tar.h"
#include "tests/unit/common/base/util.h"

#define SHARD_SIDE 12
#define SHARD_TOKENS 1024 /* of a text, at most */

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

/* The tokens of text i of a shard; how many. */
typedef uint32_t (*shard_text)(int number, uint32_t i, uint32_t *ids, const void *arg);

/* n texts, "d0#0" and so on; dim: 0, or 2 for the column of features (number, i). */
static inline struct test_shard shard_of_texts(const char *dir, int number, uint32_t n,
                                               uint32_t dim, shard_text text, const void *arg)
{
    struct test_shard s;
    struct shard_writer *w;
    struct shard_info info;
    struct buf room;
    char name[64];
    snprintf(name, sizeof(name), "text-%d-%u", number, dim);
    s.path = in(dir, name);
    buf_init(&room, 8192);
    w = shard_writer_new(s.path);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t ids[SHARD_TOKENS];
        const uint32_t tokens = text(number, i, ids, arg);
        const float feature[2] = {(float)number, (float)i};
        buf_clear(&room);
        OK(shard_encode_tokens(ids, tokens, &room));
        struct shard_sample p = {.ext = "tok",
                                 .data = room.data,
                                 .len = room.len,
                                 .tokens = tokens,
                                 .feature = (const uint8_t *)feature};
        snprintf(p.key, sizeof(p.key), "d%u#0", i);
        OK(shard_writer_add(w, &p, dim, err));
    }
    OK(shard_writer_finish(w, &info, err));
    shard_writer_free(w);
    memcpy(s.sha256, info.sha256, 32);
    buf_release(&room);
    return s;
}

#endif
