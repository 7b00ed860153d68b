/* Connections that are not authenticated yet: they have places of their own, so that however many
 * come, known peers keep theirs, and the oldest stranger makes room.
 *
 *   strangers_admit()   a connection was accepted; what it returns is closed
 *   strangers_drop()    it is known now, or gone
 *
 * One address (of IPv6: one /64) has a part of the places: whoever floods from it pushes out its
 * own.  A stranger in the middle of a handshake is busy and not pushed out: where all are, the
 * newcomer has no place, or of many that come at once none would get through.  One thread. */
#ifndef COMMON_NET_STRANGERS_H
#define COMMON_NET_STRANGERS_H

#include "common/base/base.h"
#include "common/base/list.h"

struct sockaddr;

struct stranger {
    struct list link; /* by age; alone: no stranger (any more) */
    uint8_t address[16];
};

/* All of a server's. */
struct strangers {
    struct list all;
    unsigned count, max, max_address;
    bool (*busy)(const struct stranger *n); /* NULL: nobody is */
};

/* max places, of which one address has at most max_address; both at least 1. */
void strangers_init(struct strangers *s, unsigned max, unsigned max_address,
                    bool (*busy)(const struct stranger *n));
/* Takes n in.  Returns the one whose place it has, already dropped, or NULL: the oldest of the same
 * address when that has its share, else the oldest of all when the places are taken.  Busy
 * ones keep theirs; where all are busy it is n, which was not taken in. */
struct stranger *strangers_admit(struct strangers *s, struct stranger *n,
                                 const struct sockaddr *address);
/* n is known, or gone; harmless when it was dropped before. */
void strangers_drop(struct strangers *s, struct stranger *n);

#endif
