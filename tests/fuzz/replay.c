/* Runs a fuzz target over files: `replay FILE-OR-FOLDER...`; for builds without libFuzzer. */
#include "base/file.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

static int replay_file(const char *path) {
    char *data;
    size_t n_bytes;
    if (file_read(path, (size_t)64 << 20, &data, &n_bytes) != ATS_OK) {
        fprintf(stderr, "%s\n", error_text());
        return 0;
    }
    LLVMFuzzerTestOneInput((const uint8_t *)data, n_bytes);
    free(data);
    return 1;
}

static int replay(const char *path) {
    DIR *dir = opendir(path);
    if (!dir) return replay_file(path);
    int n = 0;
    for (struct dirent *entry; (entry = readdir(dir));) {
        char file[4096];
        if (entry->d_name[0] == '.') continue;
        if ((size_t)snprintf(file, sizeof file, "%s/%s", path, entry->d_name) < sizeof file)
            n += replay_file(file);
    }
    closedir(dir);
    return n;
}

int main(int argc, char **argv) {
    int n = 0;
    for (int i = 1; i < argc; i++)
        n += replay(argv[i]);
    printf("%d inputs\n", n);
    return n > 0 ? 0 : 1;
}
