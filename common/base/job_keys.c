/* The tables of keys of a job file: types, ranges, defaults, meanings.  What
 * ties keys together is in job.c. */
#include "common/base/job.h"

#include "common/base/job_keys.h"

const char *const job_model_names[] = {"dit", NULL};
const char *const job_schedule_names[] = {"constant", "cosine", "decay", NULL};
const char *const job_precision_names[] = {"auto", "bf16", "f32", NULL};
const char *const job_t_names[] = {"logit_normal", "uniform", NULL};
const char *const job_codec_names[] = {"f32", "bf16", "int8", "e3m0", NULL};
const char *const job_sampler_names[] = {"euler", "heun", NULL};

static const struct conf_key data_keys[] = {
    CONF(struct job_data, path, STR,
         .doc = "folder of class folders, a WebDataset tar, a folder of tars, or a range such as "
                "`part-{000..011}.tar`; exactly one of path and url"),
    CONF(struct job_data, url, STRS, .doc = "http(s) URLs of WebDataset tars, read by the workers"),
    CONF(struct job_data, image_size, INT, .required = true, .min = 8, .max = 1024,
         .doc = "pixels of a side; images are scaled and cropped to this square"),
    CONF(struct job_data, flip, BOOL, .def = "false",
         .doc = "mirror each image with probability one half"),
    CONF(struct job_data, holdout, DOUBLE, .def = "0.02", .min = 0, .max = 0.5,
         .doc = "fraction of the images kept for the held-out loss"),
    CONF(struct job_data, shard_samples, INT, .def = "512", .min = 16, .max = 65536,
         .doc = "images per shard"),
    CONF(struct job_data, max_bad, INT, .def = "100", .min = 0, .max = 1000000,
         .doc = "broken images skipped before the job is refused or fails"),
    CONF_END,
};

static const struct conf_key model_keys[] = {
    CONF(struct job_model, type, ENUM, .names = job_model_names, .def = "dit",
         .doc = "kind of model"),
    CONF(struct job_model, preset, STR,
         .doc = "`DiT-S/2`, `DiT-B/2`, `DiT-L/2`, `DiT-XL/2`, also with /4 and /8: sets patch, "
                "dim, depth and heads"),
    CONF(struct job_model, patch, INT, .def = "2", .min = 1, .max = 64,
         .doc = "pixels of a side of a token; divides image_size; at most 4096 tokens"),
    CONF(struct job_model, dim, INT, .min = 4, .max = 8192,
         .doc = "width; a multiple of 4 and of heads; required without a preset"),
    CONF(struct job_model, depth, INT, .min = 1, .max = 256,
         .doc = "blocks; required without a preset"),
    CONF(struct job_model, heads, INT, .min = 1, .max = 256,
         .doc = "attention heads; required without a preset"),
    CONF(struct job_model, mlp_ratio, DOUBLE, .def = "4", .min = 0.25, .max = 16,
         .doc = "hidden width of the MLP over dim"),
    CONF(struct job_model, label_dropout, DOUBLE, .def = "0.1", .min = 0, .max = 1,
         .doc = "fraction of labels dropped in training, for guidance"),
    CONF_END,
};

static const struct conf_key train_keys[] = {
    CONF(struct job_train, batch, INT, .required = true, .min = 1, .max = 65536,
         .doc = "images per inner step of a replica"),
    CONF(struct job_train, accumulate, INT, .def = "1", .min = 1, .max = 4096,
         .doc = "parts in which a batch is computed, to save memory; divides batch"),
    CONF(struct job_train, lr, DOUBLE, .def = "1e-4", .min = 0, .max = 10,
         .doc = "peak learning rate of AdamW"),
    CONF(struct job_train, warmup, INT, .def = "0", .min = 0, .max = 10000000,
         .doc = "steps of linear warm-up"),
    CONF(struct job_train, schedule, ENUM, .names = job_schedule_names, .def = "constant",
         .doc = "constant; cosine down to final_lr; or constant with a linear decay to 0 over the "
                "last decay_fraction"),
    CONF(struct job_train, decay_fraction, DOUBLE, .def = "0.2", .min = 0, .max = 1,
         .doc = "fraction of all steps that decay (schedule decay)"),
    CONF(struct job_train, final_lr, DOUBLE, .def = "0", .min = 0, .max = 1,
         .doc = "fraction of lr left at the end (schedule cosine)"),
    CONF(struct job_train, weight_decay, DOUBLE, .def = "0", .min = 0, .max = 10,
         .doc = "decoupled weight decay"),
    CONF(struct job_train, beta1, DOUBLE, .def = "0.9", .min = 0, .max = 0.999999,
         .doc = "AdamW's first decay"),
    CONF(struct job_train, beta2, DOUBLE, .def = "0.999", .min = 0, .max = 0.999999,
         .doc = "AdamW's second decay"),
    CONF(struct job_train, eps, DOUBLE, .def = "1e-8", .min = 1e-12, .max = 1,
         .doc = "AdamW's epsilon"),
    CONF(struct job_train, clip, DOUBLE, .def = "1.0", .min = 0, .max = 1e6,
         .doc = "largest global norm of the gradient; 0: no clipping"),
    CONF(struct job_train, ema, DOUBLE, .def = "0", .min = 0, .max = 1,
         .doc = "decay per step of an EMA inside a worker; 0: none"),
    CONF(struct job_train, precision, ENUM, .names = job_precision_names, .def = "auto",
         .doc = "of the computation; auto: bf16 where the device has it"),
    CONF(struct job_train, t, ENUM, .names = job_t_names, .def = "logit_normal",
         .doc = "how times are drawn in training"),
    CONF(struct job_train, recompute, BOOL, .def = "false",
         .doc = "recompute activations in the backward pass, to save memory"),
    CONF_END,
};

