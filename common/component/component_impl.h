/* Shared by the files of this room: config.json becomes numbers, the numbers become a list of
 * tensors, and the tensors are looked up in the weights' files. */
#ifndef COMMON_COMPONENT_COMPONENT_IMPL_H
#define COMMON_COMPONENT_COMPONENT_IMPL_H

#include "common/component/component.h"

/* Fills kind and vae or text from the bytes of a config.json, `path` for messages. */
int component_config(const char *path, const char *text, size_t len, enum component_kind kind,
                     struct component *c, struct err *err);

/* An expected tensor: its possible names, and its shape. */
struct component_want {
    const char *name;
    const char *other; /* an older name, or NULL */
    unsigned rank;
    uint64_t shape[4];
};
/* Calls fn for every expected tensor of c in turn; an error ends it. */
typedef int component_want_fn(void *arg, const struct component_want *want);
int component_wants(const struct component *c, component_want_fn *fn, void *arg);

/* Is it the name of a tensor that the network does not use, and that is no mistake? */
bool component_passes_over(const struct component *c, const char *name);

/* Fills files and tensors, after kind and vae or text. */
int component_weights(struct component *c, struct err *err);

#endif
