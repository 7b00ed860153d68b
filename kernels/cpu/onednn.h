/* Matrix products by oneDNN 2 (Debian 12, Ubuntu 22.04) and oneDNN 3 (Debian 13, Ubuntu 24.04):
 * what their interfaces do differently.  Version 2 describes memory by values and makes a primitive
 * from a descriptor of the operation; version 3 has handles and no such descriptor. */
#ifndef KERNELS_CPU_ONEDNN_H
#define KERNELS_CPU_ONEDNN_H

#include <dnnl.h>
#include <stdbool.h>

/* A matrix in elements; strides of 0: in whatever layout oneDNN likes best. */
struct onednn_matrix {
    dnnl_dims_t dims, strides;
    dnnl_data_type_t type;
};

#if DNNL_VERSION_MAJOR < 3

typedef const dnnl_memory_desc_t *onednn_memory_desc; /* what a query of a primitive gives */

static inline dnnl_status_t onednn_describe(const struct onednn_matrix *m, dnnl_memory_desc_t *ret)
{
    return m->strides[0]
               ? dnnl_memory_desc_init_by_strides(ret, 2, m->dims, m->type, m->strides)
               : dnnl_memory_desc_init_by_tag(ret, 2, m->dims, m->type, dnnl_format_tag_any);
}

/* c = a b + bias; m[0..2] are a, b and c, m[3] is bias, if there is one.  attr may be NULL. */
static inline dnnl_status_t onednn_matmul_desc(dnnl_engine_t engine, const struct onednn_matrix m[],
                                               bool bias, dnnl_primitive_attr_t attr,
                                               dnnl_primitive_desc_t *ret)
{
    dnnl_memory_desc_t md[4];
    dnnl_matmul_desc_t desc;
    dnnl_status_t st = dnnl_success;
    for (int i = 0; i < 3 + bias && st == dnnl_success; i++)
        st = onednn_describe(&m[i], &md[i]);
    if (st == dnnl_success)
        st = dnnl_matmul_desc_init(&desc, &md[0], &md[1], bias ? &md[3] : NULL, &md[2]);
    return st == dnnl_success ? dnnl_primitive_desc_create(ret, &desc, attr, engine, NULL) : st;
}

static inline dnnl_status_t onednn_append_sum(dnnl_post_ops_t ops)
{
    return dnnl_post_ops_append_sum(ops, 1.0f);
}

#else

typedef const_dnnl_memory_desc_t onednn_memory_desc;

static inline dnnl_status_t onednn_describe(const struct onednn_matrix *m, dnnl_memory_desc_t *ret)
{
    return m->strides[0]
               ? dnnl_memory_desc_create_with_strides(ret, 2, m->dims, m->type, m->strides)
               : dnnl_memory_desc_create_with_tag(ret, 2, m->dims, m->type, dnnl_format_tag_any);
}

static inline dnnl_status_t onednn_matmul_desc(dnnl_engine_t engine, const struct onednn_matrix m[],
                                               bool bias, dnnl_primitive_attr_t attr,
                                               dnnl_primitive_desc_t *ret)
{
    dnnl_memory_desc_t md[4] = {NULL};
    dnnl_status_t st = dnnl_success;
    for (int i = 0; i < 3 + bias && st == dnnl_success; i++)
        st = onednn_describe(&m[i], &md[i]);
    if (st == dnnl_success)
        st = dnnl_matmul_primitive_desc_create(ret, engine, md[0], md[1], md[3], md[2], attr);
    for (int i = 0; i < 4; i++)
        if (md[i])
            dnnl_memory_desc_destroy(md[i]);
    return st;
}

static inline dnnl_status_t onednn_append_sum(dnnl_post_ops_t ops)
{
    return dnnl_post_ops_append_sum(ops, 1.0f, 0, dnnl_data_type_undef);
}

#endif

#endif
