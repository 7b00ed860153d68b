#include "common/outer/arith.h"

#ifdef __x86_64__

#include <immintrin.h>

#define ARITH_OWN
#include "common/outer/arith_impl.h"

/* Doubles of a vector, and their operations. */
#define DOUBLES 4
#define STRIDE 8 /* sums of squares that stay in registers, of two arrays */
typedef __m256d vd;

static inline vd vd_set(double x)
{
    return _mm256_set1_pd(x);
}

static inline vd vd_load(const double *x)
{
    return _mm256_loadu_pd(x);
}

static inline void vd_store(double *to, vd x)
{
    _mm256_storeu_pd(to, x);
}

/* From memory a conversion takes one step, from a register two. */
static inline vd vd_of_floats(const float *x)
{
    return _mm256_cvtps_pd(_mm_loadu_ps(x));
}

static inline void vd_to_floats(float *to, vd x)
{
    _mm_storeu_ps(to, _mm256_cvtpd_ps(x));
}

static inline vd vd_fma(vd a, vd b, vd c)
{
    return _mm256_fmadd_pd(a, b, c);
}

#include "common/outer/arith_wide.inc"

/* 16 bytes hold 32 elements: even ones in the low nibbles, odd ones in the high. */
#define GROUP 32
#define WHOLE 64

/* The values of the codes 0..7 times w s, as doubles cut into halves: a look-up of 32-bit
 * lanes reads the low three bits of a code.  The fourth is the sign: it is shifted to the top with
 * all four bits, and the upper halves are xored beforehand with the lower three. */
struct values {
    __m256i high, low;
};

static inline struct values values_of(double ws)
{
    const __m256d w = _mm256_set1_pd(ws);
    const __m256 a = _mm256_castpd_ps(_mm256_mul_pd(w, _mm256_loadu_pd(e3m0_value)));
    const __m256 b = _mm256_castpd_ps(_mm256_mul_pd(w, _mm256_loadu_pd(e3m0_value + 4)));
    const __m256i high = _mm256_castps_si256(_mm256_shuffle_ps(a, b, _MM_SHUFFLE(3, 1, 3, 1)));
    const __m256i low = _mm256_castps_si256(_mm256_shuffle_ps(a, b, _MM_SHUFFLE(2, 0, 2, 0)));
    const __m256i turned =
        _mm256_setr_epi32(0, 1 << 28, 2 << 28, 3 << 28, 4 << 28, 5 << 28, 6 << 28, 7 << 28);
    return (struct values){
        _mm256_xor_si256(_mm256_permute4x64_epi64(high, _MM_SHUFFLE(3, 1, 2, 0)), turned),
        _mm256_permute4x64_epi64(low, _MM_SHUFFLE(3, 1, 2, 0))};
}

/* Adds the values of eight codes, in the low bits of 32-bit lanes: lanes 0, 1, 4, 5 go to
 * sums[0], lanes 2, 3, 6, 7 to sums[1]. */
static inline void add_eight(const struct values *v, __m256i codes, __m256d sums[2])
{
    const __m256i low = _mm256_permutevar8x32_epi32(v->low, codes);
    const __m256i high =
        _mm256_xor_si256(_mm256_permutevar8x32_epi32(v->high, codes), _mm256_slli_epi32(codes, 28));
    sums[0] = _mm256_add_pd(sums[0], _mm256_castsi256_pd(_mm256_unpacklo_epi32(low, high)));
    sums[1] = _mm256_add_pd(sums[1], _mm256_castsi256_pd(_mm256_unpackhi_epi32(low, high)));
}

/* Stores the even and odd elements of add_eight() in their order. */
static inline void store_sixteen(const __m256d even[2], const __m256d odd[2], double *out)
{
    for (int k = 0; k < 2; k++) {
        const __m256d a = _mm256_unpacklo_pd(even[k], odd[k]);
        const __m256d b = _mm256_unpackhi_pd(even[k], odd[k]);
        _mm256_storeu_pd(out + 4 * k, _mm256_permute2f128_pd(a, b, 0x20));
        _mm256_storeu_pd(out + 4 * k + 8, _mm256_permute2f128_pd(a, b, 0x31));
    }
}

