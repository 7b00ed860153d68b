/* The text pipeline of a phase: from ranges of pieces in shards on disk to rows
 * of tokens.  See worker/data/data.h for order, passes and positions.
 *
 * Packed, for training: pieces in the order of the pass fill rows of seq + 1
 * tokens, whole.  Some hundreds of them, or thousands of short ones, are a window:
 * they are packed together, the longest first, each into the row with the least room
 * for it (best fit); then its rows follow in a shuffled order, and the rest of a row
 * is padding.  So a position in the data counts pieces row by row.  No token sees another piece:
 *
 *    i        0   1   2   3   4   5   6   7        seq = 8, pieces A (4), B (3)
 *    token    A0  A1  A2  A3  B0  B1  B2  0   [0]  <- tokens has seq + 1 columns
 *    start    0   0   0   0   4   4   4   7        padding sees itself alone
 *    pos      0   1   2   3   0   1   2   0
 *    target   A1  A2  A3  -1  B1  B2  -1  -1
 *
 * Unpacked, for features and scores: one piece per row, in the same arrays.
 *
 * It needs no threads: the shards are mapped, and data_next only copies. */
#ifndef WORKER_DATA_TEXT_H
#define WORKER_DATA_TEXT_H

#include "worker/data/data.h"

#define TEXT_SEQ_MAX 131072
#define TEXT_ROWS_MAX 65536

struct text_options {
    unsigned seq;   /* inputs in a row; a piece of more than seq + 1 tokens is bad */
    unsigned rows;  /* rows of a batch */
    uint32_t vocab; /* a piece with an id from here on is bad; 0: any id is fine */
    /* Tokens at the start of a piece that are not predicted (when routed paths are
     * evaluated: the prefix that routes). */
    unsigned skip;
    bool packed; /* else one piece per row */
    /* Rows that are read in all, if those may end before the ranges do: the pieces that fill them
     * are then the first ones of the ranges, and the last few are not shuffled.  0: not known. */
    uint64_t all_rows;
    struct data_order order;
};

/* Opens the shards.  Fails if a shard cannot be read or holds no text, or a range lies
 * outside its shard. */
int text_open(const struct text_options *opt, const struct data_range *ranges, size_t n_ranges,
              struct data **ret, struct err *err);

#endif
