/* Answers of an object store, and of a metadata service, as anybody may send them. */
#include "common/base/err.h"
#include "common/base/mem.h"
#include "common/net/s3/answer.h"
#include "common/net/s3/credentials.h"
#include "common/net/s3/xml.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

static int look(void *arg, const char *parent, const char *name, const char *text)
{
    if (text && strlen(text) >= S3_XML_TEXT_MAX)
        abort();
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    struct s3_credentials c;
    struct err err;
    char *text = mem_alloc(len + 1);
    memcpy(text, data, len);
    const struct s3_answer a = {.bucket = "b",
                                .endpoint = "e",
                                .region = "r",
                                .status = 403,
                                .body = text,
                                .len = len,
                                .its_region = "",
                                .date_s = s3_answer_date(text)};
    (void)s3_xml_read(text, len, look, NULL);
    if (s3_answer_error(&a, &err) == 0)
        abort();
    (void)s3_credentials_parse(text, &c, &err);
    mem_free(text);
    return 0;
}