static inline void add_group(const struct arith_inputs *in, const struct values *values, size_t i,
                             double *acc)
{
    __m256d even[2][2], odd[2][2];
    for (int j = 0; j < 4; j++)
        even[j / 2][j % 2] = odd[j / 2][j % 2] = _mm256_setzero_pd();
    for (size_t c = 0; c < in->k; c++) {
        const uint8_t *p = (const uint8_t *)in->payload[c] + i / 2;
        for (int j = 0; j < 2; j++) {
            const __m256i t = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(p + 8 * j)));
            add_eight(&values[c], t, even[j]);
            add_eight(&values[c], _mm256_srli_epi32(t, 4), odd[j]);
        }
    }
    for (int j = 0; j < 2; j++)
        store_sixteen(even[j], odd[j], acc + i + 16 * j);
}

static size_t accumulate_groups(const struct arith_inputs *in, size_t block, size_t n, double *acc)
{
    struct values values[ARITH_INPUTS_MAX];
    const size_t first = block * CODEC_BLOCK;
    size_t i = 0;
    for (size_t c = 0; c < in->k; c++)
        values[c] = values_of(e3m0_weight(in, c, block));
    for (; i + GROUP <= n; i += GROUP)
        add_group(in, values, first + i, acc);
    return i;
}

/* ---- sums in whole units ----
 *
 * An input's least value is a whole number below 2^24 of units: four digits of six bits.  A code
 * means +-2^0 to 2^6 of it, which is a byte.  One instruction multiplies the bytes of two inputs by
 * a digit of either and adds the two; the sums of four pairs, of which none is above
 * 4 * 2 * 63 * 64, fit in 16 bits. */
#define DIGITS 4
#define PAIRS 4

/* Digits of two inputs, byte by byte, twice. */
typedef uint32_t digits[DIGITS];

static inline void digits_of(const int32_t *least, digits *ret)
{
    const __m128i units = _mm_loadu_si128((const __m128i *)(const void *)least);
    const __m128i mask = _mm_set1_epi32(63);
    __m128i digit[DIGITS];
    for (int d = 0; d < DIGITS; d++) {
        const __m128i six = _mm_and_si128(_mm_srli_epi32(units, 6 * d), mask);
        const __m128i two = _mm_or_si128(six, _mm_srli_epi64(six, 24));
        digit[d] = _mm_or_si128(two, _mm_slli_epi32(two, 16));
    }
    const __m128i a = _mm_unpacklo_epi32(digit[0], digit[1]);
    const __m128i b = _mm_unpacklo_epi32(digit[2], digit[3]);
    const __m128i e = _mm_unpackhi_epi32(digit[0], digit[1]);
    const __m128i f = _mm_unpackhi_epi32(digit[2], digit[3]);
    _mm_storeu_si128((__m128i *)(void *)ret[0], _mm_unpacklo_epi64(a, b));
    _mm_storeu_si128((__m128i *)(void *)ret[1], _mm_unpacklo_epi64(e, f));
}

/* A block of eight inputs at most.  Rows have 16 elements each: four in turn have the even elements
 * 0 to 14 and 32 to 46, those 16 to 30 and 48 to 62, and the odd ones behind either. */
#define ROWS (CODEC_BLOCK / 16)

struct rows {
    __m256i value[ROWS][PAIRS];  /* bytes of two inputs */
    __m256i digit[DIGITS][ROWS]; /* 16-bit sums */
    __m256i sum[2 * ROWS];       /* 32-bit sums of eight elements each: four of either half of 64 */
};

/* The values of the codes in the low halves of bytes, in units of the least.  Code 8 is a negative
 * zero, so 0. */
static inline __m256i whole_values(__m256i bytes)
{
    const __m128i values =
        _mm_setr_epi8(0, 1, 2, 4, 8, 16, 32, 64, 0, -1, -2, -4, -8, -16, -32, -64);
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(values),
                               _mm256_and_si256(bytes, _mm256_set1_epi8(15)));
}

/* The values of the blocks at a and b, which become pair p. */
static inline void rows_read(struct rows *r, const uint8_t *a, const uint8_t *b, size_t p)
{
    arith_fetch_next(a, CODEC_BLOCK / 2);
    arith_fetch_next(b, CODEC_BLOCK / 2);
    for (size_t i = 0; i < ROWS; i += 4, a += 32, b += 32) {
        const __m256i x = _mm256_loadu_si256((const __m256i *)(const void *)a);
        const __m256i y = _mm256_loadu_si256((const __m256i *)(const void *)b);
        const __m256i even_x = whole_values(x), odd_x = whole_values(_mm256_srli_epi16(x, 4));
        const __m256i even_y = whole_values(y), odd_y = whole_values(_mm256_srli_epi16(y, 4));
        r->value[i][p] = _mm256_unpacklo_epi8(even_x, even_y);
        r->value[i + 1][p] = _mm256_unpackhi_epi8(even_x, even_y);
        r->value[i + 2][p] = _mm256_unpacklo_epi8(odd_x, odd_y);
        r->value[i + 3][p] = _mm256_unpackhi_epi8(odd_x, odd_y);
    }
}

