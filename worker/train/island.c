#include "worker/train/island.h"

#include <pthread.h>

#include "common/base/cores.h"
#include "common/base/log.h"
#include "kernels/device/comm_open.h"
#include "kernels/device/device.h"
#include "worker/pipe/costs.h"

enum { NOBODY = -1, NAMES_MAX = 256 };

struct rank {
    struct island *is;
    int index;
    struct comm *stage, *pipe; /* in the island's circles, or NULL */
    /* Links to each other rank. */
    struct comm *links[ISLAND_MAX][COSTS_CHAINS_MAX][ISLAND_WAYS];
    pthread_t thread;
    int rc; /* result of the last job */
    struct err err;
};

/* Ranks that communicate with each other. */
struct circle {
    int n;
    int to; /* of a link: the receiving rank; NOBODY: they sum */
    struct comm *comms[ISLAND_MAX];
};

/* Circles of all stages, of all copies, and two for each pair of neighbours and each chain: stages
 * of r and q ranks have at most r + q - 1 pairs, and with two chains there is one pair. */
enum { CIRCLES_MAX = 6 * ISLAND_MAX };

struct island {
    int n;
    struct island_shape shape;
    struct device *devs[ISLAND_MAX];
    struct circle circles[CIRCLES_MAX];
    int n_circles;
    bool greeted; /* each circle has been used once */
    struct rank ranks[ISLAND_MAX];
    int threads; /* ranks that have a thread; rank 0 is the caller */

    pthread_mutex_t lock;
    pthread_cond_t begin, end, met;
    /* The job: written before `round` is raised. */
    island_job *job;
    void *arg;
    unsigned round;
    int running; /* threads that have not finished it */
    int first;   /* the rank that failed first, or NOBODY */
    int here;    /* ranks that wait in island_meet */
    unsigned meetings;
    bool stop;
};

/* ---- jobs ---- */

/* Runs the job; the rank that failed first is noted before the others are woken. */
static void do_job(struct rank *r)
{
    struct island *is = r->is;
    r->err = (struct err){0};
    r->rc = is->job(is->arg, r->index, &r->err);
    if (r->rc >= 0)
        return;
    pthread_mutex_lock(&is->lock);
    if (is->first == NOBODY)
        is->first = r->index;
    pthread_cond_broadcast(&is->met);
    pthread_mutex_unlock(&is->lock);
    for (int i = 0; i < is->n_circles; i++)
        is->circles[i].comms[0]->ops->abort(is->circles[i].comms[0]);
}

static void *rank_main(void *arg)
{
    struct rank *r = arg;
    struct island *is = r->is;
    unsigned seen = 0;
    pthread_mutex_lock(&is->lock);
    for (;;) {
        while (!is->stop && is->round == seen)
            pthread_cond_wait(&is->begin, &is->lock);
        if (is->stop)
            break;
        seen = is->round;
        pthread_mutex_unlock(&is->lock);
        do_job(r);
        pthread_mutex_lock(&is->lock);
        if (--is->running == 0)
            pthread_cond_signal(&is->end);
    }
    pthread_mutex_unlock(&is->lock);
    return NULL;
}

static void close_circles(struct island *is)
{
    for (int i = 0; i < is->n_circles; i++)
        comm_close(is->circles[i].comms, is->circles[i].n);
    is->n_circles = 0;
    is->greeted = false;
    for (int i = 0; i < is->n; i++) {
        struct rank *r = &is->ranks[i];
        r->stage = r->pipe = NULL;
        memset(r->links, 0, sizeof r->links);
    }
}

static int open_circle(struct island *is, const int *ranks, int n, int to, struct comm *const **ret,
                       struct err *err)
{
    struct circle *c = &is->circles[is->n_circles];
    struct device *devs[ISLAND_MAX];
    for (int i = 0; i < n; i++)
        devs[i] = is->devs[ranks[i]];
    int rc = comm_open(devs, n, c->comms, err);
    if (rc < 0)
        return rc;
    c->n = n;
    c->to = to;
    is->n_circles++;
    *ret = c->comms;
    return 0;
}

