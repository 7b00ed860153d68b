/* Tables: widths in characters, columns without a value left out, nothing behind the last cell. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cli/base/table.h"

/* Prints the table, compares, and releases it. */
static void printed(struct table *t, const char *expected)
{
    char *text = NULL;
    size_t size;
    FILE *f = open_memstream(&text, &size);
    assert_non_null(f);
    table_print(t, f);
    assert_int_equal(fclose(f), 0);
    assert_string_equal(text, expected);
    free(text);
    table_release(t);
    assert_null(t->cells);
}

static void columns_are_as_wide_as_their_widest_cell(void **state)
{
    static const char *const names[] = {"name", ">steps", "state"};
    struct table t;
    table_init(&t, names, 3);
    table_cell(&t, "a");
    table_cell(&t, "%d", 1234567);
    table_cell(&t, "done");
    table_cell(&t, "%s-%d", "longer", 2);
    table_cell(&t, "8");
    table_cell(&t, "on its\nway"); /* of a reason of several lines */
    printed(&t, "  name        steps  state\n"
                "  a         1234567  done\n"
                "  longer-2        8  on its way\n");
}

static void a_column_without_a_value_is_left_out(void **state)
{
    static const char *const names[] = {"id", "reason", ">loss", "left"};
    struct table t;
    table_init(&t, names, 4);
    for (int i = 0; i < 2; i++) {
        table_cell(&t, "%d", i);
        table_cell(&t, i ? TABLE_NONE : "%s", "");
        table_real(&t, i ? 0.25 : (double)NAN, 3);
        table_cell(&t, TABLE_NONE);
    }
    /* The last one that has a value ends the line. */
    printed(&t, "  id   loss\n"
                "  0       -\n"
                "  1   0.250\n");
}

static void only_finite_numbers_are_shown(void **state)
{
    static const char *const names[] = {">x", ">y", ">z", ">v", ">loss"};
    struct table t;
    table_init(&t, names, 5);
    table_real(&t, 2.0 / 3.0, 4);
    table_real(&t, -1.5, 0);
    table_real(&t, (double)INFINITY, 2);
    table_real(&t, (double)NAN, 2);
    table_loss(&t, 32472944);
    printed(&t, "       x   y       loss\n"
                "  0.6667  -2  3.247e+07\n");
}

static void names_in_any_script_align(void **state)
{
    static const char *const names[] = {"name", ">n"};
    struct table t;
    table_init(&t, names, 2);
    table_cell(&t, "\xc3\x85land"); /* six bytes, five characters */
    table_cell(&t, "1");
    table_cell(&t, "\xe5\xb3\xb6");
    table_cell(&t, "22");
    printed(&t, "  name    n\n"
                "  \xc3\x85land   1\n"
                "  \xe5\xb3\xb6      22\n");
}

static void an_empty_table_has_no_columns(void **state)
{
    static const char *const names[] = {"name", ">n"};
    struct table t;
    table_init(&t, names, 2);
    printed(&t, "\n");
}

static void a_long_cell_is_cut(void **state)
{
    static const char *const names[] = {"a"};
    char longest[600];
    struct table t;
    memset(longest, 'x', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    table_init(&t, names, 1);
    table_cell(&t, "%s", longest);
    assert_int_equal(t.n_cells, 1);
    assert_int_equal(strlen(t.cells[0]), 511);
    table_release(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(columns_are_as_wide_as_their_widest_cell),
        cmocka_unit_test(a_column_without_a_value_is_left_out),
        cmocka_unit_test(only_finite_numbers_are_shown),
        cmocka_unit_test(names_in_any_script_align),
        cmocka_unit_test(an_empty_table_has_no_columns),
        cmocka_unit_test(a_long_cell_is_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
