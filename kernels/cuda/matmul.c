/* Products through cuBLASLt.
 *
 * It counts columns where we count rows, so it is asked for C' = op(B)' op(A)': its first
 * matrix is our B, its bias runs along our n, and its sum over the columns of its second
 * matrix is our a_colsum.
 *
 * A plan is what was decided for a shape: the way, the algorithm and the descriptors.  When a
 * shape first comes the library's best guesses are timed and the fastest stays, unless
 * SKERRY_TUNE=0.  While a graph is recorded nothing is decided, since cuBLASLt of CUDA 13.3
 * has no guesses then: a new shape cannot be recorded. */
#include <cublasLt.h>

#include "common/base/base.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/lib.h"

enum {
    PLANS = 2048,
    PROBES = 16, /* places that a shape may have */
    WORK_BYTES = 32 << 20,
    ALIGN = 256,
    TRIES = 6, /* algorithms that are tried for a product, best guesses first */
    TIMED = 3, /* runs of each that are timed */
    TRIAL_BYTES = 64 << 20,
};

/* Tried in this order; each is the first that cuBLASLt takes. */
enum way {
    WAY_FUSED,      /* everything in the product */
    WAY_ROUND_BIAS, /* the same, with the bias rounded to the bf16 of C */
    WAY_NO_SUM,     /* a_colsum apart */
    WAY_NO_SUM_ROUND_BIAS,
    WAY_WIDE, /* the product alone, to f32, and a kernel for the rest */
    WAY_OWN,  /* our own product and the same kernel */
};

struct key {
    int64_t m, n, k, lda, ldb, ldc;
    int layout, epilogue, dt, c_dt, accumulate;
    int bias, aux, colsum;               /* given? */
    int align_a, align_b, align_c, pad_; /* bytes, up to 256 */
};

struct plan {
    struct key key;
    enum way way;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t first, second, out; /* our B, A and C */
    cublasLtMatmulAlgo_t algos[TRIES];         /* the first is used; the others wait to be timed */
    int algo_count;
};

struct api {
    __typeof__(cublasLtCreate) *create;
    __typeof__(cublasLtDestroy) *destroy;
    __typeof__(cublasLtMatmul) *matmul;
    __typeof__(cublasLtMatmulDescCreate) *desc_create;
    __typeof__(cublasLtMatmulDescDestroy) *desc_destroy;
    __typeof__(cublasLtMatmulDescSetAttribute) *desc_set;
    __typeof__(cublasLtMatrixLayoutCreate) *layout_create;
    __typeof__(cublasLtMatrixLayoutDestroy) *layout_destroy;
    __typeof__(cublasLtMatmulPreferenceCreate) *pref_create;
    __typeof__(cublasLtMatmulPreferenceDestroy) *pref_destroy;
    __typeof__(cublasLtMatmulPreferenceSetAttribute) *pref_set;
    __typeof__(cublasLtMatmulAlgoGetHeuristic) *heuristic;
};

static const char *const api_symbols[] = {
    "cublasLtCreate",
    "cublasLtDestroy",
    "cublasLtMatmul",
    "cublasLtMatmulDescCreate",
    "cublasLtMatmulDescDestroy",
    "cublasLtMatmulDescSetAttribute",
    "cublasLtMatrixLayoutCreate",
    "cublasLtMatrixLayoutDestroy",
    "cublasLtMatmulPreferenceCreate",
    "cublasLtMatmulPreferenceDestroy",
    "cublasLtMatmulPreferenceSetAttribute",
    "cublasLtMatmulAlgoGetHeuristic",
    NULL,
};
static const char *const api_names[] = {"libcublasLt.so.13", "libcublasLt.so.12", NULL};

enum { API_SYMBOLS = sizeof api_symbols / sizeof *api_symbols - 1 };

struct lt {
    struct api api;
    cublasLtHandle_t handle;
    int tries; /* 1: the library's guess is taken, SKERRY_TUNE=0 */
    struct plan plans[PLANS];
};

