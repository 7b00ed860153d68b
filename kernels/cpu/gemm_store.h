/* The epilogue of gemm.h over vec_*.h and vec_math.h; part of each gemm_<isa>.c. */

/* One vector of columns of one row; at is the element in C and aux. */
static inline void store_vec(const struct matmul *mm, vf v, int64_t at, vmask m, bool add)
{
    switch (mm->epilogue) {
    case MM_PLAIN:
        if (add)
            v = v_add(v, v_load((const float *)mm->c + at, m));
        break;
    case MM_GELU:
        if (mm->aux)
            v_store_dt(mm->aux, mm->c_dt, at, m, v);
        v = v_gelu(v);
        break;
    case MM_DGELU:
        v = v_mul(v, v_gelu_grad(v_load_dt(mm->aux, mm->c_dt, at, m)));
        break;
    }
    v_store_dt(mm->c, mm->c_dt, at, m, v);
}

static void store_tile(const struct matmul *mm, const struct gemm_tile *t)
{
    int64_t ldc = mm->ldc ? mm->ldc : mm->n;
    for (int c = 0; c < t->cols; c += VL) {
        vmask m = v_mask(t->cols - c);
        vf bias = t->bias && mm->bias ? v_load(mm->bias + t->j + c, m) : v_zero();
        for (int r = 0; r < t->rows; r++) {
            vf v = v_add(v_load(t->v + r * GEMM_NR + c, v_mask(VL)), bias);
            store_vec(mm, v, (t->i + r) * ldc + t->j + c, m, t->add);
        }
    }
}
