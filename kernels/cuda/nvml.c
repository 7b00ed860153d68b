#include "kernels/cuda/nvml.h"

#include "common/base/base.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/lib/lib.h"
#include "kernels/watch_state.h"

/* The part of nvml.h that is used here: its numbers and layouts are frozen, and toolkits lack the
 * header. */
typedef void *card_t;
enum { OK = 0, NOT_SUPPORTED = 3, NO_PERMISSION = 4 };
enum { SENSOR_GPU = 0, UNCORRECTED = 1, SINCE_LOADED = 0, MIG_ON = 1 };

struct memory {
    unsigned long long total, available, used;
};

struct rates {
    unsigned int gpu, memory;
};

struct nvml_calls {
    int (*init)(void);
    int (*shutdown)(void);
    const char *(*text)(int rc);
    int (*by_pci)(const char *pci, card_t *ret);
    int (*by_uuid)(const char *uuid, card_t *ret);
    int (*name)(card_t c, char *name, unsigned int size);
    int (*memory)(card_t c, struct memory *ret);
    int (*rates)(card_t c, struct rates *ret);
    int (*temperature)(card_t c, int sensor, unsigned int *ret);
    int (*power)(card_t c, unsigned int *ret_milliwatts);
    int (*ecc)(card_t c, int kind, int since, unsigned long long *ret);
    int (*mig)(card_t c, unsigned int *now, unsigned int *pending);
};

static const char *const names[] = {"libnvidia-ml.so.1", NULL};
static const char *const symbols[] = {
    "nvmlInit_v2",
    "nvmlShutdown",
    "nvmlErrorString",
    "nvmlDeviceGetHandleByPciBusId_v2",
    "nvmlDeviceGetHandleByUUID",
    "nvmlDeviceGetName",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetUtilizationRates",
    "nvmlDeviceGetTemperature",
    "nvmlDeviceGetPowerUsage",
    "nvmlDeviceGetTotalEccErrors",
    "nvmlDeviceGetMigMode",
    NULL,
};
/* It has had two names; newer drivers know both. */
static const char *const reasons_new[] = {"nvmlDeviceGetCurrentClocksEventReasons", NULL};
static const char *const reasons_old[] = {"nvmlDeviceGetCurrentClocksThrottleReasons", NULL};

enum { SLOWED = 0x08, SLOWED_HEAT = 0x40, SLOWED_BRAKE = 0x80 };
static const struct {
    unsigned bit;
    const char *word;
} words[] = {
    {0x02, "clocks set by hand"},  {0x04, "power cap"},
    {SLOWED, "hardware slowdown"}, {0x10, "sync boost"},
    {0x20, "temperature"},         {SLOWED_HEAT, "hardware temperature limit"},
    {SLOWED_BRAKE, "power brake"}, {0x100, "display clocks"},
};

struct nvml {
    char pci[NVML_PCI_MAX], uuid[NVML_UUID_MAX];
    struct nvml_calls nv;
    int (*reasons)(card_t c, unsigned long long *ret); /* NULL: the driver has neither name */
    bool opened, started;                              /* the library, tried; its init */
    card_t card, part;                                 /* part: of a card (MIG), else the card */
    char trouble[WATCH_TEXT_MAX];                      /* for good */
};

struct nvml *nvml_new(const char *pci, const char *uuid)
{
    struct nvml *n = mem_alloc(sizeof *n);
    str_copy(n->pci, sizeof n->pci, pci);
    str_copy(n->uuid, sizeof n->uuid, uuid);
    return n;
}

