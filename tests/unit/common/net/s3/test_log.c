/* The log with one owner, on a store of ours that loses requests, loses answers, and does what was
 * asked long after it was asked.  Whenever a coordinator asks the store for something another one
 * may act in between. */
#include "common/net/s3/log.h"

#include <pthread.h>
#include <time.h>

#include "common/base/crew.h"
#include "common/base/hash.h"
#include "tests/unit/common/net/net_test.h"

#define OBJECTS_MAX 4096
#define LATE_MAX 32
#define RUNS 1000
#define STEPS 60
#define COORDINATORS 3
#define COMMITS_MAX 8192

struct object {
    char key[256];
    uint8_t *data;
    size_t len;
};

/* What a coordinator has in its database: the commits, in order. */
struct database {
    uint32_t commits[COMMITS_MAX];
    size_t n;
};

struct world;

struct coordinator {
    struct world *w;
    struct s3_log log;
    struct database db;
    bool lives, pending, cut_off;
    bool acts;       /* it waits for the store */
    uint32_t commit; /* that is pending */
    uint64_t before; /* the seq of its snapshot before the newest */
};

struct world {
    uint64_t chance;
    struct object objects[OBJECTS_MAX];
    size_t n;
    struct object late[LATE_MAX];
    size_t n_late;
    struct coordinator coordinators[COORDINATORS];
    unsigned depth;
    uint32_t commits;             /* made so far */
    int acked_by[COMMITS_MAX];    /* by entry: which coordinator, plus 1 */
    uint32_t acked[COMMITS_MAX];  /* the commit of that entry */
    bool told[COMMITS_MAX];       /* by commit */
    unsigned both, takes, losses; /* entries that two have acknowledged */
};

static void step(struct world *w);

static uint64_t draw(struct world *w)
{
    w->chance ^= w->chance << 13;
    w->chance ^= w->chance >> 7;
    w->chance ^= w->chance << 17;
    return w->chance;
}

static bool one_in(struct world *w, unsigned n)
{
    return draw(w) % n == 0;
}

/* ---- the store ---- */

static struct object *find(struct world *w, const char *key)
{
    for (size_t i = 0; i < w->n; i++)
        if (strcmp(w->objects[i].key, key) == 0)
            return &w->objects[i];
    return NULL;
}

static int apply_put(struct world *w, const char *key, const void *data, size_t len)
{
    if (find(w, key))
        return -EEXIST;
    assert_true(w->n < OBJECTS_MAX);
    struct object *o = &w->objects[w->n++];
    (void)str_copy(o->key, sizeof(o->key), key);
    o->data = memcpy(mem_alloc(len + 1), data, len);
    o->len = len;
    return 0;
}

static void later(struct world *w, const char *key, const void *data, size_t len)
{
    if (w->n_late == LATE_MAX)
        return;
    struct object *o = &w->late[w->n_late++];
    (void)str_copy(o->key, sizeof(o->key), key);
    o->data = memcpy(mem_alloc(len + 1), data, len);
    o->len = len;
}

static void one_arrives(struct world *w)
{
    if (w->n_late == 0)
        return;
    struct object *o = &w->late[draw(w) % w->n_late];
    (void)apply_put(w, o->key, o->data, o->len);
    mem_free(o->data);
    *o = w->late[--w->n_late];
}

static int cut(struct err *err)
{
    return err_set(err, -EAGAIN, "no answer");
}

/* Another coordinator acts, or a packet arrives. */
static bool reaches(struct coordinator *c)
{
    struct world *w = c->w;
    if (one_in(w, 8))
        one_arrives(w);
    if (w->depth < 2) {
        w->depth++;
        for (uint64_t n = one_in(w, 4) ? 1 + draw(w) % 16 : 0; n > 0; n--)
            step(w);
        w->depth--;
    }
    return !c->cut_off && !one_in(w, 20);
}

