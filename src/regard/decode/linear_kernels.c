/* Linear layers of few rows, and the best tokens of an output layer, for a CPU with AVX-512 VNNI, in float32 and in int8.

   float32   y = x Wᵀ + b
   int8      y = (x̂ Ŵᵀ - 128 Σ Ŵ) s_x s_w + b,  x̂ = round(127 x / max |x|) + 128, a row of x at a time

   In int8 rounding, product, scales and bias are one pass, where torch takes ten operations. Each row is computed by
   itself and in one order, so that a result does not depend on the other rows, nor on the number of threads.

   Weights are packed in tiles of 64 columns, padded with zeros: [columns / 64][k][64] in float32,
   [columns / 64][k / 4][64 columns][4 k] in int8.
*/
#include <stdint.h>
#include <string.h>

#ifdef _OPENMP
#include <omp.h>
#endif

#include "avx512.h"

#define ROWS 6      /* of a tile: 24 of 32 registers hold its sums */
#define COLUMNS 64  /* of a tile */
#define BLOCK 64    /* products that are added up by themselves, so that rounding errors do not grow with k */
#define SLICE 8     /* tiles whose scores stay in the cache */
#define AHEAD 64    /* lines of a tile that are fetched before they are multiplied: 16 KB; a core by itself looks less far */
#define WORK (1L << 20) /* multiplications in float32 that another thread pays for */

/* As many as torch may use, where they pay. */
static long threads_for(long work) {
#ifdef _OPENMP
    long most = omp_get_max_threads(), wanted = work / WORK;
    return wanted < 1 ? 1 : wanted < most ? wanted : most;
#else
    return 1;
#endif
}

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
#pragma GCC unroll 4
        for (int c = 0; c < 4; c++) _mm_prefetch(weight + AHEAD * 4 * COLUMNS + 64 * c, _MM_HINT_T0);
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
    long threads = threads_for(rows * n * k / 4);
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (long c = 0; c < n; c += COLUMNS)
        panel(rows, codes, stride, sizes, weight + c * stride, scale + c, offset + c, bias + c, y + c, n, n - c);
}

/* --- float32 --- */

ALWAYS void float_tile(
    const int rows, const float *x, long k, const float *weight, const float *bias, float *y, long y_stride, long columns
) {
    __m512 totals[ROWS][4];
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int c = 0; c < 4; c++) totals[r][c] = _mm512_loadu_ps(bias + 16 * c);
    for (long begin = 0, end; begin < k; begin = end) {
        __m512 sums[ROWS][4];
        end = begin + BLOCK < k ? begin + BLOCK : k;
#pragma GCC unroll 6
        for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
            for (int c = 0; c < 4; c++) sums[r][c] = _mm512_setzero_ps();
        for (long i = begin; i < end; i++, weight += COLUMNS) {
            __m512 w[4];
#pragma GCC unroll 4
            for (int c = 0; c < 4; c++) w[c] = _mm512_load_ps(weight + 16 * c);
#pragma GCC unroll 4
            for (int c = 0; c < 4; c++) _mm_prefetch(weight + AHEAD * COLUMNS + 16 * c, _MM_HINT_T0);
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
            for (int c = 0; c < 4; c++) totals[r][c] = _mm512_add_ps(totals[r][c], sums[r][c]);
    }
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int c = 0; c < 4; c++)
            if (16 * c < columns)
                _mm512_mask_storeu_ps(y + r * y_stride + 16 * c, first(columns - 16 * c), totals[r][c]);
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
    long threads = threads_for(rows * n * k);
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (long c = 0; c < n; c += COLUMNS) float_panel(x, rows, k, weight + c * k, bias + c, y + c, n, n - c);
}

/* --- the best tokens --- */

/* Σ exp score as sum · exp largest. */
typedef struct {
    float largest;
    double sum;
    int none; /* whether a score is not a number */
} Total;

static void add_total(Total *all, Total one) {
    all->none |= one.none;
    if (!(one.largest > -INFINITY)) return;
    if (one.largest > all->largest) {
        all->sum = all->sum * exp((double)all->largest - one.largest) + one.sum;
        all->largest = one.largest;
    } else
        all->sum += one.sum * exp((double)one.largest - all->largest);
}

