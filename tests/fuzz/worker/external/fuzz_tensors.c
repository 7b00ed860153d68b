/* Any hello of a trainer: refused with a sentence, or tensors that lie apart in the shared file. */
#include <stdlib.h>

#include "common/net/pbmem.h"
#include "worker/external/tensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void use(struct tensors *t)
{
    char *patterns[] = {(char *)(uintptr_t) "a* b*", (char *)(uintptr_t) "[c-z]*"};
    const struct job_trainer jobs[] = {{0}, {.levels = {patterns, 2}}, {0}};
    const struct tensors_cut cuts[] = {
        {.n_levels = 1},
        {.n_levels = 2, .block_level = {0, 1}},
        {.n_levels = 3, .block_level = {0, 1, 2}, .n_blocks = 3},
    };
    struct err err = {0};
    const size_t which = t->n % 3;
    if (tensors_choose(t, &jobs[which], &cuts[which], &err) < 0) {
        if (err.msg[0] == '\0')
            abort();
        return;
    }
    for (size_t i = 0; i < t->n; i++) {
        const struct tensors_item *item = &t->items[i];
        if (item->level >= cuts[which].n_levels)
            abort();
        if (item->level >= 0 &&
            (item->offset < t->header.len ||
             item->offset + item->count * st_dtype_bytes(item->dtype) > t->bytes ||
             tensors_find(t, item->name) != item))
            abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct pbmem mem;
    struct tensors t = {0};
    struct err err = {0};
    pbmem_init(&mem, 64u << 20);
    const Skerry__Trainer__V1__Hello *hello =
        skerry__trainer__v1__hello__unpack(pbmem_allocator(&mem), size, data);
    if (hello && tensors_from_hello(hello, &t, &err) == 0)
        use(&t);
    else if (hello && err.msg[0] == '\0')
        abort();
    tensors_release(&t);
    pbmem_release(&mem);
    return 0;
}
