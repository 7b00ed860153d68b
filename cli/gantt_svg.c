#include "cli/gantt_svg.h"

#include "common/base/buf.h"

enum {
    WIDTH = 1180,
    LEFT = 180,
    RIGHT = 20,
    TOP = 56,
    ROW = 34,
    BAR = 24,
    BOTTOM = 64,
    ROWS_MAX = 64
};

/* Bars by the first word of their names, in the order of the legend; the rest is drawn under them.
 */
static const struct kind {
    const char *word, *colour, *what;
} kinds[] = {
    {"F", "#4c78a8", "forward"},   {"B", "#e45756", "backward"}, {"FROZEN", "#54a24b", "encoders"},
    {"STEP", "#b279a2", "update"}, {"REDUCE", "#eeca3b", "sum"}, {"CLIP", "#9d755d", "norm"},
};
#define N_KINDS (sizeof kinds / sizeof *kinds)

struct bar {
    const struct kind *kind;
    const char *name;
    int row;
    double start, length; /* ms */
};

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

/* As text of XML; other than printable ASCII becomes '?'. */
static void escaped(struct buf *out, const char *text)
{
    for (const char *p = text; *p; p++)
        if (*p == '<' || *p == '>' || *p == '&' || *p == '"' || *p < ' ' || *p > '~')
            (void)buf_append_byte(out, '?');
        else
            (void)buf_append_byte(out, (uint8_t)*p);
}

static void put_text(struct buf *out, int x, int y, const char *anchor, const char *text)
{
    (void)buf_printf(out, "<text x=\"%d\" y=\"%d\" text-anchor=\"%s\">", x, y, anchor);
    escaped(out, text);
    (void)buf_append_str(out, "</text>\n");
}

static void put_bar(struct buf *out, const struct bar *b, double end)
{
    const double scale = (WIDTH - LEFT - RIGHT) / end;
    if (!b->kind)
        return;
    (void)buf_printf(out,
                     "<rect x=\"%.2f\" y=\"%d\" width=\"%.2f\" height=\"%d\" "
                     "fill=\"%s\"><title>",
                     LEFT + b->start * scale, TOP + b->row * ROW, fmax(b->length * scale, 0.5), BAR,
                     b->kind->colour);
    escaped(out, b->name);
    (void)buf_printf(out, ": %.3g ms</title></rect>\n", b->length);
}

static void put_legend(struct buf *out, int rows, double end)
{
    const int y = TOP + rows * ROW + 20;
    char text[64];
    for (int i = 0; i <= 4; i++) {
        (void)snprintf(text, sizeof text, "%.3g ms", end * i / 4);
        put_text(out, LEFT + (WIDTH - LEFT - RIGHT) * i / 4, y, "middle", text);
    }
    for (size_t i = 0; i < N_KINDS; i++) {
        const int x = LEFT + (int)i * 120;
        (void)buf_printf(out,
                         "<rect x=\"%d\" y=\"%d\" width=\"12\" height=\"12\" "
                         "fill=\"%s\"/>\n",
                         x, y + 14, kinds[i].colour);
        put_text(out, x + 18, y + 25, "start", kinds[i].what);
    }
}

int gantt_svg(const json_t *trace, const char *title, struct buf *out, struct err *err)
{
    const json_t *events = json_object_get(trace, "traceEvents"), *e;
    struct bar b;
    double end = 0;
    int rows = 0;
    size_t i;
    json_array_foreach(events, i, e)
    {
        if (!read_bar(e, &b))
            continue;
        end = fmax(end, b.start + b.length);
        rows = b.row + 1 > rows ? b.row + 1 : rows;
    }
    if (!(end > 0))
        return err_set(err, -ERR_FORMAT, "the trace has no events");
    (void)buf_printf(out,
                     "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" "
                     "font-family=\"sans-serif\" font-size=\"12\">\n"
                     "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n",
                     WIDTH, TOP + rows * ROW + BOTTOM);
    put_text(out, LEFT, 30, "start", title);
    for (int r = 0; r < rows; r++)
        (void)buf_printf(out,
                         "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" "
                         "fill=\"#eee\"/>\n",
                         LEFT, TOP + r * ROW, WIDTH - LEFT - RIGHT, BAR);
    json_array_foreach(events, i, e)
    {
        const char *name = json_string_value(json_object_get(json_object_get(e, "args"), "name"));
        const json_int_t row = json_integer_value(json_object_get(e, "tid"));
        if (read_bar(e, &b))
            put_bar(out, &b, end);
        else if (name && row >= 0 && row < rows)
            put_text(out, LEFT - 8, TOP + (int)row * ROW + 16, "end", name);
    }
    put_legend(out, rows, end);
    return buf_append_str(out, "</svg>\n") < 0
               ? err_set(err, -ERR_LIMIT, "the picture of the trace is larger than %zu bytes",
                         out->max)
               : 0;
}
