/* INIT: version 0 of every module of a network, from the seed or a warm start. */
#ifndef COORDINATOR_KINDS_INIT_H
#define COORDINATOR_KINDS_INIT_H

#include "coordinator/kinds/kind.h"

extern const struct kind kind_init;

#endif
