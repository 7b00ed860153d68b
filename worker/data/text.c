#include "worker/data/text.h"

#include "common/base/rng.h"
#include "worker/data/data_samples.h"

#define BATCH_BYTES_MAX (1u << 30)
#define PLAIN_SHARE 16   /* a 16th of a phase's pieces: what they fill depends on their order */
#define WINDOW_LEAST 256 /* pieces that are packed together */
#define WINDOW_MOST 4096
#define WINDOW_ROWS 16  /* that short pieces are to fill: the last one may stay empty */
#define WINDOW_SHARE 16 /* a window has a 16th of a phase bounded by time at most */
#define WINDOW_MAX (2 * WINDOW_MOST - 1) /* the last ones of a pass are up to twice as many */
#define STREAM_ROWS 0x726f7773ULL

#define NO_ROW UINT16_MAX

/* A piece of a window, and the row that it gets; NO_ROW: it fits none. */
struct packed {
    uint32_t tokens;
    uint16_t at, row;
};

/* A window: the pieces at some consecutive positions, in the order in which they are used. */
struct window {
    uint64_t begin;               /* its first position */
    unsigned n;                   /* its positions */
    uint64_t rows_before;         /* rows of all windows before it */
    unsigned rows;                /* its own */
    uint16_t pieces[WINDOW_MAX];  /* row by row, counted from begin; those that fit no row last */
    uint16_t row_end[WINDOW_MAX]; /* row r ends before pieces[row_end[r]] */
};

struct text {
    struct data base;
    struct text_options opt;
    uint32_t dim;

    /* The batch: `rows` of seq + 1 or seq. */
    int32_t *tokens, *start, *target, *pos;
    uint64_t *ids;
    uint32_t *lengths;
    float *features;
    struct mem_arrays arrays;

    unsigned together; /* pieces of a window */
    struct window window;
    struct packed packed[WINDOW_MAX]; /* while a window is made */
    uint32_t rows[WINDOW_MAX];
};

/* ---- opening ---- */

static int check_options(const struct text_options *o, struct err *err)
{
    uint64_t bytes = (uint64_t)o->rows * (o->seq + 1) * 4 * sizeof(int32_t);
    if (o->seq < 1 || o->seq > TEXT_SEQ_MAX || o->rows == 0 || o->rows > TEXT_ROWS_MAX ||
        bytes > BATCH_BYTES_MAX)
        return err_set(err, -ERR_LIMIT, "batches of %u rows of %u tokens cannot be made", o->rows,
                       o->seq);
    return 0;
}

/* Checks that all shards hold text; finds whether there is a column. */
static int survey(struct text *t, const struct data_range *ranges, struct err *err)
{
    const struct data *o = &t->base;
    t->dim = o->shards[0].dim;
    for (size_t i = 0; i < o->n_shards; i++) {
        if (o->shards[i].kind != SHARD_TEXT)
            return err_set(err, -ERR_FORMAT, "a shard of the task, such as %s, holds no text",
                           ranges[0].path);
        if (o->shards[i].dim != t->dim)
            t->dim = 0;
    }
    return 0;
}

static int make_batch(struct text *t, struct err *err)
{
    size_t rows = t->opt.rows, seq = t->opt.seq;
    t->tokens = mem_arrays_add(&t->arrays, rows, (seq + 1) * sizeof(*t->tokens));
    t->start = mem_arrays_add(&t->arrays, rows, seq * sizeof(*t->start));
    t->target = mem_arrays_add(&t->arrays, rows, seq * sizeof(*t->target));
    t->pos = mem_arrays_add(&t->arrays, rows, seq * sizeof(*t->pos));
    t->ids = mem_arrays_add(&t->arrays, rows, sizeof(*t->ids));
    t->lengths = mem_arrays_add(&t->arrays, rows, sizeof(*t->lengths));
    if (t->dim)
        t->features = mem_arrays_add(&t->arrays, rows, t->dim * sizeof(*t->features));
    if (t->arrays.failed)
        return err_set(err, -ENOMEM, "out of memory for batches of %u rows of %u tokens",
                       t->opt.rows, t->opt.seq);
    return 0;
}

