/* Any bytes as a tokenizer.json or a SentencePiece model; what is accepted must give texts back
 * unchanged where it does not rewrite them. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/data/tokenizer_impl.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* decode(encode(x)) == x, and every id is in the vocabulary. */
static void round_trip(const struct tokenizer *t, const uint8_t *text, size_t len)
{
    struct tokens ids = {0};
    struct buf back;
    buf_init(&back, 1u << 24);
    if (tokenizer_encode(t, text, len, TOKENIZER_PLAIN, &ids, NULL) == 0) {
        for (size_t i = 0; i < ids.n; i++)
            if (ids.ids[i] >= tokenizer_vocab(t))
                abort();
        const bool rewrites = t->n_rewrites || t->meta || t->suffix || t->unk >= 0;
        if (tokenizer_decode(t, ids.ids, ids.n, &back) == 0 && !rewrites &&
            (back.len != len || (len && memcmp(back.data, text, len) != 0)))
            abort();
    }
    tokens_release(&ids);
    buf_release(&back);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct tokenizer *t;
    if (tokenizer_parse(data, size, "fuzz", &t, NULL) == 0) {
        struct tokens ids = {0};
        round_trip(t, data, size);
        (void)tokenizer_encode(t, data, size, TOKENIZER_SPECIAL | TOKENIZER_ENDS, &ids, NULL);
        tokens_release(&ids);
        tokenizer_free(t);
    }
    return 0;
}
