#include <errno.h>

#include "tests/unit/common/base/util.h"

#include "common/base/buf.h"
#include "common/base/list.h"

static void sizes_do_not_overflow(void **state)
{
    size_t r = 9;
    assert_false(mem_add(SIZE_MAX, 1, &r));
    assert_int_equal(r, 9);
    assert_true(mem_add(40, 2, &r) && r == 42);
    assert_null(mem_try_realloc_array(NULL, SIZE_MAX / 2, 3));
    assert_null(mem_try_realloc_array(NULL, SIZE_MAX / 4, 8));
    void *p = mem_try_aligned(64, 100);
    assert_int_equal((uintptr_t)p % 64, 0);
    mem_free(p);
    p = mem_try_array(0, 8);
    assert_non_null(p);
    mem_free(p);
}

/* The n-th allocation fails, each in turn, until the operation succeeds. */
static void allocations_fail_in_turn(void **state)
{
    bool faults = mem_fault_set(0);
    for (long n = 1;; n++) {
        struct buf b;
        buf_init(&b, 1000);
        mem_fault_set(n);
        int rc = buf_append_str(&b, "some text");
        if (rc == 0)
            rc = buf_printf(&b, "%090d", 1);
        bool fired = mem_fault_fired();
        mem_fault_set(0);
        assert_int_equal(rc, fired ? -ENOMEM : 0);
        assert_int_equal(b.len, rc == 0 ? 99 : n == 1 ? 0 : 9);
        buf_release(&b);
        assert_true(n < 10);
        if (!fired) {
            assert_int_equal(n, faults ? 3 : 1);
            break;
        }
    }
}

static void buf_is_bounded(void **state)
{
    struct buf b;
    buf_init(&b, 10);
    assert_string_equal(buf_str(&b), "");
    assert_int_equal(buf_append(&b, "0123456789", 10), 0);
    assert_int_equal(buf_append_byte(&b, 'x'), -ERR_LIMIT);
    assert_int_equal(buf_printf(&b, "%d", 1), -ERR_LIMIT);
    assert_string_equal(buf_str(&b), "0123456789");
    buf_consume(&b, 4);
    assert_string_equal(buf_str(&b), "456789");
    assert_int_equal(buf_printf(&b, "%s", "abcd"), 0);
    assert_string_equal(buf_str(&b), "456789abcd");
    size_t len;
    uint8_t *taken = buf_take(&b, &len);
    assert_int_equal(len, 10);
    assert_int_equal(b.len, 0);
    mem_free(taken);
    taken = buf_take(&b, &len);
    assert_non_null(taken);
    assert_int_equal(len, 0);
    mem_free(taken);
    uint8_t *room;
    assert_int_equal(buf_reserve(&b, 11, &room), -ERR_LIMIT);
    assert_int_equal(buf_reserve(&b, 3, &room), 0);
    memcpy(room, "abc", 3);
    buf_commit(&b, 3);
    assert_string_equal(buf_str(&b), "abc");
    buf_clear(&b);
    assert_string_equal(buf_str(&b), "");
    buf_release(&b);
}

struct item {
    int id;
    struct list link;
};

static void lists_link(void **state)
{
    struct list head;
    struct item items[3] = {{.id = 1}, {.id = 2}, {.id = 3}};
    list_init(&head);
    assert_null(list_pop(&head));
    list_push(&head, &items[1].link);
    list_push(&head, &items[2].link);
    list_push_front(&head, &items[0].link);
    list_remove(&items[1].link);
    list_remove(&items[1].link);
    assert_int_equal(list_entry(list_pop(&head), struct item, link)->id, 1);
    assert_int_equal(list_entry(list_pop(&head), struct item, link)->id, 3);
    assert_true(list_empty(&head));
}

static void arrays_die_together(void **state)
{
    struct mem_arrays a = {0};
    for (int i = 0; i < MEM_ARRAYS_MAX; i++) {
        const char *p = mem_arrays_add(&a, 3, 5);
        for (int k = 0; k < 15; k++)
            assert_int_equal(p[k], 0);
    }
    assert_false(a.failed);
    assert_null(mem_arrays_add(&a, 1, 1)); /* one too many */
    assert_true(a.failed);
    mem_arrays_free(&a);
    mem_arrays_free(&a);
    a = (struct mem_arrays){0};
    assert_non_null(mem_arrays_add(&a, 1, 1));
    if (mem_fault_set(1)) {
        assert_null(mem_arrays_add(&a, 1, 1));
        assert_non_null(mem_arrays_add(&a, 1, 1));
        assert_true(a.failed && a.n == 2);
    }
    mem_arrays_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(arrays_die_together),
        cmocka_unit_test(sizes_do_not_overflow),
        cmocka_unit_test(allocations_fail_in_turn),
        cmocka_unit_test(buf_is_bounded),
        cmocka_unit_test(lists_link),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