static int put_new(void *arg, const char *key, const void *data, size_t len, struct err *err)
{
    struct coordinator *c = arg;
    if (!reaches(c)) {
        if (one_in(c->w, 3))
            later(c->w, key, data, len);
        return cut(err);
    }
    const int rc = apply_put(c->w, key, data, len);
    if (one_in(c->w, 15)) /* a network may bring it twice */
        later(c->w, key, data, len);
    return one_in(c->w, 12) ? cut(err) : rc;
}

static int get(void *arg, const char *key, struct buf *ret, struct err *err)
{
    struct coordinator *c = arg;
    if (!reaches(c))
        return cut(err);
    const struct object *o = find(c->w, key);
    return o ? buf_append(ret, o->data, o->len) : err_set(err, -ERR_NOTFOUND, "nothing");
}

static int list(void *arg, const char *prefix, s3_list_fn *fn, void *fn_arg, struct err *err)
{
    struct coordinator *c = arg;
    if (!reaches(c))
        return cut(err);
    for (size_t i = 0; i < c->w->n; i++)
        if (str_starts(c->w->objects[i].key, prefix))
            (void)fn(fn_arg, c->w->objects[i].key, c->w->objects[i].len, 0);
    return 0;
}

static int drop(void *arg, const char *key, struct err *err)
{
    struct coordinator *c = arg;
    if (!reaches(c))
        return cut(err);
    struct object *o = find(c->w, key);
    if (!o)
        return -ERR_NOTFOUND;
    mem_free(o->data);
    *o = c->w->objects[--c->w->n];
    return 0;
}

static const struct s3_log_ops model = {put_new, get, list, drop};

/* ---- coordinators ---- */

static void draw_owner(struct coordinator *c)
{
    for (size_t i = 0; i < sizeof(c->log.owner); i++)
        c->log.owner[i] = (uint8_t)draw(c->w);
}

static void acknowledge(struct coordinator *c, uint64_t seq, uint32_t commit)
{
    struct world *w = c->w;
    const int me = (int)(c - w->coordinators) + 1;
    assert_true(seq < COMMITS_MAX);
    w->both += w->acked_by[seq] != 0 && (w->acked_by[seq] != me || w->acked[seq] != commit);
    w->acked_by[seq] = me;
    w->acked[seq] = commit;
    w->told[commit] = true;
}

static int commit(struct coordinator *c)
{
    struct err err = {0};
    if (!c->pending) {
        c->commit = c->w->commits++;
        assert_true(c->commit < COMMITS_MAX);
        assert_int_equal(s3_log_next(&c->log, S3_LOG_ROWS, &c->commit, sizeof(c->commit), &err), 0);
        c->pending = true;
    }
    const int rc = s3_log_send(&c->log, &err);
    if (rc == -ERR_STALE)
        c->lives = false;
    if (rc == 0) {
        c->pending = false;
        c->db.commits[c->db.n++] = c->commit;
        acknowledge(c, c->log.seq, c->commit);
    }
    return rc;
}

static int put_snapshot(struct coordinator *c, const struct s3_log_snapshot *of)
{
    struct s3_log_snapshot s = *of;
    const size_t len = c->db.n * sizeof(uint32_t);
    uint8_t *copy = memcpy(mem_alloc(len + 1), c->db.commits, len);
    hash_sha256(copy, len, s.sha256);
    char *key = s3_log_snapshot_key(&c->log, &s);
    int rc = put_new(c, key, copy, len, NULL);
    mem_free(key);
    mem_free(copy);
    return rc == -EEXIST ? 0 : rc;
}

static void snapshot(struct coordinator *c)
{
    struct s3_log_snapshot s = {.seq = c->log.seq};
    memcpy(s.hash, c->log.hash, sizeof(s.hash));
    if (put_snapshot(c, &s) < 0)
        return;
    if (c->before != 0)
        (void)s3_log_clean(&c->log, c->before, NULL);
    c->before = s.seq;
}

