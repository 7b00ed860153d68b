/* Shared by all users of libcurl: trust, headers, and errors as sentences. */
#ifndef COMMON_NET_HTTP_CURL_H
#define COMMON_NET_HTTP_CURL_H

#include <curl/curl.h>

#include "common/base/base.h"

#define HTTP_CURL_USER_TIMEOUT_MS 20000 /* bytes unacknowledged for longer end a connection */

/* Sets the options common to all requests; pin NULL: trusts the system's authorities. */
void http_curl_tls(CURL *easy, const char *url, const uint8_t *pin);
/* A SHA-256 as base64 with its padding. */
void http_curl_base64(const uint8_t in[32], char out[45]);
/* Initialises libcurl, once per process. */
void http_curl_init(void);
/* "Authorization: Bearer ..." and "Expect:" appended; may return NULL. */
struct curl_slist *http_curl_headers(struct curl_slist *list, const char *bearer);
/* A CURLOPT_WRITEFUNCTION that appends to a struct buf; beyond its maximum the request ends. */
size_t http_curl_collect(char *data, size_t one, size_t len, void *buf);
/* Code and sentence for an HTTP status of 300 or more; body may be our JSON error. */
int http_curl_status_error(long status, const char *body, const char *url, struct err *err);
/* The same for libcurl's own failures. */
int http_curl_error(CURLcode rc, const char *text, const char *url, struct err *err);
/* Whether trying again may help. */
bool http_curl_is_retryable(int code);

#endif
