#include "worker/external/tensors.h"

#include <fcntl.h>
#include <fnmatch.h>
#include <unistd.h>

#include "common/base/crew.h"
#include "common/base/file.h"
#include "common/outer/arith.h"
#include "common/outer/layout.h"

#define PIECES_MIN 4
#define SUM_FACTOR 0x9e3779b97f4a7c15ULL
#define SUM_LANES 8    /* independent products */
#define SUM_AHEAD 8192 /* bytes to prefetch, beyond the CPU's own prefetching */
#define ELEMENTS_MAX (1ull << 40)
#define PATTERN_MAX 256

/* ---- hello ---- */

static enum st_dtype dtype_of(Skerry__Trainer__V1__Dtype d)
{
    switch (d) {
    case SKERRY__TRAINER__V1__DTYPE__DTYPE_F32:
        return ST_F32;
    case SKERRY__TRAINER__V1__DTYPE__DTYPE_BF16:
        return ST_BF16;
    case SKERRY__TRAINER__V1__DTYPE__DTYPE_F16:
        return ST_F16;
    case SKERRY__TRAINER__V1__DTYPE__DTYPE_I64:
        return ST_I64;
    case SKERRY__TRAINER__V1__DTYPE__DTYPE_I32:
        return ST_I32;
    default:
        return ST_UNSPECIFIED;
    }
}

static bool is_real(enum st_dtype d)
{
    return d == ST_F32 || d == ST_BF16 || d == ST_F16;
}

static bool is_half(enum st_dtype d)
{
    return d == ST_BF16 || d == ST_F16;
}

static int take_tensor(const Skerry__Trainer__V1__Tensor *from, size_t i, struct tensors_item *to,
                       struct err *err)
{
    const size_t len = strlen(from->name);
    if (len == 0 || len > ST_NAME_MAX || !str_is_utf8(from->name, len))
        return err_set(err, -ERR_FORMAT,
                       "the trainer's tensor %zu has the name '%.80s', expected 1 to %d bytes of "
                       "UTF-8",
                       i, from->name, ST_NAME_MAX);
    *to = (struct tensors_item){.dtype = dtype_of(from->dtype),
                                .rank = (unsigned)from->n_shape,
                                .count = 1,
                                .buffer = from->buffer,
                                .level = -1};
    if (to->dtype == ST_UNSPECIFIED || from->n_shape > ST_RANK_MAX)
        return err_set(err, -ERR_FORMAT,
                       "the trainer's tensor %s has dtype %d and rank %zu, expected F32, BF16, "
                       "F16, I64 or I32 and at most %d",
                       from->name, (int)from->dtype, from->n_shape, ST_RANK_MAX);
    for (size_t d = 0; d < from->n_shape; d++) {
        if (from->shape[d] == 0 || from->shape[d] > ELEMENTS_MAX / to->count)
            return err_set(err, -ERR_LIMIT, "the trainer's tensor %s has a side of %" PRIu64,
                           from->name, from->shape[d]);
        to->shape[d] = from->shape[d];
        to->count *= from->shape[d];
    }
    to->name = str_dup(from->name);
    return 0;
}

