/* A shard: a ustar of samples, opened for random access by sample number, and the
 * one writer of them.  All samples of a shard are of one kind.  Images lie in a plain
 * ustar, which is mapped; texts in one compressed by zstd, a seventh of it, whose pieces
 * are unpacked when it is opened.  Reading takes either for both.
 *
 *   images   KEY.jpg|png|webp   the file as it was
 *            KEY.cls            class index, decimal
 *            KEY.txt            optional: the captions, a line each (captions.h)
 *   latents  KEY.lat            what an encoder made of an image (moments.h)
 *            KEY.cls, KEY.txt   as the image's
 *   text     KEY.tok            a byte that says the width of an id (1, 2 or 4),
 *                               then the ids of one piece, little-endian
 *   all      KEY.f32            optional, all samples or none: a feature of the data
 *                               set, little-endian floats, the same number in each
 *
 * KEY is "NNNNNN-NAME" with the number in the shard.  Strict: anything else is
 * refused.  A pure parser over the bytes; the file variant maps it.  Read-only
 * after open: any number of threads. */
#ifndef COMMON_DATA_SHARD_H
#define COMMON_DATA_SHARD_H

#include "common/base/base.h"
#include "common/base/file.h"
#include "common/base/hash.h"

#define SHARD_SAMPLES_MAX 65536
#define SHARD_KEY_MAX 100
#define SHARD_TOKENS_MAX (1u << 20)   /* tokens of a piece */
#define SHARD_FEATURE_MAX 65536       /* numbers of a feature */
#define SHARD_UNPACKED_MAX (1u << 30) /* bytes of what zstd makes a shard of */

/* What all samples of a shard are. */
enum shard_kind { SHARD_IMAGES, SHARD_TEXT, SHARD_LATENTS };

struct shard_sample {
    char key[SHARD_KEY_MAX]; /* unique in the shard: names a bad sample */
    char ext[8];             /* "jpg" "png" "webp" "tok" "lat" */
    uint32_t cls;            /* class of an image */
    const uint8_t *data;     /* member KEY.ext, inside the mapping or what was unpacked */
    size_t len;
    uint32_t tokens;      /* tokens of a piece of text, 0 for an image */
    const char *captions; /* of an image, as captions.h has them; NULL: none */
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
/* The name that the sample had before it came into a shard (and has in every other one), inside
 * s->key: without the number, with '_' for odd characters, the end of a long one. */
const char *shard_name(const struct shard_sample *s);
/* The feature of a sample: shard->dim floats. */
void shard_feature(const struct shard *shard, const struct shard_sample *s, float *out);

/* Encodes ids as KEY.tok has them, in the narrowest width; appends to out. */
int shard_encode_tokens(const uint32_t *ids, size_t n, struct buf *out);

/* Writing.  Same samples in the same order: same bytes.  One thread at a time. */
struct shard_info {
    uint8_t sha256[HASH_BYTES];
    uint64_t bytes, tokens;
    uint32_t samples;
};
struct shard_writer;
/* The file is begun with the first sample; path appears when finished, by a rename. */
struct shard_writer *shard_writer_new(const char *path);
/* Adds a sample, of a shard or of a dataset.  The number before s->key is
 * replaced by the one in this shard; other characters than [A-Za-z0-9_#-] become
 * '_', long names keep their end.  `dim` numbers at s->feature (0: no feature).
 * -EINVAL when kinds or dims mix or captions are none, -ERR_LIMIT when the shard is full. */
int shard_writer_add(struct shard_writer *w, const struct shard_sample *s, uint32_t dim,
                     struct err *err);
uint32_t shard_writer_samples(const struct shard_writer *w);
/* At least one sample.  Afterwards only free is allowed. */
int shard_writer_finish(struct shard_writer *w, struct shard_info *ret, struct err *err);
void shard_writer_free(struct shard_writer *w); /* unfinished: leaves no file; NULL is fine */

#endif
