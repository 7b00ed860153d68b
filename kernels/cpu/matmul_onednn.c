#include "kernels/cpu/matmul_onednn.h"

#include <omp.h>
#include <stdatomic.h>

#include "kernels/cpu/state.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/onednn.h"
#include "kernels/cpu/team.h"

enum { SLAB_ROWS = 512, CACHE = 128 };

/* The key of a primitive: products with equal keys share one. */
struct key {
    int64_t m, n, k, lda; /* lda: of MM_TN that of all slabs */
    int layout, dt, c_dt, bias, accumulate;
};

struct entry {
    struct key key;
    dnnl_primitive_desc_t pd;
    dnnl_primitive_t prim;
    size_t scratch_bytes;
    uint64_t used; /* clock of the last use */
};

struct onednn {
    dnnl_engine_t engine;
    int threads;
    dnnl_stream_t *streams; /* per thread */
    struct entry cache[CACHE];
    uint64_t clock;
};

bool onednn_has_tiles(void)
{
    return (dnnl_get_effective_cpu_isa() & dnnl_cpu_isa_avx512_core_amx) ==
           dnnl_cpu_isa_avx512_core_amx;
}

void onednn_free(struct onednn *dn)
{
    if (!dn)
        return;
    for (int i = 0; i < CACHE; i++) {
        if (dn->cache[i].prim)
            dnnl_primitive_destroy(dn->cache[i].prim);
        if (dn->cache[i].pd)
            dnnl_primitive_desc_destroy(dn->cache[i].pd);
    }
    for (int i = 0; dn->streams && i < dn->threads; i++)
        if (dn->streams[i])
            dnnl_stream_destroy(dn->streams[i]);
    free(dn->streams);
    if (dn->engine)
        dnnl_engine_destroy(dn->engine);
    free(dn);
}

struct onednn *onednn_new(int threads)
{
    struct onednn *dn = calloc(1, sizeof *dn);
    if (!dn)
        return NULL;
    dn->threads = threads;
    dn->streams = calloc((size_t)threads, sizeof *dn->streams);
    bool ok = dn->streams && dnnl_engine_create(&dn->engine, dnnl_cpu, 0) == dnnl_success;
    for (int i = 0; ok && i < threads; i++)
        ok = dnnl_stream_create(&dn->streams[i], dn->engine, dnnl_stream_default_flags) ==
             dnnl_success;
    if (!ok) {
        onednn_free(dn);
        return NULL;
    }
    return dn;
}

static struct onednn_matrix matrix(int64_t rows, int64_t cols, int64_t ld, bool transposed, int dt)
{
    return (struct onednn_matrix){
        .dims = {rows, cols},
        .strides = {transposed ? 1 : ld, transposed ? ld : 1},
        .type = dt == DT_BF16 ? dnnl_bf16 : dnnl_f32,
    };
}

static dnnl_status_t make_desc(struct onednn *dn, const struct key *k, dnnl_primitive_attr_t attr,
                               dnnl_primitive_desc_t *ret)
{
    const bool nt = k->layout == MM_NT;
    const struct onednn_matrix m[] = {
        matrix(k->m, k->k, k->lda, k->layout == MM_TN, k->dt),
        matrix(k->k, k->n, nt ? k->k : k->n, nt, k->dt),
        matrix(k->m, k->n, k->n, false, k->c_dt),
        matrix(1, k->n, k->n, false, DT_F32),
    };
    return onednn_matmul_desc(dn->engine, m, k->bias, attr, ret);
}

/* A primitive for one thread, with the scratchpad given by us. */
static dnnl_status_t build(struct onednn *dn, struct entry *e)
{
    dnnl_primitive_attr_t attr;
    dnnl_post_ops_t ops = NULL;
    dnnl_status_t st = dnnl_primitive_attr_create(&attr);
    if (st != dnnl_success)
        return st;
    st = dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user);
    if (st == dnnl_success && e->key.accumulate) {
        st = dnnl_post_ops_create(&ops);
        if (st == dnnl_success)
            st = onednn_append_sum(ops);
        if (st == dnnl_success)
            st = dnnl_primitive_attr_set_post_ops(attr, ops);
    }
    if (st == dnnl_success)
        st = make_desc(dn, &e->key, attr, &e->pd);
    if (st == dnnl_success)
        st = dnnl_primitive_create(&e->prim, e->pd);
    if (st == dnnl_success)
        e->scratch_bytes = dnnl_memory_desc_get_size(
            dnnl_primitive_desc_query_md(e->pd, dnnl_query_scratchpad_md, 0));
    if (ops)
        dnnl_post_ops_destroy(ops);
    dnnl_primitive_attr_destroy(attr);
    return st;
}

