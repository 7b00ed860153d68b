#include "kernels/cpu/vec_avx2.h"

#define INSTALL attention_install_avx2

#include "kernels/cpu/attention_body.inc"
