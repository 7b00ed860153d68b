#include "coordinator/http/gantt_svg.h"

#include "common/base/buf.h"

enum {
    WIDTH = 1180,
    LEFT = 190,
    RIGHT = 20,
    TOP = 16,
    ROW = 38,
    BAR = 28,
    BOTTOM = 64,
    LETTER = 8, /* about the most width of a letter */
    ROWS_MAX = 64
};
#define SPAN (WIDTH - LEFT - RIGHT)
#define END_MIN 1e-9 /* ms: a shorter step cannot be scaled */

/* Bars by the first word of their names, in the order of the legend; others are not drawn.  The
 * colours are Okabe and Ito's, which colour-blind people can tell apart. */
static const struct kind {
    const char *word, *colour, *ink, *what;
} kinds[] = {
    {"F", "#0072b2", "#fff", "forward"},       {"B", "#e69f00", "#000", "backward"},
    {"E", "#d55e00", "#000", "estimate"},      {"W", "#56b4e9", "#000", "weights"},
    {"FROZEN", "#009e73", "#000", "encoders"}, {"STEP", "#cc79a7", "#000", "update"},
    {"REDUCE", "#f0e442", "#000", "sum"},      {"CLIP", "#bbbbbb", "#000", "norm"},
};
#define N_KINDS (sizeof kinds / sizeof *kinds)

struct bar {
    const struct kind *kind;
    const char *name;
    int row;
    double start, length; /* ms */
};

/* False: it is not a bar, or not one that is drawn. */
static bool read_bar(const json_t *e, struct bar *ret)
{
    const char *name = json_string_value(json_object_get(e, "name"));
    const char *ph = json_string_value(json_object_get(e, "ph"));
    const json_int_t row = json_integer_value(json_object_get(e, "tid"));
    if (!name || !ph || strcmp(ph, "X") != 0 || row < 0 || row >= ROWS_MAX)
        return false;
    *ret = (struct bar){.name = name,
                        .row = (int)row,
                        .start = json_number_value(json_object_get(e, "ts")) / 1e3,
                        .length = json_number_value(json_object_get(e, "dur")) / 1e3};
    const size_t word = strcspn(name, " ");
    for (size_t i = 0; i < N_KINDS; i++)
        if (strlen(kinds[i].word) == word && strncmp(kinds[i].word, name, word) == 0)
            ret->kind = &kinds[i];
    return isfinite(ret->start) && isfinite(ret->length) && ret->start >= 0 && ret->length >= 0;
}

/* Appends text to XML; characters other than printable ASCII become '?'. */
static void escaped(struct buf *out, const char *text)
{
    for (const char *p = text; *p; p++)
        if (*p == '<' || *p == '>' || *p == '&' || *p == '"' || *p < ' ' || *p > '~')
            (void)buf_append_byte(out, '?');
        else
            (void)buf_append_byte(out, (uint8_t)*p);
}

static void put_text(struct buf *out, double x, int y, const char *anchor, const char *text)
{
    (void)buf_printf(out, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"%s\">", x, y, anchor);
    escaped(out, text);
    (void)buf_append_str(out, "</text>\n");
}

static void put_bar(struct buf *out, const struct bar *b, double end)
{
    const double scale = SPAN / end, wide = b->length * scale, x = LEFT + b->start * scale;
    const int y = TOP + b->row * ROW;
    if (!b->kind)
        return;
    (void)buf_printf(out,
                     "<rect class=\"instr\" x=\"%.2f\" y=\"%d\" width=\"%.2f\" height=\"%d\" "
                     "fill=\"%s\"><title>",
                     x, y, fmax(wide, 0.5), BAR, b->kind->colour);
    escaped(out, b->name);
    (void)buf_printf(out, ": %.3g ms from %.3g ms</title></rect>\n", b->length, b->start);
    if (wide < (double)(LETTER * strlen(b->name)))
        return;
    (void)buf_printf(out,
                     "<text class=\"name\" x=\"%.2f\" y=\"%d\" fill=\"%s\" text-anchor=\"middle\" "
                     "pointer-events=\"none\">",
                     x + wide / 2, y + 18, b->kind->ink);
    escaped(out, b->name);
    (void)buf_append_str(out, "</text>\n");
}