int lt_new(struct lt **ret, struct err *err)
{
    static const struct lib lib = {"cuBLASLt of CUDA 12 or 13", api_names, api_symbols};
    struct lt *lt = calloc(1, sizeof *lt);
    void *found[API_SYMBOLS];
    _Static_assert(sizeof found == sizeof lt->api, "one name for each entry");
    if (!lt)
        return err_set(err, -ENOMEM, "no memory for cuBLASLt");
    const char *tune = getenv("SKERRY_TUNE");
    lt->tries = tune && *tune == '0' ? 1 : TRIES;
    int rc = lib_open(&lib, found, err);
    if (rc == 0) {
        memcpy(&lt->api, found, sizeof found);
        cublasStatus_t status = lt->api.create(&lt->handle);
        if (status != CUBLAS_STATUS_SUCCESS)
            rc = err_set(err, -ERR_DEVICE, "cuBLASLt does not start on this card (status %d)",
                         (int)status);
    }
    if (rc < 0) {
        free(lt);
        return rc;
    }
    *ret = lt;
    return 0;
}

static void plan_drop(struct lt *lt, struct plan *p)
{
    if (p->desc)
        lt->api.desc_destroy(p->desc);
    if (p->first)
        lt->api.layout_destroy(p->first);
    if (p->second)
        lt->api.layout_destroy(p->second);
    if (p->out)
        lt->api.layout_destroy(p->out);
    p->desc = NULL;
    p->first = p->second = p->out = NULL;
}

void lt_free(struct lt *lt)
{
    if (!lt)
        return;
    for (int i = 0; i < PLANS; i++)
        plan_drop(lt, &lt->plans[i]);
    lt->api.destroy(lt->handle);
    free(lt);
}

static int alignment(const void *p)
{
    uintptr_t low = (uintptr_t)p & -(uintptr_t)p;
    return !p || low > ALIGN ? ALIGN : (int)low;
}

static struct key make_key(const struct matmul *mm)
{
    struct key k;
    memset(&k, 0, sizeof k);
    k.m = mm->m;
    k.n = mm->n;
    k.k = mm->k;
    k.lda = mm->lda ? mm->lda : mm->layout == MM_TN ? mm->m : mm->k;
    k.ldb = mm->ldb ? mm->ldb : mm->layout == MM_NT ? mm->k : mm->n;
    k.ldc = mm->ldc ? mm->ldc : mm->n;
    k.layout = (int)mm->layout;
    k.epilogue = (int)mm->epilogue;
    k.dt = (int)mm->dt;
    k.c_dt = (int)mm->c_dt;
    k.accumulate = mm->accumulate;
    k.bias = mm->bias != NULL;
    k.aux = mm->aux && mm->epilogue != MM_PLAIN;
    k.colsum = mm->a_colsum != NULL;
    k.align_a = alignment(mm->a);
    k.align_b = alignment(mm->b);
    k.align_c = alignment(mm->c);
    if (k.bias && (alignment(mm->bias) < 16 || alignment(mm->bias16) < 16))
        k.bias = 2;
    if (k.aux && alignment(mm->aux) < 16)
        k.aux = 2;
    return k;
}

static bool rounds_bias(enum way way)
{
    return way == WAY_ROUND_BIAS || way == WAY_NO_SUM_ROUND_BIAS;
}

static bool sums_fused(const struct key *k, enum way way)
{
    return k->colsum && (way == WAY_FUSED || way == WAY_ROUND_BIAS);
}

