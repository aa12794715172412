/* Linear layers of few rows, and the best tokens of an output layer, for a CPU with AVX-512 VNNI, in float32 and in int8.

   float32   y = x Wᵀ + b
   int8      y = (x̂ Ŵᵀ - 128 Σ Ŵ) s_x s_w + b,  x̂ = round(127 x / max |x|) + 128, a row of x at a time

   In int8 rounding, product, scales and bias are one pass, where torch takes ten operations. Each row is computed by
   itself and in one order, so that a result does not depend on the other rows.

   Weights are packed in tiles of 64 columns, padded with zeros: [columns / 64][k][64] in float32,
   [columns / 64][k / 4][64 columns][4 k] in int8.
*/
#include <stdint.h>
#include <string.h>

#include "avx512.h"

#define ROWS 6      /* of a tile: 24 of 32 registers hold its sums */
#define COLUMNS 64  /* of a tile */
#define SLICE 8     /* tiles whose scores stay in the cache */

/* Rows of the next tile: as even as they can be, for a tile of one or two reads its weights for little. */
static long rows_of_tile(long left) {
    long tiles = (left + ROWS - 1) / ROWS;
    return (left + tiles - 1) / tiles;
}

/* CALL(n), where n, the rows of a tile, is a constant. */
#define BY_ROWS(n, CALL)       \
    switch (n) {               \
        case 1: CALL(1); break; \
        case 2: CALL(2); break; \
        case 3: CALL(3); break; \
        case 4: CALL(4); break; \
        case 5: CALL(5); break; \
        default: CALL(6);       \
    }

static size_t aligned(size_t bytes) { return (bytes + 63) / 64 * 64; }

/* x̂ of one row, and its largest |x|: not a number where x has one that is none. */
static float quantize_row(const float *x, long k, long stride, uint8_t *codes) {
    __m512 most = _mm512_setzero_ps();
    __mmask16 none = 0;
    for (long i = 0; i < k; i += 16) {
        __m512 part = _mm512_maskz_loadu_ps(first(k - i), x + i);
        none |= _mm512_cmp_ps_mask(part, part, _CMP_UNORD_Q);
        most = _mm512_max_ps(most, _mm512_abs_ps(part));
    }
    float size = (none ? NAN : _mm512_reduce_max_ps(most)) + 1e-30f;
    __m512 scale = _mm512_set1_ps(127.0f / size);
    for (long i = 0; i < k; i += 16) {
        __m512 part = _mm512_maskz_loadu_ps(first(k - i), x + i);
        __m512i whole = _mm512_add_epi32(_mm512_cvtps_epi32(_mm512_mul_ps(part, scale)), _mm512_set1_epi32(128));
        _mm_mask_storeu_epi8(codes + i, first(stride - i), _mm512_cvtepi32_epi8(whole));
    }
    return size;
}

ALWAYS void multiply(const int rows, const uint8_t *codes, long stride, const int8_t *weight, __m512i sums[ROWS][4]) {
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int c = 0; c < 4; c++) sums[r][c] = _mm512_setzero_si512();
    for (long i = 0; i < stride; i += 4, weight += 4 * COLUMNS) {
        __m512i w[4];
#pragma GCC unroll 4
        for (int c = 0; c < 4; c++) w[c] = _mm512_load_si512(weight + 64 * c);
#pragma GCC unroll 6
        for (int r = 0; r < rows; r++) {
            int32_t four;
            memcpy(&four, codes + r * stride + i, 4);
            __m512i x = _mm512_set1_epi32(four);
#pragma GCC unroll 4
            for (int c = 0; c < 4; c++) sums[r][c] = _mm512_dpbusd_epi32(sums[r][c], x, w[c]);
        }
    }
}

ALWAYS void tile(
    const int rows, const uint8_t *codes, long stride, const float *sizes, const int8_t *weight, const float *scale,
    const int32_t *offset, const float *bias, float *y, long y_stride, long columns
) {
    __m512i sums[ROWS][4];
    multiply(rows, codes, stride, weight, sums);
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int c = 0; c < 4; c++) {
            if (16 * c >= columns) continue;
            __m512 whole = _mm512_cvtepi32_ps(_mm512_sub_epi32(sums[r][c], _mm512_loadu_si512(offset + 16 * c)));
            __m512 found = _mm512_mul_ps(whole, _mm512_loadu_ps(scale + 16 * c));
            found = _mm512_fmadd_ps(found, _mm512_set1_ps(sizes[r]), _mm512_loadu_ps(bias + 16 * c));
            _mm512_mask_storeu_ps(y + r * y_stride + 16 * c, first(columns - 16 * c), found);
        }
}

