#include "worker/external/process.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/log.h"

#define INHERITED 3 /* the number of the passed descriptor in the child */
#define LINE_MAX_BYTES 1024
#define LINES_AT_ONCE 100   /* lines of its output that are logged at once; */
#define LINE_EVERY_MS 10000 /* then one line per this time */
#define FILES_MAX 4096
#define FILE_BYTES_MAX (1ull << 40)
#define ENV_MAX 256
#define PIPE_BYTES 65536 /* capacity of a pipe */
#define VMSTAT_MAX 65536
#define KILLS_MAX 100     /* searches for remaining processes of a session, a millisecond apart */
#define KILLS_MS 30000    /* time that the kernel may take to end what it has killed */
#define SHELL_SIGNALS 128 /* a shell adds this to the signal of which its command died */

struct process {
    pid_t pid;
    int out; /* its output */
    char what[32];
    char line[LINE_MAX_BYTES];
    size_t line_len;
    bool redrawn;      /* the next bytes replace the line */
    unsigned room;     /* lines that may be logged now */
    uint64_t room_ms;  /* time up to which `room` is counted */
    uint64_t left_out; /* lines dropped since the last logged one */
    char tail[PROCESS_TAIL_MAX];
    const char *vmstat;
    /* The kernel's kills for lack of memory (-1: not known) at two times KILLS_MS apart, of which
     * the second is kills_ms: older ones are of other programs. */
    long long kills[2];
    uint64_t kills_ms;
    bool lacked_memory;
    bool over; /* it has ended; process_end() reaps it, so that its pid stays its session's */
    int status, signo; /* exit status, or with signo not 0 the signal of which it died */
};

/* ---- starting ---- */

/* env has room for ENV_MAX texts, which the caller frees (mem_free). */
static size_t make_env(const struct process_options *opt, char **env)
{
    const char *path = getenv("PATH"), *cuda = getenv("CUDA_VISIBLE_DEVICES");
    char *real = realpath(opt->folder, NULL); /* a relative path is wrong inside the folder */
    const char *folder = real ? real : opt->folder;
    size_t n = 0;
    env[n++] = str_printf("PATH=%s", path ? path : "/usr/local/bin:/usr/bin:/bin");
    env[n++] = str_printf("HOME=%s", folder);
    env[n++] = str_printf("TMPDIR=%s", folder);
    env[n++] = str_dup("LANG=C.UTF-8");
    env[n++] = str_dup("PYTHONUNBUFFERED=1"); /* its last lines are wanted when it dies */
    if (cuda)
        env[n++] = str_printf("CUDA_VISIBLE_DEVICES=%s", cuda);
    if (opt->threads > 0)
        env[n++] = str_printf("OMP_NUM_THREADS=%d", opt->threads);
    if (opt->passed >= 0)
        env[n++] = str_printf("SKERRY_TRAINER_FD=%d", INHERITED);
    for (size_t i = 0; i < opt->n_env && n < ENV_MAX - 1; i++)
        env[n++] = str_dup(opt->env[i]);
    env[n] = NULL;
    free(real);
    return n;
}

static void limit(int what, uint64_t most)
{
    const struct rlimit r = {(rlim_t)most, (rlim_t)most};
    (void)setrlimit((__rlimit_resource_t)what, &r); /* a lower hard limit stays */
}

