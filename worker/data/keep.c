#include "worker/data/keep.h"

/* Items that the replica is to meet for the first time. */
static double fresh(const struct keep_in *in)
{
    const double sides = in->flip ? 2 : 1, items = sides * (double)in->samples;
    const double epochs = in->left * in->replicas / (double)in->samples;
    const double once = 1 / (sides * in->replicas); /* the chance to meet an item in an epoch */
    const double unseen = pow(1 - once, floor(epochs)) * (1 - once * (epochs - floor(epochs)));
    return items * (1 - unseen);
}

/* Samples whose moments would be read from the disk. */
static double again(const struct keep_in *in)
{
    const double left = in->left, met = fresh(in);
    const double bytes = met * (double)in->record_bytes;
    const double fits = bytes > (double)in->room_bytes ? (double)in->room_bytes / bytes : 1;
    return (left - met + met * in->there) * fits;
}

bool keep_depends(const struct keep_in *in, struct keep_decision *ret)
{
    const char *why = NULL;
    if (in->filled)
        why = "bubbles of the pipeline run the encoder";
    else if (in->left == 0 || in->samples == 0 || in->replicas == 0)
        why = "it is not known how often they come again";
    else if (again(in) < 1)
        why = in->room_bytes < in->record_bytes ? "the disk has no room for their latents"
                                                : "none of them is to come again";
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
    const double left = in->left, read = again(in);
    struct keep_decision d = {.each_s = left * in->encode_s / in->devices};
    d.kept_s = (left - read) * (in->encode_s + in->put_s) + read * in->get_s;
    d.keep = d.kept_s < d.each_s;
    (void)snprintf(d.reason, sizeof d.reason,
                   "%s: of the %.0f that are left %.0f are read from the disk, so that this takes "
                   "%.3g s; encoding all takes %.3g s (%.3g ms each%s)",
                   d.keep ? "latents are kept" : "pictures are encoded in each step", left, read,
                   d.kept_s, d.each_s, 1e3 * in->encode_s,
                   in->devices > 1 ? ", on all devices" : "");
    *ret = d;
}
