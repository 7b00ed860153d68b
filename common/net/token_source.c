#include "common/net/token_source.h"

#include <termios.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "common/base/file.h"

#define FILE_MAX 4096

static int read_line(char line[TOKEN_STRING_MAX + 2], struct err *err)
{
    struct termios was, quiet;
    const bool tty = isatty(STDIN_FILENO) && tcgetattr(STDIN_FILENO, &was) == 0;
    if (tty) {
        (void)fputs("token: ", stderr);
        quiet = was;
        quiet.c_lflag &= ~(tcflag_t)(ECHO | ISIG);
        quiet.c_cc[VEOF] = 3; /* Ctrl-C ends the input, and the echo is restored */
        (void)tcsetattr(STDIN_FILENO, TCSAFLUSH, &quiet); /* on failure it is visible */
    }
    const bool got = fgets(line, TOKEN_STRING_MAX + 2, stdin) != NULL;
    if (tty) {
        (void)tcsetattr(STDIN_FILENO, TCSAFLUSH, &was);
        (void)fputc('\n', stderr);
    }
    return got ? 0 : err_set(err, -ERR_FORMAT, "no token came from standard input");
}

/* The token that is given itself, perhaps behind an @; NULL: a file is, or none. */
static const char *itself(const char *given)
{
    given += given[0] == '@';
    return str_starts(given, TOKEN_PREFIX) && !file_exists(given) ? given : NULL;
}

static bool is_utf16(const struct buf *text)
{
    return str_starts(buf_str(text), "\xff\xfe") || str_starts(buf_str(text), "\xfe\xff");
}

int token_source_read(const char *given, struct token *ret, struct err *err)
{
    char line[TOKEN_STRING_MAX + 2];
    struct buf text;
    if (strcmp(given, "-") == 0) {
        int rc = read_line(line, err);
        return rc < 0 ? rc : token_parse(line, ret, err);
    }
    if (itself(given))
        return token_parse(itself(given), ret, err);
    given += given[0] == '@';
    if (given[strcspn(given, ":/")] == ':' && !file_exists(given)) /* of a path, / comes first */
        return err_set(
            err, -EINVAL,
            "%.100s is an address, but a token holds more than that: give the file of a token",
            given);
    if (file_read(given, FILE_MAX, &text, err) < 0)
        return err_wrap(err, "reading the token");
    int rc = is_utf16(&text)
                 ? err_set(err, -ERR_FORMAT,
                           "this is UTF-16, as PowerShell's > writes it: copy the token file as it "
                           "is, or write the line with `Out-File -Encoding ascii`")
                 : token_parse(buf_str(&text), ret, err);
    buf_release(&text);
    return rc < 0 ? err_wrap(err, "%s", given) : 0;
}

void token_source_wipe(const char *given)
{
    if (given != NULL && itself(given)) /* with its @, so that nobody takes it for a file */
        memset((char *)(uintptr_t)given, 'x', strlen(given));
}
