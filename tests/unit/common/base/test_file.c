#include "common/base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/hash.h"
#include "common/base/pieces.h"
#include "tests/unit/common/base/util.h"

static unsigned flushes;

int fsync(int fd)
{
    flushes++;
    return (int)syscall(SYS_fsync, fd);
}

static size_t entries(const char *dir)
{
    struct file_names names;
    OK(file_list(dir, 100, &names, err));
    size_t n = names.n;
    file_names_release(&names);
    return n;
}

static void reads_and_writes(void **state)
{
    char *dir = scratch_new(), *path = in(dir, "f");
    struct buf b;
    OK(file_write_atomic(path, "hello", 5, 0600, err));
    OK(file_read(path, 5, &b, err));
    assert_string_equal(buf_str(&b), "hello");
    buf_release(&b);
    FAILS(file_read(path, 4, &b, err), "larger than the 4 bytes");
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    const mode_t before = umask(027);
    OK(file_write_atomic(path, "hello", 5, 0666, err));
    (void)umask(before);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0640);
    uint64_t n;
    OK(file_size(path, &n, err));
    assert_int_equal(n, 5);
    FAILS(file_read("/nonexistent", 9, &b, err), "/nonexistent: No such file");
    FAILS(file_write_atomic("/nonexistent/f", "", 0, 0644, err), "/nonexistent/f");
    OK(file_disk_free(dir, &n, err));
    assert_true(n > 0);
    const uint64_t room = n;
    OK(file_disk_size(dir, &n, err));
    assert_true(n >= room);
    OK(file_remove(path, err));
    OK(file_remove(path, err));
    mem_free(path);
    scratch_free(dir);
}

/* What is no file keeps its place, also behind a link; a link to a file goes. */
static void takes_no_other_place(void **state)
{
    char *dir = scratch_new(), *pipe = in(dir, "pipe"), *link = in(dir, "link");
    struct stat st;
    assert_int_equal(mkfifo(pipe, 0600), 0);
    FAILS(file_write_atomic(pipe, "hello", 5, 0600, err), "pipe is a device or a pipe");
    struct file_out out;
    FAILS(file_out_open(&out, pipe, 0600, err), "pipe is a device or a pipe");
    assert_true(lstat(pipe, &st) == 0 && S_ISFIFO(st.st_mode));
    for (int i = 0; i < 2; i++) { /* the second is a regular file, as after `> file` */
        assert_int_equal(symlink(i ? "/proc/self/status" : "pipe", link), 0);
        FAILS(file_write_atomic(link, "hello", 5, 0600, err), "link is a device or a pipe");
        OK(file_remove(link, err));
    }
    assert_int_equal(symlink("nowhere", link), 0);
    OK(file_write_atomic(link, "hello", 5, 0600, err));
    assert_true(lstat(link, &st) == 0 && S_ISREG(st.st_mode));
    assert_int_equal(entries(dir), 2);
    mem_free(pipe);
    mem_free(link);
    scratch_free(dir);
}

static void aborts_leave_nothing(void **state)
{
    char *dir = scratch_new(), *path = in(dir, "f");
    struct file_out f;
    OK(file_out_open(&f, path, 0644, err));
    OK(file_out_write(&f, "abc", 3, err));
    OK(file_out_pwrite(&f, "XYZ", 3, 1, err));
    assert_int_equal(f.written, 4);
    assert_int_equal(entries(dir), 1);
    assert_false(file_exists(path));
    file_out_abort(&f);
    file_out_abort(&f);
    assert_int_equal(entries(dir), 0);
    OK(file_out_open(&f, path, 0644, err));
    OK(file_out_write(&f, "abc", 3, err));
    OK(file_out_commit(&f, err));
    file_out_abort(&f);
    assert_int_equal(entries(dir), 1);
    OK(file_out_open(&f, path, 0644, err));
    assert_int_equal(entries(dir), 2);
    OK(file_remove_temps(dir, err)); /* as if the writer were killed */
    assert_int_equal(entries(dir), 1);
    assert_true(file_exists(path));
    file_out_abort(&f);
    FAILS(file_remove_temps(path, err), "cannot open the directory");
    mem_free(path);
    scratch_free(dir);
}

