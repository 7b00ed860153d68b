/* Killed and resumed equals never killed, to the bit. */
#include "kernels/device/device.h"
#include "tests/unit/worker/tiny.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/file.h"
#include "worker/train/checkpoint.h"

enum { STEPS = 12, B = 5 };

static char dir[64], path[96];

static int setup(void **state)
{
    (void)snprintf(dir, sizeof dir, "/tmp/skerry-test-XXXXXX");
    if (!mkdtemp(dir))
        return -1;
    (void)snprintf(path, sizeof path, "%s/train.safetensors", dir);
    return 0;
}

static int teardown(void **state)
{
    return file_remove_tree(dir, NULL);
}

struct bench {
    struct device *dev;
    struct model *m;
    struct trainer *t;
};

static struct train_options options(void)
{
    struct train_options o = tiny_options();
    o.weight_decay = 0.01;
    o.warmup = 3;
    o.schedule = JOB_SCHEDULE_COSINE;
    o.precision = NET_BF16;
    return o;
}

static struct bench open_spec(const struct model_spec *spec, const struct train_options *opt)
{
    struct bench b = {0};
    OK(device_open("cpu", 1, &b.dev, err));
    OK(model_new(spec, &b.m, err));
    OK(trainer_make(b.dev, b.m, opt, &b.t, err));
    return b;
}

static struct bench open_bench(const struct train_options *opt)
{
    const struct model_spec spec = tiny_spec();
    return open_spec(&spec, opt);
}

static void close_bench(struct bench *b)
{
    trainer_free(b->t);
    model_free(b->m);
    device_close(b->dev);
}

static void start(struct bench *b)
{
    float *flat = tiny_weights(b->m, 8);
    OK(trainer_set(b->t, flat, err));
    trainer_position(b->t, 0, STEPS);
    mem_free(flat);
}

static void one_step(struct bench *b)
{
    uint8_t images[B * 108];
    int32_t labels[B];
    struct step_result r;
    tiny_batch(&b->m->spec, trainer_next_step(b->t) * B, B, images, labels);
    OK(tiny_step(b->t, images, labels, B, &r, err));
}

/* All vectors of a trainer that ran to the end without a break. */
static void assert_like_unbroken(struct bench *b)
{
    struct train_options opt = options();
    struct bench whole = open_bench(&opt);
    start(&whole);
    for (int i = 0; i < STEPS; i++)
        one_step(&whole);
    assert_int_equal(trainer_next_step(b->t), STEPS);
    assert_int_equal(trainer_adam_step(b->t), STEPS);
    for (size_t i = 0; i < b->m->n; i++) {
        const struct model_tensor *tensor = &b->m->tensors[i];
        float *x = mem_alloc_array(tensor->count, sizeof *x);
        float *y = mem_alloc_array(tensor->count, sizeof *y);
        for (int v = TRAINER_WEIGHTS; v <= TRAINER_ADAM_V; v++) {
            OK(trainer_read(b->t, (enum trainer_vector)v, tensor, x, err));
            OK(trainer_read(whole.t, (enum trainer_vector)v, &whole.m->tensors[i], y, err));
            assert_memory_equal(x, y, tensor->count * sizeof *x);
        }
        mem_free(x);
        mem_free(y);
    }
    close_bench(&whole);
}

static void test_resume(void **state)
{
    struct train_options opt = options();
    struct bench a = open_bench(&opt);
    start(&a);
    for (int i = 0; i < 5; i++)
        one_step(&a);
    char names[2][8] = {"cursor", "task"}, values[2][8] = {"17", "3.1"};
    struct st_meta pairs[] = {{names[0], values[0]}, {names[1], values[1]}};
    OK(checkpoint_save(a.t, path, pairs, 2, false, err));
    close_bench(&a);

    struct bench b = open_bench(&opt);
    struct st meta = {0};
    OK(checkpoint_load(b.t, path, &meta, err));
    assert_string_equal(checkpoint_pair(&meta, "cursor"), "17");
    assert_string_equal(checkpoint_pair(&meta, "task"), "3.1");
    assert_null(checkpoint_pair(&meta, "nothing"));
    st_release(&meta);
    assert_int_equal(trainer_next_step(b.t), 5);
    assert_int_equal(trainer_total_steps(b.t), STEPS);
    while (trainer_next_step(b.t) < STEPS)
        one_step(&b);
    assert_like_unbroken(&b);
    close_bench(&b);
}

/* Writes the checkpoint again as older releases did, with an average of the weights. */
static void add_average(void)
{
    struct st st = {0};
    struct buf file;
    struct st_writer *w = st_writer_new();
    char name[ST_NAME_MAX];
    uint64_t average = 0;
    OK(st_open(path, &st, err));
    OK(file_read(path, 64 << 20, &file, err));
    for (size_t i = 0; i < st.n_meta; i++)
        st_writer_meta(w, st.meta[i].key, st.meta[i].value);
    for (size_t i = 0; i < st.n_tensors; i++)
        OK(st_writer_add(w, st.tensors[i].name, ST_F32, st.tensors[i].rank, st.tensors[i].shape,
                         err));
    for (size_t i = 0; i < st.n_tensors; i++)
        if (str_starts(st.tensors[i].name, "weights.")) {
            (void)snprintf(name, sizeof name, "ema.%s", st.tensors[i].name + strlen("weights."));
            OK(st_writer_add(w, name, ST_F32, st.tensors[i].rank, st.tensors[i].shape, err));
            average += st.tensors[i].bytes;
        }
    uint8_t *zeros = mem_alloc((size_t)average);
    OK(st_writer_open(w, path, err));
    OK(st_writer_write(w, file.data + st.payload, file.len - st.payload, err));
    OK(st_writer_write(w, zeros, (size_t)average, err));
    OK(st_writer_commit(w, NULL, NULL, err));
    st_writer_free(w);
    st_release(&st);
    buf_release(&file);
    mem_free(zeros);
}

