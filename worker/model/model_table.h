/* How a family of models fills its table of tensors, in the order of model_index.h.  For
 * model_dit.c and model_llama.c. */
#ifndef WORKER_MODEL_TABLE_H
#define WORKER_MODEL_TABLE_H

#include "worker/model/model.h"

/* Adds the next tensor to the table, in a level. */
void model_table_add(struct model *m, int level, bool decay, unsigned rank, const int shape[4],
                     const char *name);
/* A linear layer: NAME.weight (out,in) and NAME.bias (out). */
void model_table_linear(struct model *m, int level, const char *name, int out, int in);

#endif
