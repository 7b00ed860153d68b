/* Reads the XML answers of an S3 store by libexpat, leaf by leaf.  Document types are refused;
 * depth and lengths are bounded.  Any thread. */
#ifndef COMMON_NET_S3_XML_H
#define COMMON_NET_S3_XML_H

#include "common/base/base.h"

#define S3_XML_DEPTH 8
#define S3_XML_TEXT_MAX 2048 /* of a leaf, with the terminator */

/* Called for each leaf with its text, and at the end of each element that has children with text
 * NULL.  parent: "" for the root.  Non-zero ends the reading. */
typedef int s3_xml_fn(void *arg, const char *parent, const char *name, const char *text);

/* 0, fn's result, or -ERR_FORMAT: no XML, a document type, too deep, or too long a text. */
int s3_xml_read(const char *data, size_t len, s3_xml_fn *fn, void *arg);

/* The text of the first leaf of this name at any depth; false: there is none, or it exceeds cap. */
bool s3_xml_find(const char *data, size_t len, const char *name, char *ret, size_t cap);

#endif