static void put_legend(struct buf *out, int rows, double end)
{
    const int y = TOP + rows * ROW + 12;
    char text[64];
    for (int i = 0; i <= 4; i++) {
        (void)snprintf(text, sizeof text, "%.3g ms", end * i / 4);
        put_text(out, LEFT + SPAN * i / 4.0, y, i == 4 ? "end" : i ? "middle" : "start", text);
    }
    for (size_t i = 0; i < N_KINDS; i++) {
        const int x = LEFT + (int)i * 120;
        (void)buf_printf(out, "<rect x=\"%d\" y=\"%d\" width=\"14\" height=\"14\" fill=\"%s\"/>\n",
                         x, y + 14, kinds[i].colour);
        put_text(out, x + 20, y + 26, "start", kinds[i].what);
    }
}

struct rows {
    int n;
    double end;            /* end of the step, ms */
    double busy[ROWS_MAX]; /* ms in drawn bars */
};

static void measure(const json_t *events, struct rows *ret)
{
    struct bar b;
    const json_t *e;
    size_t i;
    *ret = (struct rows){0};
    json_array_foreach(events, i, e)
    {
        if (!read_bar(e, &b))
            continue;
        ret->end = fmax(ret->end, b.start + b.length);
        ret->n = b.row + 1 > ret->n ? b.row + 1 : ret->n;
        ret->busy[b.row] += b.kind ? b.length : 0;
    }
}

static void put_row(struct buf *out, const struct rows *rows, int row, const char *name)
{
    char busy[32];
    const int y = TOP + row * ROW;
    (void)buf_printf(
        out, "<text class=\"device\" data-row=\"%d\" x=\"%d\" y=\"%d\" text-anchor=\"end\">", y,
        LEFT - 8, y + 12);
    escaped(out, name);
    (void)buf_append_str(out, "</text>\n");
    (void)snprintf(busy, sizeof busy, "busy %.0f %%", fmin(100, 100 * rows->busy[row] / rows->end));
    put_text(out, LEFT - 8, y + 26, "end", busy);
}

int gantt_svg(const json_t *trace, struct buf *out, struct err *err)
{
    const json_t *events = json_object_get(trace, "traceEvents"), *e;
    struct bar b;
    struct rows rows;
    size_t i;
    measure(events, &rows);
    if (!(rows.end > END_MIN))
        return err_set(err, -ERR_FORMAT, "the trace has no events");
    (void)buf_printf(out,
                     "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" "
                     "font-family=\"sans-serif\" font-size=\"12\" fill=\"#222\">\n"
                     "<rect class=\"paper\" width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n",
                     WIDTH, TOP + rows.n * ROW + BOTTOM);
    for (int r = 0; r < rows.n; r++)
        (void)buf_printf(out,
                         "<rect class=\"row\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" "
                         "fill=\"#eee\"/>\n",
                         LEFT, TOP + r * ROW, SPAN, BAR);
    json_array_foreach(events, i, e)
    {
        const char *name = json_string_value(json_object_get(json_object_get(e, "args"), "name"));
        const json_int_t row = json_integer_value(json_object_get(e, "tid"));
        if (read_bar(e, &b))
            put_bar(out, &b, rows.end);
        else if (name && row >= 0 && row < rows.n)
            put_row(out, &rows, (int)row, name);
    }
    put_legend(out, rows.n, rows.end);
    return buf_append_str(out, "</svg>\n") < 0
               ? err_set(err, -ERR_LIMIT, "the picture of the trace is larger than %zu bytes",
                         out->max)
               : 0;
}
