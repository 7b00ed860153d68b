/* Early steps: begun while contributions arrive, they are the decided step or have no effect. */
#include "tests/unit/blobs.h"
#include "tests/unit/common/outer/fixture.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/net/growing.h"
#include "common/net/loop.h"
#include "coordinator/outer/outer_early.h"
#include "coordinator/outer/outer_exec.h"
#include "coordinator/outer/outer_run.h"
#include "coordinator/outer/seen.h"
#include "tests/unit/wait.h"

#define K 3
#define HOLDER 7 /* of the first contribution's tickets */

/* A contribution on its way up. */
struct upload {
    struct buf whole;
    struct blob_ref blob;
    struct blob_writer *writer; /* NULL: not begun, or ended */
};

struct rig {
    struct fixture f;
    struct loop *loop;
    struct blobstore *store;
    struct outer_exec *exec;
    char *state_dir;
    struct blob_ref files[OUTER_FILES];
    uint64_t version;
    struct upload up[K];
    unsigned done;
};

static void rig_begin(struct rig *r)
{
    struct err err = {0};
    memset(r, 0, sizeof *r);
    fx_begin(&r->f);
    char *blobs = fx_path(&r->f, "blobs");
    struct buf b;
    struct blob_id id;
    r->state_dir = fx_path(&r->f, "outer");
    assert_int_equal(loop_new(&r->loop, &err), 0);
    assert_int_equal(blob_dir_open(blobs, 0, &r->store, &err), 0);
    assert_int_equal(outer_exec_new(r->loop, r->store, 2, &r->exec, &err), 0);
    assert_int_equal(file_read(r->f.full, 64 << 20, &b, &err), 0);
    assert_int_equal(blob_put(r->store, b.data, b.len, &id, &err), 0);
    memcpy(r->files[OUTER_FULL].sha256, id.sha256, 32);
    r->files[OUTER_FULL].size = b.len;
    buf_release(&b);
    mem_free(blobs);
}

static void drop_uploads(struct rig *r)
{
    for (size_t i = 0; i < K; i++) {
        if (r->up[i].writer)
            r->up[i].writer->ops->abort(r->up[i].writer, false);
        r->up[i].writer = NULL;
        buf_release(&r->up[i].whole);
    }
}

static void rig_end(struct rig *r)
{
    drop_uploads(r);
    outer_exec_free(r->exec);
    r->store->ops->close(r->store);
    loop_free(r->loop);
    mem_free(r->state_dir);
    fx_end(&r->f);
}

/* Makes the contributions of a round, of these sizes; none is uploaded. */
static void contribute(struct rig *r, const float *sizes)
{
    struct err err = {0};
    struct blob_id id;
    char *full, *path = fx_path(&r->f, "c");
    float *theta = fx_array(), *end = fx_array();
    memcpy(id.sha256, r->files[OUTER_FULL].sha256, 32);
    assert_int_equal(r->store->ops->local(r->store, &id, false, &full, &err), 0);
    fx_read_flat(full, theta);
    for (size_t i = 0; i < K; i++) {
        struct upload *u = &r->up[i];
        fx_normal(1000 * r->version + i, sizes[i], end);
        for (size_t k = 0; k < PARAMS; k++)
            end[k] += theta[k];
        fx_contribute(full, r->version, end, CODEC_E3M0, 100 + i, path);
        buf_release(&u->whole);
        assert_int_equal(file_read(path, 64 << 20, &u->whole, &err), 0);
        hash_sha256(u->whole.data, u->whole.len, u->blob.sha256);
        u->blob.size = u->whole.len;
    }
    free(theta);
    free(end);
    mem_free(full);
    mem_free(path);
}

/* Goes on with an upload, to `to` bytes; all of them: commits it. */
static int send_to(struct rig *r, size_t i, size_t to)
{
    struct upload *u = &r->up[i];
    struct err err = {0};
    struct blob_id id;
    memcpy(id.sha256, u->blob.sha256, 32);
    if (!u->writer)
        assert_int_equal(
            r->store->ops->put(r->store, &id, HOLDER + i, u->whole.len, &u->writer, &err), 0);
    const size_t at = (size_t)u->writer->size;
    assert_int_equal(u->writer->ops->write(u->writer, u->whole.data + at, to - at, &err), 0);
    if (to < u->whole.len)
        return 0;
    const int rc = u->writer->ops->commit(u->writer, u->whole.len, &err);
    u->writer = NULL;
    return rc;
}

