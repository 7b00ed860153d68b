/* The clock, the turn that is asked for once, who waits for which commit, and when nothing is
 * taken on. */
#include "tests/unit/coordinator/bare.h"

#include <sys/statvfs.h>

#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/net/pool.h"

static unsigned turns;

static void turn(void *arg)
{
    struct coordinator *co = arg;
    co->turn_scheduled = false;
    turns++;
}

static int begin_core(void **state)
{
    const int rc = bare_begin(state);
    struct coordinator *co = *state;
    core_init(co);
    co->turn_scheduled = false;
    co->turn = turn;
    co->gather = loop_timer_new(co->loop, turn, co);
    turns = 0;
    return rc;
}

/* Drops what still waits. */
static int end_core(void **state)
{
    struct coordinator *co = *state;
    struct list *l;
    while ((l = list_pop(&co->next.replies)) != NULL)
        mem_free(list_entry(l, struct reply, link));
    while ((l = list_pop(&co->next.durables)) != NULL ||
           (l = list_pop(&co->group.durables)) != NULL)
        mem_free(list_entry(l, struct durable, link));
    while (co->turn_scheduled)
        loop_turn(co->loop, false);
    loop_timer_free(co->gather);
    return bare_end(state);
}

/* ---- the clock ---- */

static bool is_about(int64_t ms, int64_t want)
{
    return ms >= want && ms < want + 5000;
}

/* Neither step of the wall clock makes anything older. */
static void test_clock(void **state)
{
    struct coordinator *co = *state;
    const int64_t now = (int64_t)clock_wall_ms();
    co->started_ms = core_now(co) - 1000;
    co->started_unix_ms = now - 1000;
    assert_true(is_about(core_unix_ms(co), now));
    co->started_unix_ms = now - 3600000; /* forward */
    assert_int_equal(core_unix_ms(co), now - 3600000 + 1000);
    co->started_unix_ms = now + 3600000; /* back */
    assert_true(is_about(core_unix_ms(co), now));
}

/* ---- the turn ---- */

static void test_touch(void **state)
{
    struct coordinator *co = *state;
    core_touch(co);
    assert_true(co->touched && co->turn_scheduled && turns == 0);
    core_touch(co);
    loop_turn(co->loop, false);
    assert_int_equal(turns, 1);
    loop_turn(co->loop, false);
    assert_int_equal(turns, 1);
    co->closing = true;
    co->touched = false;
    core_touch(co);
    assert_true(co->touched && !co->turn_scheduled);
}

/* A commit alone is no reason for anybody to advance, and waits a moment for others. */
static void test_gather(void **state)
{
    struct coordinator *co = *state;
    co->closing = true;
    core_gather(co);
    assert_false(loop_timer_active(co->gather));
    co->closing = false;
    co->turn_scheduled = true;
    core_gather(co);
    assert_false(loop_timer_active(co->gather)); /* that turn commits, too */
    co->turn_scheduled = false;
    core_gather(co);
    core_gather(co);
    assert_true(loop_timer_active(co->gather) && !co->touched && !co->turn_scheduled);
    while (turns == 0)
        loop_turn(co->loop, true);
    assert_false(loop_timer_active(co->gather));
}

/* ---- waiting ---- */

static void send_nothing(struct coordinator *co, struct reply *r)
{
}

static void ignore(void *arg, int rc)
{
}

static void test_replies(void **state)
{
    struct coordinator *co = *state;
    const struct reply *later = core_reply_later(co, NULL, send_nothing);
    assert_true(!co->touched && co->n_replies == 1 && later->send == send_nothing);
    const struct reply *now = core_reply(co, NULL, send_nothing);
    assert_true(co->touched && co->n_replies == 2);
    assert_ptr_equal(co->next.replies.next, &later->link);
    assert_ptr_equal(co->next.replies.prev, &now->link);
    co->touched = false;
    core_when_durable(co, ignore, co);
    assert_true(co->touched);
    const struct durable *d = list_entry(co->next.durables.next, struct durable, link);
    assert_true(d->fn == ignore && d->arg == co && !d->shows);
}

/* ---- a commit under way ---- */

static void test_stalls(void **state)
{
    struct coordinator *co = *state;
    co->writing_ms = core_now(co) - CORE_TICK_MS - 1;
    assert_true(core_writing_ms(co) == 0 && !core_stalls(co));
    co->writing = true;
    assert_true(core_writing_ms(co) == CORE_TICK_MS + 1 && core_stalls(co));
    co->writing_ms++;
    assert_false(core_stalls(co));
}