/* Can this way be said to cuBLASLt at all? */
static bool applies(const struct key *k, enum way way)
{
    if (way == WAY_OWN)
        return true;
    if (k->k == 0)
        return false;
    if (way == WAY_WIDE)
        return true;
    if (k->dt == DT_F32 && k->c_dt == DT_BF16)
        return false;
    /* Its tanh may be the card's, which has 11 bits: enough for a result in bf16. */
    if (k->epilogue != MM_PLAIN && k->c_dt != DT_BF16)
        return false;
    if (k->aux == 2 || (k->aux && k->ldc % 8) || (k->epilogue == MM_DGELU && k->bias))
        return false;
    if (rounds_bias(way) ? !k->bias || k->c_dt != DT_BF16 : k->bias == 2)
        return false;
    if (sums_fused(k, way))
        return k->epilogue == MM_PLAIN && !k->bias;
    return k->colsum || way == WAY_FUSED || way == WAY_ROUND_BIAS;
}

static cublasLtEpilogue_t lt_epilogue(const struct key *k, enum way way)
{
    if (way == WAY_WIDE)
        return CUBLASLT_EPILOGUE_DEFAULT;
    if (sums_fused(k, way))
        return CUBLASLT_EPILOGUE_BGRADB;
    if (k->epilogue == MM_DGELU)
        return CUBLASLT_EPILOGUE_DGELU;
    if (k->epilogue == MM_GELU && k->aux)
        return k->bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
    if (k->epilogue == MM_GELU)
        return k->bias ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU;
    return k->bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
}

static cudaDataType_t lt_type(int dt)
{
    return dt == DT_BF16 ? CUDA_R_16BF : CUDA_R_32F;
}

/* The pointers that the descriptor carries, for this call. */
static bool set_pointers(const struct lt *lt, struct plan *p, const struct matmul *mm,
                         const void *bias, const void *colsum)
{
    const void *vector = sums_fused(&p->key, p->way) ? colsum : bias, *aux = mm->aux;
    bool ok = true;
    if (p->way == WAY_WIDE)
        return true;
    if (vector)
        ok = lt->api.desc_set(p->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &vector, sizeof vector) ==
             CUBLAS_STATUS_SUCCESS;
    if (p->key.aux && ok)
        ok = lt->api.desc_set(p->desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &aux,
                              sizeof aux) == CUBLAS_STATUS_SUCCESS;
    return ok;
}

