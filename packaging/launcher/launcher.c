/* The executable's own program: unpacks the appliance once into the cache folder, then becomes it.
 *
 *   <cache>/app/<id>          the unpacked tree; it appears whole, by a rename
 *   <cache>/app/<id>.partial  being unpacked; a leftover is removed by whoever holds the lock
 *   <cache>/app/<id>.lock     shared while the version runs, exclusive while it is unpacked or removed
 *
 * Knows nothing of models or servers; takes one option of its own, --unpack-to. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bundle.h"
#include "platform.h"

#define ID_CHARS 16
#define EXIT_CANNOT_UNPACK 9 /* as the appliance's own "folder not writable" */
#define EXIT_DAMAGED 5
#define SPARE_BYTES (16u << 20)
#ifdef _WIN32
#define PROGRAM "appliance.exe"
#else
#define PROGRAM "appliance"
#endif

static char text[2 * MAX_PATH_BYTES];

static int refuse(int exit_code, const char *format, ...) {
    va_list values;
    va_start(values, format);
    vsnprintf(text, sizeof text, format, values);
    va_end(values);
    fprintf(stderr, "appliance: %s\n", text);
    if (!platform_has_terminal()) platform_show_error(text);
    return exit_code;
}

static void show_progress(uint64_t done_bytes, uint64_t total_bytes) {
    static int shown = -1;
    int percent = total_bytes ? (int)(done_bytes * 100 / total_bytes) : 0;
    if (percent == shown || !platform_has_terminal()) return;
    shown = percent;
    fprintf(stderr, percent < 100 ? "\rUnpacking, the first time only: %d%%" : "\r\033[K", percent);
}

struct sweep {
    const char *folder, *own_id;
};

/* Removes another version unless it is running: then its lock is held. */
static void sweep_name(const char *name, void *context) {
    const struct sweep *sweep = context;
    char id[ID_CHARS + 1], lock_path[MAX_PATH_BYTES], path[MAX_PATH_BYTES], doomed[MAX_PATH_BYTES];
    size_t length = strspn(name, "0123456789abcdef");
    int is_ours = length == ID_CHARS && (!name[ID_CHARS] || !strcmp(name + ID_CHARS, ".partial") ||
                                         !strcmp(name + ID_CHARS, ".lock"));
    if (!is_ours || !strncmp(name, sweep->own_id, ID_CHARS)) return;
    snprintf(id, sizeof id, "%s", name);
    snprintf(lock_path, sizeof lock_path, "%s/%s.lock", sweep->folder, id);
    long lock = platform_lock(lock_path, LOCK_EXCLUSIVE, 0);
    if (lock < 0) return;
    snprintf(path, sizeof path, "%s/%s", sweep->folder, id);
    snprintf(doomed, sizeof doomed, "%s/%s.partial", sweep->folder, id);
    platform_remove_tree(doomed);
    /* Renamed first: whatever happens while it is deleted, a half version never has a whole one's name. */
    if (!platform_rename(path, doomed)) platform_remove_tree(doomed);
    remove(lock_path);
    platform_unlock(lock);
}

/* Unpacks into `folder`/<id>. The caller holds the lock. Returns an exit code. */
static int unpack(FILE *file, const struct bundle *bundle, const char *folder, const char *id, const char *tree) {
    char partial[MAX_PATH_BYTES];
    snprintf(partial, sizeof partial, "%s/%s.partial", folder, id);
    platform_remove_tree(partial);
    if (!platform_rename(tree, partial)) platform_remove_tree(partial); /* what a cleaner left of it */
    uint64_t needed = bundle->unpacked_bytes + SPARE_BYTES, available = platform_free_bytes(folder);
    if (available < needed)
        return refuse(EXIT_CANNOT_UNPACK,
                      "unpacking needs %llu MB in %s and %llu MB are free; free some, or name another folder "
                      "with --unpack-to",
                      (unsigned long long)(needed >> 20), folder, (unsigned long long)(available >> 20));
    if (platform_make_folder(partial))
        return refuse(EXIT_CANNOT_UNPACK, "cannot create %s: %s; name another folder with --unpack-to", partial,
                      platform_last_error());
    const char *problem = bundle_unpack(file, bundle, partial, show_progress);
    if (problem) {
        char copy[MAX_PATH_BYTES];
        snprintf(copy, sizeof copy, "%s", problem);
        platform_remove_tree(partial);
        return refuse(strstr(copy, "damaged") ? EXIT_DAMAGED : EXIT_CANNOT_UNPACK, "%s", copy);
    }
    platform_sync(partial);
    if (platform_rename(partial, tree))
        return refuse(EXIT_CANNOT_UNPACK, "cannot rename %s: %s", partial, platform_last_error());
    struct sweep sweep = {folder, id};
    platform_list(folder, sweep_name, &sweep);
    return 0;
}

