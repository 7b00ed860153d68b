#include "cli/base/table.h"

void table_init(struct table *t, const char *const *names, size_t columns)
{
    *t = (struct table){.names = names, .columns = columns};
}

void table_cell(struct table *t, const char *fmt, ...)
{
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    for (char *p = text; (p = strpbrk(p, "\n\r\t")) != NULL;)
        *p = ' ';
    t->cells = mem_realloc(t->cells, (t->n_cells + 1) * sizeof *t->cells);
    t->cells[t->n_cells++] = str_dup(text[0] ? text : TABLE_NONE);
}

void table_real(struct table *t, double x, int digits)
{
    if (isfinite(x))
        table_cell(t, "%.*f", digits, x);
    else
        table_cell(t, TABLE_NONE);
}

void table_loss(struct table *t, double x)
{
    char text[STR_HUMAN_MAX];
    table_cell(t, "%s", isfinite(x) ? str_human_loss(x, text) : TABLE_NONE);
}

/* The width in characters, not bytes: names may be in any script. */
static size_t width(const char *s)
{
    size_t n = 0;
    for (; *s; s++)
        n += ((unsigned char)*s & 0xc0) != 0x80;
    return n;
}

static bool is_right(const struct table *t, size_t column)
{
    return t->names[column][0] == '>';
}

/* The width of a column; 0: no row has a value. */
static size_t column_width(const struct table *t, size_t column)
{
    size_t widest = width(t->names[column] + is_right(t, column));
    bool any = false;
    for (size_t i = column; i < t->n_cells; i += t->columns) {
        size_t w = width(t->cells[i]);
        widest = w > widest ? w : widest;
        any |= strcmp(t->cells[i], TABLE_NONE) != 0;
    }
    return any ? widest : 0;
}

static void print_cell(FILE *out, const char *text, size_t cell, bool right, bool last)
{
    int space = (int)(cell - width(text));
    if (last && *text == '\0')
        return;
    if (right)
        fprintf(out, "  %*s%s", space, "", text);
    else
        fprintf(out, "  %s%*s", text, last ? 0 : space, "");
}

static void print_row(const struct table *t, FILE *out, const size_t *widths, size_t last,
                      size_t row)
{
    for (size_t c = 0; c < t->columns; c++) {
        const char *text =
            row == SIZE_MAX ? t->names[c] + is_right(t, c) : t->cells[row * t->columns + c];
        if (widths[c])
            print_cell(out, text, widths[c], is_right(t, c), c == last);
    }
    fputc('\n', out);
}

void table_print(const struct table *t, FILE *out)
{
    size_t *widths = mem_alloc_array(t->columns, sizeof *widths), last = 0;
    for (size_t c = 0; c < t->columns; c++) {
        widths[c] = column_width(t, c);
        last = widths[c] ? c : last;
    }
    print_row(t, out, widths, last, SIZE_MAX);
    for (size_t row = 0; row < t->n_cells / t->columns; row++)
        print_row(t, out, widths, last, row);
    mem_free(widths);
}

void table_release(struct table *t)
{
    for (size_t i = 0; i < t->n_cells; i++)
        mem_free(t->cells[i]);
    mem_free(t->cells);
    *t = (struct table){0};
}
