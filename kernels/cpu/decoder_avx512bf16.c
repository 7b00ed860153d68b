#include "kernels/cpu/vec_avx512.h"

#define INSTALL decoder_install_avx512bf16

#include "kernels/cpu/decoder_body.inc"
