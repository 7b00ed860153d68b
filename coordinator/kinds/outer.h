/* OUTER: an outer step that a worker makes (outer.where). */
#ifndef COORDINATOR_KIND_OUTER_H
#define COORDINATOR_KIND_OUTER_H

#include "coordinator/kinds/kind.h"

extern const struct kind kind_outer;

#endif
