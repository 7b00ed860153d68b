#include "worker/model/model_table.h"

void model_table_add(struct model *m, int level, bool decay, unsigned rank, const int shape[4],
                     const char *name)
{
    struct model_tensor *t = &m->tensors[m->n++];
    (void)snprintf(t->name, sizeof t->name, "%s", name);
    t->rank = rank;
    t->count = 1;
    for (unsigned i = 0; i < rank; i++) {
        t->shape[i] = (uint64_t)shape[i];
        t->count *= t->shape[i];
    }
    t->level = level;
    t->decay = decay;
    m->params += t->count;
}

void model_table_linear(struct model *m, int level, const char *name, int out, int in)
{
    char full[MODEL_NAME_MAX];
    (void)snprintf(full, sizeof full, "%s.weight", name);
    model_table_add(m, level, true, 2, (int[4]){out, in}, full);
    (void)snprintf(full, sizeof full, "%s.bias", name);
    model_table_add(m, level, false, 1, (int[4]){out}, full);
}