static void send_parts(struct rig *r, double part)
{
    for (size_t i = 0; i < K; i++)
        assert_int_equal(send_to(r, i, (size_t)(part * (double)r->up[i].whole.len)), 0);
}

static void on_done(struct outer_step *step)
{
    ((struct rig *)step->arg)->done++;
}

static struct outer_step *make_step(struct rig *r)
{
    struct outer_step *s = mem_alloc(sizeof *s);
    *s = (struct outer_step){.module_id = MODULE,
                             .base = r->version,
                             .scale = 1,
                             .state_dir = str_dup(r->state_dir),
                             .down = CODEC_E3M0,
                             .lr = 0.7,
                             .momentum = 0.9,
                             .ema_decay = 0.9,
                             .min_accepted = 2,
                             .arg = r};
    memcpy(s->old, r->files, sizeof s->old);
    s->contributions = mem_alloc_array(K, sizeof *s->contributions);
    s->n_contributions = K;
    for (size_t i = 0; i < K; i++)
        s->contributions[i] = (struct outer_contribution){.tag = i,
                                                          .holder = HOLDER + i,
                                                          .codec = CODEC_E3M0,
                                                          .from = r->version,
                                                          .samples = 100 + i,
                                                          .weight = (double)(100 + i),
                                                          .blob = r->up[i].blob};
    return s;
}

static void run(struct rig *r, struct outer_step *s)
{
    struct err err = {0};
    const unsigned want = r->done + 1;
    if (outer_submit(r->exec, s, on_done, &err) < 0)
        fail_msg("%s", err.msg);
    WAIT_DOING(r->done == want, loop_turn(r->loop, false));
    if (s->rc < 0)
        fail_msg("%s", s->reason);
}

static void record(struct rig *r, const struct outer_step *s)
{
    r->version++;
    memcpy(r->files, s->made, sizeof s->made);
}

static void step_free(struct outer_step *s)
{
    outer_step_release(s);
    mem_free(s);
}

static void same_results(const struct outer_step *a, const struct outer_step *b)
{
    assert_memory_equal(a->made, b->made, sizeof a->made);
    assert_true(a->delta_norm == b->delta_norm && a->residual_norm == b->residual_norm);
}

/* Runs a step without an early one, on what is uploaded by now. */
static void run_plain(struct rig *r, struct outer_step *s)
{
    outer_early_stop(r->exec, r->state_dir);
    run(r, s);
    assert_false(s->early);
}

/* Begins the step early, and waits until a part of its delta is there. */
static struct growing *begin_early(struct rig *r)
{
    struct growing *g = NULL;
    assert_int_equal(outer_early(r->exec, make_step(r), NULL), 0);
    WAIT_DOING(outer_early_delta(r->exec, r->state_dir, &g) == 0, loop_turn(r->loop, false));
    return g;
}

/* The whole of what is sent of a delta, put in order, has the hash of the version's. */
static void expect_delta(struct rig *r, struct growing *g, const struct blob_ref *delta)
{
    struct err err = {0};
    const size_t n = (size_t)growing_length(g);
    uint8_t *sent = mem_alloc(n), got[32];
    uint64_t bytes = 0;
    for (size_t at = 0; at < n;) {
        const ssize_t more = growing_read(g, at, sent + at, n - at);
        assert_true(more > 0);
        at += (size_t)more;
    }
    char *from = fx_path(&r->f, "sent"), *to = fx_path(&r->f, "restored");
    assert_int_equal(file_write_put(from, sent, n, 0600, &err), 0);
    assert_int_equal(growing_restore(from, to, got, &bytes, &err), 0);
    assert_int_equal(bytes, delta->size);
    assert_memory_equal(got, delta->sha256, 32);
    mem_free(from);
    mem_free(to);
    mem_free(sent);
}

static const float alike[K] = {1e-3f, 1e-3f, 1.1e-3f};

/* Three rounds, each begun early, give the bits of three that are not. */
static void test_taken(void **state)
{
    struct rig r, plain;
    uint8_t byte;
    rig_begin(&r);
    rig_begin(&plain);
    for (int round = 0; round < 3; round++) {
        contribute(&r, alike);
        contribute(&plain, alike);
        send_parts(&plain, 1);
        struct outer_step *want = make_step(&plain), *got = make_step(&r);
        run_plain(&plain, want);
        record(&plain, want);
        send_parts(&r, 0.4);
        struct growing *g = begin_early(&r);
        assert_int_equal(growing_read(g, growing_length(g) - 1, &byte, 1), 0); /* not yet */
        send_parts(&r, 1);
        run(&r, got);
        assert_true(got->early);
        same_results(got, want);
        expect_delta(&r, g, &got->made[OUTER_DELTA]);
        record(&r, got);
        growing_drop(g);
        step_free(want);
        step_free(got);
    }
    rig_end(&r);
    rig_end(&plain);
}

