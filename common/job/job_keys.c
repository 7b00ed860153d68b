/* The tables of a job file: the names of choices; the keys with their types, ranges, defaults and
 * meanings.  Checks of several keys are in job.c. */
#include "common/job/job_keys.h"

#include "common/job/job.h"

#define SIDE_MAX 4096 /* pixels of a side of a shape */

/* In the order of the enums of job.h. */
static const char *const model_names[] = {"dit", "llama", "external", NULL};
static const char *const kind_names[] = {"auto", "images", "texts", "none", NULL};
static const char *const buffers_names[] = {"own", "mean", "first", NULL};
static const char *const pipeline_names[] = {"auto",    "1f1b",          "split",
                                             "divided", "bidirectional", NULL};
static const char *const parallel_names[] = {"auto", "data", "pipeline", NULL};
static const char *const shard_names[] = {"auto", "none", "optimizer", NULL};
static const char *const crop_names[] = {"center", "random", NULL};
static const char *const schedule_names[] = {"constant", "cosine", "decay", NULL};
static const char *const precision_names[] = {"auto", "bf16", "f32", NULL};
static const char *const t_names[] = {"logit_normal", "uniform", NULL};
static const char *const late_names[] = {"discount", "drop", NULL};
static const char *const where_names[] = {"auto", "coordinator", "worker", NULL};
static const char *const sampler_names[] = {"euler", "heun", NULL};
static const char *const moments_names[] = {"restart", "travel", NULL};
static const char *const features_names[] = {"auto",   "pixels",  "ngrams", "model",
                                             "column", "latents", NULL};
static const char *const encode_names[] = {"auto", "fly", "worker", "job", NULL};
static const char *const method_names[] = {"auto",    "kmeans", "two_level",
                                           "product", "random", NULL};
static const char *const strategy_names[] = {"top1",      "topk",   "full", "nucleus",
                                             "threshold", "oracle", NULL};

_Static_assert(JOB_STRATEGY_TOP1 == 0 && JOB_STRATEGY_ORACLE == 5,
               "strategies travel and are kept by their numbers");

static const struct conf_key data_keys[] = {
    CONF(struct job_data, kind, ENUM, .names = kind_names, .def = "auto",
         .doc = "model.type external only, and required there: what a sample is. none: the "
                "trainer reads data of its own; it is told its replica, the number of replicas "
                "and a seed"),
    CONF(struct job_data, path, STR,
         .doc = "images: a folder of class folders, a WebDataset tar, a folder of tars, or a "
                "range such as `part-{000..011}.tar`. Text: .jsonl or .txt (also .zst, .gz), "
                ".bin, a folder of those, or a pattern such as `books/*/*.txt`. Give either "
                "path or url"),
    CONF(struct job_data, url, STRS,
         .doc = "http(s) URLs of WebDataset tars, which the workers read"),
    CONF(struct job_data, image_size, INT, .min = 8, .max = 1024,
         .doc = "side in pixels of the square that images are scaled and cropped to; required "
                "for images; a multiple of the VAE's downscaling factor"),
    CONF(struct job_data, buckets, STRS,
         .doc = "shapes to train images in, `WIDTHxHEIGHT` in pixels, at most 16; each image "
                "goes to the shape nearest to its aspect ratio. None: squares of image_size. "
                "Sides are multiples of the patch (times the VAE's downscaling factor), and no "
                "shape has more pixels than image_size squared"),
    CONF(struct job_data, crop, ENUM, .names = crop_names, .def = "center",
         .doc = "which part of an image is trained on. random: a different one in each pass, "
                "anywhere along the side that is too long"),
    CONF(struct job_data, flip, BOOL, .def = "false",
         .doc = "mirror each image with probability 0.5"),
    CONF(struct job_data, holdout, DOUBLE, .def = "0.02", .min = 0, .max = 0.5,
         .doc = "fraction of the samples kept out of training for the held-out loss: whole "
                "images and documents, but spans of long documents"),
    CONF(struct job_data, shard_samples, INT, .def = "512", .min = 16, .max = 65536,
         .doc = "samples per shard"),
    CONF(struct job_data, max_bad, INT, .def = "100", .min = 0, .max = 1000000,
         .doc = "how many broken samples or lines of text, or images without a caption, are "
                "skipped before the job is refused or fails; the first line must be sound"),
    CONF(struct job_data, text_field, STR, .def = "text",
         .doc = "field of a JSON line that holds the document"),
    CONF(struct job_data, tokenizer, STR,
         .doc = "a Hugging Face tokenizer.json or a SentencePiece tokenizer.model; without one, "
                "tokens are bytes"),
    CONF(struct job_data, holdout_path, STR,
         .doc = "a second source, all of it held out; replaces data.holdout"),
    CONF_END,
};

