#include "common/outer/fold_sink.h"

#include <pthread.h>

#include "common/base/file.h"
#include "common/outer/layout.h"

#define SINK_SLOTS 2
#define SINK_SYNC 4 /* slots between two requests to begin writing to the disk */

struct sink_file {
    struct file_out *out; /* NULL: not kept */
    struct hash hash;
    float *data[SINK_SLOTS];
};

struct fold_sink {
    struct sink_file
        files[FOLD_SINK_FILES]; /* the helper's, except data[] of the slot being filled */
    uint64_t offset;            /* offset of the next byte in all files; the helper's */
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

/* Writes the slot of all files; runs on the helper. */
static int slot_put(struct fold_sink *s, uint64_t number, size_t n, struct err *err)
{
    const size_t slot = number % SINK_SLOTS, bytes = n * sizeof(float);
    int rc = 0;
    for (size_t i = 0; i < FOLD_SINK_FILES && rc == 0; i++) {
        struct sink_file *f = &s->files[i];
        if (!f->out)
            continue;
        hash_update(&f->hash, f->data[slot], bytes);
        rc = file_out_pwrite(f->out, f->data[slot], bytes, s->offset, err);
        if (number % SINK_SYNC == SINK_SYNC - 1)
            file_out_begin_sync(f->out);
    }
    s->offset += bytes;
    return rc;
}

static void *sink_main(void *arg)
{
    struct fold_sink *s = arg;
    (void)pthread_mutex_lock(&s->lock); /* cannot fail: a default mutex, never held twice */
    for (;;) {
        while (s->done == s->pushed && !s->stop)
            (void)pthread_cond_wait(&s->changed, &s->lock);
        if (s->done == s->pushed || s->rc < 0)
            break;
        const uint64_t number = s->done;
        const size_t n = s->n[number % SINK_SLOTS];
        (void)pthread_mutex_unlock(&s->lock);
        struct err err = {0};
        int rc = slot_put(s, number, n, &err);
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

static void sink_join(struct fold_sink *s)
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

void fold_sink_free(struct fold_sink *s)
{
    if (!s)
        return;
    sink_join(s);
    for (size_t i = 0; i < FOLD_SINK_FILES; i++) {
        for (size_t slot = 0; slot < SINK_SLOTS; slot++)
            mem_free(s->files[i].data[slot]);
        hash_release(&s->files[i].hash);
    }
    (void)pthread_cond_destroy(&s->changed);
    (void)pthread_mutex_destroy(&s->lock);
    mem_free(s);
}

int fold_sink_new(const struct layout *layout, struct file_out *const outs[FOLD_SINK_FILES],
                  struct fold_sink **ret, struct err *err)
{
    struct fold_sink *s = mem_alloc(sizeof *s);
    s->offset = layout->st.payload;
    (void)pthread_mutex_init(&s->lock, NULL); /* default attributes: cannot fail on Linux */
    (void)pthread_cond_init(&s->changed, NULL);
    int rc = 0;
    for (size_t i = 0; i < FOLD_SINK_FILES && rc == 0; i++) {
        s->files[i].out = outs[i];
        rc = file_begin(&s->files[i], layout, err);
    }
    if (rc == 0) {
        int e = pthread_create(&s->thread, NULL, sink_main, s);
        s->started = e == 0;
        rc = e ? err_set(err, -e, "starting a thread: %s", strerror(e)) : 0;
    }
    if (rc < 0)
        fold_sink_free(s);
    else
        *ret = s;
    return rc;
}

static int take_error(const struct fold_sink *s, struct err *err)
{
    return s->rc < 0 ? err_set(err, s->rc, "%s", s->err.msg) : 0;
}

int fold_sink_slot(struct fold_sink *s, float *ret[FOLD_SINK_FILES], struct err *err)
{
    (void)pthread_mutex_lock(&s->lock);
    while (s->pushed - s->done == SINK_SLOTS && s->rc == 0)
        (void)pthread_cond_wait(&s->changed, &s->lock);
    int rc = take_error(s, err);
    size_t slot = s->pushed % SINK_SLOTS;
    (void)pthread_mutex_unlock(&s->lock);
    for (size_t i = 0; i < FOLD_SINK_FILES && rc == 0; i++)
        ret[i] = s->files[i].data[slot];
    return rc;
}

void fold_sink_push(struct fold_sink *s, size_t n)
{
    (void)pthread_mutex_lock(&s->lock);
    s->n[s->pushed % SINK_SLOTS] = n;
    s->pushed++;
    (void)pthread_cond_broadcast(&s->changed);
    (void)pthread_mutex_unlock(&s->lock);
}

int fold_sink_finish(struct fold_sink *s, struct fold_file *const ret[FOLD_SINK_FILES],
                     struct err *err)
{
    sink_join(s);
    int rc = take_error(s, err);
    for (size_t i = 0; i < FOLD_SINK_FILES && rc == 0; i++)
        if (s->files[i].out) {
            hash_final(&s->files[i].hash, ret[i]->sha256);
            ret[i]->bytes = s->offset;
        }
    return rc;
}
