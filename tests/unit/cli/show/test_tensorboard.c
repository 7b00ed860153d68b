/* A job in event files: under which names and steps, each once across restarts, and who may write
 * where. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

#include "cli/show/tensorboard.h"
#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/hash.h"
#include "proto/tensorboard.pb-c.h"
#include "tests/unit/cli/script.h"

#define ME "{\"cluster\":\"here\"}"
#define JOB(more) "{\"name\":\"n\",\"state\":\"running\",\"spec\":\"name: n\"" more "}"
#define OPENED JOB(""), ME
#define GONE "{\"error\":{\"code\":\"not_found\",\"message\":\"it is gone\"}}"
#define STATE "n-7/.skerry.json"

static char dir[64];

static int make(void **state)
{
    (void)snprintf(dir, sizeof dir, "/tmp/skerry-board.XXXXXX");
    clock_fake_set(1500000000000); /* 1500 s */
    return mkdtemp(dir) ? 0 : -1;
}

static int unmake(void **state)
{
    clock_fake_clear();
    return file_remove_tree(dir, NULL);
}

/* ---- what is written ---- */

static void tell(const Tensorboard__Event *e, struct buf *out)
{
    if (e->what_case != TENSORBOARD__EVENT__WHAT_SUMMARY)
        return;
    const Tensorboard__SummaryValue *v = e->summary->value[0];
    int rc = buf_printf(out, "%s@%lld=", v->tag, (long long)e->step);
    if (rc == 0 && v->value_case == TENSORBOARD__SUMMARY_VALUE__VALUE_SIMPLE_VALUE)
        rc = buf_printf(out, "%g ", (double)v->simple_value);
    else if (rc == 0)
        rc = buf_printf(out, "'%.*s' ", (int)v->tensor->string_val[0].len,
                        (const char *)v->tensor->string_val[0].data);
    assert_int_equal(rc, 0);
}

/* The events of a run's files in their order, "TAG@STEP=VALUE "; static.  Each file is whole. */
static const char *events(const char *run)
{
    static struct buf out;
    struct file_names files;
    char *folder = file_join(dir, run);
    buf_release(&out);
    buf_init(&out, 1 << 16);
    assert_int_equal(file_list(folder, 100, &files, NULL), 0);
    for (size_t i = 0; i < files.n; i++) {
        struct buf text;
        char *path = file_join(folder, files.items[i]);
        size_t at = 0;
        assert_int_equal(file_read(path, 1 << 16, &text, NULL), 0);
        while (at < text.len) {
            uint64_t len;
            memcpy(&len, text.data + at, 8);
            assert_true(len + 16 <= text.len - at);
            Tensorboard__Event *e =
                tensorboard__event__unpack(NULL, (size_t)len, text.data + at + 12);
            assert_non_null(e);
            tell(e, &out);
            tensorboard__event__free_unpacked(e, NULL);
            at += (size_t)len + 16;
        }
        buf_release(&text);
        mem_free(path);
    }
    file_names_release(&files);
    mem_free(folder);
    return buf_str(&out);
}

/* ---- a run ---- */

struct run {
    struct script script;
    struct cli cli;
    struct tensorboard *tb;
    struct err err;
};

static int open_run(struct run *r, const char *const *answers)
{
    *r = (struct run){0};
    connect_to(&r->script, &r->cli, answers);
    return tensorboard_open(&r->cli, 7, dir, &r->tb, &r->err);
}

static void close_run(struct run *r)
{
    tensorboard_close(r->tb);
    disconnect(&r->script, &r->cli);
}

/* After this time a poll is due. */
static int poll_job(struct run *r, const char *job, unsigned ms)
{
    json_t *j = json_loads(job, 0, NULL);
    assert_non_null(j);
    clock_fake_advance(ms * CLOCK_NS_PER_MS);
    const int rc = tensorboard_poll(r->tb, j);
    json_decref(j);
    return rc;
}

