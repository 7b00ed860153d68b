/* The index of each tensor in the table of struct model, which has the order of the files.
 * For code that computes; other code looks tensors up by name. */
#ifndef WORKER_MODEL_INDEX_H
#define WORKER_MODEL_INDEX_H

#include "worker/model/model.h"

enum model_head_index {
    T_PATCH_W, /* (C,Ch,p,p) */
    T_PATCH_B,
    T_TIME0_W, /* (C,256) */
    T_TIME0_B,
    T_TIME2_W, /* (C,C) */
    T_TIME2_B,
    T_LABELS, /* (classes+1,C); a router: cls_token (1,C) */
    T_BLOCKS, /* the first of the blocks */
};

enum model_block_index {
    T_QKV_W, /* (3C,C) */
    T_QKV_B,
    T_PROJ_W, /* (C,C) */
    T_PROJ_B,
    T_FC1_W, /* (M,C) */
    T_FC1_B,
    T_FC2_W, /* (C,M) */
    T_FC2_B,
    T_MOD_W, /* (6C,C) */
    T_MOD_B,
    T_PER_BLOCK,
};

enum model_final_index {
    T_FINAL_W, /* (p*p*Ch,C); a router: head (K,C) */
    T_FINAL_B,
    T_FINAL_MOD_W, /* (2C,C) */
    T_FINAL_MOD_B,
    T_PER_FINAL,
};

/* With captions all blocks share one modulation, to which each adds its own table.  The
 * enumerations above then name the tensors that both kinds have, through the functions below. */
enum model_caption_head_index {
    X_MOD_W = T_LABELS, /* (6C,C) */
    X_MOD_B,
    X_TEXT1_W, /* (C,D) */
    X_TEXT1_B,
    X_TEXT2_W, /* (C,C) */
    X_TEXT2_B,
    X_BLOCKS, /* the first of the blocks */
};

enum model_caption_block_index {
    X_Q_W, /* (C,C): T_QKV_W, with the tensors of k and v after it without gaps */
    X_Q_B,
    X_K_W,
    X_K_B,
    X_V_W,
    X_V_B,
    X_PROJ_W,
    X_PROJ_B,
    X_FC1_W,
    X_FC1_B,
    X_FC2_W,
    X_FC2_B,
    X_CROSS_Q_W, /* (C,C) */
    X_CROSS_Q_B,
    X_CROSS_K_W, /* (C,C), with no gap before v's */
    X_CROSS_K_B,
    X_CROSS_V_W,
    X_CROSS_V_B,
    X_CROSS_PROJ_W, /* (C,C) */
    X_CROSS_PROJ_B,
    X_TABLE, /* (6,C) */
    X_PER_BLOCK,
};

/* A decoder: embedding, blocks, norm, head. */
enum model_llama_head_index {
    L_EMBED, /* (V,C) */
    L_BLOCKS,
};

/* q, k, v lie one after the other, and so do gate and up: one product each.  There are no
 * gaps between them, because C, D and M are multiples of 4.  With qkv_bias each of the three is
 * followed by its bias; there are no gaps between these, because Hkv D is a multiple of 16. */
enum model_llama_block_index {
    L_NORM1, /* (C) input_layernorm */
    L_Q,     /* (H D,C) */
    L_K,     /* (Hkv D,C), or with qkv_bias that of q (H D), and so on */
    L_V,     /* (Hkv D,C) */
    L_O,     /* (C,H D) */
    L_NORM2, /* (C) post_attention_layernorm */
    L_GATE,  /* (M,C) */
    L_UP,    /* (M,C) */
    L_DOWN,  /* (C,M) */
    L_PER_BLOCK,
    L_Q_NORM = L_PER_BLOCK, /* (D), these two with qk_norm only */
    L_K_NORM,               /* (D) */
};

enum model_llama_final_index {
    L_NORM, /* (C) */
    L_HEAD, /* (V,C); absent when tied */
    L_PER_FINAL,
};

/* Indices in the whole table: of a tensor of block `block` (not those of k and v, which no product
 * reads alone), and of one after the last block. */
static inline int model_llama_block(const struct model_spec *s, int block,
                                    enum model_llama_block_index i)
{
    const int biases = s->qkv_bias ? 3 : 0, norms = s->qk_norm ? 2 : 0;
    return L_BLOCKS + block * (L_PER_BLOCK + biases + norms) + (int)i + (i > L_Q ? biases : 0);
}

static inline int model_llama_final(const struct model_spec *s, enum model_llama_final_index i)
{
    return model_llama_block(s, s->depth, (enum model_llama_block_index)0) + (int)i;
}

/* Has this block rotary positions? */
static inline bool model_llama_turns(const struct model_spec *s, int block)
{
    return s->no_rope_layer_interval == 0 || (block + 1) % s->no_rope_layer_interval != 0;
}

/* The tensor that makes logits: the head, or the embedding when tied. */
static inline int model_llama_head(const struct model_spec *s)
{
    return s->tied ? (int)L_EMBED : model_llama_final(s, L_HEAD);
}

static inline int model_caption_tensor(int block, enum model_caption_block_index i)
{
    return X_BLOCKS + block * X_PER_BLOCK + (int)i;
}

static inline int model_block_tensor(const struct model_spec *s, int block,
                                     enum model_block_index i)
{
    if (!model_captioned(s))
        return T_BLOCKS + block * T_PER_BLOCK + (int)i;
    return model_caption_tensor(block, (enum model_caption_block_index)(
                                           i < T_PROJ_W ? (int)i : (int)i - T_PROJ_W + X_PROJ_W));
}

static inline int model_final_tensor(const struct model_spec *s, enum model_final_index i)
{
    return (model_captioned(s) ? X_BLOCKS + s->depth * X_PER_BLOCK
                               : T_BLOCKS + s->depth * T_PER_BLOCK) +
           (int)i;
}

/* With captions the last tensor is the final layer's table (2,C). */
static inline int model_final_table(const struct model_spec *s)
{
    return model_final_tensor(s, T_FINAL_MOD_W);
}

#endif
