/* Causal attention of packed rows over paged keys and values.

   A row's result is made tile by tile of 64 keys, from the first key on (online softmax: Milakov and
   Gimelshein 2018), by the same operations whatever rows are computed beside it. Both products
   multiply pairs of bf16 numbers and add the pairs one after the other, a score's in the order of
   dimensions and a value's in that of keys, in single precision. So weights are rounded to bf16, and
   it is the rounded ones that are added up. */

#define TILE 64
#define ROWS_AT_ONCE 64

/* `count` rows of one sequence, consecutive from position `start` and packed row `row` on; its block
   table begins at `table` of the step's tables. */
typedef struct {
    int32_t row, count, start, table;
} span;

typedef struct {
    int32_t rows, spans, block_size, blocks;
    const int64_t *positions, *where;  /* [rows]: position, and place in the cache */
    const span *span;
    const int32_t *tables;
} step;

/* Some rows of one span. */
typedef struct {
    int32_t span, first, count;
} piece;

typedef struct {
    int heads, kv_heads, dim;
    float scale;
} shape;

#define MOST_QUERIES 64
#define MOST_DIM 256
#define TOGETHER 6 /* queries whose sums fit in the registers */

/* Two bf16 numbers that are multiplied together. */
typedef uint32_t pair;

/* What one member needs for a task. A query is a row of a piece with one of its heads. */
typedef struct {
    _Alignas(64) pair keys[MOST_DIM / 2 * TILE];      /* [dim / 2, TILE] */
    pair values[MOST_DIM / 64 * TILE / 2 * 64];       /* [dim / 64, TILE / 2, 64]: see turn_values */
    pair queries[MOST_QUERIES * MOST_DIM / 2];        /* [queries, dim / 2] */
    pair weights[TOGETHER * TILE / 2];                /* [together, TILE / 2] */
    float scores[TOGETHER * TILE];                    /* [together, TILE] */
    float mixed[MOST_QUERIES * MOST_DIM];             /* [queries, dim], dimensions as in values */
    float total[MOST_QUERIES * LANES];                /* [queries, LANES], to be added up */
    float largest[MOST_QUERIES], factors[TOGETHER];   /* in powers of two */
} bench;

static const bfloat16 nothing[MOST_DIM];

/* 2^x, to four millionths of it. 1 exactly at 0, and 0 for x far below. */
static inline __m512 exp2_ps(__m512 x) {
    __m512 r = _mm512_reduce_ps(x, 1); /* x less the whole number below it */
    __m512 p = _mm512_set1_ps(1.3555746924e-2f);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.2032369505e-2f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(2.4137976274e-1f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(6.9303212083e-1f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(p, x);
}

/* sums[count, 64] += pairs of a[count, stride] · those of b[pairs, 64]; count is a constant. */
static inline __attribute__((always_inline)) void add_pairs(
    const pair *a, int stride, const pair *b, int pairs, int count, __m512 sums[TOGETHER][4]) {
    for (int p = 0; p < pairs; p++, b += 64) {
        const __m512bh b0 = (__m512bh)_mm512_load_si512(b);
        const __m512bh b1 = (__m512bh)_mm512_load_si512(b + 16);
        const __m512bh b2 = (__m512bh)_mm512_load_si512(b + 32);
        const __m512bh b3 = (__m512bh)_mm512_load_si512(b + 48);
#pragma GCC unroll 6
        for (int q = 0; q < count; q++) {
            const __m512bh both = (__m512bh)_mm512_set1_epi32((int)a[q * stride + p]);
            sums[q][0] = _mm512_dpbf16_ps(sums[q][0], both, b0);
            sums[q][1] = _mm512_dpbf16_ps(sums[q][1], both, b1);
            sums[q][2] = _mm512_dpbf16_ps(sums[q][2], both, b2);
            sums[q][3] = _mm512_dpbf16_ps(sums[q][3], both, b3);
        }
    }
}

/* Scores of some queries with the keys of the tile. */
static inline __attribute__((always_inline)) void score(bench *b, int query, int dim, int count) {
    __m512 sums[TOGETHER][4];
#pragma GCC unroll 6
    for (int q = 0; q < count; q++)
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) sums[q][i] = _mm512_setzero_ps();
    add_pairs(b->queries + (size_t)query * dim / 2, dim / 2, b->keys, dim / 2, count, sums);
#pragma GCC unroll 6
    for (int q = 0; q < count; q++)
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) _mm512_store_ps(b->scores + q * TILE + 16 * i, sums[q][i]);
}