static void expect_refused(const char *const *answers, int code, const char *text)
{
    struct run r;
    assert_int_equal(open_run(&r, answers), code);
    assert_null(r.tb);
    close_run(&r);
    if (!strstr(r.err.msg, text))
        fail_msg("'%s' is not in: %s", text, r.err.msg);
}

static void put(const char *name, const char *text)
{
    char *path = file_join(dir, name);
    struct err err = {0};
    if (file_mkdirs_for(path, 0700, &err) < 0 ||
        file_write_atomic(path, text, strlen(text), 0600, &err) < 0)
        fail_msg("%s", err.msg);
    mem_free(path);
}

static void test_tags_and_steps(void **state)
{
    static const char *const answers[] = {
        OPENED,
        "{\"n\":1,\"kind\":\"loss\",\"replica\":0,\"step\":5,\"loss\":0.5,\"lr\":0.25,"
        "\"numbers\":{\"kl\":2}}\n"
        "{\"n\":2,\"kind\":\"loss\",\"replica\":1,\"step\":6,\"loss\":0.75,\"lr\":0.25}\n"
        "no JSON\n"
        "{\"n\":3,\"kind\":\"round\",\"round\":1,\"step\":10,\"loss\":1.5,\"seconds\":3,"
        "\"bytes_up\":100,\"bytes_down\":200}\n",
        "{\"n\":4,\"kind\":\"eval\",\"round\":1,\"eval_loss\":4,\"numbers\":{\"kl\":8}}\n"
        "{\"n\":5,\"kind\":\"eval\",\"round\":1,\"step\":12,\"eval_loss\":null}\n"
        "{\"n\":6,\"kind\":\"other\",\"step\":13,\"loss\":9}\n",
        "",
        NULL,
    };
    struct run r;
    assert_int_equal(open_run(&r, answers), 0);
    assert_string_equal(events("n-7"), "");
    assert_int_equal(
        poll_job(&r,
                 JOB(",\"paths\":1,\"samples\":[{\"task\":3,\"round\":1,\"text\":\"so\"},"
                     "{\"task\":4,\"round\":9,\"text\":\"late\"},{\"task\":5,\"round\":1}]"),
                 0),
        0);
    assert_string_equal(events("n-7"), "job@0='```\nname: n\n```\n' "
                                       "loss/replica-0@5=0.5 lr@5=0.25 numbers/kl/replica-0@5=2 "
                                       "loss/replica-1@6=0.75 "
                                       "loss/round@10=1.5 round/seconds@10=3 "
                                       "round/bytes_up@10=100 round/bytes_down@10=200 "
                                       "held_out@10=4 numbers/kl/held_out@10=8 "
                                       "samples@10='so' samples@0='late' ");
    close_run(&r);
    assert_string_equal(r.script.last, "GET /v1/jobs/7/metrics?after=6 HTTP/1.1");
}

/* With several paths their number is behind the first word; what is of all has none. */
static void test_paths(void **state)
{
    static const char *const answers[] = {
        OPENED,
        "{\"n\":1,\"kind\":\"round\",\"path\":1,\"round\":1,\"step\":10,\"loss\":1}\n"
        "{\"n\":2,\"kind\":\"round\",\"path\":0,\"round\":1,\"step\":20,\"loss\":2}\n"
        "{\"n\":3,\"kind\":\"loss\",\"path\":1,\"replica\":2,\"step\":11,\"loss\":3}\n"
        "{\"n\":4,\"kind\":\"eval\",\"path\":null,\"round\":1,\"eval_loss\":4}\n",
        "",
        NULL,
    };
    struct run r;
    assert_int_equal(open_run(&r, answers), 0);
    assert_int_equal(poll_job(&r,
                              JOB(",\"paths\":2,\"samples\":[{\"task\":3,\"path\":1,\"round\":1,"
                                  "\"text\":\"one\"},{\"task\":4,\"path\":null,\"round\":1,"
                                  "\"text\":\"all\"}]"),
                              0),
                     0);
    assert_non_null(strstr(events("n-7"), "loss/path-1/round@10=1 loss/path-0/round@20=2 "
                                          "loss/path-1/replica-2@11=3 held_out@20=4 "
                                          "samples/path-1@10='one' samples@20='all' "));
    close_run(&r);
}

