/* What every file may use without saying so: the plain parts of the C library, error values,
 * memory, strings.  A file of ours that needs any of them includes this and none of them by
 * itself; a .c whose own header has it need not repeat it. */
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
