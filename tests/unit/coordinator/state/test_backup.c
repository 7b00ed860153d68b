/* Backups of a coordinator at work (rig.h): what is copied, dropped and refused, on a disk that may
 * be full; and what a restore leaves. */
#include "coordinator/state/backup.h"

#include <ftw.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "common/base/hash.h"
#include "common/base/moving.h"
#include "common/net/blob_dir.h"
#include "coordinator/state/capture.h"
#include "coordinator/state/manifest.h"
#include "coordinator/state/place.h"
#include "tests/unit/coordinator/rig.h"

#define LARGE_BYTES 200000
#define WEEK_MS (7 * 24 * 3600 * 1000ll)

/* ---- how far it says it is; the linker leaves the real ones out ---- */

static uint64_t done, total;

struct moving moving_begin(const char *what)
{
    done = total = 0;
    return (struct moving){.what = what};
}

void moving_add(struct moving_bytes *m, uint64_t bytes)
{
    m->done += bytes;
    done = m->done;
    total = m->total;
    assert_in_range(done, 0, total);
}

void moving_clear(void)
{
}

/* ---- a disk of so many bytes ---- */

static char top[64]; /* the folder of backups and restored directories are here */
static char folder[80], other[80];
static const char *_Atomic full = folder; /* what is on the disk with little room */
static _Atomic uint64_t room;             /* of the folder; 0: any */
static _Thread_local uint64_t used;

static int add_size(const char *path, const struct stat *st, int type, struct FTW *at)
{
    used += type == FTW_F ? (uint64_t)st->st_size : 0;
    return 0;
}

static bool is_full(int fd, size_t more)
{
    char link[64], path[256] = "";
    (void)snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    if (readlink(link, path, sizeof(path) - 1) < 0 || !str_starts(path, full))
        return false;
    used = 0;
    (void)nftw(full, add_size, 8, FTW_PHYS);
    return used + more > room;
}

ssize_t write(int fd, const void *data, size_t n)
{
    if (room > 0 && is_full(fd, n)) {
        errno = ENOSPC;
        return -1;
    }
    return syscall(SYS_write, fd, data, n);
}

/* SQLite's. */
ssize_t pwrite64(int fd, const void *data, size_t n, off64_t at)
{
    if (room > 0 && is_full(fd, n)) {
        errno = ENOSPC;
        return -1;
    }
    return syscall(SYS_pwrite64, fd, data, n, at);
}

/* ---- */

static int begin_backup(void **state)
{
    (void)str_copy(top, sizeof(top), "/tmp/skerry-backup-XXXXXX");
    assert_non_null(mkdtemp(top));
    (void)snprintf(folder, sizeof(folder), "%s/folder", top);
    (void)snprintf(other, sizeof(other), "%s/other", top);
    return begin(state);
}

static int end_backup(void **state)
{
    room = 0;
    assert_int_equal(file_remove_tree(top, NULL), 0);
    return end(state);
}

/* A job with a shard of this letter; its blob. */
static struct blob_ref submit_large(struct rig *r, char letter)
{
    char *text = mem_alloc(LARGE_BYTES + 1);
    memset(text, letter, LARGE_BYTES);
    struct blob_ref ref = put_text(r, text);
    static const char *const classes[] = {"cat"};
    static const uint64_t counts[] = {40};
    struct submit_shard shards[] = {{.size = ref.size, .samples = 40}};
    const struct submit s = {.spec = yaml,
                             .classes = classes,
                             .counts = counts,
                             .n_classes = 1,
                             .shards = shards,
                             .n_shards = 1};
    struct err err = {0};
    uint64_t id;
    memcpy(shards[0].sha256, ref.sha256, 32);
    if (view_job_submit(r->co, &s, &id, &err) < 0)
        fail_msg("%s", err.msg);
    settle(r);
    mem_free(text);
    return ref;
}

static struct backup_result back_up(struct rig *r, unsigned keep)
{
    struct backup_result got;
    struct err err = {0};
    if (backup_make(r->f.dir, folder, keep, &got, &err) < 0)
        fail_msg("%s", err.msg);
    assert_in_range(total, got.new_bytes, got.bytes);
    assert_int_equal(done, total);
    return got;
}

