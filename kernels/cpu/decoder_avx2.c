#include "kernels/cpu/vec_avx2.h"

#define INSTALL decoder_install_avx2

#include "kernels/cpu/decoder_body.inc"
