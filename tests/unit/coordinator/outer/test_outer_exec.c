/* The outer executor on a real loop with real threads and a blob store. */
#include "tests/unit/blobs.h"
#include "tests/unit/common/outer/fixture.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <sys/resource.h>

#include "common/net/loop.h"
#include "coordinator/outer/outer_exec.h"

#define K 4

struct rig {
    struct fixture f;
    struct loop *loop;
    struct blobstore *store;
    struct outer_exec *exec;
    char *state_dir;
    struct blob_ref files[OUTER_FILES], before;
    uint64_t version;
    unsigned done;
};

static struct blob_ref put(struct rig *r, const char *path)
{
    struct err err = {0};
    struct blob_ref blob;
    struct blob_id id;
    struct buf b;
    assert_int_equal(file_read(path, 64 << 20, &b, &err), 0);
    if (blob_put(r->store, b.data, b.len, &id, &err) < 0)
        fail_msg("%s", err.msg);
    memcpy(blob.sha256, id.sha256, 32);
    blob.size = b.len;
    buf_release(&b);
    return blob;
}

static void get_path(const struct rig *r, const struct blob_ref *blob, char path[4096])
{
    struct blob_id id;
    memcpy(id.sha256, blob->sha256, 32);
    assert_true(blobstore_has(r->store, &id, NULL));
    assert_int_equal(blob_file(r->store, &id, path, 4096), 0);
}

static void rig_begin(struct rig *r)
{
    struct err err = {0};
    memset(r, 0, sizeof *r);
    fx_begin(&r->f);
    char *blobs = fx_path(&r->f, "blobs");
    r->state_dir = fx_path(&r->f, "outer");
    assert_int_equal(loop_new(&r->loop, &err), 0);
    assert_int_equal(blob_dir_open(blobs, 0, &r->store, &err), 0);
    assert_int_equal(outer_exec_new(r->loop, r->store, 2, &r->exec, &err), 0);
    r->files[OUTER_FULL] = put(r, r->f.full);
    mem_free(blobs);
}

static void rig_end(struct rig *r)
{
    outer_exec_free(r->exec);
    r->store->ops->close(r->store);
    loop_free(r->loop);
    mem_free(r->state_dir);
    fx_end(&r->f);
}

/* A contribution of noise to the version at hand. */
static struct blob_ref noise_as(struct rig *r, uint64_t seed, float size, uint64_t samples,
                                enum codec codec)
{
    char full[4096], *path = fx_path(&r->f, "c");
    float *theta = fx_array(), *end = fx_array();
    get_path(r, &r->files[OUTER_FULL], full);
    fx_read_flat(full, theta);
    fx_normal(1000 * r->version + seed, size, end);
    for (size_t i = 0; i < PARAMS; i++)
        end[i] += theta[i];
    fx_contribute(full, r->version, end, codec, samples, path);
    const struct blob_ref blob = put(r, path);
    free(theta);
    free(end);
    mem_free(path);
    return blob;
}

static struct blob_ref noise(struct rig *r, uint64_t seed, float size, uint64_t samples)
{
    return noise_as(r, seed, size, samples, CODEC_E3M0);
}

/* A step of K contributions whose deltas have the given sizes. */
static struct outer_step *make_step(struct rig *r, const float *sizes)
{
    struct outer_step *s = mem_alloc(sizeof *s);
    *s = (struct outer_step){.module_id = MODULE,
                             .base = r->version,
                             .scale = 1,
                             .state_dir = str_dup(r->state_dir),
                             .before = r->before,
                             .down = CODEC_E3M0,
                             .lr = 0.7,
                             .momentum = 0.9,
                             .ema_decay = 0.9,
                             .min_accepted = 2,
                             .arg = r};
    memcpy(s->old, r->files, sizeof s->old);
    s->contributions = mem_alloc_array(K, sizeof *s->contributions);
    s->n_contributions = K;
    for (size_t c = 0; c < K; c++)
        s->contributions[c] = (struct outer_contribution){.tag = c,
                                                          .codec = CODEC_E3M0,
                                                          .from = r->version,
                                                          .samples = 100 + c,
                                                          .weight = (double)(100 + c),
                                                          .blob = noise(r, c, sizes[c], 100 + c)};
    return s;
}

