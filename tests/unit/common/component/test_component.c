#include "common/component/component.h"

#include "tests/unit/components.h"

#define VAE(more)                                                                                  \
    "{\"_class_name\": \"AutoencoderKL\", \"_diffusers_version\": \"0.30\", \"act_fn\": \"silu\"," \
    " \"block_out_channels\": [8, 16], \"norm_num_groups\": 4, \"layers_per_block\": 1,"           \
    " \"down_block_types\": [\"DownEncoderBlock2D\", \"DownEncoderBlock2D\"],"                     \
    " \"up_block_types\": [\"UpDecoderBlock2D\", \"UpDecoderBlock2D\"]" more "}"
#define CLIP(more)                                                                                 \
    "{\"architectures\": [\"CLIPTextModel\"], \"vocab_size\": 11, \"hidden_size\": 8,"             \
    " \"num_hidden_layers\": 2, \"num_attention_heads\": 2, \"intermediate_size\": 12,"            \
    " \"max_position_embeddings\": 7" more "}"
#define T5(more)                                                                                   \
    "{\"architectures\": [\"T5EncoderModel\"], \"vocab_size\": 11, \"d_model\": 8, \"d_kv\": 3,"   \
    " \"d_ff\": 10, \"num_layers\": 2, \"num_heads\": 4" more "}"

static char *folder; /* of the test that runs */

static void write_text(const char *name, const char *text)
{
    component_write_text(folder, name, text);
}

static void write_weights(const char *config, const char *name, struct made m)
{
    component_write_weights(folder, config, name, m);
}

static void make(const char *config, const char *name, struct made m)
{
    write_text("config.json", config);
    write_weights(config, name, m);
}

static int setup(void **state)
{
    char text[] = "/tmp/skerry-component-XXXXXX";
    folder = str_dup(mkdtemp(text));
    return folder ? 0 : -1;
}

static int teardown(void **state)
{
    int rc = file_remove_tree(folder, NULL);
    mem_free(folder);
    return rc;
}

static void start_over(void)
{
    OK(file_remove_tree(folder, err));
    OK(file_mkdirs(folder, 0700, err));
}

static struct component *open_it(enum component_kind kind)
{
    struct component *c = NULL;
    struct err err = {0};
    if (component_open(folder, kind, &c, &err) < 0)
        fail_msg("%s", err.msg);
    return c;
}

static void refused(enum component_kind kind, const char *says)
{
    struct component *c = NULL;
    struct err err = {0};
    assert_int_not_equal(component_open(folder, kind, &c, &err), 0);
    assert_null(c);
    if (!strstr(err.msg, says))
        fail_msg("'%s' does not say '%s'", err.msg, says);
}

/* ---- what is read ---- */

static void a_vae_is_read(void **state)
{
    make(VAE(", \"scaling_factor\": 0.5, \"shift_factor\": 0.25"),
         "diffusion_pytorch_model.safetensors", (struct made){0});
    struct component *c = open_it(COMPONENT_VAE);
    assert_int_equal(c->kind, COMPONENT_VAE);
    assert_int_equal(c->vae.blocks, 2);
    assert_int_equal(c->vae.latent, 4);
    assert_true(c->vae.attention && c->vae.quant && c->vae.post_quant);
    assert_true(c->vae.scale[3] == 0.5f && c->vae.shift[3] == 0.25f);
    assert_int_equal(c->n_files, 2);
    const struct component_tensor *t = component_find(c, "encoder.conv_in.weight");
    assert_int_equal(t->count, 8 * 3 * 9);
    float values[8 * 3 * 9];
    assert_int_equal(component_read(c, t, values, NULL), 0);
    assert_true(values[8] == 0.25f && values[0] == 0);
    assert_null(component_find(c, "encoder.nothing"));
    component_close(c);
}

