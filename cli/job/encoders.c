#include "cli/job/encoders.h"

#include "cli/base/cli.h"
#include "common/base/moving.h"
#include "cli/job/upload.h"
#include "common/base/file.h"
#include "common/component/component.h"
#include "common/data/caption_tokenizer.h"
#include "common/job/recipe.h"

#define TOKENS_AUTO_MAX 120 /* as in PixArt */
#define MEMBERS_BYTES 2560  /* of a picture in a shard, beside its moments: a tar's heads */

/* As EncoderPart of skerry.proto. */
enum part { PART_VAE, PART_TEXT, PART_TOKENIZER };

/* ---- opening ---- */

/* Reads all weights: a component with values that are not numbers is refused here, not by the
 * first worker. */
static int check_values(const struct component *c, struct err *err)
{
    struct moving show = moving_begin("reading the frozen networks");
    uint64_t most = 1, done = 0, total = 0;
    for (size_t i = 0; i < c->n_tensors; i++) {
        most = c->tensors[i].count > most ? c->tensors[i].count : most;
        total += c->tensors[i].at.bytes;
    }
    float *values = mem_try_array(most, sizeof *values);
    int rc = values ? 0 : err_set(err, -ENOMEM, "no memory to read the weights in %s", c->folder);
    for (size_t i = 0; i < c->n_tensors && rc == 0; i++) {
        moving_show(&show, done, total);
        rc = cli_interrupted ? err_set(err, -ERR_CANCELLED, "interrupted")
                             : component_read(c, &c->tensors[i], values, err);
        done += c->tensors[i].at.bytes;
    }
    moving_clear();
    mem_free(values);
    return rc;
}

/* Checks that the latents of a picture make whole patches, of the model and of its router, whose
 * patch may be a default that goes by the picture. */
static int check_side(const struct job_spec *spec, int side, struct err *err)
{
    const bool router = side % spec->model.patch == 0;
    const int patch = router ? spec->router.patch : spec->model.patch;
    if (router && (!recipe_mixes(spec->recipe.name) || side % patch == 0))
        return 0;
    return err_set(err, -ERR_CONFIG,
                   "%s.patch is %d, which does not divide the %d x %d latents of a picture of %d: "
                   "change %s.patch or data.image_size",
                   router ? "router" : "model", patch, side, side, spec->data.image_size,
                   router ? "router" : "model");
}

/* Checks that all shapes make whole latents, and whole patches of them. */
static int check_buckets(const struct job_spec *spec, const char *folder, int factor,
                         struct err *err)
{
    const int router = recipe_mixes(spec->recipe.name) ? spec->router.patch : 1;
    for (size_t i = 0; i < spec->data.buckets.n; i++) {
        const struct job_shape b = job_bucket(spec, i);
        const int patch =
            b.width % (factor * spec->model.patch) || b.height % (factor * spec->model.patch)
                ? spec->model.patch
                : router;
        if (b.width % (factor * patch) || b.height % (factor * patch))
            return err_set(err, -ERR_CONFIG,
                           "data.buckets holds %s, but the VAE in %s shrinks pictures by %d and "
                           "%s cuts latents into patches of %d: give multiples of %d",
                           spec->data.buckets.items[i], folder, factor,
                           patch == spec->model.patch ? "the model" : "the router", patch,
                           factor * patch);
    }
    return 0;
}

static int open_vae(const struct job_spec *spec, const char *folder, struct encoders *e,
                    struct err *err)
{
    int rc = component_open(folder, COMPONENT_VAE, &e->vae, err);
    if (rc == 0)
        rc = check_values(e->vae, err);
    if (rc < 0)
        return err_wrap(err, "encoders.vae");
    const int factor = 1 << (e->vae->vae.blocks - 1);
    if (spec->data.image_size % factor)
        return err_set(err, -ERR_CONFIG,
                       "data.image_size is %d, but the VAE in %s shrinks pictures by %d: give a "
                       "multiple of it",
                       spec->data.image_size, folder, factor);
    e->channels = e->vae->vae.latent;
    e->side = spec->data.image_size / factor;
    if (e->vae->vae.attention && e->side > COMPONENT_SEEN_MAX)
        return err_set(err, -ERR_CONFIG,
                       "data.image_size is %d, but the VAE in %s has attention between %d x %d "
                       "latents then, expected at most %d x %d: use smaller pictures",
                       spec->data.image_size, folder, e->side, e->side, COMPONENT_SEEN_MAX,
                       COMPONENT_SEEN_MAX);
    const double shard = (spec->data.flip ? 4.0 : 2.0) * 2 * e->channels * e->side * e->side *
                         spec->data.shard_samples / (1 << 20); /* MiB of bf16 moments */
    if (spec->encoders.run == JOB_ENCODE_WORKER && shard > spec->encoders.cache)
        return err_set(err, -ERR_CONFIG,
                       "encoders.cache is %d MiB, but the latents of one shard of %d pictures take "
                       "%.0f; raise it, or lower data.shard_samples",
                       spec->encoders.cache, spec->data.shard_samples, ceil(shard));
    rc = check_side(spec, e->side, err);
    return rc < 0 ? rc : check_buckets(spec, folder, factor, err);
}

