#include "kernels/cpu/vec_avx512.h"

#define INSTALL elem_install_avx512bf16

#include "kernels/cpu/elem_body.inc"
