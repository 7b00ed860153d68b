/* The files of coordinator/http/web/, linked into the program; the table is made by
 * coordinator/http/web_assets.sh. */
#ifndef COORDINATOR_WEB_ASSETS_H
#define COORDINATOR_WEB_ASSETS_H

#include "common/base/base.h"

struct web_asset {
    const char *name; /* "app.js" */
    const char *etag; /* another one for other content */
    const unsigned char *data;
    size_t len;
};

extern const struct web_asset web_assets[];
extern const size_t web_assets_count;

#endif
