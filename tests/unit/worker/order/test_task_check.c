/* task_check over a table of wrong messages: each names the field. */
#include "tests/unit/common/base/util.h"

#include <math.h>

#include "worker/kinds/kinds.h"
#include "worker/order/work.h"
#include "worker/order/task_check.h"

/* A sound TRAIN, EVAL and SAMPLE task in one: the kind says which part counts. */
struct sound {
    uint8_t hash[32];
    Skerry__V1__Task task;
    Skerry__V1__ModuleRef module, *modules[1];
    Skerry__V1__Blob blob;
    Skerry__V1__Delta delta[2], *deltas[2];
    Skerry__V1__Range range, *ranges[1];
    Skerry__V1__TrainTask train;
    Skerry__V1__Fragment fragment, *fragments[2];
    Skerry__V1__EvalTask eval;
    Skerry__V1__SampleTask sample;
    Skerry__V1__IngestTask ingest;
    Skerry__V1__FeatureTask feature;
    Skerry__V1__ClusterTask cluster;
    Skerry__V1__SplitTask split;
    Skerry__V1__ScoreTask score;
    Skerry__V1__VelocityTask velocity;
    Skerry__V1__OuterTask outer;
    Skerry__V1__OuterInput outer_input, *outer_inputs[1];
    Skerry__V1__Level level, *levels[1];
    Skerry__V1__Blob *blobs[4];
    uint32_t blocks[2], counts[2], radix[2], scored[1];
    protobuf_c_boolean holdout[2];
    uint32_t labels[2];
    char *classes[2];
    char long_text[TASK_SPEC_MAX + 2];
};

/* Two shards in four partitions, the first of them scored by all four paths. */
static void stages_init(struct sound *s)
{
    skerry__v1__feature_task__init(&s->feature);
    skerry__v1__cluster_task__init(&s->cluster);
    skerry__v1__split_task__init(&s->split);
    skerry__v1__score_task__init(&s->score);
    skerry__v1__velocity_task__init(&s->velocity);
    skerry__v1__outer_task__init(&s->outer);
    skerry__v1__outer_input__init(&s->outer_input);
    skerry__v1__level__init(&s->level);
    s->feature.ranges = s->split.ranges = s->score.ranges = s->ranges;
    s->feature.n_ranges = s->split.n_ranges = s->score.n_ranges = 1;
    s->split.assignment = s->velocity.input = &s->blob;
    for (int i = 0; i < 4; i++)
        s->blobs[i] = &s->blob;
    s->counts[0] = s->counts[1] = 10;
    s->radix[0] = s->radix[1] = 2;
    s->cluster.features = s->cluster.scores = s->blobs;
    s->cluster.n_features = s->cluster.n_counts = s->cluster.n_holdout = 2;
    s->cluster.n_scores = 4;
    s->cluster.counts = s->counts;
    s->cluster.holdout = s->holdout;
    s->cluster.levels = s->radix;
    s->cluster.n_levels = 2;
    s->cluster.top = 2;
    s->cluster.scored = s->scored;
    s->cluster.n_scored = 1;
    s->blocks[1] = 3;
    s->level.blocks = s->blocks;
    s->level.n_blocks = 2;
    s->levels[0] = &s->level;
    s->task.feature = &s->feature;
    s->task.cluster = &s->cluster;
    s->task.split = &s->split;
    s->task.score = &s->score;
    s->task.velocity = &s->velocity;
    s->outer_input.blob = s->outer.full = s->outer.target = s->outer.momentum = &s->blob;
    s->outer_input.codec = s->outer.down = (char *)"f32";
    s->outer_input.weight = 1;
    s->outer_input.from = s->outer.version = 3;
    s->outer_inputs[0] = &s->outer_input;
    s->outer.module_id = 9;
    s->outer.inputs = s->outer_inputs;
    s->outer.n_inputs = 1;
    s->task.outer = &s->outer;
    s->task.levels = s->levels;
    s->task.n_levels = 1;
    s->task.partitions = 4;
    s->cluster.previous = &s->blob;
}

