#include "worker/pipe/costs.h"

#include <jansson.h>

#include "common/base/buf.h"
#include "common/base/file.h"

#define FORMAT "skerry-pipeline-profile"
#define SAMPLES_MAX (1 << 20)
#define SECONDS_MAX 1e6
#define BYTES_MAX 1e15
#define WHERE_MAX 64

/* The text being read, for messages; rc is the first failure. */
struct reader {
    const char *name;
    struct err *err;
    int rc;
};

/* A JSON object of the file, and its place there. */
struct object {
    struct reader *r;
    const json_t *json;
    char where[WHERE_MAX];
};

/* ---- values ---- */

static void refuse_unknown(const struct object *o, const char *const *known)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)o->json, key, value)
    {
        const char *const *k = known;
        while (*k && strcmp(*k, key) != 0)
            k++;
        if (!*k && o->r->rc == 0)
            o->r->rc =
                err_set(o->r->err, -ERR_CONFIG, "%s: %s has the key '%s', which is not known",
                        o->r->name, o->where, key);
    }
}

/* A number from least to most, or `absent` without the key; absent < 0: the key is required. */
static double get_number(const struct object *o, const char *key, double least, double most,
                         double absent)
{
    const json_t *value = json_object_get(o->json, key);
    const double got = json_number_value(value);
    if (o->r->rc < 0 || (!value && absent >= 0))
        return absent >= 0 ? absent : least;
    if (json_is_number(value) && got >= least && got <= most)
        return got;
    o->r->rc = err_set(o->r->err, -ERR_CONFIG, "%s: %s: %s must be a number from %g to %g",
                       o->r->name, o->where, key, least, most);
    return least;
}

static int get_int(const struct object *o, const char *key, int least, int most, int absent)
{
    const json_t *value = json_object_get(o->json, key);
    if (o->r->rc == 0 && value && !json_is_integer(value))
        o->r->rc = err_set(o->r->err, -ERR_CONFIG, "%s: %s: %s must be a whole number", o->r->name,
                           o->where, key);
    return (int)get_number(o, key, least, most, absent);
}

static uint64_t get_bytes(const struct object *o, const char *key)
{
    return (uint64_t)get_number(o, key, 0, BYTES_MAX, 0);
}

static void get_text(const struct object *o, const char *key, char out[COSTS_NAME_MAX + 1])
{
    const char *got = json_string_value(json_object_get(o->json, key));
    if (o->r->rc == 0 && (!got || !*got || !str_copy(out, COSTS_NAME_MAX + 1, got)))
        o->r->rc = err_set(o->r->err, -ERR_CONFIG, "%s: %s: %s must be a text of 1 to %d bytes",
                           o->r->name, o->where, key, COSTS_NAME_MAX);
}

/* A list's length, from least to most; 0 if the key is missing and least is 0. */
static int get_list(const struct object *o, const char *key, int least, int most,
                    const json_t **ret)
{
    const json_t *list = *ret = json_object_get(o->json, key);
    const size_t n = json_array_size(list);
    if (o->r->rc == 0 && (list ? !json_is_array(list) || n > (size_t)most : least > 0))
        o->r->rc = err_set(o->r->err, -ERR_CONFIG, "%s: %s: %s must be a list of %d to %d",
                           o->r->name, o->where, key, least, most);
    if (o->r->rc == 0 && n < (size_t)least)
        o->r->rc =
            err_set(o->r->err, -ERR_CONFIG, "%s: %s: %s is empty", o->r->name, o->where, key);
    return o->r->rc < 0 ? 0 : (int)n;
}

static struct object item(const struct object *o, const char *key, const json_t *list, int i,
                          const char *const *known)
{
    struct object it = {.r = o->r, .json = json_array_get(list, (size_t)i)};
    snprintf(it.where, sizeof it.where, "%s %d", key, i);
    if (o->r->rc == 0 && !json_is_object(it.json))
        o->r->rc =
            err_set(o->r->err, -ERR_CONFIG, "%s: %s must be an object", o->r->name, it.where);
    refuse_unknown(&it, known);
    return it;
}