static int check_tokens(const struct job_spec *spec, struct encoders *e, struct err *err)
{
    const int positions = e->text->text.positions, asked = spec->encoders.tokens;
    const uint32_t vocab = caption_tokenizer_vocab(e->tokenizer);
    const enum caption_kind kind = caption_tokenizer_kind(e->tokenizer);
    if ((kind == CAPTION_CLIP) != (e->text->kind == COMPONENT_CLIP))
        return err_set(err, -ERR_CONFIG,
                       "the tokenizer in %s is that of a %s, but the text encoder in %s is a %s",
                       e->tokenizer_path, caption_kind_name(kind), e->text->folder,
                       component_kind_name(e->text->kind));
    if (vocab > (uint32_t)e->text->text.vocab)
        return err_set(err, -ERR_CONFIG,
                       "the tokenizer in %s has %u tokens, but the text encoder in %s knows "
                       "%d: they belong to different models",
                       e->tokenizer_path, vocab, e->text->folder, e->text->text.vocab);
    if (asked > 0 && positions > 0 && asked > positions)
        return err_set(err, -ERR_CONFIG,
                       "encoders.tokens is %d, but the text encoder in %s has %d positions", asked,
                       e->text->folder, positions);
    const uint32_t says = caption_tokenizer_length(e->tokenizer);
    e->caption_tokens = asked > 0 ? asked : TOKENS_AUTO_MAX;
    if (asked == 0 && says > 0 && says < (uint32_t)e->caption_tokens)
        e->caption_tokens = (int)says;
    if (asked == 0 && positions > 0 && positions < e->caption_tokens)
        e->caption_tokens = positions;
    if (e->caption_tokens < 2) /* a caption has two special tokens */
        return err_set(
            err, -ERR_CONFIG,
            "captions would have %d token by the tokenizer in %s and the text encoder in "
            "%s, at least 2 are needed",
            e->caption_tokens, e->tokenizer_path, e->text->folder);
    return 0;
}

static int open_text(const struct job_spec *spec, const char *folder, char *tokenizer,
                     struct encoders *e, struct err *err)
{
    e->tokenizer_path = tokenizer;
    int rc = component_open(folder, COMPONENT_ANY, &e->text, err);
    if (rc == 0 && e->text->kind == COMPONENT_VAE)
        rc = err_set(err, -ERR_CONFIG, "%s is an AutoencoderKL, expected a text encoder", folder);
    if (rc == 0 && e->text->kind != COMPONENT_CLIP && spec->encoders.layer != -1)
        return err_set(err, -ERR_CONFIG,
                       "encoders.layer is %d, which is for a CLIPTextModel; %s is a %s: leave it "
                       "out",
                       spec->encoders.layer, folder, component_kind_name(e->text->kind));
    if (rc == 0)
        rc = check_values(e->text, err);
    if (rc < 0)
        return err_wrap(err, "encoders.text");
    if ((rc = caption_tokenizer_open(tokenizer, &e->tokenizer, err)) < 0)
        return err_wrap(err, "encoders.tokenizer");
    e->caption = e->text->text.dim;
    return check_tokens(spec, e, err);
}

/* The folder of a text encoder's tokenizer: the named one, else one beside it, else its own. */
static char *tokenizer_of(const char *named, const char *text)
{
    if (named)
        return str_dup(named);
    char *up = file_join(text, "..");
    char *beside = file_join(up, "tokenizer");
    mem_free(up);
    if (file_is_dir(beside))
        return beside;
    mem_free(beside);
    return str_dup(text);
}

static char *part_of(const char *root, const char *part, const char *own, int *rc, struct err *err)
{
    char *path = NULL;
    if (*rc < 0)
        return NULL;
    if (root && (*rc = component_root(root, part, &path, err)) < 0)
        (void)err_wrap(err, "encoders.path");
    if (!root && own)
        path = str_dup(own);
    return path;
}

