#include "coordinator/state/ledger.h"

#include "common/base/buf.h"
#include "common/base/rng.h"

#define DONE UINT64_MAX
#define FREE 0

/* A run of samples of one shard in one state.  Segments are sorted by (pos,
 * start) and tile the epoch. */
struct seg {
    uint32_t pos; /* the shard's position in the epoch's order */
    uint32_t start, count;
    uint64_t holder; /* FREE, DONE or a task */
};

struct epoch {
    uint32_t number;
    uint32_t *shard_at; /* position -> index in ledger.shards */
    uint32_t *pos_of;   /* index -> position */
    struct seg *segs;
    size_t n, cap;
    uint64_t done;
};

struct holder {
    uint64_t id, count;
    bool leased;
};

struct ledger {
    uint64_t seed, total;
    struct ledger_shard *shards;
    size_t n_shards;
    struct epoch *epochs; /* open, ascending, no gaps */
    uint32_t n_epochs, cap_epochs, first_open;
    struct holder *holders;
    size_t n_holders, cap_holders;
    bool dirty;
    bool even;
};

int ledger_new(uint64_t seed, const struct ledger_shard *shards, size_t n, struct ledger **ret,
               struct err *err)
{
    uint64_t total = 0;
    for (size_t i = 0; i < n; i++) {
        if (shards[i].samples == 0 || (i > 0 && shards[i].shard <= shards[i - 1].shard))
            return err_set(err, -EINVAL, "shard %u of a partition is empty or out of order",
                           shards[i].shard);
        total += shards[i].samples;
    }
    if (total == 0)
        return err_set(err, -EINVAL, "a partition has no samples to train on");
    struct ledger *l = mem_alloc(sizeof(*l));
    l->shards = mem_try_array(n, sizeof(*shards));
    if (l->shards == NULL) {
        mem_free(l);
        return err_set(err, -ENOMEM, "no memory for a ledger of %zu shards", n);
    }
    memcpy(l->shards, shards, n * sizeof(*shards));
    l->seed = seed;
    l->total = total;
    l->n_shards = n;
    l->dirty = true;
    *ret = l;
    return 0;
}

void ledger_set_even(struct ledger *l)
{
    l->even = true;
}

static void epoch_release(struct epoch *e)
{
    mem_free(e->shard_at);
    mem_free(e->pos_of);
    mem_free(e->segs);
    memset(e, 0, sizeof(*e));
}

void ledger_free(struct ledger *l)
{
    if (l == NULL)
        return;
    for (uint32_t i = 0; i < l->n_epochs; i++)
        epoch_release(&l->epochs[i]);
    mem_free(l->epochs);
    mem_free(l->holders);
    mem_free(l->shards);
    mem_free(l);
}

/* The order of an epoch's shards; segments are left empty. */
static void epoch_init(const struct ledger *l, struct epoch *e, uint32_t number)
{
    memset(e, 0, sizeof(*e));
    e->number = number;
    e->shard_at = mem_alloc_array(l->n_shards, sizeof(uint32_t));
    e->pos_of = mem_alloc_array(l->n_shards, sizeof(uint32_t));
    rng_permutation(l->seed, rng_mix(number, 0x65706f6368), e->shard_at, l->n_shards);
    for (uint32_t p = 0; p < l->n_shards; p++)
        e->pos_of[e->shard_at[p]] = p;
}

static void seg_insert(struct epoch *e, size_t at, struct seg s)
{
    if (e->n == e->cap) {
        e->cap = e->cap ? e->cap * 2 : 16;
        e->segs = mem_realloc(e->segs, e->cap * sizeof(*e->segs));
    }
    memmove(&e->segs[at + 1], &e->segs[at], (e->n - at) * sizeof(*e->segs));
    e->segs[at] = s;
    e->n++;
}

/* The next epoch, without segments. */
static struct epoch *add_epoch(struct ledger *l)
{
    if (l->n_epochs == l->cap_epochs) {
        l->cap_epochs = l->cap_epochs ? l->cap_epochs * 2 : 4;
        l->epochs = mem_realloc(l->epochs, l->cap_epochs * sizeof(*l->epochs));
    }
    struct epoch *e = &l->epochs[l->n_epochs];
    epoch_init(l, e, l->first_open + l->n_epochs);
    l->n_epochs++;
    return e;
}

