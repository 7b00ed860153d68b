/* Whether a token is accepted, a worker may join, and a worker may be given work.  The deciders are
 * pure: they read no clock and no state but their arguments, and give a reason (invariant 2). */
#ifndef COORDINATOR_ADMIT_H
#define COORDINATOR_ADMIT_H

#include "common/base/base.h"

#define ADMIT_REASON_MAX 256

/* A token presented by a worker or a user. */
struct admit_token {
    const char *name;
    int64_t now_unix_ms, ends_unix_ms; /* ends 0: never */
    bool revoked;
    bool is_new;                        /* the worker's key is not on record: counts as a use */
    uint32_t uses, uses_max;            /* max 0: unlimited */
    uint32_t workers_here, workers_max; /* here: without the worker that asks */
};

/* 0; -ERR_AUTH: refused for good; -EAGAIN: refused while the token's other workers are here. */
int admit_token(const struct admit_token *in, char ret_reason[ADMIT_REASON_MAX]);

struct admit_join {
    size_t workers, workers_max; /* here now, and the limit */
    bool known;                  /* the identity has joined before */
    bool same_instance;          /* it is the same process as then */
    bool twin_here; /* another process with this identity is connected, or may be soon */
    bool other_key; /* the identity is on record with a key that was not shown now */
    const char *version, *our_version;
    size_t instance_len, identity_len, name_len;
};

/* 0, or the negative code with which the join is refused; -EAGAIN: try again later.  A release
 * works with the previous and the next one, by the first two numbers of the version. */
int admit_join(const struct admit_join *in, char ret_reason[ADMIT_REASON_MAX]);

/* What decides whether a worker gets work. */
struct admit_work {
    uint64_t now_ms, quarantined_until_ms;
    bool drain, store_ok;
    uint32_t strikes;
    uint32_t unheard; /* it must first hear what became of so many contributions */
};

/* Whether a worker may be given a task now.  If not, *ret_until_ms is when to ask again (0:
 * unknown). */
bool admit_work(const struct admit_work *in, uint64_t *ret_until_ms,
                char ret_reason[ADMIT_REASON_MAX]);

#define ADMIT_FAILURES_ROW 3
/* How long the worker is quarantined after `failures_row` failures in a row, in ms; 0: not at all.
 * strikes: its quarantines so far. */
uint64_t admit_quarantine_ms(uint32_t failures_row, uint32_t strikes);

#endif