/* The primitive of a key, built when new in place of the one unused for longest. */
static struct entry *lookup(struct onednn *dn, const struct key *key)
{
    struct entry *oldest = &dn->cache[0];
    for (int i = 0; i < CACHE; i++) {
        struct entry *e = &dn->cache[i];
        if (e->prim && memcmp(&e->key, key, sizeof *key) == 0) {
            e->used = ++dn->clock;
            return e;
        }
        if (e->used < oldest->used)
            oldest = e;
    }
    if (oldest->prim)
        dnnl_primitive_destroy(oldest->prim);
    if (oldest->pd)
        dnnl_primitive_desc_destroy(oldest->pd);
    *oldest = (struct entry){.key = *key, .used = ++dn->clock};
    if (build(dn, oldest) == dnnl_success)
        return oldest;
    if (oldest->pd)
        dnnl_primitive_desc_destroy(oldest->pd);
    *oldest = (struct entry){0};
    return NULL;
}

struct job {
    struct onednn *dn;
    const struct matmul *mm;
    struct entry *entry[2]; /* whole slabs, and the last shorter one */
    int whole;
    char *scratch;
    size_t scratch_bytes; /* of one thread */
    atomic_int failed;    /* the first status that is no success */
};

static dnnl_status_t add_arg(struct onednn *dn, const struct entry *e, dnnl_query_t which, int arg,
                             const void *data, dnnl_exec_arg_t *ret)
{
    int index = arg == DNNL_ARG_BIAS; /* the second of the weights */
    ret->arg = arg;
    /* oneDNN takes void pointers also for what it only reads. */
    return dnnl_memory_create(&ret->memory, dnnl_primitive_desc_query_md(e->pd, which, index),
                              dn->engine, (void *)(uintptr_t)data);
}

static void slab_task(void *arg, int task, int thread)
{
    struct job *job = arg;
    const struct matmul *mm = job->mm;
    const struct entry *e = job->entry[task < job->whole ? 0 : 1];
    int64_t row = (int64_t)task * SLAB_ROWS;
    int64_t a_at = mm->layout == MM_TN ? row : row * mm->k;
    const struct {
        dnnl_query_t which;
        int arg;
        const void *data;
    } in[5] = {
        {dnnl_query_src_md, DNNL_ARG_SRC, (const char *)mm->a + (size_t)a_at * dtype_bytes(mm->dt)},
        {dnnl_query_weights_md, DNNL_ARG_WEIGHTS, mm->b},
        {dnnl_query_dst_md, DNNL_ARG_DST,
         (const char *)mm->c + (size_t)(row * mm->n) * dtype_bytes(mm->c_dt)},
        {dnnl_query_scratchpad_md, DNNL_ARG_SCRATCHPAD,
         job->scratch + (size_t)thread * job->scratch_bytes},
        {dnnl_query_weights_md, DNNL_ARG_BIAS, mm->bias},
    };
    dnnl_exec_arg_t args[5];
    int n = 0;
    dnnl_status_t st = dnnl_success;
    omp_set_num_threads(1);
    for (int i = 0; i < (mm->bias ? 5 : 4) && st == dnnl_success; i++) {
        st = add_arg(job->dn, e, in[i].which, in[i].arg, in[i].data, &args[i]);
        n += st == dnnl_success;
    }
    if (st == dnnl_success)
        st = dnnl_primitive_execute(e->prim, job->dn->streams[thread], n, args);
    if (st == dnnl_success)
        st = dnnl_stream_wait(job->dn->streams[thread]);
    for (int i = 0; i < n; i++)
        dnnl_memory_destroy(args[i].memory);
    if (st != dnnl_success)
        atomic_store(&job->failed, (int)st);
}

/* Does in separate passes what oneDNN cannot: activations and column sums. */
static int finish(struct device *dev, const struct matmul *mm)
{
    const struct kernel_ops *ops = cpu_inner(dev);
    int64_t n = mm->m * mm->n;
    int r = 0;
    if (mm->epilogue == MM_GELU)
        r = ops->gelu_fwd(dev, mm->c, mm->aux ? mm->aux : mm->c, n, mm->c_dt, NULL);
    if (mm->epilogue == MM_DGELU)
        r = ops->gelu_bwd(dev, mm->c, mm->c, mm->aux, n, mm->c_dt, NULL);
    if (r == 0 && mm->a_colsum)
        r = ops->bias_grad(dev, mm->a_colsum, mm->a, mm->k, mm->m, mm->dt, NULL);
    return r;
}

static int run(struct device *dev, const struct matmul *mm, struct job *job)
{
    struct cpu_state *st = cpu_state(dev);
    int slabs = (int)((mm->m + SLAB_ROWS - 1) / SLAB_ROWS);
    for (int i = 0; i < 2; i++)
        if (job->entry[i] && job->entry[i]->scratch_bytes > job->scratch_bytes)
            job->scratch_bytes = (job->entry[i]->scratch_bytes + 63) / 64 * 64;
    job->scratch = cpu_scratch(st, SCRATCH_PACKED, job->scratch_bytes * (size_t)dev->threads + 64);
    if (!job->scratch)
        return -ENOMEM;
    cpu_team_run(st->team, slab_task, job, slabs);
    return atomic_load(&job->failed) ? -ERR_DEVICE : 0;
}

