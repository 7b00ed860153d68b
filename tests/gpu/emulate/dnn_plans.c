/* Does the installed cuDNN know our graphs as attention and convolution?  It makes plans of them
 * for an H200 that is only described (cuDNN 9.8 and newer), down to the machine code of the
 * kernels. */
#include <stdio.h>
#include <string.h>

#include "common/base/err.h"
#include "kernels/cuda/lib/conv_graph.h"
#include "kernels/cuda/lib/sdpa_graph.h"

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

static const struct {
    const char *name;
    struct conv_shape shape; /* B, H, W, Cin, Cout, Ho, Wo, k, stride, low, high, bias, add */
} convolutions[] = {
    {"3x3 with a bias", {8, 64, 64, 128, 256, 64, 64, 3, 1, 1, 1, 1, 0}},
    {"3x3 with a residual", {8, 32, 32, 512, 512, 32, 32, 3, 1, 1, 1, 1, 1}},
    {"3x3 alone", {1, 32, 32, 512, 8, 32, 32, 3, 1, 1, 1, 0, 0}},
    {"1x1 with a residual", {8, 32, 32, 256, 512, 32, 32, 1, 1, 0, 0, 1, 1}},
    {"downwards, zeros behind", {8, 64, 64, 128, 128, 32, 32, 3, 2, 0, 1, 1, 0}},
};

static int describe_card(struct dnn_target *to)
{
    int status = to->api->descriptor(DNN_DEVICEPROP, &to->properties);
    if (status == DNN_SUCCESS)
        status = to->api->set(to->properties, DNN_DEVICEPROP_JSON, DNN_TYPE_CHAR,
                              (int64_t)strlen(card), card);
    return status == DNN_SUCCESS ? to->api->finalize(to->properties) : status;
}

/* Prints what came of it and frees the plan; whether it failed. */
static int told(const struct dnn_target *to, const char *name, int rc, struct dnn_plan *plan,
                const struct err *err)
{
    printf("cuDNN %d: %-32s ", to->version, name);
    if (rc == 0)
        printf("planned, %lld bytes of working memory\n", (long long)plan->work_bytes);
    else
        printf("%s\n", err->msg);
    dnn_plan_drop(to->api, plan);
    return rc < 0;
}

int main(void)
{
    struct cudnn_api api;
    struct err err = {0};
    int failed = 0;
    if (dnn_open(&api, &err) < 0) {
        printf("check-cudnn: %s\n", err.msg);
        return 1;
    }
    struct dnn_target to = {.api = &api, .version = (int)api.version()};
    int status = describe_card(&to);
    if (status != DNN_SUCCESS) {
        printf("check-cudnn: cuDNN %d cannot plan for a card that is not there (status %d)\n",
               to.version, status);
        return 1;
    }
    struct dnn_plan plan;
    for (size_t i = 0; i < sizeof graphs / sizeof *graphs; i++) {
        int rc = sdpa_plan_make(&to, &graphs[i].shape, &plan, &err);
        failed += told(&to, graphs[i].name, rc, &plan, &err);
    }
    for (size_t i = 0; i < sizeof convolutions / sizeof *convolutions; i++) {
        int rc = conv_plan_make(&to, &convolutions[i].shape, &plan, &err);
        failed += told(&to, convolutions[i].name, rc, &plan, &err);
    }
    api.drop(to.properties);
    return failed != 0;
}
