/* What the tests of this folder share: cmocka's includes in their order, a loud assertion on
 * errors, a device for all tests of a file. */
#ifndef TESTS_UNIT_WORKER_FIT_FIT_TEST_H
#define TESTS_UNIT_WORKER_FIT_FIT_TEST_H

#include "tests/unit/ok.h"

#include <math.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "kernels/device/device.h"

static struct device *dev;

static inline int device_setup(void **state)
{
    OK(device_open("cpu", 2, &dev, err));
    return 0;
}

static inline int device_teardown(void **state)
{
    device_close(dev);
    return 0;
}

#endif
