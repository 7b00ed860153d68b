#include "worker/pipe/trace.h"

#include <jansson.h>

#include "common/base/file.h"

#define NAME_MAX_BYTES 64

/* The chain of a pass, if there are two. */
static const char *chain_of(const struct trace_device *d, const struct pipe_instr *in)
{
    static const char *const names[COSTS_CHAINS_MAX] = {" base", " upscaler"};
    return d->chains > 1 ? names[in->chain] : "";
}

static void name_bar(const struct trace_device *d, const struct pipe_instr *in,
                     char out[NAME_MAX_BYTES])
{
    static const char *const what[] = {
        [PIPE_STATES] = "states", [PIPE_GRADIENTS] = "gradients", [PIPE_VELOCITIES] = "velocities"};
    const char *op = pipe_op_name(in->op);
    switch (in->op) {
    case PIPE_F:
    case PIPE_B:
    case PIPE_W:
    case PIPE_E:
        (void)snprintf(out, NAME_MAX_BYTES, "%s %d%s", op, in->micro, chain_of(d, in));
        break;
    case PIPE_SEND:
    case PIPE_RECV:
        if (in->what == PIPE_ENCODED)
            (void)snprintf(out, NAME_MAX_BYTES, "%s encoded, samples %d-%d", op, in->first,
                           in->first + in->count - 1);
        else
            (void)snprintf(out, NAME_MAX_BYTES, "%s %s %d%s", op, what[in->what], in->micro,
                           chain_of(d, in));
        break;
    case PIPE_FROZEN:
        (void)snprintf(out, NAME_MAX_BYTES, "%s %d, layers %d-%d, samples %d-%d", op, in->chain,
                       in->from, in->to - 1, in->first, in->first + in->count - 1);
        break;
    case PIPE_LOAD:
    case PIPE_REDUCE:
    case PIPE_CLIP:
    case PIPE_STEP:
    case PIPE_OPS:
        (void)snprintf(out, NAME_MAX_BYTES, "%s", op);
        break;
    }
}

static void put_device(json_t *events, int number, const struct trace_device *d)
{
    char name[NAME_MAX_BYTES];
    (void)json_array_append_new(events, json_pack("{s:s, s:s, s:i, s:i, s:{s:s}}", "name",
                                                  "thread_name", "ph", "M", "pid", 0, "tid", number,
                                                  "args", "name", d->name));
    for (int i = 0; i < d->list->n && i < d->trace->n; i++) {
        const struct trace_row *row = &d->trace->rows[i];
        name_bar(d, &d->list->items[i], name);
        (void)json_array_append_new(events,
                                    json_pack("{s:s, s:s, s:i, s:i, s:f, s:f}", "name", name, "ph",
                                              "X", "pid", 0, "tid", number, "ts", 1e6 * row->start,
                                              "dur", 1e6 * (row->end - row->start)));
    }
}

int trace_write(const char *path, const struct trace_device *devices, int n, struct err *err)
{
    json_t *events = json_array();
    for (int i = 0; i < n; i++)
        put_device(events, i, &devices[i]);
    json_t *json = json_pack("{s:o, s:s}", "traceEvents", events, "displayTimeUnit", "ms");
    char *text = json ? json_dumps(json, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
    int rc = text ? file_write_atomic(path, text, strlen(text), 0644, err)
                  : err_set(err, -ENOMEM, "no memory to write %s", path);
    free(text);
    json_decref(json);
    return rc;
}
