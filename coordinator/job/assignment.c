#include "coordinator/job/assignment.h"

#include <fcntl.h>
#include <unistd.h>

#include "common/st/st.h"

#define BLOCK 16384 /* entries, which are read together */

struct reading {
    const struct assignment *a;
    int fd;
    uint64_t offset;
    int32_t *block;
    uint64_t *counts; /* of the partitions */
};

/* Counts n entries from `first` on, if they are trained on; false: one is of no partition. */
static bool count(const struct reading *r, uint64_t first, size_t n, bool trained)
{
    const size_t bytes = n * sizeof(*r->block);
    bool valid = pread(r->fd, r->block, bytes, (off_t)(r->offset + first * sizeof(*r->block))) ==
                 (ssize_t)bytes;
    for (size_t i = 0; valid && i < n; i++) {
        valid = r->block[i] >= 0 && (size_t)r->block[i] < r->a->n_sizes;
        if (valid && trained)
            r->counts[r->block[i]]++;
    }
    return valid;
}

static bool count_all(const struct reading *r)
{
    const struct assignment *a = r->a;
    uint64_t at = 0;
    for (size_t i = 0; i < a->n_runs; i++) {
        const uint64_t end = at + a->runs[i].samples * a->top;
        for (uint64_t n; at < end; at += n) {
            n = end - at < BLOCK ? end - at : BLOCK;
            if (!count(r, at, (size_t)n, a->runs[i].trained))
                return false;
        }
    }
    return memcmp(r->counts, a->sizes, a->n_sizes * sizeof(*a->sizes)) == 0;
}

static uint64_t samples(const struct assignment *a)
{
    uint64_t n = 0;
    for (size_t i = 0; i < a->n_runs; i++)
        n += a->runs[i].samples;
    return n;
}

bool assignment_is(const char *path, const struct assignment *a)
{
    const uint64_t shape[2] = {samples(a), a->top};
    const struct st_tensor *t = NULL;
    struct st st = {0};
    struct reading r = {.a = a, .fd = open(path, O_RDONLY | O_CLOEXEC)};
    bool is = r.fd >= 0 && st_read(r.fd, path, &st, NULL) == 0 &&
              st_expect(&st, "assign", ST_I32, 2, shape, &t, NULL) == 0;
    if (is) {
        r.offset = t->offset;
        r.block = mem_alloc_array(BLOCK, sizeof(*r.block));
        r.counts = mem_alloc_array(a->n_sizes, sizeof(*r.counts));
        is = count_all(&r);
        mem_free(r.block);
        mem_free(r.counts);
    }
    st_release(&st);
    if (r.fd >= 0)
        (void)close(r.fd);
    return is;
}

void assignment_release(struct assignment *a)
{
    mem_free(a->runs);
    mem_free(a->sizes);
    *a = (struct assignment){0};
}
