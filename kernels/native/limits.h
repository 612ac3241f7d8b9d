/* Which tokens of a row may be chosen, as kernels/limits.py and kernels/share.py specify it. Weights
   are whole numbers made by operations that IEEE 754 defines, and thresholds are exact, so the same
   tokens stay to the last one. */

#define FAR 128.0f
#define WEIGHTLESS 34.0f /* so far below the top nothing weighs anything */
#define NEAR 8.0f        /* a share is mostly reached within so much */

typedef struct {
    const float *logits;
    int width;
    float heat;
} row;

/* The logits over the temperature that stay: at least `least`, and within `radius` of `centre`. */
typedef struct {
    float least, centre, radius;
} bounds;

typedef struct {
    float typical_p, top_p, min_p;
    int64_t top_k;
} limits;

/* Entries of a row, and what they weigh. */
typedef struct {
    float *values;
    int64_t *weights;
} pool;

static inline __mmask16 lanes(int left) {
    return left >= 16 ? 0xFFFF : (__mmask16)((1u << left) - 1);
}

static inline __mmask16 within(const bounds *b, __m512 x) {
    __m512 off = _mm512_abs_ps(_mm512_sub_ps(x, _mm512_set1_ps(b->centre)));
    return _mm512_cmp_ps_mask(x, _mm512_set1_ps(b->least), _CMP_GE_OQ) &
           _mm512_cmp_ps_mask(off, _mm512_set1_ps(b->radius), _CMP_LE_OQ);
}

/* A logit below this lies below `least` once it is divided by the temperature. */
static inline float logit_floor(float least, float heat) {
    double floor = (double)least * heat;
    return (float)(floor - fabs(floor) * 1e-6 - 1e-37);
}

/* exp(x - top) in units of 2^-40. Multiplied and added one by one, as the specification does. */
static inline __m512 odds_ps(__m512 x, __m512 top) {
    static const float terms[] = {0.0018671302823349833f, 0.009017029777169228f,
                                  0.05579991266131401f, 0.24016444385051727f,
                                  0.6931512951850891f, 1.0f};
    __m512 part = _mm512_mul_ps(_mm512_sub_ps(x, top), _mm512_set1_ps(1.4426950216293335f));
    part = _mm512_max_ps(part, _mm512_set1_ps(-126.0f));
    __m512 whole = _mm512_roundscale_ps(part, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    part = _mm512_sub_ps(part, whole);
    __m512 y = _mm512_set1_ps(terms[0]);
    for (int i = 1; i < 6; i++)
        y = _mm512_add_ps(_mm512_mul_ps(y, part), _mm512_set1_ps(terms[i]));
    __m512i bits = _mm512_slli_epi32(_mm512_cvtps_epi32(whole), 23);
    y = _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(y), bits));
    return _mm512_mul_ps(y, _mm512_set1_ps(0x1p40f));
}

static inline __m512i whole_low(__m512 x) { return _mm512_cvttps_epi64(_mm512_castps512_ps256(x)); }

static inline __m512i whole_high(__m512 x) {
    return _mm512_cvttps_epi64(_mm512_extractf32x8_ps(x, 1));
}

/* The entries within the bounds. Returns how many. */
static int gather_entries(const row *r, const bounds *b, float *out) {
    const __m512 heat = _mm512_set1_ps(r->heat);
    const __m512 floor = _mm512_set1_ps(logit_floor(b->least, r->heat));
    int count = 0;
    for (int i = 0; i < r->width; i += 16) {
        __mmask16 some = lanes(r->width - i);
        __m512 x = _mm512_maskz_loadu_ps(some, r->logits + i);
        some = _mm512_mask_cmp_ps_mask(some, x, floor, _CMP_GE_OQ);
        if (!some) continue;
        x = _mm512_div_ps(x, heat);
        some &= within(b, x);
        _mm512_storeu_ps(out + count, _mm512_maskz_compress_ps(some, x));
        count += __builtin_popcount(some);
    }
    return count;
}

