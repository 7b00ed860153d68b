/* Shared by the files of the tokenizer: tokenizer.c has the tables and decodes,
 * tokenizer_encode.c encodes; tokenizer_normal.c rewrites texts first, tokenizer_split.c finds the
 * words, tokenizer_unigram.c the best pieces; tokenizer_build.h fills the tables.
 *
 * If a file writes spaces as U+2581 (Metaspace, SentencePiece), they are ' ' in the tables and in
 * the texts, so that a piece is the text that it stands for. */
#ifndef COMMON_DATA_TOKENIZER_IMPL_H
#define COMMON_DATA_TOKENIZER_IMPL_H

#include "common/data/tokenizer.h"

#define TOKENIZER_NONE UINT32_MAX

/* How text is cut into words before merging. */
enum split {
    SPLIT_NONE,   /* single bytes */
    SPLIT_GPT2,   /* 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+ */
    SPLIT_CL100K, /* GPT-4, Llama 3: up to three digits */
    SPLIT_DIGIT,  /* Qwen 2: single digits */
    SPLIT_CLIP,   /* <\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|\p{L}+|\p{N}|
                     [^\s\p{L}\p{N}]+, spaces dropped; the results are cut as in GPT-2 */
    SPLIT_WHOLE,  /* no pattern: the whole text is one word */
    SPLIT_BEFORE, /* no pattern either, but no merge reaches from another character to a ' ' after
                     it: before each such ' ' the text can be cut */
    SPLIT_SPACES, /* at white space, which is dropped */
};

/* Where Metaspace puts a space before a word that does not begin with one; or (NONE or ALL) whether
 * ByteLevel does before each text between added tokens. */
enum prefix {
    PREFIX_NONE,
    PREFIX_FIRST, /* only before the text's first word */
    PREFIX_ALL,
};

/* Rewrites of a text before it is split. */
enum rewrite {
    REWRITE_NFC,
    REWRITE_LOWER,
    REWRITE_SPACES,      /* \s+ is ' ' */
    REWRITE_RUNS,        /* " {2,}" is ' ' */
    REWRITE_META,        /* U+2581 is ' ' */
    REWRITE_PREPEND,     /* ' ' before a text that is not empty */
    REWRITE_STRIP_LEFT,  /* white space */
    REWRITE_STRIP_RIGHT, /* white space */
    REWRITE_CHARSMAP,
};
#define TOKENIZER_REWRITES_MAX 8

/* A token: bytes in the pool. */
struct token {
    uint32_t at, len;
    bool used, special;
};

/* left + right -> id, the lower rank first; an entry of a hash table with open
 * addressing.  Empty: id UINT32_MAX. */
struct merge {
    uint32_t left, right, rank, id;
};

/* An added token: recognised in the text before splitting if asked for. */
struct added {
    uint32_t id, at, len; /* its text: bytes in the pool */
    bool special;
    bool normalized;     /* recognised after the text was rewritten */
    bool single_word;    /* not within a word */
    bool lstrip, rstrip; /* includes the white space before it, after it */
};

struct tokenizer {
    enum split split;
    struct token *tokens; /* by id */
    uint32_t vocab;
    struct buf pool;        /* the bytes of all tokens */
    uint32_t byte_ids[256]; /* UINT32_MAX: the vocabulary lacks the byte */
    struct merge *merges;
    uint32_t merge_mask; /* size of the table minus one; 0: no merges */
    uint32_t n_merges;
    bool whole_words;  /* a word that is a token is not merged (ignore_merges) */
    uint32_t *by_text; /* hash table of ids, for whole words; UINT32_MAX: empty */
    uint32_t text_mask;
    struct added *added; /* longest text first */
    size_t n_added;
    uint8_t added_starts[2][256]; /* by `normalized` and first byte: 1 plain, 2 special ones */
    int32_t bos, eos;
    int32_t put_first, put_last; /* the post-processor's tokens around a text, -1: none */

    enum rewrite rewrites[TOKENIZER_REWRITES_MAX];
    size_t n_rewrites;
    bool meta;      /* the vocabulary writes spaces as U+2581 */
    bool metaspace; /* texts are, too, with a space before words as `prefix` says */
    enum prefix prefix;
    bool cut_at_space; /* and words are cut again before each ' ' */

    bool characters;    /* BPE begins with characters, not with bytes */
    bool suffix;        /* the last symbol of a word ends in "</w>" */
    bool byte_fallback; /* byte_ids are for characters that the vocabulary lacks */
    bool fuse_unk;      /* a run of unknown characters is one token */
    int32_t unk;        /* -1: none */
    bool sentencepiece; /* read from its model */

    double *scores; /* Unigram, by id; NULL: BPE */
    double unk_score;
    uint32_t *sorted; /* ids of the pieces by their bytes */
    uint32_t n_sorted;

    uint32_t *trie; /* the charsmap: a double array, and texts that end in NUL */
    uint32_t n_trie;
    struct buf charsmap;
};

/* Makes room for n more ids. */
int tokens_room(struct tokens *t, size_t n, struct err *err);

/* Hashes of a token's text, and of a pair of tokens, for the tables. */
uint32_t tokenizer_hash(const void *text, size_t len);
static inline uint32_t tokenizer_pair_hash(uint32_t left, uint32_t right)
{
    return (uint32_t)(((uint64_t)left << 32 | right) * 0x9e3779b97f4a7c15u >> 32);
}
/* The id of the token with these bytes; -1: none. */
int64_t tokenizer_find(const struct tokenizer *t, const void *text, size_t len);

/* Bytes of the first word of the text, at least 1 (len > 0); *ret_drop: it is to be dropped. */
size_t tokenizer_word(enum split split, const uint8_t *text, size_t len, bool *ret_drop);

/* *out = the text after all rewrites; `spare` is working memory.  The three must be distinct. */
int tokenizer_rewrite(const struct tokenizer *t, const uint8_t *text, size_t len, struct buf *out,
                      struct buf *spare);
/* Appends the text with ' ' for each U+2581. */
int tokenizer_meta(const uint8_t *text, size_t len, struct buf *out);

/* Appends the likeliest pieces of a word.  Without TOKENIZER_SPECIAL special tokens are no pieces.
 */
int tokenizer_unigram(const struct tokenizer *t, const uint8_t *text, size_t len, unsigned flags,
                      struct tokens *out, struct err *err);
/* Sorts the pieces once all scores are there. */
int tokenizer_unigram_sort(struct tokenizer *t);

/* Appends the tokens for a text that the vocabulary lacks: those of its bytes, or the unknown
 * token. -ERR_FORMAT: the vocabulary has neither. */
int tokenizer_unknown(const struct tokenizer *t, const uint8_t *text, size_t len,
                      struct tokens *out, struct err *err);

#endif
