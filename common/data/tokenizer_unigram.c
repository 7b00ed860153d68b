/* Unigram: of all ways to cut a word into pieces the one with the largest sum of log
 * probabilities (Kudo, 2018), by Viterbi's algorithm.  Of equal sums the one found first stays:
 * the one whose last piece begins earlier. */
#include "common/base/base.h"
#include "common/data/tokenizer_impl.h"
#include "common/data/unicode.h"

#define UNKNOWN UINT32_MAX

/* The best way to end at a byte. */
struct node {
    double score;
    uint32_t id, from; /* UNKNOWN: a character that no piece covers */
    bool reached;
};

/* The pieces that begin with the same bytes as the text: sorted[low..high). */
struct prefix_range {
    uint32_t low, high;
};

/* The byte of a piece at a depth; -1: it ends there. */
static int byte_at(const struct tokenizer *t, uint32_t i, size_t depth)
{
    const struct token *k = &t->tokens[t->sorted[i]];
    return depth < k->len ? t->pool.data[k->at + depth] : -1;
}

/* The first piece of the range whose byte at `depth` is at least `byte`. */
static uint32_t first_with(const struct tokenizer *t, struct prefix_range r, size_t depth, int byte)
{
    while (r.low < r.high) {
        uint32_t mid = r.low + (r.high - r.low) / 2;
        if (byte_at(t, mid, depth) < byte)
            r.low = mid + 1;
        else
            r.high = mid;
    }
    return r.low;
}

static void offer(struct node *to, double score, uint32_t id, size_t from)
{
    if (!to->reached || score > to->score)
        *to = (struct node){score, id, (uint32_t)from, true};
}

/* Extends the best way to `at` by every piece that the text goes on with. */
static void extend(const struct tokenizer *t, const uint8_t *text, size_t len, unsigned flags,
                   struct node *nodes, size_t at)
{
    struct prefix_range r = {0, t->n_sorted};
    const double score = nodes[at].score;
    bool single = false;
    size_t character;
    (void)unicode_decode(text + at, len - at, &character);
    for (size_t depth = 0; at + depth < len; depth++) {
        int byte = text[at + depth];
        r.low = first_with(t, r, depth, byte);
        r.high = first_with(t, r, depth, byte + 1);
        if (r.low == r.high)
            break;
        if (byte_at(t, r.low, depth + 1) >= 0)
            continue;
        uint32_t id = t->sorted[r.low];
        if (t->tokens[id].special && !(flags & TOKENIZER_SPECIAL))
            continue;
        offer(&nodes[at + depth + 1], score + t->scores[id], id, at);
        single = single || depth + 1 == character;
    }
    if (!single)
        offer(&nodes[at + character], score + t->unk_score, UNKNOWN, at);
}

/* Walks the best way back, and puts its ids into out in the order of the text. */
static int collect(const struct tokenizer *t, const uint8_t *text, size_t len,
                   const struct node *nodes, uint32_t *ends, struct tokens *out, struct err *err)
{
    size_t n = 0;
    int rc = 0;
    for (size_t at = len; at > 0; at = nodes[at].from)
        ends[n++] = (uint32_t)at;
    for (size_t from = 0, end; rc == 0 && n > 0; from = end) {
        end = ends[--n];
        uint32_t id = nodes[end].id;
        while (id == UNKNOWN && t->fuse_unk && n > 0 && nodes[ends[n - 1]].id == UNKNOWN)
            end = ends[--n];
        rc = id == UNKNOWN ? tokenizer_unknown(t, text + from, end - from, out, err)
                           : tokens_add(out, id, err);
    }
    return rc;
}

int tokenizer_unigram(const struct tokenizer *t, const uint8_t *text, size_t len, unsigned flags,
                      struct tokens *out, struct err *err)
{
    struct node *nodes = mem_try_array(len + 1, sizeof(*nodes));
    uint32_t *ends = mem_try_array(len + 1, sizeof(*ends));
    int rc =
        nodes && ends ? 0 : err_set(err, -ENOMEM, "out of memory for a word of %zu bytes", len);
    for (size_t at = 0, n; rc == 0 && at < len; at += n) {
        (void)unicode_decode(text + at, len - at, &n);
        extend(t, text, len, flags, nodes, at);
    }
    if (rc == 0)
        rc = collect(t, text, len, nodes, ends, out, err);
    mem_free(nodes);
    mem_free(ends);
    return rc;
}

static int by_bytes(const void *a, const void *b, void *arg)
{
    const struct tokenizer *t = arg;
    const struct token *x = &t->tokens[*(const uint32_t *)a], *y = &t->tokens[*(const uint32_t *)b];
    int c = memcmp(t->pool.data + x->at, t->pool.data + y->at, x->len < y->len ? x->len : y->len);
    return c ? c : x->len != y->len ? (x->len < y->len ? -1 : 1) : 0;
}

int tokenizer_unigram_sort(struct tokenizer *t)
{
    double least = INFINITY;
    t->sorted = mem_try_array(t->vocab, sizeof(*t->sorted));
    if (!t->sorted)
        return -ENOMEM;
    for (uint32_t id = 0; id < t->vocab; id++) {
        const struct token *k = &t->tokens[id];
        /* Pieces of the model: those that the table of texts leads to and that have a score. */
        if (!k->used || isnan(t->scores[id]) ||
            tokenizer_find(t, t->pool.data + k->at, k->len) != id)
            continue;
        t->sorted[t->n_sorted++] = id;
        least = t->scores[id] < least ? t->scores[id] : least;
    }
    t->unk_score = least - 10;
    qsort_r(t->sorted, t->n_sorted, sizeof(*t->sorted), by_bytes, t);
    return 0;
}
