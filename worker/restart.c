#include "worker/restart.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/log.h"

#define VARIABLE "SKERRY_RESTARTS"

bool restart_allowed(const char *times, uint64_t now_ms, uint64_t window_ms,
                     char ret_times[RESTART_TIMES_MAX], unsigned *ret_n)
{
    uint64_t last[RESTART_MAX] = {0};
    unsigned n = 0;
    size_t at = 0;
    for (const char *p = times; p && *p;) {
        char *end;
        errno = 0;
        const uint64_t t = strtoull(p, &end, 10);
        if (end == p || errno != 0)
            break;
        if (t <= now_ms && now_ms - t < RESTART_HUNG_WINDOW_MS) {
            memmove(last, last + 1, sizeof(last) - sizeof(last[0]));
            last[RESTART_MAX - 1] = t;
        }
        p = *end == ',' ? end + 1 : end;
    }
    for (int i = 0; i < RESTART_MAX; i++)
        n += last[i] > 0 && now_ms - last[i] < window_ms;
    ret_times[0] = '\0';
    *ret_n = n;
    if (n >= RESTART_MAX)
        return false;
    for (int i = 1; i < RESTART_MAX; i++)
        if (last[i] > 0)
            at += (size_t)snprintf(ret_times + at, RESTART_TIMES_MAX - at, "%" PRIu64 ",", last[i]);
    snprintf(ret_times + at, RESTART_TIMES_MAX - at, "%" PRIu64, now_ms);
    *ret_n = n + 1;
    return true;
}

bool restart_happened(void)
{
    return getenv(VARIABLE) != NULL;
}

/* An open file of the driver would keep the broken context alive. */
static void close_on_exec(void)
{
    DIR *dir = opendir("/proc/self/fd");
    if (!dir)
        return; /* our own files are closed on exec anyway */
    for (const struct dirent *e; (e = readdir(dir)) != NULL;) {
        const int fd = atoi(e->d_name);
        if (fd > STDERR_FILENO)
            (void)fcntl(fd, F_SETFD, FD_CLOEXEC);
    }
    (void)closedir(dir);
}

int restart_self(char **argv, bool hung, struct err *err)
{
    const uint64_t window_ms = hung ? RESTART_HUNG_WINDOW_MS : RESTART_WINDOW_MS;
    char times[RESTART_TIMES_MAX];
    unsigned n;
    if (!restart_allowed(getenv(VARIABLE), clock_now_ms(), window_ms, times, &n))
        return err_set(err, -EBUSY,
                       "the device %s again after %d restarts in %d minutes: look at the "
                       "device (nvidia-smi, dmesg), then start workerd again",
                       hung ? "hangs" : "failed", RESTART_MAX, (int)(window_ms / 60000));
    if (setenv(VARIABLE, times, 1) < 0)
        return err_errno(err, "the environment cannot be written");
    log_warn("workerd", "starting again, as the device %s (%u of at most %d times in %d min)",
             hung ? "hangs" : "failed", n, RESTART_MAX, (int)(window_ms / 60000));
    close_on_exec();
    sigset_t none;
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    (void)execv("/proc/self/exe", argv);
    return err_errno(err, "this program cannot be started again");
}