static int begin_stored(void **state)
{
    static char path[] = "/tmp/skerry-core-XXXXXX";
    const int rc = begin_core(state);
    struct coordinator *co = *state;
    struct err err = {0};
    (void)str_copy(path, sizeof(path), "/tmp/skerry-core-XXXXXX");
    assert_non_null(mkdtemp(path));
    co->opt.data_dir = path;
    char *db = file_join(path, "db");
    if (store_open(db, &persist_schema, &co->store, &err) < 0)
        fail_msg("%s", err.msg);
    mem_free(db);
    return rc;
}

static int end_stored(void **state)
{
    struct coordinator *co = *state;
    store_close(co->store);
    assert_int_equal(file_remove_tree(co->opt.data_dir, NULL), 0);
    return end_core(state);
}

static void commit(struct coordinator *co)
{
    struct err err = {0};
    if (store_commit(co->store, &err) < 0)
        fail_msg("%s", err.msg);
}

/* What is to be shown waits for the commit that has it: the next one, the one under way, or none.
 */
static void test_shown(void **state)
{
    struct coordinator *co = *state;
    struct worker *w = state_add_worker(&co->state, 0);
    assert_false(core_row_durable(co, &w->row)); /* it is marked */
    assert_false(core_is_shown(co, NULL));
    assert_false(w->row.edited);
    assert_false(core_row_durable(co, &w->row)); /* it is queued */
    assert_true(core_when_shown(co, NULL, ignore, co));
    assert_false(co->touched);
    assert_true(loop_timer_active(co->gather));
    assert_true(list_entry(co->next.durables.next, struct durable, link)->shows);
    assert_true(store_hand(co->store));
    assert_true(list_empty(&co->group.durables));
    loop_timer_stop(co->gather);
    assert_true(core_when_shown(co, NULL, ignore, co)); /* it is under way */
    assert_false(list_empty(&co->group.durables) || loop_timer_active(co->gather));
    assert_int_equal(store_write(co->store, NULL), 0);
    assert_false(core_is_shown(co, NULL));
    store_written(co->store, 0);
    assert_true(core_is_shown(co, NULL) && core_row_durable(co, &w->row));
    assert_false(core_when_shown(co, NULL, ignore, co));
    w = state_edit_worker(&co->state, w);
    w->tasks_done++;
    assert_false(core_is_shown(co, NULL));
    co->store_ok = false; /* which must be shown */
    assert_true(core_is_shown(co, NULL));
    assert_false(core_when_shown(co, NULL, ignore, co));
}

/* The records of who was forgotten are gone for good after the commit. */
static void test_gone(void **state)
{
    struct coordinator *co = *state;
    for (int kind = 0; kind < 2; kind++) {
        const struct worker *w = state_add_worker(&co->state, 0);
        const struct task *t = state_add_task(&co->state, 0, 1, TASK_TRAIN);
        persist_changes(co->store, &co->state);
        commit(co);
        assert_true(core_gone_durable(co));
        if (kind == 0)
            state_drop_worker(&co->state, w);
        else
            state_drop_task(&co->state, t);
        assert_false(core_gone_durable(co)); /* it is marked */
        persist_changes(co->store, &co->state);
        assert_false(core_gone_durable(co)); /* it is queued */
        commit(co);
        assert_true(core_gone_durable(co));
    }
}

/* ---- when nothing is taken on ---- */

static void test_writable(void **state)
{
    struct coordinator *co = *state;
    struct err err = {0};
    assert_int_equal(core_writable(co, &err), 0);
    co->n_replies = CORE_REPLIES_MAX - 1;
    assert_int_equal(core_writable(co, &err), 0);
    co->n_replies++;
    assert_int_equal(core_writable(co, &err), -EAGAIN);
    assert_non_null(strstr(err.msg, "too much is waiting to be written"));
    (void)str_copy(co->store_error, sizeof(co->store_error), "why");
    co->store_ok = false;
    assert_int_equal(core_writable(co, &err), -EIO);
    assert_string_equal(err.msg, "the coordinator cannot write its state: why");
    co->store_code = -EBUSY;
    assert_int_equal(core_writable(co, &err), -EIO);
    co->store_code = -ENOSPC;
    assert_int_equal(core_writable(co, &err), -ENOSPC);
}