/* What was gathered before is scaled, and the values of the tile are added by their weights. */
static inline __attribute__((always_inline)) void gather(bench *b, int query, int dim, int count) {
    for (int d = 0; d < dim; d += 64) {
        float *mixed = b->mixed + (size_t)query * dim + d;
        __m512 sums[TOGETHER][4];
#pragma GCC unroll 6
        for (int q = 0; q < count; q++) {
            const __m512 factor = _mm512_set1_ps(b->factors[q]);
#pragma GCC unroll 4
            for (int i = 0; i < 4; i++)
                sums[q][i] = _mm512_mul_ps(_mm512_load_ps(mixed + q * dim + 16 * i), factor);
        }
        add_pairs(b->weights, TILE / 2, b->values + d * TILE / 2, TILE / 2, count, sums);
#pragma GCC unroll 6
        for (int q = 0; q < count; q++)
#pragma GCC unroll 4
            for (int i = 0; i < 4; i++) _mm512_store_ps(mixed + q * dim + 16 * i, sums[q][i]);
    }
}

/* Scores of a query become its weights of this tile; the factor says how far what came before is to
   be scaled down, because a larger score has come. seen: how many of the keys the query sees. */
static inline void weigh(bench *b, int query, int q, int seen) {
    const __m512 log2e = _mm512_set1_ps(1.44269504f), none = _mm512_set1_ps(-INFINITY);
    __mmask16 mask[4];
    __m512 at[4], e[4], most = none;
    for (int i = 0; i < 4; i++) {
        int left = seen - 16 * i;
        mask[i] = left >= 16 ? 0xFFFF : left <= 0 ? 0 : (__mmask16)((1u << left) - 1);
        at[i] = _mm512_load_ps(b->scores + q * TILE + 16 * i);
        most = _mm512_mask_max_ps(most, mask[i], most, at[i]);
    }
    float before = b->largest[query], now = _mm512_reduce_max_ps(most) * 1.44269504f;
    if (!(now > before)) now = before;
    const __m512 top = _mm512_set1_ps(now);
    for (int i = 0; i < 4; i++)
        e[i] = _mm512_maskz_mov_ps(mask[i], exp2_ps(_mm512_fmsub_ps(at[i], log2e, top)));
    const __m512bh low = (__m512bh)_mm512_cvtne2ps_pbh(e[1], e[0]);
    const __m512bh high = (__m512bh)_mm512_cvtne2ps_pbh(e[3], e[2]);
    _mm512_store_si512(b->weights + q * TILE / 2, (__m512i)low);
    _mm512_store_si512(b->weights + q * TILE / 2 + 16, (__m512i)high);
    float factor = 1.0f;
    if (now != before) factor = _mm512_cvtss_f32(exp2_ps(_mm512_set1_ps(before - now)));
    const __m512bh ones = (__m512bh)_mm512_set1_epi32(0x3F803F80);
    float *total = b->total + (size_t)query * LANES;
    __m512 sum = _mm512_mul_ps(_mm512_load_ps(total), _mm512_set1_ps(factor));
    sum = _mm512_dpbf16_ps(_mm512_dpbf16_ps(sum, low, ones), high, ones);
    _mm512_store_ps(total, sum);
    b->largest[query] = now;
    b->factors[q] = factor;
}

#define TILE_CASE(count) \
    case count: \
        score(b, query, dim, count); \
        for (int q = 0; q < count; q++) weigh(b, query, q, seen[q]), query++; \
        gather(b, query - count, dim, count); \
        break;

