/* A card through NVIDIA's management library, for kernels/device/watch.h.
 *
 * The library is opened and started by the first nvml_read, which may take a second.  On a
 * part of a card (MIG) the memory is the part's and the rest is the card's; values that the driver
 * does not give for a part stay unknown. */
#ifndef KERNELS_CUDA_NVML_H
#define KERNELS_CUDA_NVML_H

struct device;
struct nvml;
struct watch_state;

#define NVML_PCI_MAX 32
#define NVML_UUID_MAX 48

/* The card of an open CUDA device. */
struct nvml *nvml_of(const struct device *dev);
/* pci: "0000:3b:00.0"; uuid: the device's in CUDA, "1b2c...-..." without a prefix. */
struct nvml *nvml_new(const char *pci, const char *uuid);
void nvml_free(struct nvml *n); /* accepts NULL */

/* Fills known values and leaves the others as they are; if the card cannot be asked, ret->trouble
 * says why. */
void nvml_read(struct nvml *n, struct watch_state *ret);

#endif
