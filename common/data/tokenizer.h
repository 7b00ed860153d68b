/* Text to token ids and back.
 *
 *   bytes            the default: ids 0..255 are the bytes, 256 stands at both ends
 *                    of a document (bos and eos are one); vocabulary 257
 *   tokenizer.json   Hugging Face's: byte-level BPE, as of GPT-2, GPT-4, Llama 3 and CLIP
 *                    (split patterns of GPT-2, of cl100k, also with single digits as Qwen 2
 *                    has it, of CLIP); BPE over characters with U+2581 for spaces, as of
 *                    Llama 2; Unigram, as of T5.  Normalizers NFC, Lowercase, Replace (of
 *                    white space), Strip, Prepend, Precompiled; pre-tokenizers ByteLevel,
 *                    Split, Metaspace, WhitespaceSplit; added tokens.  Anything else is
 *                    refused with a sentence that names it.
 *   tokenizer.model  SentencePiece's: BPE as it encodes itself, with its byte fallback and
 *                    dummy prefix; Unigram as transformers' T5 encodes.
 *
 * Without normalizers, unknown tokens and U+2581 bytes survive: decode(encode(x)) == x for any
 * bytes, valid UTF-8 or not.  With U+2581 or add_prefix_space the first space of a text does not.
 * Files are hostile input: everything in them is bounded and checked.
 *
 * A tokenizer is read-only once made: any number of threads. */
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

/* Byte tokens.  Never fails. */
struct tokenizer *tokenizer_bytes(void);
/* A tokenizer.json or tokenizer.model, which its first bytes tell; `name` is for messages. */
int tokenizer_parse(const void *data, size_t len, const char *name, struct tokenizer **ret,
                    struct err *err);
int tokenizer_open(const char *path, struct tokenizer **ret, struct err *err);
void tokenizer_free(struct tokenizer *t); /* NULL is fine */
/* Whether it came from a SentencePiece model, which is no tokenizer.json. */
bool tokenizer_is_sentencepiece(const struct tokenizer *t);

/* Every id is below this; not every id below it need be a token. */
uint32_t tokenizer_vocab(const struct tokenizer *t);
/* The tokens before and after a document, -1: none.  Of a tokenizer.json: what
 * its post-processor puts first, else <|begin_of_text|>, <s>, <|startoftext|> or
 * <|endoftext|>; and <|end_of_text|>, </s> or <|endoftext|>. */
int32_t tokenizer_bos(const struct tokenizer *t);
int32_t tokenizer_eos(const struct tokenizer *t);
/* The bytes of a token, borrowed; *ret_len 0 for ids that are none.  Special
 * tokens give their text ("<|endoftext|>"), the 256 of byte tokens nothing. */
const uint8_t *tokenizer_piece(const struct tokenizer *t, uint32_t id, size_t *ret_len);
bool tokenizer_is_special(const struct tokenizer *t, uint32_t id);
/* Bytes of text that a token stands for; special ones for none. */
size_t tokenizer_token_bytes(const struct tokenizer *t, uint32_t id);

/* Ids, growing. */
struct tokens {
    uint32_t *ids;
    size_t n, cap;
};
void tokens_release(struct tokens *t); /* { 0 } is fine */
int tokens_add(struct tokens *t, uint32_t id, struct err *err);

enum tokenizer_flags {
    TOKENIZER_PLAIN = 0,   /* "<|endoftext|>" in the text is text: data of strangers */
    TOKENIZER_SPECIAL = 1, /* special tokens in the text are recognised: prompts */
    TOKENIZER_ENDS = 2,    /* bos before and eos after, as documents are cut */
};
/* Appends the tokens of a text to *out.  -ERR_FORMAT when the vocabulary lacks a byte. */
int tokenizer_encode(const struct tokenizer *t, const void *text, size_t len, unsigned flags,
                     struct tokens *out, struct err *err);

/* Appends the bytes of the ids; special tokens and unknown ids give nothing.  For tests: a
 * program decodes with a stream. */
int tokenizer_decode(const struct tokenizer *t, const uint32_t *ids, size_t n, struct buf *out);

/* Decoding as the tokens come, for printing: only whole UTF-8 characters are
 * given out, the rest waits for the next token; what can never become valid is
 * U+FFFD.  { 0 } at the start. */
struct tokenizer_stream {
    uint8_t held[4];
    unsigned n;
};
int tokenizer_stream_push(struct tokenizer_stream *s, const struct tokenizer *t, uint32_t id,
                          struct buf *out);
int tokenizer_stream_end(struct tokenizer_stream *s, struct buf *out); /* U+FFFD for a rest */

#endif