/* The product of matrices without leading dimensions. */
static int dense_matmul(struct device *dev, const struct matmul *mm)
{
    struct onednn *dn = cpu_state(dev)->onednn;
    struct matmul plain = *mm;
    if (mm->epilogue == MM_GELU && mm->aux)
        plain.c = mm->aux;
    struct job job = {.dn = dn, .mm = &plain};
    struct key key = {.m = SLAB_ROWS,
                      .n = mm->n,
                      .k = mm->k,
                      .lda = mm->layout == MM_TN ? mm->m : mm->k,
                      .layout = (int)mm->layout,
                      .dt = (int)mm->dt,
                      .c_dt = (int)mm->c_dt,
                      .bias = mm->bias != NULL,
                      .accumulate = mm->accumulate};
    int before = omp_get_max_threads();
    omp_set_num_threads(1);
    job.whole = (int)(mm->m / SLAB_ROWS);
    int64_t rest = mm->m % SLAB_ROWS;
    bool ok = true;
    if (job.whole)
        ok = (job.entry[0] = lookup(dn, &key)) != NULL;
    key.m = rest;
    if (ok && rest)
        ok = (job.entry[1] = lookup(dn, &key)) != NULL;
    int r = ok ? run(dev, &plain, &job) : -ERR_DEVICE;
    omp_set_num_threads(before);
    return r < 0 ? r : finish(dev, mm);
}

/* ---- matrices whose rows are apart ---- */

enum { A, B, C, AUX, MATRICES };

struct rows {
    char *p;
    int64_t n;
    size_t bytes, apart; /* of a row; from one to the next */
};

static struct rows rows_of(const void *p, int64_t n, int64_t cols, int64_t ld, enum dtype dt)
{
    const size_t size = dtype_bytes(dt), bytes = (size_t)cols * size;
    return (struct rows){(char *)(uintptr_t)p, n, bytes, ld ? (size_t)ld * size : bytes};
}

/* Bytes of a dense copy; 0: there need be none. */
static size_t copy_bytes(const struct rows *x)
{
    return x->p && x->apart != x->bytes ? ((size_t)x->n * x->bytes + 63) / 64 * 64 : 0;
}

static void copy_rows(const struct rows *to, const struct rows *from)
{
    for (size_t i = 0; i < (size_t)to->n && to->p != from->p; i++)
        memcpy(to->p + i * to->apart, from->p + i * from->apart, to->bytes);
}

int onednn_matmul(struct device *dev, const struct matmul *mm, struct stream *s)
{
    /* Of an odd k oneDNN 2.6 reads tiles that it has not configured, in some shapes (34x148x63): an
     * illegal instruction. */
    const bool odd = mm->dt == DT_BF16 && mm->k % 2 != 0;
    if (mm->m == 0 || mm->n == 0 || mm->k == 0 || odd || (mm->dt == DT_F32 && mm->c_dt == DT_BF16))
        return gemm_matmul(dev, mm, s);
    const bool tn = mm->layout == MM_TN, nt = mm->layout == MM_NT;
    const struct rows given[MATRICES] = {
        [A] = rows_of(mm->a, tn ? mm->k : mm->m, tn ? mm->m : mm->k, mm->lda, mm->dt),
        [B] = rows_of(mm->b, nt ? mm->n : mm->k, nt ? mm->k : mm->n, mm->ldb, mm->dt),
        [C] = rows_of(mm->c, mm->m, mm->n, mm->ldc, mm->c_dt),
        [AUX] = rows_of(mm->aux, mm->m, mm->n, mm->ldc, mm->c_dt),
    };
    const bool read[MATRICES] = {true, true, mm->accumulate, mm->epilogue == MM_DGELU};
    struct rows dense[MATRICES];
    size_t bytes = 0;
    for (int i = 0; i < MATRICES; i++)
        bytes += copy_bytes(&given[i]);
    char *room = cpu_scratch(cpu_state(dev), SCRATCH_WIDE, bytes);
    if (bytes && !room)
        return -ENOMEM;
    for (int i = 0; i < MATRICES; i++) {
        const size_t own = copy_bytes(&given[i]);
        dense[i] = given[i];
        if (own) {
            dense[i].p = room;
            dense[i].apart = given[i].bytes;
            room += own;
        }
        if (read[i])
            copy_rows(&dense[i], &given[i]);
    }
    struct matmul product = *mm;
    product.a = dense[A].p;
    product.b = dense[B].p;
    product.c = dense[C].p;
    product.aux = dense[AUX].p;
    int r = dense_matmul(dev, &product);
    if (r < 0)
        return r;
    copy_rows(&given[C], &dense[C]);
    if (mm->epilogue == MM_GELU)
        copy_rows(&given[AUX], &dense[AUX]);
    return 0;
}
