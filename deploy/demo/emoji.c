/* Draws every emoji of the installed font into a folder of class folders:
 *
 *     emoji-dataset OUT [SIZE]
 *
 * writes OUT/<group>/<code points>.png (SIZE x SIZE on white, 64 by default)
 * and beside each a .txt with its name: about 3,600 labelled, captioned images
 * from two Debian packages (fonts-noto-color-emoji, unicode-data), no download.
 * Sequences that the font cannot draw as one glyph are left out. */
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <vips/vips.h>

#define EMOJI_TEST "/usr/share/unicode/emoji/emoji-test.txt"
#define FONT_FILE "/usr/share/fonts/truetype/noto/NotoColorEmoji.ttf"

/* A folder name out of a group's name: "Smileys & Emotion" -> "smileys-emotion". */
static void slug(const char *name, char *out, size_t cap)
{
    size_t n = 0;
    for (; *name && n + 1 < cap; name++) {
        if (isalnum((unsigned char)*name))
            out[n++] = (char)tolower((unsigned char)*name);
        else if (n && out[n - 1] != '-')
            out[n++] = '-';
    }
    while (n && out[n - 1] == '-')
        n--;
    out[n] = '\0';
}

/* Draws `text` and fits it into size x size on white; NULL when the font has
 * no single glyph for it (the picture then comes out wider than tall). */
static VipsImage *draw(const char *text, int size)
{
    VipsImage *drawn = NULL, *fit = NULL, *square = NULL, *flat = NULL;
    VipsArrayDouble *white = vips_array_double_newv(3, 255.0, 255.0, 255.0);

    if (vips_text(&drawn, text, "font", "Noto Color Emoji 72", "fontfile", FONT_FILE, "rgba", TRUE,
                  NULL) == 0 &&
        drawn->Xsize <= drawn->Ysize * 5 / 3 &&
        vips_thumbnail_image(drawn, &fit, size - 2, "height", size - 2, NULL) == 0 &&
        vips_gravity(fit, &square, VIPS_COMPASS_DIRECTION_CENTRE, size, size, NULL) == 0)
        (void)vips_flatten(square, &flat, "background", white, NULL);
    vips_error_clear();
    vips_area_unref(VIPS_AREA(white));
    if (drawn)
        g_object_unref(drawn);
    if (fit)
        g_object_unref(fit);
    if (square)
        g_object_unref(square);
    return flat;
}

/* Turns "1F468 200D 1F680" into UTF-8 text and into a file stem. */
static int code_points(const char *hex, char *text, size_t text_cap, char *stem, size_t stem_cap)
{
    size_t n = 0, m = 0;
    text[0] = stem[0] = '\0';
    while (*hex && *hex != ';') {
        char *end;
        unsigned long cp = strtoul(hex, &end, 16);
        if (end == hex)
            break;
        gchar utf8[6];
        int len = g_unichar_to_utf8((gunichar)cp, utf8);
        if (n + (size_t)len + 1 > text_cap || m + 8 > stem_cap)
            return -1;
        memcpy(text + n, utf8, (size_t)len);
        n += (size_t)len;
        text[n] = '\0';
        m += (size_t)snprintf(stem + m, stem_cap - m, "%s%lx", m ? "-" : "", cp);
        for (hex = end; *hex == ' '; hex++)
            ;
    }
    return n ? 0 : -1;
}

static int write_pair(VipsImage *image, const char *dir, const char *stem, const char *name)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/%s.png", dir, stem);
    if (vips_pngsave(image, path, "strip", TRUE, NULL)) {
        fprintf(stderr, "emoji-dataset: cannot write %s: %s", path, vips_error_buffer());
        return -1;
    }
    snprintf(path, sizeof path, "%s/%s.txt", dir, stem);
    FILE *f = fopen(path, "w");
    if (!f || fprintf(f, "%s\n", name) < 0 || fclose(f) != 0) {
        fprintf(stderr, "emoji-dataset: cannot write %s: %s\n", path, strerror(errno));
        return -1;
    }
    return 0;
}

static int draw_all(FILE *list, const char *out, int size)
{
    char line[512], dir[900] = "";
    int drawn = 0;

    while (fgets(line, sizeof line, list)) {
        char text[128], stem[128], group[128];
        line[strcspn(line, "\n")] = '\0';
        if (strncmp(line, "# group: ", 9) == 0) {
            slug(line + 9, group, sizeof group);
            snprintf(dir, sizeof dir, "%s/%s", out, group);
            continue;
        }
        if (line[0] == '#' || !strstr(line, "; fully-qualified"))
            continue;
        const char *name = strstr(line, " E"); /* "# <emoji> E1.0 <name>" */
        name = name ? strchr(name + 1, ' ') : NULL;
        if (!name || code_points(line, text, sizeof text, stem, sizeof stem))
            continue;
        VipsImage *image = draw(text, size);
        if (!image)
            continue;
        mkdir(dir, 0777);
        int rc = write_pair(image, dir, stem, name + 1);
        g_object_unref(image);
        if (rc)
            return -1;
        if (++drawn % 200 == 0) {
            printf("\rdrawing emoji: %d", drawn);
            fflush(stdout);
        }
    }
    printf("\rdrew %d emoji into %s\n", drawn, out);
    return drawn ? 0 : -1;
}

int main(int argc, char **argv)
{
    int size = argc > 2 ? atoi(argv[2]) : 64;
    if (argc < 2 || argc > 3 || size < 8 || size > 128) {
        fprintf(stderr, "usage: emoji-dataset OUT [SIZE between 8 and 128]\n");
        return 2;
    }
    if (mkdir(argv[1], 0777) && errno != EEXIST) {
        fprintf(stderr, "emoji-dataset: cannot make %s: %s\n", argv[1], strerror(errno));
        return 1;
    }
    FILE *list = fopen(EMOJI_TEST, "r");
    if (!list) {
        fprintf(stderr, "emoji-dataset: cannot open %s: %s; install the package unicode-data\n",
                EMOJI_TEST, strerror(errno));
        return 1;
    }
    if (VIPS_INIT(argv[0]))
        vips_error_exit(NULL);
    vips_cache_set_max(0);
    int rc = draw_all(list, argv[1], size);
    fclose(list);
    vips_shutdown();
    return rc ? 1 : 0;
}