/* ---- pieces to rows ---- */

/* Padding from index `from` on: each index sees itself alone. */
static void pad_row(struct text *t, unsigned row, uint32_t from)
{
    uint32_t seq = t->opt.seq;
    int32_t *tokens = t->tokens + (size_t)row * (seq + 1);
    size_t base = (size_t)row * seq;
    for (uint32_t i = from; i <= seq; i++)
        tokens[i] = 0;
    for (uint32_t i = from; i < seq; i++) {
        t->start[base + i] = (int32_t)i;
        t->pos[base + i] = 0;
        t->target[base + i] = -1;
    }
}

/* Writes the piece at index `from` of a row and counts it in the batch. */
static void place_piece(struct text *t, const struct shard_sample *s, unsigned row, uint32_t from,
                        struct batch *b)
{
    uint32_t seq = t->opt.seq;
    int32_t *tokens = t->tokens + (size_t)row * (seq + 1) + from;
    size_t base = (size_t)row * seq + from;
    shard_tokens(s, tokens);
    for (uint32_t i = 0; i < s->tokens && from + i < seq; i++) {
        /* Token i predicts token i + 1. */
        bool predicts = i + 1 < s->tokens && i + 1 >= t->opt.skip;
        t->start[base + i] = (int32_t)from;
        t->pos[base + i] = (int32_t)i;
        t->target[base + i] = predicts ? tokens[i + 1] : -1;
    }
    b->samples++;
}

static bool fits(const struct text *t, const struct shard_sample *s)
{
    return s->tokens >= 2 && s->tokens <= t->opt.seq + 1;
}

static bool is_good(const struct text *t, const struct shard_sample *s, char *reason, size_t size)
{
    if (!fits(t, s)) {
        snprintf(reason, size, "a piece of %u tokens, expected 2 to %u", s->tokens, t->opt.seq + 1);
        return false;
    }
    const uint8_t *p = s->data + 1;
    unsigned width = s->data[0];
    for (uint32_t i = 0; t->opt.vocab && i < s->tokens; i++, p += width) {
        uint32_t id = 0;
        for (unsigned b = 0; b < width; b++)
            id |= (uint32_t)p[b] << 8 * b;
        if (id >= t->opt.vocab) {
            snprintf(reason, size, "token %u, but there are %u", id, t->opt.vocab);
            return false;
        }
    }
    return true;
}

/* ---- windows ---- */

static int by_tokens(const void *a, const void *b)
{
    const struct packed *x = a, *y = b;
    return x->tokens != y->tokens ? (x->tokens > y->tokens ? -1 : 1) : x->at - y->at;
}

static int by_row(const void *a, const void *b)
{
    const struct packed *x = a, *y = b;
    return x->row != y->row ? x->row - y->row : x->at - y->at;
}

/* Best fit, decreasing: each piece, the longest first, gets the row with the least room that takes
 * it.  Returns the number of rows. */
static unsigned best_fit(struct packed *p, unsigned n, uint32_t size, uint32_t *room)
{
    unsigned rows = 0;
    qsort(p, n, sizeof(*p), by_tokens);
    for (struct packed *end = p + n; p < end; p++) {
        unsigned best = rows;
        for (unsigned r = 0; r < rows; r++)
            if (room[r] >= p->tokens && (best == rows || room[r] < room[best]))
                best = r;
        if (best == rows)
            room[rows++] = size;
        room[best] -= p->tokens;
        p->row = (uint16_t)best;
    }
    return rows;
}

