#include "worker/fit/histogram.h"

#include <float.h>

#define ROUNDS 50
#define SMOOTH_STEPS 120     /* steps of the smoothed fixed point; every third cools by a quarter */
#define SMOOTH_SCORES 640000 /* scores of the rows that it looks at */
#define WARS 4               /* steps of rivals in a round */
#define WAR_CLASSES 1024     /* most classes whose costs are computed */
#define FLOOR (-1e30f)       /* bias of a class that must be empty */

/* The state of a fit.  own is the class of each row under the present bias, best and second are its
 * two highest values, which give the margin of any class. */
struct work {
    const struct histogram *h;
    struct mem_arrays arrays;
    double *bias; /* (k) */
    double *load; /* (k) */
    uint32_t *own, *next;
    double *best, *second;   /* (n) */
    double *margin, *weight; /* (n) scratch of select_load */
    double *cost, *far;      /* (k,k), (k) of end_wars; NULL with many classes */
    bool *in;                /* (k) the rivals in one */
    float *kept;             /* (k) the best bias so far */
    double kept_gap;
    double total, unit; /* all weight; the heaviest row */
};

static double weight_of(const struct histogram *h, uint64_t i)
{
    return h->weights ? (double)h->weights[i] : 1.0;
}

static double value_of(const struct work *w, uint64_t i, uint32_t k)
{
    return (double)w->h->scores[i * w->h->k + k] + w->bias[k];
}

static void scan_row(struct work *w, uint64_t i)
{
    const uint32_t K = w->h->k;
    uint32_t a = 0, b = UINT32_MAX;
    double va = value_of(w, i, 0), vb = -DBL_MAX;
    for (uint32_t k = 1; k < K; k++) {
        double v = value_of(w, i, k);
        if (v > va) {
            b = a;
            vb = va;
            a = k;
            va = v;
        } else if (b == UINT32_MAX || v > vb) {
            b = k;
            vb = v;
        }
    }
    w->own[i] = a;
    w->next[i] = b;
    w->best[i] = va;
    w->second[i] = vb;
}

static void scan(struct work *w)
{
    memset(w->load, 0, w->h->k * sizeof(double));
    for (uint64_t i = 0; i < w->h->n; i++) {
        scan_row(w, i);
        w->load[w->own[i]] += weight_of(w->h, i);
    }
}

static double gap(const struct work *w)
{
    double sum = 0;
    for (uint32_t k = 0; k < w->h->k; k++) {
        double over = w->load[k] - w->h->hi[k], under = w->h->lo[k] - w->load[k];
        sum += over > 0 ? over : under > 0 ? under : 0;
    }
    return sum / w->total;
}

static bool met(const struct work *w)
{
    double slack = w->unit + 1e-6 * w->total;
    for (uint32_t k = 0; k < w->h->k; k++)
        if (w->load[k] > w->h->hi[k] + slack || w->load[k] < w->h->lo[k] - slack)
            return false;
    return true;
}

/* The loads under the bias rounded to f32, as its users will have it. */
static void measure(struct work *w, const float *bias, double *load)
{
    const struct histogram *h = w->h;
    memset(load, 0, h->k * sizeof(double));
    for (uint64_t i = 0; i < h->n; i++) {
        const float *s = h->scores + i * h->k;
        uint32_t a = 0;
        float va = s[0] + bias[0];
        for (uint32_t k = 1; k < h->k; k++) {
            float v = s[k] + bias[k];
            if (v > va) {
                a = k;
                va = v;
            }
        }
        load[a] += weight_of(h, i);
    }
}

static void keep(struct work *w)
{
    double g = gap(w);
    if (g >= w->kept_gap)
        return;
    w->kept_gap = g;
    for (uint32_t k = 0; k < w->h->k; k++)
        w->kept[k] = (float)w->bias[k];
}

static void swap_rows(struct work *w, uint64_t i, uint64_t j)
{
    double m = w->margin[i], v = w->weight[i];
    w->margin[i] = w->margin[j];
    w->weight[i] = w->weight[j];
    w->margin[j] = m;
    w->weight[j] = v;
}

/* The bias at which a class takes the weight `load` of the rows with the least margins: half
 * way between the last margin taken and the first one left.  Weighted quickselect. */
