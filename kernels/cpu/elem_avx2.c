#include "kernels/cpu/vec_avx2.h"

#define INSTALL elem_install_avx2

#include "kernels/cpu/elem_body.inc"
