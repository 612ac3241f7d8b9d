/* Threads that compute together, and memory for what lies between two operations of a call. */

/* Grown as needed, and kept. */
typedef struct {
    size_t bytes;
    void *memory;
} arena;

/* step: what one operation needs; rounds: what outlasts those of rounds.h. */
typedef struct {
    team *team;
    arena step, rounds;
} workspace;

static size_t rounded(size_t bytes) { return (bytes + 63) / 64 * 64; }

static int larger(int a, int b) { return a > b ? a : b; }

/* Memory for arrays of so many bytes, and where each begins. 0 where there is not enough. */
static int reserve(arena *space, const size_t *sizes, int count, void **begins) {
    size_t bytes = 0;
    for (int i = 0; i < count; i++) bytes += rounded(sizes[i]);
    if (space->bytes < bytes) {
        free(space->memory);
        space->memory = aligned_alloc(64, bytes);
        space->bytes = space->memory ? bytes : 0;
        if (space->memory == NULL) return 0;
    }
    char *at = space->memory;
    for (int i = 0; i < count; i++) begins[i] = at, at += rounded(sizes[i]);
    return 1;
}

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
    free(space->step.memory);
    free(space->rounds.memory);
    free(space);
}
