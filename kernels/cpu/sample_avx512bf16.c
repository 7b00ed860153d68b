#include "kernels/cpu/vec_avx512.h"

#define INSTALL sample_install_avx512bf16

#include "kernels/cpu/sample_body.inc"