/* One is here already, one is cut and resumed, one has not begun when the step does. */
static void test_uploads(void **state)
{
    struct rig r;
    rig_begin(&r);
    contribute(&r, alike);
    assert_int_equal(send_to(&r, 0, r.up[0].whole.len), 0);
    assert_int_equal(send_to(&r, 1, 9000), 0);
    assert_int_equal(outer_early(r.exec, make_step(&r), NULL), 0);
    r.up[1].writer->ops->abort(r.up[1].writer, true);
    r.up[1].writer = NULL;
    assert_int_equal(send_to(&r, 1, 20000), 0);
    assert_int_equal(send_to(&r, 2, 20000), 0);
    struct growing *g = NULL;
    WAIT_DOING(outer_early_delta(r.exec, r.state_dir, &g) == 0, loop_turn(r.loop, false));
    growing_drop(g);
    assert_int_equal(send_to(&r, 1, r.up[1].whole.len), 0);
    assert_int_equal(send_to(&r, 2, r.up[2].whole.len), 0);
    struct outer_step *s = make_step(&r);
    run(&r, s);
    assert_true(s->early);
    step_free(s);
    rig_end(&r);
}

typedef void change_fn(struct outer_step *s);

static void weigh(struct outer_step *s)
{
    s->contributions[1].weight = 500;
}

static void cap(struct outer_step *s)
{
    s->share_cap = 0.1;
    for (size_t i = 0; i < K; i++)
        s->contributions[i].sender = i;
    weigh(s);
}

static void lose_one(struct outer_step *s)
{
    s->n_contributions--;
}

static void learn_slower(struct outer_step *s)
{
    s->lr = 0.5;
}

/* The step that is decided is not the one that was begun: it has the bits that it always has. */
static void expect_anew(const float *sizes, change_fn *change)
{
    struct rig r, plain;
    uint8_t byte;
    rig_begin(&r);
    rig_begin(&plain);
    contribute(&r, sizes);
    contribute(&plain, sizes);
    send_parts(&plain, 1);
    struct outer_step *want = make_step(&plain), *got = make_step(&r);
    if (change) {
        change(want);
        change(got);
    }
    run_plain(&plain, want);
    send_parts(&r, 0.4);
    struct growing *g = begin_early(&r);
    send_parts(&r, 1);
    run(&r, got);
    assert_false(got->early);
    same_results(got, want);
    for (size_t i = 0; i < got->n_contributions; i++) {
        assert_int_equal(got->contributions[i].refused, want->contributions[i].refused);
        assert_true(got->contributions[i].shrink == want->contributions[i].shrink);
        assert_true(got->contributions[i].share == want->contributions[i].share);
    }
    assert_int_equal(growing_read(g, 8, &byte, 1), -1); /* its readers are told */
    growing_drop(g);
    step_free(want);
    step_free(got);
    rig_end(&r);
    rig_end(&plain);
}

static void test_made_anew(void **state)
{
    static const float outlier[K] = {1e-3f, 5e-2f, 1e-3f}, large[K] = {1e-3f, 3e-3f, 1e-3f};
    expect_anew(alike, weigh);
    expect_anew(alike, cap);
    expect_anew(alike, lose_one); /* a lost worker */
    expect_anew(alike, learn_slower);
    expect_anew(outlier, NULL); /* refused */
    expect_anew(large, NULL);   /* refused, since it does not point with the others */
}

