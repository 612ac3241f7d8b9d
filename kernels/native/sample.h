/* A token for each of some rows of logits, as kernels/sample.py specifies it, and whether rows are
   finite. A row is gone through in stretches of a fixed size, so that its token depends neither on
   other rows nor on the number of threads. */

#define STRETCH 4096
#define ALONE 16384 /* so few numbers are looked at sooner than others are called */

typedef struct {
    const float *logits;  /* [rows, width], rows `stride` apart */
    int64_t stride;
    int32_t rows, width;
    const float *temperature, *typical_p, *top_p, *min_p;  /* [rows] each */
    const int64_t *top_k, *keys;                           /* [rows] each */
    const int64_t *tokens; /* [width], what columns stand for; or NULL where they are tokens */
    int64_t *chosen;       /* [rows]: columns */
} choice;

/* What the best of some columns scores, and which it is. */
typedef struct {
    float score;
    int32_t column;
} vote;

/* How a row is drawn, if chance has a say: `first` is the first of its best-scoring columns so far. */
typedef struct {
    bounds bounds;
    float heat;
    int32_t drawn;
    int64_t key;
    vote first;
} draw;

typedef struct {
    const choice *c;
    int stretches, pool_size;
    float *peaks; /* [rows, stretches] */
    draw *draws;  /* [rows] */
    vote *votes;  /* [rows, stretches] */
    float *values;
    int64_t *weights; /* pools of all members */
} choose_run;

static const float *logits_of(const choice *c, int row) { return c->logits + row * c->stride; }

static int stretch_end(const choice *c, int stretch) {
    return c->width - stretch * STRETCH < STRETCH ? c->width : (stretch + 1) * STRETCH;
}

/* The largest number from `from` to before `end`; NaN where there is one. */
static float peak_of(const float *x, int from, int end) {
    __m512 most = _mm512_set1_ps(-INFINITY);
    __mmask16 strange = 0;
    for (int i = from; i < end; i += 16) {
        __m512 v = _mm512_mask_loadu_ps(most, lanes(end - i), x + i);
        strange |= _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
        most = _mm512_max_ps(most, v);
    }
    return strange ? NAN : _mm512_reduce_max_ps(most);
}

static int first_equal(const float *x, int from, int end, float value) {
    for (int i = from; i < end; i += 16) {
        __m512 v = _mm512_maskz_loadu_ps(lanes(end - i), x + i), wanted = _mm512_set1_ps(value);
        __mmask16 hit = _mm512_mask_cmp_ps_mask(lanes(end - i), v, wanted, _CMP_EQ_OQ);
        if (isnan(value)) hit = _mm512_mask_cmp_ps_mask(lanes(end - i), v, v, _CMP_UNORD_Q);
        if (hit) return i + __builtin_ctz(hit);
    }
    return 0;
}

/* The first of a row's largest columns, NaN above all. */
static int first_peak(const choose_run *r, int row, float *peak) {
    const float *peaks = r->peaks + (size_t)row * r->stretches;
    int best = 0;
    for (int i = 1; i < r->stretches && !isnan(peaks[best]); i++)
        if (peaks[i] > peaks[best] || isnan(peaks[i])) best = i;
    *peak = peaks[best];
    return first_equal(logits_of(r->c, row), best * STRETCH, stretch_end(r->c, best), *peak);
}

static int first_infinite(const float *x, int width, float heat) {
    for (int i = 0; i < width; i++)
        if (x[i] / heat == INFINITY) return i;
    return 0;
}

static inline __m512i tokens_at(const choice *c, int column, __mmask16 some) {
    if (c->tokens == NULL)
        return _mm512_add_epi32(_mm512_set1_epi32(column), _mm512_setr_epi32(
            0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
    const int64_t *from = c->tokens + column;
    __m512i low = _mm512_maskz_loadu_epi64((__mmask8)some, from);
    __m512i high = _mm512_maskz_loadu_epi64((__mmask8)(some >> 8), from + 8);
    return _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtepi64_epi32(low)),
                              _mm512_cvtepi64_epi32(high), 1);
}

