/* What the tests of the network layer share: a directory, keys and a loop. */
#ifndef TESTS_UNIT_NET_NET_TEST_H
#define TESTS_UNIT_NET_NET_TEST_H

#include "common/base/err.h"
#include "common/base/file.h"
#include "common/base/hash.h"
#include "common/base/mem.h"
#include "common/base/str.h"
#include "common/net/keys.h"
#include "common/net/loop.h"
#include "common/net/token.h"
#include "tests/unit/wait.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define TEST_DEADLINE_MS WAIT_MS

struct net_test {
    char dir[64];
    struct loop *loop;
    struct keys *keys;
    struct loop_timer *guard; /* wakes the loop so that a deadline is noticed */
};

static void net_test_guard(void *arg)
{
}

static inline void net_test_init(struct net_test *t)
{
    struct err err = {0};
    (void)str_copy(t->dir, sizeof(t->dir), "/tmp/skerry-net-XXXXXX");
    assert_non_null(mkdtemp(t->dir));
    assert_int_equal(loop_new(&t->loop, &err), 0);
    assert_int_equal(keys_open(t->dir, &t->keys, &err), 0);
    t->guard = loop_timer_new(t->loop, net_test_guard, NULL);
    loop_timer_start(t->guard, 50, 50);
}

static inline void net_test_release(struct net_test *t)
{
    loop_timer_free(t->guard);
    loop_free(t->loop);
    keys_free(t->keys);
    assert_int_equal(file_remove_tree(t->dir, NULL), 0);
}

#endif
