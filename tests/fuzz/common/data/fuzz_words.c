/* Any bytes as a text: every split pattern ends, keeps all bytes, and the streaming
 * decoder gives out nothing but UTF-8. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/str.h"
#include "common/data/tokenizer_impl.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const enum split splits[] = {SPLIT_GPT2, SPLIT_CL100K, SPLIT_DIGIT,
                                        SPLIT_CLIP, SPLIT_WHOLE,  SPLIT_SPACES};
    bool drop;
    for (size_t i = 0; i < sizeof(splits) / sizeof(splits[0]); i++)
        for (size_t at = 0, n; at < size; at += n) {
            n = tokenizer_word(splits[i], data + at, size - at, &drop);
            if (n == 0 || n > size - at)
                abort();
        }
    struct tokenizer *t = tokenizer_bytes();
    struct tokenizer_stream s = {0};
    struct buf out;
    buf_init(&out, 3 * size + 16);
    for (size_t i = 0; i < size; i++)
        if (tokenizer_stream_push(&s, t, data[i], &out) < 0)
            abort();
    if (tokenizer_stream_end(&s, &out) < 0 || !str_is_utf8(buf_str(&out), out.len))
        abort();
    if (str_is_utf8((const char *)data, size) && size &&
        (out.len != size || memcmp(out.data, data, size) != 0))
        abort();
    buf_release(&out);
    tokenizer_free(t);
    return 0;
}