static int by_name(const void *a, const void *b)
{
    const struct tensors_item *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

static int sort(struct tensors *t, struct err *err)
{
    for (size_t i = 0; i < t->n; i++)
        t->by_name[i] = &t->items[i];
    qsort(t->by_name, t->n, sizeof(*t->by_name), by_name);
    for (size_t i = 1; i < t->n; i++)
        if (strcmp(t->by_name[i - 1]->name, t->by_name[i]->name) == 0)
            return err_set(err, -ERR_FORMAT, "the trainer's tensor %s is there twice",
                           t->by_name[i]->name);
    return 0;
}

int tensors_from_hello(const Skerry__Trainer__V1__Hello *hello, struct tensors *ret,
                       struct err *err)
{
    struct tensors t = {0};
    if (hello->n_tensors == 0 || hello->n_tensors > ST_TENSORS_MAX)
        return err_set(err, -ERR_LIMIT, "the trainer has %zu tensors, expected 1 to %d",
                       hello->n_tensors, ST_TENSORS_MAX);
    t.items = mem_try_array(hello->n_tensors, sizeof(*t.items));
    t.by_name = mem_try_array(hello->n_tensors, sizeof(*t.by_name));
    int rc = t.items && t.by_name ? 0 : err_set(err, -ENOMEM, "no memory for the list of tensors");
    for (size_t i = 0; i < hello->n_tensors && rc == 0; i++)
        if ((rc = take_tensor(hello->tensors[i], i, &t.items[i], err)) == 0)
            t.n++;
    if (rc == 0)
        rc = sort(&t, err);
    if (rc < 0) {
        tensors_release(&t);
        return rc;
    }
    buf_init(&t.header, ST_HEADER_MAX + 64);
    *ret = t;
    return 0;
}

void tensors_release(struct tensors *t)
{
    for (size_t i = 0; i < t->n; i++)
        mem_free(t->items[i].name);
    mem_free(t->items);
    mem_free(t->by_name);
    buf_release(&t->header);
    *t = (struct tensors){0};
}

const struct tensors_item *tensors_find(const struct tensors *t, const char *name)
{
    const struct tensors_item key = {.name = (char *)(uintptr_t)name}, *k = &key;
    const struct tensors_item **found =
        t->n ? bsearch(&k, t->by_name, t->n, sizeof(*t->by_name), by_name) : NULL;
    return found ? *found : NULL;
}

/* ---- synchronised tensors ---- */

/* Does the name match one of the patterns, which are separated by blanks? */
static bool matches(const char *patterns, const char *name)
{
    while (*(patterns += strspn(patterns, " "))) {
        const size_t len = strcspn(patterns, " ");
        char one[PATTERN_MAX];
        if (len < sizeof(one)) {
            memcpy(one, patterns, len);
            one[len] = '\0';
            if (fnmatch(one, name, 0) == 0)
                return true;
        }
        patterns += len;
    }
    return false;
}

static bool is_wanted(const struct job_trainer *job, const struct tensors_item *item)
{
    bool named = false;
    for (size_t i = 0; i < job->tensors.n && !named; i++)
        named = matches(job->tensors.items[i], item->name);
    return (!item->buffer || job->buffers != JOB_BUFFERS_OWN) && (named || job->tensors.n == 0);
}

/* Each pattern must match a tensor: one that does not is misspelt. */
static int check_patterns(const struct tensors *t, const char *key, const struct conf_strs *list,
                          struct err *err)
{
    for (size_t i = 0; i < list->n; i++) {
        size_t found = 0;
        for (size_t k = 0; k < t->n; k++)
            found += matches(list->items[i], t->items[k].name);
        if (found == 0)
            return err_set(err, -ERR_CONFIG,
                           "%s holds '%.80s', which matches none of the trainer's %zu tensors, "
                           "such as %s",
                           key, list->items[i], t->n, t->items[0].name);
    }
    return 0;
}

static int find_level(const struct job_trainer *job, const struct tensors_cut *cut, int block,
                      struct tensors_item *item, struct err *err)
{
    for (size_t i = 0; i < job->levels.n && i < TENSORS_BLOCKS_MAX; i++) {
        if (!matches(job->levels.items[i], item->name))
            continue;
        if (block >= 0)
            return err_set(err, -ERR_CONFIG,
                           "trainer.levels has the tensor %s in entry %d and in entry %zu",
                           item->name, block, i);
        block = (int)i;
    }
    item->level = block >= 0 ? cut->block_level[block] : cut->rest_level;
    return 0;
}

static size_t pieces_of(const struct tensors_item *item)
{
    return (size_t)((item->count + TENSORS_PIECE - 1) / TENSORS_PIECE);
}

/* Makes the header of the shared file, which places all tensors. */
static int place(struct tensors *t, struct err *err)
{
    struct st_writer *w = st_writer_new();
    struct st st = {0};
    int rc = 0;
    st_writer_meta(w, "format", "pt");
    for (size_t i = 0; i < 3 * t->n && rc == 0; i++) { /* wide types first, to align all */
        const struct tensors_item *item = &t->items[i % t->n];
        if (item->level >= 0 && st_dtype_bytes(item->dtype) == (size_t)8 >> i / t->n)
            rc = st_writer_add(w, item->name, item->dtype, item->rank, item->shape, err);
    }
    if (rc == 0)
        rc = st_writer_header(w, &t->header, &t->bytes, err);
    if (rc == 0)
        rc = st_parse(t->header.data, t->header.len, t->bytes, "the shared weights", &st, err);
    for (size_t i = 0; i < st.n_tensors && rc == 0; i++) {
        const struct tensors_item *found = tensors_find(t, st.tensors[i].name);
        t->items[found - t->items].offset = st.tensors[i].offset;
    }
    for (size_t i = 0; i < t->n; i++) {
        t->items[i].piece = t->n_pieces;
        t->n_pieces += t->items[i].level >= 0 ? pieces_of(&t->items[i]) : 0;
    }
    st_release(&st);
    st_writer_free(w);
    return rc;
}

/* Chooses the level of a wanted tensor, which must be synchronisable. */
static int choose_one(const struct job_trainer *job, const struct tensors_cut *cut, int block,
                      struct tensors_item *item, struct err *err)
{
    if (!is_real(item->dtype) && job->buffers == JOB_BUFFERS_OWN)
        return err_set(err, -ERR_CONFIG,
                       "the trainer's tensor %s is %s, which cannot be averaged: declare it as a "
                       "buffer, leave it out by trainer.tensors, or say what becomes of it by "
                       "trainer.buffers (mean or first)",
                       item->name, st_dtype_name(item->dtype));
    item->buffer |= !is_real(item->dtype);
    return find_level(job, cut, block, item, err);
}

/* The division of tensors into blocks, in their order. */
struct portions {
    int n, now; /* number of blocks; block of the last tensor, -1: none yet */
    uint64_t all, before;
    size_t left; /* trained tensors without a block yet */
};

static bool is_trained(const struct tensors_item *item)
{
    return !item->buffer && is_real(item->dtype);
}

/* The block in which the middle of the tensor lies; no block is skipped while there are enough
 * tensors. */
static int portion_of(struct portions *p, const struct tensors_item *item)
{
    const double middle = (double)p->before + (double)item->count / 2;
    int block = (int)(middle / (double)p->all * p->n);
    const int least = p->n - (int)p->left > p->now ? p->n - (int)p->left : p->now;
    p->before += item->count;
    if (!is_trained(item))
        return p->now > 0 ? p->now : 0;
    p->left--;
    block = block < least ? least : block;
    return p->now = block > p->now + 1 ? p->now + 1 : block;
}

/* Chooses the levels of all wanted tensors. */
static int choose_levels(struct tensors *t, const struct job_trainer *job,
                         const struct tensors_cut *cut, struct err *err)
{
    const bool cuts = job->levels.n == 0 && cut->n_blocks > 1;
    struct portions p = {.n = cut->n_blocks, .now = -1};
    int rc = 0;
    for (size_t i = 0; i < t->n; i++)
        if (is_wanted(job, &t->items[i])) {
            p.all += t->items[i].count;
            p.left += is_trained(&t->items[i]);
        }
    for (size_t i = 0; i < t->n && rc == 0; i++)
        if (is_wanted(job, &t->items[i]))
            rc = choose_one(job, cut, cuts ? portion_of(&p, &t->items[i]) : -1, &t->items[i], err);
    return rc;
}

/* Each level must have a trained tensor, and trainer.buffers must apply to a buffer. */
static int check_choice(const struct tensors *t, struct err *err)
{
    size_t trained[TENSORS_BLOCKS_MAX] = {0}, buffers = 0;
    for (size_t i = 0; i < t->n; i++)
        if (t->items[i].level >= 0) {
            trained[t->items[i].level] += !t->items[i].buffer;
            buffers += t->items[i].buffer;
        }
    for (int l = 0; l < t->n_levels; l++)
        if (l >= TENSORS_BLOCKS_MAX || trained[l] == 0)
            return err_set(err, -ERR_CONFIG,
                           "level %d of %d has none of the trainer's tensors: change "
                           "trainer.tensors, trainer.levels, outer.fragments or "
                           "recipe.private_embeddings",
                           l, t->n_levels);
    if (t->buffers != JOB_BUFFERS_OWN && buffers == 0)
        return err_set(err, -ERR_CONFIG,
                       "trainer.buffers is given, but none of the trainer's tensors that "
                       "trainer.tensors chooses is a buffer: leave it out");
    return 0;
}

int tensors_choose(struct tensors *t, const struct job_trainer *job, const struct tensors_cut *cut,
                   struct err *err)
{
    t->n_levels = cut->n_levels;
    t->buffers = job->buffers;
    int rc = check_patterns(t, "trainer.tensors", &job->tensors, err);
    if (rc == 0)
        rc = check_patterns(t, "trainer.levels", &job->levels, err);
    if (rc == 0)
        rc = choose_levels(t, job, cut, err);
    if (rc == 0)
        rc = check_choice(t, err);
    return rc < 0 ? rc : place(t, err);
}

size_t tensors_chosen(const struct tensors *t, int level)
{
    size_t n = 0;
    for (size_t i = 0; i < t->n; i++)
        n += level < 0 ? t->items[i].level >= 0 : t->items[i].level == level;
    return n;
}

/* ---- values ---- */

/* The number of elements in the chunk that begins at `at`. */
static size_t chunk_at(const struct tensors_item *item, uint64_t at)
{
    return item->count - at < TENSORS_PIECE ? (size_t)(item->count - at) : TENSORS_PIECE;
}

/* -ERR_FORMAT: an integer that f32 cannot hold exactly. */
static int check_integers(const struct tensors_item *item, const uint8_t *from, size_t n,
                          struct err *err)
{
    for (size_t i = 0; i < n; i++) {
        int64_t wide = 0;
        int32_t narrow = 0;
        if (item->dtype == ST_I64)
            memcpy(&wide, from + 8 * i, sizeof(wide));
        else
            memcpy(&narrow, from + 4 * i, sizeof(narrow));
        wide += narrow;
        if (wide > ST_EXACT_MAX || wide < -ST_EXACT_MAX)
            return err_set(err, -ERR_FORMAT,
                           "the trainer's buffer %s holds %" PRIi64
                           ", but versions hold integers up to %d: leave it out by trainer.tensors",
                           item->name, wide, ST_EXACT_MAX);
    }
    return 0;
}

static int read_values(const struct tensors_item *item, const uint8_t *shared, uint64_t first,
                       size_t n, float *out, struct err *err)
{
    const uint8_t *from = shared + item->offset + first * st_dtype_bytes(item->dtype);
    st_to_f32(item->dtype, from, n, out);
    return is_real(item->dtype) ? 0 : check_integers(item, from, n, err);
}

static void write_values(const struct tensors_item *item, uint8_t *shared, uint64_t first, size_t n,
                         const float *in)
{
    st_from_f32(item->dtype, in, n, shared + item->offset + first * st_dtype_bytes(item->dtype));
}

/* The number of threads: each has enough pieces to be worth its start. */
static unsigned crew_for(int threads, size_t pieces)
{
    return crew_size(threads, pieces / PIECES_MIN);
}

/* The checksum of the piece that begins at `first`. */
static uint64_t piece_sum(const struct tensors_item *item, const uint8_t *shared, uint64_t first)
{
    const uint8_t *data = shared + item->offset + first * st_dtype_bytes(item->dtype);
    const size_t len = chunk_at(item, first) * st_dtype_bytes(item->dtype);
    uint64_t lanes[SUM_LANES] = {1, 2, 3, 4, 5, 6, 7, 8}, word[SUM_LANES];
    size_t at = 0;
    for (; at + sizeof(word) <= len; at += sizeof(word)) {
        __builtin_prefetch(data + at + SUM_AHEAD);
        memcpy(word, data + at, sizeof(word));
        for (int i = 0; i < SUM_LANES; i++)
            lanes[i] = (lanes[i] ^ word[i]) * SUM_FACTOR;
    }
    for (; at < len; at++)
        lanes[0] = (lanes[0] ^ data[at]) * SUM_FACTOR;
    uint64_t sum = 0;
    for (int i = 0; i < SUM_LANES; i++)
        sum = (sum ^ lanes[i] << i) * SUM_FACTOR;
    return sum;
}

static int check_seal(const struct tensors_item *item, const uint8_t *shared, const uint64_t *seal,
                      uint64_t first, struct err *err)
{
    if (!seal || piece_sum(item, shared, first) == seal[item->piece + first / TENSORS_PIECE])
        return 0;
    return err_set(err, -ERR_TRAINER,
                   "the trainer wrote its weights after it had handed them over (%s)", item->name);
}

/* out has the values of a 16-bit tensor: adds what rounding lost of those with which it began. */
static int count_changes(const struct tensors_end *end, uint64_t first, size_t n, float *out,
                         struct err *err)
{
    const struct tensors_item *item = end->item;
    float began[1024], rounded[1024];
    uint16_t half[1024];
    for (size_t at = 0; at < n; at += 1024) {
        const size_t some = n - at < 1024 ? n - at : 1024;
        const int rc =
            file_pread_all(end->base, began, some * sizeof(*began),
                           end->from->offset + (first + at) * sizeof(*began), "a version", err);
        if (rc < 0)
            return rc;
        st_from_f32(item->dtype, began, some, half);
        st_to_f32(item->dtype, half, some, rounded);
        for (size_t i = 0; i < some; i++)
            out[at + i] = began[i] + (out[at + i] - rounded[i]);
    }
    return 0;
}

int tensors_read_end(const struct tensors_end *end, uint64_t first, size_t n, float *out,
                     struct err *err)
{
    const struct tensors_item *item = end->item;
    int rc = read_values(item, end->shared, first, n, out, err);
    if (rc == 0) /* after reading, so that writes meanwhile are found, too */
        rc = check_seal(item, end->shared, end->seal, first, err);
    return rc < 0 || !is_half(item->dtype) ? rc : count_changes(end, first, n, out, err);
}

struct sealing {
    const struct tensors_item *item;
    const uint8_t *shared;
    uint64_t *seal;
};

static int seal_piece(void *arg, size_t piece, unsigned thread, struct err *err)
{
    const struct sealing *s = arg;
    s->seal[s->item->piece + piece] =
        piece_sum(s->item, s->shared, (uint64_t)piece * TENSORS_PIECE);
    return 0;
}

void tensors_seal(const struct tensors *t, int level, const uint8_t *shared, int threads,
                  uint64_t *seal)
{
    struct sealing s = {.shared = shared, .seal = seal};
    for (size_t i = 0; i < t->n; i++) {
        const size_t pieces = pieces_of(s.item = &t->items[i]);
        if (level < 0 ? s.item->level >= 0 : s.item->level == level)
            (void)crew_run(crew_for(threads, pieces), pieces, seal_piece, &s, NULL);
    }
}

/* A tensor that is loaded from a file into the shared memory; f32 goes straight to its place. */
struct loading {
    const struct tensors_source *how;
    int fd;
    const struct st_tensor *from;
    const struct tensors_item *to;
    uint8_t *shared;
    float *chunks; /* two per thread */
};

/* Loads values of the file, mixed with the present ones. */
static int load_values(struct loading *l, uint64_t at, size_t n, float *chunk, struct err *err)
{
    const struct tensors_item *to = l->to;
    struct st_tensor part = *l->from;
    part.count = n;
    part.offset = l->from->offset + at * st_dtype_bytes(l->from->dtype);
    part.bytes = n * st_dtype_bytes(l->from->dtype);
    const bool mixes = l->how->mix > 0, straight = to->dtype == ST_F32 && !mixes;
    float *place =
        straight ? (float *)(void *)(l->shared + to->offset) + at /* aligned: wide types first */
                 : chunk;
    int rc = st_read_f32(l->fd, l->how->path, &part, place, err);
    if (rc == 0 && mixes) {
        rc = read_values(to, l->shared, at, n, chunk + TENSORS_PIECE, err);
        arith_best()->ema(n, l->how->mix, chunk, chunk + TENSORS_PIECE);
        place = chunk + TENSORS_PIECE;
    }
    if (rc == 0 && !straight)
        write_values(to, l->shared, at, n, place);
    return rc;
}

/* Checks the old values just before they are overwritten, when they come into the cache anyway. */
static int load_piece(void *arg, size_t piece, unsigned thread, struct err *err)
{
    struct loading *l = arg;
    const struct tensors_item *to = l->to;
    const uint64_t at = (uint64_t)piece * TENSORS_PIECE;
    const size_t n = chunk_at(to, at), each = st_dtype_bytes(to->dtype);
    int rc = check_seal(to, l->shared, l->how->seal, at, err);
    if (rc < 0)
        return rc;
    if (l->how->users && !is_real(to->dtype) && to->dtype == l->from->dtype)
        return file_pread_all(l->fd, l->shared + to->offset + at * each, n * each,
                              l->from->offset + at * each, l->how->path, err);
    return load_values(l, at, n, l->chunks + (size_t)thread * 2 * TENSORS_PIECE, err);
}

static int expect(const struct st_tensor *from, const struct tensors_item *to, struct err *err)
{
    char theirs[ST_SHAPE_TEXT], ours[ST_SHAPE_TEXT];
    if (!to || to->level < 0)
        return err_set(err, -ERR_CONFIG, "version 0 has the tensor %s, which the trainer %s",
                       from->name, to ? "has, but the job does not synchronise" : "does not have");
    if (to->rank != from->rank || memcmp(to->shape, from->shape, to->rank * sizeof(*to->shape)))
        return err_set(err, -ERR_CONFIG, "the trainer's tensor %s is %s, but in version 0 it is %s",
                       from->name, st_shape_text(to->rank, to->shape, ours),
                       st_shape_text(from->rank, from->shape, theirs));
    return 0;
}

static int load_one(struct loading *l, const struct st_tensor *from, const struct tensors_item *to,
                    int threads, struct err *err)
{
    l->from = from;
    l->to = to;
    return crew_run(crew_for(threads, pieces_of(to)), pieces_of(to), load_piece, l, err);
}

int tensors_load(const struct tensors *t, const struct tensors_source *from, uint8_t *shared,
                 int threads, size_t *count, struct err *err)
{
    struct st st = {0};
    struct loading l = {
        .how = from,
        .fd = open(from->path, O_RDONLY | O_CLOEXEC),
        .shared = shared,
        .chunks = mem_try_array(crew_size(threads, CREW_MAX), 2 * TENSORS_PIECE * sizeof(float))};
    int rc =
        l.fd < 0 ? err_errno(err, "opening %s", from->path) : st_read(l.fd, from->path, &st, err);
    if (rc == 0 && !l.chunks)
        rc = err_set(err, -ENOMEM, "no memory to read weights");
    for (size_t i = 0; i < st.n_tensors && rc == 0; i++) {
        const struct tensors_item *to = tensors_find(t, st.tensors[i].name);
        if (from->users && (!to || to->level < 0))
            continue;
        rc = expect(&st.tensors[i], to, err);
        if (rc == 0)
            rc = load_one(&l, &st.tensors[i], to, threads, err);
        ++*count;
    }
    if (l.fd >= 0)
        (void)close(l.fd);
    st_release(&st);
    mem_free(l.chunks);
    return rc;
}

int tensors_keep(const struct tensors *t, const uint8_t *shared, const struct st_meta *pairs,
                 size_t n_pairs, const char *path, struct err *err)
{
    struct st_writer *w = st_writer_new();
    int rc = 0;
    for (size_t i = 0; i < n_pairs; i++)
        st_writer_meta(w, pairs[i].key, pairs[i].value);
    for (size_t i = 0; i < t->n && rc == 0; i++)
        if (t->items[i].level >= 0)
            rc = st_writer_add(w, t->items[i].name, t->items[i].dtype, t->items[i].rank,
                               t->items[i].shape, err);
    st_writer_local(w);
    if (rc == 0)
        rc = st_writer_open(w, path, err);
    for (size_t i = 0; i < t->n && rc == 0; i++)
        if (t->items[i].level >= 0)
            rc = st_writer_write(w, shared + t->items[i].offset,
                                 t->items[i].count * st_dtype_bytes(t->items[i].dtype), err);
    if (rc == 0)
        rc = st_writer_commit(w, NULL, NULL, err);
    st_writer_free(w);
    return rc;
}

/* Notes the names of a level's tensors of a dtype, or without one its buffers, one per line. */
static int note_names(struct st_writer *w, const struct tensors *t, int level, enum st_dtype dtype,
                      const char *key)
{
    struct buf names;
    int rc = 0;
    buf_init(&names, ST_HEADER_MAX);
    for (size_t i = 0; i < t->n && rc == 0; i++) {
        const struct tensors_item *item = &t->items[i];
        const bool named = dtype == ST_UNSPECIFIED ? item->buffer : item->dtype == dtype;
        if (item->level == level && named)
            rc = buf_printf(&names, "%s\n", item->name);
    }
    if (rc == 0 && names.len > 0)
        st_writer_meta(w, key, buf_str(&names));
    buf_release(&names);
    return rc;
}

/* Notes "skerry.BF16" and so on, so that an export can restore types; and the buffers. */
static int note_tensors(struct st_writer *w, const struct tensors *t, int level)
{
    static const enum st_dtype dtypes[] = {ST_BF16, ST_F16, ST_I64, ST_I32};
    char key[32];
    int rc = note_names(w, t, level, ST_UNSPECIFIED,
                        t->buffers == JOB_BUFFERS_FIRST ? LAYOUT_META_FIRST : LAYOUT_META_MEAN);
    for (size_t i = 0; i < sizeof(dtypes) / sizeof(*dtypes) && rc == 0; i++) {
        (void)snprintf(key, sizeof(key), "skerry.%s", st_dtype_name(dtypes[i]));
        rc = note_names(w, t, level, dtypes[i], key);
    }
    return rc;
}

static int write_tensor(struct st_writer *w, const struct tensors_item *item, const uint8_t *shared,
                        float *chunk, struct err *err)
{
    int rc = 0;
    for (uint64_t at = 0; at < item->count && rc == 0; at += TENSORS_PIECE) {
        const size_t n = chunk_at(item, at);
        bool finite = true;
        if ((rc = read_values(item, shared, at, n, chunk, err)) < 0)
            return rc;
        for (size_t i = 0; i < n; i++)
            finite &= isfinite(chunk[i]) != 0;
        rc = finite ? st_writer_write(w, chunk, n * sizeof(*chunk), err)
                    : err_set(err, -ERR_FORMAT,
                              "the trainer's tensor %s has a value that is no "
                              "finite number",
                              item->name);
    }
    return rc;
}

int tensors_save(const struct tensors *t, int level, const uint8_t *shared, const char *path,
                 uint8_t sha256[HASH_BYTES], uint64_t *ret_bytes, struct err *err)
{
    struct st_writer *w = st_writer_new();
    float *chunk = mem_try_array(TENSORS_PIECE, sizeof(*chunk));
    int rc = chunk ? 0 : err_set(err, -ENOMEM, "no memory to write weights");
    st_writer_meta(w, "format", "pt");
    if (rc == 0 && note_tensors(w, t, level) < 0)
        rc = err_set(err, -ERR_LIMIT, "the names of the trainer's tensors are too long");
    for (size_t i = 0; i < t->n && rc == 0; i++)
        if (t->items[i].level == level)
            rc = st_writer_add(w, t->items[i].name, ST_F32, t->items[i].rank, t->items[i].shape,
                               err);
    if (rc == 0)
        rc = st_writer_open(w, path, err);
    for (size_t i = 0; i < t->n && rc == 0; i++)
        if (t->items[i].level == level)
            rc = write_tensor(w, &t->items[i], shared, chunk, err);
    if (rc == 0)
        rc = st_writer_commit(w, sha256, ret_bytes, err);
    mem_free(chunk);
    st_writer_free(w);
    return rc;
}
