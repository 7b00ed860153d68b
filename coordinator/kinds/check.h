/* CHECK: repeats a phase of another worker, to compare them (coordinator/job/spot_check.h). */
#ifndef COORDINATOR_KINDS_CHECK_H
#define COORDINATOR_KINDS_CHECK_H

#include "coordinator/kinds/kind.h"

extern const struct kind kind_check;

#endif
