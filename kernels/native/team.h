/* A team of threads that run one function together, with barriers inside it.

   Between two runs the helpers spin for a while, since the next run often follows at once, and then
   sleep. Waiting at a barrier spins too, and yields when it takes long: on a machine with more to do
   than cores, the one waited for may not be running. */

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

#define SPINS_BEFORE_SLEEP 20000
#define SPINS_BEFORE_YIELD 4000

typedef struct team team;
typedef void (*team_job)(team *, int member, void *argument);

struct team {
    int members;
    pthread_t *helpers;
    pthread_mutex_t lock;
    pthread_cond_t called;
    team_job job;
    void *argument;
    atomic_int call;      /* how many runs have begun */
    atomic_int sleepers;
    atomic_int stopping;
    atomic_int arrived;   /* of the members, at the current barrier */
    atomic_int barrier;   /* how many barriers have been passed */
    atomic_int taken;     /* tasks handed out: see team_take */
};

typedef struct {
    team *of;
    int member;
} helper;

/* Wait until every member has come here. What any of them wrote before, all see behind it. */
static void team_meet(team *t) {
    if (t->members == 1) {
        atomic_store_explicit(&t->taken, 0, memory_order_relaxed);
        return;
    }
    int passed = atomic_load_explicit(&t->barrier, memory_order_relaxed);
    if (atomic_fetch_add_explicit(&t->arrived, 1, memory_order_acq_rel) == t->members - 1) {
        atomic_store_explicit(&t->arrived, 0, memory_order_relaxed);
        atomic_store_explicit(&t->taken, 0, memory_order_relaxed);
        atomic_store_explicit(&t->barrier, passed + 1, memory_order_release);
        return;
    }
    for (int spins = 0; atomic_load_explicit(&t->barrier, memory_order_acquire) == passed; spins++) {
        if (spins < SPINS_BEFORE_YIELD) _mm_pause();
        else sched_yield();
    }
}

/* The next task of this phase for whoever asks first; from `tasks` on there are no more. Tasks are
   counted anew behind each barrier. */
static int team_take(team *t) {
    return atomic_fetch_add_explicit(&t->taken, 1, memory_order_relaxed);
}

/* The part [*from, *to) of `count` things that is this member's. */
static void team_part(const team *t, int member, int count, int *from, int *to) {
    *from = (int)((long)count * member / t->members);
    *to = (int)((long)count * (member + 1) / t->members);
}

static void *team_help(void *argument) {
    helper me = *(helper *)argument;
    free(argument);
    team *t = me.of;
    int seen = 0;
    for (;;) {
        int spins = 0;
        while (atomic_load_explicit(&t->call, memory_order_acquire) == seen) {
            if (spins++ < SPINS_BEFORE_SLEEP) {
                _mm_pause();
                continue;
            }
            pthread_mutex_lock(&t->lock);
            atomic_fetch_add(&t->sleepers, 1);
            while (atomic_load(&t->call) == seen) pthread_cond_wait(&t->called, &t->lock);
            atomic_fetch_sub(&t->sleepers, 1);
            pthread_mutex_unlock(&t->lock);
        }
        seen++;
        if (atomic_load(&t->stopping)) return NULL;
        t->job(t, me.member, t->argument);
        team_meet(t);
    }
}

/* Run the job as every member at once; returns when all have finished. One run at a time. */
static void team_run(team *t, team_job job, void *argument) {
    if (t->members > 1) {
        t->job = job;
        t->argument = argument;
        atomic_fetch_add(&t->call, 1);
        if (atomic_load(&t->sleepers)) {
            pthread_mutex_lock(&t->lock);
            pthread_cond_broadcast(&t->called);
            pthread_mutex_unlock(&t->lock);
        }
    }
    job(t, 0, argument);
    team_meet(t);
}

static void team_free(team *t) {
    if (t == NULL) return;
    atomic_store(&t->stopping, 1);
    pthread_mutex_lock(&t->lock);
    atomic_fetch_add(&t->call, 1);
    pthread_cond_broadcast(&t->called);
    pthread_mutex_unlock(&t->lock);
    for (int i = 0; i < t->members - 1; i++) pthread_join(t->helpers[i], NULL);
    pthread_cond_destroy(&t->called);
    pthread_mutex_destroy(&t->lock);
    free(t->helpers);
    free(t);
}

/* A team of `members` threads, the caller's among them; NULL where the system has no more. */
static team *team_new(int members) {
    team *t = calloc(1, sizeof *t);
    if (t == NULL) return NULL;
    t->members = 1;
    t->helpers = calloc(members, sizeof *t->helpers);
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->called, NULL);
    for (int i = 1; t->helpers != NULL && i < members; i++) {
        helper *h = malloc(sizeof *h);
        if (h == NULL) break;
        *h = (helper){t, i};
        if (pthread_create(&t->helpers[i - 1], NULL, team_help, h) != 0) {
            free(h);
            break;
        }
        t->members++;
    }
    if (t->members == members) return t;
    team_free(t);
    return NULL;
}
