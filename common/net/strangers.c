#include "common/net/strangers.h"

#include <netinet/in.h>
#include <sys/socket.h>

#define PREFIX_BYTES 8 /* of an IPv6 address: the network of one customer */

/* IPv4 addresses are mapped to IPv6, so that both kinds of socket agree; all others count as one
 * address. */
static void address_key(const struct sockaddr *a, uint8_t ret[16])
{
    memset(ret, 0, 16);
    if (a->sa_family == AF_INET) {
        const struct sockaddr_in *v4 = (const struct sockaddr_in *)(const void *)a;
        memset(ret + 10, 0xff, 2);
        memcpy(ret + 12, &v4->sin_addr, 4);
    } else if (a->sa_family == AF_INET6) {
        const struct in6_addr *v6 = &((const struct sockaddr_in6 *)(const void *)a)->sin6_addr;
        memcpy(ret, v6, IN6_IS_ADDR_V4MAPPED(v6) ? 16 : PREFIX_BYTES);
    }
}

void strangers_init(struct strangers *s, unsigned max, unsigned max_address,
                    bool (*busy)(const struct stranger *n))
{
    list_init(&s->all);
    s->count = 0;
    s->max = max;
    s->max_address = max_address;
    s->busy = busy;
}

static bool is_same(const struct stranger *a, const struct stranger *b)
{
    return memcmp(a->address, b->address, sizeof(a->address)) == 0;
}

/* The oldest stranger that may be pushed out, of n's address or of all; n: none may. */
static struct stranger *oldest(struct strangers *s, struct stranger *n, bool same)
{
    for (struct list *l = s->all.next; l != &s->all; l = l->next) {
        struct stranger *o = list_entry(l, struct stranger, link);
        if ((!same || is_same(o, n)) && (s->busy == NULL || !s->busy(o)))
            return o;
    }
    return n;
}

struct stranger *strangers_admit(struct strangers *s, struct stranger *n,
                                 const struct sockaddr *address)
{
    unsigned same = 0;
    address_key(address, n->address);
    list_init(&n->link);
    for (struct list *l = s->all.next; l != &s->all; l = l->next)
        same += is_same(list_entry(l, struct stranger, link), n);
    struct stranger *out = NULL;
    if (same >= s->max_address)
        out = oldest(s, n, true);
    else if (s->count >= s->max)
        out = oldest(s, n, false);
    if (out == n)
        return out;
    if (out)
        strangers_drop(s, out);
    list_push(&s->all, &n->link);
    s->count++;
    return out;
}

void strangers_drop(struct strangers *s, struct stranger *n)
{
    if (list_empty(&n->link))
        return;
    list_remove(&n->link);
    s->count--;
}