/* Of a round that is long past no step is known: a job without an end needs bounded memory. */
static void test_old_rounds_are_forgotten(void **state)
{
    static const char *const answers[] = {
        OPENED,
        "{\"n\":1,\"kind\":\"round\",\"round\":1,\"step\":10}\n"
        "{\"n\":2,\"kind\":\"round\",\"round\":2,\"step\":20}\n"
        "{\"n\":3,\"kind\":\"round\",\"round\":4097,\"step\":30}\n",
        "",
        NULL,
    };
    struct run r;
    assert_int_equal(open_run(&r, answers), 0);
    assert_int_equal(poll_job(&r,
                              JOB(",\"samples\":[{\"task\":1,\"round\":1,\"text\":\"a\"},"
                                  "{\"task\":2,\"round\":2,\"text\":\"b\"}]"),
                              0),
                     0);
    assert_non_null(strstr(events("n-7"), "samples@0='a' samples@20='b' "));
    close_run(&r);
}

/* ---- restarts ---- */

#define FIRST "{\"n\":1,\"kind\":\"round\",\"round\":1,\"step\":10,\"loss\":1}\n"

/* What the state does not have is cut off; what it has is not written again, and the steps of old
 * rounds are known. */
static void test_restart(void **state)
{
    static const char *const first[] = {OPENED, FIRST, "", NULL};
    static const char *const second[] = {
        OPENED, FIRST "{\"n\":2,\"kind\":\"eval\",\"round\":1,\"eval_loss\":4}\n", "", NULL};
    struct run r;
    assert_int_equal(open_run(&r, first), 0);
    assert_int_equal(poll_job(&r, JOB(",\"samples\":[{\"task\":1,\"round\":1,\"text\":\"a\"}]"), 0),
                     0);
    close_run(&r);
    char *path = str_printf("%s/n-7/events.out.tfevents.0000001500.skerry", dir);
    uint64_t before, after;
    assert_int_equal(file_size(path, &before, NULL), 0);
    FILE *f = fopen(path, "a");
    assert_true(f && fputs("half an event", f) >= 0 && fclose(f) == 0);

    assert_int_equal(open_run(&r, second), 0);
    assert_int_equal(file_size(path, &after, NULL), 0);
    assert_int_equal(after, before);
    assert_int_equal(poll_job(&r,
                              JOB(",\"samples\":[{\"task\":1,\"round\":1,\"text\":\"a\"},"
                                  "{\"task\":2,\"round\":1,\"text\":\"b\"}]"),
                              0),
                     0);
    close_run(&r);
    assert_string_equal(events("n-7"), "job@0='```\nname: n\n```\n' loss/round@10=1 "
                                       "samples@10='a' held_out@10=4 samples@10='b' ");
    mem_free(path);
    path = str_printf("%s/n-7/events.out.tfevents.0000001501.skerry", dir); /* it is a later one */
    assert_true(file_exists(path));
    mem_free(path);
}

