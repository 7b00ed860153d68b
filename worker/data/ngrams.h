/* A feature of a text without any model: its bytes, byte pairs and byte triples are counted in
 * NGRAMS_DIM buckets by a hash; the roots of the counts are scaled to length one.  The same on
 * every machine. */
#ifndef WORKER_DATA_NGRAMS_H
#define WORKER_DATA_NGRAMS_H

#include "common/base/base.h"

#define NGRAMS_DIM 1024

struct tokenizer;

/* out (NGRAMS_DIM); zeros if len is 0. */
void ngrams(const uint8_t *bytes, size_t len, float *out);
/* The same for the bytes that ids stand for, without special tokens.  t NULL: the bytes of the ids
 * themselves, two for each. */
struct buf;
int ngrams_tokens(const struct tokenizer *t, const int32_t *ids, size_t n, struct buf *scratch,
                  float *out);

#endif
