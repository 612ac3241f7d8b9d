/* Decoder layers over packed rows and paged keys and values, all of them in one call.

   Called by kernels/native/library.py, in the launch thread. Everything a row becomes is computed by
   the same operations in the same order whatever other rows there are. */

#include "vector.h"
#include "team.h"
#include "matrix.h"
#include "attention.h"
#include "workspace.h"
#include "linear.h"
#include "embed.h"
#include "noise.h"
#include "limits.h"
#include "sample.h"

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

/* What goes through the layers, and what becomes of it besides the last layer's output. */
typedef struct {
    const layer *layers;
    float *hidden;             /* [rows, hidden]: the residual stream */
    const table *embedding;    /* of `tokens`, in which `hidden` begins; NULL: it is given */
    const int64_t *tokens;     /* [rows] */
    const float *states;       /* [rows, hidden]: see enter_head; NULL for a decoder */
    const float *token_norm, *state_norm;
    const int32_t *taps;       /* after how many layers `hidden` is kept, ascending */
    bfloat16 *tapped;          /* [rows, tap_count * hidden] */
    const float *norm;         /* the final one, applied in place; or NULL */
    int32_t count, tap_count, normed_residual, reserved;
} passage;

typedef struct {
    const model *model;
    const passage *passage;
    const step *step;
    workspace *space;
    float *wide, *narrow;  /* [rows, largest width], [rows, heads * dim] */
    packed_rows rows;
    piece *pieces;
    int piece_count;
    bench *benches;
} run;

static float *hidden_of(const run *r, int row) {
    return r->passage->hidden + (size_t)row * r->model->hidden;
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

/* A head's first layer attends to a token's embedding beside a state, each normed, and adds to the
   state (EAGLE-3, Li et al. 2025). */
static void enter_head(const run *r, int row) {
    const passage *p = r->passage;
    const int size = r->model->hidden;
    const float eps = r->model->eps, *state = p->states + (size_t)row * size;
    float *hidden = hidden_of(r, row);
    packed_rows both = r->rows;
    both.width = 2 * size;
    pack_normed(&both, row, 0, hidden, p->token_norm, size, eps);
    pack_normed(&both, row, size / GROUP, state, p->state_norm, size, eps);
    memcpy(hidden, state, size * sizeof(float));
    if (p->normed_residual) norm_row(hidden, p->state_norm, size, eps);
}

/* The rows that are wanted after `done` layers. */
static void tap(const run *r, int done, int from, int to) {
    const passage *p = r->passage;
    const int size = r->model->hidden;
    for (int i = 0; i < p->tap_count; i++) {
        if (p->taps[i] != done) continue;
        for (int row = from; row < to; row++) {
            const float *hidden = hidden_of(r, row);
            bfloat16 *out = p->tapped + ((size_t)row * p->tap_count + i) * size;
            for (int d = 0; d < size; d += 16) store_bf16(out + d, _mm512_loadu_ps(hidden + d));
        }
    }
}

/* The input of a layer's attention, packed. */
static void enter(const run *r, int i, int from, int to) {
    const passage *p = r->passage;
    packed_rows normed = r->rows;
    normed.width = r->model->hidden;
    for (int row = from; row < to; row++) {
        if (i == 0 && p->embedding) embed(p->embedding, p->tokens[row], hidden_of(r, row));
        if (i == 0 && p->states)
            enter_head(r, row);
        else
            pack_normed(&normed, row, 0, hidden_of(r, row), p->layers[i].attention_norm,
                        normed.width, r->model->eps);
    }
    tap(r, i, from, to);
}

static void run_layers(team *t, int member, void *argument) {
    const run *r = argument;
    const model *m = r->model;
    const passage *p = r->passage;
    const int rows = r->step->rows, width = m->heads * m->dim;
    packed_rows normed = r->rows, mixed = r->rows;
    normed.width = m->hidden;
    mixed.width = width;
    int from, to;
    team_part(t, member, rows, &from, &to);
    for (int i = 0; i < p->count; i++) {
        const layer *l = p->layers + i;
        enter(r, i, from, to);
        team_meet(t);
        multiply(r, t, member, &l->qkv, r->wide, 0);
        team_meet(t);
        for (int row = from; row < to; row++) place_row(r, l, row);
        team_meet(t);
        attend(r, t, member, l);
        team_meet(t);
        for (int row = from; row < to; row++) pack_row(&mixed, row, r->narrow + (size_t)row * width);
        team_meet(t);
        multiply(r, t, member, &l->o, p->hidden, 1);
        team_meet(t);
        for (int row = from; row < to; row++)
            pack_normed(&normed, row, 0, hidden_of(r, row), l->mlp_norm, m->hidden, m->eps);
        team_meet(t);
        multiply(r, t, member, &l->gate_up, r->wide, 0);
        team_meet(t);
        int first, end;
        team_part(t, member, rows * (m->inner / GROUP), &first, &end);
        pack_gated(r, first, end);
        team_meet(t);
        multiply(r, t, member, &l->down, p->hidden, 1);
        team_meet(t);
    }
    tap(r, p->count, from, to);
    for (int row = from; p->norm && row < to; row++)
        norm_row(hidden_of(r, row), p->norm, m->hidden, m->eps);
}

/* Memory for a step's intermediate results; 0 where there is not enough. */
static int furnish(run *r, int members) {
    const model *m = r->model;
    const int qkv = (m->heads + 2 * m->kv_heads) * m->dim, wide = larger(qkv, 2 * m->inner);
    const int packed = larger(larger(r->passage->layers[0].qkv.inputs, m->hidden),
                              larger(m->inner, m->heads * m->dim));
    const size_t rows = r->step->rows, group = m->heads / m->kv_heads;
    const int at_once = larger(1, MOST_QUERIES / (int)group < ROWS_AT_ONCE
                                      ? MOST_QUERIES / (int)group : ROWS_AT_ONCE);
    size_t pieces = 0;
    for (int i = 0; i < r->step->spans; i++) pieces += r->step->span[i].count / at_once + 2;
    const size_t sizes[] = {
        rows * wide * sizeof(float),
        rows * m->heads * m->dim * sizeof(float),
        rows * packed,
        rows * packed / GROUP * sizeof(float),
        rows * packed / GROUP * sizeof(float),
        pieces * sizeof(piece),
        members * sizeof(bench),
    };
    void *at[7];
    if (!reserve(&r->space->step, sizes, 7, at)) return 0;
    r->wide = at[0], r->narrow = at[1], r->pieces = at[5], r->benches = at[6];
    r->rows = (packed_rows){at[2], at[3], at[4], 0};
    r->piece_count = 0;
    for (int i = 0; i < r->step->spans; i++)
        for (int first = 0; first < r->step->span[i].count; first += at_once) {
            int left = r->step->span[i].count - first;
            r->pieces[r->piece_count++] = (piece){i, first, left < at_once ? left : at_once};
        }
    return 1;
}

/* One passage through layers. 0: there is not enough memory; -1: a token has no embedding. Nothing
   has been computed then. */
int paceline_layers(workspace *space, const model *m, const passage *p, const step *st) {
    run r = {.model = m, .passage = p, .step = st, .space = space};
    if (p->embedding && !has_rows(p->embedding, p->tokens, st->rows)) return -1;
    if (!furnish(&r, space->team->members)) return 0;
    team_run(space->team, run_layers, &r);
    return 1;
}

#include "rounds.h" /* which calls what is above */
