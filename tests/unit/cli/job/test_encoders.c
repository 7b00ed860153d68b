/* Frozen networks must fit the job before anything is sent: shapes make whole latents, and these
 * whole patches of the model and of its router. */
#include "cli/job/encoders.h"

#include "cli/base/cli.h"
#include "tests/unit/components.h"

/* Halves the sides of pictures. */
#define VAE                                                                                        \
    "{\"_class_name\": \"AutoencoderKL\", \"_diffusers_version\": \"0.30\", \"act_fn\": \"silu\"," \
    " \"block_out_channels\": [8, 16], \"norm_num_groups\": 4, \"layers_per_block\": 1,"           \
    " \"down_block_types\": [\"DownEncoderBlock2D\", \"DownEncoderBlock2D\"],"                     \
    " \"up_block_types\": [\"UpDecoderBlock2D\", \"UpDecoderBlock2D\"]}"

static char *folder;

static int setup(void **state)
{
    char text[] = "/tmp/skerry-encoders-XXXXXX";
    folder = str_dup(mkdtemp(text));
    component_write_text(folder, "config.json", VAE);
    component_write_weights(folder, VAE, "diffusion_pytorch_model.safetensors", (struct made){0});
    return 0;
}

static int teardown(void **state)
{
    const int rc = file_remove_tree(folder, NULL);
    mem_free(folder);
    return rc;
}

static char *here(void *arg, const char *given)
{
    return str_dup(folder);
}

/* Opens the VAE for a job of such data, model and recipe. */
static int open_for(const char *data, const char *model, const char *more, struct encoders *e,
                    struct err *err)
{
    struct job_spec spec;
    char *yaml = str_printf("name: a\ndata: {path: x, %s}\nencoders: {vae: v}\n"
                            "model: {dim: 32, depth: 2, heads: 2, %s}\ntrain: {batch: 8}\n"
                            "outer: {rounds: 1, steps: 1}\n%s",
                            data, model, more);
    if (job_parse(yaml, strlen(yaml), "job", &spec, err) < 0)
        fail_msg("%s", err->msg);
    const int rc = encoders_open(&spec, here, NULL, e, err);
    job_release(&spec);
    mem_free(yaml);
    return rc;
}

static void test_shapes(void **state)
{
#define DDM "recipe: {name: ddm, experts: 2}\n"
    static const struct {
        const char *data, *model, *more, *why; /* why: NULL where they fit */
    } cases[] = {
        {"image_size: 20", "patch: 2", "", NULL},
        {"image_size: 21", "patch: 1", "", "data.image_size is 21, but the VAE in "},
        {"image_size: 20", "patch: 4", "",
         "model.patch is 4, which does not divide the 10 x 10 latents of a picture of 20"},
        {"image_size: 20", "patch: 2", DDM "router: {patch: 2}\n", NULL},
        {"image_size: 20", "patch: 2", DDM "router: {patch: 4}\n",
         "router.patch is 4, which does not divide the 10 x 10 latents of a picture of 20"},
        {"image_size: 20", "patch: 2", "router: {patch: 4}\n", NULL}, /* there is no router */
        {"image_size: 24", "patch: 2", DDM, NULL},
        {"image_size: 20", "patch: 2", DDM, /* 4 is the default, which divides the pictures */
         "router.patch is 4, which does not divide the 10 x 10 latents of a picture of 20"},
        {"image_size: 16, buckets: [16x16, 8x24]", "patch: 4", "", NULL},
        {"image_size: 16, buckets: [16x16, 12x20]", "patch: 4", "",
         "data.buckets holds 12x20, but the VAE in "},
        {"image_size: 16, buckets: [16x16, 12x20]", "patch: 2", DDM "router: {patch: 4}\n",
         "the router cuts latents into patches of 4: give multiples of 8"},
        {"image_size: 16, buckets: [16x16, 12x20]", "patch: 2", DDM "router: {patch: 2}\n", NULL},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct encoders e;
        struct err err = {0};
        const int rc = open_for(cases[i].data, cases[i].model, cases[i].more, &e, &err);
        if (cases[i].why && (rc != -ERR_CONFIG || !strstr(err.msg, cases[i].why)))
            fail_msg("case %zu: %d '%s'", i, rc, err.msg);
        if (!cases[i].why && rc < 0)
            fail_msg("case %zu: %s", i, err.msg);
        encoders_close(&e);
    }
}

static void test_input(void **state)
{
    struct encoders e;
    OK(open_for("image_size: 20", "patch: 2", "", &e, err));
    assert_true(e.channels == 4 && e.side == 10 && e.caption == 0 && e.caption_tokens == 0);
    encoders_close(&e);
}

/* Gigabytes of weights are read. */
static void test_interrupted(void **state)
{
    struct encoders e;
    struct err err = {0};
    cli_interrupted = SIGINT;
    const int rc = open_for("image_size: 20", "patch: 2", "", &e, &err);
    cli_interrupted = 0;
    assert_int_equal(rc, -ERR_CANCELLED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_shapes), cmocka_unit_test(test_input),
                                       cmocka_unit_test(test_interrupted)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
