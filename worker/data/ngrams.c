#include "worker/data/ngrams.h"

#include "common/base/buf.h"
#include "common/base/rng.h"
#include "common/data/tokenizer.h"

#define LENGTHS 3 /* 1 to 3 bytes */

void ngrams(const uint8_t *bytes, size_t len, float *out)
{
    double norm = 0;
    memset(out, 0, NGRAMS_DIM * sizeof(float));
    for (size_t i = 0; i < len; i++) {
        uint64_t gram = 0;
        for (size_t n = 1; n <= LENGTHS && i + n <= len; n++) {
            gram = gram << 8 | bytes[i + n - 1];
            out[rng_mix(n, gram) % NGRAMS_DIM] += 1;
        }
    }
    for (size_t i = 0; i < NGRAMS_DIM; i++) {
        norm += (double)out[i];
        out[i] = sqrtf(out[i]);
    }
    float scale = norm > 0 ? (float)(1 / sqrt(norm)) : 0;
    for (size_t i = 0; i < NGRAMS_DIM; i++)
        out[i] *= scale;
}

int ngrams_tokens(const struct tokenizer *t, const int32_t *ids, size_t n, struct buf *scratch,
                  float *out)
{
    buf_clear(scratch);
    for (size_t i = 0; i < n; i++) {
        const uint8_t low[2] = {(uint8_t)ids[i], (uint8_t)(ids[i] >> 8)};
        size_t len = sizeof(low);
        const uint8_t *piece = t ? tokenizer_piece(t, (uint32_t)ids[i], &len) : low;
        if (t && tokenizer_is_special(t, (uint32_t)ids[i]))
            continue;
        int rc = buf_append(scratch, piece, len);
        if (rc < 0)
            return rc;
    }
    ngrams(scratch->data, scratch->len, out);
    return 0;
}
