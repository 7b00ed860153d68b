/* Who makes room among connections that have not said who they are. */
#include "net_test.h"

#include "common/net/strangers.h"

#include <arpa/inet.h>
#include <netinet/in.h>

static struct sockaddr_storage address(const char *text)
{
    struct sockaddr_storage a = {0};
    struct sockaddr_in *v4 = (struct sockaddr_in *)&a;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)&a;
    if (strchr(text, ':')) {
        v6->sin6_family = AF_INET6;
        assert_int_equal(inet_pton(AF_INET6, text, &v6->sin6_addr), 1);
    } else {
        v4->sin_family = AF_INET;
        assert_int_equal(inet_pton(AF_INET, text, &v4->sin_addr), 1);
    }
    return a;
}

static struct stranger *admit(struct strangers *s, struct stranger *n, const char *from)
{
    struct sockaddr_storage a = address(from);
    return strangers_admit(s, n, (const struct sockaddr *)&a);
}

static void test_room(void **state)
{
    struct strangers s;
    struct stranger n[8];
    strangers_init(&s, 4, 2, NULL);
    assert_null(admit(&s, &n[0], "192.0.2.1"));
    assert_null(admit(&s, &n[1], "192.0.2.2"));
    assert_null(admit(&s, &n[2], "192.0.2.2"));
    assert_ptr_equal(admit(&s, &n[3], "192.0.2.2"), &n[1]); /* its own, not the oldest of all */
    assert_null(admit(&s, &n[4], "192.0.2.3"));
    assert_int_equal(s.count, 4);
    assert_ptr_equal(admit(&s, &n[5], "192.0.2.4"), &n[0]); /* no place is free */
    assert_int_equal(s.count, 4);
    strangers_drop(&s, &n[2]);
    strangers_drop(&s, &n[2]); /* known, and later gone */
    assert_int_equal(s.count, 3);
    assert_null(admit(&s, &n[6], "192.0.2.2"));
}

static const struct stranger *busy[2];

static bool is_busy(const struct stranger *n)
{
    return n == busy[0] || n == busy[1];
}

/* Who is in the middle of a handshake stays; where all are, it is the newcomer that goes. */
static void test_busy(void **state)
{
    struct strangers s;
    struct stranger n[8];
    strangers_init(&s, 3, 2, is_busy);
    for (int i = 0; i < 2; i++) {
        assert_null(admit(&s, &n[i], "192.0.2.1"));
        busy[i] = &n[i];
    }
    assert_ptr_equal(admit(&s, &n[2], "192.0.2.1"), &n[2]); /* it has no place */
    strangers_drop(&s, &n[2]);
    assert_int_equal(s.count, 2);
    assert_null(admit(&s, &n[3], "192.0.2.2"));
    assert_ptr_equal(admit(&s, &n[4], "192.0.2.3"), &n[3]); /* no place is free */
    busy[0] = NULL;
    assert_ptr_equal(admit(&s, &n[5], "192.0.2.1"), &n[0]);
    assert_int_equal(s.count, 3);
}

/* A customer's whole /64 is one address; IPv4 is the same through both kinds of socket. */
static void test_addresses(void **state)
{
    struct strangers s;
    struct stranger n[6];
    strangers_init(&s, 8, 1, NULL);
    assert_null(admit(&s, &n[0], "2001:db8:0:1::1"));
    assert_ptr_equal(admit(&s, &n[1], "2001:db8:0:1:ffff::2"), &n[0]);
    assert_null(admit(&s, &n[2], "2001:db8:0:2::1"));
    assert_null(admit(&s, &n[3], "192.0.2.1"));
    assert_ptr_equal(admit(&s, &n[4], "::ffff:192.0.2.1"), &n[3]);
    assert_null(admit(&s, &n[5], "::ffff:192.0.2.2"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_room),
        cmocka_unit_test(test_busy),
        cmocka_unit_test(test_addresses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
