/* FEATURE: rows of pixels, n-grams, states and columns. */
#include "tests/unit/worker/encoded_task.h"

static void row(const struct features *f, uint32_t i, float *out)
{
    memcpy(out, f->files[0].x + (size_t)i * f->d * sizeof(float), f->d * sizeof(float));
}

static void pixels_of_images(void **state)
{
    struct features f;
    float a[768], b[768];
    struct work *w = features_of(IMAGES, &images[1], 0, false, &f);
    assert_int_equal(f.d, 768);
    row(&f, 3, a); /* the one that is no image lies with the one before it */
    row(&f, 2, b);
    assert_memory_equal(a, b, sizeof(a));
    row(&f, 0, a);
    row(&f, 4, b); /* and the one behind it has its own values, not its neighbour's */
    float least = 2, most = -2;
    for (int j = 0; j < 768; j++) {
        least = a[j] < least ? a[j] : least;
        most = a[j] > most ? a[j] : most;
    }
    assert_true(least >= -1 && most <= 1 && most - least > 0.5F);
    assert_memory_not_equal(a, b, sizeof(a));
    uint64_t id;
    memcpy(&id, f.files[0].ids + 4 * sizeof(id), sizeof(id));
    assert_true(id == data_sample_id(images[1].sha256, 4));
    features_close(&f);
    work_free(w);
}

/* Not one of a shard's samples is an image: each has a row, all the same. */
static void pixels_of_no_image(void **state)
{
    struct features f;
    float a[768];
    struct work *w = features_of(IMAGES, &texts[0], 0, false, &f);
    (void)state;
    assert_int_equal(f.d, 768);
    for (uint32_t i = 0; i < N; i++) {
        row(&f, i, a);
        for (int j = 0; j < 768; j++)
            assert_true(a[j] == 0);
    }
    features_close(&f);
    work_free(w);
}

static void states_of_images(void **state)
{
    struct features f, g;
    float a[16], b[16];
    struct work *w = features_of(WARM "partition: {features: model}\n", &images[0], 0, true, &f);
    struct work *v = features_of(WARM "partition: {features: model}\n", &images[0], 0, true, &g);
    (void)state;
    assert_int_equal(f.d, 16);
    row(&f, 1, a);
    row(&f, 2, b);
    assert_memory_not_equal(a, b, sizeof(a));
    row(&g, 1, b);
    assert_memory_equal(a, b, sizeof(a));
    features_close(&f);
    features_close(&g);
    work_free(w);
    work_free(v);
}

static void ngrams_of_texts(void **state)
{
    static const char spec[] = TEXTS "partition: {features: ngrams}\n";
    struct features f;
    float a[NGRAMS_DIM], want[NGRAMS_DIM];
    uint8_t bytes[CONTEXT];
    uint32_t ids[CONTEXT], n = text_of(1, 5, ids, NULL);
    struct work *w = features_of(spec, &texts[1], CHUNK, false, &f);
    assert_int_equal(f.d, NGRAMS_DIM);
    assert_int_equal(f.files[0].columns, COLUMNS);
    for (uint32_t k = 1; k < n; k++)
        bytes[k - 1] = (uint8_t)ids[k]; /* the first token stands for no byte */
    ngrams(bytes, 31, want);
    row(&f, 5, a);
    assert_memory_equal(a, want, sizeof(want));
    double norm = 0;
    for (int j = 0; j < NGRAMS_DIM; j++)
        norm += (double)a[j] * (double)a[j];
    assert_true(fabs(norm - 1) < 1e-5);
    ngrams(bytes + 15, 16, want); /* tokens 16 to 31 */
    features_chunk(&f, 0, 5, 1, a);
    assert_memory_equal(a, want, sizeof(want));
    features_chunk(&f, 0, N - 1, 1, a); /* 20 tokens: 4 of the second chunk */
    text_of(1, N - 1, ids, NULL);
    for (uint32_t k = 1; k < 20; k++)
        bytes[k - 1] = (uint8_t)ids[k];
    ngrams(bytes + 15, 4, want);
    assert_memory_equal(a, want, sizeof(want));
    features_chunk(&f, 0, N - 1, 2, a);
    for (int j = 0; j < NGRAMS_DIM; j++)
        assert_true(a[j] == 0);
    features_close(&f);
    work_free(w);
}

static void states_of_texts(void **state)
{
    struct features f;
    float a[16], b[16];
    struct work *w = features_of(TEXTS, &texts[0], CHUNK, true, &f); /* auto: the warm start */
    assert_int_equal(f.d, 16);
    row(&f, 0, a);
    row(&f, 1, b);
    assert_memory_not_equal(a, b, sizeof(a));
    /* the first 32 tokens are the first two chunks */
    float c0[16], c1[16];
    features_chunk(&f, 0, 0, 0, c0);
    features_chunk(&f, 0, 0, 1, c1);
    for (int j = 0; j < 16; j++)
        assert_true(fabsf(a[j] - (c0[j] + c1[j]) / 2) < 1e-4F);
    features_close(&f);
    work_free(w);
}

static void columns_of_the_dataset(void **state)
{
    static const char spec[] = TEXTS "partition: {features: column, column: clip}\n";
    struct features f;
    float a[2];
    struct work *w = features_of(spec, &columns[2], 0, false, &f);
    assert_int_equal(f.d, 2);
    row(&f, 9, a);
    assert_true(a[0] == 2 && a[1] == 9);
    features_close(&f);
    work_free(w);
    struct order o;
    order_init(&o, SKERRY__V1__TASK_KIND__TASK_KIND_FEATURE, spec, texts, 1);
    fails(&o, -ERR_CONFIG, "no column 'clip'");
}

/* Another job's replica goes where the VAE needs its memory. */
static void latents_beside_a_replica(void **state)
{
    struct order o;
    struct encoded e;
    (void)state;
    for (int wide = 0; wide < 2; wide++) {
        keep_replica(wide ? 64 << 20 : 1 << 10);
        order_init(&o, SKERRY__V1__TASK_KIND__TASK_KIND_FEATURE,
                   ENCODED_SPEC("", "partition: {features: latents}\n"), images, 1);
        encoded_order(&e, &o, false);
        work_free(run(&o));
        assert_int_equal(refusals, 0);
        assert_int_equal(kept_replica_was_there(), wide);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pixels_of_images),         cmocka_unit_test(pixels_of_no_image),
        cmocka_unit_test(states_of_images),         cmocka_unit_test(ngrams_of_texts),
        cmocka_unit_test(states_of_texts),          cmocka_unit_test(columns_of_the_dataset),
        cmocka_unit_test(latents_beside_a_replica),
    };
    return cmocka_run_group_tests(tests, encoded_setup, encoded_teardown);
}
