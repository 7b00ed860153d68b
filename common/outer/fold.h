/* The outer step: contributions of one version become the next version.
 *
 *   Delta   = scale (sum_i weight_i Delta_i) / sum_i weight_i, in the order given
 *             Delta_i = decoded contribution, or theta_b - value_i for codec f32, with
 *             b the version from which input i starts: v, or an older one
 *   mom'    = mu mom + Delta                                  Nesterov, PyTorch form
 *   target' = target - lr (Delta + mu mom')                   (DiLoCo, 2311.08105)
 *   theta'  = theta + Q(target' - theta)                      the version of all holders
 *   ema'    = d ema + (1 - d) theta'
 *
 * scale is 1, or the factor that keeps the norm (keep_norm): the mean of P nearly orthogonal
 * differences is P^(1/2) shorter, so DiPaCo (2403.10616) multiplies it by that
 * root.  Differences of unequal weight, and those of a young model, which all point the
 * same way, shrink less; so the root is an upper bound, and the factor is
 *   (sum_i weight_i |Delta_i| / sum_i weight_i) / |sum_i weight_i Delta_i / sum_i weight_i|
 *
 * Delayed Nesterov (Liu et al. 2024, 2401.09135, algorithm 3 with c = 0): steps of
 * one contribution each, of which every N-th moves by the momentum.  With g = Delta/N
 *   buf' = buf + g
 *   v+1 divisible by N: mom' = mu mom + buf'; target' = target - lr (g + mu mom'); buf' = 0
 *   else:               target' = target - lr g
 * so N contributions to one version move as far as one step with all of them.
 *
 * The downlink's residual is target' - theta': it stays in `target` and is part of
 * the next difference.  With down = f32, theta' = target' exactly.
 *
 * Buffers (layout.h) are not stepped: theta' = target' = ema' = the mean of the values, weighted
 * only by weight_i (in a delayed step theta + (mean - theta)/N), or the first input's; mom' = 0.
 *
 * Arithmetic.  Delta stays a double; mom', target' and ema' are computed in
 * double and each is rounded to f32 once when stored; Q and theta + Q are f32.
 * That makes the identities exact:
 *   - k equal contributions give the bits of one: a decoded value has at most 24
 *     bits, so with integer weights that sum to less than 2^29 every product and
 *     sum is exact, and so is the quotient (codec f32: a difference of two floats
 *     within 2^5 of each other in magnitude has at most 29 bits; 2^24 then);
 *   - with f32 both ways, lr 1, momentum 0 and one contribution, theta' is its
 *     theta_end to the bit (theta_v - theta_end and theta_v - (theta_v -
 *     theta_end) are exact in double while |theta_v| < 2^29 |theta_end|, or
 *     theta_end is 0; beyond that the error is below 2^-53 |theta_v|).
 * Inputs of different codecs, and values that start from different versions, are summed
 * separately, and the sums are added in the order in which each kind first comes: if all are of one
 * kind, as in most steps, that is the order given.
 * No operation depends on a thread count, a chunk size or the instruction set:
 * the same inputs give the same files everywhere.
 *
 * Files of a module at version v (layout.h; each header is a copy):
 *   full, ema         blobs
 *   target, mom, buf  the executor's state; buf only if the momentum is delayed
 *
 * Memory: fixed (FOLD_CHUNK elements in about fifteen arrays, under 8 MiB)
 * plus names and shapes; files are read and written with pread and pwrite. */
#ifndef COMMON_OUTER_FOLD_H
#define COMMON_OUTER_FOLD_H

#include "common/base/base.h"
#include "common/base/hash.h"
#include "common/outer/coding.h"

struct layout_cell;
struct wire_source;

#define FOLD_CHUNK 65536    /* elements */
#define FOLD_INPUTS_MAX 256 /* contributions of one step */

#define FOLD_STARTS_MAX 32 /* versions from which the values of one step start */

/* The codec of a contribution, and the version from which it starts. */
struct fold_origin {
    enum codec codec;
    uint64_t from;         /* version, at most base */
    const char *from_full; /* its full file, which codec f32 reads; other codecs: any version's */
};

struct fold_input {
    const char *path; /* contribution blob */
    double weight;    /* > 0; only the ratio to the others matters */
    double norm;      /* norm of its Delta before shrink, see fold_check.h; for keep_norm */
    double shrink;    /* factor of its Delta; 0 and 1: none, no bit changes */
    struct fold_origin origin;
    const struct wire_source *source; /* it is still arriving (wire.h); NULL: path is whole */
};

