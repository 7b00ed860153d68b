/* Datasets as users have them, and cutting them into shards.
 *
 *   DIR/CLASS/image.jpg      a folder of class folders; classes sorted by name
 *   x.tar                    a WebDataset tar: KEY.jpg|jpeg|png|webp, KEY.cls
 *   DIR with tars            all *.tar (.tar.gz, .tar.zst) in it, sorted
 *   part-{000..011}.tar      a brace range; also * and ? globs
 *
 * In tars a class is KEY.cls: a whole number (the classes are then 0..max, named
 * by classes.txt beside the tar or in it, one name a line, else by the number),
 * or a text (then the classes are the sorted texts); or "label" in KEY.json,
 * a number or a text likewise.  KEY.txt, or "caption" in KEY.json, is the
 * caption.  Everything of a key must follow each other, as WebDataset has it.
 *
 * dataset_open reads names and classes only (of tars: passes over the archive
 * once) and refuses what cannot be trained on: nothing there, a class folder
 * without images, an image without class.  One thread at a time.
 *
 * Links to libarchive. */
#ifndef COMMON_BASE_DATASET_H
#define COMMON_BASE_DATASET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/hash.h"

struct err;

#define DATASET_CLASSES_MAX 4096
#define DATASET_SAMPLES_MAX (64u << 20)
#define DATASET_IMAGE_MAX (64u << 20) /* bytes of one encoded image */
#define DATASET_SHARDS_MAX 32768      /* of a job that brings its dataset */
#define DATASET_BAD_NAMED 64          /* bad images kept by name */

struct dataset;

int dataset_open(const char *path, struct dataset **ret, struct err *err);
void dataset_close(struct dataset *ds); /* NULL is fine */

size_t dataset_classes(const struct dataset *ds);
const char *dataset_class(const struct dataset *ds, size_t i);
uint64_t dataset_samples(const struct dataset *ds); /* images found, good or bad */

struct dataset_sample {
    const char *key; /* "cat/0001" or "part-000/000123" */
    uint32_t cls;
    const char *ext; /* "jpg" "png" "webp": by content; NULL: not an image we read */
    const uint8_t *data;
    size_t len;
    const char *caption; /* NULL: none */
};
/* In the dataset's own order: 1 with *ret (borrowed until the next call), 0 at the end. */
int dataset_next(struct dataset *ds, struct dataset_sample *ret, struct err *err);
int dataset_rewind(struct dataset *ds, struct err *err);

/* A finished shard file; the callback may move or upload it; path is borrowed.
 * A negative return stops the cut with *err as filled. */
struct dataset_shard {
    const char *path;
    uint8_t sha256[HASH_BYTES];
    uint64_t bytes;
    uint32_t samples;
    bool holdout;
};
typedef int dataset_shard_fn(void *ctx, const struct dataset_shard *shard, struct err *err);

struct dataset_cut {
    uint64_t seed;
    double holdout; /* fraction of the samples, by hash of (seed, key); >= 1 sample if > 0 */
    uint32_t shard_samples; /* aimed at; shards differ by at most a few samples */
    uint32_t max_bad;       /* more images that are none: an error */
    const char *dir;        /* where shards are written (exists) */
    dataset_shard_fn *on_shard;
    /* Called now and then with the samples seen so far; may be NULL; negative stops. */
    int (*on_progress)(void *ctx, uint64_t done, uint64_t total);
    void *ctx;
};

struct dataset_report {
    uint64_t samples, holdout_samples; /* train + holdout written; holdout of them */
    uint64_t *counts;                  /* per class, train + holdout */
    size_t classes;
    uint32_t bad_count;
    char *bad[DATASET_BAD_NAMED]; /* names, NULL after the last */
};

/* Shuffles (folders: all of it; tars: through a window of samples, bounded in
 * bytes), writes shards `KEY.ext` + `KEY.cls`; same dataset, seed and options:
 * same bytes. */
int dataset_cut(struct dataset *ds, const struct dataset_cut *opt, struct dataset_report *ret,
                struct err *err);
void dataset_report_release(struct dataset_report *report);

/* "jpg", "png", "webp" by the first bytes; NULL if none of these. */
const char *dataset_sniff(const void *data, size_t len);

#endif
