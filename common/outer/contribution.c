#include "common/outer/contribution.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "common/base/err.h"
#include "common/base/file.h"
#include "common/base/mem.h"
#include "common/outer/fold.h"
#include "common/outer/kernels.h"
#include "common/outer/layout.h"
#include "common/outer/wire.h"

struct maker {
    const struct contribution_job *job;
    const struct kernels *kernels;
    struct layout layout;
    int base_fd, residual_fd; /* residual -1: zero */
    uint64_t residual_payload;
    struct file_out out, pending; /* pending not open: error feedback off */
    struct wire_out wire;
    void *payload;
    uint16_t *scales;
    float *u, *end, *q;
    double square_sent, square_delta, square_residual;
};

static bool feedback(const struct contribution_job *job)
{
    return job->codec != CODEC_F32 && job->residual_pending;
}

static int open_residual(struct maker *m, struct err *err)
{
    const char *path = m->job->residual_path;
    if (!feedback(m->job) || !path)
        return 0;
    m->residual_fd = open(path, O_RDONLY | O_CLOEXEC);
    if (m->residual_fd < 0)
        return errno == ENOENT ? 0 : err_errno(err, "opening the residual %s", path);
    struct layout l = {0};
    int rc = layout_read(m->residual_fd, path, &l, err);
    if (rc == 0)
        rc = layout_same(&m->layout, &l, path, err);
    m->residual_payload = l.st.payload;
    layout_release(&l);
    return rc;
}

static int open_files(struct maker *m, struct err *err)
{
    const struct contribution_job *job = m->job;
    struct wire_info info = {.kind = WIRE_CONTRIBUTION,
                             .codec = job->codec,
                             .module_id = job->module_id,
                             .base = job->base,
                             .samples = job->samples};
    m->base_fd = open(job->base_path, O_RDONLY | O_CLOEXEC);
    if (m->base_fd < 0)
        return err_errno(err, "opening %s", job->base_path);
    int rc = layout_read(m->base_fd, job->base_path, &m->layout, err);
    if (rc == 0)
        rc = open_residual(m, err);
    if (rc == 0)
        rc = file_out_open(&m->out, job->out_path, 0600, err);
    if (rc == 0)
        rc = wire_out_open(&m->wire, &m->out, &info, &m->layout, err);
    if (rc == 0 && feedback(job))
        rc = file_out_open(&m->pending, job->residual_pending, 0600, err);
    if (rc == 0 && feedback(job))
        rc = file_out_pwrite(&m->pending, m->layout.header, (size_t)m->layout.st.payload, 0, err);
    return rc;
}

static int maker_alloc(struct maker *m, struct err *err)
{
    size_t bytes = FOLD_CHUNK * sizeof(float);
    m->payload = mem_try_aligned(64, bytes); /* of the widest codec */
    m->scales = mem_try_array(FOLD_CHUNK / CODEC_BLOCK, sizeof *m->scales);
    m->u = mem_try_aligned(64, bytes);
    m->end = mem_try_aligned(64, bytes);
    m->q = mem_try_aligned(64, bytes);
    if (!m->payload || !m->scales || !m->u || !m->end || !m->q)
        return err_set(err, -ENOMEM, "no memory for a contribution");
    return 0;
}

/* u = start - end, then + residual. */
static int read_delta(struct maker *m, size_t t, uint64_t first, size_t n, struct err *err)
{
    uint64_t at = layout_first(&m->layout, t) + first;
    int rc = file_pread_all(m->base_fd, m->u, n * sizeof(float),
                            m->layout.st.payload + at * sizeof(float), m->job->base_path, err);
    if (rc == 0)
        rc = m->job->read(m->job->read_arg, &m->layout, t, first, n, m->end, err);
    if (rc < 0)
        return rc;
    m->kernels->sub(n, m->u, m->end, m->u);
    m->square_delta += m->kernels->square_f32(n, m->u);
    if (m->residual_fd < 0)
        return 0;
    rc = file_pread_all(m->residual_fd, m->q, n * sizeof(float),
                        m->residual_payload + at * sizeof(float), m->job->residual_path, err);
    m->kernels->add(n, m->u, m->q, m->u);
    return rc;
}

