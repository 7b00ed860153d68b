#include "worker/data/ngrams.h"

#include <math.h>

#include "common/base/buf.h"
#include "common/data/tokenizer.h"
#include "tests/unit/common/base/util.h"

static double length(const float *v)
{
    double sum = 0;
    for (int i = 0; i < NGRAMS_DIM; i++)
        sum += (double)v[i] * (double)v[i];
    return sqrt(sum);
}

static double cosine(const char *a, const char *b)
{
    float x[NGRAMS_DIM], y[NGRAMS_DIM];
    double sum = 0;
    ngrams((const uint8_t *)a, strlen(a), x);
    ngrams((const uint8_t *)b, strlen(b), y);
    for (int i = 0; i < NGRAMS_DIM; i++)
        sum += (double)x[i] * (double)y[i];
    return sum;
}

static void alike_texts_are_near(void **state)
{
    float v[NGRAMS_DIM];
    ngrams((const uint8_t *)"abc", 3, v);
    assert_true(fabs(length(v) - 1) < 1e-6);
    unsigned used = 0;
    for (int i = 0; i < NGRAMS_DIM; i++)
        used += v[i] > 0;
    assert_int_equal(used, 6); /* a b c ab bc abc, in buckets of their own */
    ngrams(NULL, 0, v);
    assert_true(length(v) == 0);
    assert_true(cosine("the sea at night", "the sea at noon") >
                cosine("the sea at night", "int x = y + 1;") + 0.2);
    assert_true(fabs(cosine("same", "same") - 1) < 1e-6);
}

/* Ids of bytes are the bytes; the ends of a document do not count. */
static void tokens_are_their_bytes(void **state)
{
    struct tokenizer *t = tokenizer_bytes();
    const int32_t ids[] = {TOKENIZER_BYTES_END, 'a', 'b', 'c', TOKENIZER_BYTES_END};
    float got[NGRAMS_DIM], want[NGRAMS_DIM];
    struct buf scratch;
    buf_init(&scratch, 16);
    OK(ngrams_tokens(t, ids, COUNT(ids), &scratch, got));
    ngrams((const uint8_t *)"abc", 3, want);
    assert_memory_equal(got, want, sizeof(got));
    /* Of a tokenizer that nobody named: those of the ids. */
    OK(ngrams_tokens(NULL, ids + 1, 3, &scratch, got));
    ngrams((const uint8_t *)"a\0b\0c", 6, want);
    assert_memory_equal(got, want, sizeof(got));
    buf_release(&scratch);
    buf_init(&scratch, 2);
    assert_int_equal(ngrams_tokens(t, ids, COUNT(ids), &scratch, got), -ERR_LIMIT);
    buf_release(&scratch);
    tokenizer_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(alike_texts_are_near),
        cmocka_unit_test(tokens_are_their_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
