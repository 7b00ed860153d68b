/* The tensors of a trainer: what it says that its model has, which of them the job synchronises,
 * and where those lie in the memory that worker and trainer share.
 *
 *     hello ──patterns──► chosen, each with its level ──► a safetensors file in shared memory:
 *
 *     | u64 length | JSON header | tensor | tensor | ...       each in the trainer's own dtype
 *
 * The rest of a swarm sees f32: modules are read into the shared memory (tensors_load), and out
 * of it (tensors_read_end, tensors_save), with the values rounded to nearest on their way to bf16,
 * f16 and integers.
 *
 * BUFFERS.  With trainer.buffers those that trainer.tensors names (without it all) are
 * synchronised, too; version 0 says which they are (common/outer/layout.h).  Integers are always
 * buffers.
 *
 * BLOCKS.  Entry i of trainer.levels is block i of the model, as a recipe cuts it into levels;
 * what is in no block goes with the embedders.  Without trainer.levels the tensors, in their order,
 * are cut into as many blocks of about one size as the cut wants.
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

#define TENSORS_PIECE 65536 /* elements that are looked at and converted at a time */
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

/* The level of each block, and of what is in none. */
struct tensors_cut {
    int n_levels;
    uint8_t block_level[TENSORS_BLOCKS_MAX], rest_level;
    int n_blocks; /* where there is no trainer.levels; fewer than 2: nothing is cut */
};

/* What a trainer says.  -ERR_FORMAT with a sentence: a name that is no UTF-8, that is there twice
 * or too long, a dtype or shape that is impossible. */
int tensors_from_hello(const Skerry__Trainer__V1__Hello *hello, struct tensors *ret,
                       struct err *err);
/* Which are synchronised.  -ERR_CONFIG with a sentence: a pattern that matches nothing, a tensor
 * in two levels or, without trainer.buffers, of integers, a level without any that is trained. */
int tensors_choose(struct tensors *t, const struct job_trainer *job, const struct tensors_cut *cut,
                   struct err *err);
void tensors_release(struct tensors *t); /* { 0 } is fine */

const struct tensors_item *tensors_find(const struct tensors *t, const char *name); /* or NULL */

/* What is there now, of a level (-1: of all that is synchronised): a number for each piece, another
 * one when a bit of it changes.  seal: t->n_pieces.  threads: of the CPU. */
void tensors_seal(const struct tensors *t, int level, const uint8_t *shared, int threads,
                  uint64_t *seal);

/* What a phase ended with, of one tensor. */
struct tensors_end {
    const struct tensors_item *item;
    const uint8_t *shared;
    const uint64_t *seal; /* it is as it was then; NULL: nobody knows */
    int base;             /* what the phase began with: tensor `from` of this file */
    const struct st_tensor *from;
};

/* Elements [first, first+n) of it as f32; with a seal, a piece.  Of 16 bits only what has changed
 * counts, since what a value lost on its way into them is not what training found: base + (end -
 * rounded base).  -ERR_FORMAT: an integer that f32 does not have.  -ERR_TRAINER: what was read is
 * not what was sealed. */
int tensors_read_end(const struct tensors_end *end, uint64_t first, size_t n, float *out,
                     struct err *err);

/* What is loaded, and how. */
struct tensors_source {
    const char *path;     /* a module file, of any level */
    bool users;           /* one of the user's: it may hold others, too, and integers as they are */
    double mix;           /* the share that what is there keeps */
    const uint64_t *seal; /* of what is there until then; NULL: nobody knows */
};

/* A file into the shared memory.  Each tensor of it must be there with its shape, and finite;
 * *count grows by how many there were.  -ERR_TRAINER: what was there is not what was sealed. */
int tensors_load(const struct tensors *t, const struct tensors_source *from, uint8_t *shared,
                 int threads, size_t *count, struct err *err);

/* All that is synchronised, as it lies there, for tensors_load as a user's file: for this machine
 * alone (st_writer_local).  pairs: metadata. */
int tensors_keep(const struct tensors *t, const uint8_t *shared, const struct st_meta *pairs,
                 size_t n_pairs, const char *path, struct err *err);
/* How many are synchronised, of a level or (-1) of all. */
size_t tensors_chosen(const struct tensors *t, int level);
/* The module of a level out of the shared memory: f32, with the trainer's dtypes in the
 * metadata.  -ERR_FORMAT names the first tensor with a value that is not finite, or
 * an integer that f32 does not have. */
int tensors_save(const struct tensors *t, int level, const uint8_t *shared, const char *path,
                 uint8_t sha256[HASH_BYTES], uint64_t *ret_bytes, struct err *err);

#endif