static const struct conf_key encoders_keys[] = {
    CONF(struct job_encoders, path, STR,
         .doc = "folder of a diffusers pipeline (model_index.json), whose vae, text_encoder and "
                "tokenizer are used; replaces the next three keys"),
    CONF(struct job_encoders, vae, STR,
         .doc = "folder with an AutoencoderKL; the model trains on its latents"),
    CONF(struct job_encoders, text, STR,
         .doc = "folder with a CLIPTextModel or a T5EncoderModel; the model is conditioned on "
                "captions"),
    CONF(struct job_encoders, tokenizer, STR,
         .doc = "folder of the text encoder's tokenizer; by default the folder `tokenizer` "
                "beside encoders.text, else encoders.text itself"),
    CONF(struct job_encoders, tokens, INT, .def = "auto", .zero = "auto", .min = 2, .max = 4096,
         .doc = "maximum tokens of a caption; longer ones are cut. auto: the tokenizer's "
                "maximum, but at most 120"),
    CONF(struct job_encoders, layer, INT, .def = "-1", .min = -2, .max = -1,
         .doc = "CLIP: the hidden layer that is read, -1 the last, -2 the one before it"),
    CONF(struct job_encoders, run, ENUM, .names = encode_names, .def = "auto",
         .note =
             "fly, with train.fill, is what runs the VAE in the bubbles of an island's pipeline",
         .doc = "where the VAE runs. fly: in each step. worker: in each step, with latents "
                "cached on the worker's disk. job: once per picture, before training. auto: job "
                "where a picture is encoded more than twice (four times with data.flip), not "
                "counting what fits the bubbles of a requested pipeline; else fly or worker, as "
                "each worker predicts. Captions are always encoded in the step"),
    CONF(struct job_encoders, cache, INT, .def = "4096", .min = 1, .max = 16777216,
         .doc = "MiB of latents that a worker keeps (run: worker or auto)"),
    CONF_END,
};

static const char *const rope_names[] = {"default", "llama3", "linear", NULL};

static const struct conf_key rope_keys[] = {
    CONF(struct job_rope, rope_type, ENUM, .names = rope_names, .def = "default",
         .doc = "default: they are not scaled; linear: all by factor, as in DeepSeek-Coder"),
    CONF(struct job_rope, factor, DOUBLE, .def = "8", .min = 1, .max = 1024,
         .doc = "how many times as slowly the slow ones turn"),
    CONF(struct job_rope, low_freq_factor, DOUBLE, .def = "1", .min = 0, .max = 1e6,
         .doc = "those are slow that turn fewer times than this in the original context"),
    CONF(struct job_rope, high_freq_factor, DOUBLE, .def = "4", .min = 0, .max = 1e6,
         .doc = "those that turn more times are not scaled; more than low_freq_factor"),
    CONF(struct job_rope, original_max_position_embeddings, INT, .def = "8192", .min = 1,
         .max = 1 << 20, .doc = "the original context, in tokens"),
    CONF_END,
};

