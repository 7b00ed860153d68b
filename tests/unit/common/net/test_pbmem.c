/* The arena of unpacked messages stops at its maximum. */
#include "common/net/pbmem.h"
#include "proto/envelope.pb-c.h"

#include "tests/unit/common/net/net_test.h"

/* 64 times amplification stops at the arena's maximum. */
static void test_arena(void **state)
{
    struct pbmem m;
    pbmem_init(&m, 64 * 1024);
    uint8_t hostile[60000]; /* 30,000 empty strings in `features` */
    for (size_t i = 0; i < sizeof(hostile); i += 2) {
        hostile[i] = 3 << 3 | 2;
        hostile[i + 1] = 0;
    }
    assert_null(skerry__envelope__v1__hello__unpack(pbmem_allocator(&m), sizeof(hostile), hostile));
    assert_true(m.used <= 64 * 1024);
    pbmem_clear(&m);
    Skerry__Envelope__V1__Hello *h =
        skerry__envelope__v1__hello__unpack(pbmem_allocator(&m), 100, hostile);
    assert_non_null(h);
    assert_int_equal(h->n_features, 50);
    pbmem_clear(&m);
    assert_int_equal(m.used, 0);
    pbmem_release(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_arena),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
