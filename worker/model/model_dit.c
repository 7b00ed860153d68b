/* The tensors of a DiT and of a router: names, shapes, initial values, arithmetic. */

#include "common/base/base.h"
#include "common/base/rng.h"
#include "common/job/job.h"
#include "worker/model/model_family.h"
#include "worker/model/model_index.h"
#include "worker/model/model_table.h"

#define TOKENS_MAX 4096 /* limit of the attention kernels */

static int tokens(const struct model_spec *s)
{
    return model_patches(s) + (s->kind == MODEL_ROUTER ? 1 : 0);
}

/* PixArt's transformer: an MLP always has four times the width of the model; and q, k, v are one
 * product, so a bias must fill whole units of the flat vector. */
static int caption_check(const struct model_spec *s, struct err *err)
{
    if (s->caption > MODEL_CAPTION_MAX || s->caption_tokens < 1 ||
        s->caption_tokens > MODEL_CAPTION_TOKENS_MAX)
        return err_set(err, -ERR_CONFIG,
                       "captions of %d tokens of %d channels; from 1 to %d tokens and at most %d "
                       "channels are possible",
                       s->caption_tokens, s->caption, MODEL_CAPTION_TOKENS_MAX, MODEL_CAPTION_MAX);
    if (s->dim % 16 != 0)
        return err_set(err, -ERR_CONFIG,
                       "model.dim %d must be a multiple of 16 where captions are read", s->dim);
    if (s->mlp != 4 * s->dim)
        return err_set(err, -ERR_CONFIG,
                       "an MLP of width %d in a model with captions, where it is 4 times model.dim "
                       "%d: leave model.mlp_ratio at 4",
                       s->mlp, s->dim);
    return 0;
}

static int image_check(const struct model_spec *s, struct err *err)
{
    if (s->channels < 1 || s->channels > MODEL_CHANNELS_MAX)
        return err_set(err, -ERR_CONFIG, "images of %d channels; from 1 to %d are possible",
                       s->channels, MODEL_CHANNELS_MAX);
    if (s->shrink > 1 && (s->channels != MODEL_PIXEL_CHANNELS || s->n_shapes > 0))
        return err_set(err, -ERR_CONFIG,
                       "a router beside an upscaler needs images of pixels, of one shape");
    if (s->patch < 1 || s->image < s->patch || s->image % s->patch != 0)
        return err_set(err, -ERR_CONFIG, "%s %d must be a multiple of model.patch %d",
                       s->channels == MODEL_PIXEL_CHANNELS ? "data.image_size"
                                                           : "the side of the latents",
                       s->image, s->patch);
    if (tokens(s) > TOKENS_MAX)
        return err_set(err, -ERR_CONFIG,
                       "an image of %d pixels in patches of %d is %d tokens; at most %d", s->image,
                       s->patch, tokens(s), TOKENS_MAX);
    for (int i = 1; i <= s->n_shapes; i++) {
        const struct model_shape h = model_shape(s, i);
        if (h.height < s->patch || h.width < s->patch || h.height % s->patch ||
            h.width % s->patch || model_shape_patches(s, i) > model_patches(s))
            return err_set(err, -ERR_CONFIG,
                           "images of %d x %d in patches of %d: expected multiples of it and no "
                           "more patches than %d x %d has",
                           h.width, h.height, s->patch, s->image, s->image);
    }
    if (s->dim % 4 != 0)
        return err_set(err, -ERR_CONFIG, "model.dim %d must be a multiple of 4 from 4 to %d",
                       s->dim, MODEL_DIM_MAX);
    if (model_captioned(s))
        return caption_check(s, err);
    if (s->classes < 1 || s->classes > MODEL_CLASSES_MAX)
        return err_set(err, -ERR_CONFIG, "%s %d classes; from 1 to %d are possible",
                       s->kind == MODEL_ROUTER ? "the router has" : "the dataset has", s->classes,
                       MODEL_CLASSES_MAX);
    return 0;
}

/* Sets the inputs of a job's networks. */
static void image_sizes(const struct job_spec *job, const struct model_facts *f,
                        struct model_spec *s)
{
    s->channels = f->channels > 0 ? f->channels : MODEL_PIXEL_CHANNELS;
    s->image = f->side > 0 ? f->side : job->data.image_size;
    const int n = (int)job->data.buckets.n;
    s->n_shapes = n < MODEL_SHAPES_MAX ? n : MODEL_SHAPES_MAX;
    for (int i = 0; i < s->n_shapes; i++) {
        const struct job_shape b = job_bucket(job, (size_t)i);
        /* All sides of latents are those of pixels divided by the same factor. */
        s->shapes[i].height = (int)((int64_t)b.height * s->image / job->data.image_size);
        s->shapes[i].width = (int)((int64_t)b.width * s->image / job->data.image_size);
    }
}

