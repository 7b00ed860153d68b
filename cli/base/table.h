/* A table on a terminal: columns as wide as their widest cell; a column in which
 * no row has a value is left out. */
#ifndef CLI_TABLE_H
#define CLI_TABLE_H

#include "common/base/base.h"

#define TABLE_NONE "-" /* a cell without a value */

struct table {
    const char *const *names; /* of the columns; a leading '>' aligns to the right */
    size_t columns, n_cells;
    char **cells; /* row by row */
};

/* `names` must outlive the table. */
void table_init(struct table *t, const char *const *names, size_t columns);
/* The next cell, left to right, then the next row; ends of lines become blanks. */
__attribute__((format(printf, 2, 3))) void table_cell(struct table *t, const char *fmt, ...);
/* A number with `digits` after the point; NAN is TABLE_NONE. */
void table_real(struct table *t, double x, int digits);
void table_loss(struct table *t, double x); /* the same, as str_human_loss() */
/* The names, then the rows; each line begins with two spaces. */
void table_print(const struct table *t, FILE *out);
void table_release(struct table *t);

#endif
