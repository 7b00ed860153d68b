/* The log: one line per event on stderr, written with one write(2), so lines of
 * several threads and processes do not mix.
 *
 *     2026-11-21 12:53:15.042 info  rpc: worker joined worker=3 name="a b"
 *
 * `area` is the part of the program ("rpc", "outer").  The text is a short
 * sentence followed by key=value pairs.  Control bytes are escaped.  Under
 * systemd (JOURNAL_STREAM names stderr) the time is left out and the line starts
 * with the <N> priority that journald understands.
 *
 * All functions may be called on any thread.  Libraries log at debug only; the
 * caller that handles an error logs it. */
#ifndef COMMON_BASE_LOG_H
#define COMMON_BASE_LOG_H

#include "common/base/base.h"

/* The severity of a line. */
enum log_level {
    LOG_LEVEL_DEBUG,
    LOG_LEVEL_INFO,
    LOG_LEVEL_WARN,
    LOG_LEVEL_ERROR,
};

/* Lines below the level are dropped; the default is info. */
void log_set_level(enum log_level level);
bool log_enabled(enum log_level level);

/* Name to level ("debug", "info", "warn", "error"); -EINVAL if unknown. */
int log_level_parse(const char *name, enum log_level *ret);

/* What the macros below call. */
void log_at(enum log_level level, const char *area, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

#define log_debug(area, ...)                                                                       \
    do {                                                                                           \
        if (log_enabled(LOG_LEVEL_DEBUG))                                                          \
            log_at(LOG_LEVEL_DEBUG, area, __VA_ARGS__);                                            \
    } while (0)
#define log_info(area, ...) log_at(LOG_LEVEL_INFO, area, __VA_ARGS__)
#define log_warn(area, ...) log_at(LOG_LEVEL_WARN, area, __VA_ARGS__)
#define log_error(area, ...) log_at(LOG_LEVEL_ERROR, area, __VA_ARGS__)

/* Logs only if the text differs from the last one logged through the same
 * struct (start it as { 0 }; one thread at a time).  Returns whether it logged.
 * For the reasons of deciders, which repeat thousands of times. */
struct log_change {
    uint64_t hash;
};
bool log_on_change(struct log_change *last, enum log_level level, const char *area, const char *fmt,
                   ...) __attribute__((format(printf, 4, 5)));

#endif