/* The number of ranks of a copy. */
static int depth_of(const struct island_shape *shape)
{
    int n = 0;
    for (int s = 0; s < shape->stages; s++)
        n += shape->width[s];
    return n;
}

static int open_pair(struct island *is, int lower, int upper, struct err *err)
{
    int rc = 0;
    for (int i = 0; i < is->shape.chains * ISLAND_WAYS && rc == 0; i++) {
        const int chain = i / ISLAND_WAYS, way = i % ISLAND_WAYS;
        struct comm *const *c = NULL;
        rc = open_circle(is, (int[]){lower, upper}, 2, way == ISLAND_UP, &c, err);
        if (rc == 0) {
            is->ranks[lower].links[upper][chain][way] = c[0];
            is->ranks[upper].links[lower][chain][way] = c[1];
        }
    }
    return rc;
}

/* Opens the links between a stage's r ranks from `first` on and the q of the next stage, whose
 * shares of a micro-batch begin at k/r and at m/q. */
static int open_links(struct island *is, int first, int r, int q, struct err *err)
{
    int rc = 0;
    for (int k = 0; k < r; k++)
        for (int m = 0; m < q && rc == 0; m++)
            if (k * q < (m + 1) * r && m * r < (k + 1) * q)
                rc = open_pair(is, first + k, first + r + m, err);
    return rc;
}

/* Opens the circles of a stage that begins with rank `first` of each copy. */
static int open_stage(struct island *is, int first, int width, int copies, struct err *err)
{
    const int n = width * copies, depth = is->n / copies;
    struct comm *const *c = NULL;
    int ranks[ISLAND_MAX];
    for (int i = 0; i < n; i++)
        ranks[i] = i / width * depth + first + i % width;
    int rc = n > 1 ? open_circle(is, ranks, n, NOBODY, &c, err) : 0;
    for (int i = 0; i < n && c; i++)
        is->ranks[ranks[i]].stage = c[i];
    return rc;
}

static int open_copy(struct island *is, int first, int depth, struct err *err)
{
    const struct island_shape *shape = &is->shape;
    struct comm *const *c = NULL;
    int ranks[ISLAND_MAX], at = first;
    for (int i = 0; i < depth; i++)
        ranks[i] = first + i;
    int rc = open_circle(is, ranks, depth, NOBODY, &c, err);
    for (int i = 0; i < depth && rc == 0; i++)
        is->ranks[first + i].pipe = c[i];
    for (int s = 0; s + 1 < shape->stages && rc == 0; at += shape->width[s++])
        rc = open_links(is, at, shape->width[s], shape->width[s + 1], err);
    return rc;
}

static int open_circles(struct island *is, struct err *err)
{
    const struct island_shape *shape = &is->shape;
    const int depth = depth_of(shape), copies = is->n / depth;
    int rc = 0;
    for (int s = 0, at = 0; s < shape->stages && rc == 0; at += shape->width[s++])
        rc = open_stage(is, at, shape->width[s], copies, err);
    for (int k = 0; k < copies && shape->stages > 1 && rc == 0; k++)
        rc = open_copy(is, k * depth, depth, err);
    return rc;
}

/* Opens new communicators in place of failed ones. */
static int renew_comms(struct island *is, struct err *err)
{
    bool failed = is->n_circles == 0;
    for (int i = 0; i < is->n_circles && !failed; i++)
        failed = is->circles[i].comms[0]->ops->failed(is->circles[i].comms[0]) < 0;
    if (!failed)
        return 0;
    close_circles(is);
    int rc = open_circles(is, err);
    if (rc < 0)
        close_circles(is);
    return rc < 0 ? err_wrap(err, "joining the devices of this worker") : 0;
}