static inline __attribute__((always_inline)) void rows_multiply(struct rows *r, digits *digit,
                                                                size_t pairs)
{
    for (size_t d = 0; d < DIGITS; d++) {
        __m256i two[PAIRS];
        for (size_t p = 0; p < pairs; p++)
            two[p] = _mm256_set1_epi32((int)digit[p][d]);
        for (size_t i = 0; i < ROWS; i++) {
            __m256i x = _mm256_maddubs_epi16(two[0], r->value[i][0]);
            for (size_t p = 1; p < pairs; p++)
                x = _mm256_add_epi16(x, _mm256_maddubs_epi16(two[p], r->value[i][p]));
            r->digit[d][i] = x;
        }
    }
}

/* Puts the digits of row i together. */
static inline void row_sum(const struct rows *r, size_t i, __m256i sum[2])
{
    const __m256i factors = _mm256_set1_epi32(64 << 16 | 1);
    const __m256i x[DIGITS] = {r->digit[0][i], r->digit[1][i], r->digit[2][i], r->digit[3][i]};
    const __m256i a = _mm256_madd_epi16(_mm256_unpacklo_epi16(x[0], x[1]), factors);
    const __m256i b = _mm256_madd_epi16(_mm256_unpackhi_epi16(x[0], x[1]), factors);
    const __m256i e = _mm256_madd_epi16(_mm256_unpacklo_epi16(x[2], x[3]), factors);
    const __m256i f = _mm256_madd_epi16(_mm256_unpackhi_epi16(x[2], x[3]), factors);
    sum[0] = _mm256_add_epi32(a, _mm256_slli_epi32(e, 12));
    sum[1] = _mm256_add_epi32(b, _mm256_slli_epi32(f, 12));
}

static inline void rows_sum(struct rows *r, bool more)
{
    for (size_t i = 0; i < ROWS; i += i % 4 ? 3 : 1) { /* rows with even elements */
        __m256i even[2], odd[2], *out = r->sum + i / 4 * 8 + i % 4 * 4;
        row_sum(r, i, even);
        row_sum(r, i + 2, odd);
        for (int j = 0; j < 2; j++) {
            const __m256i low = _mm256_unpacklo_epi32(even[j], odd[j]);
            const __m256i high = _mm256_unpackhi_epi32(even[j], odd[j]);
            out[2 * j] = more ? _mm256_add_epi32(out[2 * j], low) : low;
            out[2 * j + 1] = more ? _mm256_add_epi32(out[2 * j + 1], high) : high;
        }
    }
}

/* From memory a conversion takes one step, from a register two. */
static inline void rows_store(const struct rows *r, double unit, double *out)
{
    const __m128i *four = (const void *)r->sum;
    const __m256d u = _mm256_set1_pd(unit);
    for (size_t i = 0; i < CODEC_BLOCK; i += WHOLE, four += WHOLE / 4)
        for (size_t j = 0; j < WHOLE / 8; j++) {
            const __m256d a = _mm256_cvtepi32_pd(_mm_load_si128(four + 2 * j));
            const __m256d b = _mm256_cvtepi32_pd(_mm_load_si128(four + 2 * j + 1));
            _mm256_storeu_pd(out + i + 4 * j, _mm256_mul_pd(a, u));
            _mm256_storeu_pd(out + i + WHOLE / 2 + 4 * j, _mm256_mul_pd(b, u));
        }
}

static void accumulate_whole(const struct arith_inputs *in, const struct whole *w, size_t first,
                             double *acc)
{
    struct rows r;
    for (size_t c = 0; c < in->k; c += 2 * PAIRS) {
        digits digit[PAIRS];
        size_t pairs = 0;
        digits_of(w->least + c, digit);
        digits_of(w->least + c + PAIRS, digit + PAIRS / 2);
        for (; pairs < PAIRS && c + 2 * pairs < in->k; pairs++) {
            const size_t a = c + 2 * pairs, b = a + 1 < in->k ? a + 1 : a; /* whose digits are 0 */
            rows_read(&r, (const uint8_t *)in->payload[a] + first / 2,
                      (const uint8_t *)in->payload[b] + first / 2, pairs);
        }
        if (pairs == PAIRS)
            rows_multiply(&r, digit, PAIRS);
        else
            rows_multiply(&r, digit, pairs);
        rows_sum(&r, c > 0);
    }
    rows_store(&r, w->unit, acc + first);
}