/* Bytes that were given up, or were never those of the blob, are in no version. */
static void wrong_bytes(bool whole)
{
    struct rig r, plain;
    rig_begin(&r);
    rig_begin(&plain);
    contribute(&r, alike);
    contribute(&plain, alike);
    send_parts(&plain, 1);
    struct outer_step *want = make_step(&plain), *got = make_step(&r);
    run_plain(&plain, want);
    struct upload *u = &r.up[1];
    const size_t at = u->whole.len / 2;
    u->whole.data[at] ^= 0x11;
    send_parts(&r, 0.6);
    struct growing *g = begin_early(&r);
    growing_drop(g);
    assert_int_equal(send_to(&r, 0, r.up[0].whole.len), 0);
    assert_int_equal(send_to(&r, 2, r.up[2].whole.len), 0);
    if (whole) {
        assert_int_equal(send_to(&r, 1, u->whole.len - 1), 0);
        assert_int_equal(send_to(&r, 1, u->whole.len), -ERR_HASH);
    } else {
        u->writer->ops->abort(u->writer, false);
        u->writer = NULL;
    }
    u->whole.data[at] ^= 0x11;
    assert_int_equal(send_to(&r, 1, u->whole.len), 0);
    run(&r, got);
    assert_false(got->early);
    same_results(got, want);
    step_free(want);
    step_free(got);
    rig_end(&r);
    rig_end(&plain);
}

static void test_wrong_bytes(void **state)
{
    wrong_bytes(true);
    wrong_bytes(false);
}

/* It is stopped while it waits; the next one can begin when it has ended, and not before. */
static void test_stopped(void **state)
{
    struct rig r;
    struct growing *g = NULL;
    uint8_t byte;
    rig_begin(&r);
    contribute(&r, alike);
    send_parts(&r, 0.4);
    g = begin_early(&r);
    assert_int_equal(outer_early(r.exec, make_step(&r), NULL), -EAGAIN);
    outer_early_stop(r.exec, r.state_dir);
    outer_early_stop(r.exec, "elsewhere");
    assert_int_equal(growing_read(g, 8, &byte, 1), -1);
    growing_drop(g);
    assert_int_equal(outer_early_delta(r.exec, r.state_dir, &g), -ERR_NOTFOUND);
    WAIT_DOING(outer_early(r.exec, make_step(&r), NULL) == 0, loop_turn(r.loop, false));
    send_parts(&r, 1);
    struct outer_step *s = make_step(&r);
    run(&r, s);
    assert_true(s->early);
    assert_int_equal(outer_early_delta(r.exec, r.state_dir, &g), -ERR_NOTFOUND);
    step_free(s);
    rig_end(&r);
}

/* Bytes that do not come are not waited for without end, and hold up no other step. */
static void test_stalled(void **state)
{
    struct rig r;
    struct growing *g = NULL;
    rig_begin(&r);
    contribute(&r, alike);
    send_parts(&r, 0.4);
    clock_fake_set(clock_now_ns());
    assert_int_equal(outer_early(r.exec, make_step(&r), NULL), 0);
    while (outer_early_delta(r.exec, r.state_dir, &g) == -EAGAIN)
        loop_turn(r.loop, false);
    growing_drop(g);
    while (outer_early_delta(r.exec, r.state_dir, &g) == 0) {
        growing_drop(g);
        clock_fake_advance(CLOCK_NS_PER_S);
        loop_turn(r.loop, false);
    }
    clock_fake_clear();
    rig_end(&r);
}

static bool is_whole(struct growing *g)
{
    uint8_t byte;
    return growing_read(g, growing_length(g) - 1, &byte, 1) == 1;
}

static size_t n_files(const struct rig *r)
{
    struct file_names names = {0};
    assert_int_equal(file_list(r->state_dir, 100, &names, NULL), 0);
    const size_t n = names.n;
    file_names_release(&names);
    return n;
}

/* Nothing is left of one that was whole when it was stopped, or when its step failed. */
static void test_undecided(void **state)
{
    static const float outlier[K] = {1e-3f, 5e-2f, 1e-3f};
    struct rig r;
    struct err err = {0};
    rig_begin(&r);
    contribute(&r, outlier);
    send_parts(&r, 1);
    struct growing *g = begin_early(&r);
    WAIT_DOING(is_whole(g), loop_turn(r.loop, false));
    growing_drop(g);
    WAIT_DOING(n_files(&r) == 5, loop_turn(r.loop, false));
    outer_early_stop(r.exec, r.state_dir);
    WAIT_DOING(n_files(&r) == 0, loop_turn(r.loop, false));
    WAIT_DOING(outer_early_has_place(r.exec, 0, r.state_dir), loop_turn(r.loop, false));
    g = begin_early(&r);
    WAIT_DOING(is_whole(g), loop_turn(r.loop, false));
    struct outer_step *s = make_step(&r);
    s->min_accepted = K;
    assert_int_equal(outer_submit(r.exec, s, on_done, &err), 0);
    WAIT_DOING(r.done == 1, loop_turn(r.loop, false));
    assert_int_equal(s->rc, -ERR_LIMIT);
    WAIT_DOING(n_files(&r) == 0, loop_turn(r.loop, false));
    assert_true(growing_is_given_up(g));
    growing_drop(g);
    step_free(s);
    rig_end(&r);
}

