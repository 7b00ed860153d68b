#include "common/net/address.h"

#include <netinet/in.h>
#include <sys/socket.h>

struct range4 {
    uint32_t net, bits;
};

struct range6 {
    uint8_t net[4], bits; /* at most 32 */
};

/* From the IANA's registries of special addresses, except Azure's. */
static const struct range4 special4[] = {
    {0x00000000, 8},  /* this network */
    {0x0a000000, 8},  /* private */
    {0x64400000, 10}, /* shared by a carrier */
    {0x7f000000, 8},  /* loopback */
    {0xa83f8110, 32}, /* Azure's services, on each of its machines */
    {0xa9fe0000, 16}, /* link-local: the metadata of clouds */
    {0xac100000, 12}, /* private */
    {0xc0000000, 24}, /* protocols */
    {0xc0000200, 24}, /* documentation */
    {0xc0a80000, 16}, /* private */
    {0xc6120000, 15}, /* benchmarks */
    {0xc6336400, 24}, /* documentation */
    {0xcb007100, 24}, /* documentation */
    {0xe0000000, 4},  /* multicast */
    {0xf0000000, 4},  /* reserved, broadcast */
};

/* Special ranges within 2000::/3; addresses outside that are not public. */
static const struct range6 special6[] = {
    {{0x20, 0x01, 0x00, 0x00}, 23}, /* protocols, Teredo */
    {{0x20, 0x01, 0x0d, 0xb8}, 32}, /* documentation */
    {{0x20, 0x02, 0x00, 0x00}, 16}, /* 6to4 */
    {{0x3f, 0xff, 0x00, 0x00}, 20}, /* documentation */
};

static const uint8_t nat64[12] = {0x00, 0x64, 0xff, 0x9b};

static uint32_t word(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static bool is_within(uint32_t address, uint32_t net, uint32_t bits)
{
    return (address ^ net) >> (32 - bits) == 0;
}

static bool public4(uint32_t address)
{
    for (size_t i = 0; i < sizeof(special4) / sizeof(special4[0]); i++)
        if (is_within(address, special4[i].net, special4[i].bits))
            return false;
    return true;
}

static bool public6(const uint8_t a[16])
{
    const struct in6_addr *v6 = (const struct in6_addr *)(const void *)a;
    if (IN6_IS_ADDR_V4MAPPED(v6) || memcmp(a, nat64, sizeof(nat64)) == 0)
        return public4(word(a + 12));
    for (size_t i = 0; i < sizeof(special6) / sizeof(special6[0]); i++)
        if (is_within(word(a), word(special6[i].net), special6[i].bits))
            return false;
    return a[0] >> 5 == 1;
}

bool address_is_public(const struct sockaddr *a)
{
    if (a->sa_family == AF_INET)
        return public4(ntohl(((const struct sockaddr_in *)(const void *)a)->sin_addr.s_addr));
    if (a->sa_family == AF_INET6)
        return public6(((const struct sockaddr_in6 *)(const void *)a)->sin6_addr.s6_addr);
    return false;
}
