#include "common/base/list.h"

#include "tests/unit/common/base/util.h"

struct item {
    int id;
    struct list link;
};

/* The ids in order, as digits. */
static int digits(const struct list *head)
{
    int n = 0;
    for (const struct list *l = head->next; l != head; l = l->next) {
        assert_ptr_equal(l->next->prev, l);
        n = n * 10 + list_entry(l, struct item, link)->id;
    }
    return n;
}

static void keeps_the_order(void **state)
{
    struct item items[4] = {{1, {0}}, {2, {0}}, {3, {0}}, {4, {0}}};
    struct list head;
    list_init(&head);
    assert_true(list_empty(&head));
    assert_null(list_pop(&head));
    for (int i = 0; i < 3; i++)
        list_push(&head, &items[i].link);
    list_push_front(&head, &items[3].link);
    assert_int_equal(digits(&head), 4123);
    list_remove(&items[1].link);
    assert_int_equal(digits(&head), 413);
    list_remove(&items[1].link); /* twice is harmless */
    assert_int_equal(digits(&head), 413);
    list_push(&head, &items[1].link);
    assert_int_equal(digits(&head), 4132);
    assert_ptr_equal(list_entry(list_pop(&head), struct item, link), &items[3]);
    assert_int_equal(digits(&head), 132);
    while (list_pop(&head))
        ;
    assert_true(list_empty(&head));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keeps_the_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
