#include "common/outer/contribution.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include "common/base/crew.h"
#include "common/base/file.h"
#include "common/outer/fold.h"
#include "common/outer/arith.h"
#include "common/outer/layout.h"
#include "common/outer/wire.h"

#define STRIP 2048 /* elements that stay in the first cache from step to step */
_Static_assert(STRIP % CODEC_BLOCK == 0 && FOLD_CHUNK % STRIP == 0, "strips begin at a block");

struct maker {
    const struct contribution_job *job;
    struct layout layout;
    int base_fd, residual_fd; /* residual -1: zero */
    uint64_t residual_payload;
    struct file_out out, pending; /* pending not open: error feedback off */
    struct wire_out wire;
    bool in_order;    /* the blob is hashed as it is made: it has no scales */
    struct hash hash; /* of what is written, if in_order */
};

static char *spare_of(const char *residual)
{
    return str_printf("%s.spare", residual);
}

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

/* Over the residual before the current one, which residual_commit() has left for this. */
static int open_pending(struct maker *m, struct err *err)
{
    const struct contribution_job *job = m->job;
    if (!feedback(job))
        return 0;
    char *spare = job->residual_path ? spare_of(job->residual_path) : NULL;
    int rc = file_out_open_again(&m->pending, job->residual_pending, spare, 0600, err);
    mem_free(spare);
    return rc < 0 ? rc
                  : file_out_pwrite(&m->pending, m->layout.header, (size_t)m->layout.st.payload, 0,
                                    err);
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
    return rc < 0 ? rc : open_pending(m, err);
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
                       : err_set(err, -EDOM,
                                 "tensor %s holds a value that is not finite: training diverged",
                                 c->layout->st.tensors[c->t].name);
}

static int begin_chunk(struct maker *m, const struct contribution_coder *coder,
                       struct contribution_chunk *c, struct err *err)
{
    c->layout = &m->layout;
    c->codec = layout_codec(&m->layout, c->t, m->job->codec);
    c->carried = m->residual_fd >= 0 && c->codec != CODEC_F32;
    c->feedback = feedback(m->job) && c->codec != CODEC_F32;
    int rc = read_inputs(m, c, err);
    return rc < 0 ? rc : refused(c, coder->begin(coder->arg, c, err), err);
}

static int write_chunk(struct maker *m, struct contribution_chunk *c, struct err *err)
{
    int rc = wire_out_write(&m->wire, c->t, c->first, c->n, c->payload, c->scales, err);
    if (rc < 0 || !feedback(m->job))
        return rc;
    if (!c->feedback) /* a buffer leaves nothing over */
        memset(c->residual, 0, c->n * sizeof(float));
    uint64_t at = (layout_first(&m->layout, c->t) + c->first) * sizeof(float);
    return file_out_pwrite(&m->pending, c->residual, c->n * sizeof(float),
                           m->layout.st.payload + at, err);
}

static void hash_chunk(struct maker *m, const struct contribution_chunk *c)
{
    if (m->in_order)
        hash_update(&m->hash, c->payload, codec_payload_bytes(c->codec, c->n));
}

/* ---- by the coder of the job: while one chunk is written others are coded ---- */

static int end_chunk(struct maker *m, struct contribution_chunk *c, struct err *err)
{
    const struct contribution_coder *coder = m->job->coder;
    int rc = refused(c, coder->end(coder->arg, c, err), err);
    if (rc == 0)
        rc = write_chunk(m, c, err);
    if (rc == 0)
        hash_chunk(m, c);
    return rc;
}

static int make_by_coder(struct maker *m, struct err *err)
{
    const struct contribution_coder *coder = m->job->coder;
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
                rc = begin_chunk(m, coder, c, err);
            begun += rc == 0;
        }
    }
    while (rc == 0 && ended < begun)
        rc = end_chunk(m, &coder->chunks[ended++ % coder->n], err);
    while (ended < begun) /* the failure above is the one to tell */
        (void)coder->end(coder->arg, &coder->chunks[ended++ % coder->n], NULL);
    return rc;
}

/* ---- by this CPU: a thread takes chunks, each from its end to its place in the blob ---- */

struct own {
    const struct contribution_job *job;
    const struct arith *arith;
    struct contribution_chunk chunk;
    float *end;
};

/* Of a chunk of differences; payload and scales of elements before `at` lie before theirs. */
static int code_strip(const struct own *o, const struct contribution_chunk *c, size_t at, size_t n)
{
    float *u = c->base + at, *q = c->residual + at;
    uint8_t *payload = (uint8_t *)c->payload + codec_payload_bytes(c->codec, at);
    uint16_t *scales = c->scales + at / CODEC_BLOCK;
    o->arith->sub(n, u, o->end + at, u);
    if (c->carried)
        o->arith->add(n, u, q, u);
    if (coding_encode(c->codec, n, u, payload, scales, q) < 0)
        return -EDOM;
    if (c->feedback)
        o->arith->sub(n, u, q, q);
    return 0;
}