static void sound_init(struct sound *s)
{
    memset(s, 0, sizeof(*s));
    skerry__v1__task__init(&s->task);
    skerry__v1__module_ref__init(&s->module);
    skerry__v1__blob__init(&s->blob);
    skerry__v1__range__init(&s->range);
    skerry__v1__train_task__init(&s->train);
    skerry__v1__eval_task__init(&s->eval);
    skerry__v1__sample_task__init(&s->sample);
    skerry__v1__ingest_task__init(&s->ingest);
    stages_init(s);
    s->blob.sha256 = (ProtobufCBinaryData){32, s->hash};
    s->blob.size = 100;
    s->blob.url = (char *)"/v1/blobs/aa?sig=1";
    for (int i = 0; i < 2; i++) {
        skerry__v1__delta__init(&s->delta[i]);
        s->delta[i].from = 3 + (uint64_t)i;
        s->delta[i].to = 4 + (uint64_t)i;
        s->delta[i].blob = &s->blob;
        s->deltas[i] = &s->delta[i];
    }
    s->module.module_id = 9;
    s->module.version = 5;
    s->module.full = &s->blob;
    s->module.sha256 = s->blob.sha256;
    s->module.deltas = s->deltas;
    s->module.n_deltas = 2;
    s->modules[0] = &s->module;
    s->range.shard = &s->blob;
    s->range.count = 10;
    s->ranges[0] = &s->range;
    skerry__v1__fragment__init(&s->fragment);
    s->fragment.step = 3;
    s->fragments[0] = s->fragments[1] = &s->fragment;
    s->train.fragments = s->fragments;
    s->train.n_fragments = 1;
    s->train.delay = 2;
    s->train.steps = 5;
    s->train.ranges = s->eval.ranges = s->ranges;
    s->train.n_ranges = s->eval.n_ranges = 1;
    s->labels[1] = 1;
    s->sample.steps = 20;
    s->sample.guidance = 1.5f;
    s->sample.labels = s->labels;
    s->sample.n_labels = 2;
    s->ingest.url = (char *)"https://example.org/x.tar";
    s->classes[0] = (char *)"a";
    s->classes[1] = (char *)"b";
    s->task.id = 1;
    s->task.kind = SKERRY__V1__TASK_KIND__TASK_KIND_TRAIN;
    s->task.spec = (char *)"name: x";
    s->task.modules = s->modules;
    s->task.n_modules = 1;
    s->task.classes = s->classes;
    s->task.n_classes = 2;
    s->task.train = &s->train;
    s->task.eval = &s->eval;
    s->task.sample = &s->sample;
    s->task.ingest = &s->ingest;
    memset(s->long_text, 'x', sizeof(s->long_text) - 1);
}

#define BREAK(name, ...)                                                                           \
    static void name(struct sound *s)                                                              \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }
#define KIND(k) s->task.kind = SKERRY__V1__TASK_KIND__TASK_KIND_##k;
BREAK(strange_network, s->task.network = (Skerry__V1__Network)2;)
BREAK(many_partitions, s->task.partitions = 1025;)
BREAK(many_levels, s->task.n_levels = 65;)
BREAK(many_blocks, s->level.n_blocks = 257;)
BREAK(block_too_high, s->blocks[1] = 256;)
BREAK(blocks_fall, s->blocks[0] = 3;)
BREAK(level_too_high, KIND(INIT) s->module.level = 1;)
BREAK(huge_batch, s->train.batch = 65537;)
BREAK(bad_ahead, static Skerry__V1__Blob none; none = s->blob; none.size = 0;
      static Skerry__V1__Blob * list[1]; list[0] = &none; s->train.ahead = list;
      s->train.n_ahead = 1;)
BREAK(much_ahead, static Skerry__V1__Blob *list[65];
      for (int i = 0; i < 65; i++) list[i] = &s->blob; s->train.ahead = list;
      s->train.n_ahead = 65;)
BREAK(bad_moments, static Skerry__V1__Blob none; none = s->blob; none.size = 0;
      s->train.moments = &none;)