/* As ship.c does at each start, also of one that does not know that it is deposed. */
static void restart(struct coordinator *c)
{
    struct s3_log_snapshot s = {.seq = c->log.seq + 1};
    c->lives = false;
    c->before = c->log.gone = 0;
    draw_owner(c);
    assert_int_equal(s3_log_next(&c->log, S3_LOG_OWNER, "", 0, NULL), 0);
    memcpy(s.hash, c->log.out_hash, sizeof(s.hash));
    c->lives = put_snapshot(c, &s) == 0 && s3_log_send(&c->log, NULL) == 0 &&
               s3_log_check(&c->log, NULL) == 0;
}

static int load(struct coordinator *c, const struct s3_log_snapshot *s)
{
    struct buf raw;
    char *key = s3_log_snapshot_key(&c->log, s);
    buf_init(&raw, sizeof(c->db.commits));
    const int rc = get(c, key, &raw, NULL);
    if (rc == 0) {
        memcpy(c->db.commits, raw.data ? raw.data : (const uint8_t *)"", raw.len);
        c->db.n = raw.len / sizeof(uint32_t);
        c->log.seq = s->seq;
        memcpy(c->log.hash, s->hash, sizeof(s->hash));
    }
    buf_release(&raw);
    mem_free(key);
    return rc;
}

static int read_on(struct coordinator *c)
{
    struct buf raw;
    struct s3_log_entry e;
    int rc;
    buf_init(&raw, 4096);
    while ((rc = s3_log_read(&c->log, &raw, &e, NULL)) == 0)
        if (e.kind == S3_LOG_ROWS)
            memcpy(&c->db.commits[c->db.n++], e.body, sizeof(uint32_t));
    buf_release(&raw);
    return rc == -ERR_NOTFOUND ? 0 : rc;
}

static int find_snapshot(struct coordinator *c)
{
    struct s3_log_snapshot *all = NULL;
    size_t n = 0;
    int rc = s3_log_snapshots(&c->log, 8, &all, &n, NULL);
    bool found = false;
    for (size_t i = 0; rc == 0 && !found && i < n; i++)
        if ((rc = s3_log_counts(&c->log, &all[i], &found, NULL)) == 0 && found)
            rc = load(c, &all[i]);
    mem_free(all);
    return rc;
}

/* As restore.c does, which has more threads. */
static void take_over(struct coordinator *c)
{
    struct world *w = c->w;
    s3_log_ahead(&c->log, 1);
    c->lives = c->pending = false;
    c->before = c->log.gone = 0;
    c->db.n = 0;
    c->log.seq = 0;
    memset(c->log.hash, 0, sizeof(c->log.hash));
    draw_owner(c);
    w->takes++;
    int rc = find_snapshot(c);
    do {
        if (rc == 0 || rc == -ERR_STALE)
            rc = read_on(c);
        if (rc == 0)
            rc = s3_log_next(&c->log, S3_LOG_OWNER, "", 0, NULL);
        if (rc == 0)
            rc = s3_log_send(&c->log, NULL);
    } while (rc == -ERR_STALE);
    if (rc == 0)
        rc = s3_log_check(&c->log, NULL);
    c->lives = rc == 0; /* else whoever runs it tries again */
}

static void step(struct world *w)
{
    struct coordinator *c = &w->coordinators[draw(w) % COORDINATORS];
    const uint64_t what = draw(w) % 40;
    if (c->acts)
        return;
    c->acts = true;
    if (what == 0)
        c->cut_off = !c->cut_off;
    else if (what == 1)
        take_over(c);
    else if (what == 2 && !c->pending)
        restart(c);
    else if (what < 10 && c->lives && !c->pending)
        snapshot(c);
    else if (c->lives)
        (void)commit(c);
    c->acts = false;
}

