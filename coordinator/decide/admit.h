/* Who may come in by a token, which workers may join, and which may be given work.  Pure deciders:
 * they read no clock and no state but what is handed to them, and say why (invariant 2). */
#ifndef COORDINATOR_ADMIT_H
#define COORDINATOR_ADMIT_H

#include "common/base/base.h"

#define ADMIT_REASON_MAX 256

/* A token that somebody shows. */
struct admit_token {
    const char *name;
    int64_t now_unix_ms, ends_unix_ms; /* ends: 0: never */
    bool revoked;
    bool is_new;                        /* a worker whose key is not on record: a use */
    uint32_t uses, uses_max;            /* max 0: any number */
    uint32_t workers_here, workers_max; /* without the one that asks */
};

/* 0, or a negative code: -ERR_AUTH for good, -EAGAIN for as long as others are here. */
int admit_token(const struct admit_token *in, char ret_reason[ADMIT_REASON_MAX]);

struct admit_join {
    size_t workers, workers_max; /* here now, and the limit */
    bool known;                  /* the identity has joined before */
    bool same_instance;          /* the very same process */
    bool twin_here;              /* another process with this identity is connected */
    bool other_key;              /* the identity is known by a key that this one has not shown */
    const char *version, *our_version;
    size_t instance_len, identity_len, name_len;
};

/* 0, or a negative code that the join is refused with; -EAGAIN: it may wait.  A release works with
 * the one before and the one after, by the first two numbers of a version. */
int admit_join(const struct admit_join *in, char ret_reason[ADMIT_REASON_MAX]);

/* What is asked of a worker that wants work. */
struct admit_work {
    uint64_t now_ms, quarantined_until_ms;
    bool drain, store_ok;
    uint32_t strikes;
};

/* Whether a worker may be given a task now; else until when not (0: unknown). */
bool admit_work(const struct admit_work *in, uint64_t *ret_until_ms,
                char ret_reason[ADMIT_REASON_MAX]);

#define ADMIT_FAILURES_ROW 3
/* After `failures_row` failures without a success between them: how long the
 * worker is quarantined, ms; 0: not at all.  strikes: quarantines so far. */
uint64_t admit_quarantine_ms(uint32_t failures_row, uint32_t strikes);

#endif