/* The best `count` tokens of a row so far, best first, of equals the one that came first. */
static void insert(float score, int64_t token, long count, float *values, int64_t *tokens) {
    long place = count - 1;
    if (!(score > values[place])) return;
    for (; place > 0 && score > values[place - 1]; place--) {
        values[place] = values[place - 1];
        tokens[place] = tokens[place - 1];
    }
    values[place] = score;
    tokens[place] = token;
}

/* The total of a row's scores from column `start` on; the best of them are inserted. */
static Total scan(
    const float *scores, long columns, long start, const uint8_t *banned, long count, float *values, int64_t *tokens
) {
    __m512 most = _mm512_set1_ps(-INFINITY), sum = _mm512_setzero_ps();
    __mmask16 none = 0;
    for (long i = 0; i < columns; i += 16) {
        __m512 x = _mm512_mask_loadu_ps(_mm512_set1_ps(-INFINITY), first(columns - i), scores + i);
        none |= _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
        most = _mm512_max_ps(most, x);
    }
    float largest = _mm512_reduce_max_ps(most);
    if (!(largest > -INFINITY)) return (Total){-INFINITY, 0.0, none != 0};
    for (long i = 0; i < columns; i += 16) {
        __m512 x = _mm512_mask_loadu_ps(_mm512_set1_ps(-INFINITY), first(columns - i), scores + i);
        sum = _mm512_add_ps(sum, exponential(_mm512_sub_ps(x, _mm512_set1_ps(largest))));
    }
    for (long i = 0; i < columns && largest > values[count - 1]; i += 16) {
        __m512 x = _mm512_mask_loadu_ps(_mm512_set1_ps(-INFINITY), first(columns - i), scores + i);
        __mmask16 better = _mm512_cmp_ps_mask(x, _mm512_set1_ps(values[count - 1]), _CMP_GT_OQ);
        for (; better; better &= better - 1) {
            long at = i + __builtin_ctz(better);
            if (!banned[start + at]) insert(scores[at], start + at, count, values, tokens);
        }
    }
    return (Total){largest, _mm512_reduce_add_ps(sum), none != 0};
}

/* What is looked for, row by row: the best tokens, and the score of the token in `must` where it is not -1. */
typedef struct {
    long rows, n, count;
    const uint8_t *banned;
    float *values;
    int64_t *tokens;
    const int64_t *must;
    float *forced;
} Best;

/* Memory of a search by `parts` threads: scores of a slice for each, lists of the best for each, totals of all slices. */
typedef struct {
    long parts, slices;
    float *scores, *values;
    int64_t *tokens;
    Total *totals;
} Scratch;

static size_t scratch_bytes(const Best *best, long parts) {
    long slices = (best->n + SLICE * COLUMNS - 1) / (SLICE * COLUMNS), kept = parts * best->rows * best->count;
    return parts * best->rows * SLICE * COLUMNS * sizeof(float) + kept * (sizeof(float) + sizeof(int64_t)) +
           slices * best->rows * sizeof(Total) + 4 * 64;
}

static Scratch begin_scratch(const Best *best, long parts, char *memory) {
    Scratch found = {parts, (best->n + SLICE * COLUMNS - 1) / (SLICE * COLUMNS), (float *)memory, 0, 0, 0};
    long kept = parts * best->rows * best->count;
    memory += aligned(parts * best->rows * SLICE * COLUMNS * sizeof(float));
    found.tokens = (int64_t *)memory;
    memory += aligned(kept * sizeof(int64_t));
    found.totals = (Total *)memory;
    memory += aligned(found.slices * best->rows * sizeof(Total));
    found.values = (float *)memory;
    for (long i = 0; i < kept; i++) {
        found.values[i] = -INFINITY;
        found.tokens[i] = 0;
    }
    return found;
}

static void scan_slice(const Best *best, const Scratch *scratch, long part, long slice) {
    long width = SLICE * COLUMNS, start = slice * width, columns = best->n - start < width ? best->n - start : width;
    for (long r = 0; r < best->rows; r++) {
        const float *row = scratch->scores + (part * best->rows + r) * width;
        long at = (part * best->rows + r) * best->count;
        scratch->totals[slice * best->rows + r] =
            scan(row, columns, start, best->banned, best->count, scratch->values + at, scratch->tokens + at);
        if (best->must && best->must[r] >= start && best->must[r] < start + columns)
            best->forced[r] = row[best->must[r] - start];
    }
}

