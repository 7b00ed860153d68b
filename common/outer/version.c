#include "common/outer/version.h"

#include <fcntl.h>
#include <unistd.h>

#include "common/base/file.h"
#include "common/outer/arith.h"
#include "common/outer/fold.h"
#include "common/outer/fold_sink.h"
#include "common/outer/layout.h"
#include "common/outer/wire.h"

struct apply {
    int fd; /* of theta_v */
    const char *full_path;
    struct layout layout;
    struct wire diff; /* a delta or a contribution */
    struct file_out out;
    struct fold_sink *sink; /* of out */
    const struct arith *arith;
    void *payload;
    uint16_t *scales;
    float *theta;
};

static int apply_open(struct apply *a, const char *path, struct wire_info want, struct err *err)
{
    struct wire_info got;
    a->fd = open(a->full_path, O_RDONLY | O_CLOEXEC);
    if (a->fd < 0)
        return err_errno(err, "opening %s", a->full_path);
    int rc = layout_read(a->fd, a->full_path, &a->layout, err);
    if (rc == 0)
        rc = wire_info_read(path, &got, err);
    if (rc < 0)
        return rc;
    want.codec = got.codec;
    return wire_open(path, &want, &a->layout, &a->diff, err);
}

static int apply_alloc(struct apply *a, struct err *err)
{
    a->payload = mem_try_aligned(64, FOLD_CHUNK * sizeof(float)); /* room for the widest codec */
    a->scales = mem_try_array(FOLD_CHUNK / CODEC_BLOCK, sizeof *a->scales);
    a->theta = mem_try_aligned(64, FOLD_CHUNK * sizeof *a->theta);
    if (!a->payload || !a->scales || !a->theta)
        return err_set(err, -ENOMEM, "no memory for applying a delta");
    return 0;
}

/* Makes n elements of tensor t in q. */
static int apply_chunk(struct apply *a, size_t t, uint64_t first, size_t n, float *q,
                       struct err *err)
{
    const struct st_tensor *tensor = &a->layout.st.tensors[t];
    const enum codec codec = a->diff.at[t].codec;
    int rc = wire_read(&a->diff, t, first, n, a->payload, a->scales, err);
    if (rc < 0)
        return rc;
    if (!coding_check(codec, n, a->payload, a->scales))
        return err_set(err, -ERR_FORMAT,
                       "%s: tensor %s holds a value that is not finite or out "
                       "of range",
                       a->diff.path, tensor->name);
    coding_decode(codec, n, a->payload, a->scales, q);
    if (codec == CODEC_F32)
        return 0;
    rc = file_pread_all(a->fd, a->theta, n * sizeof(float), tensor->offset + first * sizeof(float),
                        a->full_path, err);
    if (rc < 0)
        return rc;
    (a->diff.info.kind == WIRE_DELTA ? a->arith->add : a->arith->sub)(n, a->theta, q, q);
    return 0;
}

static int apply_all(struct apply *a, struct err *err)
{
    const struct layout *l = &a->layout;
    float *slot[FOLD_SINK_FILES];
    int rc = 0;
    for (size_t t = 0; t < l->st.n_tensors; t++) {
        uint64_t count = l->st.tensors[t].count;
        for (uint64_t first = 0; rc == 0 && first < count; first += FOLD_CHUNK) {
            size_t n = count - first < FOLD_CHUNK ? (size_t)(count - first) : FOLD_CHUNK;
            rc = fold_sink_slot(a->sink, slot, err);
            if (rc == 0)
                rc = apply_chunk(a, t, first, n, slot[0], err);
            if (rc == 0)
                fold_sink_push(a->sink, n);
        }
    }
    return rc;
}

static void apply_release(struct apply *a)
{
    fold_sink_free(a->sink);
    file_out_abort(&a->out);
    wire_close(&a->diff);
    layout_release(&a->layout);
    if (a->fd >= 0)
        (void)close(a->fd); /* read only: nothing to lose */
    mem_free(a->payload);
    mem_free(a->scales);
    mem_free(a->theta);
}

