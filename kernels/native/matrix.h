/* Products of packed rows with a matrix of low-bit weights.

   Weights: groups of GROUP inputs, unsigned codes of 4 or 8 bits, and for each output and group a
   scale d and a minimum m in half precision: w = d * code + m. Rows: 8-bit integers with a scale s
   for each group. So an output is the sum over groups of d * s * (sum of code * row) + m * s *
   (sum of row). The inner sums are of integers and exact, the outer ones run from the first group to
   the last: a row's result is the same whatever other rows there are. */

#define GROUP 32
#define LANES 16
#define MOST_TILES 2
#define MOST_ROWS 8   /* whose sums with one tile fit in the registers */
#define ROWS_OF_TWO 6 /* the same with two tiles */
#define ROWS_IN_CACHE 60
#define AHEAD 8192 /* bytes of weights that are under way from memory */

typedef struct {
    const uint8_t *tiles;  /* [outputs/LANES, inputs/GROUP, tile_bytes(bits)] */
    const float *bias;     /* [outputs] or NULL */
    int32_t outputs, inputs, bits, stays;
} matrix;

/* Rows in 8 bits: codes [rows, width]; of each group the scale and scale * (sum of codes). */
typedef struct {
    int8_t *codes;
    float *scales, *sums;
    int width;
} packed_rows;

static inline int tile_bytes(int bits) { return LANES * GROUP * bits / 8 + 2 * LANES * 2; }

/* Pack the group at index `g` of row `r`, whose 32 values are in two halves. NaN and infinity come
   out as NaN. */
static inline void pack_group(const packed_rows *to, int r, int g, __m512 a, __m512 b) {
    float most = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(a), _mm512_abs_ps(b)));
    __mmask16 wild = _mm512_cmp_ps_mask(_mm512_sub_ps(a, a), _mm512_setzero_ps(), _CMP_NEQ_UQ) |
                     _mm512_cmp_ps_mask(_mm512_sub_ps(b, b), _mm512_setzero_ps(), _CMP_NEQ_UQ);
    float scale = wild ? NAN : most / 127.0f;
    /* The reciprocal of the smallest numbers is beyond single precision. */
    float factor = !wild && most > 0.0f ? fminf(127.0f / most, 3.4028234664e38f) : 0.0f;
    __m512 inverse = _mm512_set1_ps(factor);
    __m512i ia = _mm512_cvtps_epi32(_mm512_mul_ps(a, inverse));
    __m512i ib = _mm512_cvtps_epi32(_mm512_mul_ps(b, inverse));
    int8_t *codes = to->codes + (size_t)r * to->width + g * GROUP;
    _mm_storeu_si128((void *)codes, _mm512_cvtsepi32_epi8(ia));
    _mm_storeu_si128((void *)(codes + 16), _mm512_cvtsepi32_epi8(ib));
    size_t at = (size_t)r * (to->width / GROUP) + g;
    to->scales[at] = scale;
    to->sums[at] = scale * (float)_mm512_reduce_add_epi32(_mm512_add_epi32(ia, ib));
}

static inline void pack_row(const packed_rows *to, int r, const float *x) {
    for (int g = 0; g < to->width / GROUP; g++)
        pack_group(to, r, g, _mm512_loadu_ps(x + g * GROUP), _mm512_loadu_ps(x + g * GROUP + 16));
}

/* How weights come from memory. They are read once a step and are more than any cache holds, so they
   must not push out what everything else between two steps needs, which takes twice as long then. */
typedef enum { THERE, PASSING, STAYING } fetching;

/* Have a group of a tile on its way. */
static inline __attribute__((always_inline)) void fetch_group(const uint8_t *data, int bits,
                                                              fetching how) {
#pragma GCC unroll 9
    for (int line = 0; line <= bits; line++) {
        if (how == PASSING) _mm_prefetch((const char *)data + 64 * line, _MM_HINT_NTA);
        else _mm_prefetch((const char *)data + 64 * line, _MM_HINT_T0);
    }
}

/* `tiles` tiles of LANES outputs each for `rows` rows from the first of `x` on; `tiles`, `rows` and
   `bits` are constants wherever this is used. A row's numbers are read once for all of the tiles, as
   it is reading that takes longest. y: [rows, stride], to be set or added to. */
