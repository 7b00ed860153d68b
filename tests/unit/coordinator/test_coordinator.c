/* A coordinator's start: what it refuses, what it writes for others, and what it makes of leases
 * that it finds on record. */
#include "tests/unit/coordinator/rig.h"

#include <sys/stat.h>

#include "common/net/ticket.h"
#include "coordinator/state/place.h"
#include "coordinator/work/tokens.h"

/* ---- what is refused ---- */

static int open_at(struct rig *r, const char *dir, uint16_t rpc_port, uint16_t http_port,
                   struct err *err)
{
    const struct coordinator_options o = {.data_dir = dir,
                                          .listen = "127.0.0.1",
                                          .plain_http = true,
                                          .rpc_port = rpc_port,
                                          .http_port = http_port,
                                          .heartbeat_ms = 2000,
                                          .lease_ms = 60000,
                                          .outer_threads = 1};
    struct coordinator *co = NULL;
    const int rc = coordinator_open(r->loop, &o, &co, err);
    assert_int_equal(co != NULL, rc == 0);
    coordinator_close(co);
    return rc;
}

/* Without its database nobody would know what the files are, and they would be swept. */
static void test_a_lost_database(void **state)
{
    struct rig *r = *state;
    struct err err = {0};
    char *db = fx_path(&r->f, "coordinator.db"), *aside = fx_path(&r->f, "aside");
    const uint64_t job = submit(r);
    settle(r);
    stop(r);
    assert_int_equal(loop_new(&r->loop, &err), 0);
    assert_int_equal(file_rename(db, aside, NULL), 0);
    for (int empty = 0; empty < 2; empty++) {
        assert_int_equal(open_at(r, r->f.dir, 0, 0, &err), -ERR_FORMAT);
        assert_non_null(strstr(err.msg, "coordinator.db is gone or empty, but"));
        assert_non_null(strstr(err.msg, "/blobs has files of its jobs"));
        assert_int_equal(file_exists(db), empty);
        assert_int_equal(file_write_put(db, "", 0, 0600, NULL), 0);
    }
    assert_int_equal(file_rename(aside, db, NULL), 0);
    loop_free(r->loop);
    start(r);
    assert_int_equal(state_job(&r->co->state, job)->n_shards, 2);
    mem_free(db);
    mem_free(aside);
}

/* Nor would it have the jobs of a restore that was interrupted. */
static void test_a_part_of_a_restore(void **state)
{
    struct rig *r = *state;
    struct err err = {0};
    char *dir = fx_path(&r->f, "part");
    assert_int_equal(place_begin(dir, NULL), 0);
    assert_int_equal(open_at(r, dir, 0, 0, &err), -ERR_FORMAT);
    assert_non_null(strstr(err.msg, "its restore was interrupted, run it again"));
    place_undo(dir);
    assert_int_equal(open_at(r, dir, 0, 0, &err), 0);
    mem_free(dir);
}

static void test_ports_of_others(void **state)
{
    struct rig *r = *state;
    struct err err = {0};
    char *dir = fx_path(&r->f, "another");
    assert_int_equal(file_mkdirs(dir, 0700, NULL), 0);
    assert_int_equal(open_at(r, dir, r->co->worker_token.rpc_port, 0, &err), -EADDRINUSE);
    assert_non_null(strstr(err.msg, "(RPC) of 127.0.0.1 is in use by another program"));
    assert_non_null(strstr(err.msg, "--rpc-port"));
    assert_int_equal(open_at(r, dir, 0, r->co->worker_token.http_port, &err), -EADDRINUSE);
    assert_non_null(strstr(err.msg, "(HTTP) of 127.0.0.1 is in use by another program"));
    assert_non_null(strstr(err.msg, "--http-port"));
    assert_int_equal(open_at(r, dir, 0, 0, &err), 0);
    mem_free(dir);
}

/* ---- what is written ---- */

static void test_host(void **state)
{
    static const struct {
        const char *listen, *host;
        bool guesses;
    } cases[] = {{"0.0.0.0", NULL, true}, {"::", NULL, true},         {"0.0.0.0", "name", false},
                 {"::", "name", false},   {"192.0.2.1", NULL, false}, {"192.0.2.1", "name", false}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct coordinator co = {.opt = {.listen = cases[i].listen, .host = cases[i].host}};
        assert_int_equal(coordinator_guesses_host(&co), cases[i].guesses);
    }
}

/* A file of the data directory, which only its owner may read if it is private. */
static char *text_of(struct rig *r, const char *name, bool private)
{
    struct buf text;
    struct stat st;
    char *path = fx_path(&r->f, name);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, private ? 0600 : 0644);
    assert_int_equal(file_read(path, 65536, &text, NULL), 0);
    char *copy = str_dup(buf_str(&text));
    buf_release(&text);
    mem_free(path);
    return copy;
}

static void test_files(void **state)
{
    struct rig *r = *state;
    struct token t;
    struct err err = {0};
    char want[64];
    const mode_t before = umask(022);
    stop(r);
    start(r);
    (void)umask(before);
    for (int worker = 0; worker < 2; worker++) {
        char *text = text_of(r, worker ? "worker.token" : "user.token", true);
        assert_int_equal(text[strlen(text) - 1], '\n');
        text[strlen(text) - 1] = '\0';
        assert_int_equal(token_parse(text, &t, &err), 0);
        assert_int_equal(t.role, worker ? TOKEN_ROLE_WORKER : TOKEN_ROLE_OPERATOR);
        assert_string_equal(t.host, "127.0.0.1");
        assert_true(t.http_plain && t.rpc_port == r->co->worker_token.rpc_port);
        assert_int_equal(t.http_port, r->co->worker_token.http_port);
        assert_memory_equal(t.cluster_id, r->co->worker_token.cluster_id, TOKEN_CLUSTER_BYTES);
        if (!worker)
            assert_string_equal(text, coordinator_user_token(r->co));
        mem_free(text);
    }
    char *ports = text_of(r, "ports.json", false);
    (void)snprintf(want, sizeof(want), "{\"rpc_port\": %u, \"http_port\": %u, ", t.rpc_port,
                   t.http_port);
    assert_ptr_equal(strstr(ports, want), ports);
    assert_non_null(strstr(ports, coordinator_http_url(r->co)));
    mem_free(ports);
}

