#include "worker/train/courier.h"

/* States and gradients of each chain, then velocities. */
enum { KINDS = PIPE_GRADIENTS + 1, WAYS = COSTS_CHAINS_MAX * KINDS + 1 };

static struct courier_way *way_at(struct courier *c, int i)
{
    return i + 1 < WAYS ? &c->ways[i / KINDS][i % KINDS] : &c->back;
}

static int make_marks(struct courier *c, int chain, int slots, struct err *err)
{
    int rc = 0;
    c->slots[chain] = slots;
    for (int k = 0; k < KINDS; k++) {
        c->gone[chain][k] = mem_alloc_array((size_t)slots, sizeof *c->gone[chain][k]);
        for (int i = 0; i < slots && rc == 0; i++)
            rc = c->w->ops->mark_new(c->w->dev, &c->gone[chain][k][i], err);
    }
    return rc;
}

int courier_init(struct courier *c, struct island *is, int rank, int first, struct net *net,
                 const struct pipe_plan *plan, struct err *err)
{
    struct weights *w = net->weights;
    const bool ahead = !w->dev->unified;
    int rc = 0;
    *c = (struct courier){.is = is,
                          .rank = rank,
                          .first = first,
                          .w = w,
                          .ahead = ahead,
                          .at_once = ahead && !plan->estimate};
    for (int i = 0; i < WAYS && rc == 0; i++) {
        struct courier_way *way = way_at(c, i);
        rc = w->ops->stream_new(w->dev, &way->in, err);
        if (rc == 0)
            rc = w->ops->stream_new(w->dev, &way->out, err);
    }
    for (int i = 0; i < plan->chains && rc == 0; i++) {
        const struct net *chain = plan->chains > 1 ? net_chain(net, i) : net;
        rc = chain ? make_marks(c, i, net_slots(&chain->opt), err) : 0;
    }
    return rc;
}

static void free_marks(struct courier *c, int chain)
{
    for (int k = 0; k < KINDS; k++) {
        for (int i = 0; i < c->slots[chain] && c->gone[chain][k]; i++)
            c->w->ops->mark_free(c->w->dev, c->gone[chain][k][i]);
        mem_free(c->gone[chain][k]);
    }
}

void courier_release(struct courier *c)
{
    for (int i = 0; c->w && i < WAYS; i++) {
        const struct courier_way *way = way_at(c, i);
        if (way->in)
            c->w->ops->stream_free(c->w->dev, way->in);
        if (way->out)
            c->w->ops->stream_free(c->w->dev, way->out);
    }
    for (int i = 0; c->w && i < COSTS_CHAINS_MAX; i++)
        free_marks(c, i);
    *c = (struct courier){0};
}

void courier_begin(struct courier *c)
{
    for (int i = 0; i < WAYS; i++)
        way_at(c, i)->n_held = 0;
}

/* The communicator to or from a device of the copy. */
static struct comm *link_of(const struct courier *c, int peer, int chain, enum pipe_what what)
{
    return island_link(c->is, c->rank, c->first + peer, chain,
                       what == PIPE_STATES ? ISLAND_UP : ISLAND_DOWN);
}

/* Queues the oldest held RECV. */
static int take_one(struct courier *c, int chain, enum pipe_what what)
{
    struct courier_way *way = &c->ways[chain][what];
    const struct courier_held *h = &way->held[0];
    struct weights *w = c->w;
    struct comm *comm = link_of(c, h->peer, chain, what);
    int rc = w->ops->stream_follow(w->dev, way->in, w->stream);
    if (rc == 0)
        rc = comm->ops->recv(comm, h->pieces, (size_t)h->n, 1 - comm->rank, way->in);
    way->n_held--;
    memmove(way->held, way->held + 1, (size_t)way->n_held * sizeof *way->held);
    return rc;
}

static int hold(struct courier *c, const struct pipe_instr *in, const struct courier_held *h)
{
    struct courier_way *way = &c->ways[in->chain][in->what];
    if (way->n_held == COURIER_HELD_MAX)
        return -EINVAL;
    way->held[way->n_held++] = *h;
    return c->at_once && in->micro == 0 ? take_one(c, in->chain, in->what) : 0;
}

static int send(struct courier *c, const struct pipe_instr *in, const struct courier_held *h)
{
    const struct weights *w = c->w;
    struct stream *out = c->ways[in->chain][in->what].out;
    struct mark *gone = c->gone[in->chain][in->what][in->micro % c->slots[in->chain]];
    struct comm *comm = link_of(c, h->peer, in->chain, in->what);
    int rc = w->ops->stream_follow(w->dev, out, w->stream);
    if (rc == 0)
        rc = comm->ops->send(comm, h->pieces, (size_t)h->n, 1 - comm->rank, out);
    return rc < 0 ? rc : w->ops->mark(w->dev, gone, out);
}

int courier_cross(void *arg, const struct pipe_instr *in, const struct net_piece *pieces, int n)
{
    struct courier_held h = {.n = n, .micro = in->micro, .peer = in->peer};
    for (int i = 0; i < n; i++)
        h.pieces[i] = (struct comm_piece){pieces[i].x, pieces[i].bytes};
    return in->op == PIPE_RECV ? hold(arg, in, &h) : send(arg, in, &h);
}

int courier_arrive(void *arg, int chain, enum pipe_what what, int micro)
{
    struct courier *c = arg;
    struct courier_way *way = &c->ways[chain][what];
    int rc = 0;
    while (way->n_held > 0 && way->held[0].micro <= micro && rc == 0)
        rc = take_one(c, chain, what);
    if (rc == 0)
        rc = c->w->ops->stream_follow(c->w->dev, c->w->stream, way->in);
    while (c->ahead && way->n_held > 0 && rc == 0)
        rc = take_one(c, chain, what);
    return rc;
}

int courier_sent(void *arg, int chain, int micro)
{
    struct courier *c = arg;
    const int n = c->slots[chain], from = micro < 0 ? 0 : micro % n, to = micro < 0 ? n : from + 1;
    int rc = 0;
    for (int k = 0; k < KINDS; k++)
        for (int i = from; i < to && rc == 0; i++)
            rc = c->w->ops->stream_pass(c->w->dev, c->w->stream, c->gone[chain][k][i]);
    return rc;
}

/* Velocities go over the communicator of all stages of a copy, before its sums. */
int courier_feed(void *arg, const struct pipe_instr *in, const struct net_piece *piece)
{
    struct courier *c = arg;
    struct weights *w = c->w;
    struct comm *pipe = island_pipe(c->is, c->rank);
    const struct comm_piece p = {piece->x, piece->bytes};
    const bool send = in->op == PIPE_SEND;
    struct stream *s = send ? c->back.out : c->back.in;
    int rc = w->ops->stream_follow(w->dev, s, w->stream);
    if (rc == 0)
        rc = send ? pipe->ops->send(pipe, &p, 1, in->peer, s)
                  : pipe->ops->recv(pipe, &p, 1, in->peer, s);
    return rc == 0 && !send ? w->ops->stream_follow(w->dev, w->stream, s) : rc;
}

int courier_gather(void *arg, void *x, int64_t n, enum comm_type type)
{
    struct courier *c = arg;
    struct comm *pipe = island_pipe(c->is, c->rank);
    const struct comm_piece piece = {x, (uint64_t)n};
    return pipe->ops->all_reduce(pipe, &piece, 1, type, c->w->stream);
}
