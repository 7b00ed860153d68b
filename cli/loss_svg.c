#include "cli/loss_svg.h"

#include <math.h>
#include <stdbool.h>

#include "common/base/buf.h"

enum { WIDTH = 880, HEIGHT = 440, LEFT = 64, RIGHT = 16, TOP = 40, BOTTOM = 48, BINS = 240 };

struct plot {
    double x_max, y_min, y_max; /* y in log10 */
    struct buf *out;
};

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

/* The mean of each of BINS equal runs of steps, of one replica or of all (-2). */
static void curve(const struct plot *p, const struct loss_point *points, size_t n, int replica,
                  const char *class)
{
    double sum[BINS] = {0};
    unsigned count[BINS] = {0};
    char letter = 'M';

    for (size_t i = 0; i < n; i++) {
        if (!usable(&points[i]) || points[i].replica < 0 ||
            (replica >= 0 && points[i].replica != replica))
            continue;
        int bin = (int)(points[i].step / (p->x_max + 1) * BINS);
        sum[bin] += points[i].loss;
        count[bin]++;
    }
    buf_printf(p->out, "<path class=\"%s\" d=\"", class);
    for (int b = 0; b < BINS; b++) {
        if (!count[b])
            continue;
        buf_printf(p->out, "%c%.1f %.1f", letter, px(p, (b + 0.5) * p->x_max / BINS),
                   py(p, sum[b] / count[b]));
        letter = 'L';
    }
    buf_append_str(p->out, "\"/>\n");
}

int loss_svg(const struct loss_point *points, size_t n, const char *title, struct buf *out)
{
    struct plot p = {.out = out};
    int last = -1;

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
    axes(&p, title);
    for (size_t i = 0; i < n; i++)
        last = points[i].replica > last ? points[i].replica : last;
    for (int r = 0; r <= last && r < 64; r++)
        curve(&p, points, n, r, "r");
    curve(&p, points, n, -2, "m");
    for (size_t i = 0; i < n; i++) {
        if (points[i].replica == -1 && usable(&points[i]))
            buf_printf(out,
                       "<circle class=\"e\" cx=\"%.1f\" cy=\"%.1f\" r=\"4\"><title>held-out "
                       "loss %.5f</title></circle>\n",
                       px(&p, points[i].step), py(&p, points[i].loss), points[i].loss);
    }
    return buf_append_str(out, "</svg>\n");
}
