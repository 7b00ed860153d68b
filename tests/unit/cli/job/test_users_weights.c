#include "cli/job/users_weights.h"

#include <unistd.h>

#include "tests/unit/common/base/util.h"

#include "common/job/job.h"
#include "common/st/st.h"

static const struct job_spec trainers = {.model.type = JOB_MODEL_EXTERNAL};

static void write_weights(const char *folder, const char *name)
{
    const uint64_t n = 1;
    const float value = 1;
    char *path = in(folder, name);
    struct st_writer *w = st_writer_new();
    OK(st_writer_add(w, "w", ST_F32, 1, &n, err));
    OK(st_writer_open(w, path, err));
    OK(st_writer_write(w, &value, sizeof(value), err));
    OK(st_writer_commit(w, NULL, NULL, err));
    st_writer_free(w);
    mem_free(path);
}

static void write_text(const char *folder, const char *name, const char *text)
{
    char *path = in(folder, name);
    OK(file_write_atomic(path, text, strlen(text), 0600, err));
    mem_free(path);
}

static void takes_a_file_or_a_folder(void **state)
{
    char *dir = scratch_new(), *file = in(dir, "model.safetensors");
    write_weights(dir, "model.safetensors");
    OK(users_weights_check(file, &trainers, err));
    OK(users_weights_check(dir, &trainers, err));
    mem_free(file);
    scratch_free(dir);
}

static void every_piece_must_be_there(void **state)
{
    char *dir = scratch_new();
    FAILS(users_weights_check(dir, &trainers, err), "has no model.safetensors");
    write_text(dir, "model.safetensors.index.json",
               "{\"weight_map\": {\"w\": \"../a.safetensors\"}}");
    FAILS(users_weights_check(dir, &trainers, err), "names the file '../a.safetensors', expected");
    write_text(dir, "model.safetensors.index.json",
               "{\"weight_map\": {\"w\": \"a.safetensors\", \"v\": \"b.safetensors\"}}");
    write_weights(dir, "a.safetensors");
    FAILS(users_weights_check(dir, &trainers, err), "b.safetensors");
    write_weights(dir, "b.safetensors");
    OK(users_weights_check(dir, &trainers, err));
    char *index = in(dir, "model.safetensors.index.json");
    OK(users_weights_check(index, &trainers, err)); /* the weights alone */
    mem_free(index);
    scratch_free(dir);
}

static void what_lies_beside_them_is_bounded(void **state)
{
    char *dir = scratch_new(), *large = in(dir, "notes.txt"), *other = in(dir, "pytorch_model.bin"),
         *weights = in(dir, "model.safetensors");
    write_weights(dir, "model.safetensors");
    write_text(dir, "pytorch_model.bin", "");
    assert_int_equal(truncate(other, 65 << 20), 0); /* weights of another form do not travel */
    OK(users_weights_check(dir, &trainers, err));
    write_text(dir, "notes.txt", "");
    assert_int_equal(truncate(large, 65 << 20), 0);
    FAILS(users_weights_check(dir, &trainers, err),
          "or 64 MiB; name the file of weights, or the index");
    OK(users_weights_check(weights, &trainers, err));
    const struct job_spec llama = {.model.type = JOB_MODEL_LLAMA};
    FAILS(users_weights_check(dir, &llama, err), "a folder with the model's own files alone");
    char *below = in(dir, "checkpoint-9"), *deep = in(below, "notes.txt");
    OK(file_mkdirs(below, 0700, err));
    OK(file_move(large, deep, err));
    OK(users_weights_check(dir, &llama, err)); /* the folder of another */
    mem_free(deep);
    mem_free(below);
    mem_free(weights);
    mem_free(other);
    mem_free(large);
    scratch_free(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(takes_a_file_or_a_folder),
        cmocka_unit_test(every_piece_must_be_there),
        cmocka_unit_test(what_lies_beside_them_is_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
