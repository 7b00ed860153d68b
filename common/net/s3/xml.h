/* The answers of an S3 store, which are XML: read by libexpat, told leaf by leaf.  No document
 * type is accepted, depth and lengths are bounded.  Any thread. */
#ifndef COMMON_NET_S3_XML_H
#define COMMON_NET_S3_XML_H

#include "common/base/base.h"

#define S3_XML_DEPTH 8
#define S3_XML_TEXT_MAX 2048 /* of a leaf, with the terminator */

/* A leaf with its text, and each element that has others at its end, with text NULL.  parent: ""
 * of the root.  Non-zero ends the reading. */
typedef int s3_xml_fn(void *arg, const char *parent, const char *name, const char *text);

/* 0, what fn returned, or -ERR_FORMAT: no XML, a document type, too deep, too long a text. */
int s3_xml_read(const char *data, size_t len, s3_xml_fn *fn, void *arg);

/* The text of the first leaf of this name, wherever it is; false: there is none, or it is longer
 * than cap allows. */
bool s3_xml_find(const char *data, size_t len, const char *name, char *ret, size_t cap);

#endif
