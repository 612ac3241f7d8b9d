/* Decoder layers over packed rows and paged keys and values, all of them in one call.

   Called by kernels/native/layers.py, in the launch thread. Everything a row becomes is computed by
   the same operations in the same order whatever other rows there are. */

#include "vector.h"
#include "team.h"
#include "matrix.h"
#include "attention.h"

typedef struct {
    const float *attention_norm, *mlp_norm;  /* [hidden]; the first NULL where input is given */
    const float *head_norms;                 /* [heads + kv_heads, dim] or NULL */
    matrix qkv, o, gate_up, down;
    bfloat16 *cache;                         /* [2 * kv_heads, blocks, block_size * dim] */
} layer;

typedef struct {
    int32_t hidden, heads, kv_heads, dim, inner;
    float eps, scale;
    int32_t reserved;
    const float *cosine, *sine;  /* [positions, dim]: as kernels/norm_rope.py wants them */
} model;

typedef struct {
    team *team;
    size_t bytes;
    void *memory;
} workspace;

typedef struct {
    const model *model;
    const layer *layers;
    int count;
    const step *step;
    float *hidden;
    const float *given;  /* see paceline_layers */
    workspace *space;
    float *wide, *narrow;  /* [rows, largest width], [rows, heads * dim] */
    packed_rows rows;
    piece *pieces;
    int piece_count;
    bench *benches;
} run;

static void pack_normed(const run *r, const packed_rows *to, const float *norm, int row) {
    const int size = r->model->hidden;
    const float *x = r->hidden + (size_t)row * size;
    const __m512 factor = _mm512_set1_ps(inverse_rms(x, size, r->model->eps));
    for (int g = 0; g < size / GROUP; g++) {
        __m512 half[2];
        for (int i = 0; i < 2; i++) {
            int at = g * GROUP + 16 * i;
            __m512 v = _mm512_mul_ps(_mm512_loadu_ps(x + at), factor);
            half[i] = _mm512_mul_ps(v, _mm512_loadu_ps(norm + at));
        }
        pack_group(to, row, g, half[0], half[1]);
    }
}

/* Norm (if any) and rotate one head in place (rotary embedding: Su et al. 2021). */
static void place_head(const run *r, float *x, const float *norm, int64_t position) {
    const int dim = r->model->dim, half = dim / 2;
    const float *cosine = r->model->cosine + position * dim, *sine = r->model->sine + position * dim;
    if (norm != NULL) {
        __m512 factor = _mm512_set1_ps(inverse_rms(x, dim, r->model->eps));
        for (int d = 0; d < dim; d += 16) {
            __m512 v = _mm512_mul_ps(_mm512_loadu_ps(x + d), factor);
            _mm512_storeu_ps(x + d, _mm512_mul_ps(v, _mm512_loadu_ps(norm + d)));
        }
    }
    for (int d = 0; d < half; d += 16) {
        __m512 a = _mm512_loadu_ps(x + d), b = _mm512_loadu_ps(x + half + d);
        __m512 low = _mm512_mul_ps(b, _mm512_loadu_ps(sine + d));
        __m512 high = _mm512_mul_ps(a, _mm512_loadu_ps(sine + half + d));
        _mm512_storeu_ps(x + d, _mm512_fmadd_ps(a, _mm512_loadu_ps(cosine + d), low));
        _mm512_storeu_ps(x + half + d,
                         _mm512_fmadd_ps(b, _mm512_loadu_ps(cosine + half + d), high));
    }
}

/* Queries and keys of a row are rotated, keys and values stored. */
static void place_row(const run *r, const layer *l, int row) {
    const model *m = r->model;
    const int dim = m->dim, width = (m->heads + 2 * m->kv_heads) * dim;
    const size_t head_size = (size_t)r->step->blocks * r->step->block_size * dim;
    float *heads = r->wide + (size_t)row * width;
    for (int h = 0; h < m->heads + m->kv_heads; h++) {
        const float *norm = l->head_norms ? l->head_norms + (size_t)h * dim : NULL;
        place_head(r, heads + (size_t)h * dim, norm, r->step->positions[row]);
    }
    for (int h = 0; h < 2 * m->kv_heads; h++) {
        bfloat16 *to = l->cache + h * head_size + (size_t)r->step->where[row] * dim;
        const float *from = heads + (size_t)(m->heads + h) * dim;
        for (int d = 0; d < dim; d += 16) store_bf16(to + d, _mm512_loadu_ps(from + d));
    }
}

