#include "worker/net/resize.h"

enum { CHANNELS = 3 };

void resize_down(const uint8_t *high, int side, int factor, uint8_t *low)
{
    const int small = side / factor, all = factor * factor;
    for (int y = 0; y < small; y++)
        for (int x = 0; x < small; x++)
            for (int c = 0; c < CHANNELS; c++) {
                int sum = all / 2;
                for (int i = 0; i < all; i++)
                    sum += high[((y * factor + i / factor) * side + x * factor + i % factor) *
                                    CHANNELS +
                                c];
                low[(y * small + x) * CHANNELS + c] = (uint8_t)(sum / all);
            }
}

/* Two neighbours of a place in a row of `side`, and the weight of the second in 2 * factor. */
struct between {
    int first, second, weight;
};

static struct between between(int at, int side, int factor)
{
    const int place = 2 * at + 1 - factor; /* distance of the centres, in units of 1/(2 factor) */
    if (place < 0)
        return (struct between){0, 0, 0};
    const int first = place / (2 * factor), second = first + 1 < side ? first + 1 : first;
    return (struct between){first, second, place % (2 * factor)};
}

void resize_up(const uint8_t *low, int side, int factor, uint8_t *high)
{
    const int large = side * factor, unit = 2 * factor, all = unit * unit;
    for (int y = 0; y < large; y++) {
        const struct between v = between(y, side, factor);
        const uint8_t *top = low + (ptrdiff_t)v.first * side * CHANNELS;
        const uint8_t *bottom = low + (ptrdiff_t)v.second * side * CHANNELS;
        for (int x = 0; x < large; x++) {
            const struct between h = between(x, side, factor);
            for (int c = 0; c < CHANNELS; c++) {
                const int left = h.first * CHANNELS + c, right = h.second * CHANNELS + c;
                const int above = (unit - h.weight) * top[left] + h.weight * top[right];
                const int below = (unit - h.weight) * bottom[left] + h.weight * bottom[right];
                *high++ = (uint8_t)(((unit - v.weight) * above + v.weight * below + all / 2) / all);
            }
        }
    }
}