static inline vote better(vote a, vote b) {
    return b.score > a.score || (b.score == a.score && b.column < a.column) ? b : a;
}

static inline vote best_lane(__m512 score, __mmask16 some, int column) {
    float most = _mm512_mask_reduce_max_ps(some, score);
    __mmask16 hit = _mm512_mask_cmp_ps_mask(some, score, _mm512_set1_ps(most), _CMP_EQ_OQ);
    return (vote){most, hit ? column + __builtin_ctz(hit) : INT32_MAX};
}

/* A logit below the first cannot score as much, whatever its noise: that is below 23. Nor can one
   that is below the second with the most that its noise can be (see bit_length). */
static void hopeless(const draw *d, float score, __m512 floors[2]) {
    float least = score - fabsf(score) * 1e-6f - 1e-3f;
    float some = fmaxf(logit_floor(score - 23.0f, d->heat), logit_floor(d->bounds.least, d->heat));
    floors[0] = _mm512_set1_ps(some);
    floors[1] = _mm512_set1_ps(logit_floor(least - 32.0f * LN2, d->heat));
}

/* The best of a stretch, or `first`. Of most columns it is seen at once that they are not. */
static vote vote_of(const choice *c, const draw *d, int row, int stretch) {
    const float *x = logits_of(c, row);
    const int end = stretch_end(c, stretch);
    const __m512 heat = _mm512_set1_ps(d->heat), warm = _mm512_set1_ps(LN2 * d->heat);
    vote best = d->first;
    __m512 floors[2];
    hopeless(d, best.score, floors);
    for (int i = stretch * STRETCH; i < end; i += 16) {
        __mmask16 some = lanes(end - i);
        __m512 v = _mm512_maskz_loadu_ps(some, x + i);
        some = _mm512_mask_cmp_ps_mask(some, v, floors[0], _CMP_GE_OQ);
        if (!some) continue;
        __m512i bits = random_bits(d->key, tokens_at(c, i, some));
        __m512 most = _mm512_fnmadd_ps(bit_length(bits), warm, v);
        some = _mm512_mask_cmp_ps_mask(some, most, floors[1], _CMP_GE_OQ);
        if (!some) continue;
        v = _mm512_div_ps(v, heat);
        some &= within(&d->bounds, v);
        if (!some) continue;
        vote found = better(best, best_lane(_mm512_add_ps(v, gumbel(bits)), some, i));
        if (found.score > best.score) hopeless(d, found.score, floors);
        best = found;
    }
    return best;
}

/* The score of one column, if it may be chosen at all. */
static vote vote_for(const choice *c, const draw *d, int row, int column) {
    __m512 v = _mm512_div_ps(_mm512_set1_ps(logits_of(c, row)[column]), _mm512_set1_ps(d->heat));
    if (!within(&d->bounds, v)) return (vote){-INFINITY, INT32_MAX};
    int token = c->tokens ? (int)c->tokens[column] : column;
    __m512 score = _mm512_add_ps(v, gumbel(random_bits(d->key, _mm512_set1_epi32(token))));
    return (vote){_mm512_cvtss_f32(score), column};
}

/* Choose where chance has no say; else find out how to draw. */
static void decide(const choose_run *r, int row_index, int member) {
    const choice *c = r->c;
    draw *d = r->draws + row_index;
    float peak;
    const int column = first_peak(r, row_index, &peak);
    *d = (draw){.heat = fmaxf(c->temperature[row_index], 1e-6f), .key = c->keys[row_index]};
    c->chosen[row_index] = column;
    if (c->temperature[row_index] == 0.0f || c->top_k[row_index] == 1 || isnan(peak)) return;
    const row own = {logits_of(c, row_index), c->width, d->heat};
    const float top = peak / d->heat;
    if (isinf(top)) { /* all of them stay, and those that are as large win */
        c->chosen[row_index] = top > 0 ? first_infinite(own.logits, own.width, d->heat) : 0;
        return;
    }
    const limits l = {c->typical_p[row_index], c->top_p[row_index], c->min_p[row_index],
                      c->top_k[row_index]};
    const size_t at = (size_t)member * r->pool_size;
    const pool p = {r->values + at, r->weights + at};
    d->drawn = 1;
    d->bounds = bounds_of(&own, &l, top, &p);
    d->first = vote_for(c, d, row_index, column);
}