static int write_residual(struct maker *m, size_t t, uint64_t first, size_t n, struct err *err)
{
    if (!feedback(m->job))
        return 0;
    m->kernels->sub(n, m->u, m->q, m->u);
    m->square_residual += m->kernels->square_f32(n, m->u);
    uint64_t at = (layout_first(&m->layout, t) + first) * sizeof(float);
    return file_out_pwrite(&m->pending, m->u, n * sizeof(float), m->layout.st.payload + at, err);
}

static int make_chunk(struct maker *m, size_t t, uint64_t first, size_t n, struct err *err)
{
    enum codec codec = m->job->codec;
    int rc = read_delta(m, t, first, n, err);
    if (rc < 0)
        return rc;
    const float *x = codec == CODEC_F32 ? m->end : m->u;
    if (codec_encode(codec, n, x, m->payload, m->scales, m->q) < 0)
        return err_set(err, -ERR_FORMAT,
                       "tensor %s holds a value that is not finite: training "
                       "diverged",
                       m->layout.st.tensors[t].name);
    m->square_sent += m->kernels->square_f32(n, codec == CODEC_F32 ? m->u : m->q);
    rc = wire_out_write(&m->wire, t, first, n, m->payload, m->scales, err);
    return rc < 0 ? rc : write_residual(m, t, first, n, err);
}

static int make_all(struct maker *m, struct err *err)
{
    for (size_t t = 0; t < m->layout.st.n_tensors; t++) {
        uint64_t count = m->layout.st.tensors[t].count;
        for (uint64_t first = 0; first < count; first += FOLD_CHUNK) {
            size_t n = count - first < FOLD_CHUNK ? (size_t)(count - first) : FOLD_CHUNK;
            int rc = make_chunk(m, t, first, n, err);
            if (rc < 0)
                return rc;
        }
    }
    return 0;
}

static int finish(struct maker *m, struct contribution_result *r, struct err *err)
{
    int rc = hash_file(m->out.temp, r->sha256, &r->bytes, err);
    if (rc == 0 && feedback(m->job))
        rc = file_out_commit(&m->pending, err);
    if (rc == 0)
        rc = file_out_commit(&m->out, err);
    if (rc < 0 && feedback(m->job))
        (void)file_remove(m->job->residual_pending, NULL); /* it has no blob to belong to */
    r->norm = sqrt(m->square_sent);
    r->delta_norm = sqrt(m->square_delta);
    r->residual_norm = sqrt(m->square_residual);
    return rc;
}

static void maker_release(struct maker *m)
{
    wire_out_release(&m->wire);
    file_out_abort(&m->out);
    file_out_abort(&m->pending);
    layout_release(&m->layout);
    if (m->base_fd >= 0)
        (void)close(m->base_fd); /* read only: nothing to lose */
    if (m->residual_fd >= 0)
        (void)close(m->residual_fd);
    mem_free(m->payload);
    mem_free(m->scales);
    mem_free(m->u);
    mem_free(m->end);
    mem_free(m->q);
}

int contribution_write(const struct contribution_job *job, struct contribution_result *ret,
                       struct err *err)
{
    struct maker m = {.job = job,
                      .kernels = kernels_best(),
                      .base_fd = -1,
                      .residual_fd = -1,
                      .out = {.fd = -1},
                      .pending = {.fd = -1}};
    struct contribution_result result = {0};
    int rc = open_files(&m, err);
    if (rc == 0)
        rc = maker_alloc(&m, err);
    if (rc == 0)
        rc = make_all(&m, err);
    if (rc == 0)
        rc = finish(&m, &result, err);
    maker_release(&m);
    if (rc == 0)
        *ret = result;
    return rc;
}

int residual_commit(const char *pending, const char *current, struct err *err)
{
    return file_exists(pending) ? file_rename(pending, current, err) : 0;
}

int residual_drop(const char *pending, struct err *err)
{
    return file_remove(pending, err);
}
