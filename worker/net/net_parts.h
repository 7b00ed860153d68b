/* A network for looking only that lies on several devices, each of which has a run of its blocks:
 * for a model that is too large for one of them.
 *
 *     net_parts_new(devices, n, model, &opt, &net, err);
 *     net_set(net, flat, err);
 *     net_loss(net, &batch, ..)                    // as of any other network
 *     dit_rows_open_net(&rows, net, err);          // velocities, too (dit_rows.h)
 *     llama_of(net_parts_first(net))               // and texts, token by token
 *     net_free(net);
 *
 * One device computes after the other; what crosses goes by way of the host.  The bits are those
 * of the whole network.  It has no states to look at (net_hidden).
 *
 * net->weights is of the whole model and on the last device, but has no values: net_set writes
 * them.  The compute thread uses all the devices. */
#ifndef WORKER_NET_PARTS_H
#define WORKER_NET_PARTS_H

#include "common/base/base.h"
#include "worker/net/dit.h"
#include "worker/net/net.h"

#define NET_PARTS_MAX 64

/* opt: NET_FORWARD; encoders: one for each device, or NULL.  Blocks are cut evenly; fewer of them
 * than devices leave some without.  m is borrowed.  -EINVAL: such a network is not cut. */
int net_parts_new(struct device *const *devs, int n, const struct model *m,
                  const struct net_options *opt, struct net **ret, struct err *err);

/* The part that begins; NULL: net is no network in parts. */
struct net *net_parts_first(struct net *net);

/* dit_forward of the whole; all of io is on the first device.  Waits. */
int net_parts_velocity(struct net *net, const struct dit_io *io, struct err *err);

#endif