static double select_load(struct work *w, double load)
{
    uint64_t lo = 0, hi = w->h->n; /* margins before lo are taken, those from hi on are left */
    double taken = 0, last = -DBL_MAX, first = DBL_MAX;
    while (lo < hi) {
        double pivot = w->margin[lo + (hi - lo) / 2];
        uint64_t less = lo, at = lo, more = hi;
        double under = 0, equal = 0;
        while (at < more) {
            if (w->margin[at] < pivot) {
                under += w->weight[at];
                swap_rows(w, less++, at++);
            } else if (w->margin[at] > pivot) {
                swap_rows(w, at, --more);
            } else {
                equal += w->weight[at++];
            }
        }
        if (taken + under > load) { /* there are too many margins below the pivot */
            first = pivot < first ? pivot : first;
            hi = less;
        } else if (taken + under + equal > load) {
            /* Equal margins cannot be separated: they go to the nearer side. */
            bool with = taken + under + equal - load < load - taken - under;
            double below = less > 0 ? -DBL_MAX : last, above = first;
            for (uint64_t i = 0; i < less; i++)
                below = w->margin[i] > below ? w->margin[i] : below;
            for (uint64_t i = more; i < hi; i++)
                above = w->margin[i] < above ? w->margin[i] : above;
            last = with ? pivot : below;
            first = with ? above : pivot;
            break;
        } else {
            taken += under + equal;
            last = pivot;
            lo = more;
        }
    }
    if (last == -DBL_MAX)
        return first - 1;
    return first == DBL_MAX ? last + 1 : last + (first - last) / 2;
}

/* margin_i: the least bias of class k with which row i belongs to it. */
static void find_margins(struct work *w, uint32_t k)
{
    for (uint64_t i = 0; i < w->h->n; i++) {
        double rival = w->own[i] == k ? w->second[i] : w->best[i];
        w->margin[i] = rival - (double)w->h->scores[i * w->h->k + k];
        w->weight[i] = weight_of(w->h, i);
    }
}

static double load_at(const struct work *w, double bias)
{
    double sum = 0;
    for (uint64_t i = 0; i < w->h->n; i++)
        sum += w->margin[i] < bias ? w->weight[i] : 0;
    return sum;
}

static void set_bias(struct work *w, uint32_t k, double bias)
{
    if (bias == w->bias[k])
        return;
    w->bias[k] = bias;
    for (uint64_t i = 0; i < w->h->n; i++) {
        double v = value_of(w, i, k);
        uint32_t was = w->own[i];
        if (was == k || w->next[i] == k || v >= w->second[i])
            scan_row(w, i);
        if (w->own[i] != was) {
            w->load[was] -= weight_of(w->h, i);
            w->load[w->own[i]] += weight_of(w->h, i);
        }
    }
}

/* The exact step: the bias of class k given the others. */
static void step(struct work *w, uint32_t k)
{
    const double lo = w->h->lo[k], hi = w->h->hi[k];
    if (hi <= 0) {
        set_bias(w, k, (double)FLOOR);
        return;
    }
    find_margins(w, k);
    double at;
    if (lo < hi) { /* no price while the load is within its bounds without one */
        double free_load = load_at(w, 0);
        at = free_load > hi ? select_load(w, hi) : free_load < lo ? select_load(w, lo) : 0;
    } else {
        at = select_load(w, hi);
    }
    set_bias(w, k, at);
}

/* cost[a*k+b]: the least that a row of class a loses by going to b. */
static void find_costs(struct work *w)
{
    const uint32_t K = w->h->k;
    for (size_t i = 0; i < (size_t)K * K; i++)
        w->cost[i] = DBL_MAX;
    for (uint64_t i = 0; i < w->h->n; i++) {
        double *row = w->cost + (size_t)w->own[i] * K;
        for (uint32_t b = 0; b < K; b++) {
            double loss = w->best[i] - value_of(w, i, b);
            row[b] = loss < row[b] ? loss : row[b];
        }
    }
}

/* in = the classes that are nearer to `from`, by the loss of rows on the way, than the nearest
 * class that has room (full) or rows to spare (short); false: there is none.  Dijkstra on k*k
 * costs. */
static bool find_rivals(struct work *w, uint32_t from, bool full)
{
    const struct histogram *h = w->h;
    double *far = w->far;
    for (uint32_t k = 0; k < h->k; k++) {
        far[k] = DBL_MAX;
        w->in[k] = false;
    }
    far[from] = 0;
    for (;;) {
        uint32_t at = h->k;
        for (uint32_t k = 0; k < h->k; k++)
            if (!w->in[k] && far[k] < DBL_MAX && (at == h->k || far[k] < far[at]))
                at = k;
        if (at == h->k)
            return false;
        if (at != from && (full ? w->load[at] < h->hi[at] : w->load[at] > h->lo[at]))
            return true;
        w->in[at] = true;
        for (uint32_t k = 0; k < h->k; k++) {
            double c = full ? w->cost[(size_t)at * h->k + k] : w->cost[(size_t)k * h->k + at];
            if (c < DBL_MAX && far[at] + c < far[k])
                far[k] = far[at] + c;
        }
    }
}

