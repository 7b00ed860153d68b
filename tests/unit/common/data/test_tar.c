#include "common/data/tar.h"

#include <errno.h>

#include "tests/unit/common/base/util.h"

#include "common/data/shard.h"
#include "common/base/str.h"

/* A shard of three samples, the second image larger than a block. */
static char *make(const char *dir, const char *name, uint8_t sha[HASH_BYTES], uint64_t *size)
{
    static uint8_t image[1500];
    char *path = in(dir, name);
    struct tar_writer *w;
    memset(image, 0xab, sizeof(image));
    OK(tar_writer_open(path, &w, err));
    OK(tar_writer_add(w, "000.png", "png!", 4, err));
    OK(tar_writer_add(w, "000.cls", "7", 1, err));
    OK(tar_writer_add(w, "001.jpg", image, sizeof(image), err));
    OK(tar_writer_add(w, "001.cls", "0", 1, err));
    OK(tar_writer_add(w, "002.webp", "", 0, err));
    OK(tar_writer_add(w, "002.cls", "12", 2, err));
    OK(tar_writer_commit(w, sha, size, err));
    tar_writer_free(w);
    return path;
}

static void writes_the_same_bytes_twice(void **state)
{
    char *dir = scratch_new();
    uint8_t a[HASH_BYTES], b[HASH_BYTES], file[HASH_BYTES];
    uint64_t size, size_b, file_bytes;
    char *one = make(dir, "a.tar", a, &size), *two = make(dir, "b.tar", b, &size_b);
    assert_memory_equal(a, b, HASH_BYTES);
    OK(hash_file(one, file, &file_bytes, err));
    assert_memory_equal(file, a, HASH_BYTES);
    assert_int_equal(file_bytes, size);
    assert_int_equal(size_b, size);
    assert_int_equal(size % 512, 0);
    mem_free(one);
    mem_free(two);
    scratch_free(dir);
}

static void reads_back(void **state)
{
    char *dir = scratch_new(), *path = make(dir, "a.tar", NULL, NULL);
    struct tar *t;
    struct tar_entry e;
    struct buf b;
    buf_init(&b, 1500);
    OK(tar_open(path, &t, err));
    assert_int_equal(tar_next(t, &e, NULL), 1);
    assert_string_equal(e.name, "000.png");
    assert_int_equal(e.size, 4);
    OK(tar_read(t, &b, err));
    assert_string_equal(buf_str(&b), "png!");
    FAILS(tar_read(t, &(struct buf){.max = 3}, err), "'000.png' has 4 bytes, at most 3");
    assert_int_equal(tar_next(t, &e, NULL), 1); /* passed over */
    assert_int_equal(tar_next(t, &e, NULL), 1);
    buf_clear(&b);
    OK(tar_read(t, &b, err));
    assert_int_equal(b.len, 1500);
    for (int i = 0; i < 3; i++)
        assert_int_equal(tar_next(t, &e, NULL), 1);
    assert_int_equal(tar_next(t, &e, NULL), 0);
    assert_int_equal(tar_next(t, &e, NULL), 0);
    tar_close(t);
    buf_release(&b);
    mem_free(path);
    scratch_free(dir);
}

/* All members with their bytes: how many, or the error. */
static int read_all(const void *data, size_t len, struct err *err)
{
    struct tar *t;
    struct tar_entry e;
    int n = 0, rc = tar_open_memory(data, len, "cut.tar", &t, err);
    if (rc < 0)
        return rc;
    while ((rc = tar_next(t, &e, err)) > 0) {
        struct buf b;
        buf_init(&b, 1u << 20);
        rc = tar_read(t, &b, err);
        buf_release(&b);
        if (rc < 0)
            break;
        n++;
    }
    tar_close(t);
    return rc < 0 ? rc : n;
}

static bool is_a(const char *name)
{
    return str_starts(name, "a/");
}

static void unpacks_below_a_folder(void **state)
{
    char *dir = scratch_new(), *path = in(dir, "a.tar"), *to = in(dir, "to");
    static const char *const bad[] = {"../x", "/x", "a/../../x"};
    struct tar_writer *w;
    struct buf b;
    OK(tar_writer_open(path, &w, err));
    OK(tar_writer_add(w, "a/b.txt", "hello", 5, err));
    OK(tar_writer_add(w, "c.txt", "hello!", 6, err));
    OK(tar_writer_commit(w, NULL, NULL, err));
    tar_writer_free(w);
    FAILS(tar_unpack(path, to, &(struct tar_unpack){.mode = 0644, .max = 10}, err),
          "'c.txt' has 6 bytes, at most 5");
    OK(tar_unpack(path, to, &(struct tar_unpack){.mode = 0644, .max = 11}, err));
    OK(tar_unpack(path, to, &(struct tar_unpack){.mode = 0644, .max = 5, .wanted = is_a}, err));
    char *file = in(to, "a/b.txt");
    const struct tar_unpack compare = {.max = 11, .compare = true};
    OK(tar_unpack(path, to, &compare, err));
    for (const char *const *other = (const char *const[]){"hullo", "hell", "hello!", "", NULL};
         *other; other++) {
        OK(file_write_atomic(file, *other, strlen(*other), 0600, err));
        FAILS(tar_unpack(path, to, &compare, err), "a/b.txt is there already, with other bytes");
    }
    OK(file_remove(file, err));
    OK(tar_unpack(path, to, &compare, err));
    assert_false(file_exists(file));
    OK(tar_unpack(path, to, &(struct tar_unpack){.mode = 0644, .max = 5, .wanted = is_a}, err));
    OK(file_read(file, 100, &b, err));
    assert_string_equal(buf_str(&b), "hello");
    buf_release(&b);
    for (size_t i = 0; i < 3; i++) {
        OK(tar_writer_open(path, &w, err));
        OK(tar_writer_add(w, bad[i], "x", 1, err));
        OK(tar_writer_commit(w, NULL, NULL, err));
        tar_writer_free(w);
        FAILS(tar_unpack(path, to, &(struct tar_unpack){.mode = 0644, .max = 5}, err),
              "which is not below its folder");
    }
    mem_free(file);
    mem_free(to);
    mem_free(path);
    scratch_free(dir);
}

