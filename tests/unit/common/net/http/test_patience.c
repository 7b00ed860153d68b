#include "common/net/http/patience.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void test_unknown(void **state)
{
    const struct patience p = {0};
    assert_true(patience_ms(&p, 0, 0) == PATIENCE_MOST_MS);
    assert_true(patience_ms(&p, 2, 0) == 4 * PATIENCE_MOST_MS);
    assert_true(patience_ms(&p, 100, 0) == 256 * PATIENCE_MOST_MS);
    assert_true(patience_ms(&p, 0, 64 << 20) == PATIENCE_MOST_MS + 1000);
}

/* Fast and steady: the least.  Slow: as slow as it is, with room, and never more than the most. */
static void test_follows(void **state)
{
    struct patience p = {0};
    for (int i = 0; i < 20; i++)
        patience_note(&p, 20);
    assert_true(patience_ms(&p, 0, 0) == PATIENCE_LEAST_MS);
    assert_true(patience_ms(&p, 1, 0) == 2 * PATIENCE_LEAST_MS);
    patience_note(&p, 3000); /* one that took long makes the next ones patient at once */
    assert_true(patience_ms(&p, 0, 0) == PATIENCE_MOST_MS);
    for (int i = 0; i < 60; i++)
        patience_note(&p, 1500);
    assert_true(patience_ms(&p, 0, 0) > 1500 && patience_ms(&p, 0, 0) < 2000);
    for (int i = 0; i < 60; i++)
        patience_note(&p, 20);
    assert_true(patience_ms(&p, 0, 0) == PATIENCE_LEAST_MS);
}

/* Silence makes others patient until there is an answer, and not longer. */
static void test_silence(void **state)
{
    struct patience p = {0};
    patience_note(&p, 20);
    patience_silent(&p);
    assert_true(patience_ms(&p, 0, 0) == 2 * PATIENCE_LEAST_MS);
    assert_true(patience_ms(&p, 1, 0) == 2 * PATIENCE_LEAST_MS);
    assert_true(patience_ms(&p, 2, 0) == 4 * PATIENCE_LEAST_MS);
    patience_silent(&p);
    patience_silent(&p);
    assert_true(patience_ms(&p, 0, 0) == 8 * PATIENCE_LEAST_MS);
    for (int i = 0; i < 16; i++) /* of as many requests at once */
        patience_silent(&p);
    assert_true(patience_ms(&p, 0, 0) == PATIENCE_MOST_MS);
    assert_true(patience_ms(&p, 4, 0) == 16 * PATIENCE_LEAST_MS);
    patience_note(&p, 20);
    assert_true(patience_ms(&p, 0, 0) == PATIENCE_LEAST_MS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_unknown),
        cmocka_unit_test(test_follows),
        cmocka_unit_test(test_silence),
    };
    return cmocka_run_group_tests_name("patience", tests, NULL, NULL);
}
