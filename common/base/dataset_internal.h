/* Between dataset.c (opening), dataset_read.c (iterating) and dataset_cut.c;
 * not for others. */
#ifndef COMMON_BASE_DATASET_INTERNAL_H
#define COMMON_BASE_DATASET_INTERNAL_H

#include "common/base/buf.h"
#include "common/base/dataset.h"
#include "common/base/file.h"

struct tar;

#define DATASET_CAPTION_MAX 65536
#define DATASET_JSON_MAX (1u << 20)
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
};

struct dataset {
    char *path;
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
};

/* The n-th file of a folder: reads it into ds->now.image. */
int dataset_read_file(struct dataset *ds, size_t n, struct dataset_sample *ret, struct err *err);

/* Next key of the tars into ds->now: 1, 0 at the end of all. */
int dataset_gather(struct dataset *ds, struct err *err);

/* Index of a label in ds->classes, -1 if none. */
long dataset_label(const struct dataset *ds, const struct gather *g);

/* "jpg" for .jpg .jpeg .JPG ..., "png", "webp"; NULL for other names. */
const char *dataset_image_ext(const char *name);

#endif
