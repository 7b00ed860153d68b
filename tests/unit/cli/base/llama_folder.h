/* Folders with a llama's weights, zeros, and whether a job may start from them. */
#ifndef TESTS_UNIT_CLI_BASE_LLAMA_FOLDER_H
#define TESTS_UNIT_CLI_BASE_LLAMA_FOLDER_H

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "cli/base/cli.h"
#include "cli/show/artifacts.h"
#include "cli/base/model_folder.h"
#include "common/base/err.h"
#include "common/base/file.h"
#include "common/base/mem.h"
#include "common/st/st.h"
#include "common/data/tokenizer.h"

#define OK(call)                                                                                   \
    do {                                                                                           \
        if ((call) < 0)                                                                            \
            fail_msg("%s: %s", #call, err.msg);                                                    \
    } while (0)

#define LLAMA(model)                                                                               \
    "name: tale\n"                                                                                 \
    "data: {path: x.txt}\n"                                                                        \
    "train: {batch: 4}\n"                                                                          \
    "outer: {rounds: 1, steps: 1}\n"                                                               \
    "sample: {temperature: 0.5}\n"                                                                 \
    "model: {type: llama, " model "}\n"

static const char sound_llama[] =
    LLAMA("dim: 16, depth: 2, heads: 4, kv_heads: 2, ffn: 32, context: 64, rope_theta: 5000");

/* Zeros of the shapes that a model of the job has. */
struct weights {
    struct st_writer *w;
    uint64_t bytes;
    int first; /* in place of the first zeros */
};

static inline void put(struct weights *f, const char *name, enum st_dtype dtype, uint64_t a,
                       uint64_t b)
{
    struct err err = {0};
    OK(st_writer_add(f->w, name, dtype, b ? 2 : 1, (uint64_t[]){a, b}, &err));
    f->bytes += a * (b ? b : 1) * st_dtype_bytes(dtype);
}

static inline void finish(struct weights *f, const char *dir, const char *file)
{
    struct err err = {0};
    char path[96];
    (void)snprintf(path, sizeof path, "%s/%s.safetensors", dir, file);
    uint8_t *zeros = mem_try_zero(f->bytes);
    memset(zeros, f->first, 4);
    OK(st_writer_open(f->w, path, &err));
    OK(st_writer_write(f->w, zeros, f->bytes, &err));
    OK(st_writer_commit(f->w, NULL, NULL, &err));
    st_writer_free(f->w);
    mem_free(zeros);
}

/* fault: 0 none, 1 a tensor is missing, 2 one too many, 3 another shape, 4 another type, 5 a value
 * is none; 6: none, with the frequencies that older releases of transformers saved; 7: none, those
 * of sound_qwen2; 8 and 9: those of sound_qwen3, with and without a norm of keys; 10 to 12: a head
 * that is a copy of the embedding, one that is not, and one that lacks its last row */
static inline void write_llama(const char *dir, int fault)
{
    struct weights f = {.w = st_writer_new(), .first = fault == 5 ? 0xff : fault == 11};
    const bool wider = fault >= 7 && fault <= 9;
    const uint64_t vocab = wider ? 260 : 257, wide = wider ? 2 : 1;
    char name[96];
    put(&f, "model.embed_tokens.weight", fault == 4 ? ST_I8 : ST_F32, vocab, 16);
    put(&f, "lm_head.weight", fault >= 10 ? ST_F32 : ST_BF16, vocab - (fault == 12), 16);
    if (fault != 1)
        put(&f, "model.norm.weight", ST_F32, 16, 0);
    if (fault == 2)
        put(&f, "model.norm.bias", ST_F32, 16, 0);
    for (int b = 0; b < 2; b++) {
        const struct {
            const char *name;
            uint64_t out, in;
        } layers[] = {
            {"input_layernorm", 16, 0},
            {"post_attention_layernorm", 16, 0},
            {"self_attn.q_proj", 16 * wide, 16},
            {"self_attn.k_proj", 8 * wide, 16},
            {"self_attn.v_proj", fault == 3 ? 16 : 8 * wide, 16},
            {"self_attn.o_proj", 16, 16 * wide},
            {"mlp.gate_proj", 32, 16},
            {"mlp.up_proj", 32, 16},
            {"mlp.down_proj", 16, 32},
        };
        (void)snprintf(name, sizeof name, "model.layers.%d.self_attn.rotary_emb.inv_freq", b);
        if (fault == 6)
            put(&f, name, ST_F32, 2, 0);
        for (size_t i = 0; i < sizeof layers / sizeof *layers; i++) {
            (void)snprintf(name, sizeof name, "model.layers.%d.%s.weight", b, layers[i].name);
            put(&f, name, ST_F32, layers[i].out, layers[i].in);
            (void)snprintf(name, sizeof name, "model.layers.%d.%s.bias", b, layers[i].name);
            if (fault == 7 && i >= 2 && i <= 4) /* of q, k and v */
                put(&f, name, ST_F32, layers[i].out, 0);
        }
        for (int i = 0; i < (fault == 8 ? 2 : fault == 9); i++) {
            (void)snprintf(name, sizeof name, "model.layers.%d.self_attn.%c_norm.weight", b,
                           "qk"[i]);
            put(&f, name, ST_F32, 8, 0);
        }
    }
    finish(&f, dir, "model");
}

static inline int check_facts(const char *dir, const char *yaml, struct model_folder_facts facts,
                              struct err *err)
{
    struct job_spec spec;
    struct tokenizer *t = tokenizer_bytes();
    facts.tokenizer = t;
    int rc = job_parse(yaml, strlen(yaml), "job.yaml", &spec, err);
    if (rc < 0)
        fail_msg("%s", err->msg);
    rc = model_folder_check(dir, &spec, &facts, err);
    tokenizer_free(t);
    job_release(&spec);
    return rc;
}

static inline int check(const char *dir, const char *yaml, uint64_t classes, struct err *err)
{
    return check_facts(dir, yaml, (struct model_folder_facts){.classes = classes}, err);
}

#endif
