#include "cli/base/moving.h"

#include <unistd.h>

#include "common/base/clock.h"

#define TERMINAL_MS 200
#define LINES_MS 5000

struct moving moving_begin(const char *what)
{
    const uint64_t now = clock_now_ms();
    return (struct moving){
        .what = what, .to_terminal = isatty(STDERR_FILENO), .begun_ms = now, .shown_ms = now};
}

void moving_show(void *moving, uint64_t done, uint64_t total)
{
    struct moving *m = moving;
    const uint64_t now = clock_now_ms(), per_s = done * 1000 / (now - m->begun_ms + 1);
    char have[STR_HUMAN_MAX], all[STR_HUMAN_MAX], rate[STR_HUMAN_MAX], left[STR_HUMAN_MAX];
    if (now - m->shown_ms < (m->to_terminal ? TERMINAL_MS : LINES_MS))
        return;
    m->shown_ms = now;
    m->drawn = true;
    fprintf(stderr, "%s%s: %s", m->to_terminal ? "\r\033[K" : "", m->what,
            str_human_bytes(done, have));
    if (total)
        fprintf(stderr, " of %s", str_human_bytes(total, all));
    fprintf(stderr, ", %s/s", str_human_bytes(per_s, rate));
    if (total > done && per_s)
        fprintf(stderr, ", %s left", str_human_duration((total - done) * 1000 / per_s, left));
    fputs(m->to_terminal ? "" : "\n", stderr);
    fflush(stderr);
}

void moving_end(struct moving *m)
{
    if (m->drawn && m->to_terminal)
        fputs("\r\033[K", stderr);
    m->drawn = false;
}
