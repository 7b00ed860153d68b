#include "common/outer/kernels.h"

#include "common/outer/kernels_impl.h"

const struct kernels kernels_scalar = KERNELS_TABLE("scalar");