/* Packs the n pieces from `begin` on: t->packed[0..n) in any order.  Returns the number of rows. */
static unsigned pack(struct text *t, uint64_t begin, unsigned n)
{
    struct packed *p = t->packed;
    unsigned good = 0, bad = n;
    for (unsigned i = 0; i < n; i++) {
        const struct data_place place = data_at(&t->base, begin + i);
        const struct shard_sample *s = &t->base.shards[place.shard].samples[place.index];
        p[fits(t, s) ? good++ : --bad] =
            (struct packed){.tokens = s->tokens, .at = (uint16_t)i, .row = NO_ROW};
    }
    return best_fit(p, good, t->opt.seq + 1, t->rows);
}

/* Positions of the window that begins at `begin`: it ends with the pass, and with what is shuffled
 * together (data_order.window). */
static unsigned window_size(const struct text *t, uint64_t begin)
{
    const uint64_t total = t->base.total, run = t->base.opt.window ? t->base.opt.window : total;
    const uint64_t at = begin % total, end = at - at % run + run;
    const uint64_t left = (end < total ? end : total) - at;
    return !t->opt.packed ? 1 : left < 2 * t->together ? (unsigned)left : t->together;
}

/* The rows of a window are used in an order of their own, so that long pieces do not come first. */
static void set_order(struct text *t, struct window *w)
{
    struct packed *p = t->packed;
    uint32_t *order = t->rows;
    if (t->base.opt.shuffle)
        rng_permutation(t->base.opt.seed, rng_mix(STREAM_ROWS, w->begin), order, w->rows);
    for (unsigned i = 0; i < w->n && t->base.opt.shuffle; i++)
        p[i].row = p[i].row == NO_ROW ? NO_ROW : (uint16_t)order[p[i].row];
    qsort(p, w->n, sizeof(*p), by_row);
    for (unsigned i = 0; i < w->n; i++) {
        w->pieces[i] = p[i].at;
        if (p[i].row != NO_ROW)
            w->row_end[p[i].row] = (uint16_t)(i + 1);
    }
}

/* Goes from a window to the next one.  Where all_rows end the window is as long as its pieces fill
 * the rows that are left. */
static void next_window(struct text *t, struct window *w)
{
    w->begin += w->n;
    w->rows_before += w->rows;
    w->n = window_size(t, w->begin);
    w->rows = pack(t, w->begin, w->n);
    if (w->rows_before < t->opt.all_rows && w->rows > t->opt.all_rows - w->rows_before) {
        unsigned most = w->n; /* these are too many, and one is not */
        for (w->n = 1; most - w->n > 1;) {
            const unsigned middle = (w->n + most) / 2;
            if (pack(t, w->begin, middle) > t->opt.all_rows - w->rows_before)
                most = middle;
            else
                w->n = middle;
        }
        w->rows = pack(t, w->begin, w->n);
    }
    set_order(t, w);
}

/* Where the row that has the head ends; after a window's last row: the window's end. */
static uint64_t row_end(const struct text *t)
{
    const struct window *w = &t->window;
    for (unsigned r = 0; r < w->rows; r++)
        if (w->begin + w->row_end[r] > t->base.head)
            return w->begin + w->row_end[r];
    return w->begin + w->n;
}

/* Fills a row: 1, or 0 when there is no piece left.  Pieces that turn out bad leave room. */
static int fill_row(struct text *t, unsigned row, struct batch *b, struct err *err)
{
    struct data *d = &t->base;
    struct window *w = &t->window;
    char reason[128];
    uint32_t at = 0;
    int rc = 0;
    while (rc == 0 && at == 0 && data_has(d, d->head)) {
        while (d->head >= w->begin + w->n)
            next_window(t, w);
        for (const uint64_t end = row_end(t); rc == 0 && d->head < end; d->head++) {
            const struct data_place place = data_at(d, w->begin + w->pieces[d->head - w->begin]);
            const struct shard *shard = &d->shards[place.shard];
            const struct shard_sample *s = &shard->samples[place.index];
            if (!is_good(t, s, reason, sizeof(reason))) {
                rc = data_found_bad(d, &place, "pieces of text of the phase can be used", reason,
                                    err);
                continue;
            }
            d->bad_run = 0;
            place_piece(t, s, row, at, b);
            at += s->tokens;
            if (t->opt.packed)
                continue;
            t->ids[row] = data_sample_id(d->hashes[place.shard], place.index);
            t->lengths[row] = s->tokens;
            if (t->dim)
                shard_feature(shard, s, t->features + (size_t)row * t->dim);
        }
    }
    if (rc < 0 || at == 0)
        return rc;
    pad_row(t, row, at);
    return 1;
}

