/* Text to token ids and back.
 *
 *   bytes            the default: ids 0..255 are the bytes, 256 is both bos and eos;
 *                    vocabulary 257
 *   tokenizer.json   Hugging Face's: byte-level BPE, as in GPT-2, GPT-4, Llama 3 and CLIP
 *                    (split patterns of GPT-2, of cl100k, of Qwen 2, which is cl100k's with
 *                    single digits, and of CLIP); BPE over characters with U+2581 for spaces,
 *                    as in Llama 2; Unigram, as in T5.  Normalizers NFC, Lowercase, Replace (of
 *                    white space), Strip, Prepend, Precompiled; pre-tokenizers ByteLevel,
 *                    Split, Metaspace, WhitespaceSplit; added tokens.  Anything else is
 *                    refused by its name.
 *   tokenizer.model  SentencePiece's: BPE as in SentencePiece itself, with byte fallback and
 *                    dummy prefix; Unigram as in transformers' T5.
 *
 * Without normalizers, unknown tokens and U+2581 bytes survive: decode(encode(x)) == x for any
 * bytes, valid UTF-8 or not.  With U+2581 or add_prefix_space the first space of a text is lost.
 * Files are hostile input: everything in them is bounded and checked.
 *
 * A tokenizer is read-only once it is made: any number of threads. */
#ifndef COMMON_DATA_TOKENIZER_H
#define COMMON_DATA_TOKENIZER_H

#include "common/base/base.h"
#include "common/base/buf.h"

struct tokenizer;

#define TOKENIZER_FILE_MAX (64u << 20) /* bytes of a file */
#define TOKENIZER_VOCAB_MAX (1u << 20)
#define TOKENIZER_PIECE_MAX 65536     /* bytes of one token */
#define TOKENIZER_TEXT_MAX (1u << 30) /* bytes encoded at once */
#define TOKENIZER_BYTES_VOCAB 257
#define TOKENIZER_BYTES_END 256

/* The tokenizer of bytes.  Never fails. */
struct tokenizer *tokenizer_bytes(void);
/* A tokenizer.json or tokenizer.model, told apart by the first bytes; `name` is for messages. */
int tokenizer_parse(const void *data, size_t len, const char *name, struct tokenizer **ret,
                    struct err *err);
int tokenizer_open(const char *path, struct tokenizer **ret, struct err *err);
void tokenizer_free(struct tokenizer *t); /* NULL is fine */
/* Was it read from a SentencePiece model, not from a tokenizer.json? */
bool tokenizer_is_sentencepiece(const struct tokenizer *t);

/* Every id is below this; not every id below it is a token. */
uint32_t tokenizer_vocab(const struct tokenizer *t);
/* The tokens before and after a document, -1: none.  With a tokenizer.json, bos is
 * the token that its post-processor puts first, else <|begin_of_text|>, <s>,
 * <|startoftext|> or <|endoftext|>; eos is <|end_of_text|>, </s> or <|endoftext|>. */
int32_t tokenizer_bos(const struct tokenizer *t);
int32_t tokenizer_eos(const struct tokenizer *t);
/* The bytes of a token, borrowed; *ret_len is 0 for ids that are no token.  Special
 * tokens give their text ("<|endoftext|>"), id 256 of the byte tokenizer nothing. */
const uint8_t *tokenizer_piece(const struct tokenizer *t, uint32_t id, size_t *ret_len);
bool tokenizer_is_special(const struct tokenizer *t, uint32_t id);
/* The number of bytes of text that a token stands for; 0 for special tokens. */
size_t tokenizer_token_bytes(const struct tokenizer *t, uint32_t id);

/* A growing list of ids. */
struct tokens {
    uint32_t *ids;
    size_t n, cap;
};
void tokens_release(struct tokens *t); /* { 0 } is fine */
int tokens_add(struct tokens *t, uint32_t id, struct err *err);

enum tokenizer_flags {
    TOKENIZER_PLAIN = 0,   /* "<|endoftext|>" in the text is plain text, for strangers' data */
    TOKENIZER_SPECIAL = 1, /* special tokens in the text are recognised, for prompts */
    TOKENIZER_ENDS = 2,    /* bos before and eos after, for documents */
};
/* Appends the tokens of a text to *out.  -ERR_FORMAT: the vocabulary lacks a byte. */
int tokenizer_encode(const struct tokenizer *t, const void *text, size_t len, unsigned flags,
                     struct tokens *out, struct err *err);

/* Appends the bytes of the ids; special tokens and unknown ids give nothing.  For tests: a
 * program decodes with a stream. */
int tokenizer_decode(const struct tokenizer *t, const uint32_t *ids, size_t n, struct buf *out);

/* Decodes tokens as they come, for printing: only whole UTF-8 characters are
 * appended to out, the rest waits for the next token; bytes that can never become
 * valid are U+FFFD.  Start with { 0 }. */
struct tokenizer_stream {
    uint8_t held[4];
    unsigned n;
};
int tokenizer_stream_push(struct tokenizer_stream *s, const struct tokenizer *t, uint32_t id,
                          struct buf *out);
int tokenizer_stream_end(struct tokenizer_stream *s, struct buf *out); /* U+FFFD for a rest */

#endif
