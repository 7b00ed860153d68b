/* cuBLASLt as far as kernels/cuda/matmul.c uses it, on plain memory: what the descriptors say
 * is done by loops.  SKERRY_EMULATE_LT narrows what it takes, so that each way is tried:
 * "strict" has only a bias of C's type and no sums, "plain" no epilogue, "none" nothing.  With
 * "full" no product has the memory to run, which its status does not say.  With "tune" it has three
 * algorithms, of which one is wrong, one does not run and the last, which the emulated clock likes
 * best, is right.  Who allows that parts of a sum are rounded to bf16 gets a wrong algorithm too.
 */
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <cublasLt.h>

#include "kernels/dtype.h"
#include "tests/gpu/emulate/record.h"

struct desc {
    int32_t first_op, second_op, bias_type;
    uint32_t epilogue;
    void *bias, *aux;
    int64_t aux_ld;
};

struct preference {
    uint32_t sums; /* of enum cublasLtReductionScheme_t */
};

struct layout {
    cudaDataType type;
    uint64_t rows, columns;
    int64_t ld;
};

size_t cublasLtGetVersion(void)
{
    return 130000;
}
cublasStatus_t cublasLtCreate(cublasLtHandle_t *h)
{
    *h = malloc(8);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t h)
{
    free(h);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *d, cublasComputeType_t compute,
                                        cudaDataType_t scale)
{
    struct desc *new = calloc(1, sizeof *new);
    new->bias_type = -1;
    *d = (cublasLtMatmulDesc_t) new;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d)
{
    free(d);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t opaque,
                                              cublasLtMatmulDescAttributes_t which, const void *buf,
                                              size_t bytes)
{
    struct desc *d = (struct desc *)opaque;
    struct {
        void *at;
        size_t bytes;
    } to = {NULL, 0};
    switch ((int)which) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
        to.at = &d->first_op, to.bytes = 4;
        break;
    case CUBLASLT_MATMUL_DESC_TRANSB:
        to.at = &d->second_op, to.bytes = 4;
        break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
        to.at = &d->epilogue, to.bytes = 4;
        break;
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
        to.at = &d->bias_type, to.bytes = 4;
        break;
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
        to.at = &d->bias, to.bytes = sizeof(void *);
        break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
        to.at = &d->aux, to.bytes = sizeof(void *);
        break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
        to.at = &d->aux_ld, to.bytes = 8;
        break;
    }
    if (!to.at || bytes != to.bytes)
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(to.at, buf, bytes);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *l, cudaDataType type,
                                          uint64_t rows, uint64_t columns, int64_t ld)
{
    struct layout *new = malloc(sizeof *new);
    *new = (struct layout){type, rows, columns, ld};
    *l = (cublasLtMatrixLayout_t) new;
    return ld >= (int64_t)rows ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l)
{
    free(l);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *p)
{
    struct preference *new = malloc(sizeof *new);
    new->sums = CUBLASLT_REDUCTION_SCHEME_MASK;
    *p = (cublasLtMatmulPreference_t) new;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p)
{
    free(p);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p,
                                                    cublasLtMatmulPreferenceAttributes_t which,
                                                    const void *buf, size_t bytes)
{
    if (which == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK)
        memcpy(&((struct preference *)p)->sums, buf, sizeof(uint32_t));
    return CUBLAS_STATUS_SUCCESS;
}

static enum dtype type_of(cudaDataType t)
{
    return t == CUDA_R_16BF ? DT_BF16 : DT_F32;
}

static int tuned(void)
{
    const char *mode = getenv("SKERRY_EMULATE_LT");
    return mode && strcmp(mode, "tune") == 0;
}

static int takes(const struct desc *d, const struct layout *c)
{
    const char *mode = getenv("SKERRY_EMULATE_LT");
    if (!mode || tuned())
        return 1;
    if (strcmp(mode, "strict") == 0)
        return d->epilogue != CUBLASLT_EPILOGUE_BGRADB &&
               (d->bias_type == -1 || d->bias_type == (int32_t)c->type);
    return strcmp(mode, "full") == 0 ||
           (strcmp(mode, "plain") == 0 && d->epilogue == CUBLASLT_EPILOGUE_DEFAULT);
}

/* Both are there where the program shows its symbols, which one that records graphs must. */
#pragma weak emu_do
#pragma weak cudaStreamIsCapturing

