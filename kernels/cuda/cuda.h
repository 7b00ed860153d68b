/* The inside of the CUDA backend; not for other layers.
 *
 *   device.c     opening, memory, streams, graphs; the table
 *   state.c      errors, working memory, copies
 *   lib.c        libraries opened on first use
 *   matmul.c     products through cuBLASLt
 *   ways.c       the fastest way found for each product, on disk
 *   dnn*.c       cuDNN: opening it, graphs, plans by shape
 *   sdpa*.c, conv_*.c   attention and convolution by cuDNN; their graphs
 *   *.cu         our kernels; each entry has the signature of its place in the table
 *
 * Entries below the table may assume valid arguments, the device current on this thread
 * and a stream that is not NULL.
 *
 * Errors.  A launch that the runtime refuses makes the operation return -ERR_DEVICE.  An
 * error of work already started shows at the next sync or copy; it is sticky, as CUDA's
 * are: every later operation of the device returns -ERR_DEVICE until the process ends.
 * A lack of memory is not: the operation returns -ENOMEM and may be tried again.  A launch may
 * lack it, too, since the driver loads a kernel's code when it is first launched.
 * An illegal value in device memory (an id beyond its table) changes nothing, but sets `fault`,
 * which sync returns as -EINVAL. */
#ifndef KERNELS_CUDA_CUDA_H
#define KERNELS_CUDA_CUDA_H

#include <cuda_runtime_api.h>

#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

struct lt;
struct dnn;

/* Pinned memory through which pageable copies go. */
enum { CUDA_STAGE_BYTES = 4 << 20, CUDA_STAGES = 2 };

/* An illegal value that a kernel found in device memory. */
enum cuda_fault {
    CUDA_FAULT_NONE,
    CUDA_FAULT_ID,       /* embed: an id outside of its table */
    CUDA_FAULT_TARGET,   /* cross entropy: a target outside of the row */
    CUDA_FAULT_POSITION, /* rope: a position outside of 0 to 2^20 */
    CUDA_FAULT_START,    /* attention: a first key that the query may not see */
    CUDA_FAULT_KLEN,     /* attention: a sample with no keys, or with too many */
};

struct stream {
    cudaStream_t handle;
    cudaEvent_t mark; /* the end of its work when another stream last followed it */
    struct cuda_state *st;

    /* Working memory of the operations on this stream, which runs them in order. */
    void *scratch;
    size_t scratch_bytes;
    void *lt_work; /* cuBLASLt's, made with the first product */
};

struct cuda_state {
    int index;
    int multiprocessors;
    int capability;     /* 90: 9.0 */
    struct stream main; /* the stream named NULL */
    struct lt *lt;
    struct dnn *dnn; /* made with the first operation that cuDNN may take */
    int *fault;      /* pinned: kernels store an enum cuda_fault */
    int broken;      /* cudaError_t of the first error, 0 while all is well */

    cudaEvent_t clock[2]; /* start and end of an operation, made with the first that is profiled */

    bool recording; /* a graph is recorded; an error then ends it and is not sticky */
    int refused;    /* cudaError_t of the first such error */

    /* Pinned staging of copies from and to pageable memory, made with the first one. */
    char *stage[CUDA_STAGES];
    cudaEvent_t stage_free[CUDA_STAGES];
    int stage_next;
};

int cuda_device_open(int index, struct device **ret_dev, struct err *err);
void cuda_device_close(struct device *dev);

/* The number of devices that the driver shows; if it is 0, *ret_why says what was found. */
int cuda_device_count(const char **ret_why);

/* The backend's state of a CUDA device. */
static inline struct cuda_state *cuda_state(const struct device *dev)
{
    return (struct cuda_state *)dev->impl;
}

/* Remembers an error of the runtime: 0 or -ERR_DEVICE; while a graph is recorded -EBUSY.  A lack of
 * memory is forgotten: -ENOMEM. */
int cuda_check(struct cuda_state *st, cudaError_t e);

/* What the card says of a library's failure, whose status may not tell: as cuda_check, a lack of
 * memory where little is left; 0: nothing. */
int cuda_blame(struct cuda_state *st);

/* Working memory of the operation being started, 256-byte aligned: -ENOMEM; while a graph is
 * recorded it cannot grow: -EBUSY. */
int cuda_scratch(struct stream *s, size_t bytes, void **ret);

/* The operations of the table, as cuda_matmul and so on. */
#define OP(name, params, ...)                                                                      \
    int cuda_##name(struct device *dev, OP_PARAMS params, struct stream *s);
#include "kernels/ops.inc"
OP(encode, (const struct encode *p), (p))
#undef OP
extern const struct kernel_ops cuda_ops; /* device.c */

/* matmul.c */
/* Opens cuBLASLt for the card of that name.  -ERR_DEVICE: err says what was found. */
int lt_new(const char *card, struct lt **ret, struct err *err);
void lt_free(struct lt *lt); /* accepts NULL */

/* gemm.cu: out (m,n) f32 = op(A) op(B), for products that cuBLASLt declines. */
int cuda_gemm(float *out, const struct matmul *mm, struct stream *s);

/* act.cu: finishes a product v of cuBLASLt in `c` (m,n) of ldc: adds the bias and
 * applies the epilogue.  v is f32 or already of type c_dt, in `from`. */
int cuda_epilogue(const struct matmul *mm, const void *from, int64_t from_ld, enum dtype from_dt,
                  struct stream *s);

/* attention_f32.cu: attention that tensor cores do not take. */
int cuda_attention_fwd_f32(const struct attention_fwd *p, struct stream *s);
int cuda_attention_bwd_f32(const struct attention_bwd *p, struct stream *s);

/* sums.cu: out (n) = or += sum over the rows of x (rows,n). */
int cuda_column_sums(float *out, const void *x, int64_t rows, int64_t n, int64_t ld, enum dtype dt,
                     bool accumulate, struct stream *s);

/* sums.cu, in one launch: each out (batch,n) of out_ld = or += the sums, in order, of its partials
 * (batch,parts,n), which lie densely one after the other, also those of an out that is NULL. */
enum { FINISH_MAX = 3 };
struct finish {
    float *out[FINISH_MAX];
    int count;
    int64_t out_ld;
    const float *partial;
    int64_t batch, parts, n;
    bool accumulate;
};
int cuda_finish_sums(const struct finish *f, struct stream *s);

#ifdef __cplusplus
}
#endif

#endif