static void refused(struct rig *r, const char *where, int code, const char *why)
{
    struct backup_result got;
    struct err err = {0};
    const int rc = backup_make(r->f.dir, where, 0, &got, &err);
    if (rc != code || !strstr(err.msg, why))
        fail_msg("%d '%s', expected %d '%s'", rc, err.msg, code, why);
}

/* "FOLDER/NAME.manifest". */
static char *manifest_path(const char *name)
{
    return str_printf("%s/%s.manifest", folder, name);
}

/* The names of backups are times: makes one older. */
static void rename_to(const char *from, const char *to)
{
    char *a = manifest_path(from), *b = manifest_path(to);
    assert_int_equal(file_rename(a, b, NULL), 0);
    mem_free(a);
    mem_free(b);
}

static char *object(const uint8_t sha256[32])
{
    char *objects = file_join(folder, "objects"), *path = blob_dir_file(objects, sha256);
    mem_free(objects);
    return path;
}

static bool has_object(const uint8_t sha256[32])
{
    char *path = object(sha256);
    const bool has = file_exists(path);
    mem_free(path);
    return has;
}

static struct backup_result restore(const char *name)
{
    struct backup_result got;
    struct err err = {0};
    if (backup_restore(folder, name, other, &got, &err) < 0)
        fail_msg("%s", err.msg);
    assert_int_equal(total, got.bytes);
    assert_int_equal(done, total);
    return got;
}

static void not_restored(const char *name, int code, const char *why)
{
    struct backup_result got;
    struct err err = {0};
    const int rc = backup_restore(folder, name, other, &got, &err);
    if (rc != code || !strstr(err.msg, why))
        fail_msg("%d '%s', expected %d '%s'", rc, err.msg, code, why);
}

/* The names in a directory, each with a space behind it. */
static char *names_in(const char *dir, char ret[1024])
{
    struct file_names names;
    ret[0] = '\0';
    assert_int_equal(file_list(dir, 100, &names, NULL), 0);
    for (size_t i = 0; i < names.n; i++)
        (void)snprintf(ret + strlen(ret), 1024 - strlen(ret), "%s ", names.items[i]);
    file_names_release(&names);
    return ret;
}

/* ---- there and back ---- */

/* Ids go on far above, and the time since the backup is not charged to its workers. */
static void begins_anew(const struct state *was)
{
    struct store *s = NULL;
    struct state st;
    struct err err = {0};
    char *path = file_join(other, CAPTURE_DATABASE);
    state_init(&st);
    if (store_open(path, &persist_schema, &s, &err) < 0 || persist_load(s, &st, &err) < 0)
        fail_msg("%s", err.msg);
    assert_int_equal(st.n_jobs, was->n_jobs);
    assert_int_equal(st.next_worker, was->next_worker + 1000000);
    assert_int_equal(st.next_job, was->next_job + 1000000);
    assert_int_equal(st.next_task, was->next_task + 1000000);
    assert_int_equal(st.next_module, was->next_module + 1000000);
    assert_int_equal(st.next_token, was->next_token + 1000000);
    assert_true(was->workers[0]->since_unix_ms < (int64_t)clock_wall_ms() - WEEK_MS);
    assert_true(st.workers[0]->since_unix_ms >= (int64_t)clock_wall_ms() - DEADLINE_MS);
    store_close(s);
    state_release(&st);
    mem_free(path);
}

#define RESTORED                                                                                   \
    "blobs cluster.secret coordinator.db ticket.secret tls-cert.pem tls-key.pem user.secret "      \
    "worker.secret "

