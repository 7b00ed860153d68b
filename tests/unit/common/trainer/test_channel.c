#include "common/trainer/channel.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/trainer.pb-c.h"
#include "tests/unit/common/base/util.h"

static void pair_up(int fds[2])
{
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
}

static Skerry__Trainer__V1__Failed message(char *reason)
{
    Skerry__Trainer__V1__Failed m = SKERRY__TRAINER__V1__FAILED__INIT;
    m.reason = reason;
    return m;
}

static void passes_frames_and_descriptors(void **state)
{
    int fds[2], memory = -1;
    struct channel_frame f;
    struct stat st;
    pair_up(fds);
    OK(channel_memory("test", 4096, &memory, err));
    assert_true(ftruncate(memory, 1) < 0); /* the other side cannot cut it */
    char one[] = "one", two[] = "two";
    Skerry__Trainer__V1__Failed a = message(one), b = message(two);
    OK(channel_send(fds[0], &a.base, -1, 0, err));
    OK(channel_send(fds[0], &b.base, memory, 0, err));
    assert_int_equal(channel_receive(fds[1], 0, 0, &f, NULL), 1);
    assert_int_equal(f.passed, -1);
    assert_int_equal(f.len, 5);
    mem_free(f.data);
    assert_int_equal(channel_receive(fds[1], 0, 0, &f, NULL), 1);
    assert_int_equal(fstat(f.passed, &st), 0);
    assert_int_equal(st.st_size, 4096);
    (void)close(f.passed);
    mem_free(f.data);
    assert_int_equal(channel_receive(fds[1], 0, 0, &f, NULL), 0);
    (void)close(fds[0]);
    FAILS(channel_receive(fds[1], 0, 0, &f, err), "is gone");
    FAILS(channel_send(fds[1], &a.base, -1, 0, err), "is gone");
    (void)close(memory);
    (void)close(fds[1]);
}

static void bounds_what_comes(void **state)
{
    int fds[2];
    struct channel_frame f;
    pair_up(fds);
    assert_int_equal(write(fds[0], "\x05\0\0\0he", 6), 6);
    FAILS(channel_receive(fds[1], 0, 0, &f, err), "does not end");
    (void)close(fds[0]);
    (void)close(fds[1]);
    pair_up(fds);
    assert_int_equal(write(fds[0], "\1\0\0\1", 4), 4);
    FAILS(channel_receive(fds[1], 0, 0, &f, err), "16777217 bytes");
    (void)close(fds[0]);
    (void)close(fds[1]);
}

/* A peer that does not read is waited for, and no longer than that. */
static void gives_up_on_deaf_ones(void **state)
{
    int fds[2];
    pair_up(fds);
    char *long_text = mem_alloc(1 << 20);
    memset(long_text, 'x', (1 << 20) - 1);
    Skerry__Trainer__V1__Failed m = message(long_text);
    FAILS(channel_send(fds[0], &m.base, -1, 1, err), "does not read");
    mem_free(long_text);
    (void)close(fds[0]);
    (void)close(fds[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(passes_frames_and_descriptors),
        cmocka_unit_test(bounds_what_comes),
        cmocka_unit_test(gives_up_on_deaf_ones),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
