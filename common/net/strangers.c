#include "common/net/strangers.h"

#include <netinet/in.h>
#include <sys/socket.h>

#define PREFIX_BYTES 8 /* of IPv6: what one customer gets */

/* IPv4 as IPv6 writes it, so that both kinds of socket agree; anything else is one address. */
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

void strangers_init(struct strangers *s, unsigned max, unsigned max_address)
{
    list_init(&s->all);
    s->count = 0;
    s->max = max;
    s->max_address = max_address;
}

struct stranger *strangers_admit(struct strangers *s, struct stranger *n,
                                 const struct sockaddr *address)
{
    struct stranger *oldest = NULL;
    unsigned same = 0;
    address_key(address, n->address);
    for (struct list *l = s->all.next; l != &s->all; l = l->next) {
        struct stranger *o = list_entry(l, struct stranger, link);
        if (memcmp(o->address, n->address, sizeof(n->address)) != 0)
            continue;
        oldest = oldest ? oldest : o;
        same++;
    }
    struct stranger *out = same >= s->max_address ? oldest : NULL;
    if (!out && s->count >= s->max)
        out = list_entry(s->all.next, struct stranger, link);
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