/* The delta's file while it is written: its payload, from `from` on, is there up to `reached`; the
 * rest too when that is `bytes`. */
struct fold_written {
    int fd;
    uint64_t from, reached, bytes;
};

/* The destination of cells' squares (layout.h): doubles of this machine, one after another. */
struct fold_cells {
    int fd;
    uint64_t at;
};

struct fold_step {
    uint64_t module_id;
    uint64_t base; /* v; makes v+1 */
    /* state at v */
    const char *full;   /* theta_v */
    const char *ema;    /* NULL: theta_v */
    const char *target; /* NULL: theta_v */
    const char *mom;    /* NULL: zeros */
    const char *buf;    /* NULL: zeros */
    /* The SHA-256 that these files should have: they are hashed while they are read, and a step of
     * other bytes fails with -ERR_HASH.  NULL: that file is not. */
    const uint8_t *full_is, *ema_is, *target_is, *mom_is, *buf_is;
    const struct fold_input *inputs;
    size_t n_inputs;
    enum codec down;
    double lr, momentum;
    double scale; /* > 0; with keep_norm its upper bound */
    bool keep_norm;
    const struct fold_cells *mean; /* with keep_norm: for sum_i weight_i Delta_i; or NULL */
    unsigned delay;                /* N; 0 and 1: momentum in every step */
    double ema_decay;              /* the decay of this step: see fold_ema_decay() */
    /* Results, each replaced atomically; ema_out may be NULL: no EMA is kept; buf_out
     * is used only with delay > 1. */
    const char *full_out, *delta_out, *ema_out, *target_out, *mom_out, *buf_out;
    /* Files that nobody needs, to be written over by the state's (file_out_open_again); NULL, or
     * not there: none. */
    const char *target_spare, *mom_spare, *buf_spare;
    /* Called on the caller's thread when the delta has grown; NULL: never. */
    void (*written)(void *arg, const struct fold_written *w);
    void *written_arg;
    bool hash_inputs; /* fold_result.inputs is wanted */
    /* Polled between chunks; NULL: never.  true stops with -ERR_CANCELLED. */
    bool (*stop)(void *arg);
    void *stop_arg;
};

/* A result file. */
struct fold_file {
    uint8_t sha256[HASH_BYTES];
    uint64_t bytes;
};

struct fold_result {
    struct fold_file full, delta, ema; /* ema is all zero if none was asked for */
    struct fold_file target, mom, buf; /* the state at v+1; buf is all zero without a delay */
    double scale;                      /* the factor that was used */
    double delta_norm;                 /* |Delta| */
    double step_norm;                  /* |theta' - theta| */
    double residual_norm;              /* |target' - theta'| */
    uint64_t params;
    uint8_t inputs[HASH_BYTES]; /* with hash_inputs: of all that was read of the inputs */
};

/* Makes a step.  Blocking, three threads: the caller folds, two helpers hash and write.
 * -ERANGE: the inputs are finite, but their sum is not.  After a failure the files under
 * the _out names are unchanged, except that a failure of the last renames may leave some
 * new ones: those belong to v+1, and a redo replaces them by the same bytes.  The files
 * of v are never touched. */
int fold_run(const struct fold_step *step, struct fold_result *ret, struct err *err);

/* What fold_result.inputs would be now: whether a step that read its inputs while they arrived has
 * read the bytes that they have in the end. */
int fold_hash_inputs(const struct fold_step *step, uint8_t ret[HASH_BYTES], struct err *err);

/* Checks a step that somebody else made: makes it again in n cells (layout.h), and compares them
 * with the files under the _out names, which it only reads.  With keep_norm, scale must be the one
 * that was used.  -ERR_HASH: the files have other bits; -ERR_FORMAT: one is no such file. */
int fold_compare(const struct fold_step *step, const struct layout_cell *cells, size_t n,
                 struct err *err);

/* The scale that keeps the norm, for a step whose inputs have their norms.  squares: the sum, cell
 * by cell in order, of the squares of sum_i weight_i Delta_i. */
double fold_kept_scale(const struct fold_step *step, double squares);
/* The part of one cell in those squares: the bits that fold_run() writes. */
int fold_mean_cell(const struct fold_step *step, const struct layout_cell *cell, double *ret,
                   struct err *err);

/* min(d, (1+v)/(10+v)): a young average forgets version 0 quickly. */
double fold_ema_decay(double d, uint64_t base);

/* mu min(1, v/warmup): the first differences of a fresh model all point the same way,
 * and full momentum would add them up to steps of lr/(1-mu) times their length. */
double fold_momentum(double mu, uint64_t base, uint64_t warmup);

#endif