/* The tile's part of `count` queries. */
static void attend_tile(bench *b, int query, int count, const int *seen, int dim) {
    switch (count) {
        TILE_CASE(1) TILE_CASE(2) TILE_CASE(3) TILE_CASE(4) TILE_CASE(5) TILE_CASE(6)
    }
}

/* The keys of a tile, so that a pair of dimensions of all keys lies side by side. */
static void turn_keys(pair *to, const bfloat16 *const keys[TILE], int dim) {
    for (int d = 0; d < dim; d += 8)
        for (int k = 0; k < TILE; k += 16) {
            __m512i r[4];
#pragma GCC unroll 4
            for (int i = 0; i < 4; i++) { /* quarter j of r[i]: eight dimensions of key 4j + i */
                const bfloat16 *const *key = keys + k + i;
                r[i] = _mm512_castsi128_si512(_mm_loadu_si128((const void *)(key[0] + d)));
                r[i] = _mm512_mask_broadcast_i32x4(
                    r[i], 0x00F0, _mm_loadu_si128((const void *)(key[4] + d)));
                r[i] = _mm512_mask_broadcast_i32x4(
                    r[i], 0x0F00, _mm_loadu_si128((const void *)(key[8] + d)));
                r[i] = _mm512_mask_broadcast_i32x4(
                    r[i], 0xF000, _mm_loadu_si128((const void *)(key[12] + d)));
            }
            const __m512i a = _mm512_unpacklo_epi32(r[0], r[1]);
            const __m512i b = _mm512_unpacklo_epi32(r[2], r[3]);
            const __m512i c = _mm512_unpackhi_epi32(r[0], r[1]);
            const __m512i e = _mm512_unpackhi_epi32(r[2], r[3]);
            pair *out = to + (size_t)d / 2 * TILE + k;
            _mm512_store_si512(out, _mm512_unpacklo_epi64(a, b));
            _mm512_store_si512(out + TILE, _mm512_unpackhi_epi64(a, b));
            _mm512_store_si512(out + 2 * TILE, _mm512_unpacklo_epi64(c, e));
            _mm512_store_si512(out + 3 * TILE, _mm512_unpackhi_epi64(c, e));
        }
}

/* The values of a tile, so that those of two keys lie side by side. Of 32 dimensions those whose
   number has no 4 in it come first: unpacking leaves them so, and store_mixed puts them right. */
static void turn_values(pair *to, const bfloat16 *const values[TILE], int dim) {
    for (int d = 0; d < dim; d += 64)
        for (int k = 0; k < TILE; k += 2, to += 64)
#pragma GCC unroll 2
            for (int i = 0; i < 64; i += 32) {
                const __m512i a = _mm512_loadu_si512(values[k] + d + i);
                const __m512i b = _mm512_loadu_si512(values[k + 1] + d + i);
                _mm512_store_si512(to + i, _mm512_unpacklo_epi16(a, b));
                _mm512_store_si512(to + i + 16, _mm512_unpackhi_epi16(a, b));
            }
}

static void store_mixed(const bench *b, int query, int dim, float *out) {
    const float *mixed = b->mixed + (size_t)query * dim, *total = b->total + (size_t)query * LANES;
    const __m512 inverse = _mm512_set1_ps(1.0f / _mm512_reduce_add_ps(_mm512_load_ps(total)));
    const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
    for (int d = 0; d < dim; d += 32) {
        const __m512 low = _mm512_mul_ps(_mm512_load_ps(mixed + d), inverse);
        const __m512 high = _mm512_mul_ps(_mm512_load_ps(mixed + d + 16), inverse);
        _mm512_storeu_ps(out + d, _mm512_permutex2var_ps(low, first, high));
        _mm512_storeu_ps(out + d + 16, _mm512_permutex2var_ps(low, second, high));
    }
}

/* Where the keys and values of a tile lie, those before position `end` of the sequence; zeros stand
   behind them, whose weight is none. */
