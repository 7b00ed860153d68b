/* Running one of the programs beside this one to its end, for what it says.
 *
 *     struct program_said said;
 *     const char *const args[] = {"--version", NULL};
 *     if (program_run("workerd", args, NULL, 0, &said, err) == 0 && said.status == 0) ... */
#ifndef CLI_PROGRAM_H
#define CLI_PROGRAM_H

#include "common/base/base.h"

struct program_said {
    int status;        /* 0: it ended well; else as waitpid(2) has it */
    char out[4096];    /* the beginning of its output, terminated */
    char errors[2048]; /* of its standard error */
};

/* args: behind the program's name, with a NULL at the end.  input: NULL for none.  limit_ms: it is
 * killed then, -ETIMEDOUT; 0: never.  So it is on Ctrl-C: -ERR_CANCELLED.  -ENOENT: there is no
 * such program; or another reason why it cannot be started. */
int program_run(const char *name, const char *const *args, const char *input, int limit_ms,
                struct program_said *ret, struct err *err);
/* The last line of its errors without "NAME: " before it, which says why it failed; out is
 * returned. */
const char *program_reason(const struct program_said *said, const char *name, char *out,
                           size_t size);

#endif
