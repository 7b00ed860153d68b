/* What the files of a dataset share.
 *
 *   dataset.c            opens and cuts, through the table of sources
 *   dataset_folder.c     class folders with images     \
 *   dataset_tar.c        WebDataset tars                | sources: a row each
 *   dataset_text.c       documents                     /
 *   dataset_cut.c        samples to shards: what sources call while they are cut
 *   dataset_column.c     names of images, and the column that comes with one
 *
 * Calls go down this list only. */
#ifndef COMMON_DATA_DATASET_IMPL_H
#define COMMON_DATA_DATASET_IMPL_H

#include "common/base/buf.h"
#include "common/base/file.h"
#include "common/base/rng.h"
#include "common/data/dataset.h"
#include "common/data/feature.h"

struct cutter;
struct shard_sample;
struct shard_writer;

#define DATASET_JSON_MAX (1u << 20)
#define DATASET_NPY_MAX (1u << 20)
#define DATASET_ENTRIES_MAX (16u << 20) /* entries of a directory */
#define DATASET_KEY_MAX 1200

struct dataset {
    const struct dataset_source *source;
    char *path;
    char *column;              /* NULL: none */
    struct file_names classes; /* text: none */
    uint64_t samples;          /* text: 0 */
    void *own;                 /* the source's */
};

/* A kind of dataset. */
struct dataset_source {
    /* Whether the path is of this kind: 1, 0, or an error. */
    int (*matches)(const struct dataset_options *opt, struct err *err);
    /* Sets own, classes and samples; what it set before it failed is left to close. */
    int (*open)(struct dataset *ds, const struct dataset_options *opt, struct err *err);
    void (*close)(struct dataset *ds); /* own may be NULL */
    int (*cut)(struct cutter *c, struct dataset *ds);
};
extern const struct dataset_source dataset_folder, dataset_tars, dataset_text;

/* ---- images ---- */

bool dataset_is_image(const char *name); /* .jpg .jpeg .png .webp, in any case */
bool dataset_is_tar(const char *name);   /* .tar .tar.gz .tgz .tar.zst */

/* The column of one sample. */
struct dataset_column {
    struct feature feature; /* n 0: none yet */
    bool named;             /* it came under the column's name: goes before KEY.npy */
};
void dataset_column_clear(struct dataset_column *c);
/* The array of the column's name, if the JSON of sample `key` has one. */
int dataset_column_json(const struct dataset *ds, struct dataset_column *c, const json_t *root,
                        const char *key, struct err *err);
/* Whether KEY.suffix holds the column: ".NAME.npy", or ".npy" if nothing has the name. */
bool dataset_column_is_npy(const struct dataset *ds, const struct dataset_column *c,
                           const char *suffix);
/* Takes KEY.suffix if it holds the column. */
int dataset_column_npy(const struct dataset *ds, struct dataset_column *c, const struct buf *npy,
                       const char *key, const char *suffix, struct err *err);
/* -ERR_FORMAT when a column was asked for and sample `key` at `where` has none. */
int dataset_column_check(const struct dataset *ds, const struct dataset_column *c,
                         const char *where, const char *key, struct err *err);
/* From KEY.json, KEY.NAME.npy or KEY.npy beside the image file at `path`. */
int dataset_column_beside(const struct dataset *ds, struct dataset_column *c, const char *path,
                          struct err *err);

/* An image as its source has it. */
struct dataset_image {
    char *key; /* "cat/0001.jpg" or "part-000/000123" */
    uint32_t cls;
    uint8_t *data; /* NULL: too large to be an image of a dataset */
    size_t len;
    float *feature; /* the column; NULL: none asked for */
    uint32_t dim;
};
/* 1 with *ret (borrowed until the next call), 0 at the end. */
typedef int dataset_next_fn(struct dataset *ds, struct dataset_image *ret, struct err *err);

/* ---- cutting ---- */

/* One shard file being filled. */
struct output {
    struct shard_writer *shard;
    char *path;
    uint32_t number;
};

/* A cut under way. */
struct cutter {
    const struct dataset_cut *opt;
    struct dataset_report report;
    struct output train, holdout;
    uint64_t holdout_below; /* a sample is held out when its 64-bit hash is below */
    uint64_t seen, total;
    bool any; /* a sample came already: its column's length is report.dim */
    struct rng rng;
    struct err *err;
};

int cut_open(struct cutter *c, const struct dataset *ds, const struct dataset_cut *opt,
             struct err *err);
/* Finishes the last shards unless rc is negative; gives the report away, or frees it when it
 * fails.  Returns rc, or what failed. */
int cut_close(struct cutter *c, int rc, struct dataset_report *ret);

/* The files of a source in the order of the shuffle, n of them; NULL: no memory. */
uint32_t *cut_order(const struct cutter *c, size_t n);
/* All images of `next` to their splits; through a window when they do not come shuffled. */
int cut_images(struct cutter *c, struct dataset *ds, dataset_next_fn *next, bool through_window);
/* A sample to its split; closes a shard when it is full. */
int cut_add(struct cutter *c, const struct shard_sample *s, uint32_t dim, bool holdout);
/* Whether the sample of that name is held out, by its hash. */
bool cut_is_holdout(const struct cutter *c, const char *key);
/* A hash of a name: the same on every machine. */
uint64_t cut_hash(const char *key);
/* Every sample's column must be as long as the first's. */
int cut_check_dim(struct cutter *c, const struct dataset *ds, const char *key, uint32_t dim);
/* Tells how much is done; negative when the cut is to stop. */
int cut_progress(struct cutter *c, uint64_t done);

#endif