static void test_there_and_back(void **state)
{
    struct rig *r = *state;
    char names[1024], *blobs = file_join(other, "blobs");
    const struct blob_ref ref = submit_large(r, 'a');
    assert_int_equal(join(r, &r->workers[0], SKERRY_VERSION), 0);
    edit_worker(r, r->workers[0].id)->since_unix_ms -= 2 * WEEK_MS;
    settle(r);
    struct backup_result first = back_up(r, 0);
    assert_int_equal(strlen(first.name), strlen("20261122T212400Z"));
    assert_int_equal(first.files, 8); /* the database, six of the identity, a shard */
    assert_int_equal(first.new_files, 8);
    assert_true(first.bytes > LARGE_BYTES && first.new_bytes == first.bytes);
    assert_int_equal(first.dropped, 0);
    struct backup_result second = back_up(r, 0);
    assert_int_equal(second.files, 8);
    assert_int_equal(second.bytes, first.bytes);
    assert_int_equal(second.new_files, 0); /* also its database is the same */
    assert_int_equal(second.new_bytes, 0);
    struct backup_result back = restore(NULL);
    assert_string_equal(back.name, second.name);
    assert_int_equal(back.files, 8);
    assert_int_equal(back.bytes, first.bytes);
    assert_string_equal(names_in(other, names), RESTORED);
    char *path = blob_dir_file(blobs, ref.sha256);
    uint64_t size = 0;
    assert_int_equal(file_size(path, &size, NULL), 0);
    assert_int_equal(size, LARGE_BYTES);
    begins_anew(&r->co->state);
    mem_free(path);
    mem_free(blobs);
}

/* ---- older ones ---- */

/* The hash of a backup's database, which no other has. */
static void database_of(const char *name, uint8_t ret[32])
{
    struct manifest m = {0};
    struct buf text;
    char *path = manifest_path(name);
    assert_int_equal(file_read(path, 65536, &text, NULL), 0);
    assert_int_equal(manifest_parse(buf_str(&text), &m, NULL), 0);
    assert_string_equal(m.files[0].path, CAPTURE_DATABASE);
    memcpy(ret, m.files[0].sha256, 32);
    manifest_release(&m);
    buf_release(&text);
    mem_free(path);
}

/* With them goes what only they name. */
static void test_older_go(void **state)
{
    static const char *const names[] = {"20200101T000000Z", "20200102T000000Z", "20200103T000000Z"};
    struct rig *r = *state;
    struct backup_result last;
    uint8_t db[4][32];
    const struct blob_ref a = submit_large(r, 'a');
    for (size_t i = 0; i < 3; i++) {
        last = back_up(r, 3);
        assert_int_equal(last.dropped, 0);
        rename_to(last.name, names[i]);
        database_of(names[i], db[i]);
        (void)submit_large(r, (char)('b' + i));
    }
    last = back_up(r, 2);
    database_of(last.name, db[3]);
    assert_int_equal(last.dropped, 2);
    for (size_t i = 0; i < 4; i++) {
        char *path = manifest_path(i < 3 ? names[i] : last.name);
        assert_int_equal(file_exists(path), i >= 2);
        assert_int_equal(has_object(db[i]), i >= 2);
        mem_free(path);
    }
    assert_true(has_object(a.sha256));
    not_restored(names[1], -ENOENT, "there is no backup 20200102T000000Z");
    (void)restore(names[2]);
}

/* ---- what is in the folder already ---- */

static void set_age(const char *path, int64_t age_s)
{
    struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = time(NULL) - age_s}};
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
}

static int64_t age_of(const char *path)
{
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    return time(NULL) - st.st_mtime;
}

/* What was not read for a week is read again; of what was, only the length is looked at. */
static void test_read_again(void **state)
{
    static const struct {
        int64_t age_s;
        bool damaged, cut, made_anew, looked_at;
    } cases[] = {
        {7 * 86400 - 1000, false, false, false, false},
        {7 * 86400 - 1000, true, false, false, false},
        {7 * 86400 + 1000, false, false, false, true},
        {7 * 86400 + 1000, true, false, true, true},
        {-1000, true, false, true, true}, /* the clock went back */
        {1000, false, true, true, true},
    };
    struct rig *r = *state;
    const struct blob_ref ref = submit_large(r, 'a');
    (void)back_up(r, 0);
    char *path = object(ref.sha256);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        if (cases[i].damaged)
            fx_flip(path);
        if (cases[i].cut)
            assert_int_equal(truncate(path, LARGE_BYTES - 1), 0);
        set_age(path, cases[i].age_s);
        const struct backup_result got = back_up(r, 0);
        assert_int_equal(got.new_files, cases[i].made_anew);
        assert_int_equal(got.new_bytes, cases[i].made_anew ? LARGE_BYTES : 0);
        const int64_t age = age_of(path);
        assert_int_equal(age >= -1 && age < 100, cases[i].looked_at); /* clocks differ by a tick */
        if (cases[i].damaged && !cases[i].made_anew)
            fx_flip(path);
    }
    (void)restore(NULL);
    mem_free(path);
}

