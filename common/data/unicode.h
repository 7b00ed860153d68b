/* Characters as in Hugging Face's tokenizers, with which models were trained.
 *
 * UTF-8 is read strictly; a byte that is not UTF-8 is a character of its own, in no class. */
#ifndef COMMON_DATA_UNICODE_H
#define COMMON_DATA_UNICODE_H

#include "common/base/base.h"
#include "common/base/buf.h"

#define UNICODE_NONE UINT32_MAX /* not a character: a byte that is not UTF-8 */

/* Bytes of the byte order mark that some editors put before UTF-8: 3, or 0 if there is none. */
size_t unicode_mark(const char *text, size_t len);

/* The first character of the text (len > 0) and its bytes, 1 to 4. */
uint32_t unicode_decode(const uint8_t *text, size_t len, size_t *ret_len);

/* \p{L}, \p{N} and \s of patterns (Unicode 16). */
bool unicode_is_letter(uint32_t c);
bool unicode_is_number(uint32_t c);
bool unicode_is_space(uint32_t c);
/* \w : a letter, a mark, a number or a connector such as '_'. */
bool unicode_is_word(uint32_t c);

/* Append the text in NFC (Unicode 9), or in lower case (Unicode 17, character by character,
 * without final sigma).  0, -ERR_LIMIT or -ENOMEM. */
int unicode_nfc(const uint8_t *text, size_t len, struct buf *out);
int unicode_lower(const uint8_t *text, size_t len, struct buf *out);

/* Bytes of the first extended grapheme cluster, at least 1 (len > 0). */
size_t unicode_grapheme(const uint8_t *text, size_t len);

#endif
