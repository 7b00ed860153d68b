/* Products of a warpgroup on the CPU: stands in for the real file of this name, whose comments hold
 * here.  Products and copies are done as soon as they may be, when they are called, or with
 * SKERRY_EMULATE_REVERSE=1 as late as they may be, when they are waited for. */
#ifndef KERNELS_CUDA_WGMMA_CUH
#define KERNELS_CUDA_WGMMA_CUH

#include <functional>
#include <stdlib.h>
#include <vector>

#include "kernels/cuda/platform.cuh"

/* Work that a thread has begun, in order. */
struct emu_begun {
    std::vector<std::function<void()>> copies, products;
};

static struct emu_begun emu_begun[1024];

static inline void emu_begin(std::vector<std::function<void()>> &begun, std::function<void()> work)
{
    static const char *const order = getenv("SKERRY_EMULATE_REVERSE");
    if (order && *order == '1')
        begun.push_back(work);
    else
        work();
}

static inline void emu_end(std::vector<std::function<void()>> &begun)
{
    for (auto &work : begun)
        work();
    begun.clear();
}

struct wgmma_tile {
    const unsigned char *p;
    uint32_t across, down; /* across may be a distance to another tile */
};

static inline struct wgmma_tile wgmma_tile_at(const void *p, unsigned across, unsigned down)
{
    return {(const unsigned char *)p, across, down};
}

static inline void wgmma_begin(void)
{
}
static inline void wgmma_wait(void)
{
    emu_end(emu_begun[emu_now->linear].products);
}
static inline void wgmma_publish(void)
{
}
static inline void copy_async_wait(void)
{
    emu_end(emu_begun[emu_now->linear].copies);
}
template <int N> static inline void wgmma_done(float (&d)[N][4])
{
}

static inline void copy_async(void *to, const void *from)
{
    emu_begin(emu_begun[emu_now->linear].copies, [=]() { memcpy(to, from, 16); });
}

/* Row or column i, and k of the sum. */
static inline float emu_tile(const struct wgmma_tile &t, bool columns, int i, int k)
{
    const unsigned char *p = t.p + i / 8 * (int32_t)t.down + k / 8 * (int32_t)t.across;
    bf16 v;
    memcpy(&v, p + (columns ? i % 8 * 2 + k % 8 * 16 : i % 8 * 16 + k % 8 * 2), sizeof v);
    return bf16_to_f32(v);
}

template <int TA, int TB, int N>
static inline void emu_ss(float (&d)[N][4], struct wgmma_tile a, struct wgmma_tile b, int add)
{
    const int lane = emu_now->linear & 31, first = emu_now->linear / 32 % 4 * 16;
    for (int n = 0; n < N; n++)
        for (int i = 0; i < 4; i++) {
            float sum = add ? d[n][i] : 0;
            for (int k = 0; k < 16; k++)
                sum += emu_tile(a, TA, first + lane / 4 + i / 2 * 8, k) *
                       emu_tile(b, TB, n * 8 + lane % 4 * 2 + i % 2, k);
            d[n][i] = sum;
        }
}

template <int TB, int N>
static inline void emu_rs(float (&d)[N][4], const uint32_t (&a)[4], struct wgmma_tile b)
{
    unsigned char as[32][16];
    const int lane = emu_now->linear & 31;
    emu_warp_share(a, 16, as);
    for (int n = 0; n < N; n++)
        for (int i = 0; i < 4; i++)
            for (int k = 0; k < 16; k++) {
                uint32_t row[4];
                memcpy(row, as[lane / 4 * 4 + k % 8 / 2], 16);
                d[n][i] += emu_half(row[i / 2 + 2 * (k >= 8)], k % 2) *
                           emu_tile(b, TB, n * 8 + lane % 4 * 2 + i % 2, k);
            }
}

template <int TA, int TB, int N>
static inline void wgmma_ss(float (&d)[N][4], struct wgmma_tile a, struct wgmma_tile b, int add)
{
    emu_begin(emu_begun[emu_now->linear].products, [=, &d]() { emu_ss<TA, TB>(d, a, b, add); });
}

/* a is read when the product is done: its registers are the product's until then. */
template <int TB, int N>
static inline void wgmma_rs(float (&d)[N][4], const uint32_t (&a)[4], struct wgmma_tile b)
{
    emu_begin(emu_begun[emu_now->linear].products, [=, &d, &a]() { emu_rs<TB>(d, a, b); });
}

#endif
