/* The text pipeline of a phase: from ranges of pieces in shards on disk to rows
 * of tokens.  The shape of worker/data/data.h: the same ranges, order, seeds, passes
 * and positions; the same determinism.
 *
 * Packed, for training: pieces in the order of the pass fill rows of seq + 1
 * tokens; a row takes whole pieces while the next one fits, the rest of it is
 * padding (next-fit).  No token sees another piece:
 *
 *    i        0   1   2   3   4   5   6   7        seq = 8, pieces A (4), B (3)
 *    token    A0  A1  A2  A3  B0  B1  B2  0   [0]  <- tokens has seq + 1 columns
 *    start    0   0   0   0   4   4   4   7        padding sees itself alone
 *    pos      0   1   2   3   0   1   2   0
 *    target   A1  A2  A3  -1  B1  B2  -1  -1
 *
 * Unpacked, for features and scores: one piece a row, the same arrays.
 *
 * Quick enough to need no threads: the shards are mapped, text_next copies.
 * One thread at a time. */
#ifndef WORKER_TEXT_H
#define WORKER_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "worker/data/data.h"

struct err;
struct text;

#define TEXT_SEQ_MAX 131072
#define TEXT_ROWS_MAX 65536

struct text_options {
    unsigned seq;   /* inputs of a row; a piece of more than seq + 1 tokens is bad */
    unsigned rows;  /* rows of a batch */
    uint32_t vocab; /* a piece with an id at or above is bad; 0: any is fine */
    /* Tokens at the start of a piece that are not predicted (evaluation of routed
     * paths: the prefix that routes). */
    unsigned skip;
    bool packed;     /* else one piece per row */
    bool shuffle;    /* else in the order of the ranges (evaluation) */
    bool repeat;     /* start a new pass, with another order, when one ends */
    uint64_t seed;   /* of the order */
    uint32_t window; /* as data_options.window */
};

/* Opens the shards.  Fails with a sentence when a shard cannot be read or holds
 * no text, or a range lies outside of it. */
int text_open(const struct text_options *opt, const struct data_range *ranges, size_t n_ranges,
              struct text **ret, struct err *err);

/* The next batch, of at most `rows` (0: as opened) rows; borrowed until the next
 * call.  -ERR_FORMAT when a whole pass held not one good piece. */
int text_next(struct text *t, unsigned rows, struct batch *ret, struct err *err);

/* Starts at what text_position() said once.  Only before the first text_next(). */
int text_seek(struct text *t, uint64_t position, struct err *err);
/* Pieces used so far, bad ones included, passes counted on. */
uint64_t text_position(const struct text *t);
/* Pieces of one pass. */
uint64_t text_total(const struct text *t);

/* As data_bad(). */
unsigned text_bad(const struct text *t, const struct data_bad **ret_list, unsigned *ret_named);

void text_free(struct text *t); /* accepts NULL */

#endif
