/* What the files of the tokenizer share: tokenizer.c encodes and decodes, tokenizer_json.c reads
 * a file, tokenizer_split.c finds the words. */
#ifndef COMMON_DATA_TOKENIZER_IMPL_H
#define COMMON_DATA_TOKENIZER_IMPL_H

#include "common/data/tokenizer.h"

/* How text is cut into words before merging. */
enum split {
    SPLIT_NONE,   /* bytes */
    SPLIT_GPT2,   /* 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+ */
    SPLIT_CL100K, /* GPT-4, Llama 3: up to three digits */
    SPLIT_DIGIT,  /* Qwen 2: single digits */
    SPLIT_WHOLE,  /* no pattern: all of the text is one word */
};

/* A token: bytes in the pool. */
struct token {
    uint32_t at, len;
    bool used, special;
};

/* left + right -> id, the lower rank first.  In a hash table, open addressing;
 * empty: id UINT32_MAX. */
struct merge {
    uint32_t left, right, rank, id;
};

/* An added token: recognised in the text before splitting if asked for. */
struct added {
    uint32_t id, len;
    bool special;
};

struct tokenizer {
    enum split split;
    struct token *tokens; /* by id */
    uint32_t vocab;
    struct buf pool;        /* the bytes of all tokens */
    uint32_t byte_ids[256]; /* UINT32_MAX: the vocabulary lacks it */
    struct merge *merges;
    uint32_t merge_mask; /* size of the table less one; 0: no merges */
    uint32_t n_merges;
    bool whole_words;  /* a word that is a token is not merged (ignore_merges) */
    uint32_t *by_text; /* hash table of ids, for whole words; UINT32_MAX: empty */
    uint32_t text_mask;
    struct added *added; /* longest text first */
    size_t n_added;
    int32_t bos, eos;
};

/* Where a token's text, and a pair of tokens, begin in the tables. */
uint32_t tokenizer_hash(const void *text, size_t len);
uint32_t tokenizer_pair_hash(uint32_t left, uint32_t right);
/* Id of a token by its bytes; -1: none. */
int64_t tokenizer_find(const struct tokenizer *t, const void *text, size_t len);

/* Bytes of the first word of the text, at least 1 (len > 0). */
size_t tokenizer_word(enum split split, const uint8_t *text, size_t len);

#endif
