/* EVAL: held-out loss of a path, or of the mixture. */
#ifndef COORDINATOR_KINDS_EVAL_H
#define COORDINATOR_KINDS_EVAL_H

#include "coordinator/kinds/kind.h"

extern const struct kind kind_eval;

#endif