/* Codes eight elements with the arithmetic of encode_e3m0_block(); returns their codes. */
static inline __m256i encode_eight(const float *x, __m256i lowest, __m256i half, float *q)
{
    const __m256i u = _mm256_castps_si256(_mm256_loadu_ps(x));
    const __m256i a = _mm256_and_si256(u, _mm256_set1_epi32(INT32_MAX));
    const __m256i sign = _mm256_and_si256(u, _mm256_set1_epi32(INT32_MIN));
    const __m256i less = _mm256_cmpgt_epi32(half, a); /* below half of the lowest value: code 0 */
    __m256i m = _mm256_srai_epi32(_mm256_sub_epi32(a, lowest), 23);
    m = _mm256_max_epi32(m, _mm256_set1_epi32(1));
    m = _mm256_min_epi32(m, _mm256_set1_epi32(7));
    const __m256i value = _mm256_add_epi32(half, _mm256_slli_epi32(m, 23));
    _mm256_storeu_ps(q,
                     _mm256_castsi256_ps(_mm256_andnot_si256(less, _mm256_or_si256(value, sign))));
    return _mm256_andnot_si256(less, _mm256_or_si256(m, _mm256_srli_epi32(sign, 28)));
}

/* Codes 32 elements at a time.  Packing works on halves of vectors, so at the end the bytes of
 * both halves are interleaved in pairs. */
static inline void encode_e3m0_own(size_t n, const float *x, uint32_t s, uint8_t *out, float *q)
{
    const __m256i lowest = _mm256_set1_epi32((int)(bits_of(0.75f * float_of(s)) - 7 * EXP_ONE));
    const __m256i half = _mm256_set1_epi32((int)(s - 7 * EXP_ONE));
    const __m256i neighbours = _mm256_set1_epi32(16 << 16 | 1); /* factors of (even, odd) */
    size_t i = 0;
    for (; i + GROUP <= n; i += GROUP) {
        __m256i code[4];
        for (size_t j = 0; j < 4; j++)
            code[j] = encode_eight(x + i + 8 * j, lowest, half, q + i + 8 * j);
        const __m256i a = _mm256_madd_epi16(_mm256_packs_epi32(code[0], code[1]), neighbours);
        const __m256i b = _mm256_madd_epi16(_mm256_packs_epi32(code[2], code[3]), neighbours);
        const __m256i c = _mm256_packus_epi32(a, b), bytes = _mm256_packus_epi16(c, c);
        const __m128i low = _mm256_castsi256_si128(bytes),
                      high = _mm256_extracti128_si256(bytes, 1);
        _mm_storeu_si128((__m128i *)(void *)(out + i / 2), _mm_unpacklo_epi16(low, high));
    }
    if (i < n)
        encode_e3m0_block(n - i, x + i, s, out + i / 2, q + i);
}

/* Eight floats of a table. */
static inline __m256 values_at(const double *table)
{
    return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm256_cvtpd_ps(_mm256_loadu_pd(table))),
                                _mm256_cvtpd_ps(_mm256_loadu_pd(table + 4)), 1);
}

/* Decodes groups of eight, and returns their number of elements: each byte goes to a 64-bit lane,
 * whose halves have one code each in their low four bits.  Three bits pick one of eight floats,
 * the fourth picks the table. */
static inline size_t decode_e3m0_own(size_t n, const uint8_t *in, float s, float *x)
{
    const __m256 plus = values_at(e3m0_value), minus = values_at(e3m0_value + 8);
    const __m256 scale = _mm256_set1_ps(s);
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        int32_t four;
        memcpy(&four, in + i / 2, sizeof four);
        __m256i code = _mm256_cvtepu8_epi64(_mm_cvtsi32_si128(four));
        code = _mm256_or_si256(code, _mm256_slli_epi64(code, 28));
        const __m256 value = _mm256_blendv_ps(_mm256_permutevar8x32_ps(plus, code),
                                              _mm256_permutevar8x32_ps(minus, code),
                                              _mm256_castsi256_ps(_mm256_slli_epi32(code, 28)));
        _mm256_storeu_ps(x + i, _mm256_mul_ps(scale, value));
    }
    return i;
}

const struct arith arith_avx2 = ARITH_TABLE("avx2");

#endif
