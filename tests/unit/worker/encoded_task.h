/* Tasks of a job with frozen networks, made up, on a device with little memory that a replica of
 * another job may fill. */
#ifndef TESTS_UNIT_WORKER_ENCODED_TASK_H
#define TESTS_UNIT_WORKER_ENCODED_TASK_H

#include "tests/unit/components.h"
#include "tests/unit/worker/partition_task.h"
#include "tests/unit/worker/small_memory.h"

#include "worker/engine/encoders.h"
#include "worker/engine/replica.h"

#define ENCODED_VAE                                                                                \
    "{\"_class_name\": \"AutoencoderKL\", \"block_out_channels\": [8, 16], \"norm_num_groups\": "  \
    "4, \"layers_per_block\": 1,"                                                                  \
    " \"down_block_types\": [\"DownEncoderBlock2D\", \"DownEncoderBlock2D\"],"                     \
    " \"up_block_types\": [\"UpDecoderBlock2D\", \"UpDecoderBlock2D\"]}"
#define ENCODED_CLIP                                                                               \
    "{\"architectures\": [\"CLIPTextModel\"], \"vocab_size\": 12, \"hidden_size\": 16,"            \
    " \"num_hidden_layers\": 1, \"num_attention_heads\": 2, \"intermediate_size\": 64,"            \
    " \"max_position_embeddings\": 8}"
#define ENCODED_VOCAB                                                                              \
    "{\"a\":0,\"b\":1,\"'\":2,\"a</w>\":3,\"b</w>\":4,\"'</w>\":5,\"ab\":6,\"ab</w>\":7,"          \
    "\"1</w>\":8,\"<|startoftext|>\":9,\"<|endoftext|>\":10,\"!\":11}"
#define ENCODED_SPEC(data, more)                                                                   \
    HEAD "data: {path: x, image_size: 8, shard_samples: 16" data "}\nencoders: {path: x}\n"        \
         "model: {type: dit, patch: 2, dim: 16, depth: 1, heads: 2}\n"                             \
         "train: {batch: 4, precision: f32}\n" more

#define PLENTY (UINT64_C(1) << 40)

enum { ENCODED_FILES = 6, ENCODED_VAE_FILES = 2 }; /* without captions only the VAE's */

static const struct {
    Skerry__V1__EncoderPart part;
    const char *name, *folder, *text; /* text NULL: the tensors of `of` */
    const char *of;
} encoded_files[ENCODED_FILES] = {
    {SKERRY__V1__ENCODER_PART__ENCODER_PART_VAE, "config.json", "vae", ENCODED_VAE, NULL},
    {SKERRY__V1__ENCODER_PART__ENCODER_PART_VAE, "diffusion_pytorch_model.safetensors", "vae", NULL,
     ENCODED_VAE},
    {SKERRY__V1__ENCODER_PART__ENCODER_PART_TEXT, "config.json", "text", ENCODED_CLIP, NULL},
    {SKERRY__V1__ENCODER_PART__ENCODER_PART_TEXT, "model.safetensors", "text", NULL, ENCODED_CLIP},
    {SKERRY__V1__ENCODER_PART__ENCODER_PART_TOKENIZER, "vocab.json", "text", ENCODED_VOCAB, NULL},
    {SKERRY__V1__ENCODER_PART__ENCODER_PART_TOKENIZER, "merges.txt", "text", "#version: 0.2\na b\n",
     NULL},
};
static uint8_t encoded_hashes[ENCODED_FILES][32];
static uint64_t encoded_sizes[ENCODED_FILES];
static struct kernel_ops small_ops;

/* What a task says of its frozen networks. */
struct encoded {
    Skerry__V1__NetworkInput input;
    Skerry__V1__EncoderFile file[ENCODED_FILES], *files[ENCODED_FILES];
    Skerry__V1__Blob blob[ENCODED_FILES];
};

static inline void encoded_order(struct encoded *e, struct order *o, bool captions)
{
    skerry__v1__network_input__init(&e->input);
    e->input.channels = 4;
    e->input.side = 4;
    e->input.caption = captions ? 16 : 0;
    e->input.caption_tokens = captions ? 6 : 0;
    for (int i = 0; i < ENCODED_FILES; i++) {
        skerry__v1__encoder_file__init(&e->file[i]);
        skerry__v1__blob__init(&e->blob[i]);
        e->blob[i].sha256 = (ProtobufCBinaryData){32, encoded_hashes[i]};
        e->blob[i].size = encoded_sizes[i];
        e->blob[i].url = (char *)(uintptr_t) "/v1/blobs/x";
        e->file[i].part = encoded_files[i].part;
        e->file[i].name = (char *)(uintptr_t)encoded_files[i].name;
        e->file[i].blob = &e->blob[i];
        e->files[i] = &e->file[i];
    }
    o->task.input = &e->input;
    o->task.encoders = e->files;
    o->task.n_encoders = captions ? ENCODED_FILES : ENCODED_VAE_FILES;
}

/* ---- a replica in the way ---- */

static struct order kept_order;
static Skerry__V1__TrainTask kept_train;
static struct work *kept_work;

/* Another job's replica leaves so many bytes free. */
static inline void keep_replica(uint64_t room)
{
    struct replica *r;
    encoders_rest(host.engine);
    says = gives = PLENTY;
    order_init(&kept_order, SKERRY__V1__TASK_KIND__TASK_KIND_TRAIN,
               HEAD "data: {path: x, image_size: 8}\n"
                    "model: {type: dit, patch: 2, dim: 128, depth: 4, heads: 2}\n"
                    "train: {batch: 4, precision: f32}\n",
               images, 1);
    skerry__v1__train_task__init(&kept_train);
    kept_train.steps = kept_train.total_steps = 2;
    kept_train.ranges = kept_order.ranges;
    kept_train.n_ranges = 1;
    kept_order.task.job_id = 2;
    kept_order.task.train = &kept_train;
    kept_order.task.n_modules = 1;
    OK(work_new(kinds_all, &kept_order.task, host.cache, host.tmp, &kept_work, err));
    OK(replica_make(host.engine->replicas, kept_work, &r, err));
    says = gives = given + room;
}

/* Lets go of it: was it still there? */
static inline bool kept_replica_was_there(void)
{
    const bool there = replica_peek(host.engine->replicas, kept_work) != NULL;
    replicas_yield(host.engine->replicas, UINT64_MAX);
    work_free(kept_work);
    says = gives = PLENTY;
    return there;
}

/* ---- fixture ---- */

static inline int encoded_setup(void **state)
{
    (void)setup(state);
    small_begin(host.engine->dev, &small_ops, PLENTY);
    for (int i = 0; i < ENCODED_FILES; i++) {
        char *folder = in(top, encoded_files[i].folder), *path = in(folder, encoded_files[i].name);
        OK(file_mkdirs(folder, 0700, err));
        if (encoded_files[i].text)
            component_write_text(folder, encoded_files[i].name, encoded_files[i].text);
        else
            component_write_weights(folder, encoded_files[i].of, encoded_files[i].name,
                                    (struct made){0});
        OK(hash_file(path, encoded_hashes[i], &encoded_sizes[i], err));
        host_put(&host, path, encoded_hashes[i]);
        mem_free(path);
        mem_free(folder);
    }
    return 0;
}

static inline int encoded_teardown(void **state)
{
    engine_close(host.engine);
    assert_int_equal(given, 0);
    host.engine = NULL;
    return teardown(state);
}

#endif
