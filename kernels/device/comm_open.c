#include "kernels/device/comm_open.h"

#include "common/base/base.h"
#include "kernels/cpu/comm_local.h"
#include "kernels/kernels.h"

#if HAVE_CUDA
#include "kernels/cuda/comm_nccl.h"
#endif

static bool is_card(const struct device *dev)
{
    return strncmp(dev->name, "cuda:", 5) == 0;
}

int comm_open(struct device *const *devs, int n, struct comm **ret_comms, struct err *err)
{
    if (n < 1 || n > COMM_RANKS_MAX)
        return err_set(err, -EINVAL, "%d devices asked for, from 1 to %d can train together", n,
                       COMM_RANKS_MAX);
    for (int i = 0; i < n; i++) {
        if (is_card(devs[i]) != is_card(devs[0]))
            return err_set(err, -EINVAL,
                           "devices %s and %s cannot train together: use cards only, or CPUs only",
                           devs[0]->name, devs[i]->name);
        for (int j = 0; j < i; j++)
            if (is_card(devs[i]) && strcmp(devs[i]->name, devs[j]->name) == 0)
                return err_set(err, -EINVAL, "device %s is named twice", devs[i]->name);
    }
    if (!is_card(devs[0]))
        return comm_local_open(devs, n, ret_comms, err);
#if HAVE_CUDA
    return comm_nccl_open(devs, n, ret_comms, err);
#else
    return err_set(err, -ERR_DEVICE, "this program was built without CUDA");
#endif
}

void comm_close(struct comm **comms, int n)
{
    for (int i = 0; i < n; i++) {
        if (comms[i])
            comms[i]->ops->free(comms[i]);
        comms[i] = NULL;
    }
}
