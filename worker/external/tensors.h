/* The tensors of a trainer: those that its model has by its hello, those of them that the job
 * synchronises, and their places in the memory that worker and trainer share.
 *
 *     hello ──patterns──► chosen, each with its level ──► a safetensors file in shared memory:
 *
 *     | u64 length | JSON header | tensor | tensor | ...       each in the trainer's own dtype
 *
 * The rest of the swarm uses f32: modules are loaded into the shared memory (tensors_load) and read
 * from it (tensors_read_end, tensors_save); values are rounded to nearest when they become bf16,
 * f16 or integers.
 *
 * BUFFERS.  With trainer.buffers those that trainer.tensors names (without it all) are
 * synchronised, too; version 0 says which they are (common/outer/layout.h).  Integers are always
 * buffers.
 *
 * BLOCKS.  Entry i of trainer.levels is block i of the model, as a recipe cuts it into levels;
 * tensors in no block belong to the embedders' level.  Without trainer.levels the tensors, in
 * order, are cut into as many blocks of about equal size as the cut needs.
 *
 * Read-only after tensors_choose; any thread. */
#ifndef WORKER_EXTERNAL_TENSORS_H
#define WORKER_EXTERNAL_TENSORS_H

#include "common/base/base.h"
#include "common/base/buf.h"
#include "common/base/hash.h"
#include "common/job/job.h"
#include "common/st/st.h"
#include "proto/trainer.pb-c.h"

#define TENSORS_PIECE 65536 /* elements checked and converted at a time */
#define TENSORS_LEVELS_MAX 64
#define TENSORS_BLOCKS_MAX 256

struct tensors_item {
    char *name;
    enum st_dtype dtype;
    unsigned rank;
    uint64_t shape[ST_RANK_MAX];
    uint64_t count, offset; /* elements; in the shared file */
    size_t piece;           /* its first one: they are numbered through all tensors */
    bool buffer;
    int level; /* -1: not synchronised */
};

struct tensors {
    struct tensors_item *items; /* in the order of the hello */
    size_t n;
    const struct tensors_item **by_name; /* sorted */
    struct buf header;                   /* of the shared file */
    uint64_t bytes;                      /* of the whole of it */
    size_t n_pieces;
    enum job_buffers buffers;
    int n_levels;
};

/* The level of each block, and of tensors in none. */
struct tensors_cut {
    int n_levels;
    uint8_t block_level[TENSORS_BLOCKS_MAX], rest_level;
    int n_blocks; /* where there is no trainer.levels; fewer than 2: nothing is cut */
};

/* Reads a trainer's hello.  -ERR_FORMAT with a sentence: a name that is not UTF-8, repeated or too
 * long, or an impossible dtype or shape. */
int tensors_from_hello(const Skerry__Trainer__V1__Hello *hello, struct tensors *ret,
                       struct err *err);
/* Chooses the tensors to synchronise.  -ERR_CONFIG with a sentence: a pattern that matches nothing,
 * a tensor in two levels or, without trainer.buffers, of integers, or a level without trained ones.
 */
int tensors_choose(struct tensors *t, const struct job_trainer *job, const struct tensors_cut *cut,
                   struct err *err);
void tensors_release(struct tensors *t); /* { 0 } is fine */

const struct tensors_item *tensors_find(const struct tensors *t, const char *name); /* or NULL */

/* Seals the present values of a level (-1: of all synchronised tensors): a number for each piece,
 * which differs when a bit of it changes.  seal: t->n_pieces.  threads: of the CPU. */
void tensors_seal(const struct tensors *t, int level, const uint8_t *shared, int threads,
                  uint64_t *seal);

/* A tensor at the end of a phase. */
struct tensors_end {
    const struct tensors_item *item;
    const uint8_t *shared;
    const uint64_t *seal; /* made then, to check that it is unchanged; NULL: not checked */
    int base;             /* the version with which the phase began: tensor `from` of this file */
    const struct st_tensor *from;
};

/* Elements [first, first+n) of it as f32; with a seal, one piece.  For 16-bit types only the change
 * counts, since the loss by rounding to them is not training: base + (end - rounded base).
 * -ERR_FORMAT: an integer that f32 cannot represent.  -ERR_TRAINER: the values are not those that
 * were sealed. */
int tensors_read_end(const struct tensors_end *end, uint64_t first, size_t n, float *out,
                     struct err *err);

/* A file to load, and how. */
struct tensors_source {
    const char *path;     /* a module file, of any level */
    bool users;           /* a user's file: it may have other tensors, too, and integer dtypes */
    double mix;           /* the share of the present values in the result */
    const uint64_t *seal; /* of the present values; NULL: not checked */
};

/* Loads a file into the shared memory.  Each of its tensors must exist with its shape, and be
 * finite; adds their number to *count.  -ERR_TRAINER: the present values are not those that were
 * sealed. */
int tensors_load(const struct tensors *t, const struct tensors_source *from, uint8_t *shared,
                 int threads, size_t *count, struct err *err);

/* Saves all synchronised tensors unchanged, for tensors_load as a user's file, on this machine only
 * (st_writer_local).  pairs: metadata. */
int tensors_keep(const struct tensors *t, const uint8_t *shared, const struct st_meta *pairs,
                 size_t n_pairs, const char *path, struct err *err);
/* How many tensors are synchronised, in a level or (-1) in all. */
size_t tensors_chosen(const struct tensors *t, int level);
/* Saves the module of a level from the shared memory: f32, with the trainer's dtypes in the
 * metadata.  -ERR_FORMAT names the first tensor with a value that is not finite, or with an
 * integer that f32 cannot represent. */
int tensors_save(const struct tensors *t, int level, const uint8_t *shared, const char *path,
                 uint8_t sha256[HASH_BYTES], uint64_t *ret_bytes, struct err *err);

#endif
