/* The files that one task makes for another, safetensors all:
 *
 *   features    "ids" U64 (n)      data_sample_id of each sample
 *               "features" F32 (n,d)
 *               "chunks" F32 (n,C,d)  optional: of each run of tokens, zeros past the end
 *   scores      "logp" F32 (n,C)   sum of the log-probabilities of the counted tokens of a column
 *               "tokens" I32 (n,C) how many they are
 *               "bytes" I32 (n)    what all of them stand for
 *   assignment  "assign" I32 (n,top)  partitions of each sample, nearest first
 *
 * One row for each sample of the ranges, in their order; a sample that cannot be read has zeros.
 *
 *   points      "x" F32 (B,3,S,S)  to a VELOCITY task, from a sampler on another machine
 *               "beside" F32 (B,3,S,S)  optional: what an upscaler is told, whose points they are
 *               "t" F32 (B)
 *               "labels" I32 (B)
 *   velocities  "v" F32 (B,3,S,S)  and back
 *
 * All pointers are host memory; any thread.  Readers map the file and check names, shapes and
 * ranges; nothing in a file is believed. */
#ifndef WORKER_TASK_FILES_H
#define WORKER_TASK_FILES_H

#include "common/base/base.h"
#include "common/base/file.h"
#include "common/base/hash.h"
#include "worker/fit/fit.h"

#define FEATURES_DIM_MAX 65536
#define FEATURES_COLUMNS_MAX 4096 /* C */

struct features_write {
    const uint64_t *ids; /* (n) */
    const float *x;      /* (n,d) */
    const float *chunks; /* (n,C,d) or NULL */
    uint64_t n;
    uint32_t d, columns;
};
int features_write(const char *path, const struct features_write *f, uint8_t sha256[HASH_BYTES],
                   uint64_t *ret_bytes, struct err *err);

struct features_file {
    struct file_map map;
    const uint8_t *ids, *x, *chunks; /* inside the map, maybe unaligned; chunks or NULL */
    uint64_t first;                  /* row in the whole set */
    uint32_t n, columns;
};

/* Many files as one matrix. */
struct features {
    struct features_file *files;
    size_t n_files;
    uint64_t n;
    uint32_t d;
};
int features_open(const char *const *paths, const uint32_t *counts, size_t n_files,
                  struct features *ret, struct err *err);
void features_close(struct features *f); /* { 0 } is fine */

/* Rows of some of the files, in order. */
struct features_rows {
    const struct features *f;
    const uint32_t *files; /* borrowed: indices, ascending */
    size_t n_files;
    uint64_t *first; /* (n_files+1) */
    struct fit_source source;
};
int features_rows_init(struct features_rows *r, const struct features *f, const uint32_t *files,
                       size_t n_files, struct err *err);
void features_rows_release(struct features_rows *r); /* { 0 } is fine */
/* (n) ids of the same rows. */
void features_rows_ids(const struct features_rows *r, uint64_t *out);
/* d values of a chunk of a row; zeros where the file has none. */
void features_chunk(const struct features *f, uint32_t file, uint32_t row, uint32_t column,
                    float *out);

/* One file of scores, in memory. */
struct scores {
    float *logp;     /* (n,columns) */
    int32_t *tokens; /* (n,columns) */
    int32_t *bytes;  /* (n) */
    uint32_t n, columns;
};
int scores_write(const char *path, const float *logp, const int32_t *tokens, const int32_t *bytes,
                 uint32_t n, uint32_t columns, uint8_t sha256[HASH_BYTES], uint64_t *ret_bytes,
                 struct err *err);
int scores_read(const char *path, uint32_t n, struct scores *ret, struct err *err);
void scores_release(struct scores *s); /* { 0 } is fine */

/* assign: (n,top). */
int assignment_write(const char *path, const uint32_t *assign, uint64_t n, uint32_t top,
                     uint8_t sha256[HASH_BYTES], uint64_t *ret_bytes, struct err *err);
/* Rows first..first+count-1: *ret (count,top), all below partitions; mem_free. */
int assignment_read(const char *path, uint64_t first, uint64_t count, uint32_t partitions,
                    uint32_t **ret, uint32_t *ret_top, struct err *err);

#define VELOCITY_ROWS_MAX 2048

/* Where a velocity is asked for. */
struct velocity_points {
    int rows, channels, image; /* Ch, S */
    float *x;                  /* (rows,Ch,S,S) */
    float *beside;             /* the same, if they are an upscaler's; else NULL */
    float *t;                  /* (rows) in [0,1] */
    int32_t *labels;           /* (rows) */
};

/* The question and the answer, v (rows,Ch,S,S). */
int velocity_write(const char *path, const struct velocity_points *p, uint8_t sha256[HASH_BYTES],
                   uint64_t *ret_bytes, struct err *err);
int velocity_write_result(const char *path, const float *v, int rows, int channels, int image,
                          uint8_t sha256[HASH_BYTES], uint64_t *ret_bytes, struct err *err);
/* What the points of a model may be: of images with Ch channels and side S and, for a model of two
 * chains, of the upscaler's with another side; labels are in [0, classes]. */
struct velocity_sizes {
    int channels, image, upscaled; /* upscaled 0: one chain */
    int classes;
};
/* Allocates; velocity_points_release.  -ERR_FORMAT when the file is not such a blob, its images
 * have other channels or sides, values are not finite or labels out of range. */
int velocity_read(const char *path, const struct velocity_sizes *sizes, struct velocity_points *ret,
                  struct err *err);
void velocity_points_release(struct velocity_points *p); /* { 0 } is fine */
/* v (rows,Ch,S,S) = the values, all finite. */
int velocity_read_result(const char *path, float *v, int rows, int channels, int image,
                         struct err *err);

#endif
