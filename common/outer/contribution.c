#include "common/outer/contribution.h"

#include <fcntl.h>
#include <unistd.h>

#include "common/base/file.h"
#include "common/outer/fold.h"
#include "common/outer/arith.h"
#include "common/outer/layout.h"
#include "common/outer/wire.h"

struct maker {
    const struct contribution_job *job;
    const struct contribution_coder *coder;
    struct layout layout;
    int base_fd, residual_fd; /* residual -1: zero */
    uint64_t residual_payload;
    struct file_out out, pending; /* pending not open: error feedback off */
    struct wire_out wire;
    bool in_order;    /* the blob is written from its beginning to its end: it has no scales */
    struct hash hash; /* of what is written, if in_order */
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

/* Of a blob that is written in order: its header is there. */
static int begin_hash(struct maker *m, struct err *err)
{
    const size_t len = (size_t)m->wire.at[0].payload;
    uint8_t *header = mem_try(len);
    int rc = header ? file_pread_all(m->out.fd, header, len, 0, m->out.path, err)
                    : err_set(err, -ENOMEM, "no memory for a contribution's header");
    hash_init(&m->hash);
    if (rc == 0)
        hash_update(&m->hash, header, len);
    m->in_order = rc == 0;
    mem_free(header);
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
    if (rc == 0 && !codec_has_scale(job->codec))
        rc = begin_hash(m, err);
    if (rc == 0 && feedback(job))
        rc = file_out_open(&m->pending, job->residual_pending, 0600, err);
    if (rc == 0 && feedback(job))
        rc = file_out_pwrite(&m->pending, m->layout.header, (size_t)m->layout.st.payload, 0, err);
    return rc;
}

static int read_inputs(struct maker *m, struct contribution_chunk *c, struct err *err)
{
    const size_t bytes = c->n * sizeof(float);
    const uint64_t at = (layout_first(&m->layout, c->t) + c->first) * sizeof(float);
    int rc = 0;
    if (c->codec != CODEC_F32)
        rc = file_pread_all(m->base_fd, c->base, bytes, m->layout.st.payload + at,
                            m->job->base_path, err);
    if (rc == 0 && c->carried)
        rc = file_pread_all(m->residual_fd, c->residual, bytes, m->residual_payload + at,
                            m->job->residual_path, err);
    return rc;
}

static int refused(const struct contribution_chunk *c, int rc, struct err *err)
{
    return rc != -EDOM ? rc
                       : err_set(err, -ERR_FORMAT,
                                 "tensor %s holds a value that is not finite: training diverged",
                                 c->layout->st.tensors[c->t].name);
}

static int begin_chunk(struct maker *m, struct contribution_chunk *c, struct err *err)
{
    c->layout = &m->layout;
    c->codec = layout_codec(&m->layout, c->t, m->job->codec);
    c->carried = m->residual_fd >= 0 && c->codec != CODEC_F32;
    c->feedback = feedback(m->job) && c->codec != CODEC_F32;
    int rc = read_inputs(m, c, err);
    return rc < 0 ? rc : refused(c, m->coder->begin(m->coder->arg, c, err), err);
}

static int end_chunk(struct maker *m, struct contribution_chunk *c, struct err *err)
{
    int rc = refused(c, m->coder->end(m->coder->arg, c, err), err);
    if (rc == 0)
        rc = wire_out_write(&m->wire, c->t, c->first, c->n, c->payload, c->scales, err);
    if (rc == 0 && m->in_order)
        hash_update(&m->hash, c->payload, codec_payload_bytes(c->codec, c->n));
    if (rc < 0 || !feedback(m->job))
        return rc;
    if (!c->feedback) /* a buffer leaves nothing over */
        memset(c->residual, 0, c->n * sizeof(float));
    uint64_t at = (layout_first(&m->layout, c->t) + c->first) * sizeof(float);
    return file_out_pwrite(&m->pending, c->residual, c->n * sizeof(float),
                           m->layout.st.payload + at, err);
}

/* While one chunk is written others are coded. */
static int make_all(struct maker *m, struct err *err)
{
    const struct contribution_coder *coder = m->coder;
    uint64_t begun = 0, ended = 0;
    int rc = 0;
    for (size_t t = 0; t < m->layout.st.n_tensors; t++) {
        const uint64_t count = m->layout.st.tensors[t].count;
        for (uint64_t first = 0; first < count && rc == 0; first += coder->size) {
            struct contribution_chunk *c = &coder->chunks[begun % coder->n];
            if (begun - ended == coder->n)
                rc = end_chunk(m, &coder->chunks[ended++ % coder->n], err);
            c->t = t;
            c->first = first;
            c->n = count - first < coder->size ? (size_t)(count - first) : coder->size;
            if (rc == 0)
                rc = begin_chunk(m, c, err);
            begun += rc == 0;
        }
    }
    while (rc == 0 && ended < begun)
        rc = end_chunk(m, &coder->chunks[ended++ % coder->n], err);
    while (ended < begun) /* the failure above is the one to tell */
        (void)coder->end(coder->arg, &coder->chunks[ended++ % coder->n], NULL);
    return rc;
}

/* ---- the coder of this CPU: one chunk, coded when it is begun ---- */

struct own {
    const struct contribution_job *job;
    const struct arith *arith;
    struct contribution_coder coder;
    struct contribution_chunk chunk;
    float *end;
};

static int own_begin(void *arg, struct contribution_chunk *c, struct err *err)
{
    struct own *o = arg;
    const enum codec codec = c->codec;
    int rc = o->job->read(o->job->read_arg, c->layout, c->t, c->first, c->n, o->end, err);
    if (rc < 0)
        return rc;
    if (codec == CODEC_F32)
        return coding_encode(codec, c->n, o->end, c->payload, NULL, o->end) < 0 ? -EDOM : 0;
    float *u = c->base, *q = c->residual;
    o->arith->sub(c->n, u, o->end, u);
    if (c->carried)
        o->arith->add(c->n, u, c->residual, u);
    if (coding_encode(codec, c->n, u, c->payload, c->scales, q) < 0)
        return -EDOM;
    if (c->feedback)
        o->arith->sub(c->n, u, q, c->residual);
    return 0;
}

static int own_end(void *arg, struct contribution_chunk *c, struct err *err)
{
    return 0;
}

static int own_open(struct own *o, const struct contribution_job *job, struct err *err)
{
    const size_t bytes = FOLD_CHUNK * sizeof(float);
    *o = (struct own){.job = job, .arith = arith_best()};
    o->coder = (struct contribution_coder){.size = FOLD_CHUNK,
                                           .n = 1,
                                           .chunks = &o->chunk,
                                           .begin = own_begin,
                                           .end = own_end,
                                           .arg = o};
    o->chunk.payload = mem_try_aligned(64, bytes); /* of the widest codec */
    o->chunk.scales = mem_try_array(FOLD_CHUNK / CODEC_BLOCK, sizeof *o->chunk.scales);
    o->chunk.base = mem_try_aligned(64, bytes);
    o->chunk.residual = mem_try_aligned(64, bytes);
    o->end = mem_try_aligned(64, bytes);
    if (!o->chunk.payload || !o->chunk.scales || !o->chunk.base || !o->chunk.residual || !o->end)
        return err_set(err, -ENOMEM, "no memory for a contribution");
    return 0;
}

static void own_release(struct own *o)
{
    mem_free(o->chunk.payload);
    mem_free(o->chunk.scales);
    mem_free(o->chunk.base);
    mem_free(o->chunk.residual);
    mem_free(o->end);
}

/* ---- all of it ---- */

static int finish(struct maker *m, struct contribution_result *r, struct err *err)
{
    int rc = 0;
    if (m->in_order) {
        hash_final(&m->hash, r->sha256);
        r->bytes = m->wire.bytes;
    } else { /* scales are whole after the payload only; it is small, and in the page cache */
        rc = hash_file(m->out.temp, r->sha256, &r->bytes, err);
    }
    if (rc == 0 && feedback(m->job)) /* a residual that was cut short is left out */
        rc = file_out_put(&m->pending, err);
    if (rc == 0) /* whoever loses it with the power has lost its lease, too */
        rc = file_out_put(&m->out, err);
    if (rc < 0 && feedback(m->job))
        (void)file_remove(m->job->residual_pending, NULL); /* it has no blob to belong to */
    return rc;
}

static void maker_release(struct maker *m)
{
    wire_out_release(&m->wire);
    hash_release(&m->hash);
    file_out_abort(&m->out);
    file_out_abort(&m->pending);
    layout_release(&m->layout);
    if (m->base_fd >= 0)
        (void)close(m->base_fd); /* read only: nothing to lose */
    if (m->residual_fd >= 0)
        (void)close(m->residual_fd);
}

int contribution_write(const struct contribution_job *job, struct contribution_result *ret,
                       struct err *err)
{
    struct own own = {0};
    struct maker m = {.job = job,
                      .coder = job->coder ? job->coder : &own.coder,
                      .base_fd = -1,
                      .residual_fd = -1,
                      .out = {.fd = -1},
                      .pending = {.fd = -1}};
    struct contribution_result result = {0};
    int rc = open_files(&m, err);
    if (rc == 0 && !job->coder)
        rc = own_open(&own, job, err);
    if (rc == 0)
        rc = make_all(&m, err);
    if (rc == 0)
        rc = finish(&m, &result, err);
    own_release(&own);
    maker_release(&m);
    if (rc == 0)
        *ret = result;
    return rc;
}

int residual_commit(const char *pending, const char *current, struct err *err)
{
    return file_exists(pending) ? file_move(pending, current, err) : 0;
}

int residual_drop(const char *pending, struct err *err)
{
    return file_remove(pending, err);
}