/* The sizes of the job's second network. */
static void router_sizes(const struct job_spec *job, const struct model_facts *f,
                         struct model_spec *s)
{
    image_sizes(job, f, s);
    if (job_has_upscaler(job)) {
        s->shrink = s->image / job->upscaler.low_side;
        s->image = job->upscaler.low_side;
    }
    s->patch = job->router.patch;
    s->dim = job->router.dim;
    s->depth = job->router.depth;
    s->heads = job->router.heads;
    s->mlp = (int)(job->router.dim * job->router.mlp_ratio);
    s->classes = job->router.classes > 0 ? job->router.classes : f->partitions;
}

static void dit_sizes(const struct job_spec *job, const struct model_facts *f, struct model_spec *s)
{
    const struct job_model *m = &job->model;
    image_sizes(job, f, s);
    s->caption = f->caption;
    s->caption_tokens = f->caption_tokens;
    s->patch = m->patch;
    s->dim = m->dim;
    s->depth = m->depth;
    s->heads = m->heads;
    s->mlp = (int)(m->dim * m->mlp_ratio);
    s->classes = f->classes;
    s->self_condition = m->self_condition > 0;
    if (!job_has_upscaler(job))
        return;
    const struct job_upscaler *u = &job->upscaler;
    s->upscaler = (struct model_upscaler){.dim = u->dim,
                                          .depth = u->depth,
                                          .heads = u->heads,
                                          .mlp = (int)(u->dim * m->mlp_ratio),
                                          .image = s->image,
                                          .patch = u->patch,
                                          .noise = (float)u->noise};
    s->image = u->low_side;
}

static size_t count(const struct model_spec *s)
{
    return (size_t)(model_captioned(s) ? model_final_table(s) + 1
                                       : model_final_tensor(s, T_PER_FINAL));
}

struct layer {
    const char *name;
    int out, in;
};

static void add_block(struct model *m, const char *prefix, int block, const struct layer *layers,
                      size_t n)
{
    for (size_t j = 0; j < n; j++) {
        char name[MODEL_NAME_MAX];
        (void)snprintf(name, sizeof name, "%s.%d.%s", prefix, block, layers[j].name);
        model_table_linear(m, m->spec.cut.block_level[block], name, layers[j].out, layers[j].in);
    }
}

/* With captions: the tensors have diffusers' names. */
static void fill_captioned(struct model *m)
{
    const struct model_spec *s = &m->spec;
    const int C = s->dim, in = s->cut.embed_level, end = s->cut.head_level;

    model_table_add(m, in, true, 4, (int[4]){C, model_input_channels(s), s->patch, s->patch},
                    "pos_embed.proj.weight");
    model_table_add(m, in, false, 1, (int[4]){C}, "pos_embed.proj.bias");
    model_table_linear(m, in, "adaln_single.emb.timestep_embedder.linear_1", C, MODEL_FREQS);
    model_table_linear(m, in, "adaln_single.emb.timestep_embedder.linear_2", C, C);
    model_table_linear(m, in, "adaln_single.linear", 6 * C, C);
    model_table_linear(m, in, "caption_projection.linear_1", C, s->caption);
    model_table_linear(m, in, "caption_projection.linear_2", C, C);
    const struct layer layers[] = {
        {"attn1.to_q", C, C},     {"attn1.to_k", C, C},         {"attn1.to_v", C, C},
        {"attn1.to_out.0", C, C}, {"ff.net.0.proj", s->mlp, C}, {"ff.net.2", C, s->mlp},
        {"attn2.to_q", C, C},     {"attn2.to_k", C, C},         {"attn2.to_v", C, C},
        {"attn2.to_out.0", C, C},
    };
    for (int i = 0; i < s->depth; i++) {
        char name[MODEL_NAME_MAX];
        add_block(m, "transformer_blocks", i, layers, sizeof layers / sizeof *layers);
        (void)snprintf(name, sizeof name, "transformer_blocks.%d.scale_shift_table", i);
        model_table_add(m, s->cut.block_level[i], false, 2, (int[4]){6, C}, name);
    }
    model_table_linear(m, end, "proj_out", model_patch_values(s), C);
    model_table_add(m, end, false, 2, (int[4]){2, C}, "scale_shift_table");
}

static void fill(struct model *m)
{
    const struct model_spec *s = &m->spec;
    if (model_captioned(s)) {
        fill_captioned(m);
        return;
    }
    const int C = s->dim, in = s->cut.embed_level, end = s->cut.head_level;
    const bool router = s->kind == MODEL_ROUTER;

    model_table_add(m, in, true, 4, (int[4]){C, model_input_channels(s), s->patch, s->patch},
                    "x_embedder.proj.weight");
    model_table_add(m, in, false, 1, (int[4]){C}, "x_embedder.proj.bias");
    model_table_linear(m, in, "t_embedder.mlp.0", C, MODEL_FREQS);
    model_table_linear(m, in, "t_embedder.mlp.2", C, C);
    if (router)
        model_table_add(m, in, false, 2, (int[4]){1, C}, "cls_token");
    else
        model_table_add(m, in, false, 2, (int[4]){s->classes + 1, C},
                        "y_embedder.embedding_table.weight");

    const struct layer layers[] = {
        {"attn.qkv", 3 * C, C},           {"attn.proj", C, C},
        {"mlp.fc1", s->mlp, C},           {"mlp.fc2", C, s->mlp},
        {"adaLN_modulation.1", 6 * C, C},
    };
    for (int i = 0; i < s->depth; i++)
        add_block(m, "blocks", i, layers, sizeof layers / sizeof *layers);
    if (router)
        model_table_linear(m, end, "head", s->classes, C);
    else
        model_table_linear(m, end, "final_layer.linear", model_patch_values(s), C);
    model_table_linear(m, end, "final_layer.adaLN_modulation.1", 2 * C, C);
}

