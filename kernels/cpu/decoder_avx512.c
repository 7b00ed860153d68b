#include "kernels/cpu/vec_avx512.h"

#define INSTALL decoder_install_avx512

#include "kernels/cpu/decoder_body.inc"
