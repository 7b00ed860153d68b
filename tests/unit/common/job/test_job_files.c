/* The job files of the tree: the demo's, the examples, and those in the pages. */
#include <glob.h>

#include "tests/unit/common/base/util.h"

#include "common/base/buf.h"
#include "common/base/file.h"
#include "common/job/job.h"

static char *text_of(const char *file)
{
    struct buf text;
    OK(file_read(file, 1 << 20, &text, err));
    char *copy = str_dup(buf_str(&text));
    buf_release(&text);
    return copy;
}

static void expect_job(const char *what, const char *text)
{
    struct job_spec s;
    struct err err = {0};
    if (job_parse(text, strlen(text), what, &s, &err) < 0)
        fail_msg("%s\n%s", err.msg, text);
    job_release(&s);
}

static bool has_key(const char *yaml, const char *key)
{
    const size_t n = strlen(key);
    for (const char *line = yaml; line != NULL; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, key, n) == 0 && line[n] == ':')
            return true;
    }
    return false;
}

/* A block of a page, which may leave out sections that are not its subject. */
static void expect_block(const char *page, const char *yaml, size_t n)
{
    static const char *const sections[][2] = {
        {"name", "name: x\n"},
        {"data", "data: {path: x, image_size: 32}\n"},
        {"model", "model: {dim: 192, depth: 6, heads: 3}\n"},
        {"train", "train: {batch: 64}\n"},
        {"outer", "outer: {rounds: 20, steps: 50}\n"},
    };
    struct buf job;
    buf_init(&job, 1 << 16);
    assert_int_equal(buf_append(&job, yaml, n), 0);
    for (size_t i = 0; i < COUNT(sections); i++)
        if (!has_key(buf_str(&job), sections[i][0]))
            assert_int_equal(buf_append_str(&job, sections[i][1]), 0);
    expect_job(page, buf_str(&job));
    buf_release(&job);
}

static unsigned blocks(const char *page, const char *text)
{
    static const char fence[] = "\n```yaml\n";
    unsigned n = 0;
    for (const char *from = text; (from = strstr(from, fence)) != NULL; n++) {
        from += sizeof fence - 1;
        const char *to = strstr(from, "\n```");
        assert_non_null(to);
        expect_block(page, from, (size_t)(to + 1 - from));
    }
    return n;
}

static void job_files_of_the_tree(void **state)
{
    static const struct {
        const char *pattern;
        bool pages;
        unsigned least;
    } kinds[] = {
        {"deploy/demo/*.yaml", false, 1}, {"examples/*.yaml", false, 12}, {"docs/*.md", true, 7}};
    for (size_t i = 0; i < COUNT(kinds); i++) {
        glob_t found;
        unsigned n = 0;
        assert_int_equal(glob(kinds[i].pattern, 0, NULL, &found), 0);
        for (size_t k = 0; k < found.gl_pathc; k++) {
            char *text = text_of(found.gl_pathv[k]);
            if (kinds[i].pages)
                n += blocks(found.gl_pathv[k], text);
            else
                expect_job(found.gl_pathv[k], text);
            n += !kinds[i].pages;
            mem_free(text);
        }
        globfree(&found);
        assert_true(n >= kinds[i].least);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(job_files_of_the_tree),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