static struct epoch *open_epoch(struct ledger *l)
{
    if (l->n_epochs == LEDGER_EPOCHS_OPEN_MAX)
        return NULL;
    struct epoch *e = add_epoch(l);
    e->cap = l->n_shards + 8;
    e->segs = mem_alloc_array(e->cap, sizeof(*e->segs));
    for (uint32_t p = 0; p < l->n_shards; p++)
        e->segs[e->n++] = (struct seg){p, 0, l->shards[e->shard_at[p]].samples, FREE};
    return e;
}

static struct holder *find_holder(struct ledger *l, uint64_t id)
{
    for (size_t i = 0; i < l->n_holders; i++)
        if (l->holders[i].id == id)
            return &l->holders[i];
    return NULL;
}

static struct holder *need_holder(struct ledger *l, uint64_t id)
{
    struct holder *h = find_holder(l, id);
    if (h != NULL)
        return h;
    if (l->n_holders == l->cap_holders) {
        l->cap_holders = l->cap_holders ? l->cap_holders * 2 : 8;
        l->holders = mem_realloc(l->holders, l->cap_holders * sizeof(*l->holders));
    }
    h = &l->holders[l->n_holders++];
    *h = (struct holder){id, 0, false};
    return h;
}

struct taking {
    uint64_t holder, left;
    uint32_t replica, k;
    struct ledger_range *ranges;
    size_t n, max;
};

/* The first `mine` samples of segment i go to the task; the rest is a new segment. */
static void take_seg(struct ledger *l, struct epoch *e, struct taking *t, size_t i, uint32_t mine)
{
    struct seg *s = &e->segs[i];
    if (mine < s->count) {
        struct seg rest = {s->pos, s->start + mine, s->count - mine, FREE};
        s->count = mine;
        seg_insert(e, i + 1, rest);
        s = &e->segs[i];
    }
    s->holder = t->holder;
    t->left -= mine;
    t->ranges[t->n++] =
        (struct ledger_range){e->number, l->shards[e->shard_at[s->pos]].shard, s->start, mine};
}

/* Takes at most `n` samples from all shards of an epoch, in proportion to their sizes. */
static void take_turn(struct ledger *l, struct epoch *e, struct taking *t, uint64_t n)
{
    uint64_t all = 0, seen = 0, taken = 0;
    for (size_t i = 0; i < e->n; i++)
        all += e->segs[i].holder == FREE ? e->segs[i].count : 0;
    if (n > all)
        n = all;
    for (size_t i = 0; i < e->n && t->n < t->max && taken < n; i++) {
        if (e->segs[i].holder != FREE)
            continue;
        seen += e->segs[i].count;
        uint64_t mine = n * seen / all - taken;
        if (mine == 0)
            continue;
        if (mine > e->segs[i].count)
            mine = e->segs[i].count;
        bool cut = mine < e->segs[i].count;
        take_seg(l, e, t, i, (uint32_t)mine);
        taken += mine;
        i += cut; /* skip the rest */
    }
}

#define TURN_SAMPLES 64 /* target */

/* Takes the wanted samples from an epoch, as far as it has them. */
static void take_even(struct ledger *l, struct epoch *e, struct taking *t)
{
    uint64_t turns = t->left / TURN_SAMPLES, most = t->max / (l->n_shards + 1);
    turns = turns < most ? turns : most;
    uint64_t turn = turns > 1 ? (t->left + turns - 1) / turns : t->left;
    uint64_t before;
    do {
        before = t->left;
        take_turn(l, e, t, turn < t->left ? turn : t->left);
    } while (t->left > 0 && t->left < before && t->n < t->max);
}

/* One pass over an epoch: only the replica's own shards, or all. */
static void take_pass(struct ledger *l, struct epoch *e, struct taking *t, bool own)
{
    for (size_t i = 0; i < e->n && t->left > 0 && t->n < t->max; i++) {
        struct seg *s = &e->segs[i];
        if (s->holder != FREE || (own && s->pos % t->k != t->replica % t->k))
            continue;
        take_seg(l, e, t, i, s->count > t->left ? (uint32_t)t->left : s->count);
    }
}