static int text_next(struct data *base, struct batch *ret, struct err *err)
{
    struct text *t = (struct text *)base;
    struct batch b = {
        .seq = t->opt.seq,
        .tokens = t->tokens,
        .start = t->start,
        .target = t->target,
        .pos = t->pos,
    };
    if (!t->opt.packed) {
        b.ids = t->ids;
        b.lengths = t->lengths;
        b.features = t->features;
    }
    int rc = 1;
    while (b.count < t->opt.rows && (rc = fill_row(t, b.count, &b, err)) > 0)
        b.count++;
    if (rc < 0)
        return rc;
    *ret = b;
    return 0;
}

/* ---- the order ---- */

/* Decides how many pieces are packed together and, in a phase bounded by time, shuffled. */
static void choose_window(struct text *t)
{
    struct data *d = &t->base;
    uint64_t tokens = 1;
    for (uint64_t i = 0; i < d->total; i++)
        tokens += d->shards[d->places[i].shard].samples[d->places[i].index].tokens;
    const uint64_t fill = WINDOW_ROWS * (t->opt.seq + 1) * d->total / tokens;
    t->together = fill < WINDOW_LEAST  ? WINDOW_LEAST
                  : fill > WINDOW_MOST ? WINDOW_MOST
                                       : (unsigned)fill;
    const uint64_t share = d->total / WINDOW_SHARE;
    const uint32_t least = share < t->together ? (uint32_t)share : t->together;
    if (d->opt.window > 0 && d->opt.window < least)
        d->opt.window = least;
}

/* Positions of the first pass that all_rows take. */
static uint64_t positions_taken(struct text *t)
{
    struct window *w = &t->window;
    memset(w, 0, sizeof(*w));
    while (w->rows_before + w->rows < t->opt.all_rows && w->begin + w->n < t->base.total)
        next_window(t, w);
    const uint64_t taken = w->begin + w->n;
    memset(w, 0, sizeof(*w));
    return taken;
}

/* Shuffles fewer and fewer of the leading pieces, until all of those are taken: of the rest, which
 * lies as in the ranges, the rows then take the first ones. */
static void mix_what_is_taken(struct text *t)
{
    uint64_t taken = positions_taken(t);
    while (taken < t->base.mixed) {
        data_mix(&t->base, taken - taken / PLAIN_SHARE);
        taken = positions_taken(t);
    }
}

static void text_free(struct data *base)
{
    struct text *t = (struct text *)base;
    data_close(base);
    mem_arrays_free(&t->arrays);
    mem_free(t);
}

int text_open(const struct text_options *opt, const struct data_range *ranges, size_t n_ranges,
              struct data **ret, struct err *err)
{
    static const struct data_ops ops = {.next = text_next, .free = text_free};
    int rc = check_options(opt, err);
    if (rc < 0)
        return rc;
    struct text *t = mem_try_zero(sizeof(*t));
    if (!t)
        return err_set(err, -ENOMEM, "out of memory");
    t->opt = *opt;
    rc = data_open(&t->base, &ops, &opt->order, ranges, n_ranges, err);
    if (rc == 0)
        rc = survey(t, ranges, err);
    if (rc == 0)
        rc = make_batch(t, err);
    if (rc < 0) {
        text_free(&t->base);
        return rc;
    }
    if (opt->packed)
        choose_window(t);
    if (opt->all_rows > 0)
        mix_what_is_taken(t);
    *ret = &t->base;
    return 0;
}
