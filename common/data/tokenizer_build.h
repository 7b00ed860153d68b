/* Filling a tokenizer's tables from a file: what the readers share.  tokenizer_json.c reads a
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

/* An empty tokenizer; `close` gives it to the caller, or frees it when rc < 0.  Returns rc. */
void build_open(struct build *b, const char *name, struct err *err);
int build_close(struct build *b, int rc, struct tokenizer **ret);

/* -ERR_FORMAT with "tokenizer NAME: " before the sentence. */
int build_refuse(const struct build *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* -ENOMEM. */
int build_no_memory(const struct build *b);

/* Tables for ids below `vocab`, some of them free for added tokens. */
int build_room(struct build *b, size_t vocab, size_t merges);
/* Room for other merges than were asked for first. */
int build_merge_room(struct build *b, size_t merges);
/* The text of an id as a file writes it: in GPT-2's alphabet, or with U+2581 (t->meta).  The
 * bytes are put into b->scratch, too. */
int build_text(struct build *b, const char *text, size_t len);
/* A token of the vocabulary.  Under t->byte_fallback <0x41> and the like are bytes. */
int build_token(struct build *b, uint32_t id, const char *text, size_t len);
/* byte_ids of a byte-level vocabulary. */
void build_bytes(struct build *b);
void build_merge(struct build *b, uint32_t left, uint32_t right, uint32_t rank, uint32_t id);
/* left + right as a file has them, each of a length; -ERR_FORMAT when they are no tokens. */
int build_merge_text(struct build *b, const char *const side[2], const size_t len[2],
                     uint32_t rank);
/* An added token; one with the same id is replaced.  Its id may be free, or that of this text. */
int build_added(struct build *b, const char *text, size_t len, struct added flags);
/* Id of a special token by one of its names, the first that is there; -1: none. */
int32_t build_special(const struct build *b, const char *const *names, size_t n);
int build_rewrite(struct build *b, enum rewrite how);
/* The charsmap of SentencePiece: bytes of the double array (u32), the array, the texts. */
int build_charsmap(struct build *b, const uint8_t *data, size_t len);
/* Once everything is there. */
int build_finish(struct build *b);

/* The readers; build_finish comes after them. */
int tokenizer_read_json(struct build *b, const void *json, size_t len);
/* Its steps around the model: "normalizer", "pre_tokenizer", "post_processor", jansson's values.
 * Those of the first two set how tokens are written (t->meta), so they come before the tokens. */
int tokenizer_read_steps(struct build *b, const json_t *normalizer, const json_t *pre_tokenizer);
int tokenizer_read_ends(struct build *b, const json_t *post_processor);
int tokenizer_read_spm(struct build *b, const void *data, size_t len);
/* The vocabulary of CLIP's vocab.json, {"text": id, ...}, and all that its class does but merges.
 */
int tokenizer_read_clip(struct build *b, json_t *vocab);

#endif