static struct statvfs disk;
static int disk_rc;

int statvfs(const char *path, struct statvfs *ret)
{
    *ret = disk;
    errno = EIO;
    return disk_rc;
}

static void test_disk(void **state)
{
    struct coordinator *co = *state;
    co->opt.data_dir = "/tmp";
    disk = (struct statvfs){.f_bavail = 1023, .f_frsize = 4096};
    assert_true(core_disk_full(co) && co->disk_full);
    disk.f_bavail = 1024;
    assert_false(core_disk_full(co) || co->disk_full);
    disk.f_bavail = 0;
    disk_rc = -1; /* who knows */
    assert_false(core_disk_full(co) || co->disk_full);
    disk_rc = 0;
}

/* ---- events ---- */

static struct {
    unsigned n;
    struct event last;
    size_t len;
} heard[2];

static void hear(void *arg, const struct event *e)
{
    const size_t i = (size_t)(uintptr_t)arg;
    heard[i].n++;
    heard[i].last = *e;
    heard[i].len = strlen(e->text);
}

/* All subscribers hear what is said, cut to fit; those who have left do not. */
static void test_say(void **state)
{
    struct coordinator *co = *state;
    char text[2000];
    memset(heard, 0, sizeof(heard));
    memset(text, 'x', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    log_set_level(LOG_LEVEL_ERROR);
    co->subscribers[0] = (struct subscriber){1, hear, (void *)(uintptr_t)0};
    co->subscribers[EVENT_SUBSCRIBERS_MAX - 1] = (struct subscriber){2, hear, (void *)(uintptr_t)1};
    core_say(co, 5, 6, "%s", text);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(heard[i].n, 1);
        assert_int_equal(heard[i].last.kind, EVENT_LOG);
        assert_true(heard[i].last.job_id == 5 && heard[i].last.worker_id == 6);
        assert_int_equal(heard[i].len, 1023);
    }
    co->subscribers[0].handle = 0;
    core_say(co, 5, 6, "more");
    assert_true(heard[0].n == 1 && heard[1].n == 2);
}

/* ---- fetching ---- */

static struct {
    struct blob_id id;
    unsigned asked, let_go;
    int rc;
    bool waits;
} far;

static int far_local(struct blobstore *s, const struct blob_id *id, bool wait, char **ret_path,
                     struct err *err)
{
    far.asked++;
    far.id = *id;
    far.waits = wait;
    if (far.rc == 0)
        *ret_path = str_dup("path");
    return far.rc;
}

static void far_let_go(struct blobstore *s, const struct blob_id *id)
{
    assert_memory_equal(id, &far.id, sizeof(*id));
    far.let_go++;
}

/* It is fetched on another thread, which may wait, and kept by nobody; if that thread has enough to
 * do, or the fetch fails, the next request asks again. */
static void test_bring(void **state)
{
    static const struct blobstore_ops ops = {.local = far_local, .let_go = far_let_go};
    struct blobstore store = {.ops = &ops};
    struct coordinator *co = *state;
    const struct blob_id id = {{7, 8, 9}};
    memset(&far, 0, sizeof(far));
    co->blobs = &store;
    assert_int_equal(pool_new(co->loop, "far", 1, 1, &co->far, NULL), 0);
    core_bring(co, &id);
    core_bring(co, &id); /* there is room for one */
    while (pool_pending(co->far) > 0)
        loop_turn(co->loop, true);
    assert_true(far.asked == 1 && far.let_go == 1 && far.waits);
    assert_memory_equal(&id, &far.id, sizeof(id));
    far.rc = -EIO;
    core_bring(co, &id);
    while (pool_pending(co->far) > 0)
        loop_turn(co->loop, true);
    pool_free(co->far);
    assert_int_equal(far.asked, 2);
    assert_int_equal(far.let_go, 1);
}

int main(void)
{
#define LIVE(f) cmocka_unit_test_setup_teardown(f, begin_core, end_core)
#define STORED(f) cmocka_unit_test_setup_teardown(f, begin_stored, end_stored)
    const struct CMUnitTest tests[] = {
        LIVE(test_clock),  LIVE(test_touch),   LIVE(test_gather), LIVE(test_replies),
        LIVE(test_stalls), STORED(test_shown), STORED(test_gone), STORED(test_writable),
        LIVE(test_disk),   LIVE(test_say),     LIVE(test_bring),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