static const struct conf_key model_keys[] = {
    CONF(struct job_model, type, ENUM, .names = model_names, .def = "dit",
         .doc = "diffusion transformer (dit), language model (llama), or a program of your own "
                "(external)"),
    CONF(struct job_model, preset, STR,
         .doc = "`DiT-S/2`, `DiT-B/2`, `DiT-L/2`, `DiT-XL/2`, also with /4 and /8: sets patch, "
                "dim, depth and heads"),
    CONF(struct job_model, patch, INT, .def = "2", .min = 1, .max = 64,
         .doc = "side of a token in pixels, or in latents with a VAE; divides the image's side; "
                "at most 4096 tokens"),
    CONF(struct job_model, dim, INT, .min = 4, .max = 8192,
         .doc = "width; a multiple of 4 and of heads; required without a preset"),
    CONF(struct job_model, depth, INT, .min = 1, .max = 256,
         .doc = "number of blocks; required without a preset"),
    CONF(struct job_model, heads, INT, .min = 1, .max = 256,
         .doc = "attention heads, each at most 128 wide; required without a preset"),
    CONF(struct job_model, mlp_ratio, DOUBLE, .def = "4", .min = 0.25, .max = 16,
         .doc = "hidden width of the MLP, as a multiple of dim"),
    CONF(struct job_model, label_dropout, DOUBLE, .def = "0.1", .min = 0, .max = 1,
         .doc = "fraction of labels or captions dropped in training, for guidance"),
    CONF(struct job_model, self_condition, DOUBLE, .def = "0", .min = 0, .max = 1,
         .doc = "above 0, the model also reads its previous estimate of the image, in sampling "
                "too; this fraction of the training steps reads one that was just computed. 0.5 "
                "is usual"),
    CONF(struct job_model, kv_heads, INT, .def = "0", .min = 0, .max = 256,
         .doc = "llama: key and value heads; divides heads; 0: as many as heads"),
    CONF(struct job_model, head_dim, INT, .def = "0", .min = 0, .max = JOB_HEAD_WIDTH_MAX,
         .doc = "llama: width of a head, a multiple of 4; 0: dim / heads"),
    CONF(struct job_model, qkv_bias, BOOL, .def = "false",
         .doc = "llama: queries, keys and values have biases, as in Qwen2"),
    CONF(struct job_model, qk_norm, BOOL, .def = "false",
         .doc = "llama: each head of the queries and keys has a norm, as in Qwen3; not with "
                "qkv_bias"),
    CONF(struct job_model, no_rope_layer_interval, INT, .def = "0", .min = 0, .max = 256,
         .doc = "llama: every so many blocks one has no rotary positions, as in SmolLM3 (4); 0: "
                "all have; not with qkv_bias or qk_norm"),
    CONF(struct job_model, vocab, INT, .def = "0", .min = 0, .max = 1 << 20,
         .doc = "llama: rows of the embedding, if there are more than token ids; 0: there are "
                "not"),
    CONF(struct job_model, ffn, INT, .def = "0", .min = 0, .max = 65536,
         .doc = "llama: hidden width of the SwiGLU; 0: 8/3 of dim, rounded up to a multiple of "
                "32"),
    CONF(struct job_model, context, INT, .def = "256", .min = 16, .max = 4096,
         .doc = "maximum tokens of a row of text; longer documents are cut into pieces"),
    CONF(struct job_model, rope_theta, DOUBLE, .def = "10000", .min = 1, .max = 1e9,
         .doc = "llama: base of the rotary positions"),
    CONF(struct job_model, rope_scaling, SECTION, .sub = rope_keys,
         .doc = "How a llama's rotary positions are scaled: `rope_scaling` of its config.json. The "
                "defaults are those of Llama 3.1."),
    CONF(struct job_model, norm_eps, DOUBLE, .def = "1e-5", .min = 1e-12, .max = 1,
         .doc = "llama: epsilon of RMSNorm"),
    CONF(struct job_model, tied, BOOL, .def = "false",
         .doc = "llama: the head shares the weights of the embedding"),
    CONF(struct job_model, warm_start, STR,
         .doc = "folder that training starts from, with config.json and weights, sharded or not, "
                "as save_pretrained and `skerry export` write it. external: also a safetensors "
                "file"),
    CONF_END,
};

static const struct conf_key upscaler_keys[] = {
    CONF(struct job_upscaler, low_side, INT, .def = "0", .min = 0, .max = 2048,
         .doc = "side in pixels of the image that the model draws; a multiple of model.patch "
                "that divides data.image_size. 0: no upscaler"),
    CONF(struct job_upscaler, patch, INT, .def = "0", .min = 0, .max = 64,
         .doc = "side of a token in pixels; divides data.image_size; 0: as model.patch"),
    CONF(struct job_upscaler, dim, INT, .def = "0", .min = 0, .max = 8192,
         .doc = "width; a multiple of 4 and of heads; 0: as model.dim"),
    CONF(struct job_upscaler, depth, INT, .def = "0", .min = 0, .max = 255,
         .doc = "number of blocks; 0: as model.depth"),
    CONF(struct job_upscaler, heads, INT, .def = "0", .min = 0, .max = 256,
         .doc = "attention heads; 0: as model.heads"),
    CONF(struct job_upscaler, noise, DOUBLE, .def = "0.1", .min = 0, .max = 0.9,
         .doc = "share of noise in the small image that the upscaler reads, in training and in "
                "sampling: more hides more errors of the base model, and tells less of the "
                "image"),
    CONF_END,
};

static const struct conf_key trainer_keys[] = {
    CONF(struct job_trainer, command, STR,
         .doc = "shell command that starts the trainer, run in a copy of the folder "
                "trainer.files; required for model.type external"),
    CONF(struct job_trainer, files, STR,
         .doc = "folder with the trainer's program, uploaded once; at most 64 MiB"),
    CONF(struct job_trainer, env, STRS, .doc = "its environment, `NAME=VALUE`"),
    CONF(struct job_trainer, setup, STR,
         .doc = "command run once on each worker before the trainer, such as `pip install -t "
                "lib -r requirements.txt`"),
    CONF(struct job_trainer, tensors, STRS,
         .doc = "patterns over names of tensors, such as `*lora_*`: only what matches is "
                "synchronised, the rest stays with each trainer. None: all trained tensors"),
    CONF(struct job_trainer, buffers, ENUM, .names = buffers_names, .def = "own",
         .doc = "what a round does with the model's buffers, such as BatchNorm's running mean "
                "and count. own: nothing, they stay with each trainer. mean: it begins with "
                "their mean over the replicas, integers rounded. first: with those of the first "
                "replica. trainer.tensors selects among buffers, too"),
    CONF(struct job_trainer, levels, STRS,
         .doc = "the model's blocks in order, each as patterns separated by spaces, such as "
                "`layers.0.* layers.1.*`; recipe.levels divides the blocks, and "
                "recipe.private_embeddings decides about tensors in no block"),
    CONF_END,
};