/* Parts and slices are added up in order, so that the result is that of one thread. Scores become log-probabilities.
   Returns whether all are numbers. */
static int end_best(const Best *best, const Scratch *scratch) {
    int finite = 1;
    for (long r = 0; r < best->rows; r++) {
        float *values = best->values + r * best->count;
        int64_t *tokens = best->tokens + r * best->count;
        for (long i = 0; i < best->count; i++) {
            values[i] = -INFINITY;
            tokens[i] = 0;
        }
        for (long part = 0; part < scratch->parts; part++)
            for (long i = (part * best->rows + r) * best->count, end = i + best->count; i < end; i++)
                insert(scratch->values[i], scratch->tokens[i], best->count, values, tokens);
        Total all = {-INFINITY, 0.0, 0};
        for (long slice = 0; slice < scratch->slices; slice++) add_total(&all, scratch->totals[slice * best->rows + r]);
        float sum = (float)log(all.sum);
        finite &= !all.none && isfinite(all.largest) && isfinite(sum);
        for (long i = 0; i < best->count; i++) values[i] = (values[i] - all.largest) - sum;
        if (best->must) best->forced[r] = (best->forced[r] - all.largest) - sum;
    }
    return finite;
}

/* Each thread a part of the vocabulary; PANEL(scores, column, columns) computes a tile of scores. */
#define BY_SLICES(best, scratch, PANEL)                                                                              \
    _Pragma("omp parallel for schedule(static, 1) num_threads(scratch.parts) if (scratch.parts > 1)")                \
    for (long part = 0; part < scratch.parts; part++)                                                               \
        for (long slice = part * scratch.slices / scratch.parts; slice < (part + 1) * scratch.slices / scratch.parts; \
             slice++) {                                                                                             \
            float *scores = scratch.scores + part * best.rows * SLICE * COLUMNS;                                    \
            for (long at = slice * SLICE * COLUMNS; at < best.n && at < (slice + 1) * SLICE * COLUMNS; at += COLUMNS) \
                PANEL(scores + (at - slice * SLICE * COLUMNS), at, best.n - at);                                    \
            scan_slice(&best, &scratch, part, slice);                                                               \
        }

/* Log-probabilities of the best `count` tokens of each row, best first, and of the token in `must` where it is not -1.
   Returns whether all are numbers. */
int int8_topk(
    const float *x, long rows, long k, const int8_t *weight, const float *scale, const int32_t *offset,
    const float *bias, long n, const uint8_t *banned, long count, float *values, int64_t *tokens, const int64_t *must,
    float *forced
) {
    Best best = {rows, n, count, banned, values, tokens, must, forced};
    long stride = (k + 3) / 4 * 4, parts = threads_for(rows * n * k / 4);
    size_t for_sizes = aligned(rows * sizeof(float)), for_codes = aligned(rows * stride);
    float *sizes = reserve(for_sizes + for_codes + scratch_bytes(&best, parts));
    uint8_t *codes = (uint8_t *)sizes + for_sizes;
    Scratch scratch = begin_scratch(&best, parts, (char *)codes + for_codes);
    for (long r = 0; r < rows; r++) sizes[r] = quantize_row(x + r * k, k, stride, codes + r * stride);
#define INT8_PANEL(y, at, left)                                                                                      \
    panel(                                                                                                           \
        rows, codes, stride, sizes, weight + (at) * stride, scale + (at), offset + (at), bias + (at), y, SLICE * COLUMNS, \
        left                                                                                                         \
    )
    BY_SLICES(best, scratch, INT8_PANEL)
    return end_best(&best, &scratch);
}

/* The same in float32. */
int float_topk(
    const float *x, long rows, long k, const float *weight, const float *bias, long n, const uint8_t *banned, long count,
    float *values, int64_t *tokens, const int64_t *must, float *forced
) {
    Best best = {rows, n, count, banned, values, tokens, must, forced};
    long parts = threads_for(rows * n * k);
    Scratch scratch = begin_scratch(&best, parts, reserve(scratch_bytes(&best, parts)));
#define FLOAT_PANEL(y, at, left) float_panel(x, rows, k, weight + (at) * k, bias + (at), y, SLICE * COLUMNS, left)
    BY_SLICES(best, scratch, FLOAT_PANEL)
    return end_best(&best, &scratch);
}