static void get_points(const struct object *o, const char *key, int least, struct costs_points *out)
{
    const json_t *list;
    out->n = get_list(o, key, least, COSTS_POINTS_MAX, &list);
    for (int i = 0; i < out->n && o->r->rc == 0; i++) {
        const json_t *one = json_array_get(list, (size_t)i);
        const json_int_t got = json_integer_value(one), last = i > 0 ? out->samples[i - 1] : 0;
        if (!json_is_integer(one) || got <= last || got > SAMPLES_MAX)
            o->r->rc = err_set(o->r->err, -ERR_CONFIG,
                               "%s: %s must be whole numbers from 1 to %d, ascending", o->r->name,
                               key, SAMPLES_MAX);
        out->samples[i] = (int)got;
    }
}

static void get_time(const struct object *o, const char *key, const struct costs_points *points,
                     struct costs_time *out)
{
    const json_t *list;
    const int n = get_list(o, key, 1, COSTS_POINTS_MAX, &list);
    if (o->r->rc == 0 && n != points->n)
        o->r->rc = err_set(o->r->err, -ERR_CONFIG, "%s: %s: %s has %d times, expected %d",
                           o->r->name, o->where, key, n, points->n);
    for (int i = 0; i < n && o->r->rc == 0; i++) {
        const json_t *one = json_array_get(list, (size_t)i);
        out->s[i] = json_number_value(one);
        if (!json_is_number(one) || !(out->s[i] >= 0 && out->s[i] <= SECONDS_MAX))
            o->r->rc = err_set(o->r->err, -ERR_CONFIG, "%s: %s: %s must be seconds, 0 to %g",
                               o->r->name, o->where, key, SECONDS_MAX);
    }
}

/* ---- chains, devices ---- */

/* Are there at most `most` items with `count` further ones? */
static bool allowed(const struct object *o, int n, int count, int most)
{
    if (o->r->rc == 0 && n + count > most)
        o->r->rc = err_set(o->r->err, -ERR_CONFIG, "%s: %s: more than %d in all", o->r->name,
                           o->where, most);
    return o->r->rc == 0;
}

/* Makes room for `count` further layers after n in *items. */
static bool grow(const struct object *o, void *items, size_t size, int n, int count)
{
    void **array = items;
    if (!allowed(o, n, count, COSTS_LAYERS_MAX))
        return false;
    void *more = mem_try_realloc_array(*array, (size_t)(n + count), size);
    if (!more) {
        o->r->rc =
            err_set(o->r->err, -ENOMEM, "%s: no memory for %d layers", o->r->name, n + count);
        return false;
    }
    *array = more;
    return true;
}

static void get_layers(const struct object *o, const struct costs_points *sizes,
                       struct costs_chain *c)
{
    static const char *const known[] = {"f",
                                        "b",
                                        "w",
                                        "add",
                                        "step",
                                        "out_bytes",
                                        "slot_bytes",
                                        "split_bytes",
                                        "weight_bytes",
                                        "state_bytes",
                                        "gradient_bytes",
                                        "count",
                                        NULL};
    const json_t *list;
    const int n = get_list(o, "layers", 1, COSTS_LAYERS_MAX, &list);
    for (int i = 0; i < n && o->r->rc == 0; i++) {
        const struct object it = item(o, "layers", list, i, known);
        struct costs_layer l = {.add = get_number(&it, "add", 0, SECONDS_MAX, 0),
                                .step = get_number(&it, "step", 0, SECONDS_MAX, 0),
                                .out_bytes = get_bytes(&it, "out_bytes"),
                                .slot_bytes = get_bytes(&it, "slot_bytes"),
                                .split_bytes = get_bytes(&it, "split_bytes"),
                                .weight_bytes = get_bytes(&it, "weight_bytes"),
                                .state_bytes = get_bytes(&it, "state_bytes"),
                                .gradient_bytes = get_bytes(&it, "gradient_bytes")};
        int count = get_int(&it, "count", 1, COSTS_LAYERS_MAX, 1);
        get_time(&it, "f", sizes, &l.f);
        get_time(&it, "b", sizes, &l.b);
        get_time(&it, "w", sizes, &l.w);
        if (!grow(&it, &c->layers, sizeof l, c->n, count))
            return;
        while (count-- > 0)
            c->layers[c->n++] = l;
    }
}