static void run_choose(team *t, int member, void *argument) {
    const choose_run *r = argument;
    const choice *c = r->c;
    const int tasks = c->rows * r->stretches;
    for (int task; (task = team_take(t)) < tasks;) {
        const int stretch = task % r->stretches;
        const float *x = logits_of(c, task / r->stretches);
        r->peaks[task] = peak_of(x, stretch * STRETCH, stretch_end(c, stretch));
    }
    team_meet(t);
    for (int row; (row = team_take(t)) < c->rows;) decide(r, row, member);
    team_meet(t);
    for (int task; (task = team_take(t)) < tasks;) {
        const int row = task / r->stretches;
        if (r->draws[row].drawn)
            r->votes[task] = vote_of(c, r->draws + row, row, task % r->stretches);
    }
}

/* 0: there is not enough memory. */
int paceline_choose(workspace *space, const choice *c) {
    choose_run r = {.c = c, .stretches = (c->width + STRETCH - 1) / STRETCH};
    r.pool_size = (c->width + 31) / 16 * 16; /* entries are written sixteen at a time */
    const size_t tasks = (size_t)c->rows * r.stretches;
    const size_t pools = (size_t)space->team->members * r.pool_size;
    const size_t sizes[] = {tasks * sizeof(float), c->rows * sizeof(draw), tasks * sizeof(vote),
                            pools * sizeof(float), pools * sizeof(int64_t)};
    void *at[5];
    if (!reserve(&space->step, sizes, 5, at)) return 0;
    r.peaks = at[0], r.draws = at[1], r.votes = at[2], r.values = at[3], r.weights = at[4];
    team_run(space->team, run_choose, &r);
    for (int row = 0; row < c->rows; row++) {
        if (!r.draws[row].drawn) continue;
        const vote *votes = r.votes + (size_t)row * r.stretches;
        vote best = votes[0];
        for (int i = 1; i < r.stretches; i++) best = better(best, votes[i]);
        if (best.column < c->width) c->chosen[row] = best.column;
    }
    return 1;
}

typedef struct {
    const float *x;
    int rows, width;
    uint8_t *finite;
} finite_run;

static int all_finite(const float *x, int count) {
    __mmask16 strange = 0;
    for (int i = 0; i < count; i += 16) {
        __m512 v = _mm512_maskz_loadu_ps(lanes(count - i), x + i);
        strange |= _mm512_cmp_ps_mask(_mm512_sub_ps(v, v), _mm512_setzero_ps(), _CMP_NEQ_UQ);
    }
    return !strange;
}

static void run_finite(team *t, int member, void *argument) {
    const finite_run *r = argument;
    int from, to;
    team_part(t, member, r->rows, &from, &to);
    for (int row = from; row < to; row++)
        r->finite[row] = (uint8_t)all_finite(r->x + (size_t)row * r->width, r->width);
}

/* finite [rows]: whether each row of x [rows, width] holds finite numbers only. */
void paceline_finite(workspace *space, const float *x, int rows, int width, uint8_t *finite) {
    finite_run r = {x, rows, width, finite};
    if ((size_t)rows * width > ALONE) {
        team_run(space->team, run_finite, &r);
        return;
    }
    for (int row = 0; row < rows; row++)
        finite[row] = (uint8_t)all_finite(x + (size_t)row * width, width);
}
