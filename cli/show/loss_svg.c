#include "cli/show/loss_svg.h"

#include "common/base/buf.h"

enum {
    WIDTH = 880,
    HEIGHT = 440,
    LEFT = 64,
    RIGHT = 16,
    TOP = 48,
    BOTTOM = 48,
    BINS = 240,
    LINES_MAX = 256,
    NAMES_MAX = 10
};

struct plot {
    double x_max, y_min, y_max; /* y in log10 */
    int lines;                  /* curves: paths, or the replicas of the only path */
    bool by_path;
    struct buf *out;
};

static int line_of(const struct plot *p, const struct loss_point *a)
{
    return p->by_path ? a->path : a->replica;
}

/* Hues of neighbours are far apart (by the golden angle). */
static double hue(int line)
{
    return fmod(210 + line * 137.508, 360);
}

static double px(const struct plot *p, double step)
{
    return LEFT + (WIDTH - LEFT - RIGHT) * (p->x_max > 0 ? step / p->x_max : 0);
}

static double py(const struct plot *p, double loss)
{
    return TOP + (HEIGHT - TOP - BOTTOM) * (p->y_max - log10(loss)) / (p->y_max - p->y_min);
}

static bool usable(const struct loss_point *a)
{
    return isfinite(a->loss) && a->loss > 0;
}

static size_t find_range(struct plot *p, const struct loss_point *points, size_t n)
{
    size_t good = 0;
    p->y_min = INFINITY;
    p->y_max = -INFINITY;
    for (size_t i = 0; i < n; i++) {
        if (!usable(&points[i]))
            continue;
        double y = log10(points[i].loss);
        p->x_max = fmax(p->x_max, points[i].step);
        p->y_min = fmin(p->y_min, y);
        p->y_max = fmax(p->y_max, y);
        good++;
    }
    double margin = fmax(0.02, 0.04 * (p->y_max - p->y_min));
    p->y_min -= margin;
    p->y_max += margin;
    return good;
}

static void axes(const struct plot *p, const char *title)
{
    buf_printf(p->out, "<text x=\"%d\" y=\"24\" class=\"t\">%s</text>\n", LEFT, title);
    for (int i = 0; i <= 4; i++) {
        double loss = pow(10, p->y_min + (p->y_max - p->y_min) * i / 4.0), y = py(p, loss);
        double step = p->x_max * i / 4.0, x = px(p, step);
        buf_printf(p->out,
                   "<path class=\"g\" d=\"M%d %.1fH%d\"/><text x=\"%d\" y=\"%.1f\" "
                   "text-anchor=\"end\">%.3g</text>\n"
                   "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%.0f</text>\n",
                   LEFT, y, WIDTH - RIGHT, LEFT - 8, y + 4, loss, x, HEIGHT - BOTTOM + 18, step);
    }
    buf_printf(p->out,
               "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">inner steps of a replica; loss on a "
               "logarithmic scale</text>\n",
               (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10);
}

/* The mean of each of BINS equal runs of steps, of one line or of all (-1). */
static void curve(const struct plot *p, const struct loss_point *points, size_t n, int line)
{
    double sum[BINS] = {0};
    unsigned count[BINS] = {0};
    char letter = 'M';

    for (size_t i = 0; i < n; i++) {
        if (!usable(&points[i]) || points[i].replica < 0 ||
            (line >= 0 && line_of(p, &points[i]) != line))
            continue;
        int bin = (int)(points[i].step / (p->x_max + 1) * BINS);
        sum[bin] += points[i].loss;
        count[bin]++;
    }
    if (line < 0)
        buf_append_str(p->out, "<path class=\"m\" d=\"");
    else if (p->by_path)
        buf_printf(p->out,
                   "<path class=\"r\" style=\"stroke:hsl(%.0f,55%%,45%%);opacity:.75\" d=\"",
                   hue(line));
    else
        buf_append_str(p->out, "<path class=\"r\" d=\"");
    for (int b = 0; b < BINS; b++) {
        if (!count[b])
            continue;
        buf_printf(p->out, "%c%.1f %.1f", letter, px(p, (b + 0.5) * p->x_max / BINS),
                   py(p, sum[b] / count[b]));
        letter = 'L';
    }
    buf_append_str(p->out, "\"/>\n");
}

static void count_lines(struct plot *p, const struct loss_point *points, size_t n)
{
    int last = -1;
    for (size_t i = 0; i < n; i++)
        p->by_path |= points[i].path > 0;
    for (size_t i = 0; i < n; i++) {
        int line = points[i].replica < 0 ? -1 : line_of(p, &points[i]);
        last = line > last ? line : last;
    }
    p->lines = last < LINES_MAX ? last + 1 : LINES_MAX;
}

/* Writes the names of the first paths in a row under the title. */
static void legend(const struct plot *p)
{
    for (int line = 0; p->by_path && line < p->lines && line < NAMES_MAX; line++)
        buf_printf(p->out,
                   "<text x=\"%d\" y=\"%d\"><tspan style=\"fill:hsl(%.0f,55%%,45%%)\">&#9632;"
                   "</tspan> path %d</text>\n",
                   LEFT + 68 * line, TOP - 2, hue(line), line);
    if (p->by_path && p->lines > NAMES_MAX)
        buf_printf(p->out, "<text x=\"%d\" y=\"%d\">and %d more paths</text>\n",
                   LEFT + 68 * NAMES_MAX, TOP - 2, p->lines - NAMES_MAX);
}

static void held_out(const struct plot *p, const struct loss_point *points, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (points[i].replica >= 0 || !usable(&points[i]))
            continue;
        buf_printf(p->out, "<circle class=\"e\" cx=\"%.1f\" cy=\"%.1f\" r=\"%s\"",
                   px(p, points[i].step), py(p, points[i].loss), p->by_path ? "2.5" : "4");
        if (p->by_path)
            buf_printf(p->out,
                       " style=\"fill:hsl(%.0f,55%%,45%%)\"><title>path %d: ", hue(points[i].path),
                       points[i].path);
        else
            buf_append_str(p->out, "><title>");
        buf_printf(p->out, "held-out loss %.5f</title></circle>\n", points[i].loss);
    }
}

int loss_svg(const struct loss_point *points, size_t n, const char *title, struct buf *out)
{
    struct plot p = {.out = out};

    buf_printf(out,
               "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" "
               "height=\"%d\">\n<style>text{font:12px sans-serif;fill:#555}.t{font:bold 15px "
               "sans-serif;fill:#222}.g{stroke:#ddd}.r{fill:none;stroke:#7aa6d6;stroke-width:1;"
               "opacity:.45}.m{fill:none;stroke:#1558a6;stroke-width:2.2}.e{fill:#d9541e}</style>\n"
               "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n",
               WIDTH, HEIGHT, WIDTH, HEIGHT);
    if (find_range(&p, points, n) < 2) {
        buf_printf(out, "<text x=\"%d\" y=\"60\">no loss was reported yet</text>\n</svg>\n", LEFT);
        return 0;
    }
    count_lines(&p, points, n);
    axes(&p, title);
    legend(&p);
    for (int line = 0; line < p.lines; line++)
        curve(&p, points, n, line);
    curve(&p, points, n, -1);
    held_out(&p, points, n);
    return buf_append_str(out, "</svg>\n");
}
