/* What the stand-in for NVIDIA's management library (fake_nvml.c) says, and was asked. */
#ifndef TESTS_FAKE_NVML_H
#define TESTS_FAKE_NVML_H

struct fake_nvml {
    int init_rc, pci_rc, memory_rc, rest_rc; /* nvmlReturn_t; rest: all other questions */
    unsigned gpu, temperature, milliwatts, mig;
    unsigned long long used, total, ecc, reasons;
    char pci[32], uuid[96]; /* asked for */
    int inits, shutdowns;
};

#endif