/* The weights of a pool's values; returns their sum. moment: their sum about the top, or NULL. */
static int64_t weigh_pool(const pool *p, int count, float top, int64_t *moment) {
    const __m512 most = _mm512_set1_ps(top);
    __m512i total = _mm512_setzero_si512(), turned = total;
    for (int i = 0; i < count; i += 16) {
        __mmask16 some = lanes(count - i);
        __m512 x = _mm512_mask_loadu_ps(most, some, p->values + i);
        __m512 mass = _mm512_maskz_mov_ps(some, odds_ps(x, most));
        __m512i low = whole_low(mass), high = whole_high(mass);
        _mm512_storeu_si512(p->weights + i, low);
        _mm512_storeu_si512(p->weights + i + 8, high);
        total = _mm512_add_epi64(total, _mm512_add_epi64(low, high));
        mass = _mm512_mul_ps(mass, _mm512_min_ps(_mm512_sub_ps(most, x), _mm512_set1_ps(FAR)));
        turned = _mm512_add_epi64(turned, _mm512_add_epi64(whole_low(mass), whole_high(mass)));
    }
    if (moment) *moment = _mm512_reduce_add_epi64(turned);
    return _mm512_reduce_add_epi64(total);
}

/* The weight of a whole row, and of what is NEAR its top. */
static int64_t weigh_row(const row *r, float top, int64_t *near) {
    const __m512 heat = _mm512_set1_ps(r->heat), most = _mm512_set1_ps(top);
    const __m512 floor = _mm512_set1_ps(logit_floor(top - WEIGHTLESS, r->heat));
    const __m512 close = _mm512_set1_ps(top - NEAR);
    __m512i total = _mm512_setzero_si512(), inner = total;
    for (int i = 0; i < r->width; i += 16) {
        __mmask16 some = lanes(r->width - i);
        __m512 x = _mm512_maskz_loadu_ps(some, r->logits + i);
        some = _mm512_mask_cmp_ps_mask(some, x, floor, _CMP_GE_OQ);
        if (!some) continue;
        x = _mm512_div_ps(x, heat);
        __m512 mass = _mm512_maskz_mov_ps(some, odds_ps(x, most));
        __m512i sum = _mm512_add_epi64(whole_low(mass), whole_high(mass));
        total = _mm512_add_epi64(total, sum);
        some = _mm512_mask_cmp_ps_mask(some, x, close, _CMP_GE_OQ);
        if (!some) continue;
        mass = _mm512_maskz_mov_ps(some, mass);
        inner = _mm512_add_epi64(inner, _mm512_add_epi64(whole_low(mass), whole_high(mass)));
    }
    *near = _mm512_reduce_add_epi64(inner);
    return _mm512_reduce_add_epi64(total);
}

static void extent(const float *values, int count, float *low, float *high) {
    __m512 least = _mm512_set1_ps(INFINITY), most = _mm512_set1_ps(-INFINITY);
    for (int i = 0; i < count; i += 16) {
        __mmask16 some = lanes(count - i);
        __m512 x = _mm512_maskz_loadu_ps(some, values + i);
        least = _mm512_mask_min_ps(least, some, least, x);
        most = _mm512_mask_max_ps(most, some, most, x);
    }
    *low = _mm512_reduce_min_ps(least);
    *high = _mm512_reduce_max_ps(most);
}

/* What the entries from `pivot` up weigh, or how many they are. */
static int64_t weight_above(const pool *p, int count, float pivot, int counted) {
    const __m512 least = _mm512_set1_ps(pivot);
    __m512i total = _mm512_setzero_si512();
    int64_t many = 0;
    for (int i = 0; i < count; i += 16) {
        __m512 x = _mm512_maskz_loadu_ps(lanes(count - i), p->values + i);
        __mmask16 up = _mm512_mask_cmp_ps_mask(lanes(count - i), x, least, _CMP_GE_OQ);
        many += __builtin_popcount(up);
        if (counted || !up) continue;
        __m512i low = _mm512_maskz_loadu_epi64((__mmask8)up, p->weights + i);
        __m512i high = _mm512_maskz_loadu_epi64((__mmask8)(up >> 8), p->weights + i + 8);
        total = _mm512_add_epi64(total, _mm512_add_epi64(low, high));
    }
    return counted ? many : _mm512_reduce_add_epi64(total);
}

/* Keep the entries from `pivot` up, or those below; returns how many. */
static int keep_side(const pool *p, int count, float pivot, int above, int counted) {
    const __m512 least = _mm512_set1_ps(pivot);
    int kept = 0;
    for (int i = 0; i < count; i += 16) {
        __mmask16 some = lanes(count - i);
        __m512 x = _mm512_maskz_loadu_ps(some, p->values + i);
        __mmask16 up = _mm512_cmp_ps_mask(x, least, _CMP_GE_OQ);
        some &= above ? up : (__mmask16)~up;
        int many = __builtin_popcount(some & 0xFF);
        if (!counted) {
            __m512i low = _mm512_loadu_si512(p->weights + i);
            __m512i high = _mm512_loadu_si512(p->weights + i + 8);
            low = _mm512_maskz_compress_epi64((__mmask8)some, low);
            high = _mm512_maskz_compress_epi64((__mmask8)(some >> 8), high);
            _mm512_storeu_si512(p->weights + kept, low);
            _mm512_storeu_si512(p->weights + kept + many, high);
        }
        _mm512_storeu_ps(p->values + kept, _mm512_maskz_compress_ps(some, x));
        kept += __builtin_popcount(some);
    }
    return kept;
}

