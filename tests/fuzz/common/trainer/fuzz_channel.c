/* Any bytes on a trainer's socket: whole frames, a wait that ends, or a sentence; what is in a
 * frame is a message or is not. */
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/trainer/channel.h"
#include "proto/trainer.pb-c.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int pair[2];
    if (size > 60000 || socketpair(AF_UNIX, SOCK_STREAM, 0, pair) < 0)
        return 0;
    if (send(pair[1], data, size, MSG_DONTWAIT) != (ssize_t)size)
        abort();
    (void)close(pair[1]);
    struct channel_frame f;
    struct err err = {0};
    int rc;
    while ((rc = channel_receive(pair[0], 0, 0, &f, &err)) == 1) {
        Skerry__Trainer__V1__FromTrainer *m =
            skerry__trainer__v1__from_trainer__unpack(NULL, f.len, f.data);
        if (m)
            skerry__trainer__v1__from_trainer__free_unpacked(m, NULL);
        mem_free(f.data);
    }
    if (rc < 0 && err.msg[0] == '\0')
        abort();
    (void)close(pair[0]);
    return 0;
}
