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

/* The share of the encoder's work that fits in a pipeline's bubbles, by the job's numbers; if they
 * are automatic, by the fewest stages and the micro-batches that a worker takes unmeasured. */
static double in_bubbles(const struct encode_in *in, int *ret_stages, int *ret_micros)
{
    const int stages = in->stages > 0 ? in->stages : in->pipeline ? 2 : 1;
    const int most = ENCODE_MICROS_PER_STAGE * stages, own = in->batch < most ? in->batch : most;
    const int micros = in->micros > 0 ? in->micros : own > 0 ? own : 1;
    *ret_stages = stages;
    *ret_micros = micros;
    return micros < stages ? 1 : (double)(stages - 1) / micros;
}

void encode_decide(const struct encode_in *in, struct encode_decision *ret)
{
    const double passes = in->flip ? 2 : 1;
    char need[STR_HUMAN_MAX], room[STR_HUMAN_MAX];
    char held[96] = "";
    int stages, micros;
    const double share = in_bubbles(in, &stages, &micros);
    const double times = in->pictures ? (double)in->seen / (double)in->pictures : 0;
    const bool many = in->shards > ENCODE_SHARDS_MAX;
    const bool often = share < 1 && (in->seen == 0 || times * (1 - share) > 2 * passes);
    const bool again = share < 1 && (in->seen == 0 || times > 1);
    const char *keepers = again ? "; a worker keeps latents on its own disk if that is faster" : "";
    if (share > 0)
        (void)snprintf(held, sizeof held, ", %.1f of them in bubbles (%d stages, %d micro-batch%s)",
                       share * times, stages, micros, micros == 1 ? "" : "es");
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
            "encoded before the training%s",
            in->shards, ENCODE_SHARDS_MAX, keepers);
    else if (in->latents_bytes > in->disk_free / 2)
        say(ret, false,
            "pictures are encoded in each step: their latents would take %s of the "
            "coordinator's room for blobs, of which %s are free%s",
            str_human_bytes(in->latents_bytes, need), str_human_bytes(in->disk_free, room),
            keepers);
    else if (share >= 1)
        say(ret, false,
            "pictures are encoded in each step: with %d stages and %d micro-batch%s a pipeline's "
            "bubbles are as long as its work or longer, and run the encoder",
            stages, micros, micros == 1 ? "" : "es");
    else if (in->seen == 0)
        say(ret, true,
            "pictures are encoded before the training: phases are bounded by time, so "
            "each may be seen many times");
    else if (often)
        say(ret, true,
            "pictures are encoded before the training: each is seen %.1f times%s, and "
            "%s its latents",
            times, held,
            in->flip ? "two passes of the encoder make" : "one pass of the encoder makes");
    else
        say(ret, false, "pictures are encoded in each step: each is seen only %.1f times%s%s",
            times, held, keepers);
}