/* A disk that fills up after n bytes: each n fails cleanly, the old content
 * stays, until all of it fits. */
static void holds(const char *path, const char *text)
{
    struct buf b;
    OK(file_read(path, 100, &b, err));
    assert_string_equal(buf_str(&b), text);
    buf_release(&b);
}

/* What was there stays until all of the next is; two files take turns. */
static void made_again(void **state)
{
    static const char *const texts[] = {"first", "the second one", "3rd", "four"};
    char *dir = scratch_new(), *path = in(dir, "again"), *spare = in(dir, "again.spare");
    struct stat before = {0}, now;
    struct file_out f;
    for (int i = 0; i < 4; i++) {
        OK(file_out_open_again(&f, path, NULL, 0600, err));
        OK(file_out_write(&f, texts[i], strlen(texts[i]), err));
        if (i > 0)
            holds(path, texts[i - 1]);
        assert_false(file_exists(spare)); /* who is killed now leaves none that is half another */
        OK(file_out_put(&f, err));
        holds(path, texts[i]);
        if (i > 0)
            holds(spare, texts[i - 1]);
        assert_int_equal(stat(path, &now), 0);
        if (i % 2 == 1) /* of the last but one */
            assert_true(i == 1 || now.st_ino == before.st_ino);
        if (i % 2 == 1)
            before = now;
        assert_true(file_exists(spare) == (i > 0));
    }
    OK(file_out_open_again(&f, path, NULL, 0600, err));
    OK(file_out_write(&f, "half", 4, err));
    file_out_abort(&f);
    holds(path, "four");
    assert_false(file_exists(spare));

    char *kept = in(dir, "kept"); /* as a backup keeps a file that may become a spare */
    OK(file_write_put(spare, "a spare", 7, 0600, err));
    assert_int_equal(link(spare, kept), 0);
    OK(file_out_open_again(&f, path, NULL, 0600, err));
    OK(file_out_write(&f, "five", 4, err));
    OK(file_out_put(&f, err));
    holds(path, "five");
    holds(kept, "a spare");
    free(kept);

    const struct timespec then[2] = {{.tv_sec = 1}, {.tv_sec = 1}};
    OK(file_write_put(spare, "longer than six", 15, 0600, err));
    OK(file_out_open_again(&f, path, NULL, 0600, err));
    OK(file_out_write(&f, "six", 3, err));
    OK(file_out_sync(&f, err));
    assert_int_equal(fstat(f.fd, &now), 0);
    assert_int_equal(now.st_size, 3);
    assert_int_equal(futimens(f.fd, then), 0);
    OK(file_out_put(&f, err)); /* what was flushed is as it was */
    holds(path, "six");
    assert_int_equal(stat(path, &now), 0);
    assert_int_equal(now.st_mtim.tv_sec, 1);
    free(path);
    free(spare);
    scratch_free(dir);
}

static void full_disk(void **state)
{
    char *dir = scratch_new(), *path = in(dir, "f");
    OK(file_write_atomic(path, "old", 3, 0644, err));
    bool faults = file_fault_enospc(-1);
    for (long long n = 0; n < 5 && faults; n++) {
        file_fault_enospc(n);
        FAILS(file_write_atomic(path, "newer", 5, 0644, err), "No space left on device");
        file_fault_enospc(-1);
        struct buf b;
        OK(file_read(path, 10, &b, err));
        assert_string_equal(buf_str(&b), "old");
        buf_release(&b);
        assert_int_equal(entries(dir), 1);
    }
    file_fault_enospc(5);
    OK(file_write_atomic(path, "newer", 5, 0644, err));
    file_fault_enospc(-1);
    mem_free(path);
    scratch_free(dir);
    /* The real thing, in every build. */
    int fd = open("/dev/full", O_WRONLY);
    assert_true(fd >= 0);
    FAILS(file_write_all(fd, "x", 1, "/dev/full", err), "/dev/full: No space left");
    close(fd);
}

