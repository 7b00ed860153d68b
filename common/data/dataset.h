/* Reads users' datasets and cuts them into shards.
 *
 * Images:
 *   DIR/CLASS/image.jpg      a folder of class folders; classes sorted by name
 *   x.tar                    a WebDataset tar: KEY.jpg|jpeg|jpe|jfif|png|webp, KEY.cls
 *   DIR with tars            all *.tar (.tar.gz, .tar.zst) in it, sorted
 *   part-{000..011}.tar      a brace range; also * and ? globs
 *
 * In tars a class is KEY.cls: a whole number (the classes are then 0..max, named
 * by classes.txt beside the first tar, one name per line, else by the number),
 * or a text (then the classes are the sorted texts); or "label" in KEY.json,
 * also a number or a text.  The files of a key must be consecutive, as in
 * WebDataset.
 *
 * Images may have one or several captions each (captions.h), which are read only on request.  In
 * tars: each line of KEY.txt, else "caption" or "captions" in KEY.json, a text or a list of texts.
 * In folders: each line of image.txt beside image.jpg; or, if there is a DIR/metadata.jsonl, its
 * lines: "file_name", below DIR, and "text", a text or a list.  Images with captions need no
 * classes: they may lie in DIR itself, and in tars without KEY.cls; all of them then have one
 * class, "all".  Captions beyond CAPTIONS_MAX are cut and counted.  Samples without a caption are
 * counted, and it is an error if there are more of them than bad images are allowed, or if no
 * sample has a caption.
 *
 * Text: whatever text_source.h reads.  A sample is one piece: at most `context`
 * tokens of one document.  A longer document makes several, named "KEY#0",
 * "KEY#1" ..., each beginning with the last token of the one before, so that
 * every token except a document's first is predicted.  A last piece that would have
 * less than DATASET_PIECE_MIN tokens begins so much earlier; a document of one piece
 * has at least 2.  Short documents are held out as a whole; of long ones spans (runs
 * of pieces) are held out, so that any fraction of a few books can be.
 *
 * Both may have a column: equally many numbers for each sample (such as an embedding,
 * for partitions).  For images: the array of that name in KEY.json, or KEY.NAME.npy,
 * else KEY.npy (f2, f4 or f8, one row), in the tar or beside the image in the folder.
 * For text: the array of that name in the line; all pieces of a document have it.  A
 * sample without it, or with another length, is an error that names the sample.
 *
 * dataset_open reads only names and classes (of tars: in one pass over the archive)
 * and refuses data that cannot be trained on: an empty dataset, a class folder
 * without images, an image without class.  Text is read when it is cut, all of it
 * before the first shard is handed out.  One thread at a time.
 *
 * Links to libarchive. */
#ifndef COMMON_DATA_DATASET_H
#define COMMON_DATA_DATASET_H

#include "common/base/base.h"
#include "common/base/hash.h"

#define DATASET_CLASSES_MAX 4096
#define DATASET_SAMPLES_MAX (64u << 20)
#define DATASET_IMAGE_MAX (64u << 20) /* bytes of one encoded image */
#define DATASET_SHARDS_MAX 32768      /* shards of a job that brings its dataset */
#define DATASET_BAD_NAMED 64          /* most bad images or lines that are named */

#define DATASET_PIECE_MIN 33  /* tokens: a routing prefix of 32 and one to predict */
#define DATASET_SPAN 4096     /* tokens held out together in a long document, about */
#define DATASET_WHOLE_SPANS 4 /* a document of more spans is long */

struct tokenizer;
struct dataset;

struct dataset_options {
    const char *path;
    const char *name;         /* name of the source, if path is a copy of it; NULL: path */
    const char *column;       /* NULL: none */
    bool captions;            /* images: read their captions */
    bool text;                /* else images; the rest is only for text */
    const char *holdout_path; /* a separate source of held-out documents; NULL: a fraction */
    const char *text_field;   /* field of a .jsonl that holds the text */
    const struct tokenizer *tokenizer; /* borrowed until close; NULL: bytes */
    uint32_t context;                  /* largest piece, in tokens */
    /* For tars: called with the keys seen so far; the total is unknown (0).  May be NULL; a
     * negative return stops. */
    int (*on_progress)(void *ctx, uint64_t done, uint64_t total);
    void *ctx;
};