static const struct conf_key router_keys[] = {
    CONF(struct job_router, patch, INT, .def = "0", .min = 0, .max = 64,
         .doc = "side of a token in pixels; 0: twice model.patch where that fits"),
    CONF(struct job_router, dim, INT, .def = "0", .min = 0, .max = 8192,
         .doc = "width; 0: half of model.dim"),
    CONF(struct job_router, depth, INT, .def = "0", .min = 0, .max = 256,
         .doc = "number of blocks; 0: half of model.depth"),
    CONF(struct job_router, heads, INT, .def = "0", .min = 0, .max = 256,
         .doc = "attention heads; 0: as model.heads, if they fit"),
    CONF(struct job_router, mlp_ratio, DOUBLE, .def = "4", .min = 0.25, .max = 16,
         .doc = "hidden width of the MLP, as a multiple of dim"),
    CONF(struct job_router, batch, INT, .def = "0", .min = 0, .max = 65536,
         .doc = "samples per step; 0: as many as an expert's"),
    CONF(struct job_router, lr, DOUBLE, .def = "0", .min = 0, .max = 10,
         .doc = "peak learning rate; 0: train.lr"),
    CONF(struct job_router, classes, INT, .def = "0", .min = 0, .max = 1024,
         .doc = "number of outputs, at least recipe.experts; 0: recipe.experts"),
    CONF_END,
};

static const struct conf_key train_keys[] = {
    CONF(struct job_train, batch, INT, .required = true, .min = 1, .max = 65536,
         .doc = "samples (images, or rows of text) per inner step of a replica"),
    CONF(struct job_train, accumulate, INT, .def = "auto", .zero = "auto", .min = 1, .max = 4096,
         .doc = "parts in which a batch is computed one after the other, to save memory; "
                "divides batch. auto: the fewest that fit each worker's device"),
    CONF(struct job_train, lr, DOUBLE, .def = "1e-4", .min = 0, .max = 10,
         .doc =
             "peak learning rate of AdamW. If unset, a dit uses 0.5 / model.dim, and a llama 0.1 / "
             "model.dim times the cube root of batch x context / 512, within 1 and 2; half of "
             "it with model.warm_start; at least 1e-4"),
    CONF(struct job_train, warmup, INT, .def = "0", .min = 0, .max = 10000000,
         .doc = "steps of linear warm-up; if unset, 10 for a dit or llama with model.warm_start"),
    CONF(struct job_train, schedule, ENUM, .names = schedule_names, .def = "constant",
         .doc = "cosine: down to final_lr. decay: constant, then linear to 0 over the last "
                "decay_fraction. If unset, a dit uses decay, and so does a llama without "
                "model.warm_start in a job of 5000 steps or more"),
    CONF(struct job_train, decay_fraction, DOUBLE, .def = "0.2", .min = 0, .max = 1,
         .doc = "fraction of all steps, or of all seconds, that decay (schedule decay)"),
    CONF(struct job_train, final_lr, DOUBLE, .def = "0", .min = 0, .max = 1,
         .doc = "fraction of lr left at the end (schedule cosine)"),
    CONF(struct job_train, weight_decay, DOUBLE, .def = "0", .min = 0, .max = 10,
         .doc = "decoupled weight decay"),
    CONF(struct job_train, beta1, DOUBLE, .def = "0.9", .min = 0, .max = 0.999999,
         .doc = "AdamW's decay of the first moment"),
    CONF(struct job_train, beta2, DOUBLE, .def = "0.999", .min = 0, .max = 0.999999,
         .doc = "AdamW's decay of the second moment"),
    CONF(struct job_train, eps, DOUBLE, .def = "1e-8", .min = 1e-12, .max = 1,
         .doc = "AdamW's epsilon"),
    CONF(struct job_train, clip, DOUBLE, .def = "1.0", .min = 0, .max = 1e6,
         .doc = "largest global norm of the gradient; 0: no clipping"),
    CONF(struct job_train, ema, DOUBLE, .def = "0", .min = 0, .max = 1),
    CONF(struct job_train, precision, ENUM, .names = precision_names, .def = "auto",
         .doc = "precision of the computation; auto: bf16 where the device has it"),
    CONF(struct job_train, t, ENUM, .names = t_names, .def = "logit_normal",
         .doc = "distribution that training times are drawn from"),
    CONF(struct job_train, shift, DOUBLE, .def = "1", .min = 0.01, .max = 100,
         .doc = "training times t, and those of the sampler's steps, become s t / (1 + (s - 1) t). "
                "Above 1 more of them are near noise, where large images get their composition. "
                "An upscaler's, too; held-out losses are of these times, and those of another "
                "shift cannot be compared"),
    CONF(struct job_train, fill, BOOL, .def = "true",
         .doc = "pipelines: run frozen encoders while devices would otherwise wait"),
    CONF(struct job_train, recompute, BOOL, .def = "false",
         .doc = "recompute activations in the backward pass, to save memory"),
    CONF(struct job_train, parallel, ENUM, .names = parallel_names, .def = "auto",
         .doc = "how the devices of one worker share a step: by samples (data), or by blocks of "
                "the model (pipeline). auto: what fits and is predicted to be faster"),
    CONF(struct job_train, pipeline, ENUM, .names = pipeline_names, .def = "auto",
         .doc = "schedule of a pipeline. 1f1b: a forward, then a backward; with an upscaler, "
                "one network after the other. split: weight gradients are computed separately, "
                "when a device has nothing else to do. divided: the base model on some devices "
                "and the upscaler on the others, at the same time. bidirectional: base and "
                "upscaler pass the devices in opposite order. auto: what is predicted to be "
                "fastest"),
    CONF(struct job_train, shard, ENUM, .names = shard_names, .def = "auto",
         .doc = "optimizer: each device of a worker keeps the optimiser's moments "
                "of only a share of the weights. auto: where they would not fit otherwise"),
    CONF(struct job_train, stages, INT, .def = "auto", .zero = "auto", .min = 2, .max = 16,
         .doc = "stages of a pipeline. A number that divides a worker's devices gives as many "
                "pipelines as fit; any other gives some stages several devices, and is refused "
                "with an upscaler. auto: what is predicted to be fastest"),
    CONF_END,
};

