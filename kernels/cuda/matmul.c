/* Products through cuBLASLt.
 *
 * It counts columns where we count rows, so it is asked for C' = op(B)' op(A)': its first
 * matrix is our B, its bias runs along our n, and its sum over the columns of its second
 * matrix is our a_colsum.
 *
 * A plan is the decision for a shape: the way, the algorithm and the descriptors.  For a new
 * shape all ways are timed, each with the library's best guesses, and the fastest is kept, in
 * this program and on disk (ways.h).  SKERRY_TUNE=0: the first guess of the first way that is
 * accepted; SKERRY_TUNE=say: the timings go to stderr.  No plan is made while a graph is
 * recorded, since cuBLASLt of CUDA 13.3 has no guesses then: a new shape cannot be
 * recorded. */
#include <cublasLt.h>

#include "common/base/base.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/lib/lib.h"
#include "kernels/cuda/ways.h"

enum {
    PLANS = 2048,
    PROBES = 16, /* places that a shape may have */
    WORK_BYTES = 32 << 20,
    ALIGN = 256,
    TRIES = 8,      /* algorithms that are tried for a way, best guesses first */
    TIMED_MAX = 64, /* runs of each that are timed */
    TRIAL_BYTES = 64 << 20,
};

#define TIMED_MS 1.0f /* that they take at least */

/* A product has all of these that apply to it; WAY_WIDE and WAY_OWN where no other does. */
enum way {
    WAY_FUSED,      /* everything in the product */
    WAY_ROUND_BIAS, /* the same, with the bias rounded to the bf16 of C */
    WAY_NO_SUM,     /* a_colsum apart */
    WAY_NO_SUM_ROUND_BIAS,
    WAY_APART, /* the product alone, and a kernel for the rest where it lies */
    WAY_WIDE,  /* the product alone, to f32, and a kernel for the rest */
    WAY_OWN,   /* our own product and the same kernel */
};

static const char *const way_names[] = {
    "fused", "fused, rounded bias", "sums apart", "sums apart, rounded bias", "apart", "wide",
    "own",
};

struct key {
    int64_t m, n, k, lda, ldb, ldc;
    int layout, epilogue, dt, c_dt, accumulate;
    int bias, aux, colsum;                    /* given? */
    int align_a, align_b, align_c, align_aux; /* bytes, up to 256 */
};

struct plan {
    struct key key;
    bool timed;
    enum way way;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t first, second, out; /* our B, A and C */
    cublasLtMatmulAlgo_t algos[TRIES];         /* the first is used; the others may be timed */
    int algo_count;
};

struct api {
    __typeof__(cublasLtGetVersion) *version;
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
    "cublasLtGetVersion",
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
    bool says; /* what it timed, SKERRY_TUNE=say */
    struct ways *ways;
    struct plan plans[PLANS];
};

