/* What both ends of the RPC share: numbers of errors, names of builds, the bound of a message. */
#include "tests/unit/common/net/net_test.h"

#include <errno.h>

#include "common/net/frame.h"
#include "common/net/rpc_wire.h"

#define CODE(name) SKERRY__ENVELOPE__V1__ERROR_CODE__ERROR_CODE_##name

static void codes_survive_the_wire(void **state)
{
    static const int codes[] = {
        -EINVAL,     -EAGAIN,     -ENOSPC,     -ETIMEDOUT,     -EEXIST,       -EBUSY,
        -ERR_FORMAT, -ERR_HASH,   -ERR_AUTH,   -ERR_VERSION,   -ERR_LIMIT,    -ERR_STALE,
        -ERR_REMOTE, -ERR_CONFIG, -ERR_DEVICE, -ERR_CANCELLED, -ERR_NOTFOUND, -ERR_UNIMPLEMENTED,
    };
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) {
        assert_int_equal(rpc_code_from_wire(rpc_code_to_wire(codes[i])), codes[i]);
        for (size_t j = 0; j < i; j++)
            assert_int_not_equal(rpc_code_to_wire(codes[j]), rpc_code_to_wire(codes[i]));
    }
    /* Two of ours are one of theirs; what has no number is an inner matter. */
    assert_int_equal(rpc_code_to_wire(-ENOENT), CODE(NOT_FOUND));
    assert_int_equal(rpc_code_from_wire(CODE(NOT_FOUND)), -ERR_NOTFOUND);
    assert_int_equal(rpc_code_to_wire(-EPERM), CODE(INTERNAL));
    assert_int_equal(rpc_code_to_wire(0), CODE(INTERNAL));
    assert_int_equal(rpc_code_from_wire(CODE(INTERNAL)), -ERR_REMOTE);
    assert_int_equal(rpc_code_from_wire(99999), -ERR_REMOTE); /* a newer release's */
}

static void only_what_may_pass_is_tried_again(void **state)
{
    static const int again[] = {-EAGAIN, -EBUSY, -ETIMEDOUT, -ENOSPC};
    static const int never[] = {0,         -EINVAL,     -ERR_AUTH, -ERR_STALE, -ERR_FORMAT,
                                -ERR_HASH, -ERR_REMOTE, EAGAIN,    -ERR_LIMIT};
    for (size_t i = 0; i < sizeof again / sizeof *again; i++)
        assert_true(rpc_code_is_retryable(again[i]));
    for (size_t i = 0; i < sizeof never / sizeof *never; i++)
        assert_false(rpc_code_is_retryable(never[i]));
}

static void a_build_is_named_in_print(void **state)
{
    char got[RPC_BUILD_ID_MAX], longest[300];
    rpc_build_id_copy(got, "1.2 (abc)~");
    assert_string_equal(got, "1.2 (abc)~");
    rpc_build_id_copy(got, "a\033[2J\nb\x7f\xc3\xa9\x1f");
    assert_string_equal(got, "a?[2J?b????");
    rpc_build_id_copy(got, "");
    assert_string_equal(got, "");
    memset(longest, 'x', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    rpc_build_id_copy(got, longest);
    assert_int_equal(strlen(got), RPC_BUILD_ID_MAX - 1);
}

static void a_message_above_its_limit_is_not_queued(void **state)
{
    Skerry__Envelope__V1__Error m = SKERRY__ENVELOPE__V1__ERROR__INIT;
    m.detail = (char *)"0123456789";
    size_t size = protobuf_c_message_get_packed_size(&m.base);
    assert_true(size > 10);
    /* No connection is touched. */
    assert_int_equal(rpc_send(NULL, 0, 16, 1, &m.base, (uint32_t)size - 1, false), -ERR_LIMIT);
    assert_int_equal(rpc_send(NULL, 0, 16, 1, &m.base, 0, true), -ERR_LIMIT);
}

/* 5 s without a server are followed by at most a third of one. */
static void dials_follow_the_outage(void **state)
{
    assert_int_equal(rpc_backoff_ms(0, 200, 10000, 0), 100);
    assert_int_equal(rpc_backoff_ms(0, 200, 10000, UINT16_MAX), 199);
    assert_int_equal(rpc_backoff_ms(3200, 200, 10000, 0), 100);
    assert_int_equal(rpc_backoff_ms(5000, 200, 10000, 0), 156);
    assert_int_equal(rpc_backoff_ms(5000, 200, 10000, UINT16_MAX), 311);
    assert_int_equal(rpc_backoff_ms(60000, 200, 10000, 32768), 2812);
    assert_int_equal(rpc_backoff_ms(UINT64_MAX, 200, 10000, 0), 5000);
    assert_int_equal(rpc_backoff_ms(UINT64_MAX, 200, 10000, UINT16_MAX), 9999);
    assert_int_equal(rpc_backoff_ms(0, 1, 1, UINT16_MAX), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(codes_survive_the_wire),
        cmocka_unit_test(only_what_may_pass_is_tried_again),
        cmocka_unit_test(a_build_is_named_in_print),
        cmocka_unit_test(a_message_above_its_limit_is_not_queued),
        cmocka_unit_test(dials_follow_the_outage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