int island_cut(struct island *is, const struct island_shape *shape, struct err *err)
{
    const int depth = depth_of(shape);
    bool same = shape->stages == is->shape.stages && shape->chains == is->shape.chains;
    for (int s = 0; s < shape->stages; s++)
        same &= shape->width[s] == is->shape.width[s];
    if (depth < 1 || is->n % depth != 0)
        return err_set(err, -EINVAL, "%d devices in pipelines of %d", is->n, depth);
    if (same)
        return 0;
    close_circles(is);
    is->shape = *shape;
    return 0;
}

/* The job's result: a rank that was only woken returns -ECONNABORTED, and another's failure counts.
 */
static int verdict(struct island *is, struct err *err)
{
    int at = is->first;
    if (at == NOBODY)
        return 0;
    for (int i = 0; i < is->n && is->ranks[at].rc == -ECONNABORTED; i++)
        if (is->ranks[i].rc < 0 && is->ranks[i].rc != -ECONNABORTED)
            at = i;
    const struct rank *r = &is->ranks[at];
    int rc = r->rc == -ECONNABORTED ? -ERR_DEVICE : r->rc;
    return err_set(err, rc, "rank %d of %d (%s): %s", at, is->n, is->devs[at]->name,
                   r->err.msg[0] ? r->err.msg : err_text(rc));
}

/* The rank's communicator in a circle; NULL: it does not belong to it. */
static struct comm *comm_in(const struct island *is, const struct circle *c, int rank)
{
    for (int i = 0; i < c->n; i++)
        if (c->comms[i]->dev == is->devs[rank])
            return c->comms[i];
    return NULL;
}

/* Uses each circle once, all ranks in one order: NCCL connects two cards in the first call of both,
 * and two ranks that wait for each other in different calls would wait for ever. */
static int greet(void *arg, int rank, struct err *err)
{
    struct island *is = arg;
    struct device *dev = is->devs[rank];
    void *x = NULL;
    int rc = dev->ops->alloc(dev, sizeof(float), &x, err);
    if (rc == 0)
        rc = dev->ops->zero(dev, x, sizeof(float), NULL);
    for (int i = 0; i < is->n_circles && rc == 0; i++) {
        const int to = is->circles[i].to;
        struct comm *c = comm_in(is, &is->circles[i], rank);
        const struct comm_piece one = {x, to == NOBODY ? 1 : sizeof(float)};
        if (!c)
            continue;
        rc = to == NOBODY    ? c->ops->all_reduce(c, &one, 1, COMM_F32, NULL)
             : c->rank == to ? c->ops->recv(c, &one, 1, 1 - to, NULL)
                             : c->ops->send(c, &one, 1, to, NULL);
        if (rc == 0)
            rc = c->ops->wait(c, NULL, err);
    }
    dev->ops->free(dev, x);
    return rc;
}

static int run_all(struct island *is, island_job *job, void *arg, struct err *err)
{
    pthread_mutex_lock(&is->lock);
    is->job = job;
    is->arg = arg;
    is->first = NOBODY;
    is->here = 0;
    is->running = is->threads;
    is->round++;
    pthread_cond_broadcast(&is->begin);
    pthread_mutex_unlock(&is->lock);
    do_job(&is->ranks[0]);
    pthread_mutex_lock(&is->lock);
    while (is->running > 0)
        pthread_cond_wait(&is->end, &is->lock);
    pthread_mutex_unlock(&is->lock);
    return verdict(is, err);
}

int island_run(struct island *is, island_job *job, void *arg, struct err *err)
{
    if (is->n == 1)
        return job(arg, 0, err);
    int rc = renew_comms(is, err);
    if (rc == 0 && !is->greeted) {
        rc = run_all(is, greet, is, err);
        is->greeted = rc == 0;
    }
    return rc < 0 ? rc : run_all(is, job, arg, err);
}

int island_meet(struct island *is)
{
    pthread_mutex_lock(&is->lock);
    const unsigned meeting = is->meetings;
    if (++is->here == is->n) {
        is->here = 0;
        is->meetings++;
        pthread_cond_broadcast(&is->met);
    }
    while (is->meetings == meeting && is->first == NOBODY)
        pthread_cond_wait(&is->met, &is->lock);
    const bool all = is->meetings != meeting;
    pthread_mutex_unlock(&is->lock);
    return all ? 0 : -ECONNABORTED;
}