size_t ledger_take(struct ledger *l, uint64_t holder, uint64_t n, uint32_t replica, uint32_t k,
                   struct ledger_range *ranges, size_t max_ranges)
{
    if (holder == FREE || holder == DONE || find_holder(l, holder) != NULL)
        return 0;
    struct taking t = {holder, n, replica, k ? k : 1, ranges, 0, max_ranges};
    for (uint32_t i = 0; t.left > 0 && t.n < t.max; i++) {
        if (i == l->n_epochs && open_epoch(l) == NULL)
            break;
        if (l->even) {
            take_even(l, &l->epochs[i], &t);
            continue;
        }
        take_pass(l, &l->epochs[i], &t, true);
        take_pass(l, &l->epochs[i], &t, false);
    }
    if (t.n > 0) {
        need_holder(l, holder)->count = n - t.left;
        l->dirty = true;
    }
    return t.n;
}

bool ledger_has(const struct ledger *l, uint64_t n)
{
    uint64_t have = ledger_room(l);
    for (uint32_t i = 0; i < l->n_epochs && have < n; i++)
        for (size_t k = 0; k < l->epochs[i].n; k++)
            have += l->epochs[i].segs[k].holder == FREE ? l->epochs[i].segs[k].count : 0;
    return have >= n || l->n_holders == 0;
}

struct looking {
    uint64_t left;
    uint32_t replica, k;
    uint32_t *shards;
    size_t n, max;
};

/* As take_pass, but only counts: free samples stay free. */
static void look_pass(const struct ledger *l, const struct epoch *e, struct looking *t, bool own)
{
    for (size_t i = 0; i < e->n && t->left > 0; i++) {
        const struct seg *s = &e->segs[i];
        const uint32_t shard = l->shards[e->shard_at[s->pos]].shard;
        size_t k = 0;
        if (s->holder != FREE || own != (s->pos % t->k == t->replica % t->k))
            continue;
        while (k < t->n && t->shards[k] != shard)
            k++;
        if (k == t->max)
            return;
        t->shards[k] = shard;
        t->n += k == t->n;
        t->left -= s->count < t->left ? s->count : t->left;
    }
}

size_t ledger_ahead(const struct ledger *l, uint64_t n, uint32_t replica, uint32_t k,
                    uint32_t *shards, size_t max)
{
    struct looking t = {n, replica, k ? k : 1, shards, 0, max};
    for (uint32_t i = 0; i < l->n_epochs && !l->even; i++) {
        look_pass(l, &l->epochs[i], &t, true);
        look_pass(l, &l->epochs[i], &t, false);
    }
    return t.n;
}

void ledger_set_leased(struct ledger *l, uint64_t holder, bool leased)
{
    struct holder *h = l != NULL ? find_holder(l, holder) : NULL;
    if (h != NULL)
        h->leased = leased;
}

/* Index in l->shards of a job's shard, or -1. */
static long local_shard(const struct ledger *l, uint32_t shard)
{
    size_t lo = 0, hi = l->n_shards;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (l->shards[mid].shard < shard)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < l->n_shards && l->shards[lo].shard == shard ? (long)lo : -1;
}

static struct epoch *find_epoch(struct ledger *l, uint32_t number)
{
    if (number < l->first_open || number - l->first_open >= l->n_epochs)
        return NULL;
    return &l->epochs[number - l->first_open];
}

/* Index of the segment that starts at (pos, start), or -1. */
static long find_seg(const struct epoch *e, uint32_t pos, uint32_t start)
{
    size_t lo = 0, hi = e->n;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        const struct seg *s = &e->segs[mid];
        if (s->pos < pos || (s->pos == pos && s->start < start))
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < e->n && e->segs[lo].pos == pos && e->segs[lo].start == start ? (long)lo : -1;
}

