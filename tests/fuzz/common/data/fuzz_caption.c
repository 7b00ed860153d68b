/* Any bytes as the folder of a caption tokenizer: files that each begin with a line %%C, where C
 * says which.  What is accepted must give every text as many ids as were asked for. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/data/caption_tokenizer.h"
#include "tests/fuzz/folder.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    fuzz_folder_make();
    return 0;
}

static const char *const names[] = {"tokenizer_config.json",
                                    "special_tokens_map.json",
                                    "tokenizer.json",
                                    "vocab.json",
                                    "merges.txt",
                                    "spiece.model"};

static void write_file(const char *name, const uint8_t *data, size_t len)
{
    char path[128];
    (void)snprintf(path, sizeof(path), "%s/%s", fuzz_folder, name);
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(data, 1, len, f) != len || fclose(f) != 0)
        abort();
}

static void write_folder(const uint8_t *data, size_t size)
{
    static const char letters[] = "cmjvts";
    while (size >= 4 && memcmp(data, "%%", 2) == 0) {
        const char *letter = data[2] ? strchr(letters, data[2]) : NULL;
        const uint8_t *next = memmem(data + 4, size - 4, "\n%%", 3);
        const size_t len = next ? (size_t)(next - data) : size;
        if (letter)
            write_file(names[letter - letters], data + 4, len - 4);
        data += len + (next != NULL);
        size -= len + (next != NULL);
    }
}

static void encode(const struct caption_tokenizer *c, const uint8_t *text, size_t len, int most)
{
    int32_t ids[64];
    int n = 0;
    if (caption_tokenizer_encode(c, text, len, most, ids, &n, NULL) < 0)
        return;
    if (n < 0 || n > most)
        abort();
    for (int i = 0; i < most; i++)
        if (ids[i] < 0 || (uint32_t)ids[i] >= caption_tokenizer_vocab(c))
            abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct caption_tokenizer *c;
    write_folder(data, size);
    if (caption_tokenizer_open(fuzz_folder, &c, NULL) == 0) {
        encode(c, (const uint8_t *)"", 0, 2);
        encode(c, (const uint8_t *)"A photo of  a caf\xc3\xa9, it's \xe2\x96\x81 1", 31, 64);
        encode(c, data, size, 64);
        caption_tokenizer_free(c);
    }
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        char path[128];
        (void)snprintf(path, sizeof(path), "%s/%s", fuzz_folder, names[i]);
        (void)unlink(path);
    }
    return 0;
}
