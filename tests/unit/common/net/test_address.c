/* Which addresses are of the public internet. */
#include "net_test.h"

#include "common/net/address.h"

#include <arpa/inet.h>
#include <netinet/in.h>

static bool is_public(const char *text)
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
    return address_is_public((const struct sockaddr *)&a);
}

static void test_public(void **state)
{
    static const char *const yes[] = {
        "8.8.8.8",         "1.1.1.1",          "9.255.255.255", "11.0.0.0",       "100.63.255.255",
        "100.128.0.0",     "169.253.255.255",  "169.255.0.0",   "172.15.255.255", "172.32.0.0",
        "192.167.255.255", "192.169.0.0",      "168.63.129.15", "168.63.129.17",  "223.255.255.255",
        "2606:4700::1",    "2a00:1450::1",     "2001:200::1",   "2001:4860::1",   "2003::1",
        "::ffff:8.8.8.8",  "64:ff9b::8.8.8.8",
    };
    static const char *const no[] = {
        "0.0.0.0",
        "10.0.0.1",
        "100.64.0.1",
        "127.0.0.1",
        "127.8.8.8",
        "168.63.129.16",
        "169.254.169.254",
        "172.16.0.1",
        "172.31.255.255",
        "192.0.0.1",
        "192.0.2.1",
        "192.168.1.1",
        "198.18.0.1",
        "198.19.255.255",
        "198.51.100.1",
        "203.0.113.1",
        "224.0.0.1",
        "239.1.2.3",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "::8.8.8.8",
        "fe80::1",
        "fc00::1",
        "fd00:ec2::254",
        "ff02::1",
        "2001:db8::1",
        "2001::1",
        "2002:a00:1::1",
        "3fff::1",
        "4000::1",
        "::ffff:169.254.169.254",
        "::ffff:10.0.0.1",
        "64:ff9b::7f00:1",
        "64:ff9b:1::808:808",
    };
    for (size_t i = 0; i < sizeof(yes) / sizeof(yes[0]); i++)
        if (!is_public(yes[i]))
            fail_msg("%s is public", yes[i]);
    for (size_t i = 0; i < sizeof(no) / sizeof(no[0]); i++)
        if (is_public(no[i]))
            fail_msg("%s is not public", no[i]);
    const struct sockaddr none = {.sa_family = AF_UNIX};
    assert_false(address_is_public(&none));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_public)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
