#include "kernels/cpu/vec_avx2.h"

#define INSTALL sample_install_avx2

#include "kernels/cpu/sample_body.inc"