/* Applies the blob at path to the full file at full_path. */
static int apply(const char *full_path, const char *path, struct wire_info want,
                 const char *out_path, const char *spare, const uint8_t sha256[HASH_BYTES],
                 uint8_t ret_sha256[HASH_BYTES], struct err *err)
{
    struct apply a = {.fd = -1,
                      .full_path = full_path,
                      .diff = {.fd = -1},
                      .out = {.fd = -1},
                      .arith = arith_best()};
    struct fold_file made = {0};
    int rc = apply_open(&a, path, want, err);
    if (rc == 0)
        rc = apply_alloc(&a, err);
    if (rc == 0)
        rc = spare ? file_out_open_again(&a.out, out_path, spare, 0600, err)
                   : file_out_open(&a.out, out_path, 0600, err);
    if (rc == 0)
        rc = fold_sink_new(&a.layout, (struct file_out *const[FOLD_SINK_FILES]){&a.out}, &a.sink,
                           err);
    if (rc == 0)
        rc = apply_all(&a, err);
    if (rc == 0)
        rc = fold_sink_finish(a.sink, (struct fold_file *const[FOLD_SINK_FILES]){&made}, err);
    if (rc == 0 && sha256 && !hash_equal(made.sha256, sha256, HASH_BYTES))
        rc = err_set(err, -ERR_HASH, "%s with %s does not give version %llu: the hash differs",
                     full_path, path, (unsigned long long)want.base + 1);
    if (rc == 0)
        rc = file_out_put(&a.out, err);
    if (rc == 0 && ret_sha256)
        memcpy(ret_sha256, made.sha256, HASH_BYTES);
    apply_release(&a);
    return rc;
}

int version_apply_delta(const char *full_path, const char *delta_path, uint64_t module_id,
                        uint64_t from, const char *out_path, const char *spare,
                        const uint8_t sha256[HASH_BYTES], uint8_t ret_sha256[HASH_BYTES],
                        struct err *err)
{
    const struct wire_info want = {.kind = WIRE_DELTA, .module_id = module_id, .base = from};
    return apply(full_path, delta_path, want, out_path, spare, sha256, ret_sha256, err);
}

int version_apply_contribution(const char *full_path, const char *contribution_path,
                               uint64_t module_id, uint64_t base, const char *out_path,
                               struct err *err)
{
    const struct wire_info want = {.kind = WIRE_CONTRIBUTION, .module_id = module_id, .base = base};
    return apply(full_path, contribution_path, want, out_path, NULL, NULL, NULL, err);
}

static int check_tensor(int fd, const char *path, const struct st_tensor *t, float *x,
                        struct err *err)
{
    for (uint64_t first = 0; first < t->count; first += FOLD_CHUNK) {
        const size_t n = t->count - first < FOLD_CHUNK ? (size_t)(t->count - first) : FOLD_CHUNK;
        const int rc =
            file_pread_all(fd, x, n * sizeof *x, t->offset + first * sizeof *x, path, err);
        if (rc < 0)
            return rc;
        if (!coding_check(CODEC_F32, n, x, NULL))
            return err_set(err, -EDOM, "tensor %s has a value that is not finite", t->name);
    }
    return 0;
}

int version_check_finite(const char *path, struct err *err)
{
    struct layout l = {0};
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return err_errno(err, "opening %s", path);
    float *x = mem_try_aligned(64, FOLD_CHUNK * sizeof *x);
    int rc = layout_read(fd, path, &l, err);
    if (rc == 0 && x == NULL)
        rc = err_set(err, -ENOMEM, "no memory for the check of a version");
    for (size_t t = 0; rc == 0 && t < l.st.n_tensors; t++)
        rc = check_tensor(fd, path, &l.st.tensors[t], x, err);
    layout_release(&l);
    mem_free(x);
    (void)close(fd); /* read only: nothing to lose */
    return rc;
}