static const struct conf_key recipe_keys[] = {
    CONF(struct job_recipe, name, STR, .def = "diloco",
         .doc = "how the swarm trains: diloco, ddm, dipaco or distill (docs/paths.md)"),
    CONF(
        struct job_recipe, replicas, INT, .def = "1", .zero = "auto", .min = 1, .max = 256,
        .doc =
            "copies of each path that train at the same time. auto: in each round as many "
            "as there are workers for, at most 32 over all paths. If unset, auto for a job of "
            "one path, unless the job has outer.async, fragments, delay or mix, or data.kind none"),
    CONF(struct job_recipe, experts, INT, .def = "8", .min = 1, .max = 256,
         .doc = "ddm: number of experts, one per partition of the data"),
    CONF(struct job_recipe, levels, INTS, .min = 1, .max = 256,
         .doc = "dipaco: modules of each level, such as [4, 4]; the blocks are divided evenly "
                "among the levels. With an upscaler the first half is the model's, the rest the "
                "upscaler's"),
    CONF(struct job_recipe, private_blocks, INTS, .min = 0, .max = 255,
         .doc = "dipaco: numbers of the blocks, from 0, that every path has for itself; an "
                "upscaler's follow the model's"),
    CONF(struct job_recipe, private_embeddings, BOOL, .def = "false",
         .doc = "dipaco: every path has its own embeddings and head; with trainer.levels true "
                "by default"),
    CONF(struct job_recipe, divide_batch, BOOL, .def = "true",
         .doc = "ddm: the experts share train.batch, so that together they cost as much as one "
                "model"),
    CONF(struct job_recipe, top, INT, .def = "1", .min = 1, .max = 16,
         .doc = "dipaco: paths that a training sample belongs to"),
    CONF(struct job_recipe, reshard, INTS, .min = 1, .max = 1000000,
         .doc = "dipaco: after how many rounds the texts are routed again, by the paths' own "
                "scores"),
    CONF(struct job_recipe, early_stop, BOOL, .def = "false",
         .doc = "keep each path's best weights by held-out loss (needs eval.every)"),
    CONF(struct job_recipe, moments, ENUM, .names = moments_names, .def = "restart",
         .doc = "Adam's moments when a path moves to another worker. restart: they start again. "
                "travel: they move along, at 8 bits a value"),
    CONF(struct job_recipe, moments_warmup, INT, .def = "10", .min = 0, .max = 100000,
         .doc = "steps of warm-up after moments have restarted"),
    CONF(struct job_recipe, teacher, INT, .def = "0", .min = 0, .max = 2147483647,
         .doc = "distill: number of the job whose experts are the teachers"),
    CONF_END,
};

