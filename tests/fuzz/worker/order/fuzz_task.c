/* Tasks as a coordinator might send them: each is refused with a sentence, or has what a worker
 * goes on with: a job that can be read, networks whose sizes can be told, blobs with hashes, and
 * lists of no more than was agreed. */
#include <stdlib.h>

#include "common/base/file.h"
#include "common/base/log.h"
#include "tests/fuzz/folder.h"
#include "tests/fuzz/message.h"
#include "worker/kinds/kinds.h"
#include "worker/model/model.h"
#include "worker/order/task_check.h"
#include "worker/order/task_model.h"
#include "worker/order/work.h"

#define CHANGES_MAX 8
#define PARTITIONS 4

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct cache *cache;

/* ---- a sound task, with the parts of all kinds -------------------------------------------- */

static const char *const specs[] = {
    "name: a\nseed: 3\ndata: {path: x, image_size: 16}\n"
    "model: {type: dit, patch: 4, dim: 32, depth: 4, heads: 2}\n"
    "router: {patch: 4, dim: 32, depth: 1, heads: 2}\n"
    "train: {batch: 4, lr: 0.1}\nrecipe: {name: ddm, experts: 4}\nouter: {rounds: 3, steps: 5}\n",
    "name: b\nseed: 3\ndata: {path: x}\n"
    "model: {type: llama, dim: 32, depth: 4, heads: 2, context: 64}\n"
    "train: {batch: 4, lr: 0.1}\nrecipe: {name: dipaco, levels: [2, 2]}\n"
    "outer: {rounds: 3, steps: 5}\n",
    "name: c\nseed: 3\ndata: {kind: none}\nmodel: {type: external}\n"
    "trainer: {command: ./train}\ntrain: {batch: 4}\nrecipe: {name: diloco, replicas: 2}\n"
    "outer: {rounds: 3, seconds: 5}\n",
    "name: d\nseed: 3\ndata: {path: x, image_size: 16}\nencoders: {vae: y}\n"
    "model: {type: dit, patch: 4, dim: 32, depth: 4, heads: 2}\n"
    "train: {batch: 4, lr: 0.1}\nrecipe: {name: ddm, experts: 4}\nouter: {rounds: 3, steps: 5}\n",
    "name: e\nseed: 3\ndata: {path: x, image_size: 16}\n"
    "model: {type: dit, patch: 4, dim: 32, depth: 2, heads: 2}\nupscaler: {low_side: 8}\n"
    "train: {batch: 4, lr: 0.1}\nrecipe: {name: ddm, experts: 4}\nouter: {rounds: 3, steps: 5}\n"};

#define TEXT(s) ((char *)(uintptr_t)(s))
#define LIST(x) (void *)memcpy(message_room(sizeof(void *)), &(void *){x}, sizeof(void *))

/* An initialised message of the arena, which begins empty: there is room. */
static void *make(const ProtobufCMessageDescriptor *d)
{
    void *m = message_room(d->sizeof_message);
    d->message_init(m);
    return m;
}

static ProtobufCBinaryData hash(void)
{
    return (ProtobufCBinaryData){32, message_room(32)};
}

static Skerry__V1__Blob *blob(void)
{
    Skerry__V1__Blob *b = make(&skerry__v1__blob__descriptor);
    b->sha256 = hash();
    b->size = 100;
    b->url = TEXT("/v1/blobs/aa?sig=1");
    return b;
}

static Skerry__V1__Range **ranges(void)
{
    Skerry__V1__Range *r = make(&skerry__v1__range__descriptor);
    r->shard = blob();
    r->count = 10;
    return LIST(r);
}

static Skerry__V1__ModuleRef **modules(void)
{
    Skerry__V1__ModuleRef *m = make(&skerry__v1__module_ref__descriptor);
    Skerry__V1__Delta *d = make(&skerry__v1__delta__descriptor);
    m->module_id = 9;
    m->version = d->to = 5;
    d->from = 4;
    d->blob = blob();
    m->full = blob();
    m->sha256 = hash();
    m->deltas = LIST(d);
    m->n_deltas = 1;
    return LIST(m);
}

static Skerry__V1__Level **levels(void)
{
    Skerry__V1__Level *l = make(&skerry__v1__level__descriptor);
    l->n_blocks = PARTITIONS;
    l->blocks = message_room(PARTITIONS * sizeof(*l->blocks));
    for (uint32_t i = 0; i < PARTITIONS; i++)
        l->blocks[i] = i;
    l->embedders = l->head = true;
    return LIST(l);
}

