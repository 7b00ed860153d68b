/* Paths that stand for several files: a range in braces, as WebDataset has it, or a
 * shell pattern. */
#ifndef COMMON_BASE_FILE_PATTERN_H
#define COMMON_BASE_FILE_PATTERN_H

#include <stddef.h>

struct err;
struct file_names;

/* part-{000..011}.tar, or part-*.tar, into *out (appended; sorted).  -EINVAL, and nothing
 * said, when it is no pattern; -ENOENT when nothing matches a shell pattern; -ERR_LIMIT
 * beyond `max`.  The files of a range need not be there. */
int file_pattern(const char *pattern, size_t max, struct file_names *out, struct err *err);

#endif