/* Without news there is no file; samples that the coordinator has forgotten are forgotten. */
static void test_state(void **state)
{
    static const char *const first[] = {OPENED, "", "", NULL};
    static const char *const second[] = {OPENED, "", NULL};
    struct run r;
    struct buf text;
    char *path = file_join(dir, STATE);
    assert_int_equal(open_run(&r, first), 0);
    assert_int_equal(poll_job(&r, JOB(",\"samples\":[{\"task\":1,\"text\":\"a\"}]"), 0), 0);
    assert_int_equal(poll_job(&r, JOB(",\"samples\":[{\"task\":2,\"text\":\"b\"}]"), 2000), 0);
    close_run(&r);
    assert_int_equal(file_read(path, 4096, &text, NULL), 0);
    assert_non_null(strstr(buf_str(&text), "\"samples\":[2]"));
    assert_non_null(strstr(buf_str(&text), "\"job_file\":true"));
    buf_release(&text);
    assert_int_equal(open_run(&r, second), 0);
    assert_int_equal(poll_job(&r, JOB(",\"samples\":[{\"task\":2,\"text\":\"b\"}]"), 0), 0);
    close_run(&r);
    struct file_names files;
    char *folder = file_join(dir, "n-7");
    assert_int_equal(file_list(folder, 10, &files, NULL), 0);
    assert_int_equal(files.n, 1);
    file_names_release(&files);
    mem_free(folder);
    mem_free(path);
}

/* ---- polls ---- */

/* Every two seconds; at the end at once. */
static void test_polls(void **state)
{
    static const char *const answers[] = {OPENED, "", "", "", NULL};
    struct run r;
    assert_int_equal(open_run(&r, answers), 0);
    assert_int_equal(tensorboard_poll(r.tb, NULL), 0); /* nobody answers */
    assert_int_equal(poll_job(&r, JOB(",\"samples\":[{\"task\":1,\"text\":\"a\"}]"), 0), 0);
    assert_int_equal(poll_job(&r, JOB(",\"samples\":[{\"task\":2,\"text\":\"b\"}]"), 1999), 0);
    assert_null(strstr(events("n-7"), "'b'"));
    assert_int_equal(poll_job(&r, JOB(",\"samples\":[{\"task\":3,\"text\":\"c\"}]"), 1), 0);
    assert_non_null(strstr(events("n-7"), "'c'"));
    assert_int_equal(
        poll_job(&r, "{\"state\":\"done\",\"samples\":[{\"task\":4,\"text\":\"d\"}]}", 1), 0);
    assert_non_null(strstr(events("n-7"), "'d'"));
    close_run(&r);
}

/* What cannot be fetched comes with a later poll; in the end it is an error. */
static void test_fetched_later(void **state)
{
    static const char *const answers[] = {OPENED, GONE, FIRST, "", GONE, "", GONE, NULL};
    static const char blob[] = ",\"samples\":[{\"task\":1,\"text\":\"a\"},{\"task\":2,\"size\":5,"
                               "\"blob\":\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
                               "aaaaaaaaa\"},{\"task\":3,\"text\":\"c\"}]";
    char *running = str_printf("{\"state\":\"running\",\"spec\":\"x\"%s}", blob),
         *done = str_printf("{\"state\":\"done\",\"spec\":\"x\"%s}", blob);
    struct run r;
    assert_int_equal(open_run(&r, answers), 0);
    assert_int_equal(poll_job(&r, running, 0), 0);
    assert_string_equal(events("n-7"), "job@0='```\nx\n```\n' ");
    assert_int_equal(poll_job(&r, running, 2000), 0); /* the picture cannot be had */
    assert_string_equal(events("n-7"), "job@0='```\nx\n```\n' loss/round@10=1 samples@0='a' ");
    assert_int_equal(poll_job(&r, done, 2000), 1);
    assert_string_equal(events("n-7"), "job@0='```\nx\n```\n' loss/round@10=1 samples@0='a' ");
    close_run(&r);
    mem_free(running);
    mem_free(done);
}

/* A picture beyond what an event may have is left out, and all others come. */
static void test_large_picture(void **state)
{
    static const char *const answers[] = {OPENED, "", NULL};
    struct run r;
    assert_int_equal(open_run(&r, answers), 0);
    assert_int_equal(poll_job(&r,
                              JOB(",\"samples\":[{\"task\":1,\"size\":67107841,\"blob\":\"aa\"},"
                                  "{\"task\":2,\"text\":\"b\"}]"),
                              0),
                     0);
    assert_non_null(strstr(events("n-7"), "'b'"));
    close_run(&r);
}