static Skerry__V1__Expert **experts(void)
{
    Skerry__V1__Expert *e = make(&skerry__v1__expert__descriptor);
    e->modules = modules();
    e->n_modules = 1;
    return LIST(e);
}

static Skerry__V1__TrainTask *train(void)
{
    Skerry__V1__TrainTask *t = make(&skerry__v1__train_task__descriptor);
    Skerry__V1__Snapshot *s = make(&skerry__v1__snapshot__descriptor);
    Skerry__V1__Contribution *c = make(&skerry__v1__contribution__descriptor);
    Skerry__V1__Fragment *f = make(&skerry__v1__fragment__descriptor);
    c->module_id = 9;
    c->base_version = 5;
    c->blob = blob();
    s->modules = LIST(c);
    s->n_modules = 1;
    s->steps = 2;
    s->samples = 8;
    f->step = 3;
    t->steps = 5;
    t->delay = 2;
    t->ranges = ranges();
    t->fragments = LIST(f);
    t->n_ranges = t->n_fragments = 1;
    t->resume = s;
    t->moments = blob();
    t->ahead = LIST(blob());
    t->n_ahead = 1;
    t->teachers = experts();
    t->n_teachers = 1;
    return t;
}

static Skerry__V1__Mixture *mixture(void)
{
    Skerry__V1__Mixture *m = make(&skerry__v1__mixture__descriptor);
    m->experts = make(&skerry__v1__experts__descriptor);
    m->experts->expert = experts();
    m->experts->n_expert = 1;
    m->router = modules();
    m->n_router = 1;
    return m;
}

static Skerry__V1__ClusterTask *cluster(void)
{
    Skerry__V1__ClusterTask *c = make(&skerry__v1__cluster_task__descriptor);
    c->features = LIST(blob());
    c->counts = message_room(sizeof(*c->counts));
    c->holdout = message_room(sizeof(*c->holdout));
    c->levels = message_room(sizeof(*c->levels));
    c->counts[0] = 10;
    c->levels[0] = PARTITIONS;
    c->n_features = c->n_counts = c->n_holdout = c->n_levels = c->top = 1;
    c->previous = blob();
    return c;
}

static Skerry__V1__OuterTask *outer(void)
{
    Skerry__V1__OuterTask *o = make(&skerry__v1__outer_task__descriptor);
    Skerry__V1__OuterInput *in = make(&skerry__v1__outer_input__descriptor);
    in->blob = blob();
    in->codec = o->down = TEXT("f32");
    in->weight = 1;
    in->from = o->version = 3;
    o->module_id = 9;
    o->full = blob();
    o->target = blob();
    o->momentum = blob();
    o->inputs = LIST(in);
    o->n_inputs = 1;
    return o;
}

/* Each kind reads its own part. */
static void add_parts(Skerry__V1__Task *t)
{
    t->train = train();
    t->eval = make(&skerry__v1__eval_task__descriptor);
    t->sample = make(&skerry__v1__sample_task__descriptor);
    t->ingest = make(&skerry__v1__ingest_task__descriptor);
    t->feature = make(&skerry__v1__feature_task__descriptor);
    t->split = make(&skerry__v1__split_task__descriptor);
    t->score = make(&skerry__v1__score_task__descriptor);
    t->velocity = make(&skerry__v1__velocity_task__descriptor);
    t->encode = make(&skerry__v1__encode_task__descriptor);
    t->cluster = cluster();
    t->outer = outer();
    t->eval->ranges = t->feature->ranges = t->split->ranges = t->score->ranges = ranges();
    t->eval->n_ranges = t->feature->n_ranges = t->split->n_ranges = t->score->n_ranges = 1;
    t->encode->range = *ranges();
    t->split->assignment = blob();
    t->velocity->input = blob();
    t->ingest->url = TEXT("https://example.org/x.tar");
    t->sample->steps = 20;
    t->sample->guidance = t->sample->top_p = 1;
    t->sample->labels = message_room(sizeof(uint32_t));
    t->sample->n_labels = 1;
}

