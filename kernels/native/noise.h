/* Sampling noise as kernels/noise.py specifies it: the bits are the same, and the logarithms of them
   are within their rounding. */

/* ln x for positive normal numbers (Cephes' logf). */
static inline __m512 log_ps(__m512 x) {
    const __m512 one = _mm512_set1_ps(1.0f);
    __m512 e = _mm512_getexp_ps(x);
    __m512 m = _mm512_getmant_ps(x, _MM_MANT_NORM_1_2, _MM_MANT_SIGN_src);
    __mmask16 high = _mm512_cmp_ps_mask(m, _mm512_set1_ps(1.41421356f), _CMP_GT_OQ);
    m = _mm512_mask_mul_ps(m, high, m, _mm512_set1_ps(0.5f));
    e = _mm512_mask_add_ps(e, high, e, one);
    __m512 r = _mm512_sub_ps(m, one), square = _mm512_mul_ps(r, r);
    __m512 p = _mm512_set1_ps(7.0376836292e-2f);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(-1.1514610310e-1f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.1676998740e-1f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(-1.2420140846e-1f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.4249322787e-1f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(-1.6668057665e-1f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(2.0000714765e-1f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(-2.4999993993e-1f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(3.3333331174e-1f));
    p = _mm512_mul_ps(_mm512_mul_ps(p, r), square);
    p = _mm512_fmadd_ps(e, _mm512_set1_ps(-2.12194440e-4f), p);
    p = _mm512_fnmadd_ps(_mm512_set1_ps(0.5f), square, p);
    return _mm512_fmadd_ps(e, _mm512_set1_ps(0.693359375f), _mm512_add_ps(r, p));
}

static inline __m512i mixed(__m512i x, int bits, uint32_t factor) {
    x = _mm512_xor_si512(x, _mm512_srli_epi32(x, (unsigned)bits));
    return _mm512_mullo_epi32(x, _mm512_set1_epi32((int32_t)factor));
}

/* The random bits of a key and token ids. They fall as the noise rises. */
static inline __m512i random_bits(int64_t key, __m512i tokens) {
    const __m512i low = _mm512_set1_epi32((int32_t)(uint32_t)key);
    const __m512i high = _mm512_set1_epi32((int32_t)(uint32_t)((uint64_t)key >> 32) | 1);
    __m512i x = _mm512_add_epi32(_mm512_mullo_epi32(tokens, high), low);
    x = mixed(mixed(x, 16, 0x7FEB352Du), 15, 0x846CA68Bu);
    return _mm512_xor_si512(x, _mm512_srli_epi32(x, 16));
}

/* -ln(-ln(1 - u)) of the bits as a number u of (0, 1): the inner logarithm is that of 1 - u, and to
   first order that of what rounding 1 - u lost. */
static inline __m512 gumbel(__m512i bits) {
    const __m512 one = _mm512_set1_ps(1.0f), zero = _mm512_setzero_ps();
    __m512 u = _mm512_add_ps(_mm512_cvtepu32_ps(bits), _mm512_set1_ps(0.5f));
    u = _mm512_min_ps(_mm512_mul_ps(u, _mm512_set1_ps(0x1p-32f)), _mm512_set1_ps(1 - 0x1p-24f));
    __m512 rest = _mm512_sub_ps(one, u), lost = _mm512_sub_ps(u, _mm512_sub_ps(one, rest));
    __m512 inner = _mm512_sub_ps(_mm512_div_ps(lost, rest), log_ps(rest));
    return _mm512_sub_ps(zero, log_ps(inner));
}

/* The noise is below -ln u, and so below LN2 * (32 - bit_length), which is quickly had. Infinite for
   bits of zero. */
#define LN2 0.6931472f

static inline __m512 bit_length(__m512i bits) { return _mm512_getexp_ps(_mm512_cvtepu32_ps(bits)); }

static inline uint64_t mix64(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

/* The key of the token at a position of a sequence. */
static inline int64_t noise_key(int64_t seed, int64_t position) {
    return (int64_t)mix64(mix64((uint64_t)seed) + (uint64_t)(position + 1) * 0x9E3779B97F4A7C15u);
}
