/* Fills a tokenizer's tables from a file; shared by the readers.  tokenizer_json.c reads a
 * tokenizer.json, tokenizer_spm.c a SentencePiece model. */
#ifndef COMMON_DATA_TOKENIZER_BUILD_H
#define COMMON_DATA_TOKENIZER_BUILD_H

#include <jansson.h>

#include "common/data/tokenizer_impl.h"

#define TOKENIZER_ADDED_MAX 65536

struct build {
    struct tokenizer *t;
    const char *name; /* for messages */
    struct buf scratch;
    struct err *err;
    int16_t byte_of[512]; /* code point of GPT-2's alphabet -> byte; -1: none */
    size_t added_cap;
    uint32_t extra_ids; /* T5's <extra_id_0> and so on, after the pieces of a SentencePiece model */
};

/* Begin with an empty tokenizer; close gives it to the caller, or frees it if rc < 0, and returns
 * rc. */
void build_open(struct build *b, const char *name, struct err *err);
int build_close(struct build *b, int rc, struct tokenizer **ret);

/* -ERR_FORMAT: sets the sentence, with "tokenizer NAME: " before it. */
int build_refuse(const struct build *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* -ENOMEM. */
int build_no_memory(const struct build *b);

/* Makes the tables for ids below `vocab`, some of them free for added tokens. */
int build_room(struct build *b, size_t vocab, size_t merges);
/* Makes room for another number of merges. */
int build_merge_room(struct build *b, size_t merges);
/* Adds the text of an id in the file's form (GPT-2's alphabet, or with U+2581 if t->meta) to the
 * pool; its bytes are in b->scratch, too. */
int build_text(struct build *b, const char *text, size_t len);
/* Adds a token of the vocabulary.  With t->byte_fallback <0x41> and the like are bytes. */
int build_token(struct build *b, uint32_t id, const char *text, size_t len);
/* Fills byte_ids for a byte-level vocabulary. */
void build_bytes(struct build *b);
void build_merge(struct build *b, uint32_t left, uint32_t right, uint32_t rank, uint32_t id);
/* Adds the merge of two texts of a file, left and right, with their lengths.  -ERR_FORMAT: they are
 * no tokens. */
int build_merge_text(struct build *b, const char *const side[2], const size_t len[2],
                     uint32_t rank);
/* Adds an added token, or replaces that of the same id, which must be free or have this text. */
int build_added(struct build *b, const char *text, size_t len, struct added flags);
/* The id of the first of these names that is a special token; -1: none. */
int32_t build_special(const struct build *b, const char *const *names, size_t n);
int build_rewrite(struct build *b, enum rewrite how);
/* The charsmap of SentencePiece: bytes of the double array (u32), the array, the texts. */
int build_charsmap(struct build *b, const uint8_t *data, size_t len);
/* Called once everything is added. */
int build_finish(struct build *b);

/* The readers; build_finish comes after them. */
int tokenizer_read_json(struct build *b, const void *json, size_t len);
/* A tokenizer.json's steps around the model: "normalizer", "pre_tokenizer", "post_processor", as
 * jansson's values.  The first two set how tokens are written (t->meta): read them before tokens.
 */
int tokenizer_read_steps(struct build *b, const json_t *normalizer, const json_t *pre_tokenizer);
int tokenizer_read_ends(struct build *b, const json_t *post_processor);
int tokenizer_read_spm(struct build *b, const void *data, size_t len);
/* The vocabulary of CLIP's vocab.json, {"text": id, ...}, and the settings of its class, without
 * merges. */
int tokenizer_read_clip(struct build *b, json_t *vocab);

#endif
