/* A shard: a ustar of samples, opened for random access by sample number, and its
 * writer.  All samples of a shard are of one kind.  Images lie in a plain ustar, which
 * is mapped; texts lie in one compressed by zstd to about a seventh, which is unpacked
 * when it is opened.  The reader accepts both forms for both.
 *
 *   images   KEY.jpg|png|webp   the original file
 *            KEY.cls            class index, decimal
 *            KEY.txt            optional: the captions, one per line (captions.h)
 *   latents  KEY.lat            an encoder's moments of an image (moments.h)
 *            KEY.cls, KEY.txt   as the image's
 *   text     KEY.tok            a byte with the width of an id (1, 2 or 4), then the
 *                               ids of one piece, little-endian
 *   all      KEY.f32            optional, for all samples or none: a feature of the
 *                               dataset, little-endian floats, as many in each
 *
 * KEY is "NNNNNN-NAME" with the number in the shard.  Strict: anything else is
 * refused.  shard_parse is a pure parser over bytes; shard_open maps a file.
 * Read-only after open: any number of threads. */
#ifndef COMMON_DATA_SHARD_H
#define COMMON_DATA_SHARD_H

#include "common/base/base.h"
#include "common/base/file.h"
#include "common/base/hash.h"

#define SHARD_SAMPLES_MAX 65536
#define SHARD_KEY_MAX 100
#define SHARD_TOKENS_MAX (1u << 20)   /* tokens of a piece */
#define SHARD_FEATURE_MAX 65536       /* numbers of a feature */
#define SHARD_UNPACKED_MAX (1u << 30) /* bytes of an unpacked shard */

/* The kind of all samples of a shard. */
enum shard_kind { SHARD_IMAGES, SHARD_TEXT, SHARD_LATENTS };

struct shard_sample {
    char key[SHARD_KEY_MAX]; /* unique in the shard: names a bad sample */
    char ext[8];             /* "jpg" "png" "webp" "tok" "lat" */
    uint32_t cls;            /* class of an image */
    const uint8_t *data;     /* member KEY.ext, in the mapping or in `unpacked` */
    size_t len;
    uint32_t tokens;      /* tokens of a piece of text, 0 for an image */
    const char *captions; /* of an image, in the form of captions.h; NULL: none */
    size_t captions_len;
    const uint8_t *feature; /* `dim` floats, little-endian, not aligned; NULL: none */
};

struct shard {
    struct file_map map; /* a plain shard */
    uint8_t *unpacked;   /* the members' contents of a compressed one */
    enum shard_kind kind;
    uint32_t dim; /* numbers of a feature, 0: none */
    uint64_t tokens;
    struct shard_sample *samples;
    size_t n;
};

int shard_open(const char *path, struct shard *ret, struct err *err);
/* Over borrowed bytes; `name` is for messages. */
int shard_parse(const void *data, size_t len, const char *name, struct shard *ret, struct err *err);
void shard_close(struct shard *s); /* { 0 } is fine */

/* The ids of a piece: s->tokens of them. */
void shard_tokens(const struct shard_sample *s, int32_t *out);
/* The sample's name in its dataset, which is the same in every shard, inside s->key: without the
 * number. */
const char *shard_name(const struct shard_sample *s);
/* The key of a sample of a dataset, with the number 0: characters of the name other than
 * [A-Za-z0-9_#-] become '_', a long name keeps its end, and one that is long or not ASCII gets a
 * hash of it, since others may look the same. */
void shard_key(const char *name, size_t len, char out[SHARD_KEY_MAX]);
/* The feature of a sample: shard->dim floats. */
void shard_feature(const struct shard *shard, const struct shard_sample *s, float *out);

/* Appends ids to out in the form of KEY.tok, in the narrowest width. */
int shard_encode_tokens(const uint32_t *ids, size_t n, struct buf *out);

/* Writing.  Equal samples in equal order give equal bytes.  One thread at a time. */
struct shard_info {
    uint8_t sha256[HASH_BYTES];
    uint64_t bytes, tokens;
    uint32_t samples;
};
struct shard_writer;
/* The file is begun with the first sample; finishing renames it to path. */
struct shard_writer *shard_writer_new(const char *path);
/* Adds a sample, of a shard or of a dataset.  The number before s->key is
 * replaced by that in this shard; a name of another form than shard_key()'s gets that form.
 * s->feature has `dim` numbers (0: no feature).
 * -EINVAL: kinds or dims differ, or captions are invalid; -ERR_LIMIT: the shard is full. */
int shard_writer_add(struct shard_writer *w, const struct shard_sample *s, uint32_t dim,
                     struct err *err);
uint32_t shard_writer_samples(const struct shard_writer *w);
/* At least one sample.  Afterwards only free is allowed. */
int shard_writer_finish(struct shard_writer *w, struct shard_info *ret, struct err *err);
void shard_writer_free(struct shard_writer *w); /* unfinished: leaves no file; NULL is fine */

#endif
