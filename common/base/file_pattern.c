#include "common/base/file_pattern.h"

#include <errno.h>
#include <glob.h>
#include <stdint.h>
#include <string.h>

#include "common/base/err.h"
#include "common/base/file.h"
#include "common/base/mem.h"
#include "common/base/str.h"

/* part-{000..011}.tar into names; -EINVAL when it is no such pattern. */
static int expand_braces(const char *pattern, size_t max, struct file_names *out, struct err *err)
{
    const char *open = strchr(pattern, '{'), *dots = open ? strstr(open, "..") : NULL;
    const char *close = dots ? strchr(dots, '}') : NULL;
    char first[24] = "", last[24] = "";
    uint64_t from, to;
    if (!close || dots - open - 1 >= 20 || close - dots - 2 >= 20)
        return -EINVAL;
    memcpy(first, open + 1, (size_t)(dots - open - 1));
    memcpy(last, dots + 2, (size_t)(close - dots - 2));
    if (strncmp(first, "0x", 2) == 0 || str_parse_u64(first, &from) < 0 ||
        str_parse_u64(last, &to) < 0 || from > to)
        return err_set(err, -ERR_CONFIG, "'%s': expected a range such as {000..011}", pattern);
    if (to - from >= max)
        return err_set(err, -ERR_LIMIT, "'%s' names more than %zu files", pattern, max);
    for (uint64_t i = from; i <= to; i++) {
        char *name = str_printf("%.*s%0*llu%s", (int)(open - pattern), pattern, (int)strlen(first),
                                (unsigned long long)i, close + 1);
        int rc = file_names_add(out, max, name, err);
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int expand_glob(const char *pattern, size_t max, struct file_names *out, struct err *err)
{
    glob_t found;
    int rc = glob(pattern, 0, NULL, &found);
    if (rc == GLOB_NOMATCH)
        return err_set(err, -ENOENT, "no file matches '%s'", pattern);
    if (rc != 0)
        return err_set(err, -EIO, "cannot look for files matching '%s'", pattern);
    rc = 0;
    for (size_t i = 0; rc == 0 && i < found.gl_pathc; i++)
        rc = file_names_add(out, max, str_dup(found.gl_pathv[i]), err);
    globfree(&found);
    return rc;
}

int file_pattern(const char *pattern, size_t max, struct file_names *out, struct err *err)
{
    int rc = strchr(pattern, '{') ? expand_braces(pattern, max, out, err) : -EINVAL;
    if (rc == -EINVAL && strpbrk(pattern, "*?["))
        rc = expand_glob(pattern, max, out, err);
    return rc;
}
