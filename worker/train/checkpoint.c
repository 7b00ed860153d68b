#include "worker/train/checkpoint.h"

#include <fcntl.h>
#include <unistd.h>

#include "common/base/file.h"

/* The vectors of a checkpoint in file order. */
static const struct {
    enum trainer_vector which;
    const char *prefix;
} vectors[] = {
    {TRAINER_WEIGHTS, "weights"},
    {TRAINER_ADAM_M, "adam_m"},
    {TRAINER_ADAM_V, "adam_v"},
};

#define VECTORS (sizeof vectors / sizeof *vectors)

static void tensor_name(char *out, size_t size, size_t vector, const struct model_tensor *t)
{
    (void)snprintf(out, size, "%s.%s", vectors[vector].prefix, t->name);
}

/* Digest of the meaning of the values and of everything that determines the next bits, except the
 * position and how a step is divided into devices and micro-batches: that determines only the order
 * of sums, and a worker may have other devices, or less memory, than before. */
static void config_digest(struct trainer *t, char hex[HASH_HEX_MAX])
{
    const struct model_spec *s = &trainer_model(t)->spec;
    const struct train_options *o = trainer_options(t);
    char text[1024];
    int n = snprintf(text, sizeof text,
                     "%d %d %d %d %d %d %d %d|%d %d %d %a %a %d|%a %" PRId64
                     " %d %a %a %a %a %a %a %a %a %d %d %a %" PRId64 " %" PRIu64 " %" PRIu64,
                     (int)s->kind, s->image, s->patch, s->dim, s->depth, s->heads, s->mlp,
                     s->classes, s->vocab, s->context, s->kv_heads, (double)s->rope_theta,
                     (double)s->norm_eps, (int)s->tied, o->lr, o->warmup, (int)o->schedule,
                     o->decay_fraction, o->final_lr, o->weight_decay, o->beta1, o->beta2, o->eps,
                     o->clip, o->ema, (int)(trainer_net(t)->weights->dt == DT_BF16),
                     (int)o->uniform_t, o->label_dropout, o->moments_warmup, o->seed, o->replica);
    if (o->shift != 0 && o->shift != 1)
        n += snprintf(text + n, sizeof text - (size_t)n, "|shift %a", (double)o->shift);
    if (model_has_upscaler(s)) {
        const struct model_upscaler *u = &s->upscaler;
        n += snprintf(text + n, sizeof text - (size_t)n, "|%d %d %d %d %d %d %a", u->image,
                      u->patch, u->dim, u->depth, u->heads, u->mlp, (double)u->noise);
    }
    if (s->rope_scaling.factor > 0)
        n += snprintf(text + n, sizeof text - (size_t)n, "|%a %a %a %a",
                      (double)s->rope_scaling.factor, (double)s->rope_scaling.low,
                      (double)s->rope_scaling.high, (double)s->rope_scaling.context);
    if (s->qkv_bias || (s->head_dim > 0 && s->head_dim * s->heads != s->dim))
        n += snprintf(text + n, sizeof text - (size_t)n, "|%d %d", model_head_dim(s),
                      (int)s->qkv_bias);
    if (s->qk_norm)
        n += snprintf(text + n, sizeof text - (size_t)n, "|qk_norm");
    if (s->no_rope_layer_interval > 0)
        n += snprintf(text + n, sizeof text - (size_t)n, "|no_rope %d", s->no_rope_layer_interval);
    uint8_t hash[HASH_BYTES];
    hash_sha256(text, (size_t)n, hash);
    (void)hash_hex(hash, sizeof hash, hex);
}

static int declare(struct trainer *t, struct st_writer *w, const struct st_meta *pairs, size_t n,
                   struct err *err)
{
    const struct model *m = trainer_model(t);
    char hex[HASH_HEX_MAX], name[ST_NAME_MAX];
    config_digest(t, hex);
    st_writer_meta(w, "skerry.kind", "checkpoint");
    st_writer_meta(w, "skerry.config", hex);
    st_writer_number(w, "skerry.step", trainer_next_step(t));
    st_writer_number(w, "skerry.total_steps", trainer_total_steps(t));
    st_writer_number(w, "skerry.adam_step", trainer_adam_step(t));
    for (size_t i = 0; i < n; i++) {
        (void)snprintf(name, sizeof name, "user.%s", pairs[i].key);
        st_writer_meta(w, name, pairs[i].value);
    }
    for (size_t v = 0; v < VECTORS; v++) {
        for (size_t i = 0; i < m->n; i++) {
            tensor_name(name, sizeof name, v, &m->tensors[i]);
            int rc = st_writer_add(w, name, ST_F32, m->tensors[i].rank, m->tensors[i].shape, err);
            if (rc < 0)
                return rc;
        }
    }
    return 0;
}

static int write_all(struct trainer *t, struct st_writer *w, float *buf, struct err *err)
{
    const struct model *m = trainer_model(t);
    for (size_t v = 0; v < VECTORS; v++) {
        for (size_t i = 0; i < m->n; i++) {
            int rc = trainer_read(t, vectors[v].which, &m->tensors[i], buf, err);
            if (rc == 0)
                rc = st_writer_write(w, buf, m->tensors[i].count * sizeof *buf, err);
            if (rc < 0)
                return rc;
        }
    }
    return 0;
}