static void latents_have_means_of_their_own(void **state)
{
    make(VAE(", \"scaling_factor\": 0.5, \"latents_mean\": [0, 1, 2, 3], "
             "\"latents_std\": [1, 2, 4, 0.5], \"use_quant_conv\": false, "
             "\"use_post_quant_conv\": false, \"mid_block_add_attention\": false"),
         "diffusion_pytorch_model.safetensors", (struct made){0});
    struct component *c = open_it(COMPONENT_ANY);
    assert_true(c->vae.scale[2] == 0.125f && c->vae.shift[3] == 3);
    assert_null(component_find(c, "quant_conv.weight"));
    assert_null(component_find(c, "decoder.mid_block.attentions.0.to_q.weight"));
    component_close(c);
}

static void older_names_and_types_are_read(void **state)
{
    static const enum st_dtype types[] = {ST_F16, ST_BF16};
    for (int i = 0; i < 2; i++) {
        make(VAE(""), "diffusion_pytorch_model.safetensors",
             (struct made){.older = true, .dtype = types[i]});
        struct component *c = open_it(COMPONENT_VAE);
        const struct component_tensor *t =
            component_find(c, "encoder.mid_block.attentions.0.to_out.0.weight");
        assert_string_equal(t->at.name, "encoder.mid_block.attentions.0.proj_attn.weight");
        float values[16 * 16];
        assert_int_equal(component_read(c, t, values, NULL), 0);
        assert_true(values[6] == -1.5f && values[8] == 0.25f);
        component_close(c);
    }
    start_over();
    make(CLIP(", \"hidden_act\": \"gelu\""), "model.safetensors",
         (struct made){.older = true, .also = "text_model.embeddings.position_ids"});
    struct component *c = open_it(COMPONENT_CLIP);
    assert_int_equal(c->text.act, COMPONENT_GELU);
    assert_int_equal(c->text.head_dim, 4);
    component_close(c);
}

static void t5_is_read_gated_and_plain(void **state)
{
    make(T5(""), "model.safetensors", (struct made){.also = "decoder.anything"});
    struct component *c = open_it(COMPONENT_T5);
    assert_true(!c->text.gated && c->text.act == COMPONENT_RELU && c->text.positions == 0);
    assert_int_equal(c->text.buckets, 32);
    component_close(c);
    make(T5(", \"feed_forward_proj\": \"gated-gelu\""), "model.safetensors", (struct made){0});
    c = open_it(COMPONENT_ANY);
    assert_true(c->text.gated && c->text.act == COMPONENT_GELU_TANH);
    component_close(c);
}

static void weights_in_pieces_and_variants(void **state)
{
    static const char one[] = "model.fp16-00001-of-00002.safetensors";
    static const char two[] = "model.fp16-00002-of-00002.safetensors";
    make(T5(""), one, (struct made){.dtype = ST_F16, .pieces = 2, .piece = 0});
    write_weights(T5(""), two, (struct made){.dtype = ST_F16, .pieces = 2, .piece = 1});
    write_text(
        "model.safetensors.index.fp16.json",
        "{\"metadata\": {}, \"weight_map\": {\"a\": \"model.fp16-00001-of-00002.safetensors\","
        "\"b\": \"model.fp16-00002-of-00002.safetensors\","
        "\"c\": \"model.fp16-00001-of-00002.safetensors\"}}");
    struct component *c = open_it(COMPONENT_T5);
    assert_int_equal(c->n_files, 4);
    assert_string_equal(c->files[1], "model.safetensors.index.fp16.json");
    const struct component_tensor *t = component_find(c, "encoder.final_layer_norm.weight");
    float values[8];
    assert_int_equal(component_read(c, t, values, NULL), 0);
    assert_true(values[6] == -1.5f);
    component_close(c);

    /* Two pieces with the same, and one that is outside. */
    write_weights(T5(""), two, (struct made){.dtype = ST_F16, .pieces = 2, .piece = 0});
    refused(COMPONENT_T5, "two files hold ");
    write_text("model.safetensors.index.fp16.json",
               "{\"weight_map\": {\"a\": \"../x.safetensors\"}}");
    refused(COMPONENT_T5, "names the file '../x.safetensors', expected a .safetensors in the same");
    write_text("model.safetensors.index.fp16.json", "{\"weight_map\": {\"a\": 3}}");
    refused(COMPONENT_T5, "a is in no file");
    write_text("model.safetensors.index.fp16.json", "{}");
    refused(COMPONENT_T5, "has no weight_map");
    write_text("model.safetensors.index.fp16.json", "[");
    refused(COMPONENT_T5, "index.fp16.json:1:");
    write_text("model.safetensors.index.fp16.json", "[]");
    refused(COMPONENT_T5, "index.fp16.json is not a JSON object");
    /* A whole file comes before a variant. */
    write_weights(T5(""), "model.safetensors", (struct made){0});
    c = open_it(COMPONENT_T5);
    assert_string_equal(c->files[1], "model.safetensors");
    component_close(c);
}

