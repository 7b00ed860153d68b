/* Between dataset.c (opening), dataset_read.c (iterating) and dataset_cut.c;
 * not for others. */
#ifndef COMMON_BASE_DATASET_INTERNAL_H
#define COMMON_BASE_DATASET_INTERNAL_H

#include "common/base/buf.h"
#include "common/data/dataset.h"
#include "common/data/feature.h"
#include "common/base/file.h"
#include "common/base/rng.h"

struct shard_sample;
struct shard_writer;
struct tar;
struct text_source;

#define DATASET_CAPTION_MAX 65536
#define DATASET_JSON_MAX (1u << 20)
#define DATASET_NPY_MAX (1u << 20)
#define DATASET_CLASS_NAME_MAX 256

/* Of a folder: an image file. */
struct dataset_file {
    char *name; /* inside the class folder */
    uint32_t cls;
};

/* How tars say their class. */
enum class_kind { CLASS_UNKNOWN, CLASS_NUMBER, CLASS_TEXT };

/* What the reader of tars gathers under one key. */
struct gather {
    char key[1024];
    struct buf image;
    struct buf caption;
    char label[DATASET_CLASS_NAME_MAX];
    bool has_image, has_label;
    enum class_kind kind;
    struct feature feature; /* of the column; n 0: none yet */
    bool feature_named;     /* it has the column's name: goes before KEY.npy */
};

struct dataset {
    char *path;
    char *column; /* NULL: none */
    bool is_folder;
    struct file_names classes;
    uint64_t samples;

    struct dataset_file *files; /* folder */
    size_t n_files;

    struct file_names tars; /* full paths */
    enum class_kind kind;
    uint64_t max_number; /* CLASS_NUMBER */

    /* Position of dataset_next. */
    size_t at; /* file or tar */
    struct tar *tar;
    bool pending; /* `next` holds the first member of the following key */
    struct gather now, next;
    char key[1200];

    struct text_source *text, *held_out; /* text; held_out may be NULL */
    const struct tokenizer *tokenizer;   /* NULL: bytes */
    uint32_t context;
};

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
    uint64_t holdout_below; /* of a sample's 64-bit hash */
    uint64_t seen, total;
    bool any; /* a sample came already: its column's length is report.dim */
    struct rng rng;
    struct err *err;
};

/* A sample to its split; closes a shard when it is full. */
int cut_add(struct cutter *c, const struct shard_sample *s, uint32_t dim, bool holdout);
/* Whether the sample of that name is held out, by its hash. */
bool cut_is_holdout(const struct cutter *c, const char *key);
/* A hash of a name: the same on every machine. */
uint64_t cut_hash(const char *key);
/* Every sample's column must be as long as the first's. */
int cut_check_dim(struct cutter *c, const struct dataset *ds, const char *key, uint32_t dim);
/* Tells how much is done; negative when it shall stop. */
int cut_progress(struct cutter *c, uint64_t done);

/* Opening and cutting text: dataset_text.c. */
int dataset_open_text(struct dataset *ds, const struct dataset_options *opt, struct err *err);
int dataset_cut_text(struct cutter *c, struct dataset *ds);

/* The n-th file of a folder: reads it into ds->now.image. */
int dataset_read_file(struct dataset *ds, size_t n, struct dataset_sample *ret, struct err *err);

/* The column was asked for: is it in ds->now?  `where` and `key` are for the message. */
int dataset_check_column(const struct dataset *ds, const char *where, const char *key,
                         struct err *err);

/* Next key of the tars into ds->now: 1, 0 at the end of all. */
int dataset_gather(struct dataset *ds, struct err *err);

/* Index of a label in ds->classes, -1 if none. */
long dataset_label(const struct dataset *ds, const struct gather *g);

/* "jpg" for .jpg .jpeg .JPG ..., "png", "webp"; NULL for other names. */
const char *dataset_image_ext(const char *name);

#endif
