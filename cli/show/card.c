#include "cli/show/card.h"

#include "cli/base/cli.h"
#include "cli/show/artifacts.h"
#include "common/base/buf.h"
#include "common/base/file.h"
#include "common/job/job.h"

#define CARD_MAX 8192
#define LLAMA_USE                                                                                  \
    "```python\n"                                                                                  \
    "from transformers import AutoModelForCausalLM, AutoTokenizer\n\n"                             \
    "model, tokenizer = (c.from_pretrained(\".\") for c in (AutoModelForCausalLM, "                \
    "AutoTokenizer))  # this folder\n"                                                             \
    "text = tokenizer(\"Once\", return_tensors=\"pt\")\n"                                          \
    "print(tokenizer.decode(model.generate(**text)[0], skip_special_tokens=True))\n"               \
    "```\n"

/* What a person replaces: a card without it is a person's. */
#define DUTY                                                                                       \
    "\nBefore you publish it, add `license:` to the first lines, and here, in place of this "      \
    "line, "                                                                                       \
    "what it was trained on. An export to this folder then keeps the file.\n"

enum card_kind { CARD_TEXT, CARD_TOKENS, CARD_CAPTIONS, CARD_IMAGES, CARD_ROUTER };

static const struct {
    const char *library, *task, *what, *use;
} kinds[] = {
    [CARD_TEXT] = {"transformers", "text-generation", "A language model", LLAMA_USE},
    [CARD_TOKENS] =
        {"transformers", "text-generation",
         "A language model whose token ids are of a tokenizer that the job did not name", ""},
    [CARD_CAPTIONS] =
        {"diffusers", "text-to-image",
         "A text-to-image transformer that predicts the velocity of rectified flow",
         "`diffusers.PixArtTransformer2DModel.from_pretrained` opens this folder. The "
         "frozen text encoder, and the VAE if it has one, are not in it; "
         "docs/encoders.md of Skerry draws with all of them.\n"},
    [CARD_IMAGES] = {NULL, "unconditional-image-generation",
                     "A diffusion transformer that predicts the velocity of rectified flow",
                     "`config.json` has the sizes, the classes and the objective; "
                     "tests/reference/dit.py of Skerry is the model in a page of PyTorch.\n"},
    [CARD_ROUTER] = {NULL, NULL, "The router of a mixture of experts",
                     "At (x_t, t) its logit k is for the expert in the folder whose name ends in "
                     "-k.\n"},
};

static void put_head(struct buf *b, const struct job_spec *spec, enum card_kind kind)
{
    (void)buf_printf(b, "---\n");
    if (kinds[kind].library)
        (void)buf_printf(b, "library_name: %s\n", kinds[kind].library);
    if (kinds[kind].task)
        (void)buf_printf(b, "pipeline_tag: %s\n", kinds[kind].task);
    (void)buf_printf(b, "tags:\n- skerry\n- %s\n---\n\n# %s\n\n", spec->recipe.name, spec->name);
}

static enum card_kind kind_of(const json_t *about, const json_t *path, const struct job_spec *spec)
{
    if (strcmp(cli_str(path, "network", ""), "router") == 0)
        return CARD_ROUTER;
    if (spec->model.type == JOB_MODEL_LLAMA)
        return artifacts_has_tokenizer(about) ? CARD_TEXT : CARD_TOKENS;
    return job_has_captions(spec) ? CARD_CAPTIONS : CARD_IMAGES;
}

/* The held-out loss is of the average, and perhaps of an earlier round. */
static void put_loss(struct buf *b, double loss, long long of, long long round, bool ema)
{
    char text[STR_HUMAN_MAX];
    (void)buf_printf(b, "| held-out loss%s | %s", ema ? "" : " of the average",
                     str_human_loss(loss, text));
    if (of != round)
        (void)buf_printf(b, " after round %lld", of);
    (void)buf_printf(b, " |\n");
}

static void put_training(struct buf *b, const json_t *path, const struct job_spec *spec, bool ema)
{
    const bool stopped = ema && json_array_size(json_object_get(path, "best_blobs")) > 0;
    const char *loss = stopped ? "best_loss" : "eval_loss";
    const long long of = cli_int(path, stopped ? "best_round" : "eval_round", 0);
    const long long round = stopped ? of : cli_int(path, "round", 0);
    (void)buf_printf(b,
                     "## Training\n\n"
                     "| | |\n| --- | --- |\n"
                     "| trained by | Skerry %s, recipe %s |\n"
                     "| rounds | %lld of %lld |\n"
                     "| weights | %s |\n",
                     SKERRY_VERSION, spec->recipe.name, round, cli_int(path, "rounds", 0),
                     ema ? "the average over the rounds, F32" : "those of the last round, F32");
    if (spec->model.warm_start)
        (void)buf_printf(b, "| began with | weights of another model |\n");
    if (cli_int(path, "samples", 0) > 0)
        (void)buf_printf(b, "| samples | %lld, and %lld held out |\n", cli_int(path, "samples", 0),
                         cli_int(path, "holdout", 0));
    if (cli_has(path, loss))
        put_loss(b, cli_num(path, loss, 0), of, round, ema);
}

/* Is there a file on which a person has worked, or which came with the job's weights? */
static bool is_kept(const char *path)
{
    struct buf text = {0};
    bool kept = file_exists(path) &&
                (file_read(path, CARD_MAX, &text, NULL) < 0 || !strstr(buf_str(&text), DUTY));
    buf_release(&text);
    return kept;
}

int card_write(const json_t *about, const json_t *path, const struct job_spec *spec, bool ema,
               const char *dir, struct err *err)
{
    const enum card_kind kind = kind_of(about, path, spec);
    char *file = file_join(dir, "README.md");
    struct buf b;
    int rc = 0;
    buf_init(&b, CARD_MAX);
    if (!is_kept(file)) {
        put_head(&b, spec, kind);
        (void)buf_printf(&b, "%s.\n\n%s%s", kinds[kind].what, kinds[kind].use,
                         *kinds[kind].use ? "\n" : "");
        put_training(&b, path, spec, ema);
        (void)buf_printf(&b, DUTY);
        rc = file_write_atomic(file, b.data, b.len, 0644, err);
    }
    buf_release(&b);
    mem_free(file);
    return rc;
}