/* ---- what is refused ---- */

static void test_refused(void **state)
{
    struct rig *r = *state;
    struct file_lock lock;
    char *inside = fx_path(&r->f, "backups");
    (void)submit_large(r, 'a');
    refused(r, inside, -EINVAL, "would be lost with it");
    assert_false(file_exists(inside));
    const struct backup_result made = back_up(r, 0);
    assert_int_equal(file_lock_dir(folder, "lock", &lock, NULL), 0);
    refused(r, folder, -EBUSY, "another backup into");
    file_unlock(&lock);
    rename_to(made.name, "29990101T000000Z");
    refused(r, folder, -EEXIST, "has a backup of 29990101T000000Z, which is later");
    mem_free(inside);
}

static void test_not_restored(void **state)
{
    struct rig *r = *state;
    char names[1024], *mine = file_join(other, "mine");
    assert_int_equal(file_mkdirs(folder, 0700, NULL), 0);
    not_restored(NULL, -ENOENT, "there is no backup in");
    (void)submit_large(r, 'a');
    const struct backup_result made = back_up(r, 0);
    not_restored("20200101T000000Z", -ENOENT, "there is no backup 20200101T000000Z in");
    assert_int_equal(file_mkdirs(other, 0700, NULL), 0);
    assert_int_equal(file_write_put(mine, "x", 1, 0600, NULL), 0);
    not_restored(made.name, -EEXIST, "is not empty (it has mine)");
    assert_string_equal(names_in(other, names), "mine ");
    mem_free(mine);
}

/* A backup of these files, with right hashes. */
static void make_by_hand(const char *name, const char *const files[][2], size_t n)
{
    struct manifest m = {.release = "1", .at_unix_ms = 1};
    struct buf text;
    uint8_t sha256[32];
    for (size_t i = 0; i < n; i++) {
        const size_t len = strlen(files[i][1]);
        hash_sha256(files[i][1], len, sha256);
        char *path = object(sha256);
        assert_int_equal(file_mkdirs_for(path, 0700, NULL), 0);
        assert_int_equal(file_write_put(path, files[i][1], len, 0600, NULL), 0);
        assert_int_equal(manifest_add(&m, sha256, len, files[i][0], NULL), 0);
        mem_free(path);
    }
    char *path = manifest_path(name);
    buf_init(&text, 65536);
    assert_int_equal(manifest_format(&m, &text, NULL), 0);
    assert_int_equal(file_write_put(path, buf_str(&text), text.len, 0600, NULL), 0);
    buf_release(&text);
    manifest_release(&m);
    mem_free(path);
}

#define OTHER_ONE "; `skerry restore --from` takes another backup of the folder"

/* Whatever is wrong with it, the directory is then as it was, and another backup fits in. */
static void test_nothing_is_left(void **state)
{
    static const char *const files[][2] = {{CAPTURE_DATABASE, "this is no database at all"},
                                           {"blobs/ab/one", "a blob"},
                                           {"user.secret", "a secret"}};
    struct rig *r = *state;
    uint8_t sha256[32];
    char names[1024];
    (void)submit_large(r, 'a');
    const struct backup_result good = back_up(r, 0);
    make_by_hand("20200101T000000Z", files, 3);
    hash_sha256("a blob", 6, sha256);
    char *blob = object(sha256);
    not_restored("20200101T000000Z", -ERR_FORMAT, OTHER_ONE);
    assert_string_equal(names_in(other, names), "");
    fx_flip(blob);
    not_restored("20200101T000000Z", -ERR_HASH, OTHER_ONE);
    assert_string_equal(names_in(other, names), "");
    assert_int_equal(file_remove(blob, NULL), 0);
    not_restored("20200101T000000Z", -ENOENT, "blobs/ab/one: ");
    assert_string_equal(names_in(other, names), "");
    (void)restore(good.name);
    mem_free(blob);
}