static const struct conf_key recipe_keys[] = {
    CONF(struct job_recipe, name, STR, .def = "diloco", .doc = "the way of composing the swarm"),
    CONF(struct job_recipe, replicas, INT, .def = "1", .min = 1, .max = 256,
         .doc = "copies of each path that train at the same time"),
    CONF_END,
};

static const struct conf_key outer_keys[] = {
    CONF(struct job_outer, rounds, INT, .required = true, .min = 1, .max = 1000000,
         .doc = "outer steps"),
    CONF(struct job_outer, steps, INT, .min = 1, .max = 1000000,
         .doc = "inner steps of a phase; exactly one of steps and seconds"),
    CONF(struct job_outer, seconds, INT, .min = 1, .max = 86400,
         .doc = "length of a phase; each worker does what fits"),
    CONF(struct job_outer, lr, DOUBLE, .def = "0.7", .min = 0, .max = 10,
         .doc = "outer learning rate"),
    CONF(struct job_outer, momentum, DOUBLE, .def = "0.9", .min = 0, .max = 0.9999,
         .doc = "outer Nesterov momentum"),
    CONF(struct job_outer, ema, DOUBLE, .def = "0.9", .min = 0, .max = 1,
         .doc = "decay per round of the EMA of the outer weights, which samples use"),
    CONF(struct job_outer, quorum, DOUBLE, .def = "0.5", .min = 0, .max = 1,
         .doc = "fraction of the contributions that is enough when grace has passed"),
    CONF(struct job_outer, grace, DOUBLE, .def = "0", .min = 0, .max = 86400,
         .doc = "seconds to wait for the rest after the quorum; 0: for all that make progress"),
    CONF_END,
};

static const struct conf_key wire_keys[] = {
    CONF(struct job_wire, up, ENUM, .names = job_codec_names, .def = "e3m0",
         .doc = "how contributions travel"),
    CONF(struct job_wire, down, ENUM, .names = job_codec_names, .def = "e3m0",
         .doc = "how new versions travel"),
    CONF_END,
};

static const struct conf_key sample_keys[] = {
    CONF(struct job_sample, every, INT, .def = "0", .min = 0, .max = 1000000,
         .doc = "rounds between grids of samples; 0: at the end only"),
    CONF(struct job_sample, count, INT, .def = "64", .min = 1, .max = 1024,
         .doc = "samples of a grid; labels cycle over the classes"),
    CONF(struct job_sample, steps, INT, .def = "30", .min = 1, .max = 1000, .doc = "ODE steps"),
    CONF(struct job_sample, sampler, ENUM, .names = job_sampler_names, .def = "euler",
         .doc = "ODE solver"),
    CONF(struct job_sample, guidance, DOUBLE, .def = "1.5", .min = 0, .max = 100,
         .doc = "classifier-free guidance; 1: off"),
    CONF(struct job_sample, columns, INT, .def = "8", .min = 1, .max = 64, .doc = "of the grid"),
    CONF(struct job_sample, seed, U64, .def = "0", .doc = "of the starting noise"),
    CONF_END,
};

static const struct conf_key eval_keys[] = {
    CONF(struct job_eval, every, INT, .def = "0", .min = 0, .max = 1000000,
         .doc = "rounds between held-out losses; 0: at the end only, if there is a holdout"),
    CONF(struct job_eval, samples, INT, .def = "512", .min = 1, .max = 1000000,
         .doc = "held-out images used"),
    CONF_END,
};

const struct conf_key job_spec_keys[] = {
    CONF(struct job_spec, name, STR, .required = true,
         .doc = "name of the job: 1 to 64 of A-Z a-z 0-9 . _ -"),
    CONF(struct job_spec, seed, U64, .def = "0",
         .doc = "same seed, job and set of workers: same result"),
    CONF(struct job_spec, data, SECTION, .sub = data_keys, .doc = "What to learn from."),
    CONF(struct job_spec, model, SECTION, .sub = model_keys, .doc = "What to train."),
    CONF(struct job_spec, train, SECTION, .sub = train_keys,
         .doc = "The inner steps inside a worker."),
    CONF(struct job_spec, recipe, SECTION, .sub = recipe_keys, .doc = "How the swarm is composed."),
    CONF(struct job_spec, outer, SECTION, .sub = outer_keys,
         .doc = "The outer steps, which fold the workers' contributions."),
    CONF(struct job_spec, wire, SECTION, .sub = wire_keys,
         .doc = "How many bits travel: `f32` 32, `bf16` 16, `int8` 8, `e3m0` 4 per parameter."),
    CONF(struct job_spec, sample, SECTION, .sub = sample_keys, .doc = "Pictures on the way."),
    CONF(struct job_spec, eval, SECTION, .sub = eval_keys, .doc = "The held-out loss."),
    CONF_END,
};
