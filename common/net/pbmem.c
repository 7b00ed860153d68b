#include "common/net/pbmem.h"

#include <stdalign.h>

#define CHUNK_BYTES 8192
#define ALIGN 16

struct pbmem_chunk {
    struct pbmem_chunk *next;
    size_t used, cap;
    alignas(ALIGN) uint8_t data[];
};

static struct pbmem_chunk *chunk_new(struct pbmem *m, size_t size)
{
    size_t cap = size > CHUNK_BYTES ? size : CHUNK_BYTES;
    struct pbmem_chunk *c = mem_try(sizeof(*c) + cap);
    if (!c)
        return NULL;
    c->next = NULL;
    c->used = 0;
    c->cap = cap;
    if (m->current)
        m->current->next = c;
    else
        m->first = c;
    m->current = c;
    return c;
}

static void *arena_alloc(void *arg, size_t size)
{
    struct pbmem *m = arg;
    if (size > m->max_bytes)
        return NULL;
    size = (size + ALIGN - 1) & ~(size_t)(ALIGN - 1);
    if (size > m->max_bytes - m->used)
        return NULL;
    struct pbmem_chunk *c = m->current;
    if (!c || c->cap - c->used < size) {
        c = chunk_new(m, size);
        if (!c)
            return NULL;
    }
    void *p = c->data + c->used;
    c->used += size;
    m->used += size;
    return p;
}

static void arena_free(void *arg, void *p)
{
}

void pbmem_init(struct pbmem *m, size_t max_bytes)
{
    *m = (struct pbmem){
        .allocator = {.alloc = arena_alloc, .free = arena_free, .allocator_data = m},
        .max_bytes = max_bytes & ~(size_t)(ALIGN - 1),
    };
}

static void free_from(struct pbmem_chunk *c)
{
    while (c) {
        struct pbmem_chunk *next = c->next;
        mem_free(c);
        c = next;
    }
}

void pbmem_clear(struct pbmem *m)
{
    m->used = 0;
    if (!m->first)
        return;
    if (m->first->cap > CHUNK_BYTES) {
        pbmem_release(m);
        return;
    }
    free_from(m->first->next);
    m->first->next = NULL;
    m->first->used = 0;
    m->current = m->first;
}

void pbmem_release(struct pbmem *m)
{
    free_from(m->first);
    m->first = m->current = NULL;
    m->used = 0;
}
