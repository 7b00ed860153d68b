/* Stands in for libnvidia-ml.so.1: one card, with a part of it (MIG) of half its memory. */
#include "tests/unit/kernels/fake_nvml.h"

#include <stdio.h>
#include <string.h>

struct fake_nvml *fake_nvml(void);
int nvmlInit_v2(void);
int nvmlShutdown(void);
const char *nvmlErrorString(int rc);
int nvmlDeviceGetHandleByPciBusId_v2(const char *pci, void **ret);
int nvmlDeviceGetHandleByUUID(const char *uuid, void **ret);
int nvmlDeviceGetName(void *card, char *name, unsigned size);
int nvmlDeviceGetMemoryInfo(void *card, unsigned long long ret[3]);
int nvmlDeviceGetUtilizationRates(void *card, unsigned ret[2]);
int nvmlDeviceGetTemperature(void *card, int sensor, unsigned *ret);
int nvmlDeviceGetPowerUsage(void *card, unsigned *ret);
int nvmlDeviceGetTotalEccErrors(void *card, int kind, int since, unsigned long long *ret);
int nvmlDeviceGetMigMode(void *card, unsigned *now, unsigned *pending);
int nvmlDeviceGetCurrentClocksThrottleReasons(void *card, unsigned long long *ret);

static struct fake_nvml fake;
static char whole, part;

struct fake_nvml *fake_nvml(void)
{
    return &fake;
}

int nvmlInit_v2(void)
{
    fake.inits++;
    return fake.init_rc;
}

int nvmlShutdown(void)
{
    fake.shutdowns++;
    return 0;
}

const char *nvmlErrorString(int rc)
{
    return rc == 15 ? "GPU is lost" : rc == 9 ? "Driver Not Loaded" : "Not Found";
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *pci, void **ret)
{
    snprintf(fake.pci, sizeof fake.pci, "%s", pci);
    *ret = &whole;
    return fake.pci_rc;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **ret)
{
    snprintf(fake.uuid, sizeof fake.uuid, "%s", uuid);
    *ret = &part;
    return 0;
}

int nvmlDeviceGetName(void *card, char *name, unsigned size)
{
    snprintf(name, size, "NVIDIA H200%s", card == &part ? " MIG 3g.71gb" : "");
    return 0;
}

int nvmlDeviceGetMemoryInfo(void *card, unsigned long long ret[3])
{
    ret[0] = card == &part ? fake.total / 2 : fake.total;
    ret[1] = ret[0] - fake.used;
    ret[2] = fake.used;
    return fake.memory_rc;
}

int nvmlDeviceGetUtilizationRates(void *card, unsigned ret[2])
{
    ret[0] = fake.gpu;
    ret[1] = 1;
    return card == &part ? 3 : fake.rest_rc;
}

int nvmlDeviceGetTemperature(void *card, int sensor, unsigned *ret)
{
    *ret = fake.temperature;
    return card == &whole && sensor == 0 ? fake.rest_rc : 2;
}

int nvmlDeviceGetPowerUsage(void *card, unsigned *ret)
{
    *ret = fake.milliwatts;
    return card == &whole ? fake.rest_rc : 2;
}

int nvmlDeviceGetTotalEccErrors(void *card, int kind, int since, unsigned long long *ret)
{
    *ret = fake.ecc;
    return card == &whole && kind == 1 && since == 0 ? fake.rest_rc : 2;
}

int nvmlDeviceGetMigMode(void *card, unsigned *now, unsigned *pending)
{
    *now = *pending = fake.mig;
    return 0;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(void *card, unsigned long long *ret)
{
    *ret = fake.reasons;
    return card == &whole ? fake.rest_rc : 2;
}
