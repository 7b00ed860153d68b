#include "coordinator/job/alike.h"

#include <fcntl.h>
#include <unistd.h>

#include "common/base/hash.h"
#include "common/data/shard_alike.h"
#include "common/st/st.h"

#define TENSORS_MAX 8 /* no file that is compared has more */

/* Two tensors of one name, type and shape. */
struct pair {
    int a, b; /* descriptors */
    const struct st_tensor *x, *y;
};

/* What blocks of a pair have in common. */
struct found {
    uint64_t looked, equal;
    bool near; /* all blocks of f32 are */
};

static bool read_block(int fd, const struct st_tensor *t, uint64_t first, size_t n, void *out)
{
    const size_t each = st_dtype_bytes(t->dtype);
    return pread(fd, out, n * each, (off_t)(t->offset + first * each)) == (ssize_t)(n * each);
}

static bool is_near(const float *x, const float *y, size_t n)
{
    double square = 0, all = 0;
    for (size_t i = 0; i < n; i++) {
        square += ((double)x[i] - y[i]) * ((double)x[i] - y[i]);
        all += (double)y[i] * y[i];
    }
    return square <= ALIKE_APART * ALIKE_APART * all; /* false if one is not a number */
}

/* Entries of any type. */
union block {
    uint64_t room[ALIKE_BLOCK];
    uint8_t bytes[ALIKE_BLOCK * sizeof(uint64_t)];
    float f32[ALIKE_BLOCK];
};

/* Looks at n entries from `first` on; false: they cannot be read. */
static bool look(const struct pair *p, uint64_t first, size_t n, struct found *f)
{
    union block x, y;
    const size_t each = st_dtype_bytes(p->x->dtype);
    if (!read_block(p->a, p->x, first, n, &x) || !read_block(p->b, p->y, first, n, &y))
        return false;
    for (size_t i = 0; i < n; i++)
        f->equal += memcmp(x.bytes + i * each, y.bytes + i * each, each) == 0;
    f->looked += n;
    if (p->x->dtype == ST_F32)
        f->near &= is_near(x.f32, y.f32, n);
    return true;
}

static bool look_all(const struct pair *p, struct found *f)
{
    const uint64_t count = p->x->count, blocks = (count + ALIKE_BLOCK - 1) / ALIKE_BLOCK;
    const size_t n = count < ALIKE_BLOCK ? (size_t)count : ALIKE_BLOCK;
    *f = (struct found){.near = true};
    for (uint64_t i = 0; i < blocks && i < ALIKE_BLOCKS; i++) {
        uint64_t at = i;
        if (blocks > ALIKE_BLOCKS) {
            hash_random(&at, sizeof(at));
            at %= blocks;
        }
        /* The last is as large as the others: of a few small numbers rounding is a larger part. */
        const uint64_t rest = count - n, first = at * ALIKE_BLOCK;
        if (!look(p, first < rest ? first : rest, n, f))
            return false;
    }
    return f->looked > 0;
}

static bool same_tensor(enum alike_of of, const struct pair *p)
{
    struct found f;
    if (p->y == NULL || p->x->dtype != p->y->dtype || p->x->rank != p->y->rank ||
        memcmp(p->x->shape, p->y->shape, p->x->rank * sizeof(*p->x->shape)) != 0 ||
        !look_all(p, &f))
        return false;
    if (of == ALIKE_ASSIGNMENT)
        return (double)f.equal >= ALIKE_EQUAL * (double)f.looked;
    return p->x->dtype == ST_F32 ? f.near : f.equal == f.looked;
}

static bool same_tensors(enum alike_of of, const char *a, const char *b)
{
    struct st x = {0}, y = {0};
    struct pair p = {.a = open(a, O_RDONLY | O_CLOEXEC), .b = open(b, O_RDONLY | O_CLOEXEC)};
    bool same = p.a >= 0 && p.b >= 0 && st_read(p.a, a, &x, NULL) == 0 &&
                st_read(p.b, b, &y, NULL) == 0 && x.n_tensors == y.n_tensors &&
                x.n_tensors <= TENSORS_MAX;
    for (size_t i = 0; same && i < x.n_tensors; i++) {
        p.x = &x.tensors[i];
        p.y = st_find(&y, p.x->name);
        same = same_tensor(of, &p);
    }
    st_release(&x);
    st_release(&y);
    if (p.a >= 0)
        (void)close(p.a);
    if (p.b >= 0)
        (void)close(p.b);
    return same;
}

bool alike_files(enum alike_of of, const char *a, const char *b)
{
    switch (of) {
    case ALIKE_ASSIGNMENT:
    case ALIKE_NUMBERS:
        return same_tensors(of, a, b);
    case ALIKE_LATENTS:
        return shard_alike(a, b, ALIKE_PICTURES, ALIKE_APART);
    default:
        return false;
    }
}