static void trees(void **state)
{
    char *dir = scratch_new(), *deep = in(dir, "a/b/c"), *a = in(dir, "a"), *link = in(dir, "a/l");
    OK(file_mkdirs(deep, 0755, err));
    OK(file_mkdirs(deep, 0755, err));
    put(dir, "a/b/file", "x", 1);
    put(dir, "keep/me", "x", 1);
    char *keep = in(dir, "keep"), *me = in(dir, "keep/me");
    assert_int_equal(symlink(keep, link), 0);
    FAILS(file_mkdirs(me, 0755, err), "keep/me");
    FAILS(file_mkdirs("", 0755, err), "is empty");
    OK(file_sync_all(deep, err));
    FAILS(file_sync_all(me, err), "keep/me");
    OK(file_remove_tree(a, err));
    assert_false(file_exists(a));
    assert_true(file_exists(me)); /* through the link: untouched */
    OK(file_remove_tree(a, err));
    put(dir, "z", "", 0);
    put(dir, "b", "", 0);
    put(dir, ".hidden", "", 0);
    struct file_names names;
    OK(file_list(dir, 3, &names, err));
    assert_int_equal(names.n, 3);
    assert_string_equal(names.items[0], "b");
    assert_string_equal(names.items[2], "z");
    file_names_release(&names);
    FAILS(file_list(dir, 2, &names, err), "more than 2");
    mem_free(deep);
    mem_free(a);
    mem_free(link);
    mem_free(keep);
    mem_free(me);
    scratch_free(dir);
}

static void locks_exclude(void **state)
{
    char *dir = scratch_new(), want[64];
    struct file_lock lock, second = {0};
    OK(file_lock_dir(dir, "pid", &lock, err));
    snprintf(want, sizeof(want), "in use by process %d", (int)getpid());
    FAILS(file_lock_dir(dir, "pid", &second, err), want);
    file_unlock(&lock);
    file_unlock(&lock);
    OK(file_lock_dir(dir, "pid", &second, err));
    file_unlock(&second);
    FAILS(file_lock_dir("/nonexistent", "pid", &second, err), "/nonexistent/pid");
    scratch_free(dir);
}

static void maps(void **state)
{
    char *dir = scratch_new(), *path = in(dir, "f"), *empty = in(dir, "e");
    put(dir, "f", "abcdef", 6);
    put(dir, "e", "", 0);
    struct file_map map;
    OK(file_map_open(path, &map, err));
    assert_int_equal(map.len, 6);
    assert_memory_equal(map.data, "abcdef", 6);
    file_map_close(&map);
    OK(file_map_open(empty, &map, err));
    assert_int_equal(map.len, 0);
    file_map_close(&map);
    FAILS(file_map_open(dir, &map, err), "not a regular file");
    int fd = open(path, O_RDONLY);
    char bytes[8];
    OK(file_pread_all(fd, bytes, 3, 3, path, err));
    assert_memory_equal(bytes, "def", 3);
    FAILS(file_pread_all(fd, bytes, 4, 3, path, err), "too early");
    close(fd);
    mem_free(path);
    mem_free(empty);
    scratch_free(dir);
}

