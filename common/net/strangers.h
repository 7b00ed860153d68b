/* Strangers: connections that are not authenticated yet.  They have their own limited places, so
 * that known peers keep theirs however many strangers come; the oldest stranger makes room.
 *
 *   strangers_admit()   a connection was accepted; the caller closes the one it returns
 *   strangers_drop()    it is authenticated now, or closed
 *
 * One address (of IPv6: one /64) can have only a part of the places, so a flood from it displaces
 * only its own connections.  A stranger in the middle of a handshake is busy and keeps its place;
 * if all are busy, the new one gets no place, since otherwise none of many that come at once would
 * get through.  One thread. */
#ifndef COMMON_NET_STRANGERS_H
#define COMMON_NET_STRANGERS_H

#include "common/base/base.h"
#include "common/base/list.h"

struct sockaddr;

struct stranger {
    struct list link; /* by age; unlinked: not a stranger, or no longer */
    uint8_t address[16];
};

/* All of a server's. */
struct strangers {
    struct list all;
    unsigned count, max, max_address;
    bool (*busy)(const struct stranger *n); /* NULL: none is */
};

/* max places, of which one address has at most max_address; both at least 1. */
void strangers_init(struct strangers *s, unsigned max, unsigned max_address,
                    bool (*busy)(const struct stranger *n));
/* Admits n.  Returns the stranger that it displaces, already dropped, or NULL: the oldest of the
 * same address if that has used its share, else the oldest of all if all places are taken.  Busy
 * ones keep their places; if all are busy, returns n, which was not admitted. */
struct stranger *strangers_admit(struct strangers *s, struct stranger *n,
                                 const struct sockaddr *address);
/* n is authenticated, or closed; harmless if it was dropped before. */
void strangers_drop(struct strangers *s, struct stranger *n);

#endif
