/* Threads of a block as fibers; see kernels/cuda/platform.cuh in this folder. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/platform.cuh"

enum { STACK = 64 << 10, MAX_THREADS = 1024 };

struct fiber {
    struct emu_thread at;
    void *sp;
    char *stack;
    bool done;
};

struct warp {
    unsigned char slot[32][16];
    int arrived, generation;
};

struct emu_thread *emu_now;
unsigned char *emu_shared;

static struct fiber fibers[MAX_THREADS];
static struct warp warps[MAX_THREADS / 32];
static int live, arrived, generation, any, any_result;
static bool progress;
static void *scheduler_sp;
static void (*body_now)(void *);
static void *arg_now;

/* Saves the callee's registers on the stack, stores the stack in *from and goes to `to`. */
extern "C" void emu_switch(void **from, void *to);
__asm__(".text\n.globl emu_switch\nemu_switch:\n"
        "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
        "mov %rsp,(%rdi)\nmov %rsi,%rsp\n"
        "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n");

static struct fiber *self(void)
{
    return (struct fiber *)emu_now;
}

static void yield(void)
{
    emu_switch(&self()->sp, scheduler_sp);
}

static void barrier(void)
{
    int mine = generation;
    progress = true;
    if (++arrived == live) {
        arrived = 0;
        any_result = any;
        any = 0;
        generation++;
    }
    while (generation == mine)
        yield();
}

void __syncthreads(void)
{
    barrier();
}

int __syncthreads_or(int v)
{
    any |= v != 0;
    barrier();
    int r = any_result;
    barrier();
    return r;
}

static void meet(struct warp *w)
{
    int mine = w->generation;
    progress = true;
    if (++w->arrived == 32) {
        w->arrived = 0;
        w->generation++;
    }
    while (w->generation == mine)
        yield();
}

void __syncwarp(void)
{
    meet(&warps[emu_now->linear / 32]);
}

void emu_warp_share(const void *mine, size_t bytes, unsigned char all[32][16])
{
    struct warp *w = &warps[emu_now->linear / 32];
    memcpy(w->slot[emu_now->linear & 31], mine, bytes);
    meet(w);
    memcpy(all, w->slot, sizeof w->slot);
    meet(w);
}

static void enter(void)
{
    body_now(arg_now);
    struct fiber *f = self();
    f->done = true;
    progress = true;
    if (--live && arrived == live) { /* a thread that has left counts as arrived */
        arrived = 0;
        any_result = any;
        any = 0;
        generation++;
    }
    yield();
    abort();
}

static void start(struct fiber *f)
{
    if (!f->stack)
        f->stack = (char *)aligned_alloc(16, STACK);
    void **sp = (void **)(f->stack + STACK);
    *--sp = 0;
    *--sp = (void *)enter;
    sp -= 6;
    memset(sp, 0, 6 * sizeof *sp);
    f->sp = sp;
    f->done = false;
}

static void run_block(int threads, bool reverse)
{
    live = threads;
    arrived = any = 0;
    memset(warps, 0, sizeof warps);
    while (live) {
        progress = false;
        for (int i = 0; i < threads; i++) {
            struct fiber *f = &fibers[reverse ? threads - 1 - i : i];
            if (f->done)
                continue;
            emu_now = &f->at;
            emu_switch(&scheduler_sp, f->sp);
        }
        if (!progress) {
            fprintf(stderr, "emulate: threads wait for others that do not come\n");
            abort();
        }
    }
}

void emu_run(dim3 grid, dim3 block, size_t shared, void (*body)(void *arg), void *arg)
{
    const char *order = getenv("SKERRY_EMULATE_REVERSE");
    bool reverse = order && *order == '1';
    int threads = (int)(block.x * block.y * block.z);
    if (threads % 32 || threads > MAX_THREADS || grid.y > 65535 || grid.z > 65535 ||
        shared > 227 * 1024) {
        fprintf(stderr, "emulate: %d threads, grid (%u,%u,%u), %zu bytes shared do not fit\n",
                threads, grid.x, grid.y, grid.z, shared);
        abort();
    }
    emu_shared = (unsigned char *)aligned_alloc(64, (shared + 127) / 64 * 64);
    body_now = body;
    arg_now = arg;
    for (unsigned z = 0; z < grid.z; z++)
        for (unsigned y = 0; y < grid.y; y++)
            for (unsigned x = 0; x < grid.x; x++) {
                memset(emu_shared, 0xff, shared);
                for (int i = 0; i < threads; i++) {
                    struct emu_thread *t = &fibers[i].at;
                    t->linear = i;
                    t->thread.x = (unsigned)i % block.x;
                    t->thread.y = (unsigned)i / block.x % block.y;
                    t->thread.z = (unsigned)i / block.x / block.y;
                    t->block.x = x, t->block.y = y, t->block.z = z;
                    t->block_dim = block, t->grid_dim = grid;
                    start(&fibers[i]);
                }
                run_block(threads, reverse);
            }
    free(emu_shared);
}