/* What a coordinator that comes last finds, on a store without faults. */
static void judge(struct world *w)
{
    static struct coordinator last;
    bool has[COMMITS_MAX] = {false};
    while (w->n_late > 0)
        one_arrives(w);
    w->depth = 2;
    last = (struct coordinator){.w = w};
    s3_log_init(&last.log, &model, &last, "p");
    for (int n = 0; n < 200 && !last.lives; n++)
        take_over(&last);
    assert_true(last.lives);
    for (size_t i = 0; i < last.db.n; i++) {
        w->losses += has[last.db.commits[i]]; /* or doubled */
        has[last.db.commits[i]] = true;
    }
    for (size_t i = 0; i < w->commits; i++)
        w->losses += w->told[i] && !has[i];
    s3_log_release(&last.log);
}

static void one_run(uint64_t seed, unsigned totals[4])
{
    static struct world w;
    memset(&w, 0, sizeof(w));
    w.chance = seed * 0x9e3779b97f4a7c15ull + 1;
    for (int i = 0; i < COORDINATORS; i++) {
        w.coordinators[i].w = &w;
        s3_log_init(&w.coordinators[i].log, &model, &w.coordinators[i], "p");
    }
    w.coordinators[0].lives = true;
    for (int i = 0; i < STEPS; i++)
        step(&w);
    judge(&w);
    totals[0] += w.both;
    totals[1] += w.losses;
    totals[2] += w.takes;
    for (size_t i = 0; i < w.commits; i++)
        totals[3] += w.told[i];
    for (int i = 0; i < COORDINATORS; i++)
        s3_log_release(&w.coordinators[i].log);
    while (w.n_late > 0)
        mem_free(w.late[--w.n_late].data);
    while (w.n > 0)
        mem_free(w.objects[--w.n].data);
}

/* make bench-beyond reads the line. */
static void nobody_is_fooled(void **state)
{
    unsigned totals[4] = {0};
    for (uint64_t seed = 1; seed <= RUNS; seed++) {
        one_run(seed, totals);
        if (totals[0] + totals[1] > 0)
            fail_msg("seed %llu: %u entries acknowledged by two, %u commits lost or doubled",
                     (unsigned long long)seed, totals[0], totals[1]);
    }
    assert_true(totals[2] > RUNS && totals[3] > 10 * RUNS);
    (void)printf("partitions %d acknowledged_by_both %u lost %u takeovers %u acknowledged %u\n",
                 RUNS, totals[0], totals[1], totals[2], totals[3]);
}

/* ---- one at a time ---- */

static void entries_are_checked(void **state)
{
    static struct world w;
    struct buf raw;
    struct s3_log_entry e;
    struct err err = {0};
    memset(&w, 0, sizeof(w));
    w.chance = UINT64_MAX;
    w.depth = 2;
    struct coordinator *c = &w.coordinators[0];
    c->w = &w;
    s3_log_init(&c->log, &model, c, "p");
    buf_init(&raw, 4096);
    assert_int_equal(s3_log_next(&c->log, S3_LOG_ROWS, "row", 3, &err), 0);
    assert_int_equal(apply_put(&w, "p/log/0000000000000001", c->log.out.data, c->log.out.len), 0);
    int rc;
    while ((rc = s3_log_get(&c->log, 1, &raw, &e, &err)) == -EAGAIN)
        ;
    assert_int_equal(rc, 0);
    assert_int_equal(e.len, 3);
    assert_memory_equal(e.body, "row", 3);
    w.objects[0].data[100] ^= 1;
    while ((rc = s3_log_get(&c->log, 1, &raw, &e, &err)) == -EAGAIN)
        ;
    assert_int_equal(rc, -ERR_FORMAT);
    assert_non_null(strstr(err.msg, "is damaged"));
    w.objects[0].len = 90;
    while ((rc = s3_log_get(&c->log, 1, &raw, &e, &err)) == -EAGAIN)
        ;
    assert_int_equal(rc, -ERR_FORMAT);
    assert_non_null(strstr(err.msg, "is cut off"));
    /* The next release goes on with the state while this one is still at it. */
    w.objects[0].len = c->log.out.len;
    w.objects[0].data[0] ^= 1;
    while ((rc = s3_log_send(&c->log, &err)) == -EAGAIN)
        ;
    assert_int_equal(rc, -ERR_STALE);
    assert_non_null(strstr(err.msg, "of another release"));
    buf_release(&raw);
    s3_log_release(&c->log);
    mem_free(w.objects[0].data);
}