/* ---- opening ---- */

/* Removes spaces around a name, in place. */
static char *trimmed(char *s)
{
    s += strspn(s, " \t");
    size_t n = strlen(s);
    while (n > 0 && strchr(" \t", s[n - 1]))
        s[--n] = '\0';
    return s;
}

/* The names between the commas; *ret_n of them. */
static int split(char *names, const char *all, char *ret[ISLAND_MAX], int *ret_n, struct err *err)
{
    *ret_n = 0;
    for (char *next = names, *comma; next; next = comma ? comma + 1 : NULL) {
        comma = strchr(next, ',');
        if (comma)
            *comma = '\0';
        char *at = trimmed(next);
        if (*ret_n == ISLAND_MAX)
            return err_set(err, -ERR_LIMIT, "device \"%s\": at most %d can train together", all,
                           ISLAND_MAX);
        const bool several = *ret_n > 0 || comma;
        if (several && strcmp(at, "cuda:all") == 0)
            return err_set(err, -EINVAL, "device \"%s\": cuda:all is all cards; it stands alone",
                           all);
        if (!*at || (several && strcmp(at, "auto") == 0))
            return err_set(err, -EINVAL,
                           "device \"%s\": between the commas go cpu, cpu:N or cuda:N, as in "
                           "cuda:0,cuda:1, cpu,cpu or cpu:3,cpu:1",
                           all);
        ret[(*ret_n)++] = at;
    }
    return 0;
}

/* Replaces "cuda:all" by the existing cards; copies other names. */
static void spell(const char *names, char out[NAMES_MAX])
{
    snprintf(out, NAMES_MAX, "%s", names);
    const bool all = strcmp(trimmed(out), "cuda:all") == 0;
    const int n = all ? device_cards() : 0;
    size_t at = 0;
    if (all)
        snprintf(out, NAMES_MAX, "cuda:0");
    for (int i = 0; i < n && i < ISLAND_MAX; i++)
        at += (size_t)snprintf(out + at, NAMES_MAX - at, "%scuda:%d", i ? "," : "", i);
}

/* One rank's share of `threads`, at least one. */
static int share(int threads, int rank, int n)
{
    if (n == 1)
        return threads;
    int all = threads > 0 ? threads : cores_usable();
    int own = all / n + (rank < all % n);
    return own > 0 ? own : 1;
}

/* All devices must be of one kind, which is the name up to a colon. */
static int check_kinds(const struct island *is, const char *names, struct err *err)
{
    const char *first = is->devs[0]->name;
    const size_t kind = strcspn(first, ":");
    for (int i = 1; i < is->n; i++) {
        const char *name = is->devs[i]->name;
        if (strcspn(name, ":") != kind || strncmp(name, first, kind) != 0)
            return err_set(err, -EINVAL,
                           "device \"%s\": %s and %s are of two kinds; devices that train "
                           "together are of one, as in cpu,cpu or cuda:0,cuda:1",
                           names, first, name);
    }
    return 0;
}

static int open_devices(struct island *is, const char *names, int threads, bool again,
                        struct err *err)
{
    char text[NAMES_MAX], *each[ISLAND_MAX];
    int n, rc;
    spell(names, text);
    rc = split(text, names, each, &n, err);
    for (int i = 0; i < n && rc == 0; i++) {
        struct err why = {0};
        rc = device_open(each[i], share(threads, i, n), &is->devs[is->n], &why);
        is->n += rc == 0;
        if (rc < 0 && again && (is->n > 0 || i + 1 < n)) {
            log_warn("island", "%s did not come back and is left out: %s", each[i], why.msg);
            rc = 0;
        } else if (rc < 0 && err) {
            *err = why;
        }
    }
    return rc < 0 ? rc : check_kinds(is, names, err);
}

