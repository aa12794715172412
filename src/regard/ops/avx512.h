/* What kernels in C share on a CPU with AVX-512: memory of a thread, the mask of a rest, the exponential. */
#pragma once
#include <immintrin.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>

#define ALWAYS static inline __attribute__((always_inline))

static __thread void *memory;
static __thread size_t capacity;

static pthread_key_t memory_key;
static pthread_once_t memory_once = PTHREAD_ONCE_INIT;

static void make_memory_key(void) {
    if (pthread_key_create(&memory_key, free)) abort();
}

/* Freed when the thread ends: a search on each core has new threads every time. */
static void *reserve(size_t bytes) {
    if (bytes > capacity) {
        pthread_once(&memory_once, make_memory_key);
        free(memory);
        if (posix_memalign(&memory, 64, bytes) || pthread_setspecific(memory_key, memory)) abort();
        capacity = bytes;
    }
    return memory;
}

ALWAYS __mmask16 first(long left) { return left >= 16 ? 0xffff : (__mmask16)((1u << left) - 1); }

/* exp x for x <= 0, to a unit in the last place or two; 0 below -87. */
ALWAYS __m512 exponential(__m512 x) {
    __mmask16 some = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-87.0f), _CMP_NLT_UQ);
    __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), 0);
    __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);
    r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), r);
    const float terms[] = {1.9875691500e-4f, 1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 0.5f};
    __m512 p = _mm512_set1_ps(terms[0]);
    for (int i = 1; i < 6; i++) p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(terms[i]));
    p = _mm512_add_ps(_mm512_fmadd_ps(_mm512_mul_ps(r, r), p, r), _mm512_set1_ps(1.0f));
    return _mm512_maskz_scalef_ps(some, p, n);
}
