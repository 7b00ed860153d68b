/* Classification of network addresses. */
#ifndef COMMON_NET_ADDRESS_H
#define COMMON_NET_ADDRESS_H

#include "common/base/base.h"

struct sockaddr;

/* Whether a is on the public internet: not loopback, private, shared, link-local (where clouds
 * serve a machine's secrets), multicast or reserved.  IPv6 that carries IPv4 (mapped, or NAT64) is
 * judged by the IPv4 address; tunnels that hide it (6to4, Teredo) are not public. */
bool address_is_public(const struct sockaddr *a);

#endif
