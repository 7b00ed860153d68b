/* Communication between several devices of one host that train as one.
 *
 *     struct comm *comms[2];
 *     if (comm_open(devices, 2, comms, err) < 0) ...
 *     // on one thread per rank:
 *     comms[rank]->ops->all_reduce(comms[rank], pieces, n, COMM_F32, stream);
 *     comms[rank]->ops->wait(comms[rank], stream, err);
 *     // all ranks idle:
 *     comm_close(comms, 2);
 *
 * Ranks are threads of one process, each with a device of its own.  Between CPU devices
 * (cpu/comm_local.c) the threads sum each other's memory; between cards NCCL does
 * (cuda/comm_nccl.c), opened on first use.
 *
 * Every rank makes the same calls in the same order with the same sizes, except send and recv,
 * which only two ranks make.  A call is queued on the stream and ordered with the work there; on
 * the CPU it has finished, on all ranks, when it returns.
 *
 * Sums have the same bits on every rank.  Between CPU devices they are taken in the order
 * of the ranks, so they are the same in every run, too; NCCL chooses its order by the
 * sizes and the links between the cards.
 *
 * FAILURE.  A rank that cannot go on calls abort; from then on, and at once, every rank's
 * calls and waits return -ECONNABORTED, whatever they were waiting for; on the CPU a sum that
 * has begun ends first, since other ranks use this rank's memory.  An error that the transport
 * finds has the same effect (-ERR_DEVICE at the rank that saw it).  Between cards it ends all comms
 * of the process.  Values that were being summed are then garbage.  Failed comms cannot be used
 * again: close them and open others. */
#ifndef KERNELS_COMM_H
#define KERNELS_COMM_H

#include <stddef.h>
#include <stdint.h>

struct comm;
struct device;
struct err;
struct stream;

enum { COMM_RANKS_MAX = 16 }; /* devices that train together */

/* Types of summed values. */
enum comm_type { COMM_F32, COMM_F64 };

struct comm_piece {
    void *x;
    uint64_t n; /* elements; bytes in send and recv */
};

struct comm_ops {
    /* Each piece = its sum over all ranks, in place; device memory. */
    int (*all_reduce)(struct comm *c, const struct comm_piece *pieces, size_t n,
                      enum comm_type type, struct stream *s);
    /* x (bytes) of every rank = that of rank root; device memory. */
    int (*broadcast)(struct comm *c, void *x, uint64_t bytes, int root, struct stream *s);
    /* Sends pieces, whose n is in bytes, to rank `to`, which receives them by a recv of as many
     * bytes from this rank; sends and recvs of two ranks match in order, with equal sizes.  On
     * the CPU a send does not wait for its recv.  On cards each call waits for the calls before it,
     * whatever their streams: transfers that must not wait for each other need separate comms. */
    int (*send)(struct comm *c, const struct comm_piece *pieces, size_t n, int to,
                struct stream *s);
    int (*recv)(struct comm *c, const struct comm_piece *pieces, size_t n, int from,
                struct stream *s);
    /* Waits for the stream as kernel_ops.sync does, but ends with the comm's failure if
     * that comes first. */
    int (*wait)(struct comm *c, struct stream *s, struct err *err);
    /* Any thread, any number of times. */
    void (*abort)(struct comm *c);
    /* 0, or the comm's failure. */
    int (*failed)(struct comm *c);
    void (*free)(struct comm *c);
};

struct comm {
    const struct comm_ops *ops;
    struct device *dev;
    int rank, size;
};

#endif
