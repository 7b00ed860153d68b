/* The folder of a model with captions, as `skerry export` and model.warm_start have it, for
 * comparison with diffusers (tests/latents/test_pixart.py):
 *
 *    pixart_folder write|check JOB.yaml CHANNELS SIDE CAPTION TOKENS DIR
 *
 * write: DIR/config.json; check: does the job start from DIR? */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/show/artifacts.h"
#include "cli/base/model_folder.h"
#include "common/base/buf.h"
#include "common/base/file.h"

static int write_config(const char *yaml, char **argv, struct err *err)
{
    json_t *job = json_pack("{s:s,s:i,s:{s:i,s:i,s:i,s:i}}", "spec", yaml, "round", 1, "input",
                            "channels", atoi(argv[3]), "side", atoi(argv[4]), "caption",
                            atoi(argv[5]), "caption_tokens", atoi(argv[6]));
    int rc = artifacts_files(NULL, job, argv[7], false, err);
    json_decref(job);
    return rc;
}

static int check(const char *yaml, char **argv, struct err *err)
{
    const struct model_folder_facts facts = {
        .channels = (uint32_t)atoi(argv[3]),
        .side = (uint32_t)atoi(argv[4]),
        .caption = (uint32_t)atoi(argv[5]),
        .caption_tokens = (uint32_t)atoi(argv[6]),
    };
    struct job_spec spec;
    int rc = job_parse(yaml, strlen(yaml), argv[2], &spec, err);
    if (rc == 0)
        rc = model_folder_check(argv[7], &spec, &facts, err);
    job_release(&spec);
    return rc;
}

int main(int argc, char **argv)
{
    struct err err = {0};
    struct buf yaml = {0};
    if (argc != 8) {
        (void)fprintf(stderr, "usage: pixart_folder write|check JOB.yaml CHANNELS SIDE CAPTION "
                              "TOKENS DIR\n");
        return 2;
    }
    int rc = file_read(argv[2], JOB_SPEC_MAX, &yaml, &err);
    if (rc == 0)
        rc = strcmp(argv[1], "write") == 0 ? write_config(buf_str(&yaml), argv, &err)
                                           : check(buf_str(&yaml), argv, &err);
    buf_release(&yaml);
    if (rc < 0)
        (void)fprintf(stderr, "pixart_folder: %s\n", err.msg);
    return rc < 0;
}