static void step_free(struct outer_step *s)
{
    outer_step_release(s);
    mem_free(s);
}

static void on_done(struct outer_step *step)
{
    struct rig *r = step->arg;
    r->done++;
}

static void run(struct rig *r, struct outer_step *s)
{
    struct err err = {0};
    unsigned want = r->done + 1;
    if (outer_submit(r->exec, s, on_done, &err) < 0)
        fail_msg("%s", err.msg);
    assert_int_equal(outer_pending(r->exec), 1);
    while (r->done < want)
        loop_turn(r->loop, true);
    assert_int_equal(outer_pending(r->exec), 0);
}

/* The coordinator's part: records the version and prunes. */
static void record(struct rig *r, const struct outer_step *s)
{
    struct err err = {0};
    if (s->rc < 0)
        fail_msg("%s", s->reason);
    r->version++;
    r->before = r->files[OUTER_FULL];
    memcpy(r->files, s->made, sizeof s->made);
    assert_int_equal(outer_state_prune(r->state_dir, r->version, UINT64_MAX, &err), 0);
}

static size_t state_files(const struct rig *r)
{
    struct file_names names = {0};
    struct err err = {0};
    assert_int_equal(file_list(r->state_dir, 1000, &names, &err), 0);
    size_t n = names.n;
    file_names_release(&names);
    return n;
}

static const float alike[K] = {1e-3f, 1e-3f, 1.1e-3f, 0.9e-3f};

static void test_rounds(void **state)
{
    (void)state;
    struct rig r;
    rig_begin(&r);
    for (int round = 0; round < 3; round++) {
        struct outer_step *s = make_step(&r, alike);
        run(&r, s);
        record(&r, s);
        assert_int_equal(s->accepted, K);
        assert_int_equal(s->params, PARAMS);
        assert_true(s->delta_norm > 0 && s->step_norm > 0 && s->residual_norm > 0);
        double weights = 0;
        for (size_t c = 0; c < K; c++)
            weights += s->contributions[c].share;
        assert_true(fabs(weights - 1) < 1e-12);
        /* Target and momentum of this version, and of the one before the spares. */
        assert_int_equal(state_files(&r), round == 0 ? 2 : 4);
        char path[4096];
        uint8_t hash[HASH_BYTES];
        struct err err = {0};
        for (int i = 0; i < outer_blobs(false); i++) {
            get_path(&r, &s->made[i], path);
            uint64_t size = 0;
            assert_int_equal(hash_file(path, hash, &size, &err), 0);
            assert_memory_equal(hash, s->made[i].sha256, HASH_BYTES);
            assert_int_equal(size, s->made[i].size);
        }
        step_free(s);
    }
    rig_end(&r);
}

/* Killed after the fold and before the record: the redo gives the same bits. */
static void test_redo(void **state)
{
    (void)state;
    struct rig r;
    rig_begin(&r);
    struct outer_step *first = make_step(&r, alike), *second = make_step(&r, alike);
    run(&r, first);
    run(&r, second);
    assert_int_equal(first->rc, 0);
    assert_int_equal(second->rc, 0);
    assert_memory_equal(first->made, second->made, sizeof first->made);
    step_free(first);
    step_free(second);
    rig_end(&r);
}

static void test_refuses_outlier(void **state)
{
    (void)state;
    const float sizes[K] = {1e-3f, 5e-2f, 1e-3f, 1e-3f};
    struct rig r;
    rig_begin(&r);
    struct outer_step *s = make_step(&r, sizes);
    run(&r, s);
    assert_int_equal(s->rc, 0);
    assert_int_equal(s->accepted, K - 1);
    for (size_t c = 0; c < K; c++)
        assert_int_equal(s->contributions[c].refused, c == 1);
    assert_non_null(strstr(s->contributions[1].reason, "10 times the usual"));
    assert_true(s->contributions[1].share == 0);
    step_free(s);
    rig_end(&r);
}

/* Three times as long as usual is made shorter where it points with the others, and refused where
 * it does not; while nothing is known but one other's word, neither is refused. */