int encoders_open(const struct job_spec *spec, char *(*find)(void *arg, const char *given),
                  void *arg, struct encoders *ret, struct err *err)
{
    const struct job_encoders *j = &spec->encoders;
    char *root = j->path ? find(arg, j->path) : NULL, *vae = j->vae ? find(arg, j->vae) : NULL;
    char *text = j->text ? find(arg, j->text) : NULL;
    char *tokenizer = j->tokenizer ? find(arg, j->tokenizer) : NULL;
    int rc = 0;
    char *at_vae = part_of(root, "vae", vae, &rc, err);
    char *at_text = part_of(root, "text_encoder", text, &rc, err);
    char *at_tokenizer = part_of(root, "tokenizer", tokenizer, &rc, err);
    *ret = (struct encoders){0};
    if (rc == 0 && at_vae)
        rc = open_vae(spec, at_vae, ret, err);
    if (rc == 0 && at_text)
        rc = open_text(spec, at_text, tokenizer_of(at_tokenizer, at_text), ret, err);
    if (rc < 0)
        encoders_close(ret);
    char *const paths[] = {root, vae, text, tokenizer, at_vae, at_text, at_tokenizer};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++)
        mem_free(paths[i]);
    return rc;
}

void encoders_close(struct encoders *e)
{
    component_close(e->vae);
    component_close(e->text);
    caption_tokenizer_free(e->tokenizer);
    mem_free(e->tokenizer_path);
    *e = (struct encoders){0};
}

void encoders_say_cut(const struct encoders *e, const struct job_spec *spec)
{
    for (size_t i = 0; e->tokenizer && i < spec->sample.prompts.n; i++) {
        const char *text = spec->sample.prompts.items[i];
        const int cut = caption_tokenizer_cut(e->tokenizer, text, strlen(text), e->caption_tokens);
        if (cut > 0)
            (void)fprintf(stderr,
                          "sample.prompts: caption %zu is cut by %d token%s, because the text "
                          "encoder reads %d\n",
                          i + 1, cut, str_plural((uint64_t)cut), e->caption_tokens);
    }
}

/* ---- files ---- */

uint64_t encoders_bytes(const struct encoders *e)
{
    const struct component *const all[] = {e->vae, e->text};
    uint64_t bytes = 0;
    for (size_t k = 0; k < sizeof all / sizeof *all; k++)
        for (size_t i = 0; all[k] && i < all[k]->n_files; i++) {
            char *path = file_join(all[k]->folder, all[k]->files[i]);
            uint64_t size = 0;
            (void)file_size(path, &size, NULL);
            bytes += size;
            mem_free(path);
        }
    return bytes;
}

uint64_t encoders_latents_bytes(const struct encoders *e, const struct job_spec *spec,
                                uint64_t pictures)
{
    const uint64_t side = (uint64_t)e->side; /* moments: two numbers of bf16 for each latent */
    const uint64_t moments = (spec->data.flip ? 2 : 1) * 4 * (uint64_t)e->channels * side * side;
    return e->vae ? pictures * (moments + MEMBERS_BYTES) : 0;
}

/* The destination of files, and their list. */
struct sending {
    struct cli *cli;
    bool progress;
    json_t *list;
};

static int send(const struct sending *to, enum part part, const char *path, const char *name,
                struct err *err)
{
    json_t *blob = NULL;
    int rc = upload_file(to->cli, path, name, to->progress, &blob, err);
    if (rc < 0)
        return rc;
    json_object_set_new(blob, "part", json_integer(part));
    json_object_set_new(blob, "name", json_string(name));
    json_array_append_new(to->list, blob);
    return 0;
}

static int send_component(const struct sending *to, enum part part, const struct component *c,
                          struct err *err)
{
    int rc = 0;
    for (size_t i = 0; c && i < c->n_files && rc == 0; i++) {
        char *path = file_join(c->folder, c->files[i]);
        rc = send(to, part, path, c->files[i], err);
        mem_free(path);
    }
    return rc;
}

/* The files that caption_tokenizer_open() reads. */
static const char *const tokenizer_files[] = {
    "tokenizer.json",          "vocab.json", "merges.txt", "spiece.model", "tokenizer_config.json",
    "special_tokens_map.json", NULL};

static int send_tokenizer(const struct sending *to, const char *path, struct err *err)
{
    int rc = 0;
    for (const char *const *name = tokenizer_files; *name && rc == 0; name++) {
        char *file = file_join(path, *name);
        if (file_exists(file))
            rc = send(to, PART_TOKENIZER, file, *name, err);
        mem_free(file);
    }
    return rc;
}

int encoders_upload(struct cli *cli, const struct encoders *e, bool progress, json_t *body,
                    struct err *err)
{
    if (!e->vae && !e->text)
        return 0;
    const struct sending to = {cli, progress, json_array()};
    int rc = send_component(&to, PART_VAE, e->vae, err);
    if (rc == 0)
        rc = send_component(&to, PART_TEXT, e->text, err);
    if (rc == 0 && e->text)
        rc = send_tokenizer(&to, e->tokenizer_path, err);
    json_object_set_new(body, "encoders", to.list);
    json_object_set_new(body, "input",
                        json_pack("{s:i,s:i,s:i,s:i}", "channels", e->channels, "side", e->side,
                                  "caption", e->caption, "caption_tokens", e->caption_tokens));
    return rc;
}
