/* What several devices of one host say to each other while they train as one.
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
 * Every rank makes the same calls in the same order with the same sizes, but for send and recv,
 * which two make.  A call is queued on the stream and ordered with the work there; on the CPU it
 * has finished, on all ranks, when it returns.
 *
 * Sums have the same bits on every rank.  Between CPU devices they are taken in the order
 * of the ranks, so that they are the same in every run too; NCCL chooses its order by the
 * sizes and the links between the cards.
 *
 * FAILURE.  A rank that cannot go on calls abort; from then on, and at once, every rank's
 * calls and waits return -ECONNABORTED, whatever they were waiting for; on the CPU a sum that
 * has begun ends first, as others read and write what this rank has shown.  So does an error
 * that the transport itself finds (-ERR_DEVICE at the rank that saw it).  What was being
 * summed is garbage then.  Such comms are of no more use: close them, open others. */
#ifndef KERNELS_COMM_H
#define KERNELS_COMM_H

#include <stddef.h>
#include <stdint.h>

struct comm;
struct device;
struct err;
struct stream;

enum { COMM_RANKS_MAX = 16 }; /* devices that train together */

/* What is summed. */
enum comm_type { COMM_F32, COMM_F64 };

struct comm_piece {
    void *x;
    uint64_t n; /* elements; bytes, where pieces are sent */
};

struct comm_ops {
    /* Each piece = its sum over all ranks, in place; device memory. */
    int (*all_reduce)(struct comm *c, const struct comm_piece *pieces, size_t n,
                      enum comm_type type, struct stream *s);
    /* x (bytes) of every rank = that of rank root; device memory. */
    int (*broadcast)(struct comm *c, void *x, uint64_t bytes, int root, struct stream *s);
    /* Pieces, of which n is bytes here, to rank `to`, which takes them with a recv of as many bytes
     * from this one; those of two ranks meet in their order, and in groups of the same sizes.  On
     * the CPU a send does not wait for its recv; of cards' calls each waits for those before it,
     * whatever their streams: ways that must not wait for each other need comms of their own. */
    int (*send)(struct comm *c, const struct comm_piece *pieces, size_t n, int to,
                struct stream *s);
    int (*recv)(struct comm *c, const struct comm_piece *pieces, size_t n, int from,
                struct stream *s);
    /* Waits for the stream as kernel_ops.sync does, but ends with the comm's failure where
     * that comes first. */
    int (*wait)(struct comm *c, struct stream *s, struct err *err);
    /* Any thread, any number of times. */
    void (*abort)(struct comm *c);
    /* Has it failed? */
    int (*failed)(struct comm *c);
    void (*free)(struct comm *c);
};

struct comm {
    const struct comm_ops *ops;
    struct device *dev;
    int rank, size;
};

#endif