static void test_refuses_astray(void **state)
{
    (void)state;
    const float sizes[K] = {1e-3f, 3e-3f, 1e-3f, 1e-3f};
    struct rig r;
    rig_begin(&r);
    for (int with = 0; with < 2; with++) {
        struct outer_step *s = make_step(&r, sizes);
        if (with) /* the same noise, of three times the length */
            s->contributions[1].blob = noise(&r, 0, sizes[1], 101);
        run(&r, s);
        assert_int_equal(s->rc, 0);
        for (size_t c = 0; c < K; c++)
            assert_int_equal(s->contributions[c].refused, c == 1 && !with);
        assert_true(!with || s->contributions[1].shrink < 1);
        assert_true(with || strstr(s->contributions[1].reason, "does not point with the others"));
        step_free(s);
    }
    struct outer_step *s = make_step(&r, sizes);
    s->n_contributions = s->min_accepted = 1;
    s->word = s->contributions[1];
    s->contributions[0].blob = noise(&r, 7, 1e-2f, 100);
    run(&r, s);
    assert_int_equal(s->rc, 0);
    assert_true(s->contributions[0].shrink > 0.08 && s->contributions[0].shrink < 0.1);
    step_free(s);
    rig_end(&r);
}

static void test_refuses_garbage(void **state)
{
    (void)state;
    struct rig r;
    struct err err = {0};
    rig_begin(&r);
    char *path = fx_path(&r.f, "garbage");
    for (unsigned bad = 1; bad <= K; bad++) {
        struct outer_step *s = make_step(&r, alike);
        for (unsigned c = 0; c < bad; c++) {
            char *text = str_printf("not a tensor %u", c);
            assert_int_equal(file_write_atomic(path, text, strlen(text), 0600, &err), 0);
            s->contributions[c].blob = put(&r, path);
            mem_free(text);
        }
        run(&r, s);
        assert_int_equal(s->rc, bad <= K - 2 ? 0 : -ERR_LIMIT);
        for (unsigned c = 0; c < K; c++) {
            assert_int_equal(s->contributions[c].refused, c < bad);
            assert_true(!s->contributions[c].reason[0] == !s->contributions[c].refused);
            assert_null(strstr(s->contributions[c].reason, r.f.dir));
        }
        if (s->rc < 0)
            assert_non_null(strstr(s->reason, "at least 2"));
        step_free(s);
    }
    mem_free(path);
    rig_end(&r);
}

/* The caller's count of samples weighs, whatever the blob says of itself. */
static void test_weights(void **state)
{
    (void)state;
    struct rig r;
    rig_begin(&r);
    struct outer_step *s = make_step(&r, alike);
    for (size_t c = 0; c < K; c++)
        s->contributions[c].weight = c == 2 ? 700 : 100;
    run(&r, s);
    assert_int_equal(s->rc, 0);
    for (size_t c = 0; c < K; c++)
        assert_true(s->contributions[c].share == (c == 2 ? 0.7 : 0.1));
    step_free(s);
    rig_end(&r);
}

static void put_weights(struct outer_step *s, const double *weights, double share_cap)
{
    static const uint64_t senders[K] = {7, 7, 8, 9};
    for (size_t c = 0; c < K; c++) {
        s->contributions[c].sender = senders[c];
        s->contributions[c].weight = weights[c];
    }
    s->share_cap = share_cap;
}

/* One of three who sends most: two thirds are its, and the bits are those of the weights that the
 * record has then.  What is refused counts for nobody. */
static void test_share_cap(void **state)
{
    static const double said[K] = {500, 300, 100, 100};
    double used[K];
    (void)state;
    struct rig r;
    rig_begin(&r);
    struct outer_step *s = make_step(&r, alike);
    put_weights(s, said, 0);
    run(&r, s);
    assert_int_equal(s->rc, 0);
    for (size_t c = 0; c < K; c++)
        used[c] = s->contributions[c].weight;
    assert_float_equal(s->contributions[0].share + s->contributions[1].share, 2.0 / 3, 1e-9);
    assert_float_equal(used[0] / used[1], 5.0 / 3, 1e-12);
    assert_true(used[2] == 100 && used[3] == 100);
    struct outer_step *again = make_step(&r, alike);
    put_weights(again, used, 1);
    run(&r, again);
    assert_memory_equal(again->made, s->made, sizeof s->made);
    step_free(again);
    step_free(s);
    s = make_step(&r, (float[K]){0.01f, 0.01f, 0.01f, 1000});
    put_weights(s, said, 0.5);
    run(&r, s);
    assert_int_equal(s->rc, 0);
    assert_true(s->contributions[3].refused);
    for (size_t c = 0; c < 3; c++) /* two are left: each weighs what it does */
        assert_true(s->contributions[c].weight == said[c]);
    step_free(s);
    rig_end(&r);
}

