#include "cli/show/card.h"

#include "cli/base/cli.h"
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

static void put_training(struct buf *b, const json_t *about, const struct job_spec *spec, bool ema)
{
    const json_t *data = json_object_get(about, "dataset");
    char loss[STR_HUMAN_MAX];
    (void)buf_printf(b,
                     "## Training\n\n"
                     "| | |\n| --- | --- |\n"
                     "| trained by | Skerry %s, recipe %s |\n"
                     "| rounds | %lld of %lld |\n"
                     "| weights | %s |\n",
                     SKERRY_VERSION, spec->recipe.name, cli_int(about, "round", 0),
                     cli_int(about, "rounds", 0),
                     ema ? "the average over the rounds, F32" : "those of the last round, F32");
    if (spec->model.warm_start)
        (void)buf_printf(b, "| began with | weights of another model |\n");
    if (cli_int(data, "samples", 0) > 0)
        (void)buf_printf(b, "| samples | %lld, %lld of them held out |\n",
                         cli_int(data, "samples", 0), cli_int(data, "holdout", 0));
    if (cli_has(about, "eval_loss"))
        (void)buf_printf(b, "| held-out loss | %s |\n",
                         str_human_loss(cli_num(about, "eval_loss", 0), loss));
}

int card_write(const json_t *about, const struct job_spec *spec, enum card_kind kind,
               const char *class, bool ema, const char *dir, struct err *err)
{
    char *path = file_join(dir, "README.md");
    struct buf b;
    buf_init(&b, CARD_MAX);
    put_head(&b, spec, kind);
    (void)buf_printf(&b, "%s%s%s%s.\n\n%s%s", kinds[kind].what, class ? " (`" : "",
                     class ? class : "", class ? "`)" : "", kinds[kind].use,
                     *kinds[kind].use ? "\n" : "");
    put_training(&b, about, spec, ema);
    (void)buf_printf(&b,
                     "\nBefore you publish it, add `license:` to the first lines, and here what "
                     "it was trained on.\n");
    int rc = file_write_atomic(path, b.data, b.len, 0644, err);
    buf_release(&b);
    mem_free(path);
    return rc;
}