static struct outer_step *step_of(struct rig *r, uint64_t job_id, unsigned i)
{
    struct outer_step *s = make_step(r);
    mem_free(s->state_dir);
    s->job_id = job_id;
    s->state_dir = str_printf("%s-%u-%u", r->state_dir, (unsigned)job_id, i);
    return s;
}

static unsigned n_ended;

static void on_end(struct outer_step *step)
{
    n_ended++;
}

/* Uploads that are slow keep no other job from its early steps. */
static void test_fair(void **state)
{
    struct rig r;
    struct growing *g = NULL;
    rig_begin(&r);
    contribute(&r, alike);
    send_parts(&r, 0.4);
    for (unsigned i = 0; i <= OUTER_EARLY_OF_JOB; i++)
        assert_int_equal(outer_early(r.exec, step_of(&r, 1, i), NULL),
                         i < OUTER_EARLY_OF_JOB ? 0 : -EAGAIN);
    struct outer_step *s = step_of(&r, 2, 0);
    char *dir = str_dup(s->state_dir);
    s->n_contributions = 1; /* which comes, unlike the others */
    assert_int_equal(outer_early(r.exec, s, on_end), 0);
    assert_int_equal(send_to(&r, 0, r.up[0].whole.len), 0);
    WAIT_DOING(n_ended == 1, loop_turn(r.loop, false));
    assert_int_equal(outer_early_delta(r.exec, dir, &g), 0);
    assert_true(is_whole(g));
    growing_drop(g);
    mem_free(dir);
    rig_end(&r);
}

/* One that waits for its turn to compute ends when it is stopped: its step may wait for that. */
static void test_stopped_before_its_turn(void **state)
{
    struct rig r;
    rig_begin(&r);
    contribute(&r, alike);
    send_parts(&r, 1);
    n_ended = 0;
    for (unsigned i = 0; i < OUTER_EARLY_COMPUTING; i++) /* others compute for long */
        assert_int_equal(sem_trywait(&r.exec->computing), 0);
    assert_int_equal(outer_early(r.exec, make_step(&r), on_end), 0);
    outer_early_stop(r.exec, r.state_dir);
    WAIT_DOING(n_ended == 1, loop_turn(r.loop, false));
    assert_int_equal(sem_trywait(&r.exec->computing), -1);
    for (unsigned i = 0; i < OUTER_EARLY_COMPUTING; i++)
        assert_int_equal(sem_post(&r.exec->computing), 0);
    struct outer_step *s = make_step(&r);
    run_plain(&r, s);
    step_free(s);
    rig_end(&r);
}

/* The step may be decided while the files of one that was whole are removed. */
static void test_decided_meanwhile(void **state)
{
    struct rig r;
    rig_begin(&r);
    contribute(&r, alike);
    send_parts(&r, 1);
    n_ended = 0;
    assert_int_equal(outer_early(r.exec, make_step(&r), on_end), 0);
    WAIT_DOING(n_ended == 1, loop_turn(r.loop, false));
    assert_int_equal(n_files(&r), 5);
    struct outer_step *s = make_step(&r);
    run_plain(&r, s);
    step_free(s);
    rig_end(&r);
}

/* Changes the last byte of a file as a bad disk does, which leaves the file's times. */
static void damage(const char *path)
{
    uint8_t byte;
    struct stat st;
    const int fd = open(path, O_RDWR);
    assert_true(fd >= 0 && fstat(fd, &st) == 0);
    assert_int_equal(pread(fd, &byte, 1, st.st_size - 1), 1);
    byte ^= 0x40;
    assert_int_equal(pwrite(fd, &byte, 1, st.st_size - 1), 1);
    assert_int_equal(futimens(fd, (struct timespec[]){st.st_atim, st.st_mtim}), 0);
    assert_int_equal(close(fd), 0);
}

static void wait_long(void)
{
    clock_fake_set(clock_now_ns() + 2 * (uint64_t)SEEN_MS * CLOCK_NS_PER_MS);
}

/* What the step starts from is damaged while contributions arrive: that is in no version, and the
 * step says what it is.  `seen`: it was intact a moment before it is begun early.  `mended`: before
 * it is decided, so that only what was begun is lost. */