static const struct conf_key partition_keys[] = {
    CONF(
        struct job_partition, features, ENUM, .names = features_names, .def = "auto",
        .doc =
            "what is clustered: pixels; latents; hashed n-grams of the first 32 tokens; the "
            "mean hidden state of model.warm_start (model); or a column of the dataset. "
            "auto: model with a warm start (not of a trainer, nor with an upscaler), else latents, "
            "pixels or ngrams"),
    CONF(struct job_partition, column, STR,
         .doc = "name of a feature column: KEY.NAME.npy beside the image, or a list in the "
                "sample's JSON"),
    CONF(struct job_partition, dims, INT, .def = "64", .min = 0, .max = 4096,
         .doc = "dimensions kept by PCA; 0: all"),
    CONF(struct job_partition, method, ENUM, .names = method_names, .def = "auto",
         .doc = "how it is clustered. auto: product k-means with several levels, else "
                "two_level. random: a control for experiments"),
    CONF(struct job_partition, fine, INT, .def = "1024", .min = 2, .max = 65536,
         .doc = "clusters of the first level (two_level); fewer when there are few samples"),
    CONF(struct job_partition, balance, DOUBLE, .def = "0", .min = 0, .max = 1000,
         .doc = "largest allowed partition, as a multiple (at least 1) of the mean; 0: no limit"),
    CONF(struct job_partition, chunk, INT, .def = "0", .min = 0, .max = 4096,
         .doc = "tokens after which evaluation chooses a path again; 0: once per sample"),
    CONF(struct job_partition, router_fraction, DOUBLE, .def = "0.02", .min = 0.0001, .max = 0.5,
         .doc = "fraction of the samples kept for fitting routers, with recipe.reshard or chunk"),
    CONF_END,
};

static const struct conf_key outer_keys[] = {
    CONF(struct job_outer, rounds, INT, .required = true, .min = 1, .max = 1000000,
         .doc = "number of outer steps"),
    CONF(struct job_outer, steps, INT, .min = 1, .max = 1000000,
         .doc = "inner steps of a phase; give either steps or seconds"),
    CONF(struct job_outer, seconds, INT, .min = 1, .max = 86400,
         .doc = "length of a phase; each worker does as many steps as fit"),
    CONF(struct job_outer, lr, DOUBLE, .def = "0.7", .min = 0, .max = 10,
         .doc = "outer learning rate; if unset, 1 where each module has one replica on one path"),
    CONF(struct job_outer, momentum, DOUBLE, .def = "0.8", .min = 0, .max = 0.9999,
         .doc = "outer Nesterov momentum; if unset, 0 where each module has one replica on one "
                "path, else 0.5 with async"),
    CONF(struct job_outer, warmup, INT, .def = "10", .min = 0, .max = 1000000,
         .doc = "rounds over which the momentum rises from 0, as the first updates of a fresh "
                "model all point the same way; if unset, 0 with model.warm_start"),
    CONF(struct job_outer, ema, DOUBLE, .def = "0.9", .min = 0, .max = 1,
         .doc = "decay per round of the averaged outer weights, which samples, held-out losses "
                "and exports use"),
    CONF(struct job_outer, quorum, DOUBLE, .def = "0.5", .min = 0, .max = 1,
         .doc = "fraction of a round's contributions that is enough when grace has passed"),
    CONF(struct job_outer, grace, DOUBLE, .def = "0", .min = 0, .max = 86400,
         .doc = "seconds to wait for the other contributions after the quorum; 0: for all that "
                "make progress. async with outer.seconds: how long a finished phase waits for "
                "others about to finish; 0: an eighth of outer.seconds"),
    CONF(struct job_outer, share_cap, DOUBLE, .def = "0.5", .min = 0, .max = 1,
         .doc = "largest share of one worker's contributions in a module's version; never less "
                "than 2/k with k workers. 1: no cap, the default with outer.seconds and where "
                "paths are weighted by their data (dipaco)"),
    CONF(struct job_outer, spot_check, BOOL, .def = "true",
         .doc = "have the first phase of a new worker repeated by a proven worker elsewhere, if "
                "there is one, and compare them (not with seconds, fragments, async or trainers); "
                "and so the archives that it cuts, version 0 and partitions"),
    CONF(struct job_outer, late, ENUM, .names = late_names, .def = "discount",
         .doc = "what becomes of a phase whose round closed without it. discount: it goes on "
                "and enters the next version, with 1/sqrt(1 + s) of its weight when s versions "
                "late. drop: it is cancelled, and its samples are trained again"),
    CONF(struct job_outer, where, ENUM, .names = where_names, .def = "auto",
         .doc = "who computes a module's next version from the contributions. worker: the "
                "coordinator checks a sample of the result, and does it itself where no worker "
                "can. auto: worker where blobs are in an object store that workers reach and "
                "that reports checksums, and rounds have no fragments"),
    CONF(struct job_outer, snapshot, DOUBLE, .def = "auto", .less = "auto", .min = 0, .max = 86400,
         .doc = "least seconds between two snapshots of a phase; when its worker is lost, "
                "another one continues from the last. auto: a minute, and for large models 15 "
                "minutes times the square root of a snapshot's gigabytes. Snapshots that would "
                "take over a fiftieth of the time or a quarter of the link are made less often. "
                "0: none. There are none with fragments"),
    CONF(struct job_outer, fragments, INT, .def = "auto", .zero = "auto", .min = 1, .max = 32,
         .doc = "parts of a module (strided blocks; for a trainer without trainer.levels, its "
                "tensors in order), synchronised one after the other within a round. auto: "
                "`skerry submit` chooses this, delay and mix where the model has a warm start "
                "and training would wait for the link; else 1"),
    CONF(struct job_outer, delay, INT, .def = "0", .min = 0, .max = 100000,
         .doc = "inner steps that go on while a contribution travels and is folded"),
    CONF(struct job_outer, mix, DOUBLE, .def = "0", .min = 0, .max = 1,
         .doc = "share of its own weights that a replica keeps when it takes a new version"),
    CONF(struct job_outer, async, BOOL, .def = "false",
         .doc = "fold each contribution when it arrives; replicas do not wait for each other"),
    CONF(struct job_outer, nesterov_delay, INT, .def = "0", .min = 0, .max = 1024,
         .doc = "async: contributions between two steps of the momentum; 0: as many as replicas"),
    CONF_END,
};