static void names_the_cut(void **state)
{
    char *dir = scratch_new(), *path = make(dir, "a.tar", NULL, NULL);
    struct buf b;
    OK(file_read(path, 1u << 20, &b, err));
    assert_int_equal(read_all(b.data, b.len, NULL), 6);
    FAILS(read_all(b.data, 2048 + 512 + 700, err),
          "cut.tar is cut short or not a tar archive, after "
          "entry '001.jpg'");
    FAILS(read_all(b.data, 2048 + 100, err), "after entry '000.cls'");
    FAILS(read_all("this is no tar at all, not even close", 37, err),
          "not a tar archive, at its start");
    put(dir, "empty.tar", "", 0);
    char *empty = in(dir, "empty.tar");
    struct tar *t;
    FAILS(tar_open(empty, &t, err), "is empty, expected a tar");
    FAILS(tar_open("/nonexistent.tar", &t, err), "/nonexistent.tar");
    /* Every cut of a shard is refused but those behind its end marker. */
    struct shard s;
    for (size_t n = 0; n < b.len - 1024; n++) {
        struct err e = {0};
        assert_int_equal(shard_parse(b.data, n, "cut", &s, &e), -ERR_FORMAT);
    }
    /* A flipped bit in any header is noticed. */
    for (size_t i = 0; i < 512; i++) {
        struct err e = {0};
        b.data[i] ^= 4;
        assert_int_equal(shard_parse(b.data, b.len, "flip", &s, &e), -ERR_FORMAT);
        b.data[i] ^= 4;
    }
    mem_free(empty);
    buf_release(&b);
    mem_free(path);
    scratch_free(dir);
}

static void opens_shards(void **state)
{
    char *dir = scratch_new(), *path = make(dir, "a.tar", NULL, NULL);
    struct shard s;
    OK(shard_open(path, &s, err));
    assert_int_equal(s.n, 3);
    assert_string_equal(s.samples[1].key, "001");
    assert_int_equal(s.samples[1].len, 1500);
    assert_int_equal(s.samples[1].data[1499], 0xab);
    assert_int_equal(s.samples[0].cls, 7);
    assert_int_equal(s.samples[2].cls, 12);
    assert_int_equal(s.samples[2].len, 0);
    shard_close(&s);
    shard_close(&s);
    mem_free(path);
    scratch_free(dir);
}

static void refuses_other_shards(void **state)
{
    static const struct {
        const char *image, *cls, *value, *says;
    } cases[] = {
        {"a.jpg", "b.cls", "1", "expected KEY.EXT followed by KEY.cls"},
        {"a.jpg", "a.txt", "1", "expected KEY.EXT"},
        {"a", "a.cls", "1", "expected KEY.EXT"},
        {"a.jpg", "a.cls", "cat", "a class is not a number"},
        {"a.jpg", "a.cls", "", "a class is not a number"},
        {"a.jpg", "a.cls", "4294967296", "a class is not a number"},
        {"a.jpg", NULL, NULL, "expected KEY.EXT"},
        {NULL, NULL, NULL, "no samples"},
    };
    char *dir = scratch_new(), *path = in(dir, "s.tar");
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct tar_writer *w;
        struct shard s;
        OK(tar_writer_open(path, &w, err));
        if (cases[i].image)
            OK(tar_writer_add(w, cases[i].image, "x", 1, err));
        if (cases[i].cls)
            OK(tar_writer_add(w, cases[i].cls, cases[i].value, strlen(cases[i].value), err));
        OK(tar_writer_commit(w, NULL, NULL, err));
        tar_writer_free(w);
        FAILS(shard_open(path, &s, err), cases[i].says);
    }
    mem_free(path);
    scratch_free(dir);
}

static void full_disk(void **state)
{
    char *dir = scratch_new(), *path = in(dir, "a.tar");
    struct tar_writer *w;
    static uint8_t big[100000];
    if (file_fault_enospc(50000)) {
        struct err e = {0};
        OK(tar_writer_open(path, &w, err));
        int rc = tar_writer_add(w, "big.bin", big, sizeof(big), &e);
        if (rc == 0)
            rc = tar_writer_commit(w, NULL, NULL, &e);
        assert_int_equal(rc, -ENOSPC);
        assert_non_null(strstr(e.msg, "a.tar: No space left"));
        tar_writer_free(w);
        file_fault_enospc(-1);
    }
    assert_false(file_exists(path));
    mem_free(path);
    scratch_free(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(writes_the_same_bytes_twice),
        cmocka_unit_test(reads_back),
        cmocka_unit_test(unpacks_below_a_folder),
        cmocka_unit_test(names_the_cut),
        cmocka_unit_test(opens_shards),
        cmocka_unit_test(refuses_other_shards),
        cmocka_unit_test(full_disk),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