struct nvml *nvml_of(const struct device *dev)
{
    char pci[NVML_PCI_MAX] = "", uuid[NVML_UUID_MAX] = "";
    struct cudaDeviceProp prop;
    int index = cuda_state(dev)->index;
    if (cudaDeviceGetPCIBusId(pci, sizeof pci, index) != cudaSuccess)
        (void)cudaGetLastError(); /* then NVML knows no such card, and says so */
    if (cudaGetDeviceProperties(&prop, index) == cudaSuccess) {
        const unsigned char *u = (const unsigned char *)prop.uuid.bytes;
        char *at = uuid;
        for (int i = 0; i < 16; i++)
            at += snprintf(at, 4, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", u[i]);
    }
    return nvml_new(pci, uuid);
}

void nvml_free(struct nvml *n)
{
    if (!n)
        return;
    if (n->started)
        (void)n->nv.shutdown(); /* nothing could be done about it */
    mem_free(n);
}

static bool failed(struct nvml *n, const char *what, int rc)
{
    if (rc == OK)
        return false;
    snprintf(n->trouble, sizeof n->trouble, "%s: %s", what, n->nv.text(rc));
    return true;
}

static int open_library(struct nvml *n)
{
    const struct lib all = {"NVIDIA's management library", names, symbols};
    struct lib one = {all.what, names, reasons_new};
    void *table[sizeof symbols / sizeof symbols[0]], *reasons = NULL;
    int rc = lib_open(&all, table, NULL);
    if (rc < 0) {
        str_copy(n->trouble, sizeof n->trouble,
                 "NVIDIA's management library (libnvidia-ml.so.1) is not there, or too old");
        return rc;
    }
    memcpy(&n->nv, table, sizeof n->nv); /* ISO C has no cast from data to functions */
    if (lib_open(&one, &reasons, NULL) < 0) {
        one.symbols = reasons_old;
        if (lib_open(&one, &reasons, NULL) < 0)
            reasons = NULL;
    }
    memcpy(&n->reasons, &reasons, sizeof reasons);
    return 0;
}

/* Finds a part of a card (MIG) that CUDA shows as a device: NVML knows it by its UUID. */
static void find_part(struct nvml *n)
{
    unsigned now = 0, pending = 0;
    char uuid[NVML_UUID_MAX + 4];
    n->part = n->card;
    if (n->nv.mig(n->card, &now, &pending) != OK || now != MIG_ON)
        return;
    snprintf(uuid, sizeof uuid, "MIG-%s", n->uuid);
    if (n->nv.by_uuid(uuid, &n->part) != OK)
        n->part = n->card;
}

static void start(struct nvml *n)
{
    n->opened = true;
    if (open_library(n) < 0 || failed(n, "NVML does not start", n->nv.init()))
        return;
    n->started = true;
    if (!failed(n, "NVML does not know this card", n->nv.by_pci(n->pci, &n->card)))
        find_part(n);
}

static void put_reasons(unsigned long long mask, char *out, size_t size)
{
    if (mask & (SLOWED_HEAT | SLOWED_BRAKE))
        mask &= ~(unsigned long long)SLOWED; /* which is said of both */
    size_t used = 0;
    out[0] = '\0';
    for (size_t i = 0; i < sizeof words / sizeof words[0] && used < size; i++)
        if (mask & words[i].bit)
            used +=
                (size_t)snprintf(out + used, size - used, "%s%s", used ? ", " : "", words[i].word);
}

/* Reads the other values, each of which this card or this user may lack. */
static void read_rest(struct nvml *n, struct watch_state *ret)
{
    struct rates rates;
    unsigned value;
    unsigned long long wide;
    if (n->nv.rates(n->part, &rates) == OK)
        ret->utilization = rates.gpu > 100 ? 100 : (int)rates.gpu;
    if (n->nv.temperature(n->card, SENSOR_GPU, &value) == OK)
        ret->temperature = value;
    if (n->nv.power(n->card, &value) == OK)
        ret->power = (float)value / 1000;
    if (n->nv.ecc(n->card, UNCORRECTED, SINCE_LOADED, &wide) == OK)
        ret->ecc_errors = (int64_t)wide;
    if (n->reasons && n->reasons(n->card, &wide) == OK)
        put_reasons(wide, ret->throttled, sizeof ret->throttled);
}

void nvml_read(struct nvml *n, struct watch_state *ret)
{
    struct memory memory;
    if (!n->opened)
        start(n);
    if (n->trouble[0]) {
        str_copy(ret->trouble, sizeof ret->trouble, n->trouble);
        return;
    }
    char name[sizeof ret->model];
    if (n->nv.name(n->part, name, sizeof name) == OK)
        str_copy(ret->model, sizeof ret->model, name);
    int rc = n->nv.memory(n->part, &memory);
    if (rc == OK) {
        ret->memory_used = memory.used;
        ret->memory_total = memory.total;
    } else if (rc != NOT_SUPPORTED && rc != NO_PERMISSION) {
        snprintf(ret->trouble, sizeof ret->trouble, "the card does not answer: %s", n->nv.text(rc));
        return;
    }
    read_rest(n, ret);
}