static bool recording(void)
{
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    return cudaStreamIsCapturing && cudaStreamIsCapturing(NULL, &status) == cudaSuccess &&
           status == cudaStreamCaptureStatusActive;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t h, cublasLtMatmulDesc_t d,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t out,
                                              cublasLtMatmulPreference_t pref, int wanted,
                                              cublasLtMatmulHeuristicResult_t results[], int *found)
{
    const int algorithms = tuned() ? 3 : 1;
    const uint32_t rounded =
        CUBLASLT_REDUCTION_SCHEME_INPLACE | CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE;
    const bool wrong = type_of(((const struct layout *)out)->type) == DT_BF16 &&
                       ((const struct preference *)pref)->sums & rounded;
    *found = takes((const struct desc *)d, (const struct layout *)out) ? algorithms : 0;
    if (recording())
        return CUBLAS_STATUS_INTERNAL_ERROR; /* as that of CUDA 13.3 */
    *found = *found < wanted ? *found : wanted;
    for (int i = 0; i < *found; i++) {
        results[i].state = CUBLAS_STATUS_SUCCESS;
        results[i].algo.data[0] = (uint64_t)i;
        results[i].algo.data[1] = wrong;
    }
    return *found ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

static float element(const void *p, const struct layout *l, int transposed, uint64_t i, uint64_t j)
{
    uint64_t row = transposed ? j : i, column = transposed ? i : j;
    if (row >= l->rows || column >= l->columns)
        abort();
    return dtype_get(p, type_of(l->type), column * (uint64_t)l->ld + row);
}

/* As wrong as the card's own instruction may be. */
static float tanh_of_card(float x)
{
    float t = tanhf(x);
    return fabsf(t) < 1.0f - 0x1p-10f ? t * (1.0f - 0x1p-11f) : t;
}

static float gelu(float x)
{
    return 0.5f * x * (1.0f + tanh_of_card(0.7978845608028654f * (x + 0.044715f * x * x * x)));
}

static float gelu_grad(float x)
{
    float t = tanh_of_card(0.7978845608028654f * (x + 0.044715f * x * x * x));
    return 0.5f * (1.0f + t) +
           0.5f * x * (1.0f - t * t) * 0.7978845608028654f * (1.0f + 0.134145f * x * x);
}

static bool uses_bias(uint32_t epilogue)
{
    return epilogue == CUBLASLT_EPILOGUE_BIAS || epilogue == CUBLASLT_EPILOGUE_GELU_BIAS ||
           epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS || epilogue == CUBLASLT_EPILOGUE_BGRADB;
}

static float finish(const struct desc *d, const struct layout *lo, uint64_t i, uint64_t j, float v)
{
    enum dtype bias_dt = type_of(d->bias_type == -1 ? lo->type : (cudaDataType)d->bias_type);
    uint32_t e = d->epilogue;
    uint64_t at = j * (uint64_t)d->aux_ld + i;
    if (uses_bias(e) && e != CUBLASLT_EPILOGUE_BGRADB)
        v += dtype_get(d->bias, bias_dt, i);
    if (e == CUBLASLT_EPILOGUE_GELU_AUX || e == CUBLASLT_EPILOGUE_GELU_AUX_BIAS)
        dtype_set(d->aux, type_of(lo->type), at, v);
    if (e & CUBLASLT_EPILOGUE_GELU)
        v = gelu(v);
    if (e == CUBLASLT_EPILOGUE_DGELU)
        v *= gelu_grad(dtype_get(d->aux, type_of(lo->type), at));
    return v;
}

/* One product with all that it reads of its descriptors. */
struct product {
    struct desc d;
    struct layout first, second, out_layout;
    float alpha, beta;
    const void *a, *b, *c;
    void *out;
};

static void do_product(void *arg)
{
    const struct product *w = arg;
    const struct desc *d = &w->d;
    const struct layout *first = &w->first, *second = &w->second, *lo = &w->out_layout;
    int ta = d->first_op == CUBLAS_OP_T, tb = d->second_op == CUBLAS_OP_T;
    uint64_t k = ta ? first->rows : first->columns;
    for (uint64_t j = 0; j < lo->columns; j++) {
        float sum = 0;
        for (uint64_t i = 0; i < lo->rows; i++) {
            uint64_t at = j * (uint64_t)lo->ld + i;
            float v = 0;
            for (uint64_t p = 0; p < k; p++)
                v += element(w->a, first, ta, i, p) * element(w->b, second, tb, p, j);
            v *= w->alpha;
            if (w->beta != 0)
                v += w->beta * dtype_get(w->c, type_of(lo->type), at);
            dtype_set(w->out, type_of(lo->type), at, finish(d, lo, i, j, v));
        }
        for (uint64_t p = 0; d->epilogue == CUBLASLT_EPILOGUE_BGRADB && p < k; p++)
            sum += element(w->b, second, tb, p, j);
        if (d->epilogue == CUBLASLT_EPILOGUE_BGRADB)
            ((float *)d->bias)[j] = sum;
    }
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t h, cublasLtMatmulDesc_t opaque, const void *alpha,
                              const void *a, cublasLtMatrixLayout_t la, const void *b,
                              cublasLtMatrixLayout_t lb, const void *beta, const void *c,
                              cublasLtMatrixLayout_t lc, void *out, cublasLtMatrixLayout_t l,
                              const cublasLtMatmulAlgo_t *algo, void *work, size_t work_bytes,
                              cudaStream_t s)
{
    const char *mode = getenv("SKERRY_EMULATE_LT");
    if (tuned() && algo->data[0] == 1)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (mode && strcmp(mode, "full") == 0)
        return CUBLAS_STATUS_EXECUTION_FAILED;
    const struct product w = {
        .d = *(const struct desc *)opaque,
        .first = *(const struct layout *)la,
        .second = *(const struct layout *)lb,
        .out_layout = *(const struct layout *)l,
        .alpha = *(const float *)alpha *
                 ((tuned() && algo->data[0] == 0) || algo->data[1] ? 2.0f : 1.0f),
        .beta = *(const float *)beta,
        .a = a,
        .b = b,
        .c = c,
        .out = out,
    };
    const uint64_t k = w.d.first_op == CUBLAS_OP_T ? w.first.rows : w.first.columns;
    if (w.d.bias && !uses_bias(w.d.epilogue)) /* as that of CUDA 13.0 does on a card */
        return CUBLAS_STATUS_INVALID_VALUE;
    if (!work || k != (w.d.second_op == CUBLAS_OP_T ? w.second.columns : w.second.rows))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (emu_do)
        emu_do(s, do_product, &w, sizeof w);
    else
        do_product((void *)&w);
    return CUBLAS_STATUS_SUCCESS;
}