static int own_begin(void *arg, struct contribution_chunk *c, struct err *err)
{
    struct own *o = arg;
    const enum codec codec = c->codec;
    int rc = o->job->read(o->job->read_arg, c->layout, c->t, c->first, c->n, o->end, err);
    if (rc < 0)
        return rc;
    if (codec == CODEC_F32)
        return coding_encode(codec, c->n, o->end, c->payload, NULL, o->end) < 0 ? -EDOM : 0;
    for (size_t at = 0; at < c->n && rc == 0; at += STRIP)
        rc = code_strip(o, c, at, c->n - at < STRIP ? c->n - at : STRIP);
    return rc;
}

static int own_open(struct own *o, const struct contribution_job *job, struct err *err)
{
    const size_t bytes = FOLD_CHUNK * sizeof(float);
    *o = (struct own){.job = job, .arith = arith_best()};
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

struct here {
    struct maker *m;
    struct own own[CREW_MAX];
    size_t *first;        /* chunk of each tensor, and at the end how many there are */
    pthread_mutex_t lock; /* over what follows: the hash goes through the chunks in their order */
    pthread_cond_t hashed;
    size_t next;
    bool failed;
};

/* The tensor of a chunk. */
static size_t tensor_of(const struct here *h, size_t piece)
{
    size_t low = 0, high = h->m->layout.st.n_tensors;
    while (high - low > 1) {
        const size_t middle = low + (high - low) / 2;
        if (h->first[middle] <= piece)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* Waits for the chunks before; a failure of one of them lets all others go. */
static void hash_in_turn(struct here *h, size_t piece, const struct contribution_chunk *c, int rc)
{
    (void)pthread_mutex_lock(&h->lock); /* a default mutex, never held twice: cannot fail */
    while (rc == 0 && h->next != piece && !h->failed)
        (void)pthread_cond_wait(&h->hashed, &h->lock);
    if (rc == 0 && !h->failed) {
        (void)pthread_mutex_unlock(&h->lock); /* it is nobody else's turn */
        hash_chunk(h->m, c);
        (void)pthread_mutex_lock(&h->lock);
    }
    h->failed |= rc < 0;
    h->next++;
    (void)pthread_cond_broadcast(&h->hashed);
    (void)pthread_mutex_unlock(&h->lock);
}

static int make_chunk(void *arg, size_t piece, unsigned thread, struct err *err)
{
    struct here *h = arg;
    struct own *o = &h->own[thread];
    struct contribution_chunk *c = &o->chunk;
    const struct contribution_coder coder = {.begin = own_begin, .arg = o};
    c->t = tensor_of(h, piece);
    c->first = (piece - h->first[c->t]) * FOLD_CHUNK;
    const uint64_t left = h->m->layout.st.tensors[c->t].count - c->first;
    c->n = left < FOLD_CHUNK ? (size_t)left : FOLD_CHUNK;
    int rc = begin_chunk(h->m, &coder, c, err);
    if (rc == 0)
        rc = write_chunk(h->m, c, err);
    if (h->m->in_order)
        hash_in_turn(h, piece, c, rc);
    return rc;
}

static int make_here(struct maker *m, struct err *err)
{
    const struct st *st = &m->layout.st;
    struct here *h = mem_try(sizeof *h);
    size_t n = 0;
    if (h)
        *h = (struct here){.m = m, .first = mem_try_array(st->n_tensors + 1, sizeof *h->first)};
    if (!h || !h->first) {
        mem_free(h);
        return err_set(err, -ENOMEM, "no memory for a contribution");
    }
    for (size_t t = 0; t < st->n_tensors; t++) {
        h->first[t] = n;
        n += (size_t)((st->tensors[t].count + FOLD_CHUNK - 1) / FOLD_CHUNK);
    }
    const unsigned threads = crew_size(m->job->threads, n);
    (void)pthread_mutex_init(&h->lock, NULL); /* default attributes: cannot fail on Linux */
    (void)pthread_cond_init(&h->hashed, NULL);
    int rc = 0;
    for (unsigned i = 0; i < threads && rc == 0; i++)
        rc = own_open(&h->own[i], m->job, err);
    if (rc == 0)
        rc = crew_run(threads, n, make_chunk, h, err);
    for (unsigned i = 0; i < threads; i++)
        own_release(&h->own[i]);
    (void)pthread_cond_destroy(&h->hashed);
    (void)pthread_mutex_destroy(&h->lock);
    mem_free(h->first);
    mem_free(h);
    return rc;
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
    struct maker m = {
        .job = job, .base_fd = -1, .residual_fd = -1, .out = {.fd = -1}, .pending = {.fd = -1}};
    struct contribution_result result = {0};
    int rc = open_files(&m, err);
    if (rc == 0)
        rc = job->coder ? make_by_coder(&m, err) : make_here(&m, err);
    if (rc == 0)
        rc = finish(&m, &result, err);
    maker_release(&m);
    if (rc == 0)
        *ret = result;
    return rc;
}

int residual_commit(const char *pending, const char *current, struct err *err)
{
    char *spare = spare_of(current);
    int rc = file_exists(pending) && file_exists(current) ? file_move(current, spare, err) : 0;
    if (rc == 0 && file_exists(pending))
        rc = file_move(pending, current, err);
    mem_free(spare);
    return rc;
}

int residual_drop(const char *pending, struct err *err)
{
    return file_remove(pending, err);
}
