/* Deltas that come while they are made: into the cache by their hash, or not at all. */
#include "tests/unit/worker/link/fake_line.h"

#include "common/base/hash.h"
#include "common/base/pieces.h"
#include "common/net/growing.h"
#include "common/net/token.h"
#include "worker/coming.h"
#include "worker/link/fetch.h"
#include "worker/order/cache.h"
#include "worker/order/progress.h"

#include <fcntl.h>
#include <unistd.h>

#define URL "/v1/blobs/x"

static char *top;
static struct cache *cache;
static struct token token = {.host = "coordinator", .http_port = 8443};
static struct progress_beside beside;
static struct fetch_env env;
static struct coming *coming;
static unsigned ends;

static void on_end(void *arg)
{
    ends++;
}

/* The transfer brings a file of this text, as it is sent while it grows. */
static void arrive(unsigned i, const char *text)
{
    char sent[256];
    char *path = in(top, "text");
    OK(file_write_put(path, text, strlen(text), 0600, err));
    const int fd = open(path, O_RDONLY);
    struct growing *g = growing_new(fd, 3, strlen(text));
    assert_non_null(g);
    growing_reach(g, strlen(text));
    size_t n = 0;
    while (n < growing_length(g))
        n += (size_t)growing_read(g, n, sent + n, sizeof(sent) - n);
    OK(file_write_put(line.at[i].path, sent, n, 0600, err));
    growing_drop(g);
    close(fd);
    mem_free(path);
    end_with(i, 0, "");
}

static bool is_here(const char *text)
{
    uint8_t sha256[32];
    char path[CACHE_PATH_MAX];
    struct buf b;
    hash_sha256(text, strlen(text), sha256);
    if (!cache_has(cache, sha256))
        return false;
    cache_path(cache, sha256, path);
    OK(file_read(path, 1000, &b, err));
    assert_string_equal(buf_str(&b), text);
    buf_release(&b);
    OK(cache_check(cache, sha256, strlen(text), err));
    return true;
}

static bool awaits(uint64_t module_id, uint64_t version)
{
    Skerry__V1__ModuleRef ref = SKERRY__V1__MODULE_REF__INIT, *refs[] = {&ref};
    Skerry__V1__Task task = SKERRY__V1__TASK__INIT;
    ref.module_id = module_id;
    ref.version = version;
    task.modules = refs;
    task.n_modules = 1;
    return coming_awaits(coming, &task);
}

static size_t files(void)
{
    struct file_names names;
    OK(file_list(top, 100, &names, err));
    const size_t n = names.n;
    file_names_release(&names);
    return n;
}

static void what_comes_is_in_the_cache(void **state)
{
    coming_start(coming, 7, 3, URL);
    coming_start(coming, 7, 3, URL); /* as with another ticket */
    assert_int_equal(line.n, 1);
    assert_non_null(strstr(line.at[0].url, "https://coordinator:8443/v1/blobs/x"));
    assert_true(awaits(7, 3));
    assert_false(awaits(7, 2) || awaits(8, 3));
    arrive(0, "a delta that came early");
    assert_true(awaits(7, 3)); /* while it is put in order */
    assert_int_equal(ends, 0);
    compute();
    assert_int_equal(ends, 1);
    assert_false(awaits(7, 3));
    assert_true(is_here("a delta that came early"));
    assert_int_equal(files(), 2); /* the cache, and the test's own */
}

static void what_does_not_come_is_not_awaited(void **state)
{
    coming_start(coming, 7, 3, URL);
    char *part =
        str_printf("%s.part", line.at[0].path); /* a transfer leaves it, for its next try */
    OK(file_write_put(part, "what c", 6, 0600, err));
    end_with(0, -ERR_NOTFOUND, "404");
    mem_free(part);
    assert_int_equal(files(), 2);
    assert_int_equal(ends, 1);
    assert_false(awaits(7, 3));
    line.refuse = -EAGAIN;
    coming_start(coming, 7, 3, URL);
    assert_false(awaits(7, 3));
    job.full = true;
    coming_start(coming, 7, 3, URL);
    arrive(1, "no thread puts it in order");
    assert_int_equal(ends, 2);
    assert_false(awaits(7, 3));
    job.full = false;
    coming_start(coming, 7, 3, URL);
    OK(file_write_put(line.at[2].path, "what is this?", 13, 0600, err));
    end_with(2, 0, "");
    compute();
    assert_int_equal(ends, 3);
    assert_int_equal(files(), 2);
}

/* The next version of a module is wanted, and no longer the one before; others go on. */
static void an_older_one_is_given_up(void **state)
{
    coming_start(coming, 7, 3, URL);
    coming_start(coming, 8, 3, URL);
    coming_start(coming, 7, 4, URL);
    assert_int_equal(line.cancelled, 1);
    assert_false(awaits(7, 3));
    assert_true(awaits(8, 3) && awaits(7, 4));
    arrive(2, "four");
    coming_start(coming, 7, 5, URL); /* while the compute thread has it */
    compute();
    assert_true(is_here("four"));
    assert_true(awaits(7, 5));
    coming_stop(coming);
    assert_int_equal(line.running, 0);
    assert_false(awaits(8, 3) || awaits(7, 5));
    assert_int_equal(ends, 0);
}

/* What a task waits for goes on, which its coordinator hears; once it is over, or is another's,
 * not. */
static void work_is_a_sign(void **state)
{
    struct progress p;
    progress_init(&p);
    progress_tell_beside(&beside, &p);
    assert_int_equal(progress_signs(&p), 0);
    coming_start(coming, 7, 3, URL);
    arrive(0, "one");
    compute();
    assert_false(pieces_heard());
    progress_tell_beside(&beside, &p);
    progress_tell_beside(&beside, &p);
    assert_int_equal(progress_signs(&p), 1);
    coming_start(coming, 7, 4, URL);
    arrive(1, "two");
    compute();
    progress_tell_beside(&beside, NULL);
    progress_tell_beside(&beside, &p);
    assert_int_equal(progress_signs(&p), 1);
    progress_release(&p);
}

/* They take no more places of transfers than the uploads can spare. */
static void few_at_a_time(void **state)
{
    for (uint64_t m = 1; m <= 6; m++)
        coming_start(coming, m, 3, URL);
    assert_int_equal(line.n, 4);
    assert_true(awaits(4, 3));
    assert_false(awaits(5, 3));
}

static int setup(void **state)
{
    top = scratch_new();
    char *dir = in(top, "blobs"), *text = in(top, "text");
    OK(cache_open(dir, 0, &cache, err));
    OK(file_write_put(text, "", 0, 0600, err));
    mem_free(dir);
    mem_free(text);
    memset(&line, 0, sizeof(line));
    memset(&job, 0, sizeof(job));
    ends = 0;
    beside = (struct progress_beside){0};
    env = (struct fetch_env){.cache = cache, .token = &token, .beside = &beside};
    coming = coming_new(&env, NULL, top, on_end, NULL);
    return 0;
}

static int teardown(void **state)
{
    coming_free(coming);
    cache_close(cache);
    scratch_free(top);
    return 0;
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(what_comes_is_in_the_cache),
        TEST(what_does_not_come_is_not_awaited),
        TEST(an_older_one_is_given_up),
        TEST(work_is_a_sign),
        TEST(few_at_a_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