static void get_frozen_layers(const struct object *o, const struct costs_points *groups,
                              struct costs_frozen *c)
{
    static const char *const known[] = {"t", "weight_bytes", "scratch_bytes", "count", NULL};
    const json_t *list;
    const int n = get_list(o, "layers", 1, COSTS_LAYERS_MAX, &list);
    for (int i = 0; i < n && o->r->rc == 0; i++) {
        const struct object it = item(o, "layers", list, i, known);
        struct costs_frozen_layer l = {.weight_bytes = get_bytes(&it, "weight_bytes"),
                                       .scratch_bytes = get_bytes(&it, "scratch_bytes")};
        int count = get_int(&it, "count", 1, COSTS_LAYERS_MAX, 1);
        get_time(&it, "t", groups, &l.t);
        if (!grow(&it, &c->layers, sizeof l, c->n, count))
            return;
        while (count-- > 0)
            c->layers[c->n++] = l;
    }
}

static void get_beside(const struct object *o, const char *key, struct costs_beside *out)
{
    static const char *const known[] = {"bytes",      "sample_bytes", "load_bytes",
                                        "slot_bytes", "split_bytes",  NULL};
    struct object it = {.r = o->r, .json = json_object_get(o->json, key)};
    (void)snprintf(it.where, sizeof it.where, "%.40s: %.20s", o->where, key);
    if (!it.json)
        return;
    if (o->r->rc == 0 && !json_is_object(it.json))
        o->r->rc =
            err_set(o->r->err, -ERR_CONFIG, "%s: %s must be an object", o->r->name, it.where);
    refuse_unknown(&it, known);
    *out = (struct costs_beside){.bytes = get_bytes(&it, "bytes"),
                                 .sample_bytes = get_bytes(&it, "sample_bytes"),
                                 .load_bytes = get_bytes(&it, "load_bytes"),
                                 .slot_bytes = get_bytes(&it, "slot_bytes"),
                                 .split_bytes = get_bytes(&it, "split_bytes")};
}

static void get_chains(const struct object *o, struct costs *p)
{
    static const char *const known[] = {"name", "layers", "stage", "first", "last", NULL};
    const json_t *list;
    const int n = get_list(o, "chains", 1, COSTS_CHAINS_MAX, &list);
    for (int i = 0; i < n && o->r->rc == 0; i++) {
        const struct object it = item(o, "chains", list, i, known);
        get_text(&it, "name", p->chains[i].name);
        p->n_chains = i + 1;
        get_layers(&it, &p->sizes, &p->chains[i]);
        get_beside(&it, "stage", &p->chains[i].stage);
        get_beside(&it, "first", &p->chains[i].first);
        get_beside(&it, "last", &p->chains[i].last);
    }
}

