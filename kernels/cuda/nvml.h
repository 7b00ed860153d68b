/* A card through NVIDIA's management library, for kernels/device/watch.h.
 *
 * The library is opened and started by the first nvml_read, which may take a second.  On a
 * part of a card (MIG) memory is the part's, the rest the card's; what the driver does not
 * tell of a part stays unknown. */
#ifndef KERNELS_CUDA_NVML_H
#define KERNELS_CUDA_NVML_H

struct device;
struct nvml;
struct watch_state;

#define NVML_PCI_MAX 32
#define NVML_UUID_MAX 48

/* The card of an open CUDA device. */
struct nvml *nvml_of(const struct device *dev);
/* pci: "0000:3b:00.0"; uuid: of the device as CUDA sees it, "1b2c...-..." without a prefix. */
struct nvml *nvml_new(const char *pci, const char *uuid);
void nvml_free(struct nvml *n); /* accepts NULL */

/* Fills what is known and leaves the rest as it is; a reason in ret->trouble when the card
 * cannot be asked. */
void nvml_read(struct nvml *n, struct watch_state *ret);

#endif
