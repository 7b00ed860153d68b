/* What the tests of the deciders share. */
#ifndef TESTS_UNIT_COORDINATOR_DECIDE_EXPECT_H
#define TESTS_UNIT_COORDINATOR_DECIDE_EXPECT_H

#define N(a) (sizeof(a) / sizeof((a)[0]))

static inline void expect_text(const char *name, const char *text, const char *part)
{
    if (strstr(text, part) == NULL)
        fail_msg("%s: the reason is '%s', expected '%s' in it", name, text, part);
}

#endif