/* Tickets are signed with a key of this boot of the machine, whose clock says when they end. */
static void test_key_of_tickets(void **state)
{
    struct rig *r = *state;
    uint8_t secret[KEYS_SECRET_BYTES], key[TICKET_KEY_BYTES];
    char boot[CLOCK_BOOT_MAX];
    assert_int_equal(keys_secret(r->f.dir, "ticket", secret, NULL), 0);
    ticket_key(secret, clock_boot(boot), key);
    assert_memory_equal(r->co->ticket_key, key, sizeof(key));
}

/* A revoked token is no longer handed out, and the other one still is. */
static void test_revoked_files(void **state)
{
    struct rig *r = *state;
    struct err err = {0};
    const struct token_rec *rec =
        access_by_secret(&r->co->state, TOKEN_ROLE_WORKER, r->co->worker_token.secret);
    char *path = fx_path(&r->f, "worker.token");
    assert_true(coordinator_has_worker_token(r->co));
    if (tokens_revoke(r->co, rec->id, 0, &err) < 0)
        fail_msg("%s", err.msg);
    assert_false(coordinator_has_worker_token(r->co));
    assert_int_equal(file_remove(path, NULL), 0);
    settle(r);
    stop(r);
    start(r);
    assert_false(coordinator_has_worker_token(r->co));
    assert_false(file_exists(path));
    assert_true(*coordinator_user_token(r->co) != '\0');
    mem_free(path);
}

/* ---- leases ---- */

static void restart(struct rig *r)
{
    settle(r);
    stop(r);
    start(r);
}

static uint64_t lease(struct rig *r, struct fake *w)
{
    assert_int_equal(join(r, w, SKERRY_VERSION), 0);
    (void)submit(r);
    do_init(r, w);
    return assign(r, w, TASK_TRAIN)->id;
}

static uint64_t leased_samples(struct rig *r, const struct task *t)
{
    struct ledger_epoch e;
    const struct job *j = state_job(&r->co->state, t->job_id);
    ledger_figures(j->ledgers[job_ledger(j, j->comp.paths[t->path].partition)], 0, &e);
    return e.leased;
}

/* Who was here may come back and go on, and has longer than others for that. */
static void test_a_lease_goes_on(void **state)
{
    struct rig *r = *state;
    const uint64_t id = lease(r, &r->workers[0]);
    restart(r);
    const struct task *t = state_task(&r->co->state, id);
    const struct worker *w = state_worker(&r->co->state, r->workers[0].id);
    assert_true(t->state == TASK_LEASED && t->older && w->task_id == id);
    assert_int_equal(t->leased_ms, w->joined_ms);
    assert_int_equal(w->closed_ms, w->joined_ms + CORE_REDIAL_MS);
    assert_int_equal(w->heard_ms, w->joined_ms + CORE_REDIAL_MS);
    assert_int_equal(leased_samples(r, t), 8);
}

/* Who was gone, or has another task, is not waited for. */
static void test_a_lease_of_nobody(void **state)
{
    for (int other = 0; other < 2; other++) {
        struct rig *r = *state;
        const uint64_t id = lease(r, &r->workers[0]);
        struct worker *w = edit_worker(r, r->workers[0].id);
        if (other)
            w->task_id = id + 1000;
        else
            state_set_worker_state(&r->co->state, w, WORKER_LOST);
        stop(r);
        start(r);
        const struct task *t = state_task(&r->co->state, id);
        assert_int_equal(t->state, TASK_PENDING);
        assert_int_equal(leased_samples(r, t), 0);
        w = edit_worker(r, r->workers[0].id);
        assert_int_equal(w->task_id, 0);
        assert_int_equal(w->closed_ms > 0, other);
        assert_int_equal(end(state), 0);
        assert_int_equal(begin(state), 0);
    }
}

/* The steps that were made here are made again. */
static void test_a_step_of_ours(void **state)
{
    struct rig *r = *state;
    const uint64_t job = state_job(&r->co->state, submit(r))->id;
    struct task *made = state_add_task(&r->co->state, 0, job, TASK_OUTER);
    const uint64_t id = made->id;
    made->outer.module_id = state_job(&r->co->state, job)->modules[0].id;
    stop(r);
    start(r);
    const struct task *t = state_task(&r->co->state, id);
    assert_int_equal(t->state, TASK_CANCELLED);
    assert_string_equal(t->reason, "the coordinator was restarted");
}

int main(void)
{
#define LIVE(f) cmocka_unit_test_setup_teardown(f, begin, end)
    const struct CMUnitTest tests[] = {
        LIVE(test_a_lost_database),   LIVE(test_ports_of_others),
        cmocka_unit_test(test_host),  LIVE(test_files),
        LIVE(test_revoked_files),     LIVE(test_a_lease_goes_on),
        LIVE(test_a_lease_of_nobody), LIVE(test_a_step_of_ours),
        LIVE(test_key_of_tickets),    LIVE(test_a_part_of_a_restore),
    };
    log_set_level(LOG_LEVEL_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