static void find_tile(const step *st, const int32_t *table, const bfloat16 *all_keys,
                      const bfloat16 *all_values, int dim, int begin, int end,
                      const bfloat16 *keys[TILE], const bfloat16 *values[TILE]) {
    const int size = st->block_size; /* which divides TILE */
    for (int k = 0; k < TILE; k++) keys[k] = values[k] = nothing;
    for (int k = 0; k < TILE && begin + k < end; k += size) {
        const size_t cell = (size_t)table[(begin + k) / size] * size * dim;
        for (int i = 0; i < size && begin + k + i < end; i++) {
            keys[k + i] = all_keys + cell + (size_t)i * dim;
            values[k + i] = all_values + cell + (size_t)i * dim;
        }
    }
}

/* Have them brought into the cache. */
static void fetch_tile(const bfloat16 *const keys[TILE], const bfloat16 *const values[TILE],
                       int dim) {
    for (int k = 0; k < TILE; k++)
        for (int d = 0; d < dim; d += 32) {
            _mm_prefetch((const char *)(keys[k] + d), _MM_HINT_T1);
            _mm_prefetch((const char *)(values[k] + d), _MM_HINT_T1);
        }
}

/* The rows of a piece with the query heads of one KV head. qkv: [rows, width], queries first and
   already rotated. cache: [2 * kv_heads, blocks, block_size * dim]. out: [rows, heads * dim]. */
static void attend_piece(const shape *s, const step *st, const piece *p, int kv_head,
                         const float *qkv, int width, const bfloat16 *cache, float *out, bench *b) {
    const span *sp = st->span + p->span;
    const int32_t *table = st->tables + sp->table;
    const int group = s->heads / s->kv_heads, dim = s->dim, queries = p->count * group;
    const size_t head_size = (size_t)st->blocks * st->block_size * dim;
    const bfloat16 *all_keys = cache + kv_head * head_size;
    const bfloat16 *all_values = cache + (s->kv_heads + kv_head) * head_size;
    const __m512 scale = _mm512_set1_ps(s->scale);
    const int row = sp->row + p->first, first = sp->start + p->first, end = first + p->count;
    for (int q = 0; q < queries; q++) {
        const float *from = qkv + (size_t)(row + q / group) * width +
                            (size_t)(kv_head * group + q % group) * dim;
        bfloat16 *to = (bfloat16 *)(b->queries + (size_t)q * dim / 2);
        for (int d = 0; d < dim; d += 16)
            store_bf16(to + d, _mm512_mul_ps(_mm512_loadu_ps(from + d), scale));
        b->largest[q] = -INFINITY;
    }
    memset(b->mixed, 0, (size_t)queries * dim * sizeof(float));
    memset(b->total, 0, (size_t)queries * LANES * sizeof(float));
    const bfloat16 *keys[TILE], *values[TILE];
    find_tile(st, table, all_keys, all_values, dim, 0, end, keys, values);
    for (int begin = 0; begin < end; begin += TILE) {
        turn_keys(b->keys, keys, dim);
        turn_values(b->values, values, dim);
        if (begin + TILE < end) { /* the next one comes from memory meanwhile */
            find_tile(st, table, all_keys, all_values, dim, begin + TILE, end, keys, values);
            fetch_tile(keys, values, dim);
        }
        for (int q = 0; q < queries; q += TOGETHER) {
            const int count = queries - q < TOGETHER ? queries - q : TOGETHER;
            int seen[TOGETHER];
            for (int i = 0; i < count; i++) {
                const int own = first + (q + i) / group + 1 - begin;
                seen[i] = own < 0 ? 0 : own < TILE ? own : TILE;
            }
            /* Later rows see more. A weight of nothing changes no sum, to the last bit. */
            if (seen[count - 1] > 0) attend_tile(b, q, count, seen, dim);
        }
    }
    for (int q = 0; q < queries; q++)
        store_mixed(b, q, dim, out + ((size_t)(row + q / group) * s->heads + kv_head * group +
                                      q % group) * dim);
}
