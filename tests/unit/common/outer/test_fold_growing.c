/* A fold whose contributions are still arriving: it reads only what is there, tells how far its
 * delta is written, and gives the bits of the plain fold. */
#include "tests/unit/common/outer/fixture.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "common/outer/wire.h"

#define N 3

/* A contribution that arrives when it is awaited, not a byte earlier. */
struct arrival {
    struct wire_source source;
    struct buf whole;
    uint64_t there, stops; /* after so many bytes nothing comes; 0: all comes */
};

struct delta {
    unsigned told;
    uint64_t reached;
    struct buf before; /* what had been written when it was told last */
    struct fold_written last;
};

struct rig {
    struct fixture f;
    char *paths[N];
    struct fold_input inputs[N];
    struct arrival arrivals[N];
    struct delta delta;
};

static int await(void *arg, uint64_t end, struct err *err)
{
    struct arrival *a = arg;
    if (a->stops && end > a->stops)
        return err_set(err, -ETIMEDOUT, "nothing comes");
    if (end <= a->there)
        return 0;
    assert_true(end <= a->whole.len);
    assert_int_equal(
        pwrite(a->source.fd, a->whole.data + a->there, end - a->there, (off_t)a->there),
        end - a->there);
    a->there = end;
    return 0;
}

static void on_written(void *arg, const struct fold_written *w)
{
    struct delta *d = arg;
    assert_true(w->reached >= w->from && w->reached <= w->bytes);
    assert_true(d->told == 0 || w->reached > d->reached);
    d->told++;
    d->reached = w->reached;
    d->last = *w;
    buf_release(&d->before);
    buf_init(&d->before, 1 << 20);
    const size_t n = (size_t)(w->reached - w->from);
    uint8_t *to;
    assert_int_equal(buf_reserve(&d->before, n, &to), 0);
    assert_int_equal(pread(w->fd, to, n, (off_t)w->from), n);
    buf_commit(&d->before, n);
}

static void begin(struct rig *r, enum codec up)
{
    struct err err = {0};
    float *end = fx_array();
    memset(r, 0, sizeof *r);
    fx_begin(&r->f);
    for (size_t i = 0; i < N; i++) {
        char name[32];
        struct arrival *a = &r->arrivals[i];
        (void)snprintf(name, sizeof name, "c%zu", i);
        r->paths[i] = fx_path(&r->f, name);
        fx_normal(10 + i, 1e-3f, end);
        for (size_t k = 0; k < PARAMS; k++)
            end[k] += r->f.theta[k];
        fx_contribute(r->f.full, 0, end, up, 10, r->paths[i]);
        assert_int_equal(file_read(r->paths[i], 64 << 20, &a->whole, &err), 0);
        char *part = str_printf("%s.part", r->paths[i]);
        a->source = (struct wire_source){.fd = open(part, O_RDWR | O_CREAT, 0600),
                                         .bytes = a->whole.len,
                                         .await = await,
                                         .arg = a};
        assert_true(a->source.fd >= 0);
        mem_free(part);
        r->inputs[i] = (struct fold_input){.path = r->paths[i], .weight = 10 + (double)i};
    }
    free(end);
}

static void end(struct rig *r)
{
    for (size_t i = 0; i < N; i++) {
        close(r->arrivals[i].source.fd);
        buf_release(&r->arrivals[i].whole);
        mem_free(r->paths[i]);
    }
    buf_release(&r->delta.before);
    fx_end(&r->f);
}

static struct fold_step growing(struct rig *r, enum codec up)
{
    struct fold_step s = fx_step(&r->f, r->inputs, N, up, CODEC_E3M0);
    for (size_t i = 0; i < N; i++)
        r->inputs[i].source = &r->arrivals[i].source;
    s.written = on_written;
    s.written_arg = &r->delta;
    s.hash_inputs = true;
    return s;
}

static void same_bits(enum codec up)
{
    struct rig r;
    struct fx_out plain, early;
    struct err err = {0};
    struct buf made;
    begin(&r, up);
    struct fold_step s = fx_step(&r.f, r.inputs, N, up, CODEC_E3M0);
    fx_out_begin(&r.f, "plain", &s, &plain);
    (void)fx_fold(&s);
    s = growing(&r, up);
    fx_out_begin(&r.f, "early", &s, &early);
    const struct fold_result result = fx_fold(&s);
    for (size_t i = 0; i < 5; i++)
        assert_true(fx_same_files(plain.path[i], early.path[i]));
    /* What was told of the delta is what it has in the end, up to its last byte. */
    assert_true(r.delta.told > 1);
    assert_int_equal(r.delta.reached, r.delta.last.bytes);
    assert_int_equal(file_read(early.path[1], 64 << 20, &made, &err), 0);
    assert_int_equal(made.len, r.delta.last.bytes);
    assert_memory_equal(made.data + r.delta.last.from, r.delta.before.data, r.delta.before.len);
    buf_release(&made);
    /* It has read the bytes that the files have, and would notice others. */
    uint8_t hash[HASH_BYTES];
    for (size_t i = 0; i < N; i++)
        r.inputs[i].source = NULL;
    assert_int_equal(fold_hash_inputs(&s, hash, &err), 0);
    assert_memory_equal(hash, result.inputs, sizeof hash);
    fx_flip(r.paths[1]);
    assert_int_equal(fold_hash_inputs(&s, hash, &err), 0);
    assert_memory_not_equal(hash, result.inputs, sizeof hash);
    fx_out_end(&plain);
    fx_out_end(&early);
    end(&r);
}

static void test_same_bits(void **state)
{
    for (int c = 0; c < CODEC_COUNT; c++)
        same_bits((enum codec)c);
}

/* What stops within the header, or half way, leaves no file. */
static void test_never_comes(void **state)
{
    static const uint64_t stops[] = {4, 100, 30000};
    for (size_t i = 0; i < sizeof stops / sizeof stops[0]; i++) {
        struct rig r;
        struct fx_out early;
        struct fold_result result;
        struct err err = {0};
        begin(&r, CODEC_E3M0);
        r.arrivals[2].stops = stops[i];
        struct fold_step s = growing(&r, CODEC_E3M0);
        fx_out_begin(&r.f, "early", &s, &early);
        assert_int_equal(fold_run(&s, &result, &err), -ETIMEDOUT);
        assert_string_equal(err.msg, "nothing comes");
        for (size_t k = 0; k < 5; k++)
            assert_false(file_exists(early.path[k]));
        fx_out_end(&early);
        end(&r);
    }
}

/* A header that lies about its length, or a blob that is longer than was said. */
static void test_bad_header(void **state)
{
    struct rig r;
    struct fx_out early;
    struct fold_result result;
    struct err err = {0};
    begin(&r, CODEC_E3M0);
    struct fold_step s = growing(&r, CODEC_E3M0);
    fx_out_begin(&r.f, "early", &s, &early);
    r.arrivals[0].whole.data[6] = 1;
    assert_int_equal(fold_run(&s, &result, &err), -ERR_FORMAT);
    r.arrivals[0].whole.data[6] = 0;
    r.arrivals[0].there = 0;
    r.arrivals[0].source.bytes--;
    assert_int_equal(fold_run(&s, &result, &err), -ERR_FORMAT);
    fx_out_end(&early);
    end(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bits),
        cmocka_unit_test(test_never_comes),
        cmocka_unit_test(test_bad_header),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