static long locate(struct ledger *l, const struct ledger_range *r, struct epoch **ret)
{
    struct epoch *e = find_epoch(l, r->epoch);
    long local = local_shard(l, r->shard);
    if (e == NULL || local < 0)
        return -1;
    *ret = e;
    return find_seg(e, e->pos_of[local], r->start);
}

/* Joins equal neighbours around `at`, which are free or done. */
static void merge_around(struct epoch *e, size_t at)
{
    for (size_t i = at > 0 ? at - 1 : 0; i + 1 < e->n && i <= at + 1;) {
        struct seg *a = &e->segs[i], *b = &e->segs[i + 1];
        if (a->pos == b->pos && a->holder == b->holder &&
            (a->holder == FREE || a->holder == DONE)) {
            a->count += b->count;
            memmove(b, b + 1, (e->n - i - 2) * sizeof(*b));
            e->n--;
        } else {
            i++;
        }
    }
}

static void settle_range(struct ledger *l, const struct ledger_range *r, uint32_t done)
{
    struct epoch *e = NULL;
    long at = locate(l, r, &e);
    struct seg *s = &e->segs[at];
    e->done += done;
    if (done > 0 && done < s->count) {
        struct seg rest = {s->pos, s->start + done, s->count - done, FREE};
        s->count = done;
        s->holder = DONE;
        seg_insert(e, (size_t)at + 1, rest);
    } else {
        s->holder = done ? DONE : FREE;
    }
    merge_around(e, (size_t)at);
}

static void close_epochs(struct ledger *l)
{
    while (l->n_epochs > 0 && l->epochs[0].done == l->total) {
        epoch_release(&l->epochs[0]);
        l->n_epochs--;
        memmove(&l->epochs[0], &l->epochs[1], l->n_epochs * sizeof(l->epochs[0]));
        l->first_open++;
    }
}

int ledger_settle(struct ledger *l, uint64_t holder, const struct ledger_range *ranges, size_t n,
                  uint64_t done, struct err *err)
{
    struct holder *h = find_holder(l, holder);
    uint64_t total = 0;
    for (size_t i = 0; h != NULL && i < n; i++) {
        struct epoch *e = NULL;
        long at = locate(l, &ranges[i], &e);
        if (at < 0 || e->segs[at].holder != holder || e->segs[at].count != ranges[i].count)
            return err_set(err, -EINVAL, "task %llu does not hold samples %u+%u of shard %u",
                           (unsigned long long)holder, ranges[i].start, ranges[i].count,
                           ranges[i].shard);
        total += ranges[i].count;
    }
    if (h == NULL || total != h->count)
        return err_set(err, -EINVAL, "task %llu holds %llu samples, %llu were to be settled",
                       (unsigned long long)holder, (unsigned long long)(h ? h->count : 0),
                       (unsigned long long)total);
    for (size_t i = 0; i < n; i++) {
        uint32_t mine = done < ranges[i].count ? (uint32_t)done : ranges[i].count;
        done -= mine;
        settle_range(l, &ranges[i], mine);
    }
    *h = l->holders[--l->n_holders];
    close_epochs(l);
    l->dirty = true;
    return 0;
}

uint32_t ledger_first_open(const struct ledger *l)
{
    return l->first_open;
}

uint32_t ledger_open(const struct ledger *l)
{
    return l->n_epochs;
}

uint64_t ledger_room(const struct ledger *l)
{
    return (LEDGER_EPOCHS_OPEN_MAX - l->n_epochs) * l->total;
}

void ledger_figures(const struct ledger *l, uint32_t epoch, struct ledger_epoch *ret)
{
    *ret = (struct ledger_epoch){.epoch = epoch, .total = l->total};
    if (epoch < l->first_open) {
        ret->done = l->total;
        return;
    }
    ret->pending = l->total;
    if (epoch - l->first_open >= l->n_epochs)
        return;
    const struct epoch *e = &l->epochs[epoch - l->first_open];
    ret->done = e->done;
    for (size_t i = 0; i < e->n; i++) {
        const struct seg *s = &e->segs[i];
        if (s->holder == FREE || s->holder == DONE)
            continue;
        for (size_t h = 0; h < l->n_holders; h++)
            if (l->holders[h].id == s->holder && l->holders[h].leased)
                ret->leased += s->count;
    }
    ret->pending = ret->total - ret->done - ret->leased;
}