int dataset_open(const struct dataset_options *opt, struct dataset **ret, struct err *err);
void dataset_close(struct dataset *ds); /* NULL is fine */

size_t dataset_classes(const struct dataset *ds); /* text: 0 */
const char *dataset_class(const struct dataset *ds, size_t i);
/* Images found, good or bad.  Text: 0, since they are known only when it is cut. */
uint64_t dataset_samples(const struct dataset *ds);

/* Are there captions, by the names of files and the keys of JSON, that were not asked for? */
bool dataset_leaves_captions(const struct dataset *ds);
/* The files that were found but are not read: "2 .gif files, 1 folder inside class folders"; NULL:
 * none.  Valid until close. */
const char *dataset_left_out(const struct dataset *ds);
/* What is read of such a dataset, for a person who misses something: "only files ..." */
const char *dataset_reads(const struct dataset *ds);

/* A finished shard file; the callback may move or upload it; path is borrowed.
 * A negative return stops the cut with *err as filled. */
struct dataset_shard {
    const char *path;
    uint8_t sha256[HASH_BYTES];
    uint64_t bytes;
    uint32_t samples;
    uint64_t tokens; /* 0 for images */
    bool holdout;
    double share; /* of all samples, about: those in this shard and the earlier ones */
};
typedef int dataset_shard_fn(void *ctx, const struct dataset_shard *shard, struct err *err);

struct dataset_cut {
    uint64_t seed;
    /* Held-out fraction of the images or documents, by hash of (seed, key), and of the spans of
     * long documents, at equal distances through all of these in their order; if > 0, at least one
     * image, document (of a size nearest to the fraction) or span.  Not used with a
     * holdout_path. */
    double holdout;
    /* For one of several sources of a dataset: nothing need be left to train on; images and
     * documents are held out only by hash. */
    bool may_hold_all, may_hold_none;
    /* The shards are only looked at: tars are shuffled in parts of 256 MiB, so that `dir` needs no
     * room for all images. */
    bool look;
    /* Images: about how many are read; 0: all.  Of a folder they are drawn evenly, of tars they are
     * the first ones of each; classes may then be without any. */
    uint64_t most;
    uint32_t shard_samples; /* target; shards differ by at most a few samples */
    uint32_t max_bad;       /* most bad images or lines, and most images without caption */
    const char *dir;        /* an existing folder for the shards */
    dataset_shard_fn *on_shard;
    /* Called now and then with the amount done (images, or bytes of a text source); may be
     * NULL; a negative return stops. */
    int (*on_progress)(void *ctx, uint64_t done, uint64_t total);
    void *ctx;
};

struct dataset_report {
    uint64_t samples, holdout_samples;     /* written in all; those held out */
    uint64_t documents, holdout_documents; /* text: with a piece; held out as a whole */
    uint64_t tokens, holdout_tokens;       /* text: of all pieces written; of those held out */
    uint64_t text_bytes;                   /* text: of all documents read */
    uint64_t not_utf8;                     /* documents, or images by captions, in another code */
    char *not_utf8_first;                  /* file of the first text, or first image */
    /* Text: ids are below this.  It is the tokenizer's; for token files without a
     * tokenizer the least that holds their ids, but at least that of bytes. */
    uint32_t vocab;
    uint32_t dim;     /* numbers of the column, 0: none */
    uint64_t *counts; /* per class, train + holdout */
    size_t classes;
    uint64_t uncaptioned;    /* images without a caption, if captions were asked for */
    char *uncaptioned_first; /* the name of the first; NULL: none */
    uint64_t captions_cut;   /* images whose captions were too long */
    uint32_t bad_count;
    char *bad[DATASET_BAD_NAMED];           /* names, NULL after the last */
    const char *bad_why[DATASET_BAD_NAMED]; /* static: "larger than 64 MiB" */
};

/* Shuffles everything, in bounded memory, and writes shards (shard.h).  Equal datasets, seeds and
 * options give equal bytes.  Of tars and text no shard is handed out before all was read, and the
 * images, or the tokens, need their room in `dir`, too.  Text can be cut only once. */
int dataset_cut(struct dataset *ds, const struct dataset_cut *opt, struct dataset_report *ret,
                struct err *err);
void dataset_report_release(struct dataset_report *report);

#endif
