#include "kernels/cpu/vec_avx512.h"

#define INSTALL attention_install_avx512bf16

#include "kernels/cpu/attention_body.inc"