/* In the child: only calls that are safe between fork and exec. */
static void become(const struct process_options *opt, char *command, char **env, int out)
{
    static const char easy_prey[] = "1000";
    (void)setsid();
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    const int prey = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    if (prey >= 0 && write(prey, easy_prey, sizeof(easy_prey) - 1) < 0)
        (void)close(prey); /* on failure the kernel chooses which process it kills */
    const int nothing = open("/dev/null", O_RDWR);
    int passed = opt->passed;
    if (passed >= 0 && passed <= INHERITED)
        passed = fcntl(passed, F_DUPFD, INHERITED + 1);
    if (nothing < 0 || dup2(nothing, 0) < 0 || dup2(out, 1) < 0 || dup2(out, 2) < 0 ||
        (passed >= 0 && dup2(passed, INHERITED) < 0) || chdir(opt->folder) < 0)
        _exit(126);
    (void)close_range((unsigned)(passed >= 0 ? INHERITED + 1 : INHERITED), ~0u, 0);
    limit(RLIMIT_CORE, 0);
    limit(RLIMIT_NOFILE, FILES_MAX);
    limit(RLIMIT_FSIZE, FILE_BYTES_MAX);
    if (opt->memory_bytes)
        limit(RLIMIT_DATA, opt->memory_bytes);
    sigset_t none;
    sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    for (int s = 1; s < NSIG; s++)
        (void)signal(s, SIG_DFL);
    char *argv[] = {(char *)(uintptr_t) "sh", (char *)(uintptr_t) "-c", command, NULL};
    (void)execve("/bin/sh", argv, env);
    _exit(127);
}

/* A plain command replaces the shell (exec), so that its end is seen at once. */
static char *shell_text(const char *command)
{
    const char *word = command + strspn(command, " ");
    const bool plain = !strpbrk(command, ";&|()<>`\n{}!#") &&
                       !memchr(word, '=', strcspn(word, " ")) && !str_starts(word, "cd ");
    return str_printf("%s%s", plain ? "exec " : "", command);
}

/* How often the kernel has killed for lack of memory, in this machine or any container of it; -1:
 * it does not say. */
static long long count_kills(const char *vmstat)
{
    struct buf text = {0};
    long long n = -1;
    if (file_read(vmstat, VMSTAT_MAX, &text, NULL) == 0) {
        const char *line = strstr(buf_str(&text), "\noom_kill ");
        (void)(line && sscanf(line + 1, "oom_kill %lld", &n));
    }
    buf_release(&text);
    return n;
}

int process_start(const struct process_options *opt, struct process **ret, struct err *err)
{
    int pipes[2];
    char *env[ENV_MAX];
    if (pipe2(pipes, O_CLOEXEC) < 0)
        return err_errno(err, "making a pipe for the %s", opt->what);
    const size_t n = make_env(opt, env);
    char *command = shell_text(opt->command);
    const char *vmstat = opt->vmstat ? opt->vmstat : "/proc/vmstat";
    const long long kills = count_kills(vmstat);
    const pid_t pid = fork();
    if (pid == 0)
        become(opt, command, env, pipes[1]);
    const int rc = pid < 0 ? err_errno(err, "starting the %s", opt->what) : 0;
    for (size_t i = 0; i < n; i++)
        mem_free(env[i]);
    mem_free(command);
    (void)close(pipes[1]);
    if (rc < 0) {
        (void)close(pipes[0]);
        return rc;
    }
    struct process *p = mem_alloc(sizeof(*p));
    p->pid = pid;
    p->out = pipes[0];
    p->vmstat = vmstat;
    p->kills[0] = p->kills[1] = kills;
    p->room = LINES_AT_ONCE;
    p->room_ms = p->kills_ms = clock_now_ms();
    (void)fcntl(p->out, F_SETFL, O_NONBLOCK);
    str_copy(p->what, sizeof(p->what), opt->what);
    *ret = p;
    return 0;
}

/* ---- its session ---- */

struct member {
    char state;
    long session, rss, ticks[4]; /* ticks: user and system, its own and its dead children's */
};

/* Reads a process's /proc entry; false: it is gone. */
static bool read_member(const char *pid, struct member *ret)
{
    char path[64], text[1024];
    (void)snprintf(path, sizeof(path), "/proc/%.20s/stat", pid);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    const ssize_t n = fd < 0 ? 0 : read(fd, text, sizeof(text) - 1);
    if (fd >= 0)
        (void)close(fd);
    text[n > 0 ? n : 0] = '\0';
    const char *p = strrchr(text, ')'); /* the end of the name */
    /* state ppid pgrp session, then the 12th to the 15th and the 22nd from the state on */
    return p &&
           sscanf(p + 1,
                  " %c %*d %*d %ld %*d %*d %*u %*u %*u %*u %*u %ld %ld %ld %ld %*d %*d %*d %*d "
                  "%*u %*u %ld",
                  &ret->state, &ret->session, &ret->ticks[0], &ret->ticks[1], &ret->ticks[2],
                  &ret->ticks[3], &ret->rss) == 7;
}

