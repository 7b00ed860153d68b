/* A shared library opened when it is first needed, so that a program starts without it. */
#ifndef KERNELS_CUDA_LIB_LIB_H
#define KERNELS_CUDA_LIB_LIB_H

struct err;

struct lib {
    const char *what;           /* for people: "cuBLASLt (part of the CUDA toolkit)" */
    const char *const *names;   /* file names to try, NULL behind the last */
    const char *const *symbols; /* that it must have, NULL behind the last */
};

/* Opens the first of the names that loads, from where the system looks, then from CUDA_HOME,
 * CUDA_PATH and /usr/local/cuda, and fills table[i] with the address of symbols[i].  It
 * stays open.  -ERR_DEVICE: nothing found, or a symbol is missing; the sentence says which. */
int lib_open(const struct lib *lib, void **table, struct err *err);

#endif
