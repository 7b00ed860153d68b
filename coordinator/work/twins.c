#include "coordinator/work/twins.h"

static bool is_there(const struct coordinator *co, const struct twin *t)
{
    return t->tries > 0 && core_now(co) - t->tried_ms < TWINS_FORGET_MS;
}

/* The index of its place; -1: it has none. */
static int find(const struct coordinator *co, const struct worker *w, const uint8_t instance[16])
{
    for (int i = 0; i < TWINS_MAX; i++) {
        const struct twin *t = &co->twins[i];
        if (is_there(co, t) && t->worker_id == w->id && memcmp(t->instance, instance, 16) == 0)
            return i;
    }
    return -1;
}

uint32_t twins_refuse(struct coordinator *co, const struct worker *w, const uint8_t instance[16],
                      bool *ret_new)
{
    const int at = find(co, w, instance);
    const bool known = at >= 0;
    struct twin *t = &co->twins[known ? at : 0];
    for (int i = 0; i < TWINS_MAX && !known; i++) /* a free one, or that of the longest silence */
        t = co->twins[i].tried_ms < t->tried_ms ? &co->twins[i] : t;
    if (!known) {
        *t = (struct twin){.worker_id = w->id};
        memcpy(t->instance, instance, 16);
    }
    t->tried_ms = core_now(co);
    *ret_new = !known;
    return t->tries++ < TWINS_QUICK ? TWINS_QUICK_MS : TWINS_AGAIN_MS;
}

bool twins_has(const struct coordinator *co, const struct worker *w, const uint8_t instance[16])
{
    return find(co, w, instance) >= 0;
}

void twins_admit(struct coordinator *co, const struct worker *w, const uint8_t instance[16])
{
    const int at = find(co, w, instance);
    if (at >= 0)
        co->twins[at] = (struct twin){0};
}

unsigned twins_of(const struct coordinator *co, uint64_t worker_id)
{
    unsigned n = 0;
    for (int i = 0; i < TWINS_MAX; i++)
        n += is_there(co, &co->twins[i]) && co->twins[i].worker_id == worker_id;
    return n;
}