/* Nor does one that is none, as a trainer may draw, keep the others away, now and after each start.
 */
static void test_no_picture(void **state)
{
    static const char *const answers[] = {OPENED, "", "no picture", NULL};
    uint8_t sha256[HASH_BYTES];
    char hex[HASH_HEX_MAX];
    struct run r;
    hash_sha256("no picture", 10, sha256);
    char *job = str_printf(JOB(",\"samples\":[{\"task\":1,\"size\":10,\"blob\":\"%s\"},"
                               "{\"task\":2,\"text\":\"b\"}]"),
                           hash_hex(sha256, HASH_BYTES, hex));
    assert_int_equal(open_run(&r, answers), 0);
    assert_int_equal(poll_job(&r, job, 0), 0);
    assert_non_null(strstr(events("n-7"), "'b'"));
    close_run(&r);
    mem_free(job);
}

/* What cannot be written ends it at once. */
static void test_disk_full(void **state)
{
    static const char *const answers[] = {OPENED, NULL};
    struct rlimit had, none = {0};
    struct run r;
    assert_int_equal(open_run(&r, answers), 0);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &had), 0);
    none.rlim_max = had.rlim_max;
    (void)signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &none), 0);
    const int rc = poll_job(&r, JOB(""), 0);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &had), 0);
    assert_int_equal(rc, 1);
    close_run(&r);
}

/* ---- whose folder it is ---- */

static void test_folders(void **state)
{
    static const char *const answers[] = {OPENED, NULL};
    static const char *const unnamed[] = {"{\"name\":\"../x\"}", ME, NULL};
    static const char *const elsewhere[] = {JOB(""), "{\"cluster\":\"there\"}", NULL};
    struct run r;
    assert_int_equal(open_run(&r, answers), 0);
    expect_refused(answers, -EBUSY, "is in use by process");
    close_run(&r);
    assert_int_equal(open_run(&r, unnamed), 0);
    close_run(&r);
    char *path = file_join(dir, "job-7");
    assert_true(file_is_dir(path));
    mem_free(path);
    put(STATE, "{");
    expect_refused(answers, -EINVAL, ".skerry.json is damaged; remove");
    put(STATE, "{\"file\":\"../a\",\"samples\":[],\"cluster\":\"here\",\"job\":7}");
    expect_refused(answers, -EINVAL, ".skerry.json is damaged; remove");
    put(STATE, "{\"file\":\"a\",\"samples\":[],\"cluster\":\"here\",\"job\":7}");
    expect_refused(elsewhere, -EINVAL, "has the events of another coordinator's job");
    put(STATE, "{\"file\":\"a\",\"samples\":[],\"cluster\":\"here\",\"job\":8}");
    expect_refused(answers, -EINVAL, "has the events of another coordinator's job");
    put(STATE, "{\"file\":\"a\",\"samples\":[],\"cluster\":\"here\",\"job\":7}");
    assert_int_equal(open_run(&r, answers), 0); /* its file was removed */
    close_run(&r);
    path = file_join(dir, STATE);
    assert_int_equal(unlink(path), 0);
    mem_free(path);
    put("n-7/notes.txt", "");
    assert_int_equal(open_run(&r, answers), 0);
    close_run(&r);
    put("n-7/events.out.tfevents.1.other", "");
    expect_refused(answers, -EINVAL, "has events, but no .skerry.json");
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, make, unmake)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_tags_and_steps), TEST(test_paths),         TEST(test_old_rounds_are_forgotten),
        TEST(test_restart),        TEST(test_state),         TEST(test_polls),
        TEST(test_fetched_later),  TEST(test_large_picture), TEST(test_no_picture),
        TEST(test_disk_full),      TEST(test_folders),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