/* A store that does not list says nothing of who owns the log. */
static void a_log_that_cannot_be_listed(void **state)
{
    static struct world w;
    struct err err = {0};
    memset(&w, 0, sizeof(w));
    w.chance = UINT64_MAX;
    w.depth = 2;
    struct coordinator *c = &w.coordinators[0];
    c->w = &w;
    s3_log_init(&c->log, &model, c, "p");
    assert_int_equal(apply_put(&w, "p/log/0000000000000001", "1", 1), 0);
    c->cut_off = true;
    assert_int_equal(s3_log_check(&c->log, &err), -EAGAIN);
    c->cut_off = false;
    int rc;
    while ((rc = s3_log_check(&c->log, &err)) == -EAGAIN)
        ;
    assert_int_equal(rc, -ERR_STALE);
    assert_non_null(strstr(err.msg, "went on meanwhile"));
    s3_log_release(&c->log);
    mem_free(w.objects[0].data);
}

/* ---- reading ahead ---- */

/* A store that lets nobody have an entry before several have asked at once, or ten seconds are
 * over. */
struct far_store {
    struct world *w;
    pthread_mutex_t lock;
    pthread_cond_t come;
    unsigned inside, most;
    bool alone; /* nobody came in time */
};

static int far_put_new(void *arg, const char *key, const void *data, size_t len, struct err *err)
{
    return apply_put(((struct far_store *)arg)->w, key, data, len);
}

static int far_get(void *arg, const char *key, struct buf *ret, struct err *err)
{
    struct far_store *f = arg;
    struct timespec until;
    (void)clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 10;
    (void)pthread_mutex_lock(&f->lock);
    f->inside++;
    f->most = f->inside > f->most ? f->inside : f->most;
    (void)pthread_cond_broadcast(&f->come);
    while (f->most < 4 && !f->alone)
        f->alone = pthread_cond_timedwait(&f->come, &f->lock, &until) != 0;
    f->inside--;
    const struct object *o = find(f->w, key);
    const int rc = o ? buf_append(ret, o->data, o->len) : err_set(err, -ERR_NOTFOUND, "no");
    (void)pthread_mutex_unlock(&f->lock);
    return rc;
}

/* Entries come at once, in their order; one that is larger than what is held ahead, and one that
 * was written after the look ahead, are there, too. */
