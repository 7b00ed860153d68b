#include "kernels/cpu/vec_avx2.h"

#define INSTALL adaln_install_avx2

#include "kernels/cpu/adaln_body.inc"
