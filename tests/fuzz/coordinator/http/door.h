/* The coordinator's HTTP port in a world of tests/sim: one that stays open from input to input
 * (door_open()), or the caller's. */
#ifndef TESTS_FUZZ_COORDINATOR_HTTP_DOOR_H
#define TESTS_FUZZ_COORDINATOR_HTTP_DOOR_H

#include <stdlib.h>

#include "common/base/log.h"
#include "coordinator/state/core.h"
#include "tests/fuzz/folder.h"
#include "tests/fuzz/message.h"
#include "tests/sim/http.h"
#include "tests/sim/sim.h"
#include "tests/sim/world.h"

#define DOOR_BODY_MAX 262144

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* An answer. */
struct door_said {
    bool here;
    unsigned status;
    size_t len;
    uint64_t have;
    char cookie[256], content_range[256], body[DOOR_BODY_MAX];
};

/* The first call makes the directory of worlds. */
static inline void door_make(void)
{
    static bool made;
    if (made)
        return;
    fuzz_folder_make();
    log_set_level(LOG_LEVEL_ERROR + 1);
    made = true;
}

/* The first call opens it. */
static inline struct coordinator *door_open(void)
{
    static bool open;
    door_make();
    if (!open)
        world_open(1, fuzz_folder, 0);
    open = true;
    return world_coordinator();
}

static inline void door_take(void *arg, const struct http_said *s)
{
    struct door_said *r = arg;
    r->here = true;
    r->status = s->status;
    r->have = s->have;
    r->len = s->len < DOOR_BODY_MAX ? s->len : DOOR_BODY_MAX;
    memcpy(r->body, s->body, r->len);
    (void)str_copy(r->cookie, sizeof(r->cookie), s->cookie ? s->cookie : "");
    (void)str_copy(r->content_range, sizeof(r->content_range),
                   s->content_range ? s->content_range : "");
}

/* Asks, again where the connection was cut, and waits for the answer. */
static inline const struct door_said *door_ask(const struct http_ask *a)
{
    static struct door_said said;
    do {
        said.here = false;
        if (http_ask(a, door_take, &said) == NULL)
            sim_fail("nobody listens");
        while (!said.here)
            world_pass(5);
    } while (said.status == 0);
    if (said.status >= 500 && said.status != 503)
        sim_fail("%s %s is answered with %u: %.*s", a->method, a->target, said.status,
                 (int)said.len, said.body);
    return &said;
}

/* A string of at most max - 1 bytes that the input says. */
static inline const char *door_text(char *to, size_t max)
{
    size_t len = message_byte();
    len = len < max ? len : max - 1;
    for (size_t i = 0; i < len; i++)
        if ((to[i] = (char)message_byte()) == '\0')
            return to;
    to[len] = '\0';
    return to;
}

#endif
