/* How fast files go between this machine and the coordinator: sends a small one and, unless the
 * link is so slow that this is enough, one of 8 MiB, and fetches them again. */
#ifndef CLI_LINK_H
#define CLI_LINK_H

#include "common/base/base.h"

#define LINK_LARGE_BYTES (8u << 20)

struct cli;

/* In bytes a second.  folder: for the files, which are removed.  Needs an operator's token. */
int link_time(struct cli *cli, const char *folder, double *ret_up, double *ret_down,
              struct err *err);

#endif