static void get_frozen(const struct object *o, struct costs *p)
{
    static const char *const known[] = {"name", "out_bytes", "wanted", "layers", NULL};
    const json_t *list;
    const int n = get_list(o, "frozen", 0, COSTS_FROZEN_MAX, &list);
    if (o->r->rc == 0 && n > 0 && p->groups.n == 0)
        o->r->rc = err_set(o->r->err, -ERR_CONFIG,
                           "%s: groups is missing, but there are frozen "
                           "layers",
                           o->r->name);
    for (int i = 0; i < n && o->r->rc == 0; i++) {
        const struct object it = item(o, "frozen", list, i, known);
        char wanted[COSTS_NAME_MAX + 1] = "first";
        get_text(&it, "name", p->frozen[i].name);
        if (json_object_get(it.json, "wanted"))
            get_text(&it, "wanted", wanted);
        p->frozen[i].all = strcmp(wanted, "all") == 0;
        if (o->r->rc == 0 && !p->frozen[i].all && strcmp(wanted, "first") != 0)
            o->r->rc = err_set(o->r->err, -ERR_CONFIG,
                               "%s: %s: wanted is '%s', expected first or "
                               "all",
                               o->r->name, it.where, wanted);
        p->frozen[i].out_bytes = get_bytes(&it, "out_bytes");
        p->n_frozen = i + 1;
        get_frozen_layers(&it, &p->groups, &p->frozen[i]);
    }
}

static const char *const kinds[] = {[COSTS_ANY] = "", [COSTS_HOST] = "host", [COSTS_CARD] = "card"};

static enum costs_kind get_kind(const struct object *o)
{
    char got[COSTS_NAME_MAX + 1] = "";
    int kind = COSTS_ANY;
    if (!json_object_get(o->json, "kind"))
        return COSTS_ANY;
    get_text(o, "kind", got);
    while (kind <= COSTS_CARD && strcmp(kinds[kind], got) != 0)
        kind++;
    if (o->r->rc == 0 && kind > COSTS_CARD)
        o->r->rc = err_set(o->r->err, -ERR_CONFIG, "%s: %s: kind is '%s', expected host or card",
                           o->r->name, o->where, got);
    return (enum costs_kind)kind;
}

static void get_devices(const struct object *o, struct costs *p)
{
    static const char *const known[] = {"name",      "speed", "memory", "sums_apart",
                                        "from_host", "kind",  "count",  NULL};
    const json_t *list;
    const int n = get_list(o, "devices", 1, COSTS_DEVICES_MAX, &list);
    for (int i = 0; i < n && o->r->rc == 0; i++) {
        const struct object it = item(o, "devices", list, i, known);
        struct costs_device d = {.speed = get_number(&it, "speed", 1e-3, 1e6, 1),
                                 .memory = (uint64_t)get_number(&it, "memory", 0, BYTES_MAX, -1),
                                 .sums_apart = get_int(&it, "sums_apart", 0, 1, 0),
                                 .from_host = get_number(&it, "from_host", 0, 1e15, 0),
                                 .kind = get_kind(&it)};
        int count = get_int(&it, "count", 1, COSTS_DEVICES_MAX, 1);
        get_text(&it, "name", d.name);
        for (; allowed(&it, p->n_devices, count, COSTS_DEVICES_MAX) && count > 0; count--)
            p->devices[p->n_devices++] = d;
    }
}

static void get_links(const struct object *o, struct costs *p)
{
    static const char *const known[] = {"alpha", "bytes_per_s", "count", NULL};
    const json_t *list;
    const int n = get_list(o, "links", 0, COSTS_DEVICES_MAX, &list);
    int links = 0;
    for (int i = 0; i < n && o->r->rc == 0; i++) {
        const struct object it = item(o, "links", list, i, known);
        const struct costs_link l = {get_number(&it, "alpha", 0, SECONDS_MAX, -1),
                                     get_number(&it, "bytes_per_s", 1, 1e15, -1)};
        for (int count = get_int(&it, "count", 1, COSTS_DEVICES_MAX, 1); count > 0; count--)
            if (links++ < p->n_devices - 1)
                p->links[links - 1] = l;
    }
    if (o->r->rc == 0 && links != 0 && links != p->n_devices - 1)
        o->r->rc = err_set(o->r->err, -ERR_CONFIG,
                           "%s: %d links between %d devices, expected one less than devices, or "
                           "none",
                           o->r->name, links, p->n_devices);
    for (; links < p->n_devices - 1; links++)
        p->links[links] = (struct costs_link){0, INFINITY};
}