BREAK(long_skip, KIND(EVAL) s->eval.skip = TASK_PIECE_MAX + 1;)
BREAK(no_feature, KIND(FEATURE) s->task.feature = NULL;)
BREAK(no_feature_ranges, KIND(FEATURE) s->feature.n_ranges = 0;)
BREAK(long_chunk, KIND(FEATURE) s->feature.chunk = TASK_PIECE_MAX + 1;)
BREAK(no_cluster, KIND(CLUSTER) s->task.cluster = NULL;)
BREAK(few_counts, KIND(CLUSTER) s->cluster.n_counts = 1;)
BREAK(no_radix, KIND(CLUSTER) s->cluster.n_levels = 0;)
BREAK(zero_radix, KIND(CLUSTER) s->radix[1] = 0;)
BREAK(many_digits, KIND(CLUSTER) s->cluster.n_levels = 17;)
BREAK(unpartitioned, KIND(SPLIT) s->task.partitions = 0;)
BREAK(no_previous, KIND(CLUSTER) s->cluster.previous = NULL;)
BREAK(big_count, KIND(CLUSTER) s->counts[1] = TASK_SHARD_SAMPLES_MAX + 1;)
BREAK(no_rows, KIND(CLUSTER) s->counts[0] = 0;)
BREAK(big_top, KIND(CLUSTER) s->cluster.top = 5;)
BREAK(few_scores, KIND(CLUSTER) s->cluster.n_scores = 3;)
BREAK(scored_beyond, KIND(CLUSTER) s->scored[0] = 2;)
BREAK(no_split, KIND(SPLIT) s->task.split = NULL;)
BREAK(no_assignment, KIND(SPLIT) s->split.assignment = NULL;)
BREAK(far_first, KIND(SPLIT) s->split.first = UINT64_MAX;)
BREAK(no_score, KIND(SCORE) s->task.score = NULL;)
BREAK(no_velocity, KIND(VELOCITY) s->task.velocity = NULL;)
BREAK(no_input, KIND(VELOCITY) s->velocity.input = NULL;)
BREAK(no_id, s->task.id = 0;)
BREAK(no_spec, s->task.spec = (char *)"";)
BREAK(long_spec, s->task.spec = s->long_text;)
BREAK(unknown_kind, s->task.kind = (Skerry__V1__TaskKind)77;)
BREAK(no_outer, KIND(OUTER) s->task.outer = NULL;)
BREAK(no_outer_inputs, KIND(OUTER) s->outer.n_inputs = 0;)
BREAK(many_outer_inputs, KIND(OUTER) s->outer.n_inputs = 257;)
BREAK(no_outer_state, KIND(OUTER) s->outer.momentum = NULL;)
BREAK(no_outer_full, KIND(OUTER) s->outer.full = NULL;)
BREAK(strange_down, KIND(OUTER) s->outer.down = (char *)"f33";)
BREAK(strange_codec, KIND(OUTER) s->outer_input.codec = (char *)"";)
BREAK(no_weight, KIND(OUTER) s->outer_input.weight = 0;)
BREAK(from_the_future, KIND(OUTER) s->outer_input.from = 4;)
BREAK(no_older_version, KIND(OUTER) s->outer_input.from = 2;)
BREAK(no_contribution, KIND(OUTER) s->outer_input.blob = NULL;)
BREAK(no_modules, s->task.n_modules = 0;)
BREAK(many_modules, s->task.n_modules = 65;)
BREAK(no_module_id, s->module.module_id = 0;)
BREAK(wrong_level, s->module.level = 1;)
BREAK(short_module_hash, s->module.sha256.len = 31;)
BREAK(no_source, s->module.full = NULL; s->module.n_deltas = 0;)
BREAK(gap_in_deltas, s->delta[1].from = 5; s->delta[1].to = 6; s->module.version = 6;)
BREAK(deltas_end_early, s->module.version = 6;)
BREAK(delta_jumps, s->delta[0].from = 1;)
BREAK(delta_without_blob, s->delta[0].blob = NULL;)
BREAK(many_deltas, s->module.n_deltas = 17;)
BREAK(no_train, s->task.train = NULL;)
BREAK(no_length, s->train.steps = 0;)
BREAK(two_lengths, s->train.seconds = 3;)
BREAK(too_long, s->train.steps = TASK_STEPS_MAX + 1;)
BREAK(many_fragments, s->train.n_fragments = 2;)
BREAK(long_delay, s->train.delay = 5;)
BREAK(bad_mix, s->train.mix = NAN;)
BREAK(late_fragment, s->fragment.step = 6;)
BREAK(no_fragment_level, s->fragment.level = 1;)
BREAK(many_ranges, s->train.n_ranges = 4097;)
BREAK(no_shard, s->range.shard = NULL;)
BREAK(empty_range, s->range.count = 0;)
BREAK(range_overflows, s->range.start = UINT32_MAX; s->range.count = 2;)
BREAK(short_hash, s->blob.sha256.len = 20;)
BREAK(empty_blob, s->blob.size = 0;)
BREAK(huge_blob, s->blob.size = UINT64_MAX;)
BREAK(strange_url, s->blob.url = (char *)"file:///etc/passwd";)
BREAK(a_url, s->blob.url = (char *)"https://evil/v1/blobs/x";)
BREAK(other_host, s->blob.url = (char *)"//evil/v1/blobs/x";)
BREAK(long_class, s->classes[1] = s->long_text;)
BREAK(eval_missing, s->task.kind = SKERRY__V1__TASK_KIND__TASK_KIND_EVAL; s->task.eval = NULL;)
#define SAMPLE s->task.kind = SKERRY__V1__TASK_KIND__TASK_KIND_SAMPLE;
BREAK(sample_missing, SAMPLE s->task.sample = NULL;)
BREAK(no_labels, SAMPLE s->sample.n_labels = 0;)
BREAK(many_labels, SAMPLE s->sample.n_labels = 1025;)
BREAK(label_too_high, SAMPLE s->labels[1] = 2;)
BREAK(no_ode_steps, SAMPLE s->sample.steps = 0;)
BREAK(nan_guidance, SAMPLE s->sample.guidance = NAN;)
#define TEXT                                                                                       \
    SAMPLE s->sample.tokens = 9;                                                                   \
    s->sample.top_p = 1;                                                                           \
    s->task.vocab = 257;                                                                           \
    s->task.n_classes = 0;