static void init(const struct model_tensor *t, const struct model_spec *s, uint64_t seed,
                 uint64_t stream, float *p)
{
    const char *name =
        t->name + (str_starts(t->name, MODEL_UPSCALER) ? sizeof MODEL_UPSCALER - 1 : 0);
    if (str_ends(name, ".bias") || strstr(name, "adaLN_modulation") ||
        str_starts(name, "final_layer.") || str_starts(name, "proj_out.") ||
        strstr(name, ".attn2.to_out."))
        return;
    if (str_ends(name, "scale_shift_table")) {
        rng_fill_normal(seed, stream, 0, p, t->count, 0.0f, 1.0f / sqrtf((float)s->dim));
        return;
    }
    if (str_starts(name, "t_embedder.") || str_starts(name, "y_embedder.") ||
        str_starts(name, "head.") || str_starts(name, "cls_token") ||
        str_starts(name, "adaln_single.") || str_starts(name, "caption_projection.")) {
        rng_fill_normal(seed, stream, 0, p, t->count, 0.0f, 0.02f);
        return;
    }
    uint64_t out = t->shape[0], in = t->count / t->shape[0];
    float bound = sqrtf(6.0f / (float)(in + out));
    rng_fill_uniform(seed, stream, 0, p, t->count);
    for (uint64_t j = 0; j < t->count; j++)
        p[j] = (2.0f * p[j] - 1.0f) * bound;
}

void model_positions(const struct model_spec *s, int shape, float *out)
{
    /* The original's meshgrid puts the column first: half of the channels
     * encode the column, the other half the row, each as sines then cosines. */
    const struct model_shape h = model_shape(s, shape);
    const int rows = h.height / s->patch, columns = h.width / s->patch, quarter = s->dim / 4;
    const double side = s->image / s->patch, unit = 1.0 / model_interpolation(s);
    const bool scaled = model_captioned(s);
    const double down = scaled ? unit * (side / rows) : unit;
    const double right = scaled ? unit * (side / columns) : unit;
    if (s->kind == MODEL_ROUTER) {
        memset(out, 0, (size_t)s->dim * sizeof *out);
        out += s->dim;
    }
    for (int row = 0; row < rows; row++) {
        for (int col = 0; col < columns; col++) {
            float *p = out + (size_t)(row * columns + col) * (size_t)s->dim;
            for (int i = 0; i < quarter; i++) {
                double w = pow(10000.0, -(double)i / quarter);
                p[i] = (float)sin(col * right * w);
                p[quarter + i] = (float)cos(col * right * w);
                p[2 * quarter + i] = (float)sin(row * down * w);
                p[3 * quarter + i] = (float)cos(row * down * w);
            }
        }
    }
}

/* Multiply-adds of a block per token, without attention. */
static double dit_block(double C, double M)
{
    return C * 3 * C + C * C + 2 * C * M;
}

/* One image. */
static double macs(const struct model_spec *s, double length)
{
    (void)length; /* an image has its own length */
    const double C = s->dim, T = tokens(s), N = model_patches(s);
    const double P = model_patch_values(s);
    const double time = MODEL_FREQS * C + C * C;
    const double block = T * dit_block(C, s->mlp) + 2 * T * T * C;
    const double head = s->kind == MODEL_ROUTER ? C * s->classes : N * C * P;
    const double ends = N * model_input_values(s) * C + time + head;
    if (model_captioned(s)) {
        const double L = s->caption_tokens, cross = 2 * T * C * C + 2 * L * C * C + 2 * T * L * C;
        return ends + 6 * C * C + L * (s->caption * C + C * C) + s->depth * (block + cross);
    }
    return ends + s->depth * (block + 6 * C * C) + 2 * C * C;
}

static void blocks(const struct model_spec *s, int *first, int *each)
{
    *first = model_captioned(s) ? (int)X_BLOCKS : (int)T_BLOCKS;
    *each = model_captioned(s) ? (int)X_PER_BLOCK : (int)T_PER_BLOCK;
}

const struct model_family model_dit = {
    .teaches = true,
    .check = image_check,
    .sizes = dit_sizes,
    .tokens = tokens,
    .tensors = count,
    .fill = fill,
    .blocks = blocks,
    .init = init,
    .macs = macs,
};

const struct model_family model_router = {
    .check = image_check,
    .sizes = router_sizes,
    .tokens = tokens,
    .tensors = count,
    .fill = fill,
    .blocks = blocks,
    .init = init,
    .macs = macs,
};