/* From now on this many bytes may be written; see test_fold.c. */
static void limit_writes(long bytes)
{
    if (file_fault_enospc(bytes))
        return;
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = bytes < 0 ? limit.rlim_max : (rlim_t)bytes;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

static void test_disk_full(void **state)
{
    (void)state;
    struct rig r;
    (void)signal(SIGXFSZ, SIG_IGN);
    rig_begin(&r);
    struct outer_step *s = make_step(&r, alike);
    run(&r, s);
    record(&r, s);
    step_free(s);
    s = make_step(&r, alike);
    uint64_t used = r.store->used_bytes;
    for (long bytes = 0; bytes < 30000; bytes += 3333) {
        limit_writes(bytes);
        run(&r, s);
        limit_writes(-1);
        assert_true(s->rc == -ENOSPC || s->rc == -EFBIG);
        assert_true(s->reason[0]);
        assert_int_equal(state_files(&r), 2);
        assert_int_equal(r.store->used_bytes, used);
        for (size_t c = 0; c < K; c++) /* nobody is blamed for our disk */
            assert_false(s->contributions[c].refused);
    }
    run(&r, s);
    record(&r, s);
    step_free(s);
    rig_end(&r);
}

static void test_missing(void **state)
{
    (void)state;
    struct rig r;
    rig_begin(&r);
    struct outer_step *s = make_step(&r, alike);
    memset(s->contributions[0].blob.sha256, 9, 32);
    run(&r, s);
    assert_int_equal(s->rc, -ERR_LIMIT); /* it can be made again */
    assert_true(s->contributions[0].refused && s->contributions[0].damaged);
    step_free(s);
    for (int ema = 0; ema < 2; ema++) { /* a person is told which file is to be put back */
        s = make_step(&r, alike);
        s->old[OUTER_EMA].size = (uint64_t)ema;
        memset(s->old[ema ? OUTER_EMA : OUTER_FULL].sha256, 9, 32);
        run(&r, s);
        assert_int_equal(s->rc, -ERR_HASH);
        assert_non_null(strstr(s->reason, ema ? "the EMA to start from is gone"
                                              : "the version to start from is gone"));
        assert_non_null(
            strstr(s->reason, "0909090909090909090909090909090909090909090909090909090909090909"));
        step_free(s);
    }
    rig_end(&r);
}

/* A bit of a contribution is lost after it came, or a sector cannot be read: its sender may bring
 * it once more. */
static void damaged_contribution(bool unreadable)
{
    struct rig r;
    char path[4096];
    struct blob_id id;
    rig_begin(&r);
    struct outer_step *s = make_step(&r, alike);
    get_path(&r, &s->contributions[1].blob, path);
    if (unreadable) { /* reading that at its beginning is EIO */
        assert_int_equal(unlink(path), 0);
        assert_int_equal(symlink("/proc/self/mem", path), 0);
    } else {
        fx_flip(path);
    }
    run(&r, s);
    assert_int_equal(s->rc, -ERR_LIMIT);
    for (size_t c = 0; c < K; c++)
        assert_true(s->contributions[c].refused == (c == 1) &&
                    s->contributions[c].damaged == (c == 1));
    memcpy(id.sha256, s->contributions[1].blob.sha256, 32);
    assert_false(blobstore_has(r.store, &id, NULL));
    step_free(s);
    s = make_step(&r, alike);
    run(&r, s);
    record(&r, s);
    step_free(s);
    rig_end(&r);
}

static void test_damaged_contribution(void **state)
{
    damaged_contribution(false);
    damaged_contribution(true);
}

/* A store that cannot say now is nobody's failure: nothing is refused or removed, and the same step
 * goes well when it can. */
static struct blobstore_ops far_ops;
static int (*near_local)(struct blobstore *s, const struct blob_id *id, bool wait, char **ret_path,
                         struct err *err);
static void (*near_let_go)(struct blobstore *s, const struct blob_id *id);
static _Atomic int asked, held, fail_at;

static int far_local(struct blobstore *s, const struct blob_id *id, bool wait, char **ret_path,
                     struct err *err)
{
    assert_true(wait);
    if (asked++ == fail_at)
        return err_set(err, -EAGAIN, "the store is busy");
    const int rc = near_local(s, id, wait, ret_path, err);
    held += rc == 0;
    return rc;
}

static void far_let_go(struct blobstore *s, const struct blob_id *id)
{
    held--;
    near_let_go(s, id);
}

static void test_store_out_of_reach(void **state)
{
    struct rig r;
    rig_begin(&r);
    far_ops = *r.store->ops;
    near_local = far_ops.local;
    near_let_go = far_ops.let_go;
    far_ops.local = far_local;
    far_ops.let_go = far_let_go;
    struct outer_step *s = make_step(&r, alike);
    r.store->ops = &far_ops;
    for (fail_at = 0; fail_at <= K; fail_at++) { /* the version, and each contribution */
        asked = 0;
        run(&r, s);
        assert_int_equal(s->rc, -EAGAIN);
        assert_non_null(strstr(s->reason, "the store is busy"));
        for (size_t c = 0; c < K; c++) {
            struct blob_id id;
            memcpy(id.sha256, s->contributions[c].blob.sha256, 32);
            assert_false(s->contributions[c].refused || s->contributions[c].damaged);
            assert_true(blobstore_has(r.store, &id, NULL));
        }
        assert_int_equal(held, 0);
    }
    fail_at = -1;
    run(&r, s);
    assert_int_equal(held, 0);
    record(&r, s);
    step_free(s);
    rig_end(&r);
}

/* Nothing is folded into an optimiser that has lost a bit, and it goes on with a copy. */
static void test_damaged_state(void **state)
{
    static const char *const files[] = {"target", "momentum"};
    struct rig r;
    rig_begin(&r);
    struct outer_step *s = make_step(&r, alike);
    run(&r, s);
    record(&r, s);
    step_free(s);
    for (size_t i = 0; i < 2; i++) {
        char *path = str_printf("%s/%s.1.safetensors", r.state_dir, files[i]);
        fx_flip(path);
        s = make_step(&r, alike);
        run(&r, s);
        assert_int_equal(s->rc, -ERR_HASH);
        assert_non_null(strstr(s->reason, files[i]));
        assert_non_null(strstr(s->reason, path));
        for (size_t c = 0; c < K; c++)
            assert_false(s->contributions[c].refused);
        step_free(s);
        fx_flip(path);
        mem_free(path);
    }
    s = make_step(&r, alike);
    run(&r, s);
    record(&r, s);
    step_free(s);
    rig_end(&r);
}

/* A store far away has another copy of the state: a bit that our disk has lost, or the whole file,
 * comes from there. */
static int far_fetch(struct blobstore *s, const char *name, const char *path,
                     const uint8_t sha256[32], uint64_t size, struct err *err)
{
    char *copy = str_printf("%s.far", path);
    assert_non_null(strstr(path, strrchr(name, '/')));
    const int rc = file_rename(copy, path, err);
    mem_free(copy);
    return rc;
}

static void test_damaged_state_far_away(void **state)
{
    struct rig r;
    rig_begin(&r);
    struct outer_step *s = make_step(&r, alike);
    run(&r, s);
    record(&r, s);
    step_free(s);
    far_ops = *r.store->ops;
    far_ops.fetch = far_fetch;
    r.store->ops = &far_ops;
    char *target = str_printf("%s/target.1.safetensors", r.state_dir);
    char *momentum = str_printf("%s/momentum.1.safetensors", r.state_dir);
    char *copy = str_printf("%s.far", target), *moved = str_printf("%s.far", momentum);
    struct buf bytes;
    assert_int_equal(file_read(target, 64 << 20, &bytes, NULL), 0);
    assert_int_equal(file_write_put(copy, bytes.data, bytes.len, 0600, NULL), 0);
    buf_release(&bytes);
    fx_flip(target);
    assert_int_equal(file_rename(momentum, moved, NULL), 0);
    s = make_step(&r, alike);
    run(&r, s);
    record(&r, s);
    step_free(s);
    mem_free(target);
    mem_free(momentum);
    mem_free(copy);
    mem_free(moved);
    rig_end(&r);
}

/* A version that is damaged or gone is made again from the one before it, where that is kept. */
static void lose_base(bool gone)
{
    struct rig r;
    char path[4096];
    uint8_t hash[HASH_BYTES];
    struct blob_id id;
    rig_begin(&r);
    struct outer_step *s = make_step(&r, alike);
    run(&r, s);
    record(&r, s);
    step_free(s);
    get_path(&r, &r.files[OUTER_FULL], path);
    id = r.files[OUTER_FULL].id;
    s = make_step(&r, alike);
    s->before.size = 0;
    if (gone)
        assert_int_equal(r.store->ops->remove(r.store, &id, NULL), 0);
    else
        fx_flip(path);
    run(&r, s);
    assert_int_equal(s->rc, -ERR_HASH);
    assert_non_null(strstr(s->reason, gone ? "the version to start from is gone"
                                           : "the version to start from is damaged"));
    s->before = r.before;
    limit_writes(0);
    run(&r, s);
    limit_writes(-1);
    assert_true(s->rc == -ENOSPC || s->rc == -EFBIG); /* it is not lost: the disk is full */
    run(&r, s);
    record(&r, s);
    assert_int_equal(hash_file(path, hash, NULL, NULL), 0);
    assert_memory_equal(hash, r.before.sha256, HASH_BYTES);
    step_free(s);
    rig_end(&r);
}

static int damaged_local(struct blobstore *s, const struct blob_id *id, bool wait, char **ret,
                         struct err *err)
{
    return err_set(err, -ERR_HASH, "the store has other bytes");
}

/* A store with other bytes says so itself. */
static void damage_base_in_store(void)
{
    struct rig r;
    rig_begin(&r);
    struct outer_step *s = make_step(&r, alike);
    far_ops = *r.store->ops;
    far_ops.local = damaged_local;
    r.store->ops = &far_ops;
    run(&r, s);
    assert_int_equal(s->rc, -ERR_HASH);
    assert_non_null(strstr(s->reason, "the store has other bytes"));
    step_free(s);
    rig_end(&r);
}

static void test_lost_base(void **state)
{
    (void)signal(SIGXFSZ, SIG_IGN);
    lose_base(false);
    lose_base(true);
    damage_base_in_store();
}

/* Our own version 0 is no module: the senders are not blamed. */
static void test_bad_base(void **state)
{
    (void)state;
    struct rig r;
    struct err err = {0};
    rig_begin(&r);
    char *path = fx_path(&r.f, "base");
    struct outer_step *s = make_step(&r, alike);
    assert_int_equal(file_write_atomic(path, "{}", 2, 0600, &err), 0);
    s->old[OUTER_FULL] = put(&r, path);
    run(&r, s);
    assert_int_equal(s->rc, -ERR_FORMAT);
    assert_non_null(strstr(s->reason, "the version to start from"));
    for (size_t c = 0; c < K; c++)
        assert_false(s->contributions[c].refused);
    step_free(s);
    mem_free(path);
    rig_end(&r);
}

/* Nor where it is a module, but not finite: whatever is added to that is not, either. */
static void test_base_is_not_finite(void **state)
{
    static const enum codec codecs[] = {CODEC_E3M0, CODEC_F32};
    (void)state;
    struct rig r;
    rig_begin(&r);
    char *path = fx_path(&r.f, "base");
    float *x = fx_array();
    fx_read_flat(r.f.full, x);
    x[PARAMS / 2] = INFINITY;
    fx_write_full(path, x);
    for (size_t i = 0; i < sizeof codecs / sizeof codecs[0]; i++) {
        struct outer_step *s = make_step(&r, alike);
        for (size_t c = 0; c < K; c++) {
            s->contributions[c].codec = codecs[i];
            s->contributions[c].blob = noise_as(&r, c, alike[c], 100 + c, codecs[i]);
        }
        s->old[OUTER_FULL] = put(&r, path);
        run(&r, s);
        assert_int_equal(s->rc, -ERR_HASH);
        assert_non_null(strstr(s->reason, "no contribution is to blame"));
        for (size_t c = 0; c < K; c++)
            assert_false(s->contributions[c].refused);
        step_free(s);
    }
    free(x);
    mem_free(path);
    rig_end(&r);
}

static void test_bad_steps(void **state)
{
    (void)state;
    struct rig r;
    struct err err = {0};
    rig_begin(&r);
    struct outer_step *s = make_step(&r, alike), *other = make_step(&r, alike);
    s->min_accepted = 0;
    assert_int_equal(outer_submit(r.exec, s, on_done, &err), -EINVAL);
    s->min_accepted = K + 1;
    assert_int_equal(outer_submit(r.exec, s, on_done, &err), -EINVAL);
    s->min_accepted = 1;
    s->lr = NAN;
    assert_int_equal(outer_submit(r.exec, s, on_done, &err), -EINVAL);
    s->lr = 0.7;
    assert_int_equal(outer_submit(r.exec, s, on_done, &err), 0);
    assert_int_equal(outer_submit(r.exec, other, on_done, &err), -EBUSY);
    while (r.done < 1)
        loop_turn(r.loop, true);
    assert_int_equal(s->rc, 0);
    step_free(s);
    step_free(other);
    rig_end(&r);
}

/* At shutdown every step is answered, and nothing of v+1 is half there. */
static void test_shutdown(void **state)
{
    (void)state;
    struct rig r;
    struct err err = {0};
    struct outer_step *steps[5];
    rig_begin(&r);
    for (int i = 0; i < 5; i++) {
        steps[i] = make_step(&r, alike);
        mem_free(steps[i]->state_dir);
        steps[i]->state_dir = str_printf("%s.%d", r.state_dir, i);
        assert_int_equal(outer_submit(r.exec, steps[i], on_done, &err), 0);
    }
    outer_exec_free(r.exec);
    r.exec = NULL;
    assert_int_equal(r.done, 5);
    for (int i = 0; i < 5; i++) {
        assert_true(steps[i]->rc == 0 || steps[i]->rc == -ERR_CANCELLED);
        assert_true(steps[i]->rc == 0 || steps[i]->reason[0]);
        step_free(steps[i]);
    }
    rig_end(&r);
}

static void test_prune(void **state)
{
    (void)state;
    static const char *const names[] = {
        "target.3.safetensors", "momentum.3.safetensors",          "target.4.safetensors",
        "full.3.safetensors",   "target.2.safetensors.tmp.aBc123", "notes.txt"};
    struct rig r;
    struct err err = {0};
    rig_begin(&r);
    assert_int_equal(outer_state_prune(r.state_dir, 4, UINT64_MAX, &err),
                     0); /* no such directory */
    assert_int_equal(file_mkdirs(r.state_dir, 0700, &err), 0);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char *path = file_join(r.state_dir, names[i]);
        assert_int_equal(file_write_atomic(path, "x", 1, 0600, &err), 0);
        mem_free(path);
    }
    for (int i = 0; i < 2; i++) { /* the spares stay */
        assert_int_equal(outer_state_prune(r.state_dir, 4, UINT64_MAX, &err), 0);
        /* version 4, what is not ours, and two spares */
        assert_int_equal(state_files(&r), 4);
    }
    assert_int_equal(outer_state_prune(r.state_dir, 0, 4, &err), 0);
    assert_int_equal(state_files(&r), 4);
    assert_int_equal(outer_state_prune(r.state_dir, 0, 3, &err), 0);
    assert_int_equal(state_files(&r), 3);
    static const char *const left[] = {"target", "momentum"};
    for (size_t i = 0; i < 2; i++) {
        char *spare = outer_state_spare(r.state_dir, left[i]);
        assert_true(file_exists(spare));
        mem_free(spare);
    }
    rig_end(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rounds),
        cmocka_unit_test(test_redo),
        cmocka_unit_test(test_refuses_outlier),
        cmocka_unit_test(test_refuses_astray),
        cmocka_unit_test(test_refuses_garbage),
        cmocka_unit_test(test_weights),
        cmocka_unit_test(test_share_cap),
        cmocka_unit_test(test_disk_full),
        cmocka_unit_test(test_missing),
        cmocka_unit_test(test_bad_base),
        cmocka_unit_test(test_base_is_not_finite),
        cmocka_unit_test(test_damaged_contribution),
        cmocka_unit_test(test_store_out_of_reach),
        cmocka_unit_test(test_damaged_state),
        cmocka_unit_test(test_damaged_state_far_away),
        cmocka_unit_test(test_lost_base),
        cmocka_unit_test(test_bad_steps),
        cmocka_unit_test(test_shutdown),
        cmocka_unit_test(test_prune),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
