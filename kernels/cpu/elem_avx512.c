#include "kernels/cpu/vec_avx512.h"

#define INSTALL elem_install_avx512

#include "kernels/cpu/elem_body.inc"