/* The largest value such that the entries from it up weigh `goal`, or are so many: pivots halve the
   range of the values, and the side where the goal is reached stays. The pool is cut down. */
static float reach(const pool *p, int count, int64_t goal, int counted) {
    float low, high;
    extent(p->values, count, &low, &high);
    while (low < high) {
        float pivot = low * 0.5f + high * 0.5f;
        if (!(pivot > low && pivot <= high)) pivot = high;
        int64_t above = weight_above(p, count, pivot, counted);
        int enough = above >= goal;
        if (!enough) goal -= above;
        count = keep_side(p, count, pivot, enough, counted);
        extent(p->values, count, &low, &high);
    }
    return high;
}

static int64_t goal_of(int64_t total, float share) {
    int64_t goal = (int64_t)ceil((double)share * (double)total);
    return goal > 1 ? goal : 1;
}

/* The typical tokens: those nearest to the expected logit. */
static void typical_bounds(const row *r, float share, float top, const pool *p, bounds *b) {
    const bounds heavy = {fmaxf(top - WEIGHTLESS, -FLT_MAX), 0.0f, INFINITY};
    const int count = gather_entries(r, &heavy, p->values);
    int64_t moment, total = weigh_pool(p, count, top, &moment);
    b->centre = (float)((double)top - (double)moment / (double)total);
    for (int i = 0; i < count; i += 16) { /* nearest first, as reach takes the largest first */
        __m512 x = _mm512_sub_ps(_mm512_loadu_ps(p->values + i), _mm512_set1_ps(b->centre));
        _mm512_storeu_ps(p->values + i, _mm512_sub_ps(_mm512_setzero_ps(), _mm512_abs_ps(x)));
    }
    b->radius = -reach(p, count, goal_of(total, share), 0);
}

/* The tokens not below the top_k-th largest. Those near the top may do. */
static void top_k_bounds(const row *r, int64_t top_k, float top, const pool *p, bounds *b) {
    bounds some = *b;
    for (float far = 2.0f; far <= FAR; far *= 4.0f) {
        some.least = far < FAR ? fmaxf(top - far, -FLT_MAX) : -FLT_MAX;
        int count = gather_entries(r, &some, p->values);
        if (count < top_k) continue;
        if (count > top_k || some.least > -FLT_MAX) b->least = reach(p, count, top_k, 1);
        return;
    }
}

static void top_p_bounds(const row *r, float share, float top, const pool *p, bounds *b) {
    bounds some = *b;
    int64_t goal, near;
    if (b->least == -FLT_MAX && b->radius == INFINITY) {
        goal = goal_of(weigh_row(r, top, &near), share);
        some.least = fmaxf(near >= goal ? top - NEAR : top - WEIGHTLESS, -FLT_MAX);
        int count = gather_entries(r, &some, p->values);
        weigh_pool(p, count, top, NULL);
        b->least = reach(p, count, goal, 0);
        return;
    }
    int count = gather_entries(r, &some, p->values);
    goal = goal_of(weigh_pool(p, count, top, NULL), share);
    b->least = reach(p, count, goal, 0);
}

/* The bounds of a row whose largest entry is `top`, which is finite. */
static bounds bounds_of(const row *r, const limits *l, float top, const pool *p) {
    bounds b = {-FLT_MAX, 0.0f, INFINITY};
    if (l->typical_p < 1.0f) {
        float low;
        typical_bounds(r, l->typical_p, top, p, &b);
        extent(p->values, gather_entries(r, &b, p->values), &low, &top);
    }
    if (0 < l->top_k && l->top_k < r->width) top_k_bounds(r, l->top_k, top, p, &b);
    /* Of what top_k left; as likely as min_p says beside the likeliest of it. */
    if (l->top_p < 1.0f) top_p_bounds(r, l->top_p, top, p, &b);
    if (l->min_p > 0.0f) b.least = fmaxf(b.least, top + (float)log((double)l->min_p));
    return b;
}
