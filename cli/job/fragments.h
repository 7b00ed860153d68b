/* Whether a job should travel in fragments (docs/outer.md, "How auto chooses fragments"): what they
 * would hide of the exchange between two rounds, and whether outer.fragments: auto takes them.
 *
 * Bytes of a round cross the coordinator's link up and then down, and nobody trains meanwhile. With
 * fragments each has outer.delay steps for its way: what that does not hide is a wait, and a round
 * is never shorter than its bytes one way.
 *
 * Pure; any thread. */
#ifndef CLI_FRAGMENTS_H
#define CLI_FRAGMENTS_H

#include "common/base/base.h"
#include "common/job/job.h"
#include "common/job/recipe.h"

#define FRAGMENTS_MIX 0.5 /* what is proposed and taken */

/* What all wait for between a round's last step and the next one's first. */
struct exchange {
    double link_s, fold_s;
};

/* A round as it is predicted without fragments. */
struct fragments_round {
    struct exchange whole;
    double step_s, train_s;
    uint64_t bytes_per_s; /* of the links; 0: not known */
    uint64_t parameters;  /* of a path */
};

struct fragments_choice {
    int fragments, delay; /* that would hide the most, where that is much; 0: none would */
    double left_s;        /* of the exchange, with them */
    bool taken;           /* by outer.fragments: auto */
    const char *why;      /* not, a clause; NULL where they are */
};

/* With so many, each merged `delay` steps after it was sent.  A link takes bytes both ways at a
 * time. */
struct exchange fragments_exchange(const struct fragments_round *r, int fragments, int delay);

/* Why auto takes none whatever a round costs, a clause; NULL: what it costs decides. */
const char *fragments_refused(const struct job_spec *s, const struct composition *c);

/* Of a job that has no fragments. */
void fragments_choose(const struct job_spec *s, const struct composition *c,
                      const struct fragments_round *r, struct fragments_choice *ret);

#endif