/* Calls fn for each live process of the session; returns their number. */
static size_t each_member(pid_t session, void (*fn)(void *arg, pid_t pid, const struct member *m),
                          void *arg)
{
    struct member m;
    size_t n = 0;
    DIR *dir = opendir("/proc");
    for (struct dirent *d; dir && (d = readdir(dir));) {
        if (d->d_name[0] < '1' || d->d_name[0] > '9' || !read_member(d->d_name, &m) ||
            m.session != session || m.state == 'Z' || m.state == 'X')
            continue;
        fn(arg, (pid_t)atol(d->d_name), &m);
        n++;
    }
    if (dir)
        (void)closedir(dir);
    return n;
}

static void kill_member(void *arg, pid_t pid, const struct member *m)
{
    (void)kill(pid, SIGKILL);
}

void process_end(struct process *p)
{
    if (!p)
        return;
    (void)kill(p->pid, SIGKILL); /* it may not have a session yet */
    (void)kill(-p->pid, SIGKILL);
    /* Also processes with groups of their own, and those that they start meanwhile. */
    for (int i = 0; i < KILLS_MAX && each_member(p->pid, kill_member, NULL) > 0; i++)
        (void)poll(NULL, 0, 1);
    while (waitpid(-p->pid, NULL, WNOHANG) > 0)
        ; /* reaps orphans, which are ours if we are a container's first process; it may be one */
    while (waitpid(p->pid, NULL, 0) < 0 && errno == EINTR)
        ;
    (void)close(p->out);
    mem_free(p);
}

static uint64_t resident(const struct member *m)
{
    return m->rss > 0 ? (uint64_t)m->rss * (uint64_t)sysconf(_SC_PAGESIZE) : 0;
}

/* Adds a process's part of its memory: a page that n processes share counts 1/n. */
static void add_part(void *arg, pid_t pid, const struct member *m)
{
    char path[64], line[256];
    unsigned long long kib;
    uint64_t *bytes = arg, part = resident(m);
    (void)snprintf(path, sizeof(path), "/proc/%d/smaps_rollup", (int)pid);
    FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof(line), f))
        if (sscanf(line, "Pss: %llu kB", &kib) == 1)
            part = (uint64_t)kib << 10;
    if (f)
        (void)fclose(f);
    *bytes += part;
}

uint64_t process_memory(const struct process *p)
{
    uint64_t bytes = 0;
    (void)each_member(p->pid, add_part, &bytes);
    return bytes;
}

static void add_member(void *arg, pid_t pid, const struct member *m)
{
    struct process_use *use = arg;
    use->bytes += resident(m);
    for (int i = 0; i < 4; i++)
        use->cpu_ms += (uint64_t)m->ticks[i] * 1000 / (uint64_t)sysconf(_SC_CLK_TCK);
    use->processes++;
}

static void forget_kills(struct process *p)
{
    if (clock_now_ms() - p->kills_ms < KILLS_MS)
        return;
    p->kills[0] = p->kills[1];
    p->kills[1] = count_kills(p->vmstat);
    p->kills_ms = clock_now_ms();
}

struct process_use process_use(struct process *p)
{
    struct process_use use = {0};
    forget_kills(p);
    (void)each_member(p->pid, add_member, &use);
    return use;
}

/* ---- its output ---- */

