/* Shared by the files of a dataset.
 *
 *   dataset.c            opens and cuts, through the table of sources
 *   dataset_folder.c     class folders with images     \
 *   dataset_tar.c        WebDataset tars                | sources: a row each
 *   dataset_text.c       documents                     /
 *   dataset_cut.c        samples to shards: called by sources while they are cut
 *   dataset_spool.c      a shuffle on disk
 *   dataset_column.c     names of images, and an image's column
 *   dataset_left.c       files that are left out
 *   dataset_captions.c   an image's captions
 *   dataset_metadata.c   metadata.jsonl: the captions of a folder
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

#define DATASET_LEFT_KINDS 11

/* Counts of what is left out. */
struct dataset_left {
    uint64_t files[DATASET_LEFT_KINDS]; /* images that we do not read, by ending */
    uint64_t folders;                   /* folders inside class folders */
    uint64_t beside;                    /* images beside class folders */
    uint64_t beside_tars;               /* folders beside tars */
    uint64_t others;                    /* other files in class folders, or beside texts */
};

struct dataset {
    const struct dataset_source *source;
    char *path;
    char *name;                /* for people: the options', or the path */
    char *column;              /* NULL: none */
    bool captions;             /* captions are read */
    bool any_captions;         /* there is at least one, by names if they are not read */
    struct file_names classes; /* text: none */
    uint64_t samples;          /* text: 0 */
    uint64_t bytes;            /* tars: of all images */
    struct dataset_left left;  /* counted while it is opened */
    char *left_out;            /* NULL: nothing */
    void *own;                 /* the source's state */
};

/* A kind of dataset. */
struct dataset_source {
    /* 1 if the path is of this kind, else 0, or an error. */
    int (*matches)(const struct dataset_options *opt, struct err *err);
    /* Sets own, classes and samples; after a failure close releases them. */
    int (*open)(struct dataset *ds, const struct dataset_options *opt, struct err *err);
    void (*close)(struct dataset *ds); /* own may be NULL */
    int (*cut)(struct cutter *c, struct dataset *ds);
    const char *reads;           /* see dataset_reads() */
    const char *reads_captioned; /* the same where captions are read; NULL: as else */
};
extern const struct dataset_source dataset_folder, dataset_tars, dataset_text;

/* ---- images ---- */

/* Adds a class; takes the name. */
int dataset_add_class(struct dataset *ds, char *name, struct err *err);

#define DATASET_IMAGES ".jpg .jpeg .jpe .jfif .png .webp"
bool dataset_is_image(const char *name);   /* one of these, in any case */
bool dataset_is_tar(const char *name);     /* .tar .tar.gz .tgz .tar.zst */
size_t dataset_tar_stem(const char *name); /* bytes before that ending, or all */

/* Counts a file if its ending is that of an image of a kind that we do not read: true. */
bool dataset_left_note(struct dataset_left *left, const char *name);
void dataset_left_add(struct dataset_left *left, const struct dataset_left *more);
/* "2 .gif files, 1 folder inside class folders"; NULL: nothing; mem_free. */
char *dataset_left_say(const struct dataset_left *left);
/* "; its folders are classes, ...", if images lie beside class folders, else ""; returns it. */
#define DATASET_BESIDE_MAX 192
const char *dataset_left_beside(const struct dataset_left *left, char ret[DATASET_BESIDE_MAX]);

/* The column of one sample. */
struct dataset_column {
    struct feature feature; /* n 0: none yet */
    bool named;             /* found under the column's name: preferred to KEY.npy */
};
void dataset_column_clear(struct dataset_column *c);
/* The array of the column's name, if the JSON of sample `key` has one. */
int dataset_column_json(const struct dataset *ds, struct dataset_column *c, const json_t *root,
                        const char *key, struct err *err);
/* Does KEY.suffix hold the column?  ".NAME.npy" does, and ".npy" if nothing has the name. */
bool dataset_column_is_npy(const struct dataset *ds, const struct dataset_column *c,
                           const char *suffix);
/* Takes KEY.suffix if it holds the column. */
int dataset_column_npy(const struct dataset *ds, struct dataset_column *c, const struct buf *npy,
                       const char *key, const char *suffix, struct err *err);
/* -ERR_FORMAT: a column was asked for and sample `key` at `where` has none. */
int dataset_column_check(const struct dataset *ds, const struct dataset_column *c,
                         const char *where, const char *key, struct err *err);
/* From KEY.json, KEY.NAME.npy or KEY.npy beside the image file at `path`. */
int dataset_column_beside(const struct dataset *ds, struct dataset_column *c, const char *path,
                          struct err *err);

/* The captions of one sample. */
struct dataset_captions {
    struct buf text; /* in the form of captions.h */
    bool cut;        /* some did not fit */
    bool not_utf8;   /* KEY.txt is not UTF-8, and none of it is there */
    bool from_txt;   /* they are KEY.txt's, which goes before KEY.json */
};
void dataset_captions_init(struct dataset_captions *c);
void dataset_captions_clear(struct dataset_captions *c);
/* Adds the captions in a JSON value: a text, a list of texts, null or NULL.  NULL, or why not. */
const char *dataset_captions_value(struct dataset_captions *c, const json_t *value);
/* The value of a key; NULL: there is none, or it is null. */
const json_t *dataset_captions_under(const json_t *root, const char *key);
/* The value of "captions" or "caption", and which; NULL: neither is there. */
const json_t *dataset_captions_of(const json_t *root, const char **ret_key);
/* Does the JSON of a sample seem to have captions? */
bool dataset_captions_in(const json_t *root);
/* Takes the captions in the JSON of sample `key`, unless there was a KEY.txt. */
int dataset_captions_json(struct dataset_captions *c, const json_t *root, const char *key,
                          struct err *err);
