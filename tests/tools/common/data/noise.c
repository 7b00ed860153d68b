/* noise SEED A B COUNT: COUNT f32 normals of stream rng_mix(A, B) to stdout, so
 * that a test in Python starts where a sampler of ours starts. */
#include <stdio.h>
#include <stdlib.h>

#include "common/base/mem.h"
#include "common/base/rng.h"

int main(int argc, char **argv)
{
    if (argc != 5) {
        fputs("usage: noise SEED A B COUNT\n", stderr);
        return 2;
    }
    uint64_t seed = strtoull(argv[1], NULL, 0);
    uint64_t stream = rng_mix(strtoull(argv[2], NULL, 0), strtoull(argv[3], NULL, 0));
    size_t n = strtoul(argv[4], NULL, 0);
    float *out = mem_alloc_array(n, sizeof *out);
    rng_fill_normal(seed, stream, 0, out, n, 0.0f, 1.0f);
    size_t written = fwrite(out, sizeof *out, n, stdout);
    mem_free(out);
    return written == n && fflush(stdout) == 0 ? 0 : 1;
}
