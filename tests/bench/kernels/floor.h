/* What benchmarks make of a profile: a table, and the arithmetic floor.
 *
 *     profile_matmul_floor(&prof, dev->threads, &floor_s, err);
 *     matmul_share = floor_s / step_s
 *     profile_print(&prof, stdout); */
#ifndef TESTS_BENCH_KERNELS_FLOOR_H
#define TESTS_BENCH_KERNELS_FLOOR_H

#include <dnnl.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "kernels/profile.h"

/* ---- the floor: oneDNN with its own threads, and all layouts it may wish for ---- */

#if DNNL_VERSION_MAJOR < 3
typedef const dnnl_memory_desc_t *const_dnnl_memory_desc_t;
#endif

enum { FLOOR_RUNS_MIN = 6, FLOOR_RUNS_MAX = 60 };
#define FLOOR_S 0.06

struct floor_product {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    dnnl_primitive_desc_t pd;
    dnnl_primitive_t prim;
    dnnl_memory_t mem[3]; /* A, B, C */
};

static inline int floor_check(dnnl_status_t st, const char *what, struct err *err)
{
    if (st == dnnl_success)
        return 0;
    return err_set(err, -ERR_DEVICE, "oneDNN cannot %s (status %d)", what, (int)st);
}

static inline dnnl_status_t floor_add_memory(struct floor_product *p, int i, dnnl_query_t which)
{
    const_dnnl_memory_desc_t md = dnnl_primitive_desc_query_md(p->pd, which, 0);
    dnnl_status_t st = dnnl_memory_create(&p->mem[i], md, p->engine, DNNL_MEMORY_ALLOCATE);
    void *data;
    if (st != dnnl_success || (st = dnnl_memory_get_data_handle(p->mem[i], &data)) != dnnl_success)
        return st;
    memset(data, 0, dnnl_memory_desc_get_size(md));
    return dnnl_success;
}

/* Describes C = A B; `md` are the matrices' descriptions, A, B, C. */
#if DNNL_VERSION_MAJOR >= 3
static inline dnnl_status_t floor_describe(struct floor_product *p, dnnl_dims_t dims[3],
                                           const dnnl_data_type_t dt[3],
                                           const dnnl_format_tag_t tag[3])
{
    dnnl_memory_desc_t md[3] = {0};
    dnnl_status_t st = dnnl_success;
    for (int i = 0; i < 3 && st == dnnl_success; i++)
        st = dnnl_memory_desc_create_with_tag(&md[i], 2, dims[i], dt[i], tag[i]);
    if (st == dnnl_success)
        st = dnnl_matmul_primitive_desc_create(&p->pd, p->engine, md[0], md[1], NULL, md[2], NULL);
    for (int i = 0; i < 3; i++)
        if (md[i])
            dnnl_memory_desc_destroy(md[i]);
    return st;
}
#else
static inline dnnl_status_t floor_describe(struct floor_product *p, dnnl_dims_t dims[3],
                                           const dnnl_data_type_t dt[3],
                                           const dnnl_format_tag_t tag[3])
{
    dnnl_memory_desc_t md[3];
    dnnl_matmul_desc_t desc;
    dnnl_status_t st = dnnl_success;
    for (int i = 0; i < 3 && st == dnnl_success; i++)
        st = dnnl_memory_desc_init_by_tag(&md[i], 2, dims[i], dt[i], tag[i]);
    if (st != dnnl_success ||
        (st = dnnl_matmul_desc_init(&desc, &md[0], &md[1], NULL, &md[2])) != dnnl_success)
        return st;
    return dnnl_primitive_desc_create(&p->pd, &desc, NULL, p->engine, NULL);
}
#endif

static inline dnnl_status_t floor_build(struct floor_product *p, enum mm_layout layout,
                                        const int64_t mnk[3], const enum dtype dts[2], bool plain)
{
    const dnnl_data_type_t in = dts[0] == DT_BF16 ? dnnl_bf16 : dnnl_f32;
    const dnnl_data_type_t dt[3] = {in, in, dts[1] == DT_BF16 ? dnnl_bf16 : dnnl_f32};
    dnnl_dims_t dims[3] = {{mnk[0], mnk[2]}, {mnk[2], mnk[1]}, {mnk[0], mnk[1]}};
    dnnl_format_tag_t tag[3] = {dnnl_format_tag_any, dnnl_format_tag_any, dnnl_ab};
    dnnl_status_t st;
    if (plain) {
        tag[0] = layout == MM_TN ? dnnl_ba : dnnl_ab;
        tag[1] = layout == MM_NT ? dnnl_ba : dnnl_ab;
    }
    if ((st = dnnl_engine_create(&p->engine, dnnl_cpu, 0)) != dnnl_success ||
        (st = dnnl_stream_create(&p->stream, p->engine, dnnl_stream_default_flags)) !=
            dnnl_success ||
        (st = floor_describe(p, dims, dt, tag)) != dnnl_success ||
        (st = dnnl_primitive_create(&p->prim, p->pd)) != dnnl_success ||
        (st = floor_add_memory(p, 0, dnnl_query_src_md)) != dnnl_success ||
        (st = floor_add_memory(p, 1, dnnl_query_weights_md)) != dnnl_success)
        return st;
    return floor_add_memory(p, 2, dnnl_query_dst_md);
}

