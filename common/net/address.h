/* What kind of place a network address is. */
#ifndef COMMON_NET_ADDRESS_H
#define COMMON_NET_ADDRESS_H

#include "common/base/base.h"

struct sockaddr;

/* Whether it is of the public internet: not this host, a private or shared network, a link (where
 * clouds keep the secrets of a machine), a group, nor reserved.  IPv6 that carries IPv4 (mapped, or
 * through NAT64) is judged by that; tunnels that hide it (6to4, Teredo) are not public. */
bool address_is_public(const struct sockaddr *a);

#endif
