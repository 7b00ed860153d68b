#include "kernels/cpu/vec_avx512.h"

#define INSTALL adaln_install_avx512

#include "kernels/cpu/adaln_body.inc"