/* config.json of networks that many people have. */
static void known_networks_are_read(void **state)
{
    static const char clip[] =
        "{\"_name_or_path\": \"openai/clip-vit-large-patch14\", \"architectures\": "
        "[\"CLIPTextModel\"], \"attention_dropout\": 0.0, \"bos_token_id\": 0, \"dropout\": 0.0, "
        "\"eos_token_id\": 2, \"hidden_act\": \"quick_gelu\", \"hidden_size\": 768, "
        "\"initializer_factor\": 1.0, \"initializer_range\": 0.02, \"intermediate_size\": 3072, "
        "\"layer_norm_eps\": 1e-05, \"max_position_embeddings\": 77, \"model_type\": "
        "\"clip_text_model\", \"num_attention_heads\": 12, \"num_hidden_layers\": 12, "
        "\"pad_token_id\": 1, \"projection_dim\": 768, \"torch_dtype\": \"float32\", "
        "\"transformers_version\": \"4.22.0.dev0\", \"vocab_size\": 49408}";
    static const char t5[] =
        "{\"_name_or_path\": \"google/t5-v1_1-xxl\", \"architectures\": [\"T5EncoderModel\"], "
        "\"classifier_dropout\": 0.0, \"d_ff\": 10240, \"d_kv\": 64, \"d_model\": 4096, "
        "\"decoder_start_token_id\": 0, \"dense_act_fn\": \"gelu_new\", \"dropout_rate\": 0.1, "
        "\"eos_token_id\": 1, \"feed_forward_proj\": \"gated-gelu\", \"initializer_factor\": 1.0, "
        "\"is_encoder_decoder\": true, \"is_gated_act\": true, \"layer_norm_epsilon\": 1e-06, "
        "\"model_type\": \"t5\", \"num_decoder_layers\": 24, \"num_heads\": 64, \"num_layers\": "
        "24, "
        "\"output_past\": true, \"pad_token_id\": 0, \"relative_attention_max_distance\": 128, "
        "\"relative_attention_num_buckets\": 32, \"tie_word_embeddings\": false, \"torch_dtype\": "
        "\"float32\", \"transformers_version\": \"4.21.1\", \"use_cache\": true, "
        "\"vocab_size\": 32128}";
    static const char vae[] =
        "{\"_class_name\": \"AutoencoderKL\", \"_diffusers_version\": \"0.29.0.dev0\", \"act_fn\": "
        "\"silu\", \"block_out_channels\": [128, 256, 512, 512], \"down_block_types\": "
        "[\"DownEncoderBlock2D\", \"DownEncoderBlock2D\", \"DownEncoderBlock2D\", "
        "\"DownEncoderBlock2D\"], \"force_upcast\": true, \"in_channels\": 3, \"latent_channels\": "
        "16, "
        "\"latents_mean\": null, \"latents_std\": null, \"layers_per_block\": 2, "
        "\"norm_num_groups\": 32, \"out_channels\": 3, \"sample_size\": 1024, \"scaling_factor\": "
        "1.5305, \"shift_factor\": 0.0609, \"up_block_types\": [\"UpDecoderBlock2D\", "
        "\"UpDecoderBlock2D\", \"UpDecoderBlock2D\", \"UpDecoderBlock2D\"], "
        "\"use_post_quant_conv\": false, \"use_quant_conv\": false}";
    struct component c = {0};
    OK(component_config("x", clip, strlen(clip), COMPONENT_CLIP, &c, err));
    assert_true(c.text.act == COMPONENT_QUICK_GELU && c.text.head_dim == 64);
    OK(component_config("x", t5, strlen(t5), COMPONENT_T5, &c, err));
    assert_true(c.text.gated && c.text.heads * c.text.head_dim == 4096);
    OK(component_config("x", vae, strlen(vae), COMPONENT_VAE, &c, err));
    assert_true(c.vae.latent == 16 && !c.vae.quant && c.vae.shift[15] == 0.0609f);
}

