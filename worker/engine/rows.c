#include "worker/engine/rows.h"

#include "common/job/family.h"

#define IMAGES_OF_CALL 64
#define TOKENS_OF_CALL 8192
#define TEXTS_MAX 64
#define FIND_BACK 1024 /* rows: more than a batch may go back */

int rows_open(struct rows *r, struct work *w, Skerry__V1__Range *const *ranges, size_t n_ranges,
              struct err *err)
{
    *r = (struct rows){.w = w, .ranges = ranges, .n_ranges = n_ranges};
    for (size_t i = 0; i < n_ranges; i++)
        r->n += ranges[i]->count;
    r->ids = mem_try_array(r->n, sizeof(*r->ids));
    r->taken = mem_try_array(r->n, sizeof(*r->taken));
    if (!r->ids || !r->taken)
        return err_set(err, -ENOMEM, "no memory for %" PRIu64 " samples", r->n);
    uint64_t at = 0;
    for (size_t i = 0; i < n_ranges; i++)
        for (uint32_t j = 0; j < ranges[i]->count; j++)
            r->ids[at++] = data_sample_id(ranges[i]->shard->sha256.data, ranges[i]->start + j);
    return 0;
}

void rows_close(struct rows *r)
{
    mem_free(r->ids);
    mem_free(r->taken);
    *r = (struct rows){0};
}

int rows_each(struct rows *r, struct engine *e, const struct feed_options *opt, feed_take_fn take,
              void *arg, struct err *err)
{
    struct feed_options o = *opt;
    uint64_t samples;
    o.batch = rows_of_call(r->w);
    o.pieces = true;
    o.may_be_empty = true; /* bad samples leave their rows as they are */
    return feed_each(e, r->w, r->ranges, r->n_ranges, &o, take, arg, &samples, err);
}

/* The row of id in [from, to); r->n: none. */
static uint64_t seek(const struct rows *r, uint64_t from, uint64_t to, uint64_t id)
{
    while (from < to && (r->ids[from] != id || r->taken[from]))
        from++;
    return from < to ? from : r->n;
}

int rows_find(struct rows *r, uint64_t id, uint64_t *ret, struct err *err)
{
    /* The next row, else one of the same batch, which may have another order, else a later one. */
    const uint64_t back = r->at > FIND_BACK ? r->at - FIND_BACK : 0;
    uint64_t row = seek(r, r->at, r->at < r->n ? r->at + 1 : r->n, id);
    if (row == r->n)
        row = seek(r, back, r->at, id);
    if (row == r->n)
        row = seek(r, r->at, r->n, id);
    if (row == r->n)
        return err_set(err, -EINVAL, "a sample that the task does not name");
    r->taken[row] = true;
    r->at = row + 1;
    *ret = row;
    return 0;
}

bool rows_are_texts(const struct work *w)
{
    return job_is_text(&w->spec);
}

unsigned rows_of_call(const struct work *w)
{
    if (!rows_are_texts(w))
        return IMAGES_OF_CALL;
    const unsigned rows = TOKENS_OF_CALL / (unsigned)w->spec.model.context;
    return rows < 1 ? 1 : rows > TEXTS_MAX ? TEXTS_MAX : rows;
}

uint32_t rows_columns(const struct work *w, uint32_t chunk)
{
    return chunk ? ((uint32_t)w->spec.model.context + chunk - 1) / chunk : 0;
}
