/* The tensors of each kind of model, in the order of model_index.h.  For model.c. */
#ifndef WORKER_MODEL_TABLE_H
#define WORKER_MODEL_TABLE_H

#include "worker/net/model.h"
#include "worker/net/model_index.h"

size_t model_table_size(const struct model_spec *s);

/* Fills m->tensors (of that size, zeroed) but the offsets, m->n and m->params. */
void model_table_fill(struct model *m);

#endif