/* ---- what is refused ---- */

static void folders_are_refused(void **state)
{
    refused(COMPONENT_ANY, "has no config.json: name a folder that save_pretrained");
    write_text("config.json", VAE(""));
    refused(COMPONENT_ANY, "has no model.safetensors or diffusion_pytorch_model.safetensors");
    refused(COMPONENT_T5,
            "describes a 'AutoencoderKL', expected a component of the kind T5EncoderModel");
    write_text("config.json", "{\"_class_name\": \"VQModel\"}");
    refused(COMPONENT_VAE,
            "describes the class 'VQModel'; AutoencoderKL, CLIPTextModel and T5Encoder");
    write_text("config.json", "{}");
    refused(COMPONENT_VAE, "describes the class ''");
    write_text("config.json", "[1]");
    refused(COMPONENT_VAE, "/config.json is not a JSON object");
    write_text("config.json", "{\"a\": 1, \"a\": 2}");
    refused(COMPONENT_VAE, "config.json:1: duplicate object key");
    write_text("config.json", "version https://git-lfs.github.com/spec/v1\noid sha256:4a5e\n");
    refused(COMPONENT_VAE, "config.json is a placeholder of Git LFS");
}

static void configurations_are_refused(void **state)
{
    static const struct {
        const char *config, *says;
    } cases[] = {
        {VAE(", \"wavelets\": 3"), "has the key 'wavelets', which is not known"},
        {VAE(", \"scaling_factor\": 0"), "scaling_factor is 0, expected above 0"},
        {VAE(", \"scaling_factor\": \"big\""), "scaling_factor must be a number"},
        {VAE(", \"latents_mean\": [0, 0, 0, 0]"), "latents_mean and latents_std go together"},
        {VAE(", \"latents_mean\": [0], \"latents_std\": [1]"),
         "latents_mean must list a number for each of 4 channels"},
        {VAE(", \"latents_mean\": [0, 0, 0, 0], \"latents_std\": [1, 1, 0, 1]"),
         "of channel 2 make a scale of inf"},
        {VAE(", \"latent_channels\": 65"), "latent_channels must be a whole number from 1 to 64"},
        {VAE(", \"in_channels\": 1"), "in_channels must be a whole number from 3 to 3"},
        {VAE(", \"use_quant_conv\": 1"), "use_quant_conv must be true or false"},
        {"{\"_class_name\": \"AutoencoderKL\"}", "block_out_channels must list 1 to 8 numbers"},
        {"{\"_class_name\": \"AutoencoderKL\", \"block_out_channels\": [33]}",
         "multiples of norm_num_groups 32"},
        {"{\"_class_name\": \"AutoencoderKL\", \"block_out_channels\": [32], "
         "\"down_block_types\": [\"AttnDownEncoderBlock2D\"]}",
         "down_block_types has a 'AttnDownEncoderBlock2D'; 'DownEncoderBlock2D' is known"},
        {"{\"_class_name\": \"AutoencoderKL\", \"block_out_channels\": [32, 32]}",
         "down_block_types must list 2 types"},
        {"{\"_class_name\": \"AutoencoderKL\", \"block_out_channels\": [32], \"act_fn\": \"mish\"}",
         "act_fn is 'mish', expected silu or swish: other networks cannot be computed here"},
        {CLIP(", \"hidden_act\": \"tanh\""),
         "hidden_act is 'tanh', expected quick_gelu, gelu or gelu_new: other networks cannot"},
        {CLIP(", \"quantization_config\": {}"), "has the key 'quantization_config'"},
        {CLIP(", \"layer_norm_eps\": 0"), "layer_norm_eps is 0, expected a number between 0 and 1"},
        {"{\"architectures\": [\"CLIPTextModel\"], \"hidden_size\": 9}",
         "hidden_size 9 is no multiple of num_attention_heads 8"},
        {"{\"architectures\": [\"CLIPTextModel\"], \"hidden_size\": 8192}",
         "num_attention_heads makes heads of 1024 channels, expected at most 512"},
        {"{\"_class_name\": \"AutoencoderKL\", \"block_out_channels\": [1024]}",
         "the last of block_out_channels makes heads of 1024 channels, expected at most 512"},
        {T5(", \"feed_forward_proj\": \"gated-tanh\""),
         "is 'gated-tanh', expected relu, gated-gelu or gated-silu"},
        {T5(", \"is_decoder\": true"), "is_decoder is true, expected an encoder"},
        {T5(", \"relative_attention_max_distance\": 8"), "must be above a quarter of"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_text("config.json", cases[i].config);
        refused(COMPONENT_ANY, cases[i].says);
    }
}

static void tensors_are_refused(void **state)
{
    static const char norm[] = "encoder.conv_norm_out.bias";
    static const char file[] = "diffusion_pytorch_model.safetensors";
    make(VAE(""), file, (struct made){.without = norm});
    refused(COMPONENT_VAE, "has no tensor encoder.conv_norm_out.bias");
    make(VAE(""), file, (struct made){.also = "encoder.extra"});
    refused(COMPONENT_VAE,
            "holds the tensor encoder.extra, which a model of its config.json does not have");
    make(VAE(""), file, (struct made){.wider = norm});
    refused(COMPONENT_VAE, "encoder.conv_norm_out.bias is (17), but config.json makes it (16)");
    make(VAE(""), file, (struct made){.nan = norm});
    struct component *c = open_it(COMPONENT_VAE);
    float values[16];
    struct err err = {0};
    assert_int_equal(component_read(c, component_find(c, norm), values, &err), -ERR_CONFIG);
    assert_non_null(strstr(err.msg, "conv_norm_out.bias holds a value that is not finite at 0"));
    component_close(c);
    start_over();
    make(CLIP(""), "model.safetensors", (struct made){.also = "logit_bias"});
    refused(COMPONENT_CLIP, "holds the tensor logit_bias");
}

static void a_pipeline_has_parts(void **state)
{
    char *path = NULL;
    struct err err = {0};
    assert_int_equal(component_root(folder, "vae", &path, &err), -ERR_CONFIG);
    assert_non_null(strstr(err.msg, "has no model_index.json: name the folder of a diffusers"));
    write_text("model_index.json",
               "{\"_class_name\": \"X\", \"vae\": [\"diffusers\", \"AutoencoderKL\"], "
               "\"text_encoder\": [null, null]}");
    assert_int_equal(component_root(folder, "vae", &path, &err), 0);
    assert_true(str_ends(path, "/vae"));
    mem_free(path);
    path = NULL;
    assert_int_equal(component_root(folder, "text_encoder", &path, &err), -ERR_CONFIG);
    assert_non_null(strstr(err.msg, "model_index.json lists no text_encoder"));
    assert_int_equal(component_root(folder, "tokenizer", &path, &err), -ERR_CONFIG);
    write_text("model_index.json", "[]");
    assert_int_equal(component_root(folder, "vae", &path, &err), -ERR_CONFIG);
    assert_non_null(strstr(err.msg, "model_index.json is not a JSON object"));
    assert_null(path);
    assert_string_equal(component_kind_name(COMPONENT_CLIP), "CLIPTextModel");
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_vae_is_read),
        TEST(latents_have_means_of_their_own),
        TEST(older_names_and_types_are_read),
        TEST(t5_is_read_gated_and_plain),
        TEST(weights_in_pieces_and_variants),
        TEST(known_networks_are_read),
        TEST(folders_are_refused),
        TEST(configurations_are_refused),
        TEST(tensors_are_refused),
        TEST(a_pipeline_has_parts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
