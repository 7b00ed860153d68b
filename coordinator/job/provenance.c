#include "coordinator/job/provenance.h"

#include "common/base/buf.h"
#include "common/base/hash.h"
#include "coordinator/job/query.h"

#define PROVENANCE_MAX (256u << 10)

static void put_blob(struct buf *b, const char *name, const struct outer_blob *o)
{
    char hex[HASH_HEX_MAX];
    (void)buf_printf(b, "\"%s\":{\"sha256\":\"%s\",\"size\":%llu}", name,
                     hash_hex(o->sha256, 32, hex), (unsigned long long)o->bytes);
}

static void put_contribution(struct buf *b, const struct coordinator *co,
                             const struct outer_step *s, const struct outer_contribution *c)
{
    const struct task *t = state_task(&co->state, c->tag);
    char hex[HASH_HEX_MAX];
    (void)buf_printf(b,
                     "{\"task\":%llu,\"worker\":%llu,\"path\":%u,\"replica\":%u,"
                     "\"sha256\":\"%s\",\"size\":%llu,\"codec\":\"%s\",\"staleness\":%llu,"
                     "\"samples\":%llu,\"weight\":%.17g,\"share\":%.17g,\"norm\":%.9g,"
                     "\"shrink\":%.17g,\"refused\":%s}",
                     (unsigned long long)c->tag, (unsigned long long)c->sender, t ? t->path : 0,
                     t ? t->train.replica : 0, hash_hex(c->blob.sha256, 32, hex),
                     (unsigned long long)c->blob.bytes, codec_name(c->codec),
                     (unsigned long long)(s->base - c->from), (unsigned long long)c->samples,
                     c->weight, c->share, c->norm, c->shrink, c->refused ? "true" : "false");
}

char *provenance_of(const struct coordinator *co, const struct outer_step *s)
{
    struct buf b;
    size_t len;
    buf_init(&b, PROVENANCE_MAX);
    (void)buf_printf(&b, "{\"base\":%llu,", (unsigned long long)s->base);
    put_blob(&b, "base_full", &s->full);
    (void)buf_append_str(&b, ",");
    put_blob(&b, "full", &s->new_full);
    (void)buf_append_str(&b, ",");
    put_blob(&b, "delta", &s->new_delta);
    (void)buf_append_str(&b, ",");
    put_blob(&b, "ema", &s->new_ema);
    (void)buf_append_str(&b, ",\"state\":{");
    put_blob(&b, "target", &s->new_target);
    (void)buf_append_str(&b, ",");
    put_blob(&b, "momentum", &s->new_mom);
    (void)buf_append_str(&b, ",");
    put_blob(&b, "buffer", &s->new_buf); /* size 0: the momentum is not delayed */
    (void)buf_printf(&b, ",\"stored\":%s}", s->to_store ? "true" : "false");
    (void)buf_printf(&b,
                     ",\"lr\":%.17g,\"momentum\":%.17g,\"ema_decay\":%.17g,"
                     "\"down\":\"%s\",\"delta_norm\":%.9g,\"step_norm\":%.9g,"
                     "\"residual_norm\":%.9g,\"elapsed_ms\":%llu,\"scale\":%.17g,\"delay\":%u,"
                     "\"contributions\":[",
                     s->lr, s->momentum, s->used_ema_decay, codec_name(s->down), s->delta_norm,
                     s->step_norm, s->residual_norm, (unsigned long long)s->elapsed_ms,
                     s->used_scale, s->delay);
    for (size_t i = 0; i < s->n_contributions; i++) {
        if (i > 0)
            (void)buf_append_str(&b, ",");
        put_contribution(&b, co, s, &s->contributions[i]);
    }
    (void)buf_append_str(&b, "]}");
    return (char *)buf_take(&b, &len);
}