#define SAVE_VERSION 1

static int put_u32(struct buf *b, uint32_t v)
{
    uint8_t p[4] = {(uint8_t)v, (uint8_t)(v >> 8), (uint8_t)(v >> 16), (uint8_t)(v >> 24)};
    return buf_append(b, p, sizeof(p));
}

int ledger_save(struct ledger *l, struct buf *out)
{
    int rc = put_u32(out, SAVE_VERSION) | put_u32(out, l->first_open) | put_u32(out, l->n_epochs);
    for (uint32_t i = 0; i < l->n_epochs && rc == 0; i++) {
        const struct epoch *e = &l->epochs[i];
        rc = put_u32(out, (uint32_t)e->n);
        for (size_t j = 0; j < e->n && rc == 0; j++) {
            const struct seg *s = &e->segs[j];
            rc = put_u32(out, s->pos) | put_u32(out, s->start) | put_u32(out, s->count) |
                 put_u32(out, (uint32_t)s->holder) | put_u32(out, (uint32_t)(s->holder >> 32));
        }
    }
    if (rc == 0)
        l->dirty = false;
    return rc ? -ERR_LIMIT : 0;
}

bool ledger_dirty(const struct ledger *l)
{
    return l->dirty;
}

struct reader {
    const uint8_t *p;
    size_t left;
    bool bad;
};

static uint32_t get_u32(struct reader *r)
{
    if (r->left < 4) {
        r->bad = true;
        return 0;
    }
    uint32_t v = (uint32_t)r->p[0] | (uint32_t)r->p[1] << 8 | (uint32_t)r->p[2] << 16 |
                 (uint32_t)r->p[3] << 24;
    r->p += 4;
    r->left -= 4;
    return v;
}

/* Reads one epoch's segments; they must tile the shards in order. */
static bool load_epoch(struct ledger *l, struct epoch *e, struct reader *r)
{
    uint32_t n = get_u32(r), pos = 0, start = 0;
    if (r->bad || n > r->left / 20)
        return false;
    for (uint32_t i = 0; i < n; i++) {
        struct seg s = {get_u32(r), get_u32(r), get_u32(r), 0};
        s.holder = get_u32(r);
        s.holder |= (uint64_t)get_u32(r) << 32;
        if (pos >= l->n_shards || s.pos != pos || s.start != start || s.count == 0)
            return false;
        uint32_t samples = l->shards[e->shard_at[pos]].samples;
        if (s.count > samples - start)
            return false;
        start += s.count;
        if (start == samples) {
            pos++;
            start = 0;
        }
        if (s.holder == DONE)
            e->done += s.count;
        else if (s.holder != FREE)
            need_holder(l, s.holder)->count += s.count;
        seg_insert(e, e->n, s);
    }
    return pos == l->n_shards && start == 0;
}

int ledger_load(struct ledger *l, const void *data, size_t len, struct err *err)
{
    struct reader r = {data, len, false};
    if (get_u32(&r) != SAVE_VERSION)
        return err_set(err, -ERR_FORMAT, "saved ledger of an unknown version");
    l->first_open = get_u32(&r);
    uint32_t n = get_u32(&r);
    if (r.bad || n > LEDGER_EPOCHS_OPEN_MAX || l->n_epochs != 0)
        return err_set(err, -ERR_FORMAT, "saved ledger has %u open epochs, at most %u fit", n,
                       (unsigned)LEDGER_EPOCHS_OPEN_MAX);
    for (uint32_t i = 0; i < n; i++) {
        struct epoch *e = add_epoch(l);
        if (!load_epoch(l, e, &r))
            return err_set(err, -ERR_FORMAT,
                           "saved ledger: epoch %u does not account for every sample once",
                           e->number);
    }
    if (r.left != 0)
        return err_set(err, -ERR_FORMAT, "saved ledger has %zu bytes too many", r.left);
    l->dirty = false;
    return 0;
}