/* silu(gate) * up of some groups of all rows, packed: group `i` of all, counted row by row. */
static void pack_gated(const run *r, int from, int to) {
    const int inner = r->model->inner, groups = inner / GROUP;
    packed_rows packed = r->rows;
    packed.width = inner;
    for (int i = from; i < to; i++) {
        int row = i / groups, g = i % groups;
        const float *gate = r->wide + (size_t)row * 2 * inner + g * GROUP, *up = gate + inner;
        __m512 half[2];
        for (int k = 0; k < 2; k++)
            half[k] = _mm512_mul_ps(silu_ps(_mm512_loadu_ps(gate + 16 * k)),
                                    _mm512_loadu_ps(up + 16 * k));
        pack_group(&packed, row, g, half[0], half[1]);
    }
}

static void multiply(const run *r, team *t, int member, const matrix *w, float *y, int add) {
    int from, to;
    packed_rows x = r->rows;
    x.width = w->inputs;
    team_part(t, member, w->outputs / LANES, &from, &to);
    product(w, from, to, &x, r->step->rows, y, w->outputs, add);
}

static void attend(const run *r, team *t, int member, const layer *l) {
    const model *m = r->model;
    const shape s = {m->heads, m->kv_heads, m->dim, m->scale};
    const int width = (m->heads + 2 * m->kv_heads) * m->dim, tasks = r->piece_count * m->kv_heads;
    for (int task; (task = team_take(t)) < tasks;)
        /* The last pieces first, which see most: what is left at the end is short. */
        attend_piece(&s, r->step, r->pieces + (r->piece_count - 1 - task / m->kv_heads),
                     task % m->kv_heads, r->wide, width, l->cache, r->narrow, r->benches + member);
}

static void run_layers(team *t, int member, void *argument) {
    const run *r = argument;
    const model *m = r->model;
    const int rows = r->step->rows, width = m->heads * m->dim;
    int from, to;
    team_part(t, member, rows, &from, &to);
    for (int i = 0; i < r->count; i++) {
        const layer *l = r->layers + i;
        packed_rows normed = r->rows;
        normed.width = m->hidden;
        if (i == 0 && r->given != NULL) {
            packed_rows given = r->rows;
            given.width = l->qkv.inputs;
            for (int row = from; row < to; row++)
                pack_row(&given, row, r->given + (size_t)row * given.width);
        } else {
            for (int row = from; row < to; row++) pack_normed(r, &normed, l->attention_norm, row);
        }
        team_meet(t);
        multiply(r, t, member, &l->qkv, r->wide, 0);
        team_meet(t);
        for (int row = from; row < to; row++) place_row(r, l, row);
        team_meet(t);
        attend(r, t, member, l);
        team_meet(t);
        packed_rows mixed = r->rows;
        mixed.width = width;
        for (int row = from; row < to; row++) pack_row(&mixed, row, r->narrow + (size_t)row * width);
        team_meet(t);
        multiply(r, t, member, &l->o, r->hidden, 1);
        team_meet(t);
        for (int row = from; row < to; row++) pack_normed(r, &normed, l->mlp_norm, row);
        team_meet(t);
        multiply(r, t, member, &l->gate_up, r->wide, 0);
        team_meet(t);
        int first, end;
        team_part(t, member, rows * (m->inner / GROUP), &first, &end);
        pack_gated(r, first, end);
        team_meet(t);
        multiply(r, t, member, &l->down, r->hidden, 1);
        team_meet(t);
    }
}

static size_t rounded(size_t bytes) { return (bytes + 63) / 64 * 64; }

static int larger(int a, int b) { return a > b ? a : b; }