static void damaged_meanwhile(bool seen, bool mended)
{
    struct rig r, plain;
    struct err err = {0};
    struct growing *g = NULL;
    rig_begin(&r);
    rig_begin(&plain);
    for (int round = 0; round < 2; round++) {
        contribute(&r, alike);
        contribute(&plain, alike);
        send_parts(&plain, 1);
        struct outer_step *want = make_step(&plain), *got = make_step(&r);
        run_plain(&plain, want);
        record(&plain, want);
        send_parts(&r, 0.4);
        n_ended = 0;
        if (!seen)
            wait_long();
        assert_int_equal(outer_early(r.exec, make_step(&r), on_end), 0);
        WAIT_DOING(outer_early_delta(r.exec, r.state_dir, &g) == 0, loop_turn(r.loop, false));
        growing_drop(g);
        char *target = outer_state_file(r.state_dir, "target", r.version);
        if (round > 0)
            damage(target);
        send_parts(&r, 1);
        if (seen || (round > 0 && mended))
            WAIT_DOING(n_ended == 1, loop_turn(r.loop, false));
        if (seen)
            wait_long();
        if (round > 0 && mended) {
            damage(target);
        } else if (round > 0) {
            assert_int_equal(outer_submit(r.exec, got, on_done, &err), 0);
            WAIT_DOING(r.done == 2, loop_turn(r.loop, false));
            assert_int_equal(got->rc, -ERR_HASH);
            assert_non_null(strstr(got->reason, "target"));
            damage(target);
        }
        run(&r, got);
        assert_int_equal(got->early, round == 0);
        same_results(got, want);
        record(&r, got);
        mem_free(target);
        step_free(want);
        step_free(got);
    }
    clock_fake_clear();
    rig_end(&r);
    rig_end(&plain);
}

static void test_damaged_meanwhile(void **state)
{
    damaged_meanwhile(false, false);
    damaged_meanwhile(false, true);
    damaged_meanwhile(true, false);
}

/* The bytes that this process has read. */
static uint64_t bytes_read(void)
{
    FILE *io = fopen("/proc/self/io", "r");
    unsigned long long n = 0;
    assert_non_null(io);
    assert_int_equal(fscanf(io, "rchar: %llu", &n), 1);
    (void)fclose(io);
    return n;
}

/* What a step reads that was begun early, and is decided so much later. */
static uint64_t reads_of(uint64_t later_ms)
{
    struct rig r;
    rig_begin(&r);
    contribute(&r, alike);
    send_parts(&r, 1);
    const uint64_t before = bytes_read();
    n_ended = 0;
    assert_int_equal(outer_early(r.exec, make_step(&r), on_end), 0);
    WAIT_DOING(n_ended == 1, loop_turn(r.loop, false));
    if (later_ms > 0)
        clock_fake_set(clock_now_ns() + later_ms * CLOCK_NS_PER_MS);
    struct outer_step *s = make_step(&r);
    run(&r, s);
    clock_fake_clear();
    assert_true(s->early);
    const uint64_t n = bytes_read() - before;
    step_free(s);
    rig_end(&r);
    return n;
}

/* However long contributions take to arrive, what the step starts from is hashed once. */
static void test_checked_once(void **state)
{
    const uint64_t soon = reads_of(0), late = reads_of(2 * (uint64_t)SEEN_MS);
    if (late > soon + 4096)
        fail_msg("%llu bytes are read, not %llu", (unsigned long long)late,
                 (unsigned long long)soon);
}

/* Too many at a time are refused, and all end with the executor. */
static void test_shutdown(void **state)
{
    struct rig r;
    rig_begin(&r);
    contribute(&r, alike);
    send_parts(&r, 0.4);
    for (unsigned i = 0; i <= OUTER_EARLY_MAX; i++)
        assert_int_equal(outer_early(r.exec, step_of(&r, i, 0), NULL),
                         i < OUTER_EARLY_MAX ? 0 : -EAGAIN);
    rig_end(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_taken),
        cmocka_unit_test(test_uploads),
        cmocka_unit_test(test_made_anew),
        cmocka_unit_test(test_wrong_bytes),
        cmocka_unit_test(test_stopped),
        cmocka_unit_test(test_stalled),
        cmocka_unit_test(test_undecided),
        cmocka_unit_test(test_fair),
        cmocka_unit_test(test_stopped_before_its_turn),
        cmocka_unit_test(test_decided_meanwhile),
        cmocka_unit_test(test_damaged_meanwhile),
        cmocka_unit_test(test_checked_once),
        cmocka_unit_test(test_shutdown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
