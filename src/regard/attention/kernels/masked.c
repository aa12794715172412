/* softmax(q kᵀ + mask) v for few queries, on a CPU with AVX-512.

   Of each group of heads the keys are read once for four queries at a time, and only those that some query of the
   sentence sees: of a beam search's slots or a padded source that is often half.
*/
#include "avx512.h"

#define QUERIES 4

/* Scores, weights and their means of some queries of one group of heads; `at` are the keys that are seen. Memory is what
   takes the time: values are fetched while keys are multiplied, and the next keys while values are. */
ALWAYS void some_queries(
    const int count, const float *const *q, const float *k, const float *v, const float *const *mask, float *const *out,
    long step, long d, const int *at, long keys, float *scores, long width, const float *next
) {
    for (long j = 0; j < keys; j++) {
        __m512 sums[QUERIES];
#pragma GCC unroll 4
        for (int n = 0; n < count; n++) sums[n] = _mm512_setzero_ps();
        const float *key = k + at[j] * step;
        for (long i = 0; i < d; i += 16) {
            _mm_prefetch(v + at[j] * step + i, _MM_HINT_T0);
            __m512 part = _mm512_maskz_loadu_ps(first(d - i), key + i);
#pragma GCC unroll 4
            for (int n = 0; n < count; n++)
                sums[n] = _mm512_fmadd_ps(_mm512_maskz_loadu_ps(first(d - i), q[n] + i), part, sums[n]);
        }
#pragma GCC unroll 4
        for (int n = 0; n < count; n++) scores[n * width + j] = _mm512_reduce_add_ps(sums[n]) + mask[n][at[j]];
    }
    for (int n = 0; n < count; n++) {
        float *row = scores + n * width;
        __m512 most = _mm512_set1_ps(-INFINITY), sum = _mm512_setzero_ps();
        __mmask16 none = 0;
        for (long j = 0; j < keys; j += 16) {
            __m512 x = _mm512_mask_loadu_ps(most, first(keys - j), row + j);
            none |= _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
            most = _mm512_max_ps(most, x);
        }
        __m512 largest = _mm512_set1_ps(none ? NAN : _mm512_reduce_max_ps(most));
        for (long j = 0; j < keys; j += 16) {
            __m512 x = _mm512_maskz_loadu_ps(first(keys - j), row + j);
            x = _mm512_maskz_mov_ps(first(keys - j), exponential(_mm512_sub_ps(x, largest)));
            sum = _mm512_add_ps(sum, x);
            _mm512_storeu_ps(row + j, x);
        }
        __m512 share = _mm512_set1_ps(1.0f / _mm512_reduce_add_ps(sum));
        for (long j = 0; j < keys; j += 16) _mm512_storeu_ps(row + j, _mm512_mul_ps(_mm512_loadu_ps(row + j), share));
    }
    for (long i = 0; i < d; i += 64) {
        __m512 found[QUERIES][4];
#pragma GCC unroll 4
        for (int n = 0; n < count; n++)
#pragma GCC unroll 4
            for (int c = 0; c < 4; c++) found[n][c] = _mm512_set1_ps(keys ? 0.0f : NAN);
        for (long j = 0; j < keys; j++) {
            const float *value = v + at[j] * step + i;
#pragma GCC unroll 4
            for (int c = 0; c < 4; c++) _mm_prefetch(next + at[j] * step + i + 16 * c, _MM_HINT_T0);
            __m512 part[4];
#pragma GCC unroll 4
            for (int c = 0; c < 4; c++)
                part[c] = d - i > 16 * c ? _mm512_maskz_loadu_ps(first(d - i - 16 * c), value + 16 * c)
                                         : _mm512_setzero_ps();
#pragma GCC unroll 4
            for (int n = 0; n < count; n++) {
                __m512 weight = _mm512_set1_ps(scores[n * width + j]);
#pragma GCC unroll 4
                for (int c = 0; c < 4; c++) found[n][c] = _mm512_fmadd_ps(weight, part[c], found[n][c]);
            }
        }
#pragma GCC unroll 4
        for (int n = 0; n < count; n++)
#pragma GCC unroll 4
            for (int c = 0; c < 4; c++)
                if (d - i > 16 * c) _mm512_mask_storeu_ps(out[n] + i + 16 * c, first(d - i - 16 * c), found[n][c]);
    }
}

/* q (b h t d), k and v (b g c d), mask (b 1 t c), out (b t h d), by their strides; the last axis has stride 1. */
void masked_attention(
    const float *q, long q_b, long q_h, long q_t, const float *k, const float *v, long k_b, long k_g, long k_c,
    const float *mask, long mask_b, long mask_t, float *out, long b, long h, long t, long g, long c, long d
) {
    long width = (c + 15) / 16 * 16, shared = h / g, rows = shared * t;
    float *scores = reserve(QUERIES * width * sizeof(float) + c * sizeof(int));
    int *at = (int *)(scores + QUERIES * width);
    for (long sentence = 0; sentence < b; sentence++) {
        const float *sees = mask + sentence * mask_b;
        long keys = 0;
        for (long j = 0; j < c; j++) {
            int seen = 0;
            for (long n = 0; n < (mask_t ? t : 1); n++) seen |= !(sees[n * mask_t + j] == -INFINITY);
            if (seen) at[keys++] = j;
        }
        for (long group = 0; group < g; group++)
            for (long row = 0; row < rows; row += QUERIES) {
                const float *queries[QUERIES], *masks[QUERIES];
                float *outs[QUERIES];
                int count = rows - row < QUERIES ? rows - row : QUERIES;
                for (int n = 0; n < count; n++) {
                    long head = group * shared + (row + n) / t, query = (row + n) % t;
                    queries[n] = q + sentence * q_b + head * q_h + query * q_t;
                    masks[n] = sees + query * mask_t;
                    outs[n] = out + ((sentence * t + query) * h + head) * d;
                }
#define SOME(n)                                                                                                     \
    some_queries(                                                                                                   \
        n, queries, k + sentence * k_b + group * k_g, v + sentence * k_b + group * k_g, masks, outs, k_c, d, at, keys, \
        scores, width, k + sentence * k_b + (group + (row + QUERIES >= rows)) * k_g                                 \
    )
                switch (count) {
                    case 1: SOME(1); break;
                    case 2: SOME(2); break;
                    case 3: SOME(3); break;
                    default: SOME(4);
                }
            }
    }
}