static void add_tail(struct process *p)
{
    const size_t have = strlen(p->tail), len = strlen(p->line) + (have ? 3 : 0);
    if (have + len >= sizeof(p->tail)) { /* the oldest bytes go */
        size_t drop = have + len + 1 - sizeof(p->tail);
        drop = drop < have ? drop : have;
        while (drop < have && ((unsigned char)p->tail[drop] & 0xc0) == 0x80)
            drop++;
        memmove(p->tail, p->tail + drop, have - drop + 1);
    }
    const size_t at = strlen(p->tail);
    (void)snprintf(p->tail + at, sizeof(p->tail) - at, "%s%s", at ? " | " : "", p->line);
}

/* May a line be logged?  A loop that prints every step would fill the log. */
static bool has_room(struct process *p)
{
    const uint64_t more = (clock_now_ms() - p->room_ms) / LINE_EVERY_MS;
    p->room_ms += more * LINE_EVERY_MS;
    p->room = more < LINES_AT_ONCE - p->room ? p->room + (unsigned)more : LINES_AT_ONCE;
    if (p->room == 0)
        return false;
    p->room--;
    return true;
}

static void end_line(struct process *p)
{
    p->line[p->line_len] = '\0';
    p->line_len = 0;
    if (p->line[0] == '\0')
        return;
    add_tail(p);
    if (!has_room(p)) {
        p->left_out++;
        return;
    }
    if (p->left_out > 0)
        log_info(p->what, "%" PRIu64 " lines are left out here", p->left_out);
    p->left_out = 0;
    log_info(p->what, "%s", p->line);
}

static void take_byte(struct process *p, char c)
{
    if (c == '\r') { /* from a progress bar, or before the end of a line */
        p->redrawn = true;
        return;
    }
    if (c == '\n' || p->line_len == sizeof(p->line) - 1)
        end_line(p);
    else if (p->redrawn)
        p->line_len = 0;
    p->redrawn = false;
    if (c != '\n')
        p->line[p->line_len++] = (unsigned char)c < ' ' && c != '\t' ? '?' : c;
}

int process_output_fd(const struct process *p)
{
    return p->out;
}

size_t process_take_output(struct process *p)
{
    char data[4096];
    const ssize_t n = read(p->out, data, sizeof(data));
    for (ssize_t i = 0; i < n; i++)
        take_byte(p, data[i]);
    if (n == 0 && p->line_len > 0)
        end_line(p);
    return n > 0 ? (size_t)n : 0;
}

const char *process_tail(struct process *p)
{
    if (p->line_len > 0)
        end_line(p);
    return p->tail;
}

/* Is the child dead?  It stays a zombie. */
static bool is_dead(struct process *p)
{
    siginfo_t how = {0};
    if (waitid(P_PID, (id_t)p->pid, &how, WEXITED | WNOHANG | WNOWAIT) < 0 || how.si_pid != p->pid)
        return false;
    const bool exited = how.si_code == CLD_EXITED;
    p->status = exited ? how.si_status : 0;
    p->signo = !exited ? how.si_status
               : p->status > SHELL_SIGNALS && p->status < SHELL_SIGNALS + NSIG
                   ? p->status - SHELL_SIGNALS
                   : 0;
    p->lacked_memory =
        p->signo == SIGKILL && p->kills[0] >= 0 && count_kills(p->vmstat) > p->kills[0];
    return true;
}

bool process_lacked_memory(const struct process *p)
{
    return p->lacked_memory;
}

bool process_is_over(struct process *p, char *ret_how, size_t size)
{
    p->over = p->over || is_dead(p);
    if (!p->over)
        return false;
    /* The rest of its output, bounded: its children may write for ever. */
    for (size_t n, left = PIPE_BYTES; left > 0 && (n = process_take_output(p)) > 0;)
        left -= n < left ? n : left;
    if (p->line_len > 0)
        end_line(p);
    if (p->signo)
        (void)snprintf(ret_how, size, "was ended by signal %d (%s)%s", p->signo,
                       strsignal(p->signo),
                       p->lacked_memory      ? " by the kernel, as memory was short"
                       : p->signo == SIGKILL ? ", as the kernel does when memory is short"
                                             : "");
    else
        (void)snprintf(ret_how, size, "ended with exit status %d", p->status);
    return true;
}