static inline void floor_release(struct floor_product *p)
{
    for (int i = 0; i < 3; i++)
        if (p->mem[i])
            dnnl_memory_destroy(p->mem[i]);
    if (p->prim)
        dnnl_primitive_destroy(p->prim);
    if (p->pd)
        dnnl_primitive_desc_destroy(p->pd);
    if (p->stream)
        dnnl_stream_destroy(p->stream);
    if (p->engine)
        dnnl_engine_destroy(p->engine);
}

/* Best time of repeated runs; the first warms up. */
static inline dnnl_status_t floor_measure(struct floor_product *p, double *ret)
{
    dnnl_exec_arg_t args[3] = {
        {DNNL_ARG_SRC, p->mem[0]}, {DNNL_ARG_WEIGHTS, p->mem[1]}, {DNNL_ARG_DST, p->mem[2]}};
    double best = 1e30, begin = profile_now();
    for (int i = 0; i < FLOOR_RUNS_MAX && (i < FLOOR_RUNS_MIN || profile_now() - begin < FLOOR_S);
         i++) {
        double start = profile_now();
        dnnl_status_t st = dnnl_primitive_execute(p->prim, p->stream, 3, args);
        if (st == dnnl_success)
            st = dnnl_stream_wait(p->stream);
        if (st != dnnl_success)
            return st;
        double t = profile_now() - start;
        if (i > 0 && t < best)
            best = t;
    }
    *ret = best;
    return dnnl_success;
}

/* Isolated time of one product on oneDNN, in seconds. */
static inline int profile_onednn_seconds(enum mm_layout layout, const int64_t mnk[3], enum dtype dt,
                                         enum dtype c_dt, int threads, double *ret_seconds,
                                         struct err *err)
{
    const enum dtype dts[2] = {dt, c_dt};
    double best = 1e30;
    int r = 0, before = omp_get_max_threads();
    if (mnk[0] <= 0 || mnk[1] <= 0 || mnk[2] <= 0) {
        *ret_seconds = 0;
        return 0;
    }
    omp_set_num_threads(threads);
    for (int plain = 0; plain < 2 && r == 0; plain++) {
        struct floor_product p = {0};
        double t = 0;
        r = floor_check(floor_build(&p, layout, mnk, dts, plain), "set up a matmul", err);
        if (r == 0)
            r = floor_check(floor_measure(&p, &t), "run a matmul", err);
        if (r == 0 && t < best)
            best = t;
        floor_release(&p);
    }
    omp_set_num_threads(before);
    if (r == 0)
        *ret_seconds = best;
    return r;
}

/* Each matmul shape of the profile run alone through oneDNN (plain and reordered layouts, the
 * faster counts; caches warm; best of several), times its calls.  Attention's own small products
 * are not counted.  Takes a second or two. */
static inline int profile_matmul_floor(const struct profile *p, int threads, double *ret_seconds,
                                       struct err *err)
{
    double sum = *ret_seconds = 0;
    for (int i = 0; i < p->n; i++) {
        const struct profile_rec *rec = &p->rec[i];
        if (strcmp(rec->op, "matmul") != 0)
            continue;
        const int64_t mnk[3] = {rec->m, rec->n, rec->k};
        double one = 0;
        int r = profile_onednn_seconds((enum mm_layout)(rec->kind & 3), mnk,
                                       (enum dtype)(rec->kind >> 2 & 1),
                                       (enum dtype)(rec->kind >> 3 & 1), threads, &one, err);
        if (r < 0)
            return r;
        sum += one * (double)rec->calls;
    }
    *ret_seconds = sum;
    return 0;
}

static inline int slower_first(const void *a, const void *b)
{
    const struct profile_rec *x = a, *y = b;
    return (x->seconds < y->seconds) - (x->seconds > y->seconds);
}

/* A table, slowest first. */
static inline void profile_print(const struct profile *p, FILE *f)
{
    static const char *const layouts[] = {"NN", "NT", "TN", "?"};
    struct profile sorted = *p;
    double total = profile_seconds(p, NULL);
    qsort(sorted.rec, (size_t)sorted.n, sizeof sorted.rec[0], slower_first);
    fprintf(f, "%-16s %-12s %24s %8s %10s %7s %9s\n", "operation", "kind", "dims", "calls", "ms",
            "share", "GFLOP/s");
    for (int i = 0; i < sorted.n; i++) {
        const struct profile_rec *r = &sorted.rec[i];
        char kind[32] = "", dims[64], rate[32] = "";
        bool mm = strcmp(r->op, "matmul") == 0;
        snprintf(dims, sizeof dims, "%lldx%lldx%lld", (long long)r->m, (long long)r->n,
                 (long long)r->k);
        if (mm) {
            snprintf(kind, sizeof kind, "%s %s>%s", layouts[r->kind & 3],
                     dtype_name((enum dtype)(r->kind >> 2 & 1)),
                     dtype_name((enum dtype)(r->kind >> 3 & 1)));
            snprintf(rate, sizeof rate, "%.1f",
                     2e-9 * (double)r->m * (double)r->n * (double)r->k * (double)r->calls /
                         r->seconds);
        }
        fprintf(f, "%-16s %-12s %24s %8lld %10.3f %6.1f%% %9s\n", r->op, kind, dims,
                (long long)r->calls, r->seconds * 1e3, 100 * r->seconds / total, rate);
    }
}

#endif
