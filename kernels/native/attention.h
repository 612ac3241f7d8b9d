/* Causal attention of packed rows over paged keys and values.

   A row's result is made tile by tile of 64 keys, from the first key on (online softmax: Milakov and
   Gimelshein 2018), by the same operations whatever rows are computed beside it. */

#define TILE 64
#define ROWS_AT_ONCE 16

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

/* What one member needs for a task. */
typedef struct {
    bfloat16 queries[MOST_QUERIES * MOST_DIM];
    float values[TILE * MOST_DIM];
    float weights[MOST_QUERIES * TILE];
    float largest[MOST_QUERIES], total[MOST_QUERIES];
} bench;

/* Scores of one query with the 64 keys: lanes of out[4]. */
static inline __attribute__((always_inline)) void scores(
    const bfloat16 *query, const bfloat16 *const *keys, int dim, __m512 out[4]) {
    for (int part = 0; part < 4; part++) {
        __m512 z[16];
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++) {
            const bfloat16 *key = keys[16 * part + i];
            __m512 sum = _mm512_setzero_ps();
            for (int d = 0; d < dim; d += 32)
                sum = _mm512_dpbf16_ps(sum, (__m512bh)_mm512_loadu_si512(query + d),
                                       (__m512bh)_mm512_loadu_si512(key + d));
            z[i] = sum;
        }
        out[part] = sums_ps(z);
    }
}

/* Scores become weights of this tile; what was gathered before is scaled down where a larger score
   has come. seen: how many of the tile's keys the query sees. Returns the factor. */
static inline float weigh(__m512 score[4], int seen, float *weights, float *largest, float *total) {
    __m512 most = _mm512_set1_ps(-INFINITY);
    __mmask16 mask[4];
    for (int i = 0; i < 4; i++) {
        int left = seen - 16 * i;
        mask[i] = left >= 16 ? 0xFFFF : left <= 0 ? 0 : (__mmask16)((1u << left) - 1);
        most = _mm512_mask_max_ps(most, mask[i], most, score[i]);
    }
    float before = *largest, now = _mm512_reduce_max_ps(most);
    if (!(now > before)) now = before;
    __m512 sum = _mm512_setzero_ps(), top = _mm512_set1_ps(now);
    for (int i = 0; i < 4; i++) {
        __m512 e = _mm512_maskz_mov_ps(mask[i], exp_ps(_mm512_sub_ps(score[i], top)));
        _mm512_storeu_ps(weights + 16 * i, e);
        sum = _mm512_add_ps(sum, e);
    }
    float factor = 1.0f;
    if (now != before)
        factor = _mm512_cvtss_f32(exp_ps(_mm512_set1_ps(before - now)));
    *total = *total * factor + _mm512_reduce_add_ps(sum);
    *largest = now;
    return factor;
}

/* y[dim] = y * factor + weights · values, for `count` queries at once. */
static inline __attribute__((always_inline)) void gather(
    const float *weights, const float *values, const float *factors, int seen, int dim, int count,
    float *const *y) {
    for (int d = 0; d < dim; d += 64) {
        __m512 sum[4][4];
#pragma GCC unroll 4
        for (int q = 0; q < count; q++) {
            __m512 factor = _mm512_set1_ps(factors[q]);
#pragma GCC unroll 4
            for (int i = 0; i < 4; i++)
                sum[q][i] = _mm512_mul_ps(_mm512_loadu_ps(y[q] + d + 16 * i), factor);
        }
        for (int k = 0; k < seen; k++) {
            const float *value = values + (size_t)k * dim + d;
#pragma GCC unroll 4
            for (int q = 0; q < count; q++) {
                __m512 weight = _mm512_set1_ps(weights[q * TILE + k]);
#pragma GCC unroll 4
                for (int i = 0; i < 4; i++)
                    sum[q][i] = _mm512_fmadd_ps(weight, _mm512_loadu_ps(value + 16 * i), sum[q][i]);
            }
        }
#pragma GCC unroll 4
        for (int q = 0; q < count; q++)
#pragma GCC unroll 4
            for (int i = 0; i < 4; i++) _mm512_storeu_ps(y[q] + d + 16 * i, sum[q][i]);
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
    float *y[MOST_QUERIES];
    for (int q = 0; q < queries; q++) {
        int row = sp->row + p->first + q / group, head = kv_head * group + q % group;
        const float *from = qkv + (size_t)row * width + (size_t)head * dim;
        for (int d = 0; d < dim; d += 16)
            store_bf16(b->queries + (size_t)q * dim + d,
                       _mm512_mul_ps(_mm512_loadu_ps(from + d), scale));
        y[q] = out + ((size_t)row * s->heads + head) * dim;
        memset(y[q], 0, dim * sizeof(float));
        b->largest[q] = -INFINITY;
        b->total[q] = 0.0f;
    }
    const int last = sp->start + p->first + p->count - 1;
    for (int begin = 0; begin <= last; begin += TILE) {
        const int there = last + 1 - begin < TILE ? last + 1 - begin : TILE;
        const bfloat16 *keys[TILE];
        for (int k = 0; k < there; k += st->block_size) {
            const size_t cell = (size_t)table[(begin + k) / st->block_size] * st->block_size * dim;
            const int end = there - k < st->block_size ? there - k : st->block_size;
            for (int i = 0; i < end; i++) keys[k + i] = all_keys + cell + (size_t)i * dim;
            const bfloat16 *values = all_values + cell;
            float *to = b->values + (size_t)k * dim;
            for (int d = 0; d < end * dim; d += 16) _mm512_storeu_ps(to + d, load_bf16(values + d));
        }
        for (int k = there; k < TILE; k++) keys[k] = keys[0]; /* read in vain, and masked */
        float factors[MOST_QUERIES];
        int seen[MOST_QUERIES];
        for (int q = 0; q < queries; q++) {
            int own = sp->start + p->first + q / group + 1 - begin;
            seen[q] = own < there ? own : there;
            if (seen[q] <= 0) continue;
            __m512 score[4];
            scores(b->queries + (size_t)q * dim, keys, dim, score);
            factors[q] = weigh(score, seen[q], b->weights + q * TILE, &b->largest[q], &b->total[q]);
        }
        for (int q = 0; q < queries;) {
            if (seen[q] <= 0) {
                q++;
                continue;
            }
            /* Weights behind what a query sees are zero, so the last of four says how far to go. */
            int together = queries - q < 4 ? 1 : 4, most = seen[q + together - 1];
            const float *weights = b->weights + q * TILE;
            if (together == 4) gather(weights, b->values, factors + q, most, dim, 4, y + q);
            else gather(weights, b->values, factors + q, most, dim, 1, y + q);
            q += together;
        }
    }
    for (int q = 0; q < queries; q++) {
        __m512 inverse = _mm512_set1_ps(1.0f / b->total[q]);
        for (int d = 0; d < dim; d += 16)
            _mm512_storeu_ps(y[q] + d, _mm512_mul_ps(_mm512_loadu_ps(y[q] + d), inverse));
    }
}
