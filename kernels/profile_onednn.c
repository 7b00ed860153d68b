/* The isolated rate of oneDNN, threaded by its own OpenMP runtime and with all
 * layouts it may wish for: the yardstick of matmul_share, not a way the operations
 * take. */
#include <dnnl.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "kernels/profile.h"

enum { MIN_RUNS = 6, MAX_RUNS = 60 };
static const double measure_s = 0.06;

struct product {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    dnnl_primitive_desc_t pd;
    dnnl_primitive_t prim;
    dnnl_memory_t mem[3]; /* A, B, C */
};

static int check(dnnl_status_t st, const char *what, struct err *err)
{
    if (st == dnnl_success)
        return 0;
    return err_set(err, -ERR_DEVICE, "oneDNN cannot %s (status %d)", what, (int)st);
}

static dnnl_status_t add_memory(struct product *p, int i, dnnl_query_t which)
{
    const dnnl_memory_desc_t *md = dnnl_primitive_desc_query_md(p->pd, which, 0);
    dnnl_status_t st = dnnl_memory_create(&p->mem[i], md, p->engine, DNNL_MEMORY_ALLOCATE);
    void *data;
    if (st != dnnl_success || (st = dnnl_memory_get_data_handle(p->mem[i], &data)) != dnnl_success)
        return st;
    memset(data, 0, dnnl_memory_desc_get_size(md));
    return dnnl_success;
}

static dnnl_status_t build(struct product *p, enum mm_layout layout, const int64_t mnk[3],
                           const enum dtype dts[2], bool plain)
{
    dnnl_data_type_t in = dts[0] == DT_BF16 ? dnnl_bf16 : dnnl_f32;
    dnnl_data_type_t out = dts[1] == DT_BF16 ? dnnl_bf16 : dnnl_f32;
    const dnnl_dims_t da = {mnk[0], mnk[2]}, db = {mnk[2], mnk[1]}, dc = {mnk[0], mnk[1]};
    dnnl_memory_desc_t a, b, c;
    dnnl_matmul_desc_t desc;
    dnnl_status_t st;
    dnnl_format_tag_t ta = layout == MM_TN ? dnnl_ba : dnnl_ab;
    dnnl_format_tag_t tb = layout == MM_NT ? dnnl_ba : dnnl_ab;
    if (!plain)
        ta = tb = dnnl_format_tag_any;
    if ((st = dnnl_memory_desc_init_by_tag(&a, 2, da, in, ta)) != dnnl_success ||
        (st = dnnl_memory_desc_init_by_tag(&b, 2, db, in, tb)) != dnnl_success ||
        (st = dnnl_memory_desc_init_by_tag(&c, 2, dc, out, dnnl_ab)) != dnnl_success ||
        (st = dnnl_matmul_desc_init(&desc, &a, &b, NULL, &c)) != dnnl_success ||
        (st = dnnl_engine_create(&p->engine, dnnl_cpu, 0)) != dnnl_success ||
        (st = dnnl_stream_create(&p->stream, p->engine, dnnl_stream_default_flags)) !=
            dnnl_success ||
        (st = dnnl_primitive_desc_create(&p->pd, &desc, NULL, p->engine, NULL)) != dnnl_success ||
        (st = dnnl_primitive_create(&p->prim, p->pd)) != dnnl_success ||
        (st = add_memory(p, 0, dnnl_query_src_md)) != dnnl_success ||
        (st = add_memory(p, 1, dnnl_query_weights_md)) != dnnl_success)
        return st;
    return add_memory(p, 2, dnnl_query_dst_md);
}

static void release(struct product *p)
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
static dnnl_status_t measure(struct product *p, double *ret)
{
    dnnl_exec_arg_t args[3] = {
        {DNNL_ARG_SRC, p->mem[0]}, {DNNL_ARG_WEIGHTS, p->mem[1]}, {DNNL_ARG_DST, p->mem[2]}};
    double best = 1e30, begin = profile_now();
    for (int i = 0; i < MAX_RUNS && (i < MIN_RUNS || profile_now() - begin < measure_s); i++) {
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

int profile_onednn_seconds(enum mm_layout layout, const int64_t mnk[3], enum dtype dt,
                           enum dtype c_dt, int threads, double *ret_seconds, struct err *err)
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
        struct product p = {0};
        double t = 0;
        r = check(build(&p, layout, mnk, dts, plain), "set up a matmul", err);
        if (r == 0)
            r = check(measure(&p, &t), "run a matmul", err);
        if (r == 0 && t < best)
            best = t;
        release(&p);
    }
    omp_set_num_threads(before);
    if (r == 0)
        *ret_seconds = best;
    return r;
}