/* Memory for a step's intermediate results; 0 where there is not enough. */
static int furnish(run *r, int members) {
    const model *m = r->model;
    const int qkv = (m->heads + 2 * m->kv_heads) * m->dim, wide = larger(qkv, 2 * m->inner);
    const int packed = larger(larger(r->layers[0].qkv.inputs, m->hidden),
                              larger(m->inner, m->heads * m->dim));
    const size_t rows = r->step->rows, group = m->heads / m->kv_heads;
    const int at_once = larger(1, MOST_QUERIES / (int)group < ROWS_AT_ONCE
                                      ? MOST_QUERIES / (int)group : ROWS_AT_ONCE);
    size_t pieces = 0;
    for (int i = 0; i < r->step->spans; i++) pieces += r->step->span[i].count / at_once + 2;
    size_t sizes[] = {
        rounded(rows * wide * sizeof(float)),
        rounded(rows * m->heads * m->dim * sizeof(float)),
        rounded(rows * packed),
        rounded(rows * packed / GROUP * sizeof(float)),
        rounded(rows * packed / GROUP * sizeof(float)),
        rounded(pieces * sizeof(piece)),
        rounded(members * sizeof(bench)),
    };
    size_t bytes = 0;
    for (int i = 0; i < 7; i++) bytes += sizes[i];
    workspace *space = r->space;
    if (space->bytes < bytes) {
        free(space->memory);
        space->memory = aligned_alloc(64, bytes);
        space->bytes = space->memory ? bytes : 0;
        if (space->memory == NULL) return 0;
    }
    char *at = space->memory;
    r->wide = (float *)at, at += sizes[0];
    r->narrow = (float *)at, at += sizes[1];
    r->rows.codes = (int8_t *)at, at += sizes[2];
    r->rows.scales = (float *)at, at += sizes[3];
    r->rows.sums = (float *)at, at += sizes[4];
    r->pieces = (piece *)at, at += sizes[5];
    r->benches = (bench *)at;
    r->piece_count = 0;
    for (int i = 0; i < r->step->spans; i++)
        for (int first = 0; first < r->step->span[i].count; first += at_once) {
            int left = r->step->span[i].count - first;
            r->pieces[r->piece_count++] = (piece){i, first, left < at_once ? left : at_once};
        }
    return 1;
}

/* --- what Python calls ------------------------------------------------------------------------ */

workspace *paceline_workspace(int threads) {
    workspace *space = calloc(1, sizeof *space);
    if (space == NULL) return NULL;
    space->team = team_new(threads);
    if (space->team != NULL) return space;
    free(space);
    return NULL;
}

void paceline_workspace_free(workspace *space) {
    team_free(space->team);
    free(space->memory);
    free(space);
}

/* Add the output of `count` layers to hidden [rows, hidden] in place. given: what the first layer's
   attention projects in place of its normed hidden, [rows, inputs of its qkv], or NULL. 0: there is
   not enough memory, and nothing has been computed. */
int paceline_layers(workspace *space, const model *m, const layer *layers, int count, const step *st,
                    float *hidden, const float *given) {
    run r = {.model = m, .layers = layers, .count = count, .step = st, .hidden = hidden};
    r.given = given;
    r.space = space;
    if (!furnish(&r, space->team->members)) return 0;
    team_run(space->team, run_layers, &r);
    return 1;
}

typedef struct {
    const matrix *w;
    packed_rows x;
    const float *from;
    float *y;
    int rows;
} linear_run;

static void run_linear(team *t, int member, void *argument) {
    linear_run *r = argument;
    int from, to;
    team_part(t, member, r->rows, &from, &to);
    for (int row = from; row < to; row++)
        pack_row(&r->x, row, r->from + (size_t)row * r->w->inputs);
    team_meet(t);
    team_part(t, member, r->w->outputs / LANES, &from, &to);
    product(r->w, from, to, &r->x, r->rows, r->y, r->w->outputs, 0);
}

/* y [rows, outputs] = x [rows, inputs] · w. 0: there is not enough memory. */
int paceline_linear(workspace *space, const matrix *w, const float *x, int rows, float *y) {
    const size_t codes = rounded((size_t)rows * w->inputs);
    const size_t scales = rounded((size_t)rows * w->inputs / GROUP * sizeof(float));
    if (space->bytes < codes + 2 * scales) {
        free(space->memory);
        space->memory = aligned_alloc(64, codes + 2 * scales);
        space->bytes = space->memory ? codes + 2 * scales : 0;
        if (space->memory == NULL) return 0;
    }
    char *at = space->memory;
    packed_rows packed = {(int8_t *)at, (float *)(at + codes), (float *)(at + codes + scales),
                          w->inputs};
    linear_run r = {w, packed, x, y, rows};
    team_run(space->team, run_linear, &r);
    return 1;
}
