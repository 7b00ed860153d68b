/* Counts files in a dataset that are left out. */
#include <strings.h>

#include "common/base/base.h"
#include "common/data/dataset_impl.h"

static const char *const endings[DATASET_LEFT_KINDS] = {
    ".gif", ".bmp", ".tif", ".tiff", ".avif", ".heic", ".heif", ".jxl", ".jp2", ".svg", ".psd",
};

bool dataset_left_note(struct dataset_left *left, const char *name)
{
    const char *dot = strrchr(name, '.');
    for (size_t i = 0; dot && i < DATASET_LEFT_KINDS; i++) {
        if (strcasecmp(dot, endings[i]) == 0) {
            left->files[i]++;
            return true;
        }
    }
    return false;
}

void dataset_left_add(struct dataset_left *left, const struct dataset_left *more)
{
    for (size_t i = 0; i < DATASET_LEFT_KINDS; i++)
        left->files[i] += more->files[i];
    left->folders += more->folders;
    left->beside += more->beside;
    left->beside_tars += more->beside_tars;
    left->others += more->others;
}

/* "3 .gif files" */
static void count(FILE *out, uint64_t n, const char *what, const char *where, bool *any)
{
    if (n > 0)
        (void)fprintf(out, "%s%" PRIu64 " %s%s%s", *any ? ", " : "", n, what, n == 1 ? "" : "s",
                      where);
    *any = *any || n > 0;
}

char *dataset_left_say(const struct dataset_left *left)
{
    char *text = NULL;
    size_t len = 0;
    bool any = false;
    FILE *out = open_memstream(&text, &len);
    if (!out)
        return NULL;
    for (size_t i = 0; i < DATASET_LEFT_KINDS; i++) {
        char what[16];
        (void)snprintf(what, sizeof(what), "%s file", endings[i]);
        count(out, left->files[i], what, "", &any);
    }
    count(out, left->folders, "folder", " inside class folders", &any);
    count(out, left->beside, "image", " beside the class folders", &any);
    count(out, left->beside_tars, "folder", " beside the tars", &any);
    count(out, left->others, "name", " of other kinds", &any);
    (void)fclose(out);
    char *said = any ? str_dup(text) : NULL;
    free(text);
    return said;
}

const char *dataset_left_beside(const struct dataset_left *left, char ret[DATASET_BESIDE_MAX])
{
    ret[0] = '\0';
    if (left->beside > 0)
        (void)snprintf(ret, DATASET_BESIDE_MAX,
                       "; its folders are classes, and what lies beside them is left out (%" PRIu64
                       " image%s): move the folders away to have that instead",
                       left->beside, str_plural(left->beside));
    return ret;
}
