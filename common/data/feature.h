/* A row of numbers that a dataset has for a sample: from JSON, or from NumPy's
 * .npy (one array of f2, f4 or f8, little-endian, of shape (n), (1, n) or (n, 1)).
 * Strict and bounded: anything else is refused with a reason that completes
 * "the column of sample x ...".  One thread at a time.
 *
 * And the JSON in which samples are described. */
#ifndef COMMON_DATA_FEATURE_H
#define COMMON_DATA_FEATURE_H

#include <jansson.h>

#include "common/base/base.h"

#define FEATURE_MAX 65536 /* most numbers */

/* The numbers of one sample; { 0 } at the start. */
struct feature {
    float *v;
    uint32_t n, cap;
};

/* Both replace the content of *out.  Return NULL, or why not: a constant, "is not ...". */
const char *feature_from_json(const json_t *array, struct feature *out);
const char *feature_from_npy(const void *data, size_t len, struct feature *out);

/* As json_loadb(), but takes NaN, Infinity and -Infinity, which Python writes, for null, and whole
 * numbers of any size, such as a hash, for reals; a key that is there twice is a fault. */
json_t *feature_json(const char *text, size_t len, size_t flags, json_error_t *fault);

void feature_release(struct feature *f); /* { 0 } is fine */

#endif