/* ---- the file ---- */

static void get_profile(struct reader *r, const json_t *json, struct costs *p)
{
    static const char *const known[] = {"format", "version", "model",   "sizes", "chains",
                                        "groups", "frozen",  "devices", "links", NULL};
    const struct object o = {.r = r, .json = json, .where = "the profile"};
    char format[COSTS_NAME_MAX + 1] = "";
    get_text(&o, "format", format);
    if (r->rc < 0 || strcmp(format, FORMAT) != 0) {
        r->rc = err_set(r->err, -ERR_CONFIG, "%s is no profile: format must be \"" FORMAT "\"",
                        r->name);
        return;
    }
    (void)get_int(&o, "version", 1, 1, -1);
    refuse_unknown(&o, known);
    get_text(&o, "model", p->model);
    get_points(&o, "sizes", 1, &p->sizes);
    get_points(&o, "groups", 0, &p->groups);
    get_chains(&o, p);
    get_frozen(&o, p);
    get_devices(&o, p);
    get_links(&o, p);
}

int costs_parse(const char *name, const char *text, size_t len, struct costs *ret, struct err *err)
{
    json_error_t why;
    json_t *json = json_loadb(text, len, JSON_REJECT_DUPLICATES, &why);
    struct reader r = {.name = name, .err = err};
    struct costs p = {0};
    if (!json)
        r.rc = err_set(err, -ERR_FORMAT, "%s:%d: %s", name, why.line, why.text);
    else if (!json_is_object(json))
        r.rc = err_set(err, -ERR_FORMAT, "%s is not a JSON object", name);
    else
        get_profile(&r, json, &p);
    json_decref(json);
    if (r.rc < 0)
        costs_release(&p);
    else
        *ret = p;
    return r.rc;
}

int costs_read(const char *path, struct costs *ret, struct err *err)
{
    struct buf text;
    int rc = file_read(path, COSTS_FILE_MAX, &text, err);
    if (rc < 0)
        return rc;
    rc = costs_parse(path, buf_str(&text), text.len, ret, err);
    buf_release(&text);
    return rc;
}

static json_t *put_numbers(const double *values, int n)
{
    json_t *list = json_array();
    for (int i = 0; i < n; i++)
        (void)json_array_append_new(list, json_real(values[i]));
    return list;
}

static json_t *put_layer(const struct costs_layer *l, int points, int count)
{
    return json_pack("{s:o, s:o, s:o, s:f, s:f, s:I, s:I, s:I, s:I, s:I, s:I, s:i}", "f",
                     put_numbers(l->f.s, points), "b", put_numbers(l->b.s, points), "w",
                     put_numbers(l->w.s, points), "add", l->add, "step", l->step, "out_bytes",
                     (json_int_t)l->out_bytes, "slot_bytes", (json_int_t)l->slot_bytes,
                     "split_bytes", (json_int_t)l->split_bytes, "weight_bytes",
                     (json_int_t)l->weight_bytes, "state_bytes", (json_int_t)l->state_bytes,
                     "gradient_bytes", (json_int_t)l->gradient_bytes, "count", count);
}

static json_t *put_beside(const struct costs_beside *b)
{
    return json_pack("{s:I, s:I, s:I, s:I, s:I}", "bytes", (json_int_t)b->bytes, "sample_bytes",
                     (json_int_t)b->sample_bytes, "load_bytes", (json_int_t)b->load_bytes,
                     "slot_bytes", (json_int_t)b->slot_bytes, "split_bytes",
                     (json_int_t)b->split_bytes);
}

