#include "worker/kinds/kinds.h"

const struct kind *const kinds_all[] = {
    &kind_init,
    &kind_ingest,
    &kind_train,
    &kind_check,
    &kind_eval,
    &kind_sample,
    &kind_velocity,
    &kind_feature,
    &kind_cluster,
    &kind_split,
    &kind_score,
    &kind_encode,
    &kind_outer,
    &kind_external_init,
    &kind_external_train,
    &kind_external_eval,
    &kind_external_sample,
    NULL,
};
