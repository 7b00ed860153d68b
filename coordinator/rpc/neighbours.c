#include "coordinator/rpc/neighbours.h"

#include <arpa/inet.h>

#include "common/base/clock.h"
#include "common/base/hash.h"
#include "common/base/log.h"
#include "common/base/rng.h"
#include "common/net/http/blob_http.h"
#include "coordinator/state/access.h"
#include "coordinator/state/core.h"

#define SLOTS 8192u /* a power of two */
#define LIFE_S 900

/* The last worker of a site to which a blob was sent. */
struct slot {
    struct blob_id id;
    uint64_t worker_id; /* 0: nobody */
};

struct neighbours {
    struct slot slots[SLOTS];
};

void neighbours_take(struct worker *w, const Skerry__V1__JoinRequest *m)
{
    uint8_t address[16];
    const bool v6 = strchr(m->share_host, ':') != NULL;
    w->share = (struct worker_share){.site = ""};
    if (m->site[0] == '\0' || !w->has_key)
        return;
    if (!str_is_name(m->site, sizeof(w->share.site) - 1) ||
        m->share_key.len != sizeof(w->share.key) || m->share_port == 0 ||
        m->share_port > UINT16_MAX ||
        inet_pton(v6 ? AF_INET6 : AF_INET, m->share_host, address) != 1) {
        log_warn("member",
                 "worker %llu (%s) cannot share blobs: its site or its address is not valid",
                 (unsigned long long)w->id, w->name);
        return;
    }
    (void)str_copy(w->share.site, sizeof(w->share.site), m->site);
    (void)snprintf(w->share.at, sizeof(w->share.at), v6 ? "[%s]:%u" : "%s:%u", m->share_host,
                   m->share_port);
    memcpy(w->share.key, m->share_key.data, sizeof(w->share.key));
}

/* The slot of a blob at a site, which another blob may take over. */
static struct slot *slot_of(struct neighbours *n, const struct blob_id *id, const char *site)
{
    uint64_t at;
    memcpy(&at, id->sha256, sizeof(at));
    for (; *site != '\0'; site++)
        at = rng_mix(at, (uint8_t)*site);
    return &n->slots[at % SLOTS];
}

static bool serves(const struct worker *w, const struct worker *asker, const char *failed)
{
    char pin[HASH_HEX_MAX];
    return w != NULL && w != asker && w->state == WORKER_HERE && w->peer != NULL &&
           strcmp(w->share.site, asker->share.site) == 0 &&
           strcmp(hash_hex(w->key, sizeof(w->key), pin), failed) != 0;
}

static void lead(const struct worker *w, const struct blob_id *id, uint64_t size,
                 const struct worker *asker, struct blob_neighbour *ret)
{
    char path[TICKET_PATH_MAX];
    struct ticket t = {.method = TICKET_GET,
                       .max_bytes = size,
                       .expires_s = clock_now_ns() / CLOCK_NS_PER_S + LIFE_S,
                       .holder = asker->id};
    memcpy(t.sha256, id->sha256, sizeof(t.sha256));
    ticket_path(w->share.key, &t, path);
    (void)snprintf(ret->url, sizeof(ret->url), "https://%s%s", w->share.at, path);
    (void)hash_hex(w->key, sizeof(w->key), ret->pin);
}

bool neighbours_find(void *arg, const struct blob_id *id, uint64_t size, uint64_t holder,
                     const char *asks, struct blob_neighbour *ret)
{
    struct coordinator *co = arg;
    const struct worker *asker = access_worker_of(&co->state, holder);
    if (asker == NULL || asker->share.site[0] == '\0')
        return false;
    if (co->neighbours == NULL)
        co->neighbours = mem_alloc(sizeof(*co->neighbours));
    struct slot *s = slot_of(co->neighbours, id, asker->share.site);
    const struct worker *w =
        blob_id_equal(&s->id, id) ? state_worker(&co->state, s->worker_id) : NULL;
    if (asks != NULL && serves(w, asker, asks)) {
        lead(w, id, size, asker, ret);
        return true;
    }
    *s = (struct slot){*id, asker->id};
    return false;
}