static json_t *put_chains(const struct costs *p)
{
    json_t *chains = json_array();
    for (int c = 0; c < p->n_chains; c++) {
        const struct costs_chain *chain = &p->chains[c];
        json_t *layers = json_array();
        for (int i = 0, n; i < chain->n; i += n) {
            const struct costs_layer *l = &chain->layers[i];
            n = 1;
            while (i + n < chain->n && memcmp(l, l + n, sizeof *l) == 0)
                n++;
            (void)json_array_append_new(layers, put_layer(l, p->sizes.n, n));
        }
        (void)json_array_append_new(
            chains, json_pack("{s:s, s:o, s:o, s:o, s:o}", "name", chain->name, "layers", layers,
                              "stage", put_beside(&chain->stage), "first",
                              put_beside(&chain->first), "last", put_beside(&chain->last)));
    }
    return chains;
}

static json_t *put_frozen(const struct costs *p)
{
    json_t *networks = json_array();
    for (int k = 0; k < p->n_frozen; k++) {
        const struct costs_frozen *f = &p->frozen[k];
        json_t *layers = json_array();
        for (int i = 0; i < f->n; i++) {
            const struct costs_frozen_layer *l = &f->layers[i];
            (void)json_array_append_new(
                layers, json_pack("{s:o, s:I, s:I}", "t", put_numbers(l->t.s, p->groups.n),
                                  "weight_bytes", (json_int_t)l->weight_bytes, "scratch_bytes",
                                  (json_int_t)l->scratch_bytes));
        }
        (void)json_array_append_new(networks,
                                    json_pack("{s:s, s:I, s:s, s:o}", "name", f->name, "out_bytes",
                                              (json_int_t)f->out_bytes, "wanted",
                                              f->all ? "all" : "first", "layers", layers));
    }
    return networks;
}

static json_t *put_points(const struct costs_points *points)
{
    json_t *list = json_array();
    for (int i = 0; i < points->n; i++)
        (void)json_array_append_new(list, json_integer(points->samples[i]));
    return list;
}

int costs_write(const char *path, const struct costs *p, struct err *err)
{
    json_t *devices = json_array(), *links = json_array();
    for (int i = 0; i < p->n_devices; i++) {
        const struct costs_device *d = &p->devices[i];
        json_t *one =
            json_pack("{s:s, s:f, s:f, s:i, s:f}", "name", d->name, "speed", d->speed, "memory",
                      (double)d->memory, "sums_apart", d->sums_apart, "from_host", d->from_host);
        if (d->kind != COSTS_ANY)
            (void)json_object_set_new(one, "kind", json_string(kinds[d->kind]));
        (void)json_array_append_new(devices, one);
        if (i + 1 < p->n_devices)
            (void)json_array_append_new(links, json_pack("{s:f, s:f}", "alpha", p->links[i].alpha,
                                                         "bytes_per_s", p->links[i].bytes_per_s));
    }
    json_t *json = json_pack("{s:s, s:i, s:s, s:o, s:o, s:o, s:o, s:o, s:o}", "format", FORMAT,
                             "version", 1, "model", p->model, "sizes", put_points(&p->sizes),
                             "chains", put_chains(p), "groups", put_points(&p->groups), "frozen",
                             put_frozen(p), "devices", devices, "links", links);
    char *text = json ? json_dumps(json, JSON_INDENT(1) | JSON_REAL_PRECISION(9)) : NULL;
    int rc = text ? file_write_atomic(path, text, strlen(text), 0644, err)
                  : err_set(err, -ENOMEM, "no memory to write %s", path);
    free(text);
    json_decref(json);
    return rc;
}

void costs_release(struct costs *p)
{
    for (int i = 0; i < p->n_chains; i++)
        mem_free(p->chains[i].layers);
    for (int i = 0; i < p->n_frozen; i++)
        mem_free(p->frozen[i].layers);
    *p = (struct costs){0};
}

