/* One model out of the modules of its levels: a safetensors file with the
 * tensors of several, whose names are distinct, each as the type that it has at home
 * (st_dtype_at_home). */
#ifndef CLI_MERGE_H
#define CLI_MERGE_H

#include "common/base/base.h"

/* Streams; memory does not grow with the model.  -ERR_CANCELLED once cli_interrupted: no file is
 * left. */
int merge_safetensors(char *const *parts, size_t n, const char *path, struct err *err);

#endif
