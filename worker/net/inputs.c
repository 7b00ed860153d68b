#include "worker/net/inputs.h"

#include "kernels/kernels.h"

void inputs_add(struct inputs *in, void *host, void *device, uint64_t bytes)
{
    arena_add(&in->host, host, bytes);
    arena_add(&in->device, device, bytes);
}

uint64_t inputs_measure(struct inputs *in)
{
    (void)arena_measure(&in->host);
    return arena_measure(&in->device);
}

int inputs_alloc(struct inputs *in, struct device *dev, struct err *err)
{
    const uint64_t bytes = arena_bytes(&in->device);
    in->dev = dev;
    int rc = dev->ops->alloc_host(dev, bytes, &in->block, err);
    if (rc < 0) {
        in->block = NULL;
        return err_wrap(err, "no memory for the inputs of a step");
    }
    memset(in->block, 0, bytes);
    arena_place(&in->host, in->block);
    if (!dev->unified)
        return arena_alloc(&in->device, dev, err);
    arena_place(&in->device, in->block);
    return 0;
}

void inputs_free(struct inputs *in)
{
    mem_free(in->host.slots);
    if (in->dev) {
        arena_free(&in->device, in->dev);
        in->dev->ops->free_host(in->dev, in->block);
    } else {
        mem_free(in->device.slots);
    }
    *in = (struct inputs){0};
}

int inputs_send(struct inputs *in, struct stream *s)
{
    if (in->dev->unified)
        return 0;
    return in->dev->ops->copy(in->dev, in->device.base, in->block, arena_bytes(&in->device),
                              COPY_TO_DEVICE, s);
}
