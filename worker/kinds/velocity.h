/* The velocity of a path at given points, for a sampler on another machine: what
 * travels, and a model that stays loaded between two such tasks.
 *
 *    sampler: velocity_write(x, t, labels) ─► blob ─► VELOCITY task: work_velocity_run
 *    sampler: velocity_read_result         ◄─ blob ◄─ velocity_write_result
 *
 * Blobs are safetensors: "x" F32 (B,3,S,S), "t" F32 (B), "labels" I32 (B); "v" F32
 * (B,3,S,S).  All pointers are host memory.  Any thread. */
#ifndef WORKER_VELOCITY_H
#define WORKER_VELOCITY_H

#include <stdint.h>

struct err;

#define VELOCITY_ROWS_MAX 2048

struct velocity_points {
    int rows, image;
    float *x;        /* (rows,3,S,S) */
    float *t;        /* (rows) in [0,1] */
    int32_t *labels; /* (rows) */
};

int velocity_write(const char *path, const struct velocity_points *p, uint8_t sha256[32],
                   uint64_t *ret_bytes, struct err *err);
/* Allocates; velocity_points_release.  -ERR_FORMAT when the file is not such a blob, its
 * images are not `image` wide, values are not finite or labels not in [0, classes]. */
int velocity_read(const char *path, int image, int classes, struct velocity_points *ret,
                  struct err *err);
void velocity_points_release(struct velocity_points *p); /* { 0 } is fine */

int velocity_write_result(const char *path, const float *v, int rows, int image, uint8_t sha256[32],
                          uint64_t *ret_bytes, struct err *err);
/* v (rows,3,S,S) = the values, all finite. */
int velocity_read_result(const char *path, float *v, int rows, int image, struct err *err);

#endif