/* A restore that was killed has left a part: the next one removes it. */
static void test_after_a_killed_one(void **state)
{
    struct rig *r = *state;
    char names[1024], *old = file_join(other, "blobs/ab/one"),
                      *begun = file_join(other, PLACE_BEGUN);
    (void)submit_large(r, 'a');
    (void)back_up(r, 0);
    assert_int_equal(place_begin(other, NULL), 0);
    assert_int_equal(file_mkdirs_for(old, 0700, NULL), 0);
    assert_int_equal(file_write_put(old, "x", 1, 0600, NULL), 0);
    (void)restore(NULL);
    assert_false(file_exists(old) || file_exists(begun));
    assert_string_equal(names_in(other, names), RESTORED);
    mem_free(begun);
    mem_free(old);
}

/* ---- a full disk ---- */

static void leave_garbage(size_t n)
{
    uint8_t sha256[32] = {0};
    char *path = object(sha256), *bytes = mem_alloc(n);
    assert_int_equal(file_mkdirs_for(path, 0700, NULL), 0);
    assert_int_equal(file_write_put(path, bytes, n, 0600, NULL), 0);
    mem_free(bytes);
    mem_free(path);
}

/* What no backup names goes, also where that is less than the file that found no room; what a
 * backup names stays. */
static void test_full_disk(void **state)
{
    static const uint8_t garbage[32];
    struct rig *r = *state;
    struct backup_result got;
    struct err err = {0};
    char names[1024];
    (void)submit_large(r, 'a');
    const uint64_t whole = back_up(r, 0).bytes;
    assert_int_equal(file_remove_tree(folder, NULL), 0);
    leave_garbage(10000);
    room = whole + 9000;
    got = back_up(r, 0);
    assert_int_equal(got.new_bytes, whole);
    assert_false(has_object(garbage));
    rename_to(got.name, "20200101T000000Z");
    const struct blob_ref b = submit_large(r, 'b');
    assert_int_equal(backup_make(r->f.dir, folder, 1, &got, &err), -ENOSPC);
    assert_non_null(strstr(err.msg, "; to make room, remove the manifest of an old backup"));
    assert_false(has_object(b.sha256));
    assert_string_equal(names_in(folder, names), "20200101T000000Z.manifest lock objects ");
    room = 0;
    (void)restore("20200101T000000Z");
}

/* Nothing to drop, and no backup yet. */
static void test_no_room_at_all(void **state)
{
    struct rig *r = *state;
    struct backup_result got;
    struct err err = {0};
    const struct blob_ref a = submit_large(r, 'a');
    room = LARGE_BYTES;
    assert_int_equal(backup_make(r->f.dir, folder, 1, &got, &err), -ENOSPC);
    assert_false(has_object(a.sha256));
    char *objects = file_join(folder, "objects");
    used = 0;
    (void)nftw(objects, add_size, 8, FTW_PHYS);
    assert_int_equal(used, 0);
    mem_free(objects);
}

/* Old backups do not help there. */
static void test_full_data_dir(void **state)
{
    struct rig *r = *state;
    struct backup_result got;
    struct err err = {0};
    full = r->f.dir;
    room = 1;
    assert_int_equal(backup_make(r->f.dir, folder, 1, &got, &err), -ENOSPC);
    assert_non_null(strstr(err.msg, "make room on the disk of the data dir"));
    assert_null(strstr(err.msg, "manifest"));
    room = 0;
    full = folder;
}

int main(void)
{
#define LIVE(f) cmocka_unit_test_setup_teardown(f, begin_backup, end_backup)
    const struct CMUnitTest tests[] = {
        LIVE(test_there_and_back), LIVE(test_older_go),
        LIVE(test_read_again),     LIVE(test_refused),
        LIVE(test_not_restored),   LIVE(test_nothing_is_left),
        LIVE(test_full_disk),      LIVE(test_full_data_dir),
        LIVE(test_no_room_at_all), LIVE(test_after_a_killed_one),
    };
    log_set_level(LOG_LEVEL_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
