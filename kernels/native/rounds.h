/* Guesses of a head draft, all of a step's in one call: behind a sequence's known tokens comes one,
   behind that another. A round computes, for the sequences that want one more, what layer.c,
   linear.h and sample.h do of the same rows, so its guesses are those of as many separate calls. */

/* One sequence. */
typedef struct {
    const bfloat16 *states; /* [count, fuse->inputs]: the target's, of the token before each */
    int64_t top_k, seed;
    float temperature, typical_p, top_p, min_p;
    int32_t count;          /* known tokens to compute, side by side in `tokens` */
    int32_t start;          /* position of the first */
    int32_t origin;         /* where a block begins, before which nothing is seen */
    int32_t table;          /* where its block table, from the origin on, begins in `tables` */
    int32_t guesses;        /* how many are wanted, at least one */
    int32_t finite;         /* out: whether all its states were */
} line;

typedef struct {
    const model *model;
    const passage *passage; /* of a head; hidden, tokens and states are filled in here */
    const matrix *fuse, *output;
    const float *norm;      /* [hidden], before `output` */
    const int64_t *ids;     /* [output->outputs], the tokens that columns stand for */
    const int64_t *tokens;  /* [rows] */
    const int32_t *tables;
    line *lines;            /* those that want more come first */
    int64_t *guesses;       /* out: [count, guesses of the first line] */
    int32_t count, rows, block_size, blocks;
} rounds;

typedef struct {
    const rounds *of;
    span *spans;
    int64_t *tokens, *positions, *where, *keys, *top_k, *chosen;
    float *temperature, *typical_p, *top_p, *min_p;
    float *hidden, *states, *logits;
    bfloat16 *tapped;
    uint8_t *finite;
} rounds_run;

static int prepare_rounds(rounds_run *q, workspace *space) {
    const rounds *r = q->of;
    const size_t rows = r->rows, count = r->count, hidden = r->model->hidden;
    const size_t whole = count * sizeof(int64_t), single = count * sizeof(float);
    const size_t sizes[] = {
        count * sizeof(span), whole, rows * sizeof(int64_t), rows * sizeof(int64_t),
        whole, whole, whole,
        single, single, single, single,
        rows * hidden * sizeof(float), rows * hidden * sizeof(float),
        count * r->output->outputs * sizeof(float),
        rows * r->fuse->inputs * sizeof(bfloat16), rows,
    };
    void *at[16];
    if (!reserve(&space->rounds, sizes, 16, at)) return 0;
    q->spans = at[0], q->tokens = at[1], q->positions = at[2], q->where = at[3];
    q->keys = at[4], q->top_k = at[5], q->chosen = at[6];
    q->temperature = at[7], q->typical_p = at[8], q->top_p = at[9], q->min_p = at[10];
    q->hidden = at[11], q->states = at[12], q->logits = at[13];
    q->tapped = at[14], q->finite = at[15];
    for (int i = 0; i < r->count; i++) {
        line *l = r->lines + i;
        l->finite = 1;
        q->top_k[i] = l->top_k, q->temperature[i] = l->temperature;
        q->typical_p[i] = l->typical_p, q->top_p[i] = l->top_p, q->min_p[i] = l->min_p;
    }
    return 1;
}

/* The first `count` lines' rows of a round: their known tokens, or the last guess of each. */
static step lay_rows(const rounds_run *q, int round, int count) {
    const rounds *r = q->of;
    int row = 0;
    for (int i = 0; i < count; i++) {
        const line *l = r->lines + i;
        const int first = l->start - l->origin + (round ? l->count + round - 1 : 0);
        const int end = l->start - l->origin + l->count + round;
        q->spans[i] = (span){row, end - first, first, l->table};
        for (int at = first; at < end; at++, row++) {
            const int64_t block = r->tables[l->table + at / r->block_size];
            q->positions[row] = l->origin + at;
            q->where[row] = block * r->block_size + at % r->block_size;
        }
    }
    return (step){row, count, r->block_size, r->blocks, q->positions, q->where, q->spans,
                  r->tables};
}

/* What the head makes of the target's states: `states` of the first round. 0: no memory. */
static int fuse_states(const rounds_run *q, workspace *space) {
    const rounds *r = q->of;
    const int width = r->fuse->inputs;
    const bfloat16 *half = r->lines[0].states;
    bfloat16 *to = q->tapped;
    for (int i = 0; r->count > 1 && i < r->count; i++) {
        const size_t numbers = (size_t)r->lines[i].count * width;
        memcpy(to, r->lines[i].states, numbers * sizeof *to);
        to += numbers, half = q->tapped;
    }
    const inputs in = {.half = half, .y = q->states, .rows = r->rows};
    return paceline_linear(space, r->fuse, &in);
}

/* The last state of each line moves to `states`; a line is found out whose states are not finite. */
static void take_last(const rounds_run *q, workspace *space, int count, int rows) {
    const int size = q->of->model->hidden;
    paceline_finite(space, q->hidden, rows, size, q->finite);
    for (int i = 0; i < count; i++) {
        const span *s = q->spans + i;
        for (int row = s->row; row < s->row + s->count; row++)
            if (!q->finite[row]) q->of->lines[i].finite = 0;
        memcpy(q->states + (size_t)i * size, q->hidden + (size_t)(s->row + s->count - 1) * size,
               size * sizeof(float));
    }
}

/* One guess for each of the first `count` lines, from `states`. 0: no memory. */
static int draw_guesses(const rounds_run *q, workspace *space, int round, int count) {
    const rounds *r = q->of;
    const int width = r->output->outputs, most = r->lines[0].guesses;
    const inputs in = {.single = q->states, .norm = r->norm, .y = q->logits, .rows = count,
                       .eps = r->model->eps};
    for (int i = 0; i < count; i++) {
        const line *l = r->lines + i;
        q->keys[i] = noise_key(l->seed, (int64_t)l->start + l->count + round);
    }
    const choice c = {
        q->logits, width, count, width, q->temperature, q->typical_p, q->top_p, q->min_p,
        q->top_k, q->keys, r->ids, q->chosen,
    };
    if (!paceline_linear(space, r->output, &in) || !paceline_choose(space, &c)) return 0;
    for (int i = 0; i < count; i++)
        q->tokens[i] = r->guesses[(size_t)i * most + round] = r->ids[q->chosen[i]];
    return 1;
}

/* All rounds. 0: there is not enough memory; -1: a token has no embedding. */
int paceline_rounds(workspace *space, const rounds *r) {
    rounds_run q = {.of = r};
    if (!prepare_rounds(&q, space) || !fuse_states(&q, space)) return 0;
    passage p = *r->passage;
    p.hidden = q.hidden, p.states = q.states, p.tokens = r->tokens;
    int count = r->count;
    for (int round = 0; round < r->lines[0].guesses; round++, p.tokens = q.tokens) {
        while (r->lines[count - 1].guesses <= round) count--;
        const step st = lay_rows(&q, round, count);
        const int done = paceline_layers(space, r->model, &p, &st);
        if (done != 1) return done;
        take_last(&q, space, count, st.rows);
        if (!draw_guesses(&q, space, round, count)) return 0;
    }
    return 1;
}
