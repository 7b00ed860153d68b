/* ENCODE: a shard of images becomes a shard of their latents, with the same samples. */
#ifndef COORDINATOR_KINDS_ENCODE_H
#define COORDINATOR_KINDS_ENCODE_H

#include "coordinator/kinds/kind.h"

extern const struct kind kind_encode;

#endif
