/* The folder of what a fuzzer writes: in memory, since a busy disk lets few inputs through.  It
 * goes when the fuzzer ends.
 *
 *     fuzz_folder_make();      in LLVMFuzzerInitialize; ends the fuzzer if there can be none */
#ifndef TESTS_FUZZ_FOLDER_H
#define TESTS_FUZZ_FOLDER_H

#include <stdio.h>
#include <stdlib.h>

#include "common/base/file.h"

static char fuzz_folder[] = "/dev/shm/skerry-fuzz.XXXXXX";

static void fuzz_folder_remove(void)
{
    (void)file_remove_tree(fuzz_folder, NULL);
}

static inline void fuzz_folder_make(void)
{
    if (mkdtemp(fuzz_folder) && atexit(fuzz_folder_remove) == 0)
        return;
    perror(fuzz_folder);
    abort();
}

#endif
