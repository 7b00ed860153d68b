#include "coordinator/decide/encode.h"

static void say(struct encode_decision *d, bool once, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

static void say(struct encode_decision *d, bool once, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(d->reason, sizeof d->reason, fmt, ap);
    va_end(ap);
    d->once = once;
}

void encode_decide(const struct encode_in *in, struct encode_decision *ret)
{
    const double passes = in->flip ? 2 : 1;
    char need[STR_HUMAN_MAX], room[STR_HUMAN_MAX];
    const double times = in->pictures ? (double)in->seen / (double)in->pictures : 0;
    const bool many = in->shards > ENCODE_SHARDS_MAX;
    ret->impossible = in->asked_once && many;
    if (ret->impossible)
        say(ret, false,
            "the dataset has %" PRIu64 " shards, at most %d can be encoded before the training; "
            "raise data.shard_samples, or set encoders.run to fly or worker",
            in->shards, ENCODE_SHARDS_MAX);
    else if (in->asked_once)
        say(ret, true, "pictures are encoded before the training, as encoders.run says");
    else if (in->asked_step)
        say(ret, false, "pictures are encoded in each step, as encoders.run says");
    else if (in->random_crop)
        say(ret, false,
            "pictures are encoded in each step: data.crop random never shows the same "
            "one twice");
    else if (many)
        say(ret, false,
            "pictures are encoded in each step: of the %" PRIu64 " shards at most %d can be "
            "encoded before the training",
            in->shards, ENCODE_SHARDS_MAX);
    else if (in->latents_bytes > in->disk_free / 2)
        say(ret, false,
            "pictures are encoded in each step: their latents would take %s of the "
            "coordinator's disk, of which %s are free",
            str_human_bytes(in->latents_bytes, need), str_human_bytes(in->disk_free, room));
    else if (in->micros > 0 && in->micros < in->stages)
        say(ret, false,
            "pictures are encoded in each step: with train.stages %d and train.accumulate %d a "
            "pipeline's bubbles are as long as its work or longer, and run the encoder",
            in->stages, in->micros);
    else if (in->seen == 0)
        say(ret, true,
            "pictures are encoded before the training: phases are bounded by time, so "
            "each may be seen many times");
    else if (times > 2 * passes)
        say(ret, true,
            "pictures are encoded before the training: each is seen %.1f times, and "
            "%s its latents",
            times, in->flip ? "two passes of the encoder make" : "one pass of the encoder makes");
    else
        say(ret, false, "pictures are encoded in each step: each is seen only %.1f times", times);
}