BREAK(many_tokens, TEXT s->sample.tokens = 4097;)
BREAK(nan_temperature, TEXT s->sample.temperature = NAN;)
BREAK(no_nucleus, TEXT s->sample.top_p = 0;)
BREAK(long_prompt, TEXT s->sample.prompt = s->long_text;)
BREAK(huge_vocab, TEXT s->task.vocab = (1u << 20) + 1;)
BREAK(short_tokenizer_hash, TEXT s->task.tokenizer = &s->blob; s->blob.sha256.len = 3;
      s->module.full = NULL; s->module.n_deltas = 0;)
#define INGEST s->task.kind = SKERRY__V1__TASK_KIND__TASK_KIND_INGEST;
BREAK(ingest_missing, INGEST s->task.ingest = NULL;)
BREAK(ingest_path, INGEST s->ingest.url = (char *)"/v1/blobs/x";)

static const struct {
    const char *name;
    void (*apply)(struct sound *s);
    int code;
    const char *sentence;
} rows[] = {
    {"no id", no_id, ERR_FORMAT, "id is missing"},
    {"no spec", no_spec, ERR_FORMAT, "spec is empty"},
    {"long spec", long_spec, ERR_LIMIT, "spec is 32769 bytes"},
    {"unknown kind", unknown_kind, ERR_UNIMPLEMENTED, "kind 77"},
    {"outer missing", no_outer, ERR_FORMAT, "outer is missing"},
    {"no inputs", no_outer_inputs, ERR_FORMAT, "outer needs a module, inputs"},
    {"many inputs", many_outer_inputs, ERR_LIMIT, "outer.inputs has 257 entries"},
    {"no state", no_outer_state, ERR_FORMAT, "outer needs a module, inputs"},
    {"no version", no_outer_full, ERR_FORMAT, "outer.full is missing"},
    {"strange down", strange_down, ERR_FORMAT, "outer needs a module, inputs, a codec"},
    {"strange codec", strange_codec, ERR_FORMAT, "outer.inputs.codec '' is not known"},
    {"no weight", no_weight, ERR_FORMAT, "outer.inputs has weight 0 from version 3"},
    {"from a later version", from_the_future, ERR_FORMAT, "weight 1 from version 4"},
    {"older values", no_older_version, ERR_FORMAT, "outer.inputs.from_full is missing"},
    {"no contribution", no_contribution, ERR_FORMAT, "outer.inputs.blob is missing"},
    {"no modules", no_modules, ERR_FORMAT, "modules is empty"},
    {"many modules", many_modules, ERR_LIMIT, "modules has 65"},
    {"no module id", no_module_id, ERR_FORMAT, "module without an id"},
    {"wrong level", wrong_level, ERR_FORMAT, "level 1"},
    {"short module hash", short_module_hash, ERR_FORMAT, "modules.sha256"},
    {"no source", no_source, ERR_FORMAT, "neither a full blob nor deltas"},
    {"gap in the chain", gap_in_deltas, ERR_FORMAT, "does not continue"},
    {"chain ends early", deltas_end_early, ERR_FORMAT, "end at 5"},
    {"delta jumps", delta_jumps, ERR_FORMAT, "does not continue"},
    {"delta without blob", delta_without_blob, ERR_FORMAT, "modules.deltas.blob is missing"},
    {"many deltas", many_deltas, ERR_LIMIT, "modules.deltas has 17"},
    {"no train", no_train, ERR_FORMAT, "train is missing"},
    {"no length", no_length, ERR_FORMAT, "exactly one"},
    {"two lengths", two_lengths, ERR_FORMAT, "exactly one"},
    {"too long", too_long, ERR_LIMIT, "1000001 steps"},
    {"many fragments", many_fragments, ERR_FORMAT, "2 fragments for 1 modules"},
    {"long delay", long_delay, ERR_FORMAT, "merged 5 steps later in a phase of 5"},
    {"mix that is no number", bad_mix, ERR_LIMIT, "train.mix is nan"},
    {"late fragment", late_fragment, ERR_FORMAT, "level 0 at step 6"},
    {"fragment of no module", no_fragment_level, ERR_FORMAT, "level 1 at step 3"},
    {"many ranges", many_ranges, ERR_LIMIT, "train.ranges has 4097"},
    {"no shard", no_shard, ERR_FORMAT, "train.ranges is missing"},
    {"empty range", empty_range, ERR_LIMIT, "covers 0 samples"},
    {"range overflows", range_overflows, ERR_LIMIT, "covers 2 samples"},
    {"short hash", short_hash, ERR_FORMAT, "20 bytes long"},
    {"empty blob", empty_blob, ERR_LIMIT, "size 0"},
    {"huge blob", huge_blob, ERR_LIMIT, "has the size"},
    {"strange url", strange_url, ERR_FORMAT, "not a path of the coordinator"},
    {"url of another host", a_url, ERR_FORMAT, "not a path of the coordinator"},
    {"path of another host", other_host, ERR_FORMAT, "not a path of the coordinator"},
    {"long class", long_class, ERR_LIMIT, "classes is"},
    {"eval missing", eval_missing, ERR_FORMAT, "eval is missing"},
    {"sample missing", sample_missing, ERR_FORMAT, "sample is missing"},
    {"no labels", no_labels, ERR_FORMAT, "labels is empty"},
    {"many labels", many_labels, ERR_LIMIT, "labels has 1025"},
    {"label too high", label_too_high, ERR_LIMIT, "labels[1] is 2"},
    {"no ODE steps", no_ode_steps, ERR_LIMIT, "sample.steps is 0"},
    {"NaN guidance", nan_guidance, ERR_LIMIT, "guidance"},
    {"many tokens", many_tokens, ERR_LIMIT, "tokens is 4097"},
    {"NaN temperature", nan_temperature, ERR_LIMIT, "temperature"},
    {"no nucleus", no_nucleus, ERR_LIMIT, "top_p is 0"},
    {"long prompt", long_prompt, ERR_LIMIT, "prompt is"},
    {"huge vocabulary", huge_vocab, ERR_LIMIT, "vocab is 1048577"},
    {"tokenizer without a hash", short_tokenizer_hash, ERR_FORMAT, "tokenizer is 3 bytes"},
    {"a third network", strange_network, ERR_FORMAT, "network 2"},
    {"many partitions", many_partitions, ERR_LIMIT, "partitions is 1025"},
    {"many levels", many_levels, ERR_LIMIT, "levels has 65"},
    {"many blocks", many_blocks, ERR_LIMIT, "levels.blocks has 257"},
    {"block too high", block_too_high, ERR_LIMIT, "block 256"},
    {"blocks that fall", blocks_fall, ERR_FORMAT, "do not ascend"},
    {"level too high", level_too_high, ERR_FORMAT, "level 1, but there are 1 levels"},
    {"huge batch", huge_batch, ERR_LIMIT, "train.batch is 65537"},
    {"bad ahead", bad_ahead, ERR_LIMIT, "train.ahead"},
    {"much ahead", much_ahead, ERR_LIMIT, "train.ahead has 65"},
    {"bad moments", bad_moments, ERR_LIMIT, "train.moments"},
    {"long skip", long_skip, ERR_LIMIT, "eval.skip"},
    {"feature missing", no_feature, ERR_FORMAT, "feature is missing"},
    {"feature of nothing", no_feature_ranges, ERR_FORMAT, "feature.ranges is empty"},
    {"long chunk", long_chunk, ERR_LIMIT, "feature.chunk"},
    {"cluster missing", no_cluster, ERR_FORMAT, "cluster is missing"},
    {"few counts", few_counts, ERR_FORMAT, "2 features, 1 counts"},
    {"no levels", no_radix, ERR_FORMAT, "do not multiply to 4"},
    {"a level of none", zero_radix, ERR_FORMAT, "do not multiply to 4"},
    {"many digits", many_digits, ERR_LIMIT, "cluster.levels has 17"},
    {"unpartitioned", unpartitioned, ERR_FORMAT, "partitions is missing"},
    {"no previous", no_previous, ERR_FORMAT, "cluster.previous is missing"},
    {"a shard too big", big_count, ERR_LIMIT, "cluster.counts[1]"},
    {"no rows", no_rows, ERR_LIMIT, "cluster.counts[0] is 0"},
    {"more overlap than partitions", big_top, ERR_LIMIT, "cluster.top is 5"},
    {"few scores", few_scores, ERR_FORMAT, "scores has 3 blobs, expected 4 paths on 1"},
    {"scored beyond", scored_beyond, ERR_LIMIT, "scored[0] is 2"},
    {"split missing", no_split, ERR_FORMAT, "split is missing"},
    {"no assignment", no_assignment, ERR_FORMAT, "split.assignment is missing"},
    {"far first", far_first, ERR_LIMIT, "split.first"},
    {"score missing", no_score, ERR_FORMAT, "score is missing"},
    {"velocity missing", no_velocity, ERR_FORMAT, "velocity is missing"},
    {"no input", no_input, ERR_FORMAT, "velocity.input is missing"},
    {"ingest missing", ingest_missing, ERR_FORMAT, "ingest is missing"},
    {"ingest of a path", ingest_path, ERR_FORMAT, "ingest.url"},
};