int lt_new(const char *card, struct lt **ret, struct err *err)
{
    static const struct lib lib = {"cuBLASLt of CUDA 12 or 13", api_names, api_symbols};
    struct lt *lt = calloc(1, sizeof *lt);
    void *found[API_SYMBOLS];
    _Static_assert(sizeof found == sizeof lt->api, "one name for each entry");
    _Static_assert(sizeof(struct key) <= WAYS_KEY && sizeof(cublasLtMatmulAlgo_t) <= WAYS_ALGO,
                   "an entry on disk holds them");
    if (!lt)
        return err_set(err, -ENOMEM, "no memory for cuBLASLt");
    const char *tune = getenv("SKERRY_TUNE");
    lt->tries = tune && *tune == '0' ? 1 : TRIES;
    lt->says = tune && strcmp(tune, "say") == 0;
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
    int driver = 0;
    if (lt->tries > 1 && cudaDriverGetVersion(&driver) == cudaSuccess)
        lt->ways = ways_open(card, driver, lt->api.version());
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
    ways_close(lt->ways);
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
    k.align_aux = !k.aux || alignment(mm->aux) == ALIGN ? ALIGN : 16;
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

/* True if this way may fit the product; cuBLASLt may still refuse it. */
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
    if (way == WAY_APART)
        return !k->accumulate && (k->bias || k->epilogue != MM_PLAIN);
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
    if (way >= WAY_APART)
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

/* The pointers that the descriptor carries, for this call.  cuBLASLt refuses a product that has one
 * which its epilogue does not use. */
static bool set_pointers(const struct lt *lt, struct plan *p, const struct matmul *mm,
                         const void *bias, const void *colsum)
{
    const bool sums = sums_fused(&p->key, p->way);
    const void *vector = sums ? colsum : p->key.bias ? bias : NULL, *aux = mm->aux;
    bool ok = true;
    if (p->way >= WAY_APART)
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
    if (p->way < WAY_APART && (k->bias || sums_fused(k, p->way)))
        SET(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, bias_type);
    if (p->way < WAY_APART && k->aux)
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

/* The way with its descriptors and algorithms, if it applies and cuBLASLt takes it. */
static bool make_way(struct lt *lt, struct plan *p, enum way way)
{
    /* The addresses tell cuBLASLt what alignment to count on. */
    static char place[2 * ALIGN] __attribute__((aligned(2 * ALIGN)));
    const struct matmul some = {.aux = place + p->key.align_aux};
    plan_drop(lt, p);
    p->way = way;
    p->algo_count = 0;
    if (!applies(&p->key, way))
        return false;
    if (way == WAY_OWN)
        return true;
    return describe(lt, p) && set_pointers(lt, p, &some, place + 16, place + 16) && choose(lt, p);
}

/* Settles on the first way from `way` on that is taken. */
static void decide(struct lt *lt, struct plan *p, enum way way)
{
    while (!make_way(lt, p, way))
        way++;
}

/* Settles on the way that an earlier process found to be fastest, if that is on disk. */
static bool recall(struct lt *lt, struct plan *p)
{
    const struct ways_entry *e = ways_find(lt->ways, &p->key, sizeof p->key);
    if (!e || e->way < 0 || e->way > WAY_OWN || !make_way(lt, p, (enum way)e->way))
        return false;
    memcpy(&p->algos[0], e->algo, sizeof p->algos[0]);
    return true;
}

/* The plan of a product; NULL: there is none, and none may be made. */
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
    p->timed = lt->tries == 1 || recall(lt, p);
    if (lt->tries == 1)
        decide(lt, p, WAY_FUSED);
    return p;
}

/* Working memory of one product. */
struct room {
    char *wide;   /* (m,n) f32 */
    char *bias;   /* (n) bf16 */
    char *colsum; /* (m) f32 */
};

/* True if the product may write its sums to their place. */
static bool sums_in_place(const struct matmul *mm)
{
    return mm->a_colsum_zero && alignment(mm->a_colsum) >= 16;
}

static size_t padded(size_t bytes)
{
    return (bytes + ALIGN - 1) & ~(size_t)(ALIGN - 1);
}

static int get_room(const struct plan *p, const struct matmul *mm, struct stream *s, struct room *r)
{
    const struct key *k = &p->key;
    const bool rounds = rounds_bias(p->way) && !mm->bias16;
    const size_t wide = p->way >= WAY_WIDE ? padded((size_t)(k->m * k->n) * 4) : 0;
    const size_t bias = rounds ? padded((size_t)k->n * 2) : 0;
    const size_t colsum = sums_fused(k, p->way) && !sums_in_place(mm) ? (size_t)k->m * 4 : 0;
    void *base = NULL;
    int rc = wide + bias + colsum ? cuda_scratch(s, wide + bias + colsum, &base) : 0;
    if (rc == 0 && !s->lt_work && p->way != WAY_OWN &&
        cudaMalloc(&s->lt_work, WORK_BYTES) != cudaSuccess) {
        (void)cudaGetLastError(); /* running out is no lasting error */
        s->lt_work = NULL;
        rc = -ENOMEM;
    }
    r->wide = base;
    r->bias = base ? r->wide + wide : NULL;
    r->colsum = base ? r->bias + bias : NULL;
    return rc;
}

/* The product alone. */
static cublasStatus_t multiply(struct lt *lt, struct plan *p, int algo, const struct matmul *mm,
                               const struct room *r, struct stream *s)
{
    const float one = 1, beta = p->way < WAY_WIDE && mm->accumulate ? 1 : 0;
    const void *rounded = mm->bias16 ? (const void *)mm->bias16 : r->bias;
    const void *bias = rounds_bias(p->way) ? rounded : mm->bias;
    void *out = p->way == WAY_WIDE ? (void *)r->wide : mm->c;
    if (!set_pointers(lt, p, mm, bias, sums_in_place(mm) ? (void *)mm->a_colsum : r->colsum))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    return lt->api.matmul(lt->handle, p->desc, &one, mm->b, p->first, mm->a, p->second, &beta, out,
                          p->out, out, p->out, &p->algos[algo], s->lt_work, WORK_BYTES, s->handle);
}

/* Does the work that the product leaves: bias and epilogue, and the sums over the columns. */
static int finish(struct device *dev, const struct plan *p, const struct matmul *mm,
                  const struct room *r, struct stream *s)
{
    const struct key *k = &p->key;
    int rc = 0;
    if (p->way == WAY_APART)
        rc = cuda_epilogue(mm, mm->c, k->ldc, mm->c_dt, s);
    else if (p->way >= WAY_WIDE)
        rc = cuda_epilogue(mm, r->wide, k->n, DT_F32, s);
    if (rc < 0 || !k->colsum)
        return rc;
    if (!sums_fused(k, p->way))
        return cuda_column_sums(mm->a_colsum, mm->a, k->k, k->m, k->lda, mm->dt, !mm->a_colsum_zero,
                                s);
    return sums_in_place(mm) ? 0
                             : cuda_axpy(dev, mm->a_colsum, 1, (const float *)r->colsum, k->m, s);
}

/* Refused for what it is, by one that runs others. */
static bool declined(cublasStatus_t status)
{
    return status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE ||
           status == CUBLAS_STATUS_ARCH_MISMATCH;
}

/* All of it on the plan's way.  *status says what cuBLASLt said of its part, which for a lack of
 * memory may be anything. */
static int run_way(struct device *dev, struct lt *lt, struct plan *p, int algo,
                   const struct matmul *mm, struct stream *s, cublasStatus_t *status)
{
    struct room r;
    int rc = get_room(p, mm, s, &r);
    *status = CUBLAS_STATUS_SUCCESS;
    if (rc == 0 && rounds_bias(p->way) && !mm->bias16)
        rc = cuda_cast(dev, r.bias, DT_BF16, mm->bias, DT_F32, mm->n, s);
    if (rc < 0)
        return rc;
    if (p->way == WAY_OWN)
        rc = cuda_gemm((float *)r.wide, mm, s);
    else
        *status = multiply(lt, p, algo, mm, &r, s);
    if (*status == CUBLAS_STATUS_ALLOC_FAILED)
        rc = cuda_check(s->st, cudaErrorMemoryAllocation);
    else if (*status != CUBLAS_STATUS_SUCCESS && !declined(*status))
        rc = cuda_blame(s->st);
    return rc == 0 && *status == CUBLAS_STATUS_SUCCESS ? finish(dev, p, mm, &r, s) : rc;
}

/* ---- which is fastest? ---- */

/* A product that may be repeated: additions to C or to the sums go to memory for trials. */
struct trial {
    struct matmul mm;
    void *memory;
    cudaEvent_t clock[2];
    int rc; /* the last failure that is not an algorithm's, such as a lack of memory */
};

/* False: there is no room for one. */
static bool trial_new(struct trial *t, const struct plan *p, const struct matmul *mm)
{
    const size_t c = mm->accumulate ? padded((size_t)(p->key.m * p->key.ldc) * 4) : 0;
    const size_t sums = mm->a_colsum && !mm->a_colsum_zero ? (size_t)p->key.m * 4 : 0;
    *t = (struct trial){.mm = *mm};
    bool ok = c <= TRIAL_BYTES;
    if (ok && c + sums)
        ok = cudaMalloc(&t->memory, c + sums) == cudaSuccess;
    for (int i = 0; i < 2 && ok; i++)
        ok = cudaEventCreateWithFlags(&t->clock[i], cudaEventDefault) == cudaSuccess;
    if (c)
        t->mm.c = t->memory;
    if (sums)
        t->mm.a_colsum = (float *)((char *)t->memory + c);
    return ok;
}

static void trial_free(struct trial *t)
{
    for (int i = 0; i < 2; i++)
        if (t->clock[i])
            cudaEventDestroy(t->clock[i]);
    cudaFree(t->memory);
    (void)cudaGetLastError(); /* of what could not be made */
}

/* Milliseconds of `runs` runs; infinite when the algorithm, or the clock, is refused. */
static float time_runs(struct device *dev, struct lt *lt, struct plan *p, int algo, struct trial *t,
                       int runs, struct stream *s)
{
    float ms = INFINITY;
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
    cudaError_t e = cudaEventRecord(t->clock[0], s->handle);
    int rc = 0;
    for (int i = 0; i < runs && rc == 0 && status == CUBLAS_STATUS_SUCCESS; i++)
        rc = run_way(dev, lt, p, algo, &t->mm, s, &status);
    t->rc = rc < 0 ? rc : t->rc;
    if (e == cudaSuccess)
        e = cudaEventRecord(t->clock[1], s->handle);
    if (e == cudaSuccess)
        e = cudaEventSynchronize(t->clock[1]);
    if (e == cudaSuccess)
        e = cudaEventElapsedTime(&ms, t->clock[0], t->clock[1]);
    return rc == 0 && e == cudaSuccess && status == CUBLAS_STATUS_SUCCESS ? ms : INFINITY;
}

/* Of one run.  The first run loads code, and two tell how many are worth timing. */
static float time_algo(struct device *dev, struct lt *lt, struct plan *p, int algo, struct trial *t,
                       float best, struct stream *s)
{
    if (isinf(time_runs(dev, lt, p, algo, t, 1, s)))
        return INFINITY;
    float ms = time_runs(dev, lt, p, algo, t, 2, s) / 2;
    if (isinf(ms) || ms > 2 * best || ms * 2 >= TIMED_MS)
        return ms;
    const float runs = TIMED_MS / ms;
    const int n = runs < TIMED_MAX ? (int)runs + 1 : (int)TIMED_MAX;
    return time_runs(dev, lt, p, algo, t, n, s) / (float)n;
}

static void say_way(const struct lt *lt, const struct plan *p, float ms, int algo)
{
    static const char *const layouts[] = {"NN", "NT", "TN"}, *const epilogues[] = {"", " gelu",
                                                                                   " dgelu"};
    const struct key *k = &p->key;
    if (lt->says)
        (void)fprintf(stderr,
                      "product %s %lldx%lldx%lld %s>%s%s%s%s%s, aligned %d %d %d: %s %.1f us "
                      "(%d of %d)\n",
                      layouts[k->layout], (long long)k->m, (long long)k->n, (long long)k->k,
                      k->dt == DT_BF16 ? "bf16" : "f32", k->c_dt == DT_BF16 ? "bf16" : "f32",
                      epilogues[k->epilogue], k->bias ? " bias" : "", k->colsum ? " sums" : "",
                      k->accumulate ? " added" : "", k->align_a, k->align_b, k->align_c,
                      way_names[p->way], 1e3 * (double)ms, algo + 1, p->algo_count);
}

/* The way is timed with each of its algorithms; the fastest comes first. */
static float time_way(struct device *dev, struct lt *lt, struct plan *p, struct trial *t,
                      float best, struct stream *s)
{
    const int n = p->way != WAY_OWN ? p->algo_count : 1;
    int chosen = 0;
    float way_best = INFINITY;
    for (int i = 0; i < n; i++) {
        float ms = time_algo(dev, lt, p, i, t, way_best < best ? way_best : best, s);
        chosen = ms < way_best ? i : chosen;
        way_best = ms < way_best ? ms : way_best;
    }
    say_way(lt, p, way_best, chosen);
    p->algos[0] = p->algos[chosen];
    return way_best;
}

/* Settles on the fastest way and algorithm; on the first that is taken where none can be timed.
 * Of ways that differ in the bias alone the first that is taken is timed.  Fails where none has the
 * memory to run: the next call asks again. */
static int tune(struct device *dev, struct lt *lt, struct plan *p, const struct matmul *mm,
                struct stream *s)
{
    struct trial t;
    cublasLtMatmulAlgo_t algo;
    enum way chosen = WAY_OWN;
    float best = INFINITY;
    bool ok = trial_new(&t, p, mm), taken = false;
    memset(&algo, 0, sizeof algo);
    for (int way = WAY_FUSED; way < WAY_OWN && ok; way++) {
        if ((rounds_bias((enum way)way) && taken) || (way == WAY_WIDE && chosen != WAY_OWN))
            continue;
        taken = make_way(lt, p, (enum way)way);
        float ms = taken ? time_way(dev, lt, p, &t, best, s) : INFINITY;
        if (ms < best) {
            best = ms;
            chosen = (enum way)way;
            algo = p->algos[0];
        }
    }
    trial_free(&t);
    if (chosen == WAY_OWN && t.rc < 0)
        return t.rc;
    p->timed = true;
    if (!ok || !make_way(lt, p, chosen)) {
        decide(lt, p, WAY_FUSED);
        return 0;
    }
    p->algos[0] = algo;
    if (chosen != WAY_OWN && t.rc == 0) /* a way that lacked memory may be faster */
        ways_add(lt->ways, &p->key, sizeof p->key, (int)chosen, &algo, sizeof algo);
    return 0;
}

/* On the way that the plan says, and the next ones if that is declined. */
static int run_plan(struct device *dev, struct lt *lt, struct plan *p, const struct matmul *mm,
                    struct stream *s)
{
    for (;;) {
        cublasStatus_t status;
        int rc = run_way(dev, lt, p, 0, mm, s, &status);
        if (rc < 0 || status == CUBLAS_STATUS_SUCCESS)
            return rc;
        if (!declined(status))
            return cuda_check(s->st, cudaErrorUnknown);
        if (s->st->recording)
            return cuda_check(s->st, cudaErrorStreamCaptureUnsupported);
        decide(lt, p, p->way + 1);
    }
}

int cuda_matmul(struct device *dev, const struct matmul *mm, struct stream *s)
{
    struct lt *lt = s->st->lt;
    if (!mm->m || !mm->n)
        return mm->a_colsum
                   ? cuda_column_sums(mm->a_colsum, mm->a, mm->k, mm->m, mm->lda ? mm->lda : mm->m,
                                      mm->dt, !mm->a_colsum_zero, s)
                   : 0;
    struct plan *p = find_plan(lt, mm, !s->st->recording);
    if (!p || (!p->timed && s->st->recording))
        return cuda_check(s->st, cudaErrorStreamCaptureUnsupported);
    int rc = p->timed ? 0 : tune(dev, lt, p, mm, s);
    return rc < 0 ? rc : run_plan(dev, lt, p, mm, s);
}