/* Moves the bias of all rivals together until they hold what is wanted in sum. */
static void step_together(struct work *w, bool full)
{
    const struct histogram *h = w->h;
    double want = 0;
    for (uint32_t k = 0; k < h->k; k++)
        want += w->in[k] ? full ? h->hi[k] : h->lo[k] : 0;
    for (uint64_t i = 0; i < h->n; i++) {
        double inside = -DBL_MAX, outside = -DBL_MAX;
        for (uint32_t k = 0; k < h->k; k++) {
            double v = value_of(w, i, k), *best = w->in[k] ? &inside : &outside;
            *best = v > *best ? v : *best;
        }
        w->margin[i] = outside - inside;
        w->weight[i] = weight_of(h, i);
    }
    double by = select_load(w, want);
    for (uint32_t k = 0; k < h->k; k++)
        w->bias[k] += w->in[k] ? by : 0;
    scan(w);
    keep(w);
}

/* If two classes want the same rows, single steps undercut each other by a row's worth for ever
 * (a price war).  Moved together they fall until a third one has room, and classes that are short
 * rise together.  Only the worst few of a round. */
static void end_wars(struct work *w)
{
    const struct histogram *h = w->h;
    for (unsigned n = 0; n < WARS && w->cost; n++) {
        double worst = w->unit / 2;
        uint32_t from = h->k;
        bool full = true;
        for (uint32_t k = 0; k < h->k; k++) {
            double over = w->load[k] - h->hi[k], under = h->lo[k] - w->load[k];
            double off = over > under ? over : under;
            if (h->hi[k] <= 0 || off <= worst)
                continue;
            worst = off;
            from = k;
            full = over > under;
        }
        if (from == h->k)
            return;
        find_costs(w);
        if (!find_rivals(w, from, full))
            return;
        step_together(w, full);
    }
}

/* Sinkhorn's fixed point with falling temperature, for targets: near the optimum, from where
 * the exact steps are few. */
static void smooth(struct work *w, double temperature, double *sum)
{
    const struct histogram *h = w->h;
    uint64_t stride = h->n / (SMOOTH_SCORES / h->k + 1) + 1;
    double all = 0;
    memset(sum, 0, h->k * sizeof(double));
    for (uint64_t i = 0; i < h->n; i += stride) {
        double best = -DBL_MAX, norm = 0, weight = weight_of(h, i);
        for (uint32_t k = 0; k < h->k; k++)
            best = value_of(w, i, k) > best ? value_of(w, i, k) : best;
        for (uint32_t k = 0; k < h->k; k++)
            norm += exp((value_of(w, i, k) - best) / temperature);
        for (uint32_t k = 0; k < h->k; k++)
            sum[k] += weight * exp((value_of(w, i, k) - best) / temperature) / norm;
        all += weight;
    }
    for (uint32_t k = 0; k < h->k; k++) {
        double lo = h->lo[k] / w->total, hi = h->hi[k] / w->total, now = sum[k] / all;
        if (hi <= 0)
            continue;
        now = now > 1e-12 ? now : 1e-12;
        lo = lo > 1e-12 ? lo : 1e-12;
        double up = w->bias[k] + temperature * log(lo / now);
        double down = w->bias[k] + temperature * log(hi / now);
        /* between the two bounds the dual is flat only at zero */
        w->bias[k] = up > 0 ? up : down < 0 ? down : 0;
        if (h->lo[k] == h->hi[k])
            w->bias[k] = down;
    }
}

/* Mean gap between the best and the second best score: the scale of the temperatures. */
static double spread(const struct work *w)
{
    double sum = 0;
    for (uint64_t i = 0; i < w->h->n; i++)
        sum += w->best[i] - w->second[i] < 1e20 ? w->best[i] - w->second[i] : 0;
    return sum / (double)w->h->n;
}