static Skerry__V1__Task *sound_task(void)
{
    Skerry__V1__Task *t = make(&skerry__v1__task__descriptor);
    Skerry__V1__EncoderFile *f = make(&skerry__v1__encoder_file__descriptor);
    t->id = t->attempt = 1;
    t->kind = (Skerry__V1__TaskKind)(message_byte() % 16);
    t->spec = TEXT(specs[message_byte() % (sizeof(specs) / sizeof(specs[0]))]);
    t->modules = modules();
    t->levels = levels();
    t->n_modules = t->n_levels = t->n_classes = 1;
    t->classes = LIST(TEXT("cat"));
    t->partitions = PARTITIONS;
    t->vocab = 257;
    f->name = TEXT("config.json");
    f->blob = blob();
    if (message_byte() % 2) {
        t->encoders = LIST(f);
        t->n_encoders = 1;
        t->input = make(&skerry__v1__network_input__descriptor);
        t->input->channels = 4;
        t->input->side = 8;
    }
    if (message_byte() % 4 == 0)
        t->mixture = mixture();
    add_parts(t);
    return t;
}

/* ---- what must hold of it ------------------------------------------------------------------ */

static void expect(bool holds)
{
    if (!holds)
        abort();
}

static void must_say(int rc, const struct err *err)
{
    expect(rc == 0 || (rc < 0 && err->msg[0] != '\0'));
}

static void look_at_ranges(struct work *w)
{
    struct data_range *list = NULL;
    const Skerry__V1__TrainTask *t = w->task->train;
    if (w->kind->id != SKERRY__V1__TASK_KIND__TASK_KIND_TRAIN || t->n_ranges == 0)
        return;
    expect(work_need_ranges(w, t->ranges, t->n_ranges, NULL) == 0);
    expect(work_ranges(w, t->ranges, t->n_ranges, &list, NULL) == 0);
    for (size_t i = 0; i < t->n_ranges; i++)
        expect(list[i].count > 0 && strncmp(list[i].path, fuzz_folder, strlen(fuzz_folder)) == 0);
    mem_free(list);
}

static void look_at_network(const struct work *w, Skerry__V1__Network network)
{
    struct model *m = NULL;
    struct err err = {0};
    const int rc = task_model(w, network, &m, &err);
    must_say(rc, &err);
    /* Pictures are read at the sides of the job file. */
    if (rc == 0 && m->spec.kind != MODEL_LLAMA && !job_has_latents(&w->spec))
        expect(m->spec.channels == MODEL_PIXEL_CHANNELS &&
               model_drawn_side(&m->spec) == w->spec.data.image_size);
    for (size_t i = 0; rc == 0 && i < m->n; i++)
        expect(m->tensors[i].level >= 0 && m->tensors[i].level < MODEL_LEVELS_MAX &&
               model_tensor_end(&m->tensors[i]) <= m->flat);
    model_free(m);
}

static void take(const Skerry__V1__Task *t)
{
    struct work *w = NULL;
    struct err err = {0};
    const int rc = work_new(kinds_all, t, cache, fuzz_folder, &w, &err);
    must_say(rc, &err);
    if (rc < 0)
        return;
    for (size_t i = 0; i < t->n_encoders; i++)
        expect(strchr(t->encoders[i]->name, '/') == NULL);
    expect(w->task->n_modules <= TASK_MODULES_MAX);
    look_at_ranges(w);
    if (w->spec.model.type != JOB_MODEL_EXTERNAL) {
        look_at_network(w, SKERRY__V1__NETWORK__NETWORK_MAIN);
        look_at_network(w, SKERRY__V1__NETWORK__NETWORK_ROUTER);
    }
    work_free(w);
}

static void close_cache(void)
{
    cache_close(cache);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    log_set_level(LOG_LEVEL_ERROR + 1);
    fuzz_folder_make();
    char *blobs = file_join(fuzz_folder, "blobs");
    expect(cache_open(blobs, 0, &cache, NULL) == 0);
    mem_free(blobs);
    expect(atexit(close_cache) == 0);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    message_next = data;
    message_end = data + size;
    message_begin();
    Skerry__V1__Task *t = sound_task();
    for (unsigned i = message_byte() % CHANGES_MAX; i > 0; i--)
        message_change(&t->base, 6);
    const size_t len = skerry__v1__task__get_packed_size(t);
    if (len > 1u << 20)
        return 0;
    uint8_t *packed = mem_alloc(len + 1);
    (void)skerry__v1__task__pack(t, packed);
    Skerry__V1__Task *got = skerry__v1__task__unpack(NULL, len, packed);
    if (got != NULL)
        take(got);
    skerry__v1__task__free_unpacked(got, NULL);
    mem_free(packed);
    return 0;
}
