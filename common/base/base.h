/* The basics that every file may use: the plain parts of the C library, error values, memory,
 * strings.  A file of ours that needs any of them includes this header, not the single ones; a .c
 * whose own header includes it need not repeat it. */
#ifndef COMMON_BASE_BASE_H
#define COMMON_BASE_BASE_H

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "common/base/mem.h"
#include "common/base/str.h"

#endif