static inline __attribute__((always_inline)) void tile_product(
    const matrix *w, int tile, const packed_rows *x, int first, int tiles, int rows, int bits,
    fetching how, float *y, int stride, int add) {
    const int groups = w->inputs / GROUP, bytes = tile_bytes(bits);
    const uint8_t *data = w->tiles + (size_t)tile * groups * bytes;
    const size_t next = (size_t)groups * bytes;
    const __m512i low = _mm512_set1_epi8(15);
    const int8_t *codes = x->codes + (size_t)first * x->width;
    const float *scales = x->scales + (size_t)first * groups, *sums = x->sums + (size_t)first * groups;
    __m512 total[MOST_ROWS][MOST_TILES];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
        for (int t = 0; t < tiles; t++) total[r][t] = _mm512_setzero_ps();
    for (int g = 0; g < groups; g++, data += bytes, codes += GROUP) {
        __m512i dots[MOST_ROWS][MOST_TILES];
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
            for (int t = 0; t < tiles; t++) dots[r][t] = _mm512_setzero_si512();
        if (how != THERE) {
            const size_t ahead = tiles == 1 ? AHEAD : tiles * next;
#pragma GCC unroll 2
            for (int t = 0; t < tiles; t++) fetch_group(data + t * next + ahead, bits, how);
        }
#pragma GCC unroll 8
        for (int c = 0; c < 8; c++) { /* four inputs of each output at a time */
            __m512i v[MOST_TILES];
#pragma GCC unroll 2
            for (int t = 0; t < tiles; t++) {
                if (bits == 8) {
                    v[t] = _mm512_loadu_si512(data + t * next + 64 * c);
                } else {
                    v[t] = _mm512_loadu_si512(data + t * next + 64 * (c / 2));
                    v[t] = _mm512_and_si512(c % 2 ? _mm512_srli_epi16(v[t], 4) : v[t], low);
                }
            }
#pragma GCC unroll 8
            for (int r = 0; r < rows; r++) {
                int32_t four;
                memcpy(&four, codes + (size_t)r * x->width + 4 * c, 4);
                const __m512i row = _mm512_set1_epi32(four);
#pragma GCC unroll 2
                for (int t = 0; t < tiles; t++)
                    dots[r][t] = _mm512_dpbusd_epi32(dots[r][t], v[t], row);
            }
        }
        __m512 d[MOST_TILES], m[MOST_TILES];
#pragma GCC unroll 2
        for (int t = 0; t < tiles; t++) {
            d[t] = load_f16(data + t * next + 64 * bits);
            m[t] = load_f16(data + t * next + 64 * bits + 2 * LANES);
        }
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            const __m512 scale = _mm512_set1_ps(scales[(size_t)r * groups + g]);
            const __m512 sum = _mm512_set1_ps(sums[(size_t)r * groups + g]);
#pragma GCC unroll 2
            for (int t = 0; t < tiles; t++) {
                const __m512 dot = _mm512_cvtepi32_ps(dots[r][t]);
                total[r][t] = _mm512_fmadd_ps(dot, _mm512_mul_ps(d[t], scale), total[r][t]);
                total[r][t] = _mm512_fmadd_ps(m[t], sum, total[r][t]);
            }
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
        for (int t = 0; t < tiles; t++) {
            const int output = LANES * (tile + t);
            float *to = y + (size_t)(first + r) * stride + output;
            const __m512 bias = w->bias ? _mm512_loadu_ps(w->bias + output) : _mm512_setzero_ps();
            const __m512 sum = _mm512_add_ps(total[r][t], bias);
            _mm512_storeu_ps(to, add ? _mm512_add_ps(_mm512_loadu_ps(to), sum) : sum);
        }
}

#define CASE(tiles, rows) \
    case rows: \
        if (w->bits == 4) tile_product(w, tile, x, first, tiles, rows, 4, how, y, stride, add); \
        else tile_product(w, tile, x, first, tiles, rows, 8, how, y, stride, add); \
        break;

static void one_tile(const matrix *w, int tile, const packed_rows *x, int first, int rows,
                     fetching how, float *y, int stride, int add) {
    switch (rows) {
        CASE(1, 1) CASE(1, 2) CASE(1, 3) CASE(1, 4) CASE(1, 5) CASE(1, 6) CASE(1, 7) CASE(1, 8)
    }
}

static void two_tiles(const matrix *w, int tile, const packed_rows *x, int first, int rows,
                      fetching how, float *y, int stride, int add) {
    switch (rows) { CASE(2, 4) CASE(2, 5) CASE(2, 6) }
}

/* y [rows, stride] of all rows and the tiles [from, to): a tile's weights are read once for as many
   rows as stay in the cache. For few rows they come from memory, which is faster one after the
   other. */
static void product(const matrix *w, int from, int to, const packed_rows *x, int rows, float *y,
                    int stride, int add) {
    for (int start = 0; start < rows; start += ROWS_IN_CACHE) {
        const int left = rows - start, count = left < ROWS_IN_CACHE ? left : ROWS_IN_CACHE;
        const fetching how = w->stays || left > count ? STAYING : PASSING;
        if (count <= MOST_ROWS) {
            for (int tile = from; tile < to; tile++)
                one_tile(w, tile, x, start, count, how, y, stride, add);
            continue;
        }
        /* In parts that are as large as one another: nine rows are four and five. */
        const int parts = (count + ROWS_OF_TWO - 1) / ROWS_OF_TWO;
        for (int tile = from; tile < to; tile += 2)
            for (int part = 0; part < parts; part++) {
                const int first = start + count * part / parts;
                const int some = start + count * (part + 1) / parts - first;
                const fetching now = part ? THERE : how;
                if (tile + 1 < to) two_tiles(w, tile, x, first, some, now, y, stride, add);
                else one_tile(w, tile, x, first, some, now, y, stride, add);
            }
    }
}