static int work_open(struct work *w, const struct histogram *h, struct err *err)
{
    double lo = 0, hi = 0;
    *w = (struct work){.h = h, .kept_gap = DBL_MAX};
    for (uint64_t i = 0; i < h->n; i++) {
        double v = weight_of(h, i);
        w->total += v;
        w->unit = v > w->unit ? v : w->unit;
    }
    for (uint32_t k = 0; k < h->k; k++) {
        lo += h->lo[k];
        hi += h->hi[k];
    }
    if (h->n == 0 || h->k == 0 || lo > w->total * (1 + 1e-9) || hi < w->total * (1 - 1e-9))
        return err_set(err, -EINVAL,
                       "bounds of %g to %g in all cannot be met by a load of %g in %u classes", lo,
                       hi, w->total, h->k);
    w->bias = mem_arrays_add(&w->arrays, h->k, sizeof(double));
    w->load = mem_arrays_add(&w->arrays, h->k, sizeof(double));
    w->kept = mem_arrays_add(&w->arrays, h->k, sizeof(float));
    w->in = mem_arrays_add(&w->arrays, h->k, sizeof(bool));
    w->far = mem_arrays_add(&w->arrays, h->k, sizeof(double));
    if (h->k <= WAR_CLASSES)
        w->cost = mem_arrays_add(&w->arrays, (size_t)h->k * h->k, sizeof(double));
    w->own = mem_arrays_add(&w->arrays, h->n, sizeof(uint32_t));
    w->next = mem_arrays_add(&w->arrays, h->n, sizeof(uint32_t));
    w->best = mem_arrays_add(&w->arrays, h->n, sizeof(double));
    w->second = mem_arrays_add(&w->arrays, h->n, sizeof(double));
    w->margin = mem_arrays_add(&w->arrays, h->n, sizeof(double));
    w->weight = mem_arrays_add(&w->arrays, h->n, sizeof(double));
    if (w->arrays.failed)
        return err_set(err, -ENOMEM, "no memory to balance %llu rows", (unsigned long long)h->n);
    return 0;
}

static void search(struct work *w, unsigned rounds, unsigned *ret_done)
{
    const struct histogram *h = w->h;
    *ret_done = 0;
    scan(w);
    keep(w);
    if (w->kept_gap == 0)
        return;
    double temperature = 4 * spread(w);
    for (uint32_t k = 0; k < h->k; k++)
        if (h->hi[k] <= 0)
            w->bias[k] = (double)FLOOR;
    for (unsigned i = 0; temperature > 0 && i < SMOOTH_STEPS; i++) {
        smooth(w, temperature, w->load);
        temperature *= i % 3 == 2 ? 0.75 : 1;
    }
    scan(w);
    keep(w);
    for (unsigned round = 0; round < rounds && w->kept_gap > 0; round++) {
        for (uint32_t k = 0; k < h->k; k++)
            step(w, k);
        keep(w);
        *ret_done = round + 1;
        if (met(w))
            break;
        end_wars(w);
    }
}

int histogram_fit(const struct histogram *h, float *bias, double *load,
                  struct histogram_report *ret, struct err *err)
{
    struct work w;
    struct histogram_report report = {0};
    int rc = work_open(&w, h, err);
    if (rc == 0) {
        search(&w, h->rounds ? h->rounds : ROUNDS, &report.rounds);
        bool targets = true;
        double mean = 0;
        uint32_t used = 0;
        for (uint32_t k = 0; k < h->k; k++) {
            targets = targets && h->lo[k] == h->hi[k];
            if (w.kept[k] > FLOOR / 2) {
                mean += (double)w.kept[k];
                used++;
            }
        }
        mean = targets && used ? mean / used : 0;
        for (uint32_t k = 0; k < h->k; k++)
            bias[k] = w.kept[k] > FLOOR / 2 ? (float)((double)w.kept[k] - mean) : FLOOR;
        measure(&w, bias, load);
        memcpy(w.load, load, h->k * sizeof(double));
        report.gap = gap(&w);
        report.met = met(&w);
        *ret = report;
    }
    mem_arrays_free(&w.arrays);
    return rc;
}

void histogram_bounds(double total, uint32_t k, double balance, double least, double unit,
                      double *lo, double *hi)
{
    double mean = total / k, top = balance > 0 ? balance * mean : total, bottom = least;
    if (top - unit >= mean && top < total)
        top -= unit;
    if (bottom > 0 && bottom + unit <= mean)
        bottom += unit;
    for (uint32_t i = 0; i < k; i++) {
        lo[i] = bottom;
        hi[i] = top;
    }
}