/* The place to unpack into: the one named, else the first that can be made. 0 or an exit code. */
static int choose_folder(const char *named, char *folder) {
    if (named) {
        if (snprintf(folder, MAX_PATH_BYTES, "%s", named) >= MAX_PATH_BYTES / 2)
            return refuse(EXIT_CANNOT_UNPACK, "the path after --unpack-to is too long");
        if (!platform_make_folders(folder)) return 0;
        return refuse(EXIT_CANNOT_UNPACK, "cannot create %s: %s; name another folder with --unpack-to", folder,
                      platform_last_error());
    }
    char tried[MAX_PATH_BYTES] = "";
    for (int n = 0; !platform_cache_folder(n, folder); n++) {
        if (!platform_make_folders(folder) && platform_is_private(folder)) return 0;
        size_t used = strlen(tried);
        snprintf(tried + used, sizeof tried - used, "%s%s (%s)", used ? ", " : "", folder, platform_last_error());
    }
    return refuse(EXIT_CANNOT_UNPACK, "there is no folder to unpack into; tried %s; name one with --unpack-to", tried);
}

/* Locks the version: shared where its tree is whole, exclusive to unpack it. Of a tree with files missing too,
 * unless it is running: then that program waits for nobody, and the next start repairs it. */
static long lock_version(const char *lock_path, const char *tree, int *is_whole) {
    int is_damaged = !*is_whole && platform_is_folder(tree);
    if (!is_damaged) return platform_lock(lock_path, *is_whole ? LOCK_SHARED : LOCK_EXCLUSIVE, 1);
    long lock = platform_lock(lock_path, LOCK_EXCLUSIVE, 0);
    if (lock != -1) return lock;
    *is_whole = 1;
    return platform_lock(lock_path, LOCK_SHARED, 1);
}

/* Makes sure that the tree is there and stays while this process lives. 0 or an exit code. */
static int ensure_tree(FILE *file, const struct bundle *bundle, const char *folder, char *tree) {
    char id[ID_CHARS + 1], lock_path[MAX_PATH_BYTES];
    snprintf(id, sizeof id, "%.*s", ID_CHARS, bundle->id);
    if (snprintf(tree, MAX_PATH_BYTES, "%s/%s", folder, id) >= MAX_PATH_BYTES - 64)
        return refuse(EXIT_CANNOT_UNPACK, "the path %s is too long", folder);
    snprintf(lock_path, sizeof lock_path, "%s/%s.lock", folder, id);
    for (;;) {
        /* Cleaners of caches delete single files. */
        int is_whole = platform_tree_bytes(tree) >= bundle->unpacked_bytes;
        long lock = lock_version(lock_path, tree, &is_whole);
        if (lock < 0 && is_whole) return 0; /* a read-only folder that somebody has filled */
        if (lock < 0)
            return refuse(EXIT_CANNOT_UNPACK, "cannot write in %s: %s; name another folder with --unpack-to", folder,
                          platform_last_error());
        if (is_whole && platform_is_folder(tree)) return 0;
        /* While this process waited, another may have unpacked it, or removed it. */
        if (!is_whole && platform_tree_bytes(tree) < bundle->unpacked_bytes) {
            int exit_code = unpack(file, bundle, folder, id, tree);
            if (exit_code) return exit_code;
        }
        if (!is_whole && !platform_relock(lock, LOCK_SHARED) && platform_is_folder(tree)) return 0;
        platform_unlock(lock);
    }
}

/* Takes --unpack-to out of the arguments. Returns its value, the environment's, or NULL. */
static const char *take_unpack_to(int *num_arguments, char **arguments) {
    static const char flag[] = "--unpack-to";
    const char *value = getenv("APPLIANCE_UNPACK_TO");
    int kept = 1;
    for (int i = 1; i < *num_arguments; i++) {
        if (!strncmp(arguments[i], flag, sizeof flag - 1) && arguments[i][sizeof flag - 1] == '=')
            value = arguments[i] + sizeof flag;
        else if (!strcmp(arguments[i], flag) && i + 1 < *num_arguments)
            value = arguments[++i];
        else
            arguments[kept++] = arguments[i];
    }
    arguments[kept] = NULL;
    *num_arguments = kept;
    return value && *value ? value : NULL;
}

int main(int num_arguments, char **arguments) {
    char self[MAX_PATH_BYTES], folder[MAX_PATH_BYTES], tree[MAX_PATH_BYTES], program[MAX_PATH_BYTES + 16];
    struct bundle bundle;
    FILE *file = platform_self(self) ? NULL : platform_open(self);
    if (!file) return refuse(EXIT_DAMAGED, "cannot read this program's own file (is /proc mounted?): %s", platform_last_error());
    if (bundle_read(file, &bundle))
        return refuse(EXIT_DAMAGED, "%s is not whole: the download was cut short; download it again", self);
    if (num_arguments == 2 && !strcmp(arguments[1], "--version")) return puts(bundle.version) < 0;
    const char *named = take_unpack_to(&num_arguments, arguments);
    int exit_code = choose_folder(named, folder);
    if (!exit_code) exit_code = ensure_tree(file, &bundle, folder, tree);
    if (exit_code) return exit_code;
    fclose(file);
    snprintf(program, sizeof program, "%s/%s", tree, PROGRAM);
    arguments[0] = program;
    exit_code = platform_run(program, arguments, self);
    if (exit_code >= 0) return exit_code;
    if (errno == EACCES || errno == EPERM)
        return refuse(EXIT_CANNOT_UNPACK,
                      "the system does not let programs run from %s (mounted noexec?); name another folder with "
                      "--unpack-to",
                      folder);
    return refuse(EXIT_CANNOT_UNPACK, "cannot start %s: %s", program, platform_last_error());
}
