/* Pixels, patches and the embedding of time. */
#include "kernels/cuda/common.cuh"

/* One value of the patch matrix; `image` NULL: the other way round. */
template <typename T> struct patch_map {
    enum { STEP = 1 };
    T *patches;
    const float *image;
    float *image_out;
    int Ch, H, W, p;
    enum patch_order order;

    template <bool WIDE> __device__ void at(int64_t i, int64_t left) const
    {
        const int P = p * p * Ch, columns = W / p, inside = (int)(i % P);
        const int tokens = H / p * columns;
        const int64_t token = i / P, b = token / tokens;
        const int where = (int)(token % tokens);
        int c, y, x;
        if (order == PATCH_CPP) {
            c = inside / (p * p);
            y = inside / p % p;
            x = inside % p;
        } else {
            c = inside % Ch;
            y = inside / Ch / p;
            x = inside / Ch % p;
        }
        y += where / columns * p;
        x += where % columns * p;
        const int64_t pixel = ((b * Ch + c) * H + y) * W + x;
        if (image)
            narrow(patches + i, image[pixel]);
        else
            image_out[pixel] = widen(patches[i]);
    }
};

template <typename T>
static int patches(void *matrix, const float *image, float *image_out, const int dims[5],
                   enum patch_order order, struct stream *s)
{
    struct patch_map<T> f = {
        (T *)matrix, image, image_out, dims[1], dims[2], dims[3], dims[4], order
    };
    return map(s, f, (int64_t)dims[0] * dims[1] * dims[2] * dims[3], false);
}

extern "C" int cuda_patchify(struct device *dev, void *out, const float *img, int B, int Ch, int H,
                             int W, int p, enum patch_order order, enum dtype dt, struct stream *s)
{
    const int dims[5] = {B, Ch, H, W, p};
    return dt == DT_BF16 ? patches<bf16>(out, img, NULL, dims, order, s)
                         : patches<float>(out, img, NULL, dims, order, s);
}

extern "C" int cuda_unpatchify(struct device *dev, float *img, const void *in, int B, int Ch, int H,
                               int W, int p, enum patch_order order, enum dtype dt,
                               struct stream *s)
{
    const int dims[5] = {B, Ch, H, W, p};
    return dt == DT_BF16 ? patches<bf16>((void *)in, NULL, img, dims, order, s)
                         : patches<float>((void *)in, NULL, img, dims, order, s);
}

/* Pixel i of a sample's plane, all channels. */
struct from_u8_map {
    enum { STEP = 1 };
    float *img;
    const uint8_t *u8;
    int64_t n;
    int Ch;

    template <bool WIDE> __device__ void at(int64_t i, int64_t left) const
    {
        const int64_t b = i / n, at = i % n;
        for (int c = 0; c < Ch; c++)
            img[(b * Ch + c) * n + at] = add((float)u8[i * Ch + c] / 127.5f, -1.0f);
    }
};

extern "C" int cuda_image_from_u8(struct device *dev, float *img, const uint8_t *u8, int B, int Ch,
                                  int H, int W, struct stream *s)
{
    struct from_u8_map f = {img, u8, (int64_t)H * W, Ch};
    return map(s, f, B * f.n, false);
}

struct to_u8_map {
    enum { STEP = 1 };
    uint8_t *u8;
    const float *img;
    int64_t n;
    int Ch;

    /* NaN becomes 0, as every value below -1 does. */
    template <bool WIDE> __device__ void at(int64_t i, int64_t left) const
    {
        const int64_t b = i / n, at = i % n;
        for (int c = 0; c < Ch; c++) {
            float v = mul(add(img[(b * Ch + c) * n + at], 1.0f), 127.5f);
            u8[i * Ch + c] = v > 0 ? (uint8_t)rintf(v < 255.0f ? v : 255.0f) : (uint8_t)0;
        }
    }
};

extern "C" int cuda_image_to_u8(struct device *dev, uint8_t *u8, const float *img, int B, int Ch,
                                int H, int W, struct stream *s)
{
    struct to_u8_map f = {u8, img, (int64_t)H * W, Ch};
    return map(s, f, B * f.n, false);
}

template <typename T> struct time_map {
    enum { STEP = 1 };
    T *out;
    const float *t;
    int dim;

    template <bool WIDE> __device__ void at(int64_t i, int64_t left) const
    {
        const int half = dim / 2, column = (int)(i % dim), k = column % (half ? half : 1);
        /* A frequency has the digits of an f32; the angle is turned in f64 and exact. */
        float w = (float)exp(-log(10000.0) * k / (half ? half : 1));
        double turns = (double)mul(t[i / dim], w) * 0.31830988618379067154; /* half turns */
        float sine, cosine;
        sincospif((float)(turns - 2.0 * rint(turns * 0.5)), &sine, &cosine);
        narrow(out + i, column < half ? cosine : column < 2 * half ? sine : 0.0f);
    }
};

extern "C" int cuda_timestep_embed(struct device *dev, void *out, const float *t, int B, int dim,
                                   enum dtype dt, struct stream *s)
{
    struct time_map<bf16> h = {
        (bf16 *)out, t, dim
    };
    struct time_map<float> f = {
        (float *)out, t, dim
    };
    return dt == DT_BF16 ? map(s, h, (int64_t)B * dim, false) : map(s, f, (int64_t)B * dim, false);
}