static void entries_are_read_ahead(void **state)
{
    static const struct s3_log_ops ops = {.put_new = far_put_new, .get = far_get};
    enum { ENTRIES = 40, LARGE = 23 };
    static struct world w;
    static uint8_t large[S3_LOG_AHEAD_BYTES];
    struct far_store f = {.w = &w, .most = 4};
    struct s3_log writer, reader;
    struct s3_log_entry e;
    struct buf raw;
    struct err err = {0};
    memset(&w, 0, sizeof(w));
    (void)pthread_mutex_init(&f.lock, NULL);
    (void)pthread_cond_init(&f.come, NULL);
    s3_log_init(&writer, &ops, &f, "p");
    s3_log_init(&reader, &ops, &f, "p");
    s3_log_ahead(&reader, CREW_MAX);
    buf_init(&raw, S3_LOG_ENTRY_MAX);
    for (uint32_t i = 1; i <= ENTRIES; i++) {
        memcpy(large, &i, sizeof(i));
        const size_t len = i == LARGE ? sizeof(large) : sizeof(i);
        assert_int_equal(s3_log_next(&writer, S3_LOG_ROWS, large, len, &err), 0);
        assert_int_equal(s3_log_send(&writer, &err), 0);
    }
    f.most = 0;
    for (uint32_t i = 1; i <= ENTRIES; i++) {
        if (s3_log_read(&reader, &raw, &e, &err) < 0)
            fail_msg("%s", err.msg);
        assert_int_equal(e.seq, i);
        assert_memory_equal(e.body, &i, sizeof(i));
        assert_int_equal(e.len, i == LARGE ? sizeof(large) : sizeof(i));
    }
    assert_true(f.most >= 4);
    assert_int_equal(s3_log_read(&reader, &raw, &e, &err), -ERR_NOTFOUND);
    assert_int_equal(s3_log_next(&writer, S3_LOG_OWNER, "b", 1, &err), 0);
    assert_int_equal(s3_log_send(&writer, &err), 0);
    assert_int_equal(s3_log_read(&reader, &raw, &e, &err), 0);
    assert_int_equal(e.seq, ENTRIES + 1);
    buf_release(&raw);
    s3_log_release(&writer);
    s3_log_release(&reader);
    for (size_t i = 0; i < w.n; i++)
        mem_free(w.objects[i].data);
}

static void append(struct s3_log *log, const char *body)
{
    assert_int_equal(s3_log_next(log, S3_LOG_ROWS, body, strlen(body), NULL), 0);
    assert_int_equal(s3_log_send(log, NULL), 0);
}

/* A missing entry ends the log, though those after it are held; once it is there they count, if
 * they follow it. */
static void a_gap_is_the_end(void **state)
{
    static const struct s3_log_ops ops = {.put_new = far_put_new, .get = far_get};
    static struct world w;
    struct far_store f = {.w = &w, .most = 4};
    struct s3_log writer, reader;
    struct s3_log_entry e;
    struct buf raw;
    struct err err = {0};
    memset(&w, 0, sizeof(w));
    (void)pthread_mutex_init(&f.lock, NULL);
    (void)pthread_cond_init(&f.come, NULL);
    s3_log_init(&writer, &ops, &f, "p");
    s3_log_init(&reader, &ops, &f, "p");
    s3_log_ahead(&reader, CREW_MAX);
    buf_init(&raw, S3_LOG_ENTRY_MAX);
    append(&writer, "1");
    append(&writer, "2");
    append(&writer, "3");
    struct object *second = find(&w, "p/log/0000000000000002");
    second->key[0] = 'q'; /* it is not there yet */
    assert_int_equal(s3_log_read(&reader, &raw, &e, &err), 0);
    for (int i = 0; i < 2; i++)
        assert_int_equal(s3_log_read(&reader, &raw, &e, &err), -ERR_NOTFOUND);
    assert_int_equal(reader.seq, 1);
    if (*state) {
        struct s3_log other = reader;
        buf_init(&other.out, S3_LOG_ENTRY_MAX);
        append(&other, "another coordinator's");
        buf_release(&other.out);
    } else {
        second->key[0] = 'p';
    }
    assert_int_equal(s3_log_read(&reader, &raw, &e, &err), 0);
    assert_int_equal(s3_log_read(&reader, &raw, &e, &err), *state ? -ERR_FORMAT : 0);
    assert_int_equal(reader.seq, *state ? 2 : 3);
    assert_true(!*state || strstr(err.msg, "entry 3 of the log in the store does not follow"));
    buf_release(&raw);
    s3_log_release(&writer);
    s3_log_release(&reader);
    for (size_t i = 0; i < w.n; i++)
        mem_free(w.objects[i].data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(entries_are_read_ahead),
        cmocka_unit_test(a_gap_is_the_end),
        cmocka_unit_test_prestate(a_gap_is_the_end, (void *)"another's"),
        cmocka_unit_test(nobody_is_fooled),
        cmocka_unit_test(a_log_that_cannot_be_listed),
        cmocka_unit_test(entries_are_checked)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
