/* Functions of sixteen floats at a time. Each lane depends on its own input alone, and every sum is
   taken in an order that depends on its length alone. */

#include <float.h>
#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

typedef uint16_t bfloat16;

static inline __m512 load_bf16(const bfloat16 *p) {
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}

static inline void store_bf16(bfloat16 *p, __m512 x) {
    _mm256_storeu_si256((void *)p, (__m256i)_mm512_cvtneps_pbh(x));
}

static inline __m512 load_f16(const uint8_t *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const void *)p));
}

/* e^x: 2^n times a polynomial (Cephes' expf) for the rest. 1 exactly at 0, and 0 for x far below. */
static inline __m512 exp_ps(__m512 x) {
    __mmask16 gone = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-87.0f), _CMP_LT_OQ);
    x = _mm512_max_ps(_mm512_min_ps(x, _mm512_set1_ps(88.0f)), _mm512_set1_ps(-87.0f));
    __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), 0);
    __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);
    r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), r);
    __m512 p = _mm512_set1_ps(1.9875691500e-4f);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.3981999507e-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(8.3334519073e-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(4.1665795894e-2f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.6666665459e-1f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.0000001201e-1f));
    p = _mm512_fmadd_ps(p, _mm512_mul_ps(r, r), _mm512_add_ps(r, _mm512_set1_ps(1.0f)));
    p = _mm512_scalef_ps(p, n);
    return _mm512_maskz_mov_ps(_mm512_knot(gone), p);
}

/* x · sigmoid(x). */
static inline __m512 silu_ps(__m512 x) {
    __m512 one = _mm512_set1_ps(1.0f);
    __m512 e = exp_ps(_mm512_sub_ps(_mm512_setzero_ps(), x));
    return _mm512_div_ps(x, _mm512_add_ps(one, e));
}

/* Lane i of the result is the sum of the lanes of z[i]. */
static inline __m512 sums_ps(const __m512 z[16]) {
    __m512 w[4];
    for (int i = 0; i < 4; i++) {
        const __m512 *q = z + 4 * i;
        __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(q[0], q[1]), _mm512_unpackhi_ps(q[0], q[1]));
        __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(q[2], q[3]), _mm512_unpackhi_ps(q[2], q[3]));
        __m512d p = _mm512_castps_pd(ab), s = _mm512_castps_pd(cd);
        w[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(p, s)),
                             _mm512_castpd_ps(_mm512_unpackhi_pd(p, s)));
    }
    __m512 a = _mm512_add_ps(_mm512_shuffle_f32x4(w[0], w[1], 0x44),
                             _mm512_shuffle_f32x4(w[0], w[1], 0xEE));
    __m512 b = _mm512_add_ps(_mm512_shuffle_f32x4(w[2], w[3], 0x44),
                             _mm512_shuffle_f32x4(w[2], w[3], 0xEE));
    return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xDD));
}

/* A factor for x[size] that makes its mean square 1, but for eps. size is a multiple of 16. */
static inline float inverse_rms(const float *x, int size, float eps) {
    __m512 sum = _mm512_setzero_ps();
    for (int i = 0; i < size; i += 16) {
        __m512 v = _mm512_loadu_ps(x + i);
        sum = _mm512_fmadd_ps(v, v, sum);
    }
    return 1.0f / sqrtf(_mm512_reduce_add_ps(sum) / (float)size + eps);
}