static int start_ranks(struct island *is, struct err *err)
{
    for (int i = 1; i < is->n; i++) {
        char name[16];
        int e = pthread_create(&is->ranks[i].thread, NULL, rank_main, &is->ranks[i]);
        if (e)
            return err_set(err, -e, "cannot start a thread for device %s", is->devs[i]->name);
        is->threads++;
        snprintf(name, sizeof name, "rank-%d", i % 1000);
        pthread_setname_np(is->ranks[i].thread, name);
    }
    return 0;
}

static int open_island(const char *names, int threads, bool again, struct island **ret,
                       struct err *err)
{
    struct island *is = mem_alloc(sizeof *is);
    pthread_mutex_init(&is->lock, NULL);
    is->shape = (struct island_shape){.stages = 1, .chains = 1, .width = {1}};
    pthread_cond_init(&is->begin, NULL);
    pthread_cond_init(&is->end, NULL);
    pthread_cond_init(&is->met, NULL);
    for (int i = 0; i < ISLAND_MAX; i++)
        is->ranks[i] = (struct rank){.is = is, .index = i};
    int rc = open_devices(is, names, threads, again, err);
    if (rc == 0 && is->n > 1)
        rc = renew_comms(is, err);
    if (rc == 0)
        rc = start_ranks(is, err);
    if (rc < 0) {
        island_close(is);
        return rc;
    }
    *ret = is;
    return 0;
}

int island_open(const char *names, int threads, struct island **ret, struct err *err)
{
    return open_island(names, threads, false, ret, err);
}

int island_reopen(const char *names, int threads, struct island **ret, struct err *err)
{
    return open_island(names, threads, true, ret, err);
}

void island_close(struct island *is)
{
    if (!is)
        return;
    pthread_mutex_lock(&is->lock);
    is->stop = true;
    pthread_cond_broadcast(&is->begin);
    pthread_mutex_unlock(&is->lock);
    for (int i = 1; i <= is->threads; i++)
        pthread_join(is->ranks[i].thread, NULL);
    close_circles(is);
    for (int i = 0; i < is->n; i++)
        device_close(is->devs[i]);
    pthread_cond_destroy(&is->met);
    pthread_cond_destroy(&is->end);
    pthread_cond_destroy(&is->begin);
    pthread_mutex_destroy(&is->lock);
    mem_free(is);
}

int island_size(const struct island *is)
{
    return is->n;
}

struct device *island_device(const struct island *is, int rank)
{
    return is->devs[rank];
}

struct device *const *island_devices(const struct island *is)
{
    return is->devs;
}

struct comm *island_comm(const struct island *is, int rank)
{
    return is->ranks[rank].stage;
}

struct comm *island_pipe(const struct island *is, int rank)
{
    return is->ranks[rank].pipe;
}

struct comm *island_link(const struct island *is, int rank, int peer, int chain,
                         enum island_way way)
{
    return is->ranks[rank].links[peer][chain][way];
}

static bool all_alike(const struct island *is)
{
    for (int i = 1; i < is->n; i++)
        if (strcmp(is->devs[i]->about, is->devs[0]->about) != 0)
            return false;
    return true;
}

void island_text(const struct island *is, char *out, size_t size)
{
    const bool alike = all_alike(is);
    char names[NAMES_MAX] = "", about[NAMES_MAX] = "";
    size_t a = 0, n = 0;
    for (int i = 0; i < is->n; i++) {
        n += (size_t)snprintf(names + n, sizeof names - n, "%s%s", i ? "," : "", is->devs[i]->name);
        if (i == 0 || !alike)
            a += (size_t)snprintf(about + a, sizeof about - a, "%s%s", i ? "; " : "",
                                  is->devs[i]->about);
        if (n >= sizeof names || a >= sizeof about)
            break; /* the text is full */
    }
    if (is->n > 1 && alike)
        snprintf(out, size, "%s: %d x %s", names, is->n, about);
    else
        snprintf(out, size, "%s: %s", names, about);
}
