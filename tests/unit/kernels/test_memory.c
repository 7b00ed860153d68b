/* What the CPU says of its memory, read from made-up /proc and /sys. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "common/base/file.h"
#include "kernels/cpu/memory.h"
#include "kernels/device/device.h"

#define KIB UINT64_C(1024)

struct machine {
    char root[64];
};

static void put(const struct machine *m, const char *path, const char *text)
{
    char full[256], dir[256];
    struct err err = {0};
    snprintf(full, sizeof full, "%s/%s", m->root, path);
    snprintf(dir, sizeof dir, "%s", full);
    *strrchr(dir, '/') = '\0';
    if (file_mkdirs(dir, 0700, &err) < 0)
        fail_msg("%s", err.msg);
    FILE *f = fopen(full, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

static void make(struct machine *m, const char *groups)
{
    strcpy(m->root, "/tmp/skerry-memory-XXXXXX");
    assert_non_null(mkdtemp(m->root));
    put(m, "proc/meminfo",
        "MemTotal:       64000 kB\nMemFree:         1000 kB\nMemAvailable:   48000 kB\n");
    put(m, "proc/self/cgroup", groups);
}

static void expect(const struct machine *m, uint64_t left, uint64_t all)
{
    uint64_t got_free = 0, got_total = 0;
    assert_int_equal(cpu_memory_read(m->root, &got_free, &got_total), 0);
    assert_int_equal(got_free, left);
    assert_int_equal(got_total, all);
}

static void unmake(const struct machine *m)
{
    struct err err = {0};
    if (file_remove_tree(m->root, &err) < 0)
        fail_msg("%s", err.msg);
}

static void test_machine(void **state)
{
    struct machine m;
    make(&m, "0::/\n");
    expect(&m, 48000 * KIB, 64000 * KIB);
    put(&m, "sys/fs/cgroup/memory.max", "max\n"); /* no limit */
    put(&m, "sys/fs/cgroup/memory.current", "123\n");
    expect(&m, 48000 * KIB, 64000 * KIB);
    put(&m, "proc/meminfo", "MemTotal: 64000 kB\n");
    assert_int_equal(cpu_memory_read(m.root, NULL, NULL), -ERR_DEVICE);
    unmake(&m);
}

/* Version 2: the group's limit, or that of one above it; page cache counts as free. */
static void test_groups(void **state)
{
    struct machine m;
    make(&m, "0::/swarm/worker\n");
    put(&m, "sys/fs/cgroup/swarm/worker/memory.max", "30000000\n");
    put(&m, "sys/fs/cgroup/swarm/worker/memory.current", "9000000\n");
    put(&m, "sys/fs/cgroup/swarm/worker/memory.stat",
        "anon 5000000\nactive_file 2000000\ninactive_file 1000000\n");
    expect(&m, 22000000, 30000000);
    put(&m, "sys/fs/cgroup/swarm/memory.max", "20000000\n");
    put(&m, "sys/fs/cgroup/swarm/memory.current", "15000000\n");
    expect(&m, 5000000, 20000000);
    put(&m, "sys/fs/cgroup/swarm/memory.current", "25000000\n");
    expect(&m, 0, 20000000);
    unmake(&m);
}

static void test_groups_of_version_1(void **state)
{
    struct machine m;
    make(&m, "9:name=systemd:/\n4:memory:/box\n3:cpuset:/\n0::/\n");
    put(&m, "sys/fs/cgroup/memory/box/memory.limit_in_bytes", "30000000\n");
    put(&m, "sys/fs/cgroup/memory/box/memory.usage_in_bytes", "9000000\n");
    put(&m, "sys/fs/cgroup/memory/box/memory.stat", "inactive_file 1\ntotal_inactive_file 500\n");
    expect(&m, 21000500, 30000000);
    put(&m, "sys/fs/cgroup/memory/box/memory.limit_in_bytes", "9223372036854771712\n");
    expect(&m, 48000 * KIB, 64000 * KIB);
    unmake(&m);
}

/* Limits of the process: what it has mapped is taken. */
static void test_own_limits(void **state)
{
    struct machine m;
    make(&m, "0::/\n");
    put(&m, "proc/self/status", "VmPeak:   9000 kB\nVmSize:\t    5000 kB\nVmData:\t  2000 kB\n");
    put(&m, "proc/self/limits",
        "Limit                     Soft Limit           Hard Limit           Units     \n"
        "Max data size             unlimited            unlimited            bytes     \n"
        "Max address space         unlimited            unlimited            bytes     \n");
    expect(&m, 48000 * KIB, 64000 * KIB);
    put(&m, "proc/self/limits",
        "Max data size             unlimited            unlimited            bytes     \n"
        "Max address space         20480000             unlimited            bytes     \n");
    expect(&m, 15000 * KIB, 20000 * KIB);
    put(&m, "proc/self/limits",
        "Max data size             3072000              9999999999           bytes     \n"
        "Max address space         20480000             unlimited            bytes     \n");
    expect(&m, 1000 * KIB, 3000 * KIB);
    put(&m, "proc/self/status", "VmSize:\t    5000 kB\nVmData:\t  4000 kB\n");
    expect(&m, 0, 3000 * KIB);
    unmake(&m);
}

static void test_device(void **state)
{
    static const char *const names[] = {"cpu", "cpu-ref"};
    struct err err = {0};
    for (size_t i = 0; i < 2; i++) {
        struct device *dev;
        uint64_t left = 0, all = 0;
        assert_int_equal(device_open(names[i], 1, &dev, &err), 0);
        assert_int_equal(dev->ops->memory(dev, &left, &all), 0);
        assert_true(left > 1 << 20 && left <= all);
        assert_int_equal(dev->ops->memory(dev, NULL, NULL), 0);
        device_close(dev);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_machine),
        cmocka_unit_test(test_groups),
        cmocka_unit_test(test_groups_of_version_1),
        cmocka_unit_test(test_own_limits),
        cmocka_unit_test(test_device),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