static bool describe(const struct lt *lt, struct plan *p)
{
    const struct key *k = &p->key;
    const bool tn = k->layout == MM_TN, nt = k->layout == MM_NT, wide = p->way == WAY_WIDE;
    const cublasOperation_t op_first = nt ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t op_second = tn ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasLtEpilogue_t epilogue = lt_epilogue(k, p->way);
    const cudaDataType_t in = lt_type(k->dt), out = wide ? CUDA_R_32F : lt_type(k->c_dt);
    const int32_t bias_type = rounds_bias(p->way) ? CUDA_R_16BF : CUDA_R_32F;
    const int64_t ldc = wide ? k->n : k->ldc;
    cublasStatus_t s = lt->api.desc_create(&p->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F);
#define SET(attribute, value)                                                                      \
    if (s == CUBLAS_STATUS_SUCCESS)                                                                \
    s = lt->api.desc_set(p->desc, attribute, &(value), sizeof(value))
    SET(CUBLASLT_MATMUL_DESC_TRANSA, op_first);
    SET(CUBLASLT_MATMUL_DESC_TRANSB, op_second);
    SET(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
    if (!wide && (k->bias || sums_fused(k, p->way)))
        SET(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, bias_type);
    if (!wide && k->aux)
        SET(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, k->ldc);
#undef SET
    if (s == CUBLAS_STATUS_SUCCESS)
        s = nt ? lt->api.layout_create(&p->first, in, (uint64_t)k->k, (uint64_t)k->n, k->ldb)
               : lt->api.layout_create(&p->first, in, (uint64_t)k->n, (uint64_t)k->k, k->ldb);
    if (s == CUBLAS_STATUS_SUCCESS)
        s = tn ? lt->api.layout_create(&p->second, in, (uint64_t)k->m, (uint64_t)k->k, k->lda)
               : lt->api.layout_create(&p->second, in, (uint64_t)k->k, (uint64_t)k->m, k->lda);
    if (s == CUBLAS_STATUS_SUCCESS)
        s = lt->api.layout_create(&p->out, out, (uint64_t)k->n, (uint64_t)k->m, ldc);
    return s == CUBLAS_STATUS_SUCCESS;
}

static bool choose(const struct lt *lt, struct plan *p)
{
    const struct key *k = &p->key;
    const size_t work = WORK_BYTES;
    const uint32_t first = (uint32_t)k->align_b, second = (uint32_t)k->align_a;
    const uint32_t out = p->way == WAY_WIDE ? ALIGN : (uint32_t)k->align_c;
    /* Where k is cut, its parts are added up in f32 and rounded once. */
    const bool narrow = p->way != WAY_WIDE && k->c_dt == DT_BF16;
    const uint32_t sums =
        narrow ? CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE : CUBLASLT_REDUCTION_SCHEME_MASK;
    cublasLtMatmulPreference_t pref;
    cublasLtMatmulHeuristicResult_t results[TRIES];
    int found = 0;
    cublasStatus_t s = lt->api.pref_create(&pref);
    if (s != CUBLAS_STATUS_SUCCESS)
        return false;
    memset(results, 0, sizeof results);
#define SET(attribute, value)                                                                      \
    if (s == CUBLAS_STATUS_SUCCESS)                                                                \
    s = lt->api.pref_set(pref, attribute, &(value), sizeof(value))
    SET(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, work);
    SET(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, sums);
    SET(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, first);
    SET(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, second);
    SET(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, out);
    SET(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, out);
#undef SET
    if (s == CUBLAS_STATUS_SUCCESS)
        s = lt->api.heuristic(lt->handle, p->desc, p->first, p->second, p->out, p->out, pref,
                              lt->tries, results, &found);
    lt->api.pref_destroy(pref);
    p->algo_count = 0;
    for (int i = 0; s == CUBLAS_STATUS_SUCCESS && i < found; i++)
        if (results[i].state == CUBLAS_STATUS_SUCCESS)
            p->algos[p->algo_count++] = results[i].algo;
    return p->algo_count > 0;
}

/* Settles on the first way from `way` on that cuBLASLt takes. */
static void decide(struct lt *lt, struct plan *p, enum way way)
{
    /* The addresses tell cuBLASLt what alignment to count on: 16 bytes and no more. */
    static char place[32] __attribute__((aligned(32)));
    const struct matmul some = {.aux = place + 16};
    for (;; way++) {
        plan_drop(lt, p);
        p->way = way;
        if (way == WAY_OWN)
            return;
        if (applies(&p->key, way) && describe(lt, p) &&
            set_pointers(lt, p, &some, place + 16, place + 16) && choose(lt, p))
            return;
    }
}

/* NULL: it is new, and none is to be made. */
static struct plan *find_plan(struct lt *lt, const struct matmul *mm, bool make)
{
    const struct key key = make_key(mm);
    const unsigned char *bytes = (const unsigned char *)&key;
    uint64_t hash = 0xcbf29ce484222325u;
    for (size_t i = 0; i < sizeof key; i++)
        hash = (hash ^ bytes[i]) * 0x100000001b3u;
    hash ^= hash >> 32;
    struct plan *p = &lt->plans[hash % PLANS];
    for (unsigned i = 0; i < PROBES; i++) {
        struct plan *at = &lt->plans[(hash + i) % PLANS];
        if (memcmp(&at->key, &key, sizeof key) == 0)
            return at;
        if (at->key.m == 0) {
            p = at;
            break;
        }
    }
    if (!make)
        return NULL;
    p->key = key;
    decide(lt, p, WAY_FUSED);
    return p;
}

/* Working memory of one product. */
struct room {
    char *wide;   /* (m,n) f32 */
    char *bias;   /* (n) bf16 */
    char *colsum; /* (m) f32 */
    char *trial;  /* (m,n) f32, while algorithms are timed that would add to C */
};

/* Memory to time into, for what adds to C. */
static size_t trial_bytes(const struct plan *p)
{
    return p->key.accumulate && p->way != WAY_WIDE ? (size_t)(p->key.m * p->key.ldc) * 4 : 0;
}

/* Algorithms wait to be timed, nothing is being recorded, and it takes little memory. */
static bool timing(const struct plan *p, const struct stream *s)
{
    return p->way != WAY_OWN && p->algo_count > 1 && !s->st->recording &&
           trial_bytes(p) <= TRIAL_BYTES;
}

/* May the product write its sums where they belong? */
static bool sums_in_place(const struct matmul *mm)
{
    return mm->a_colsum_zero && alignment(mm->a_colsum) >= 16;
}

static int get_room(const struct plan *p, const struct matmul *mm, struct stream *s, struct room *r)
{
    const struct key *k = &p->key;
    const size_t pad = ALIGN - 1, mask = ~pad;
    const size_t wide = p->way >= WAY_WIDE ? ((size_t)(k->m * k->n) * 4 + pad) & mask : 0;
    const size_t bias = rounds_bias(p->way) && !mm->bias16 ? ((size_t)k->n * 2 + pad) & mask : 0;
    const size_t colsum = sums_fused(k, p->way) && !sums_in_place(mm) ? (size_t)k->m * 4 : 0;
    const size_t trial = timing(p, s) ? trial_bytes(p) : 0;
    const size_t sum = wide + bias + ((colsum + pad) & mask);
    void *base = NULL;
    int rc = sum + trial ? cuda_scratch(s, sum + trial, &base) : 0;
    if (rc == 0 && !s->lt_work && p->way != WAY_OWN &&
        cudaMalloc(&s->lt_work, WORK_BYTES) != cudaSuccess) {
        (void)cudaGetLastError(); /* running out is no lasting error */
        s->lt_work = NULL;
        rc = -ENOMEM;
    }
    r->wide = base;
    r->bias = r->wide ? r->wide + wide : NULL;
    r->colsum = r->bias ? r->bias + bias : NULL;
    r->trial = trial ? (char *)base + sum : NULL;
    return rc;
}

static cublasStatus_t run_lt(struct lt *lt, const struct plan *p, int algo, const struct matmul *mm,
                             void *out, struct stream *s)
{
    const float one = 1, beta = p->way != WAY_WIDE && mm->accumulate ? 1 : 0;
    return lt->api.matmul(lt->handle, p->desc, &one, mm->b, p->first, mm->a, p->second, &beta, out,
                          p->out, out, p->out, &p->algos[algo], s->lt_work, WORK_BYTES, s->handle);
}

/* Milliseconds of some runs; infinite when the algorithm, or the clock, is refused. */
static float time_algo(struct lt *lt, const struct plan *p, int algo, const struct matmul *mm,
                       void *out, cudaEvent_t clock[2], struct stream *s)
{
    float ms = INFINITY;
    cublasStatus_t status = run_lt(lt, p, algo, mm, out, s); /* loads its code */
    cudaError_t e = cudaEventRecord(clock[0], s->handle);
    for (int i = 0; i < TIMED && status == CUBLAS_STATUS_SUCCESS; i++)
        status = run_lt(lt, p, algo, mm, out, s);
    if (e == cudaSuccess)
        e = cudaEventRecord(clock[1], s->handle);
    if (e == cudaSuccess)
        e = cudaEventSynchronize(clock[1]);
    if (e == cudaSuccess)
        e = cudaEventElapsedTime(&ms, clock[0], clock[1]);
    return e == cudaSuccess && status == CUBLAS_STATUS_SUCCESS ? ms : INFINITY;
}

/* Settles on the fastest algorithm for this product.  What it writes is written again. */
static void tune(struct lt *lt, struct plan *p, const struct matmul *mm, const struct room *r,
                 struct stream *s)
{
    cudaEvent_t clock[2] = {NULL, NULL};
    void *out = r->trial ? r->trial : p->way == WAY_WIDE ? r->wide : mm->c;
    float best = INFINITY;
    int chosen = 0;
    bool ok = cudaEventCreateWithFlags(&clock[0], cudaEventDefault) == cudaSuccess &&
              cudaEventCreateWithFlags(&clock[1], cudaEventDefault) == cudaSuccess;
    for (int i = 0; ok && i < p->algo_count; i++) {
        float ms = time_algo(lt, p, i, mm, out, clock, s);
        chosen = ms < best ? i : chosen;
        best = ms < best ? ms : best;
    }
    for (int i = 0; i < 2; i++)
        if (clock[i])
            cudaEventDestroy(clock[i]);
    (void)cudaGetLastError(); /* of an algorithm that could not run */
    p->algos[0] = p->algos[chosen];
    p->algo_count = 1;
}

/* The product, its algorithm settled when that can be done. */
static cublasStatus_t run_tuned(struct lt *lt, struct plan *p, const struct matmul *mm,
                                const struct room *r, struct stream *s)
{
    const void *rounded = mm->bias16 ? (const void *)mm->bias16 : r->bias;
    const void *bias = rounds_bias(p->way) ? rounded : mm->bias;
    if (!set_pointers(lt, p, mm, bias, sums_in_place(mm) ? (void *)mm->a_colsum : r->colsum))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (timing(p, s))
        tune(lt, p, mm, r, s);
    return run_lt(lt, p, 0, mm, p->way == WAY_WIDE ? r->wide : mm->c, s);
}

static bool declined(cublasStatus_t status)
{
    return status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE ||
           status == CUBLAS_STATUS_ARCH_MISMATCH;
}

/* The product on the way that the plan says, and the next ones if that is declined. */
static int run_plan(struct device *dev, struct lt *lt, struct plan *p, const struct matmul *mm,
                    struct room *r, struct stream *s)
{
    for (;;) {
        int rc = get_room(p, mm, s, r);
        if (rc == 0 && rounds_bias(p->way) && !mm->bias16)
            rc = cuda_cast(dev, r->bias, DT_BF16, mm->bias, DT_F32, mm->n, s);
        if (rc < 0)
            return rc;
        if (p->way == WAY_OWN)
            return cuda_gemm((float *)r->wide, mm, s);
        cublasStatus_t status = run_tuned(lt, p, mm, r, s);
        if (status == CUBLAS_STATUS_SUCCESS)
            return 0;
        if (!declined(status))
            return cuda_check(s->st, cudaGetLastError()) < 0 ? -ERR_DEVICE
                                                             : cuda_check(s->st, cudaErrorUnknown);
        if (s->st->recording)
            return cuda_check(s->st, cudaErrorStreamCaptureUnsupported);
        decide(lt, p, p->way + 1);
    }
}

int cuda_matmul(struct device *dev, const struct matmul *mm, struct stream *s)
{
    struct lt *lt = s->st->lt;
    struct room r = {NULL, NULL, NULL, NULL};
    bool fused = false;
    int rc = 0;
    if (mm->m && mm->n) {
        struct plan *p = find_plan(lt, mm, !s->st->recording);
        if (!p)
            return cuda_check(s->st, cudaErrorStreamCaptureUnsupported);
        rc = run_plan(dev, lt, p, mm, &r, s);
        fused = sums_fused(&p->key, p->way);
        if (rc == 0 && p->way >= WAY_WIDE)
            rc = cuda_epilogue(mm, r.wide, mm->n, DT_F32, s);
    }
    if (rc < 0 || !mm->a_colsum)
        return rc;
    if (fused && sums_in_place(mm))
        return 0;
    if (fused)
        return cuda_axpy(dev, mm->a_colsum, 1, (const float *)r.colsum, mm->m, s);
    return cuda_column_sums(mm->a_colsum, mm->a, mm->k, mm->m, mm->lda ? mm->lda : mm->m, mm->dt,
                            !mm->a_colsum_zero, s);
}