int checkpoint_save(struct trainer *t, const char *path, const struct st_meta *pairs, size_t n,
                    bool local, struct err *err)
{
    if (n > CHECKPOINT_PAIRS_MAX)
        return err_set(err, -ERR_LIMIT, "%zu pairs for a checkpoint; at most %d", n,
                       CHECKPOINT_PAIRS_MAX);
    float *buf = mem_try_array(model_largest(trainer_model(t)), sizeof *buf);
    if (!buf)
        return err_set(err, -ENOMEM, "no memory to write the checkpoint %s", path);
    struct st_writer *w = st_writer_new();
    int rc = declare(t, w, pairs, n, err);
    if (local)
        st_writer_local(w);
    if (rc == 0)
        rc = st_writer_open(w, path, err);
    if (rc == 0)
        rc = write_all(t, w, buf, err);
    if (rc == 0)
        rc = st_writer_commit(w, NULL, NULL, err);
    st_writer_free(w);
    mem_free(buf);
    if (rc < 0)
        (void)err_wrap(err, "writing the checkpoint %s", path);
    return rc;
}

struct position {
    uint64_t step, total, adam;
};

static int check_header(struct trainer *t, const struct st *st, const char *path,
                        struct position *ret, struct err *err)
{
    const struct model *m = trainer_model(t);
    char hex[HASH_HEX_MAX], name[ST_NAME_MAX];
    const char *kind = st_meta_get(st, "skerry.kind"), *config = st_meta_get(st, "skerry.config");
    if (!kind || strcmp(kind, "checkpoint") != 0 || !config)
        return err_set(err, -ERR_FORMAT, "%s is not a checkpoint", path);
    config_digest(t, hex);
    if (strcmp(hex, config) != 0)
        return err_set(err, -ERR_CONFIG, "%s belongs to another job, replica or precision", path);

    struct position p;
    int rc = st_meta_number(st, path, "skerry.step", &p.step, err);
    if (rc == 0)
        rc = st_meta_number(st, path, "skerry.total_steps", &p.total, err);
    if (rc == 0)
        rc = st_meta_number(st, path, "skerry.adam_step", &p.adam, err);
    for (size_t v = 0; v < VECTORS && rc == 0; v++) {
        for (size_t i = 0; i < m->n && rc == 0; i++) {
            const struct st_tensor *src;
            tensor_name(name, sizeof name, v, &m->tensors[i]);
            rc = st_expect(st, name, ST_F32, m->tensors[i].rank, m->tensors[i].shape, &src, err);
        }
    }
    if (rc == 0)
        *ret = p;
    return rc;
}

static int read_all(struct trainer *t, const struct st *st, int fd, const char *path, float *buf,
                    struct err *err)
{
    const struct model *m = trainer_model(t);
    char name[ST_NAME_MAX];
    for (size_t v = 0; v < VECTORS; v++) {
        for (size_t i = 0; i < m->n; i++) {
            tensor_name(name, sizeof name, v, &m->tensors[i]);
            const struct st_tensor *src = st_find(st, name);
            int rc = file_pread_all(fd, buf, src->bytes, src->offset, path, err);
            for (uint64_t j = 0; j < src->count && rc == 0; j++) {
                if (!isfinite(buf[j]))
                    rc = err_set(err, -ERR_FORMAT, "%s: %s holds a value that is not finite", path,
                                 name);
            }
            if (rc == 0)
                rc = trainer_write(t, vectors[v].which, &m->tensors[i], buf, err);
            if (rc < 0)
                return rc;
        }
    }
    return trainer_written(t, err);
}

int checkpoint_load(struct trainer *t, const char *path, struct st *ret_meta, struct err *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return err_errno(err, "opening the checkpoint %s", path);

    struct st st = {0};
    struct position p = {0};
    float *buf = mem_try_array(model_largest(trainer_model(t)), sizeof *buf);
    int rc = buf ? 0 : err_set(err, -ENOMEM, "no memory to read the checkpoint %s", path);
    if (rc == 0)
        rc = st_read(fd, path, &st, err);
    if (rc == 0)
        rc = check_header(t, &st, path, &p, err);
    if (rc == 0)
        rc = read_all(t, &st, fd, path, buf, err);
    if (rc == 0) {
        trainer_position(t, p.step, p.total);
        trainer_set_adam_step(t, p.adam);
    }
    if (rc == 0 && ret_meta) {
        *ret_meta = st;
        st = (struct st){0};
    }
    st_release(&st);
    mem_free(buf);
    (void)close(fd); /* read only: nothing to lose */
    return rc;
}

const char *checkpoint_pair(const struct st *meta, const char *key)
{
    char name[ST_NAME_MAX];
    (void)snprintf(name, sizeof name, "user.%s", key);
    return st_meta_get(meta, name);
}