/* A job of an older release that asked for the average goes on from where it was. */
static void test_average(void **state)
{
    struct train_options opt = options(), other = options();
    opt.ema = 0.95;
    struct bench a = open_bench(&opt), b = open_bench(&opt), c = open_bench(&other);
    start(&a);
    for (int i = 0; i < 5; i++)
        one_step(&a);
    OK(checkpoint_save(a.t, path, NULL, 0, false, err));
    add_average();
    OK(checkpoint_load(b.t, path, NULL, err));
    FAILS(checkpoint_load(c.t, path, NULL, err), "another job");
    while (trainer_next_step(b.t) < STEPS)
        one_step(&b);
    assert_like_unbroken(&b);
    close_bench(&a);
    close_bench(&b);
    close_bench(&c);
    OK(file_remove(path, err));
}

/* The life of a worker: resume if there is a checkpoint, save after every step, say so and go on
 * when told to.  SIGKILL comes at any moment. */
static void child(int fd)
{
    struct train_options opt = options();
    struct err e = {0};
    struct bench b = open_bench(&opt);
    int rc = checkpoint_load(b.t, path, NULL, &e);
    if (rc == -ENOENT)
        start(&b);
    else
        OK(rc);
    while (trainer_next_step(b.t) < STEPS) {
        one_step(&b);
        OK(checkpoint_save(b.t, path, NULL, 0, false, err));
        char go;
        if (write(fd, "s", 1) != 1 || read(fd, &go, 1) != 1)
            _exit(2);
    }
    _exit(0);
}

static void test_killed(void **state)
{
    int kills = 0;
    assert_int_equal(file_remove(path, NULL), 0);
    for (int round = 0;; round++) {
        int fds[2], status;
        char byte;
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
        pid_t pid = fork();
        if (pid == 0) {
            close(fds[0]);
            child(fds[1]);
        }
        close(fds[1]);
        /* Let it get through one or two steps of this life, then pull the plug in the next. */
        bool alive = true;
        for (int i = 0; i <= round % 2 && alive; i++)
            alive = read(fds[0], &byte, 1) == 1 && send(fds[0], "g", 1, MSG_NOSIGNAL) == 1;
        if (alive)
            (void)kill(pid, SIGKILL); /* it may have ended by itself */
        close(fds[0]);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        if (WIFEXITED(status)) {
            assert_int_equal(WEXITSTATUS(status), 0);
            break;
        }
        kills++;
    }
    assert_true(kills >= 3);

    struct train_options opt = options();
    struct bench b = open_bench(&opt);
    OK(checkpoint_load(b.t, path, NULL, err));
    assert_like_unbroken(&b);
    close_bench(&b);
}

static void expect_refused(struct trainer *t, int code, const char *what)
{
    struct err err = {0};
    int rc = checkpoint_load(t, path, NULL, &err);
    if (rc != code)
        fail_msg("%s: %d (%s), expected %d", what, rc, err.msg, code);
    assert_non_null(strstr(err.msg, path)); /* the sentence names the file */
}

static void test_refused(void **state)
{
    struct train_options opt = options();
    assert_int_equal(file_remove(path, NULL), 0);
    struct bench a = open_bench(&opt);
    expect_refused(a.t, -ENOENT, "no file");
    start(&a);
    OK(checkpoint_save(a.t, path, NULL, 0, false, err));

    opt.replica++;
    struct bench b = open_bench(&opt);
    expect_refused(b.t, -ERR_CONFIG, "another replica");
    close_bench(&b);

    uint64_t size;
    OK(file_size(path, &size, err));
    assert_int_equal(truncate(path, (off_t)size - 1), 0);
    expect_refused(a.t, -ERR_FORMAT, "cut short");
    assert_int_equal(truncate(path, 5), 0);
    expect_refused(a.t, -ERR_FORMAT, "only five bytes");

    /* A bit flipped into a NaN. */
    OK(checkpoint_save(a.t, path, NULL, 0, false, err));
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    uint32_t nan = 0x7fc00000;
    assert_int_equal(fseek(f, -400, SEEK_END), 0);
    assert_int_equal(fwrite(&nan, 4, 1, f), 1);
    assert_int_equal(fclose(f), 0);
    expect_refused(a.t, -ERR_FORMAT, "a value that is not finite");

    /* A model file is not a checkpoint. */
    float *flat = tiny_weights(a.m, 1);
    OK(model_save(a.m, -1, flat, path, NULL, NULL, err));
    expect_refused(a.t, -ERR_FORMAT, "a model file");
    mem_free(flat);
    close_bench(&a);
}

/* Of two chains: it goes on with the same upscaler, and with no other. */
static void test_upscaler(void **state)
{
    const struct train_options opt = options();
    struct model_spec spec = tiny_cascade();
    struct bench a = open_spec(&spec, &opt);
    start(&a);
    OK(checkpoint_save(a.t, path, NULL, 0, false, err));
    struct bench b = open_spec(&spec, &opt);
    OK(checkpoint_load(b.t, path, NULL, err));
    assert_int_equal(trainer_next_step(b.t), 0);
    close_bench(&b);
    spec.upscaler.noise = 0.5f; /* which no tensor tells */
    b = open_spec(&spec, &opt);
    expect_refused(b.t, -ERR_CONFIG, "another noise");
    close_bench(&b);
    close_bench(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_resume),   cmocka_unit_test(test_average),
        cmocka_unit_test(test_killed),   cmocka_unit_test(test_refused),
        cmocka_unit_test(test_upscaler),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