static const struct conf_key wire_keys[] = {
    CONF(struct job_wire, up, ENUM, .names = codec_names, .def = "e3m0",
         .doc = "codec of contributions"),
    CONF(struct job_wire, down, ENUM, .names = codec_names, .def = "e3m0",
         .doc = "codec of new versions"),
    CONF_END,
};

static const struct conf_key sample_keys[] = {
    CONF(struct job_sample, every, INT, .def = "0", .min = 0, .max = 1000000,
         .doc = "rounds between grids of samples; 0: only at the end"),
    CONF(struct job_sample, count, INT, .def = "64", .min = 1, .max = 1024,
         .doc = "samples of a grid; labels cycle over the classes"),
    CONF(struct job_sample, steps, INT, .def = "30", .min = 1, .max = 1000, .doc = "ODE steps"),
    CONF(struct job_sample, sampler, ENUM, .names = sampler_names, .def = "euler",
         .doc = "ODE solver"),
    CONF(struct job_sample, guidance, DOUBLE, .def = "1.5", .min = 0, .max = 100,
         .doc = "classifier-free guidance; 1: off. If unset, a dit that is told captions uses 3"),
    CONF(struct job_sample, columns, INT, .def = "8", .min = 1, .max = 64,
         .doc = "columns of the grid"),
    CONF(struct job_sample, seed, U64, .def = "0",
         .doc = "seed of the starting noise, or of the choice of tokens"),
    CONF(struct job_sample, strategy, ENUM, .names = strategy_names, .def = "top1",
         .doc = "how experts are mixed"),
    CONF(struct job_sample, top, INT, .def = "2", .min = 1, .max = 256,
         .doc = "strategy topk: number of experts"),
    CONF(struct job_sample, nucleus, DOUBLE, .def = "0.9", .min = 0.01, .max = 1,
         .doc = "strategy nucleus: probability that the fewest experts must reach"),
    CONF(struct job_sample, threshold, DOUBLE, .def = "0.2", .min = 0, .max = 1,
         .doc = "strategy threshold: least probability of an expert"),
    CONF(struct job_sample, remote, BOOL, .def = "false",
         .doc = "experts stay on their workers while sampling; only x_t and v travel"),
    CONF(struct job_sample, prompt, STR, .def = "", .doc = "llama: beginning of the text"),
    CONF(struct job_sample, prompts, STRS,
         .doc = "captions to draw, in turn; none: the empty caption"),
    CONF(struct job_sample, tokens, INT, .def = "200", .min = 1, .max = 4096,
         .doc = "llama: tokens to generate"),
    CONF(struct job_sample, temperature, DOUBLE, .def = "0.8", .min = 0, .max = 10,
         .doc = "llama: 0 takes the likeliest token"),
    CONF(struct job_sample, top_p, DOUBLE, .def = "0.95", .min = 0.01, .max = 1,
         .doc = "llama: probability of the nucleus that tokens are drawn from"),
    CONF_END,
};

static const struct conf_key eval_keys[] = {
    CONF(struct job_eval, every, INT, .def = "0", .min = 0, .max = 1000000,
         .doc = "rounds between held-out losses; 0: only at the end, if there is a holdout"),
    CONF(struct job_eval, samples, INT, .def = "512", .min = 1, .max = 1000000,
         .doc = "held-out samples used, spread over the data; several partitions share them"),
    CONF(struct job_eval, guard, DOUBLE, .def = "1.5", .min = 0, .max = 1000000,
         .doc = "return to the best recent version when a new one's held-out loss is more than "
                "this many times as high and a second worker confirms it (jobs in rounds). 0: "
                "never"),
    CONF_END,
};