/* All rows by the columns of one tile. */
static void panel(
    long rows, const uint8_t *codes, long stride, const float *sizes, const int8_t *weight, const float *scale,
    const int32_t *offset, const float *bias, float *y, long y_stride, long columns
) {
#define TILE(n) \
    tile(n, codes + r * stride, stride, sizes + r, weight, scale, offset, bias, y + r * y_stride, y_stride, columns)
    for (long r = 0, count; r < rows; r += count) {
        count = rows_of_tile(rows - r);
        BY_ROWS(count, TILE)
    }
}

void int8_linear(
    const float *x, long rows, long k, const int8_t *weight, const float *scale, const int32_t *offset,
    const float *bias, long n, float *y
) {
    long stride = (k + 3) / 4 * 4;
    float *sizes = reserve(aligned(rows * sizeof(float)) + rows * stride);
    uint8_t *codes = (uint8_t *)sizes + aligned(rows * sizeof(float));
    for (long r = 0; r < rows; r++) sizes[r] = quantize_row(x + r * k, k, stride, codes + r * stride);
    for (long c = 0; c < n; c += COLUMNS)
        panel(rows, codes, stride, sizes, weight + c * stride, scale + c, offset + c, bias + c, y + c, n, n - c);
}

/* --- float32 --- */

ALWAYS void float_tile(
    const int rows, const float *x, long k, const float *weight, const float *bias, float *y, long y_stride, long columns
) {
    __m512 sums[ROWS][4];
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int c = 0; c < 4; c++) sums[r][c] = _mm512_loadu_ps(bias + 16 * c);
    for (long i = 0; i < k; i++, weight += COLUMNS) {
        __m512 w[4];
#pragma GCC unroll 4
        for (int c = 0; c < 4; c++) w[c] = _mm512_load_ps(weight + 16 * c);
#pragma GCC unroll 6
        for (int r = 0; r < rows; r++) {
            __m512 one = _mm512_set1_ps(x[r * k + i]);
#pragma GCC unroll 4
            for (int c = 0; c < 4; c++) sums[r][c] = _mm512_fmadd_ps(one, w[c], sums[r][c]);
        }
    }
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int c = 0; c < 4; c++)
            if (16 * c < columns) _mm512_mask_storeu_ps(y + r * y_stride + 16 * c, first(columns - 16 * c), sums[r][c]);
}

static void float_panel(
    const float *x, long rows, long k, const float *weight, const float *bias, float *y, long y_stride, long columns
) {
#define FLOAT_TILE(n) float_tile(n, x + r * k, k, weight, bias, y + r * y_stride, y_stride, columns)
    for (long r = 0, count; r < rows; r += count) {
        count = rows_of_tile(rows - r);
        BY_ROWS(count, FLOAT_TILE)
    }
}

void float_linear(const float *x, long rows, long k, const float *weight, const float *bias, long n, float *y) {
    for (long c = 0; c < n; c += COLUMNS) float_panel(x, rows, k, weight + c * k, bias + c, y + c, n, n - c);
}

/* --- the best tokens --- */

typedef struct {
    float largest;
    double sum; /* of exp (score - largest) */
    int none;   /* whether a score is not a number */
} Total;

/* Scores of columns from `start` on: into a row's total, and into its best, of equals the lower first. */
static void scan(
    const float *scores, long columns, long start, const uint8_t *banned, long count, Total *total, float *values,
    int64_t *tokens
) {
    __m512 most = _mm512_set1_ps(-INFINITY), sum = _mm512_setzero_ps();
    __mmask16 none = 0;
    for (long i = 0; i < columns; i += 16) {
        __m512 x = _mm512_mask_loadu_ps(_mm512_set1_ps(-INFINITY), first(columns - i), scores + i);
        none |= _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
        most = _mm512_max_ps(most, x);
    }
    float here = _mm512_reduce_max_ps(most);
    total->none |= none != 0;
    if (!(here > -INFINITY)) return;
    if (here > total->largest) {
        total->sum *= exp((double)total->largest - here);
        total->largest = here;
    }
    __m512 largest = _mm512_set1_ps(total->largest);
    for (long i = 0; i < columns; i += 16) {
        __m512 x = _mm512_mask_loadu_ps(_mm512_set1_ps(-INFINITY), first(columns - i), scores + i);
        sum = _mm512_add_ps(sum, exponential(_mm512_sub_ps(x, largest)));
    }
    total->sum += _mm512_reduce_add_ps(sum);
    if (!(here > values[count - 1])) return;
    for (long i = 0; i < columns; i += 16) {
        __m512 x = _mm512_mask_loadu_ps(_mm512_set1_ps(-INFINITY), first(columns - i), scores + i);
        __mmask16 better = _mm512_cmp_ps_mask(x, _mm512_set1_ps(values[count - 1]), _CMP_GT_OQ);
        for (; better; better &= better - 1) {
            long at = i + __builtin_ctz(better), place = count - 1;
            if (banned[start + at] || !(scores[at] > values[place])) continue;
            for (; place > 0 && scores[at] > values[place - 1]; place--) {
                values[place] = values[place - 1];
                tokens[place] = tokens[place - 1];
            }
            values[place] = scores[at];
            tokens[place] = start + at;
        }
    }
}

