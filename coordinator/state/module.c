#include "coordinator/state/module.h"

#include "coordinator/state/task.h"

const struct version_rec *module_version(const struct module_rec *m, uint64_t version)
{
    for (unsigned i = 0; i < m->n_versions; i++)
        if (m->versions[i].version == version)
            return &m->versions[i];
    return NULL;
}

const struct version_rec *module_oldest(const struct module_rec *m)
{
    return m->n_versions == m->kept ? &m->versions[0] : NULL;
}

void module_add_version(struct module_rec *m, const struct version_rec *v)
{
    if (m->n_versions == m->kept) {
        mem_free(m->versions[0].provenance);
        memmove(&m->versions[0], &m->versions[1], (m->kept - 1) * sizeof(*m->versions));
        m->n_versions--;
    }
    m->versions[m->n_versions++] = *v;
    m->version = v->version;
    m->untold++;
}

void module_drop_first(struct module_rec *m)
{
    mem_free(m->versions[0].provenance);
    m->n_versions = m->untold = m->handed = 0;
}

unsigned module_told(const struct module_rec *m)
{
    return m->n_versions > m->untold ? m->n_versions - m->untold : 0;
}

bool module_keeps(const struct module_rec *m, const struct contribution *c)
{
    if (c->version > 0)
        return c->version >= m->version;
    return !c->refused || c->base_version + m->kept > m->version;
}

bool module_lets_go(const struct module_rec *m, const struct contribution *c)
{
    if (c->version > 0)
        return c->version + 1 == m->version;
    return c->refused && c->base_version + m->kept == m->version;
}

void module_release(struct module_rec *m)
{
    for (unsigned i = 0; i < m->n_versions; i++)
        mem_free(m->versions[i].provenance);
}
