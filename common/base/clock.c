#include "common/base/clock.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

static _Atomic uint64_t fake_ns; /* 0: the real clock */

static uint64_t read_clock(clockid_t id)
{
    struct timespec ts;
    clock_gettime(id, &ts);
    return (uint64_t)ts.tv_sec * CLOCK_NS_PER_S + (uint64_t)ts.tv_nsec;
}

uint64_t clock_now_ns(void)
{
    uint64_t fake = atomic_load(&fake_ns);
    if (fake)
        return fake;
    uint64_t now = read_clock(CLOCK_MONOTONIC);
    return now ? now : 1;
}

uint64_t clock_now_ms(void)
{
    return clock_now_ns() / CLOCK_NS_PER_MS;
}

double clock_since_s(uint64_t begun_ns)
{
    return (double)(clock_now_ns() - begun_ns) / 1e9;
}

char *clock_boot(char out[CLOCK_BOOT_MAX])
{
    const int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    const ssize_t n = fd < 0 ? -1 : read(fd, out, CLOCK_BOOT_MAX - 1);
    out[n > 0 ? n : 0] = '\0';
    out[strcspn(out, "\n")] = '\0';
    if (fd >= 0)
        (void)close(fd);
    return out;
}

void clock_cond_init(pthread_cond_t *cond)
{
    pthread_condattr_t attr;
    (void)pthread_condattr_init(&attr); /* on Linux none of these can fail */
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    (void)pthread_cond_init(cond, &attr);
    (void)pthread_condattr_destroy(&attr);
}

uint64_t clock_wall_ms(void)
{
    uint64_t fake = atomic_load(&fake_ns);
    return (fake ? fake : read_clock(CLOCK_REALTIME)) / CLOCK_NS_PER_MS;
}

char *clock_iso(uint64_t wall_ms, char out[CLOCK_ISO_MAX])
{
    time_t seconds = (time_t)(wall_ms / 1000);
    struct tm tm;
    size_t n = 0;
    if (gmtime_r(&seconds, &tm))
        n = strftime(out, CLOCK_ISO_MAX, "%Y-%m-%dT%H:%M:%S", &tm);
    /* A year beyond four digits cannot come from a clock; show it as unknown. */
    if (n == 0 || n > CLOCK_ISO_MAX - 6)
        n = (size_t)snprintf(out, CLOCK_ISO_MAX, "%s", "0000-00-00T00:00:00");
    (void)snprintf(out + n, CLOCK_ISO_MAX - n, ".%03uZ", (unsigned)(wall_ms % 1000));
    return out;
}

void clock_fake_set(uint64_t now_ns)
{
    atomic_store(&fake_ns, now_ns ? now_ns : 1);
}

void clock_fake_advance(uint64_t by_ns)
{
    atomic_fetch_add(&fake_ns, by_ns);
}

void clock_fake_clear(void)
{
    atomic_store(&fake_ns, 0);
}