static void places(void **state)
{
    char *dir = scratch_new(), *data = in(dir, "data"), *beside = in(dir, "data.out");
    char *file = in(data, "file"), *deep = in(data, "not/there/yet"), *link = in(dir, "link");
    char *round = in(dir, "not/../data"), *through = in(link, "x");
    OK(file_mkdirs(data, 0755, err));
    OK(file_write_atomic(file, "", 0, 0644, err));
    assert_int_equal(symlink(data, link), 0);
    assert_int_equal(file_place(beside, data), FILE_APART); /* its name begins alike */
    assert_int_equal(file_place(dir, data), FILE_APART);
    assert_int_equal(file_place(data, beside), FILE_APART); /* is not there */
    assert_int_equal(file_place(file, data), FILE_INSIDE);
    assert_int_equal(file_place(deep, data), FILE_INSIDE);
    assert_int_equal(file_place(through, data), FILE_INSIDE);
    assert_int_equal(file_place(link, data), FILE_SAME);
    assert_int_equal(file_place(file, file), FILE_SAME);
    assert_int_equal(file_place(data, "/"), FILE_INSIDE);
    assert_int_equal(file_place("/", "/"), FILE_SAME);
    OK(file_mkdirs(beside, 0755, err));
    assert_int_equal(file_place(beside, data), FILE_APART);
    assert_int_equal(file_place(round, data), FILE_APART); /* cannot be made */
    mem_free(data), mem_free(beside), mem_free(file), mem_free(deep), mem_free(link);
    mem_free(round), mem_free(through);
    scratch_free(dir);
}

/* A flush waits for the disk, even if there is nothing to write. */
static void names_are_flushed_together(void **state)
{
    char *dir = scratch_new(), *a = in(dir, "a"), *ab = in(dir, "ab"), *x = in(a, "x"),
         *y = in(a, "y"), *z = in(ab, "z"), *none = in(dir, "none"), *w = in(none, "w");
    OK(file_mkdirs(a, 0700, err));
    OK(file_mkdirs(ab, 0700, err));
    flushes = 0;
    OK(file_sync_parents((const char *[]){x, NULL, z, y, x}, 5, err));
    assert_int_equal(flushes, 2);
    OK(file_sync_parents((const char *[]){"here", x, "there"}, 3, err));
    assert_int_equal(flushes, 4);
    FAILS(file_sync_parents((const char *[]){x, w}, 2, err), "cannot open the directory");
    mem_free(a), mem_free(ab), mem_free(x), mem_free(y), mem_free(z), mem_free(none), mem_free(w);
    scratch_free(dir);
}

static void count(void *n)
{
    ++*(unsigned *)n;
}

/* Large files are written, flushed and read in pieces, of which somebody may hear. */
static void piece_by_piece(void **state)
{
    char *dir = scratch_new(), *path = in(dir, "f");
    const size_t size = PIECE_BYTES + 1;
    uint8_t *data = mem_alloc(size), sha256[HASH_BYTES];
    unsigned n = 0;
    const int fd = open(path, O_RDWR | O_CREAT, 0600);
    assert_true(fd >= 0);
    OK(file_sync(fd, path, err));
    pieces_hear(count, &n);
    OK(file_pwrite_all(fd, data, size, PIECE_BYTES, path, err)); /* behind a hole */
    assert_int_equal(n, 2);
    OK(file_sync(fd, path, err));
    assert_int_equal(n, 2 + 3);
    OK(file_pread_all(fd, data, size, 0, path, err));
    assert_int_equal(n, 2 + 3 + 2);
    OK(hash_file(path, sha256, NULL, err));
    assert_true(n > 2 + 3 + 2 + 2);
    pieces_hear(NULL, NULL);
    OK(file_sync(fd, path, err));
    assert_int_equal(close(fd), 0);
    mem_free(data), mem_free(path);
    scratch_free(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_and_writes),
        cmocka_unit_test(takes_no_other_place),
        cmocka_unit_test(aborts_leave_nothing),
        cmocka_unit_test(made_again),
        cmocka_unit_test(full_disk),
        cmocka_unit_test(trees),
        cmocka_unit_test(locks_exclude),
        cmocka_unit_test(maps),
        cmocka_unit_test(places),
        cmocka_unit_test(names_are_flushed_together),
        cmocka_unit_test(piece_by_piece),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
