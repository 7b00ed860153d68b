#include "worker/kinds/stage.h"

#include "common/base/err.h"
#include "common/data/tokenizer.h"

#define TOKENS_OF_CALL 8192
#define ROWS_MAX 64

int stage_features(const struct work *w)
{
    const struct job_spec *s = &w->spec;
    if (s->partition.features != JOB_FEATURES_AUTO)
        return s->partition.features;
    if (s->model.warm_start)
        return JOB_FEATURES_MODEL;
    return s->model.type == JOB_MODEL_LLAMA ? JOB_FEATURES_NGRAMS : JOB_FEATURES_PIXELS;
}

bool stage_is_random(const struct work *w)
{
    const struct job_spec *s = &w->spec;
    return s->partition.method == JOB_METHOD_RANDOM && s->recipe.reshard.n == 0 &&
           s->partition.chunk == 0;
}

uint32_t stage_columns(const struct work *w, uint32_t chunk)
{
    return chunk ? ((uint32_t)w->spec.model.context + chunk - 1) / chunk : 0;
}

unsigned stage_rows(const struct work *w)
{
    unsigned rows = TOKENS_OF_CALL / (unsigned)w->spec.model.context;
    return rows < 1 ? 1 : rows > ROWS_MAX ? ROWS_MAX : rows;
}

static int tick(void *arg, const char *what, uint32_t done, uint32_t total, struct err *err)
{
    struct work *w = arg;
    progress_activity(&w->progress, "%s", what);
    progress_units(&w->progress, done, total);
    return work_stopped(w, err) ? -ERR_CANCELLED : 0;
}

struct fit_watch stage_watch(struct work *w)
{
    return (struct fit_watch){.tick = tick, .arg = w};
}

size_t stage_token_bytes(const struct tokenizer *t, int32_t id)
{
    size_t len = 0;
    (void)tokenizer_piece(t, (uint32_t)id, &len);
    return tokenizer_is_special(t, (uint32_t)id) ? 0 : len;
}
