/* Does the installed cuDNN know our graphs as attention?  It makes plans of them for an H200
 * that is only described (cuDNN 9.8 and newer), down to the machine code of the kernels. */
#include <stdio.h>
#include <string.h>

#include "common/base/err.h"
#include "kernels/cuda/sdpa_graph.h"

/* What cuDNN asks about a card; numbers of an H200. */
static const char card[] =
    "{\"deviceVer\":900,\"multiProcessorCount\":132,\"warpSize\":32,"
    "\"maxSharedMemoryPerBlock\":49152,\"maxSharedMemoryPerBlockOptin\":232448,"
    "\"reservedSharedMemoryPerBlock\":1024,\"maxRegistersPerSM\":65536,\"maxCtasPerSM\":32,"
    "\"maxThreadsPerBlock\":1024,\"maxThreadsPerSM\":2048,\"regsPerBlock\":65536,"
    "\"totalGlobalMem\":150000000000,\"smClockRateKHz\":1980000,\"l2CacheSize\":62914560,"
    "\"maxBlockSize\":[1024,1024,64],\"memClockRateKHz\":3201000,"
    "\"maxGridSize\":[2147483647,65535,65535],\"supportCoopLaunch\":1,\"pciDeviceId\":0,"
    "\"isTccDriver\":0,\"cudaDeviceId\":0,\"driverVer\":13000,\"deviceName\":\"NVIDIA H200\"}";

static const struct {
    const char *name;
    struct sdpa_shape shape; /* B, T, H, Hkv, D, causal, backward, stats */
} graphs[] = {
    {"DiT-XL/2 forward", {32, 256, 16, 16, 72, 0, 0, 1}},
    {"DiT-XL/2 forward without lse", {32, 256, 16, 16, 72, 0, 0, 0}},
    {"DiT-XL/2 backward", {32, 256, 16, 16, 72, 0, 1, 1}},
    {"decoder forward, grouped heads", {8, 1000, 12, 4, 64, 1, 0, 1}},
    {"decoder backward", {8, 1024, 12, 12, 64, 1, 1, 1}},
    {"decoder backward, grouped heads", {8, 1024, 12, 4, 128, 1, 1, 1}},
};

static int describe_card(struct sdpa_target *to)
{
    int status = to->api->descriptor(DNN_DEVICEPROP, &to->properties);
    if (status == DNN_SUCCESS)
        status = to->api->set(to->properties, DNN_DEVICEPROP_JSON, DNN_TYPE_CHAR,
                              (int64_t)strlen(card), card);
    return status == DNN_SUCCESS ? to->api->finalize(to->properties) : status;
}

int main(void)
{
    struct cudnn_api api;
    struct err err = {0};
    int failed = 0;
    if (cudnn_open(&api, &err) < 0) {
        printf("check-cudnn: %s\n", err.msg);
        return 1;
    }
    struct sdpa_target to = {.api = &api, .version = (int)api.version()};
    int status = describe_card(&to);
    if (status != DNN_SUCCESS) {
        printf("check-cudnn: cuDNN %d cannot plan for a card that is not there (status %d)\n",
               to.version, status);
        return 1;
    }
    for (size_t i = 0; i < sizeof graphs / sizeof *graphs; i++) {
        struct sdpa_plan plan;
        int rc = sdpa_plan_make(&to, &graphs[i].shape, &plan, &err);
        printf("cuDNN %d: %-32s ", to.version, graphs[i].name);
        if (rc == 0)
            printf("planned, %lld bytes of working memory\n", (long long)plan.work_bytes);
        else
            printf("%s\n", err.msg);
        failed += rc < 0;
        sdpa_plan_drop(&api, &plan);
    }
    api.drop(to.properties);
    return failed != 0;
}
