/* The tokenizer of a text encoder: captions to ids of one length, as transformers'
 * tokenizer(text, padding="max_length", truncation=True, max_length=most) gives them.
 *
 *   CLIP   byte-level BPE with </w>: tokenizer.json, or vocab.json and merges.txt
 *   T5     Unigram: tokenizer.json or spiece.model
 *
 * It is read from a folder saved by transformers ("tokenizer" of a pipeline).
 * tokenizer_config.json and special_tokens_map.json, if they exist, name its class, its special
 * tokens and its length.  Special tokens in a caption are recognised, as in transformers.
 *
 * Files are hostile input: everything in them is bounded and checked.  An unknown option that
 * changes ids is refused by its name.
 *
 * Read-only once open: any number of threads. */
#ifndef COMMON_DATA_CAPTION_TOKENIZER_H
#define COMMON_DATA_CAPTION_TOKENIZER_H

#include "common/data/tokenizer.h"

struct caption_tokenizer;

/* The encoder whose tokens they are. */
enum caption_kind { CAPTION_CLIP, CAPTION_T5 };

#define CAPTION_TOKENS_MAX 4096        /* ids of a caption */
#define CAPTION_BYTES_MAX (64u * 1024) /* bytes of a caption */

/* -ENOENT: the folder has no tokenizer; -ERR_FORMAT: it is of no known kind. */
int caption_tokenizer_open(const char *dir, struct caption_tokenizer **ret, struct err *err);
void caption_tokenizer_free(struct caption_tokenizer *c); /* NULL is fine */

/* The kind, by the folder's class or its model. */
enum caption_kind caption_tokenizer_kind(const struct caption_tokenizer *c);
const char *caption_kind_name(enum caption_kind kind); /* "CLIP", "T5" */
/* Every id is below this: the encoder's embedding needs at least as many rows. */
uint32_t caption_tokenizer_vocab(const struct caption_tokenizer *c);
/* The most tokens of a text for which it was made; 0: unknown. */
uint32_t caption_tokenizer_length(const struct caption_tokenizer *c);
/* The id that pads a caption. */
int32_t caption_tokenizer_pad(const struct caption_tokenizer *c);

/* ids (most) = the caption's tokens with the special ones around them, cut to `most` (2 to
 * CAPTION_TOKENS_MAX; the special ones stay) and padded.  *ret_len: how many are no padding.  The
 * null caption is "".  -ERR_FORMAT: it is not UTF-8; -ERR_LIMIT: it is too long. */
int caption_tokenizer_encode(const struct caption_tokenizer *c, const void *text, size_t len,
                             int most, int32_t *ids, int *ret_len, struct err *err);
/* The number of tokens that encode would cut off; 0 also for a caption that it refuses. */
int caption_tokenizer_cut(const struct caption_tokenizer *c, const void *text, size_t len,
                          int most);

#endif
