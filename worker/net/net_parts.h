/* A network without training on several devices, each of which has a run of its blocks: for a
 * model that is too large for one device.
 *
 *     net_parts_new(devices, n, model, &opt, &net, err);
 *     net_set(net, flat, err);
 *     net_loss(net, &batch, ..)                    // as with any other network
 *     dit_rows_open_net(&rows, net, err);          // velocities (dit_rows.h)
 *     llama_of(net_parts_first(net))               // texts, token by token
 *     net_free(net);
 *
 * One device computes after the other, and the pieces between them go through the host.  The bits
 * are those of the whole network.  There is no net_hidden.
 *
 * net->weights describes the whole model on the last device, but has no values: net_set writes
 * those of the parts.  The compute thread uses all the devices. */
#ifndef WORKER_NET_PARTS_H
#define WORKER_NET_PARTS_H

#include "common/base/base.h"
#include "worker/net/dit.h"
#include "worker/net/net.h"

#define NET_PARTS_MAX 64

/* opt->mode is NET_FORWARD; opt->encoders is an array, one for each device, or NULL.  Blocks are
 * divided evenly; with fewer blocks than devices some devices get none.  m is borrowed.  -EINVAL:
 * such a network cannot be cut. */
int net_parts_new(struct device *const *devs, int n, const struct model *m,
                  const struct net_options *opt, struct net **ret, struct err *err);

/* The first part; NULL: net is no network in parts. */
struct net *net_parts_first(struct net *net);

/* dit_forward of the whole; all of io is on the first device.  Waits. */
int net_parts_velocity(struct net *net, const struct dit_io *io, struct err *err);

#endif
