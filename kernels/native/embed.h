/* Rows of an embedding: of a table in bf16, or of the output matrix in its tiles. */

typedef struct {
    const bfloat16 *rows;  /* [tokens, width], or NULL */
    const uint8_t *tiles;  /* see matrix.h */
    int64_t tokens;
    int32_t width, bits;
} table;

/* Output `output` of a matrix in tiles: to[width], each weight rounded as d * code and then + m. */
static void untile(const table *e, int64_t output, float *to) {
    const int bytes = tile_bytes(e->bits), lane = (int)(output % LANES);
    const uint8_t *data = e->tiles + (size_t)(output / LANES) * (e->width / GROUP) * bytes;
    for (int g = 0; g < e->width / GROUP; g++, data += bytes) {
        uint8_t codes[GROUP];
        for (int c = 0; c < GROUP / 4; c++) {
            const uint8_t *four = data + 64 * (e->bits == 8 ? c : c / 2) + 4 * lane;
            for (int i = 0; i < 4; i++)
                codes[4 * c + i] = e->bits == 8 ? four[i] : c % 2 ? four[i] >> 4 : four[i] & 15;
        }
        uint16_t numbers[2];
        memcpy(numbers, data + 64 * e->bits + 2 * lane, 2);
        memcpy(numbers + 1, data + 64 * e->bits + 2 * LANES + 2 * lane, 2);
        const __m512 d = _mm512_set1_ps(_cvtsh_ss(numbers[0]));
        const __m512 m = _mm512_set1_ps(_cvtsh_ss(numbers[1]));
        for (int i = 0; i < GROUP; i += 16) {
            __m512i wide = _mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)(codes + i)));
            __m512 scaled = _mm512_mul_ps(_mm512_cvtepi32_ps(wide), d);
            _mm512_storeu_ps(to + g * GROUP + i, _mm512_add_ps(scaled, m));
        }
    }
}

static void embed(const table *e, int64_t token, float *to) {
    if (e->rows == NULL) {
        untile(e, token, to);
        return;
    }
    const bfloat16 *from = e->rows + (size_t)token * e->width;
    for (int i = 0; i < e->width; i += 16) _mm512_storeu_ps(to + i, load_bf16(from + i));
}

/* Whether all of `count` tokens have a row. */
static int has_rows(const table *e, const int64_t *tokens, int count) {
    for (int i = 0; i < count; i++)
        if (tokens[i] < 0 || tokens[i] >= e->tokens) return 0;
    return 1;
}
