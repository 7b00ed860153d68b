/* The tokenizer of a text encoder: captions to ids of one length, as transformers'
 * tokenizer(text, padding="max_length", truncation=True, max_length=most) gives them.
 *
 *   CLIP   byte-level BPE with </w>: tokenizer.json, or vocab.json and merges.txt
 *   T5     Unigram: tokenizer.json or spiece.model
 *
 * From a folder as transformers saves it ("tokenizer" of a pipeline).  tokenizer_config.json and
 * special_tokens_map.json, where they are there, name its class, its special tokens and its
 * length.  Special tokens in a caption are recognised, as transformers does.
 *
 * Files are hostile input: everything in them is bounded and checked.  What changes ids and is not
 * known is refused by its name.
 *
 * Read-only once open: any number of threads. */
#ifndef COMMON_DATA_CAPTION_TOKENIZER_H
#define COMMON_DATA_CAPTION_TOKENIZER_H

#include "common/data/tokenizer.h"

struct caption_tokenizer;

/* Whose tokens they are. */
enum caption_kind { CAPTION_CLIP, CAPTION_T5 };

#define CAPTION_TOKENS_MAX 4096        /* ids of a caption */
#define CAPTION_BYTES_MAX (64u * 1024) /* bytes of a caption */

/* -ENOENT when the folder has no tokenizer; -ERR_FORMAT when it is none that is known. */
int caption_tokenizer_open(const char *dir, struct caption_tokenizer **ret, struct err *err);
void caption_tokenizer_free(struct caption_tokenizer *c); /* NULL is fine */

/* What the folder's class or its model says. */
enum caption_kind caption_tokenizer_kind(const struct caption_tokenizer *c);
const char *caption_kind_name(enum caption_kind kind); /* "CLIP", "T5" */
/* Every id is below this: what the encoder's embedding must have at least. */
uint32_t caption_tokenizer_vocab(const struct caption_tokenizer *c);
/* The most tokens of a text that it was made for, 0: not said. */
uint32_t caption_tokenizer_length(const struct caption_tokenizer *c);
/* What fills a caption up. */
int32_t caption_tokenizer_pad(const struct caption_tokenizer *c);

/* The caption's tokens with the special ones around them, cut to `most` (2 to CAPTION_TOKENS_MAX;
 * the special ones stay), the rest padded: ids (most).  *ret_len: how many are no padding.  The
 * null caption is "".  -ERR_FORMAT when it is not UTF-8, -ERR_LIMIT when it is too long. */
int caption_tokenizer_encode(const struct caption_tokenizer *c, const void *text, size_t len,
                             int most, int32_t *ids, int *ret_len, struct err *err);
/* How many of its tokens that cuts off; 0 also of what it refuses. */
int caption_tokenizer_cut(const struct caption_tokenizer *c, const void *text, size_t len,
                          int most);

#endif
