/* A shared library opened when it is first needed, so that a program starts without it. */
#ifndef KERNELS_CUDA_LIB_LIB_H
#define KERNELS_CUDA_LIB_LIB_H

struct err;

struct lib {
    const char *what;           /* for people: "cuBLASLt (part of the CUDA toolkit)" */
    const char *const *names;   /* file names to try, NULL after the last */
    const char *const *symbols; /* symbols that it must have, NULL after the last */
};

/* Opens the first of the names that loads, from the system's folders, then from CUDA_HOME,
 * CUDA_PATH and /usr/local/cuda, and fills table[i] with the address of symbols[i].  It
 * stays open.  -ERR_DEVICE: nothing was found, or a symbol is missing; err says which. */
int lib_open(const struct lib *lib, void **table, struct err *err);

#endif
