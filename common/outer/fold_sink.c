#include "common/outer/fold_sink.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>

#include "common/base/err.h"
#include "common/base/file.h"
#include "common/base/mem.h"
#include "common/outer/fold.h"
#include "common/outer/layout.h"

struct sink_file {
    struct file_out *out; /* NULL: not kept */
    struct hash hash;
    float *data[SINK_SLOTS];
};

struct sink {
    struct sink_file full, ema; /* the helper's, but for data[] of a slot being filled */
    uint64_t offset;            /* of the next byte in both files; the helper's */
    pthread_t thread;
    bool started;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    /* under lock */
    size_t n[SINK_SLOTS];  /* elements of the slot */
    uint64_t pushed, done; /* slots since the beginning */
    bool stop;
    int rc;
    struct err err;
};

static int file_begin(struct sink_file *f, const struct layout *layout, struct err *err)
{
    if (!f->out)
        return 0;
    for (size_t i = 0; i < SINK_SLOTS; i++) {
        f->data[i] = mem_try_aligned(64, FOLD_CHUNK * sizeof(float));
        if (!f->data[i])
            return err_set(err, -ENOMEM, "no memory for the outer step");
    }
    hash_init(&f->hash);
    hash_update(&f->hash, layout->header, (size_t)layout->st.payload);
    return file_out_pwrite(f->out, layout->header, (size_t)layout->st.payload, 0, err);
}

static int file_put(struct sink_file *f, size_t slot, size_t n, uint64_t offset, struct err *err)
{
    if (!f->out)
        return 0;
    hash_update(&f->hash, f->data[slot], n * sizeof(float));
    return file_out_pwrite(f->out, f->data[slot], n * sizeof(float), offset, err);
}

static void *sink_main(void *arg)
{
    struct sink *s = arg;
    (void)pthread_mutex_lock(&s->lock); /* cannot fail: a default mutex, never held twice */
    for (;;) {
        while (s->done == s->pushed && !s->stop)
            (void)pthread_cond_wait(&s->changed, &s->lock);
        if (s->done == s->pushed || s->rc < 0)
            break;
        size_t slot = s->done % SINK_SLOTS, n = s->n[slot];
        (void)pthread_mutex_unlock(&s->lock);
        struct err err = {0};
        int rc = file_put(&s->full, slot, n, s->offset, &err);
        if (rc == 0)
            rc = file_put(&s->ema, slot, n, s->offset, &err);
        s->offset += n * sizeof(float);
        (void)pthread_mutex_lock(&s->lock);
        if (rc < 0) {
            s->rc = rc;
            s->err = err;
        }
        s->done++;
        (void)pthread_cond_broadcast(&s->changed);
    }
    (void)pthread_mutex_unlock(&s->lock);
    return NULL;
}

int sink_new(const struct layout *layout, struct file_out *full_out, struct file_out *ema_out,
             struct sink **ret, struct err *err)
{
    struct sink *s = mem_alloc(sizeof *s);
    s->full.out = full_out;
    s->ema.out = ema_out;
    s->offset = layout->st.payload;
    (void)pthread_mutex_init(&s->lock, NULL); /* default attributes: cannot fail on Linux */
    (void)pthread_cond_init(&s->changed, NULL);
    int rc = file_begin(&s->full, layout, err);
    if (rc == 0)
        rc = file_begin(&s->ema, layout, err);
    if (rc == 0) {
        int e = pthread_create(&s->thread, NULL, sink_main, s);
        s->started = e == 0;
        rc = e ? err_set(err, -e, "starting a thread: %s", strerror(e)) : 0;
    }
    if (rc < 0)
        sink_free(s);
    else
        *ret = s;
    return rc;
}

static int take_error(const struct sink *s, struct err *err)
{
    return s->rc < 0 ? err_set(err, s->rc, "%s", s->err.msg) : 0;
}

int sink_slot(struct sink *s, struct sink_slot *ret, struct err *err)
{
    (void)pthread_mutex_lock(&s->lock);
    while (s->pushed - s->done == SINK_SLOTS && s->rc == 0)
        (void)pthread_cond_wait(&s->changed, &s->lock);
    int rc = take_error(s, err);
    size_t slot = s->pushed % SINK_SLOTS;
    (void)pthread_mutex_unlock(&s->lock);
    if (rc == 0)
        *ret = (struct sink_slot){.theta = s->full.data[slot], .ema = s->ema.data[slot]};
    return rc;
}

void sink_push(struct sink *s, size_t n)
{
    (void)pthread_mutex_lock(&s->lock);
    s->n[s->pushed % SINK_SLOTS] = n;
    s->pushed++;
    (void)pthread_cond_broadcast(&s->changed);
    (void)pthread_mutex_unlock(&s->lock);
}

static void sink_join(struct sink *s)
{
    if (!s->started)
        return;
    (void)pthread_mutex_lock(&s->lock);
    s->stop = true;
    (void)pthread_cond_broadcast(&s->changed);
    (void)pthread_mutex_unlock(&s->lock);
    (void)pthread_join(s->thread, NULL); /* it is ours and joined once */
    s->started = false;
}

int sink_finish(struct sink *s, uint8_t full[HASH_BYTES], uint8_t ema[HASH_BYTES], struct err *err)
{
    sink_join(s);
    int rc = take_error(s, err);
    if (rc < 0)
        return rc;
    hash_final(&s->full.hash, full);
    if (s->ema.out)
        hash_final(&s->ema.hash, ema);
    return 0;
}

static void file_end(struct sink_file *f)
{
    for (size_t i = 0; i < SINK_SLOTS; i++)
        mem_free(f->data[i]);
    hash_release(&f->hash);
}

void sink_free(struct sink *s)
{
    if (!s)
        return;
    sink_join(s);
    file_end(&s->full);
    file_end(&s->ema);
    (void)pthread_cond_destroy(&s->changed);
    (void)pthread_mutex_destroy(&s->lock);
    mem_free(s);
}