static void every_fault_is_named(void **state)
{
    (void)state;
    struct sound *s = malloc(sizeof(*s));
    const struct kind *kind;
    for (size_t i = 0; i < COUNT(rows); i++) {
        sound_init(s);
        OK(task_check(kinds_all, &s->task, &kind, err));
        rows[i].apply(s);
        struct err e = {0};
        int rc = task_check(kinds_all, &s->task, &kind, &e);
        if (rc != -rows[i].code || !strstr(e.msg, rows[i].sentence))
            fail_msg("%s: %d '%s' lacks '%s'", rows[i].name, rc, e.msg, rows[i].sentence);
    }
    free(s);
}

static void every_kind_passes(void **state)
{
    (void)state;
    struct sound *s = malloc(sizeof(*s));
    const struct kind *kind;
    for (int id = SKERRY__V1__TASK_KIND__TASK_KIND_INIT;
         id <= SKERRY__V1__TASK_KIND__TASK_KIND_VELOCITY; id++) {
        sound_init(s);
        s->task.kind = (Skerry__V1__TaskKind)id;
        OK(task_check(kinds_all, &s->task, &kind, err));
        assert_int_equal(kind->id, id);
    }
    sound_init(s);
    TEXT OK(task_check(kinds_all, &s->task, &kind, err));
    sound_init(s);
    s->module.full = NULL; /* deltas alone will do */
    OK(task_check(kinds_all, &s->task, &kind, err));
    free(s);
}

static void tickets(void **state)
{
    (void)state;
    Skerry__V1__TicketReply r;
    skerry__v1__ticket_reply__init(&r);
    FAILS(task_check_ticket(&r, err), "ticket.url");
    r.url = (char *)"/v1/blobs/x";
    OK(task_check_ticket(&r, err));
    r.url = (char *)"";
    r.have = true;
    OK(task_check_ticket(&r, err));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_fault_is_named),
        cmocka_unit_test(every_kind_passes),
        cmocka_unit_test(tickets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