/* The best `count` tokens of each row as they are found, slice by slice of the vocabulary. */
typedef struct {
    long rows, n, count;
    const uint8_t *banned;
    float *values;
    int64_t *tokens;
    const int64_t *must; /* whose scores are wanted where they are not -1 */
    float *forced;
    Total *totals;
    float *scores; /* of a slice */
} Best;

static Best begin_best(
    long rows, long n, const uint8_t *banned, long count, float *values, int64_t *tokens, const int64_t *must,
    float *forced, Total *totals, float *scores
) {
    for (long i = 0; i < rows * count; i++) {
        values[i] = -INFINITY;
        tokens[i] = 0;
    }
    for (long r = 0; r < rows; r++) totals[r] = (Total){-INFINITY, 0.0, 0};
    return (Best){rows, n, count, banned, values, tokens, must, forced, totals, scores};
}

static void add_slice(const Best *best, long start, long columns) {
    for (long r = 0; r < best->rows; r++) {
        const float *row = best->scores + r * SLICE * COLUMNS;
        long at = r * best->count;
        scan(row, columns, start, best->banned, best->count, best->totals + r, best->values + at, best->tokens + at);
        if (best->must && best->must[r] >= start && best->must[r] < start + columns)
            best->forced[r] = row[best->must[r] - start];
    }
}

/* Scores become log-probabilities. Returns whether all are numbers. */
static int end_best(const Best *best) {
    int finite = 1;
    for (long r = 0; r < best->rows; r++) {
        float sum = (float)log(best->totals[r].sum), largest = best->totals[r].largest;
        finite &= !best->totals[r].none && isfinite(largest) && isfinite(sum);
        float *values = best->values + r * best->count;
        for (long i = 0; i < best->count; i++) values[i] = (values[i] - largest) - sum;
        if (best->must) best->forced[r] = (best->forced[r] - largest) - sum;
    }
    return finite;
}

/* Each slice of the vocabulary: PANEL(score, column, columns) computes a tile of its scores. */
#define BY_SLICES(best, PANEL)                                                                  \
    for (long start = 0; start < n; start += SLICE * COLUMNS) {                                  \
        long columns = n - start < SLICE * COLUMNS ? n - start : SLICE * COLUMNS;                \
        for (long c = 0; c < columns; c += COLUMNS) PANEL((best)->scores + c, start + c, columns - c); \
        add_slice(best, start, columns);                                                        \
    }

/* Log-probabilities of the best `count` tokens of each row, best first, and of the token in `must` where it is not -1.
   Returns whether all are numbers. */
int int8_topk(
    const float *x, long rows, long k, const int8_t *weight, const float *scale, const int32_t *offset,
    const float *bias, long n, const uint8_t *banned, long count, float *values, int64_t *tokens, const int64_t *must,
    float *forced
) {
    long stride = (k + 3) / 4 * 4, width = SLICE * COLUMNS;
    size_t for_sizes = aligned(rows * sizeof(float)), for_totals = aligned(rows * sizeof(Total));
    size_t for_scores = rows * width * sizeof(float);
    float *sizes = reserve(for_sizes + for_totals + for_scores + rows * stride);
    Total *totals = (Total *)((char *)sizes + for_sizes);
    float *scores = (float *)((char *)totals + for_totals);
    uint8_t *codes = (uint8_t *)scores + for_scores;
    for (long r = 0; r < rows; r++) sizes[r] = quantize_row(x + r * k, k, stride, codes + r * stride);
    Best best = begin_best(rows, n, banned, count, values, tokens, must, forced, totals, scores);
#define INT8_PANEL(y, at, left) \
    panel(rows, codes, stride, sizes, weight + (at) * stride, scale + (at), offset + (at), bias + (at), y, width, left)
    BY_SLICES(&best, INT8_PANEL)
    return end_best(&best);
}

/* The same in float32. */
int float_topk(
    const float *x, long rows, long k, const float *weight, const float *bias, long n, const uint8_t *banned, long count,
    float *values, int64_t *tokens, const int64_t *must, float *forced
) {
    size_t for_totals = aligned(rows * sizeof(Total));
    Total *totals = reserve(for_totals + rows * SLICE * COLUMNS * sizeof(float));
    float *scores = (float *)((char *)totals + for_totals);
    Best best = begin_best(rows, n, banned, count, values, tokens, must, forced, totals, scores);
#define FLOAT_PANEL(y, at, left) \
    float_panel(x, rows, k, weight + (at) * k, bias + (at), y, SLICE * COLUMNS, left)
    BY_SLICES(&best, FLOAT_PANEL)
    return end_best(&best);
}