int costs_copy(const struct costs *p, struct costs *ret)
{
    struct costs c = *p;
    bool good = true;
    for (int i = 0; i < p->n_chains; i++) {
        c.chains[i].layers = mem_try_array((size_t)p->chains[i].n, sizeof *c.chains[i].layers);
        good &= c.chains[i].layers != NULL;
    }
    for (int i = 0; i < p->n_frozen; i++) {
        c.frozen[i].layers = mem_try_array((size_t)p->frozen[i].n, sizeof *c.frozen[i].layers);
        good &= c.frozen[i].layers != NULL;
    }
    if (!good) {
        costs_release(&c);
        return -ENOMEM;
    }
    for (int i = 0; i < p->n_chains; i++)
        memcpy(c.chains[i].layers, p->chains[i].layers,
               (size_t)p->chains[i].n * sizeof *c.chains[i].layers);
    for (int i = 0; i < p->n_frozen; i++)
        memcpy(c.frozen[i].layers, p->frozen[i].layers,
               (size_t)p->frozen[i].n * sizeof *c.frozen[i].layers);
    *ret = c;
    return 0;
}

/* ---- its figures ---- */

#define MIB (UINT64_C(1) << 20)

/* Working memory of cuBLASLt and cuDNN, and code that the driver loads in the first step; also
 * partial sums of a few kernels, which are small against the activations. */
#define CARD_WORKSPACE (192 * MIB)
#define CARD_SUMS_SHARE 16
/* Packed panels of the products, the image pipeline. */
#define HOST_WORKSPACE (32 * MIB)

uint64_t costs_workspace(enum costs_kind kind, uint64_t activations, uint64_t flat_bytes)
{
    return kind == COSTS_HOST   ? HOST_WORKSPACE + flat_bytes
           : kind == COSTS_CARD ? CARD_WORKSPACE + activations / CARD_SUMS_SHARE
                                : 0;
}

double costs_seconds(const struct costs_points *points, const struct costs_time *time, int samples)
{
    int i = 0;
    while (i < points->n - 1 && points->samples[i] < samples)
        i++;
    const int at = points->samples[i];
    if (i == 0 || at < samples)
        return time->s[i] * samples / at;
    const int below = points->samples[i - 1];
    return time->s[i - 1] + (time->s[i] - time->s[i - 1]) * (samples - below) / (at - below);
}

static struct costs_link worse(struct costs_link a, struct costs_link b)
{
    return (struct costs_link){fmax(a.alpha, b.alpha), fmin(a.bytes_per_s, b.bytes_per_s)};
}

struct costs_link costs_link(const struct costs *p, int a, int b)
{
    struct costs_link l = {0, INFINITY};
    for (int i = a < b ? a : b; i < (a < b ? b : a); i++)
        l = worse(l, p->links[i]);
    return l;
}

double costs_transfer(const struct costs_link *link, uint64_t bytes)
{
    return link->alpha + (double)bytes / link->bytes_per_s;
}

void costs_share(const struct costs *p, int copies, struct costs *ret)
{
    const int n = p->n_devices / copies;
    *ret = *p;
    ret->n_devices = n;
    ret->across = costs_link(p, 0, p->n_devices - 1);
    for (int i = n; i < p->n_devices; i++) {
        struct costs_device *d = &ret->devices[i % n];
        d->speed = fmin(d->speed, p->devices[i].speed);
        d->memory = d->memory < p->devices[i].memory ? d->memory : p->devices[i].memory;
        d->sums_apart |= p->devices[i].sums_apart;
        d->kind = d->kind > p->devices[i].kind ? d->kind : p->devices[i].kind;
    }
    for (int i = n; i < p->n_devices - 1; i++)
        if (i % n < n - 1)
            ret->links[i % n] = worse(ret->links[i % n], p->links[i]);
}

void costs_some(const struct costs *p, int from, int n, struct costs *ret)
{
    *ret = *p;
    ret->n_devices = n;
    for (int i = 0; i < n; i++)
        ret->devices[i] = p->devices[from + i];
    for (int i = 0; i + 1 < n; i++)
        ret->links[i] = p->links[from + i];
}
