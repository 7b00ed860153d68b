/* Datasets as users have them, and cutting them into shards.
 *
 * Images:
 *   DIR/CLASS/image.jpg      a folder of class folders; classes sorted by name
 *   x.tar                    a WebDataset tar: KEY.jpg|jpeg|png|webp, KEY.cls
 *   DIR with tars            all *.tar (.tar.gz, .tar.zst) in it, sorted
 *   part-{000..011}.tar      a brace range; also * and ? globs
 *
 * In tars a class is KEY.cls: a whole number (the classes are then 0..max, named
 * by classes.txt beside the first tar, one name a line, else by the number),
 * or a text (then the classes are the sorted texts); or "label" in KEY.json,
 * a number or a text likewise.  What belongs to a key must stand together, as
 * WebDataset has it.
 *
 * Images may have captions, one or several each (captions.h), which are read only when they are
 * asked for.  In tars: each line of KEY.txt, else "caption" or "captions" in KEY.json, a text or a
 * list of texts.  In folders: each line of image.txt beside image.jpg; or, if there is a
 * DIR/metadata.jsonl, what that says: "file_name", below DIR, and "text", a text or a list.  Images
 * with captions need no classes: they may lie in DIR itself, and in tars without KEY.cls; all are
 * then of one class, "all".  What goes beyond CAPTIONS_MAX is cut and counted.  A sample without
 * a caption is counted, and more of them than of bad images are allowed are an error; so is a
 * dataset without any.
 *
 * Text: whatever text_source.h reads.  A sample is one piece: at most `context`
 * tokens of one document.  A longer document makes several, named "KEY#0",
 * "KEY#1" ..., each beginning with the last token of the one before, so that
 * every token but a document's first is predicted exactly once.  Pieces of less
 * than DATASET_PIECE_MIN tokens are dropped, unless the document has no other
 * and it is at least 2.  Short documents are held out as a whole; of long ones spans
 * are, runs of pieces, so that a few books can be held out by any fraction.
 *
 * Either may have a column: numbers that come with each sample (an embedding, to
 * partition by), as many for each.  Of images: the array of that name in
 * KEY.json, or KEY.NAME.npy, else KEY.npy (f2, f4 or f8, one row), in the tar or
 * beside the image in the folder.  Of text: the array of that name in the line;
 * all pieces of a document have it.  A sample without it, or of another length,
 * is an error that names the sample.
 *
 * dataset_open reads names and classes only (of tars: passes over the archive
 * once) and refuses what cannot be trained on: nothing there, a class folder
 * without images, an image without class.  Text is read when it is cut, all of
 * it before the first shard is handed out.  One thread at a time.
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
#define DATASET_BAD_NAMED 64          /* bad images kept by name */

#define DATASET_PIECE_MIN 33  /* tokens: a routing prefix of 32 and one to predict */
#define DATASET_SPAN 4096     /* tokens: about what is held out together of a long document */
#define DATASET_WHOLE_SPANS 4 /* a document of more spans than these is long */

struct tokenizer;
struct dataset;

struct dataset_options {
    const char *path;
    const char *name;         /* name of the source, if path is a copy of it; NULL: path */
    const char *column;       /* NULL: none */
    bool captions;            /* of images: wanted, else read by nobody */
    bool text;                /* else images; the rest is for text only */
    const char *holdout_path; /* a source of its own for the held-out documents; NULL: a fraction */
    const char *text_field;   /* field of a .jsonl that holds the text */
    const struct tokenizer *tokenizer; /* borrowed until close; NULL: bytes */
    uint32_t context;                  /* largest piece, in tokens */
    /* Of tars: called with the keys seen so far, of nobody knows how many (0); may be NULL;
     * negative stops. */
    int (*on_progress)(void *ctx, uint64_t done, uint64_t total);
    void *ctx;
};

int dataset_open(const struct dataset_options *opt, struct dataset **ret, struct err *err);
void dataset_close(struct dataset *ds); /* NULL is fine */

size_t dataset_classes(const struct dataset *ds); /* text: 0 */
const char *dataset_class(const struct dataset *ds, size_t i);
/* Images found, good or bad.  Of text 0: known when it is cut. */
uint64_t dataset_samples(const struct dataset *ds);

/* What was found and is left out, as dataset.h says what is read: "2 .gif files, 1 folder inside
 * class folders"; NULL: nothing.  Until close. */
const char *dataset_left_out(const struct dataset *ds);

/* A finished shard file; the callback may move or upload it; path is borrowed.
 * A negative return stops the cut with *err as filled. */
struct dataset_shard {
    const char *path;
    uint8_t sha256[HASH_BYTES];
    uint64_t bytes;
    uint32_t samples;
    uint64_t tokens; /* 0 for images */
    bool holdout;
};
typedef int dataset_shard_fn(void *ctx, const struct dataset_shard *shard, struct err *err);

struct dataset_cut {
    uint64_t seed;
    /* Fraction of the images or documents, by hash of (seed, key), and of the spans of long
     * documents, at equal distances through all of these in their order; at least one image,
     * document (of a size nearest to the fraction) or span if > 0.  Not used when there is a
     * holdout_path. */
    double holdout;
    uint32_t shard_samples; /* aimed at; shards differ by at most a few samples */
    uint32_t max_bad;       /* more images that are none, or without caption: an error */
    const char *dir;        /* where shards are written (exists) */
    dataset_shard_fn *on_shard;
    /* Called now and then with how much is done (images; of text bytes of the
     * source); may be NULL; negative stops. */
    int (*on_progress)(void *ctx, uint64_t done, uint64_t total);
    void *ctx;
};

struct dataset_report {
    uint64_t samples, holdout_samples;     /* train + holdout written; holdout of them */
    uint64_t documents, holdout_documents; /* text: with a piece; held out as a whole */
    uint64_t tokens, holdout_tokens;       /* text: of all pieces written */
    uint64_t text_bytes;                   /* text: of all documents read */
    uint64_t not_utf8;                     /* text: documents with bytes that are no UTF-8 */
    char *not_utf8_first;                  /* the name of the first; NULL: none */
    /* Text: ids are below.  The tokenizer's; of token files without one what they
     * need, at least that of bytes. */
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

/* Shuffles (folders and text: all of it; tars: through a window of samples;
 * bounded in memory), writes shards (shard.h); same dataset, seed and options:
 * same bytes.  Text is cut once, and needs
 * as much room in `dir` as its tokens take. */
int dataset_cut(struct dataset *ds, const struct dataset_cut *opt, struct dataset_report *ret,
                struct err *err);
void dataset_report_release(struct dataset_report *report);

#endif