/* Takes KEY.txt in place of earlier captions. */
int dataset_captions_txt(struct dataset_captions *c, const struct buf *txt, const char *key,
                         struct err *err);
/* Takes KEY.txt beside the image file at `path`, if it exists. */
int dataset_captions_beside(struct dataset_captions *c, const char *path, struct err *err);
/* The name of that file; mem_free. */
char *dataset_captions_path(const char *path);
#define DATASET_ALL "all" /* the class of samples that have captions, but no class */

/* The captions of a folder of images. */
struct dataset_metadata {
    struct dataset_line *lines; /* sorted by name */
    size_t n, cap;
};
struct dataset_line {
    char *name;     /* the image's, below the folder */
    char *captions; /* NULL: none */
    size_t len;
    size_t number; /* the line's, from 1 */
    bool cut, used;
};
/* DIR/metadata.jsonl if there is one; a metadata.csv in its place is an error. */
int dataset_metadata_open(struct dataset_metadata *m, const char *dir, struct err *err);
/* Lines of JSON with "file_name" and "text"; `name` is for messages.  m is { 0 }.  For tests. */
int dataset_metadata_parse(struct dataset_metadata *m, const void *data, size_t len,
                           const char *name, struct err *err);
/* The line of an image, which then counts as used; NULL: none. */
const struct dataset_line *dataset_metadata_use(struct dataset_metadata *m, const char *name);
/* An error that names the first line that was not used; 0: all were. */
int dataset_metadata_check(const struct dataset_metadata *m, const char *dir, struct err *err);
void dataset_metadata_release(struct dataset_metadata *m); /* { 0 } is fine */

#define DATASET_TOO_LARGE "larger than 64 MiB"
_Static_assert(DATASET_IMAGE_MAX == 64u << 20, "told in words");

/* An image from a source. */
struct dataset_image {
    const char *key; /* "cat/0001.jpg" or "part-000/000123" */
    uint32_t cls;
    const uint8_t *data;
    size_t len;
    const char *fault;   /* static: why it has no data; NULL: it has */
    const void *feature; /* the column, floats; NULL: none asked for */
    uint32_t dim;
    const char *captions; /* NULL: none */
    size_t captions_len;
    bool captions_cut, captions_not_utf8;
};
/* 1 with *ret (borrowed until the next call), 0 at the end. */
typedef int dataset_next_fn(struct dataset *ds, struct dataset_image *ret, struct err *err);

/* ---- a shuffle on disk ---- */

#define SPOOL_BUCKETS 64

/* Records that come out in the order of their hashes, equal ones in that of the source.  Takes
 * about 32 MiB of memory, and the records' bytes in `dir`. */
struct spool {
    const char *dir, *name; /* borrowed: DIR/NAME-NUMBER are its files */
    struct spool_bucket {
        struct file_out file;
        struct buf pending;
        uint64_t records;
    } buckets[SPOOL_BUCKETS];
    unsigned n;
    uint64_t records, bytes; /* that it holds */
};
typedef int spool_emit_fn(void *ctx, const uint8_t *record, size_t len);

/* source_bytes: about how many will come. */
void spool_init(struct spool *s, const char *dir, const char *name, uint64_t source_bytes);
int spool_add(struct spool *s, uint64_t hash, const void *record, size_t len, struct err *err);
/* Gives out all records, borrowed and not aligned, and then is empty; the disk's room is free as
 * soon as a 64th, or 32 MiB, was given out.  A negative return of emit, with *err, stops it. */
int spool_emit(struct spool *s, spool_emit_fn *emit, void *ctx, struct err *err);
void spool_release(struct spool *s);

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
    uint64_t holdout_below; /* a sample is held out if its 64-bit hash is below this */
    uint64_t seen, total;
    uint64_t samples, finished; /* there are, bad ones too; in finished shards */
    bool any;                   /* a sample came already: its column's length is report.dim */
    struct err *err;
};

int cut_open(struct cutter *c, const struct dataset *ds, const struct dataset_cut *opt,
             struct err *err);
/* Finishes the last shards unless rc is negative; gives the report to the caller, or frees it on
 * failure.  Returns rc, or the failure. */
int cut_close(struct cutter *c, int rc, struct dataset_report *ret);

/* The shuffled order of a source's n files; NULL: no memory. */
uint32_t *cut_order(const struct cutter *c, size_t n);
/* Adds all images of `next` to their splits; shuffles them unless they come so. */
int cut_images(struct cutter *c, struct dataset *ds, dataset_next_fn *next, bool shuffled);
/* Adds a sample to its split; closes a full shard. */
int cut_add(struct cutter *c, const struct shard_sample *s, uint32_t dim, bool holdout);
/* Is the sample of that name held out, by its hash? */
bool cut_is_holdout(const struct cutter *c, const char *key);
/* A hash of a name: the same on every machine. */
uint64_t cut_hash(const char *key);
/* The key made safe for the report, since a stranger may have chosen it and it reaches a terminal;
 * mem_free. */
char *cut_name(const char *key);
/* An error unless the sample's column is as long as the first one's. */
int cut_check_dim(struct cutter *c, const struct dataset *ds, const char *key, uint32_t dim);
/* Reports how much is done; negative: the cut must stop. */
int cut_progress(struct cutter *c, uint64_t done);

#endif
