#include "worker/data/keep.h"

static double items(const struct keep_in *in)
{
    return (in->flip ? 2.0 : 1.0) * (double)in->samples;
}

/* How often an item that is new in this epoch comes again. */
static double again(const struct keep_in *in)
{
    const double epoch = (double)in->samples / in->replicas;
    const double after = in->left - (epoch - fmod(in->done, epoch));
    return after < 1 ? 0 : after / items(in);
}

/* The share of the replica's items that have room. */
static double fits(const struct keep_in *in)
{
    const double bytes = fmin(items(in), in->done + in->left) * (double)in->record_bytes;
    return bytes > (double)in->room_bytes ? (double)in->room_bytes / bytes : 1;
}

bool keep_depends(const struct keep_in *in, struct keep_decision *ret)
{
    const char *why = NULL;
    if (in->filled)
        why = "bubbles of the pipeline run the encoder";
    else if (in->left == 0 || in->samples == 0 || in->replicas == 0)
        why = "it is not known how often they come again";
    else if (in->there > 0)
        return true;
    else if (again(in) == 0)
        why = "none of them is to come again";
    else if (in->room_bytes < in->record_bytes)
        why = "the disk has no room for their latents";
    if (!why)
        return true;
    *ret = (struct keep_decision){0};
    (void)snprintf(ret->reason, sizeof ret->reason, "pictures are encoded in each step: %s", why);
    return false;
}

void keep_decide(const struct keep_in *in, struct keep_decision *ret)
{
    if (!keep_depends(in, ret))
        return;
    const double fresh = 1 - in->there, q = again(in), room = fits(in), encode = in->encode_s;
    struct keep_decision d = {.each_s = (1 + fresh * q) * encode / in->devices};
    d.kept_s = in->there * in->get_s +
               fresh * (encode + room * (in->put_s + q * in->get_s) + (1 - room) * q * encode);
    d.keep = d.kept_s < d.each_s;
    (void)snprintf(d.reason, sizeof d.reason,
                   "%s: of this phase's pictures %.0f %% lie on the disk, the others come again "
                   "%.2g times; kept, one takes %.3g ms in all, else %.3g ms (%.3g ms each time%s)",
                   d.keep ? "latents are kept" : "pictures are encoded in each step",
                   100 * in->there, q, 1e3 * d.kept_s, 1e3 * d.each_s, 1e3 * encode,
                   in->devices > 1 ? ", on all devices" : "");
    *ret = d;
}
