#include "common/base/moving.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include "common/base/clock.h"

#define TERMINAL_MS 200
#define LINES_MS 5000
#define SAID_BYTES 256
#define DRAWN_BYTES 1024
#define WIDE 0xe3 /* characters that fill two columns begin with this byte, or a larger one */

static bool drawn; /* the cursor is at the end of a line that is to be redrawn */

bool moving_redraws(void)
{
    const char *term = getenv("TERM");
    return isatty(STDERR_FILENO) && !(term && !strcmp(term, "dumb"));
}

unsigned moving_columns(void)
{
    struct winsize size;
    const bool known = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1;
    return (known ? size.ws_col : 80) - 1; /* a full line would move the cursor to the next */
}

void moving_draw(const char *line)
{
    char text[DRAWN_BYTES];
    unsigned left = moving_columns();
    size_t n = 0;
    for (const char *s = line; *s && n < sizeof text; s++) {
        const unsigned char c = (unsigned char)*s;
        const unsigned columns = (c & 0xc0) == 0x80 ? 0 : c >= WIDE ? 2 : 1;
        if (columns > left)
            break;
        left -= columns;
        text[n++] = c < ' ' ? ' ' : *s; /* also a reason with line breaks is one line */
    }
    fprintf(stderr, "\r\033[K%.*s", (int)n, text);
    drawn = true;
}

void moving_now(const char *format, ...)
{
    char line[SAID_BYTES];
    va_list ap;
    if (!moving_redraws())
        return;
    va_start(ap, format);
    (void)vsnprintf(line, sizeof line, format, ap);
    va_end(ap);
    moving_draw(line);
}

void moving_clear(void)
{
    if (drawn)
        fputs("\r\033[K", stderr);
    drawn = false;
}

void moving_keep(void)
{
    if (drawn)
        fputc('\n', stderr);
    drawn = false;
}

struct moving moving_begin(const char *what)
{
    const uint64_t now = clock_now_ms();
    return (struct moving){.what = what, .begun_ms = now, .shown_ms = now};
}

bool moving_due(struct moving *m)
{
    const uint64_t now = clock_now_ms();
    if (now - m->shown_ms < (moving_redraws() ? TERMINAL_MS : LINES_MS))
        return false;
    m->shown_ms = now;
    return true;
}

void moving_say(const char *line)
{
    if (moving_redraws())
        moving_draw(line);
    else
        fprintf(stderr, "%s\n", line);
}

void moving_show(void *moving, uint64_t done, uint64_t total)
{
    struct moving *m = moving;
    char have[STR_HUMAN_MAX], all[STR_HUMAN_MAX], rate[STR_HUMAN_MAX], left[STR_HUMAN_MAX];
    char of[STR_HUMAN_MAX + 8] = "", rest[STR_HUMAN_MAX + 8] = "", line[SAID_BYTES];
    if (!moving_due(m))
        return;
    const uint64_t per_s = done * 1000 / (m->shown_ms - m->begun_ms + 1);
    if (total)
        (void)snprintf(of, sizeof of, " of %s", str_human_bytes(total, all));
    if (total > done && per_s)
        (void)snprintf(rest, sizeof rest, ", %s left",
                       str_human_duration((total - done) * 1000 / per_s, left));
    (void)snprintf(line, sizeof line, "%s: %s%s, %s/s%s", m->what, str_human_bytes(done, have), of,
                   str_human_bytes(per_s, rate), rest);
    moving_say(line);
}

void moving_add(struct moving_bytes *m, uint64_t bytes)
{
    m->done += bytes;
    moving_show(&m->moving, m->done, m->total);
}
