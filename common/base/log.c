#include "common/base/log.h"

#include <stdatomic.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define LINE_MAX_BYTES 2048

static _Atomic int min_level = LOG_LEVEL_INFO;

static const char *const level_names[] = {"debug", "info", "warn", "error"};

void log_set_level(enum log_level level)
{
    atomic_store_explicit(&min_level, (int)level, memory_order_relaxed);
}

bool log_enabled(enum log_level level)
{
    return (int)level >= atomic_load_explicit(&min_level, memory_order_relaxed);
}

int log_level_parse(const char *name, enum log_level *ret)
{
    for (size_t i = 0; i < sizeof(level_names) / sizeof(level_names[0]); i++) {
        if (strcmp(name, level_names[i]) == 0) {
            *ret = (enum log_level)i;
            return 0;
        }
    }
    return -EINVAL;
}

/* True if stderr is the journal: the variable alone is inherited by all programs of a unit or
 * a desktop's terminal, wherever their errors go. */
static bool to_journal(void)
{
    const char *stream = getenv("JOURNAL_STREAM");
    unsigned long long device, inode;
    struct stat st;
    return stream && sscanf(stream, "%llu:%llu", &device, &inode) == 2 &&
           fstat(STDERR_FILENO, &st) == 0 && st.st_dev == device && st.st_ino == inode;
}

static size_t prefix(char *out, size_t size, enum log_level level)
{
    static const int priority[] = {7, 6, 4, 3}; /* syslog's */
    if (to_journal())
        return (size_t)snprintf(out, size, "<%d>", priority[level]);
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    struct tm tm;
    localtime_r(&now.tv_sec, &tm);
    size_t n = strftime(out, size, "%Y-%m-%d %H:%M:%S", &tm);
    return n + (size_t)snprintf(out + n, size - n, ".%03ld %-5s ", now.tv_nsec / 1000000,
                                level_names[level]);
}

static void emit(enum log_level level, const char *area, const char *text)
{
    char line[LINE_MAX_BYTES];
    size_t n = prefix(line, sizeof(line), level);
    int more = snprintf(line + n, sizeof(line) - n - 1, "%s: %s", area, text);
    n += more < 0 ? 0 : (size_t)more;
    if (n > sizeof(line) - 2)
        n = sizeof(line) - 2;
    line[n++] = '\n';
    /* A log that cannot be written has nowhere to complain. */
    ssize_t unused = write(STDERR_FILENO, line, n);
    (void)unused;
}

void log_at(enum log_level level, const char *area, const char *fmt, ...)
{
    if (!log_enabled(level))
        return;
    char text[LINE_MAX_BYTES - 128];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, ap); /* cut text is still text */
    va_end(ap);
    str_make_line(text);
    emit(level, area, text);
}

static uint64_t fnv1a(const char *s)
{
    uint64_t h = 0xcbf29ce484222325ULL;
    for (; *s; s++)
        h = (h ^ (unsigned char)*s) * 0x100000001b3ULL;
    return h ? h : 1; /* 0 means "nothing logged yet" */
}

bool log_on_change(struct log_change *last, enum log_level level, const char *area, const char *fmt,
                   ...)
{
    char text[LINE_MAX_BYTES - 128];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    uint64_t h = fnv1a(text);
    if (h == last->hash)
        return false;
    last->hash = h;
    if (!log_enabled(level))
        return false;
    str_make_line(text);
    emit(level, area, text);
    return true;
}