static const struct conf_key swarm_keys[] = {
    CONF(struct job_swarm, priority, INT, .def = "0", .min = JOB_PRIORITY_MIN,
         .max = JOB_PRIORITY_MAX,
         .doc = "workers serve the job with the highest priority that has work; jobs take over "
                "from each other between phases"),
    CONF(struct job_swarm, share, DOUBLE, .def = "1", .min = JOB_SHARE_MIN, .max = JOB_SHARE_MAX,
         .doc = "the job's part of the workers among jobs of its priority: twice the share, "
                "twice the workers"),
    CONF(struct job_swarm, budget, DOUBLE, .def = "0", .min = 0, .max = JOB_BUDGET_MAX,
         .doc = "dollars of workers' time (`workerd --price`) after which the job waits; 0: no "
                "limit"),
    CONF_END,
};

const struct conf_key job_spec_keys[] = {
    CONF(struct job_spec, name, STR, .required = true,
         .doc = "name of the job: 1 to 64 of A-Z a-z 0-9 . _ -"),
    CONF(struct job_spec, seed, U64, .def = "0",
         .doc = "the same seed, job and set of workers give the same result"),
    CONF(struct job_spec, data, SECTION, .sub = data_keys, .doc = "What to learn from."),
    CONF(struct job_spec, encoders, SECTION, .sub = encoders_keys,
         .doc = "Frozen networks in front of the model, in the folder formats of diffusers and "
                "transformers."),
    CONF(struct job_spec, model, SECTION, .sub = model_keys, .doc = "What to train."),
    CONF(struct job_spec, upscaler, SECTION, .sub = upscaler_keys,
         .doc = "A second network, which draws images at full size from the small ones of the "
                "model: a cascade."),
    CONF(struct job_spec, trainer, SECTION, .sub = trainer_keys,
         .doc = "The program that trains (model.type external)."),
    CONF(struct job_spec, router, SECTION, .sub = router_keys,
         .doc = "The classifier that mixes experts (recipe ddm): a small DiT. With an upscaler it "
                "reads images of upscaler.low_side."),
    CONF(struct job_spec, train, SECTION, .sub = train_keys,
         .doc = "The inner steps inside a worker."),
    CONF(struct job_spec, recipe, SECTION, .sub = recipe_keys, .doc = "How the swarm is composed."),
    CONF(struct job_spec, partition, SECTION, .sub = partition_keys,
         .doc = "How the data are cut into partitions (recipes ddm and dipaco)."),
    CONF(struct job_spec, outer, SECTION, .sub = outer_keys,
         .doc = "The outer steps, which fold the workers' contributions into new versions."),
    CONF(struct job_spec, wire, SECTION, .sub = wire_keys,
         .doc = "Bits per parameter on the network: `f32` 32, `bf16` 16, `int8` 8, `e3m0` 4."),
    CONF(struct job_spec, sample, SECTION, .sub = sample_keys,
         .doc = "Pictures or texts drawn during the training."),
    CONF(struct job_spec, eval, SECTION, .sub = eval_keys,
         .doc = "The held-out loss. Of texts, the first 32 tokens of each piece do not count."),
    CONF(struct job_spec, swarm, SECTION, .sub = swarm_keys,
         .doc = "The job's place beside other jobs of the swarm (docs/sharing.md)."),
    CONF_END,
};

const char *job_features_name(int features)
{
    return conf_name(features_names, features);
}

const char *job_rope_name(int type)
{
    return conf_name(rope_names, type);
}

int job_rope_parse(const char *name, int *ret)
{
    return conf_number(rope_names, name, ret);
}

const char *job_strategy_name(int strategy)
{
    return conf_name(strategy_names, strategy);
}

int job_strategy_parse(const char *name, int *ret)
{
    return conf_number(strategy_names, name, ret);
}

int job_sampler_parse(const char *name, int *ret)
{
    return conf_number(sampler_names, name, ret);
}

int job_document(enum conf_format format, struct buf *out)
{
    return conf_document(job_spec_keys, format, out);
}

/* ---- values with a form of their own ---- */

/* The number at the beginning of p; 0: none, or out of range.  *ret_end points behind it. */
static int read_side(const char *p, const char **ret_end)
{
    int n = 0;
    for (; *p >= '0' && *p <= '9' && n <= SIDE_MAX; p++)
        n = 10 * n + (*p - '0');
    *ret_end = p;
    return n <= SIDE_MAX ? n : 0;
}

struct job_shape job_bucket(const struct job_spec *s, size_t i)
{
    const char *p = s->data.buckets.items[i];
    const int width = read_side(p, &p);
    const int height = width > 0 && *p == 'x' ? read_side(p + 1, &p) : 0;
    return height > 0 && *p == '\0' ? (struct job_shape){width, height} : (struct job_shape){0};
}
