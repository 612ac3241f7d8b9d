/* One product of rows that come as they are, in single precision or bf16, normed or not. */

/* Pack a row x[width], times `norm` where there is one and as if its mean square were 1; its groups
   stand from `first` on. */
static void pack_normed(const packed_rows *to, int row, int first, const float *x,
                        const float *norm, int width, float eps) {
    const __m512 factor = _mm512_set1_ps(inverse_rms(x, width, eps));
    for (int g = 0; g < width / GROUP; g++) {
        __m512 half[2];
        for (int i = 0; i < 2; i++) {
            int at = g * GROUP + 16 * i;
            __m512 v = _mm512_mul_ps(_mm512_loadu_ps(x + at), factor);
            half[i] = _mm512_mul_ps(v, _mm512_loadu_ps(norm + at));
        }
        pack_group(to, row, first + g, half[0], half[1]);
    }
}

static void norm_row(float *x, const float *norm, int width, float eps) {
    const __m512 factor = _mm512_set1_ps(inverse_rms(x, width, eps));
    for (int i = 0; i < width; i += 16) {
        __m512 v = _mm512_mul_ps(_mm512_loadu_ps(x + i), factor);
        _mm512_storeu_ps(x + i, _mm512_mul_ps(v, _mm512_loadu_ps(norm + i)));
    }
}

static void pack_halves(const packed_rows *to, int row, const bfloat16 *x) {
    for (int g = 0; g < to->width / GROUP; g++)
        pack_group(to, row, g, load_bf16(x + g * GROUP), load_bf16(x + g * GROUP + 16));
}

typedef struct {
    const float *single;  /* [rows, inputs], or NULL */
    const bfloat16 *half; /* the same in bf16, where there is no `single` */
    const float *norm;    /* [inputs], of `single`; or NULL */
    float *y;             /* [rows, outputs] */
    int32_t rows;
    float eps;
} inputs;

typedef struct {
    const matrix *w;
    const inputs *in;
    packed_rows x;
} linear_run;

static void run_linear(team *t, int member, void *argument) {
    const linear_run *r = argument;
    const inputs *in = r->in;
    const int width = r->w->inputs;
    int from, to;
    team_part(t, member, in->rows, &from, &to);
    for (int row = from; row < to; row++) {
        const size_t at = (size_t)row * width;
        if (in->single == NULL) pack_halves(&r->x, row, in->half + at);
        else if (in->norm == NULL) pack_row(&r->x, row, in->single + at);
        else pack_normed(&r->x, row, 0, in->single + at, in->norm, width, in->eps);
    }
    team_meet(t);
    team_part(t, member, r->w->outputs / LANES, &from, &to);
    product(r->w, from, to, &r->x, in->rows, in->y, r->w->outputs, 0);
}

/* y = x · w. 0: there is not enough memory. */
int paceline_linear(workspace *space, const matrix *w, const inputs *in) {
    const size_t codes = (size_t)in->rows * w->inputs, numbers = codes / GROUP * sizeof(float);
    const size_t sizes[] = {codes, numbers, numbers};
    void *at[3];
    if (!reserve(&space->step, sizes, 3, at)) return 0;
    linear_run r = {w, in, {at[0], at[1], at[2], w->inputs}};
    team_run(space->team, run_linear, &r);
    return 1;
}
