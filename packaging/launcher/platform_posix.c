/* The launcher's system calls on Linux and macOS. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef __APPLE__
#include <mach-o/dyld.h>
#endif

#include "platform.h"

#define APP "inference-appliance"

int platform_self(char *path) {
#ifdef __APPLE__
    char raw[MAX_PATH_BYTES];
    uint32_t size = sizeof raw;
    return _NSGetExecutablePath(raw, &size) || !realpath(raw, path) ? -1 : 0;
#else
    ssize_t length = readlink("/proc/self/exe", path, MAX_PATH_BYTES - 1);
    if (length < 0) return -1;
    path[length] = 0;
    return 0;
#endif
}

static const char *home(void) {
    const char *named = getenv("HOME");
    if (named && *named == '/') return named;
    const struct passwd *account = getpwuid(geteuid());
    return account && account->pw_dir && *account->pw_dir == '/' ? account->pw_dir : NULL;
}

int platform_cache_folder(int n, char *path) {
    const char *cache = getenv("XDG_CACHE_HOME"), *own = home();
    int length = -1;
    if (n == 0 && cache && *cache == '/')
        length = snprintf(path, MAX_PATH_BYTES / 2, "%s/" APP "/app", cache);
    else if (n <= 1 && own)
#ifdef __APPLE__
        length = snprintf(path, MAX_PATH_BYTES / 2, "%s/Library/Caches/" APP "/app", own);
#else
        length = snprintf(path, MAX_PATH_BYTES / 2, "%s/.cache/" APP "/app", own);
#endif
    else if (n <= 2) /* a user without a home; /var/tmp survives a restart */
        length = snprintf(path, MAX_PATH_BYTES / 2, "%s/" APP "-%u", n == 2 ? "/tmp" : "/var/tmp", geteuid());
    else if (n == 3)
        length = snprintf(path, MAX_PATH_BYTES / 2, "/tmp/" APP "-%u", geteuid());
    return length > 0 && length < MAX_PATH_BYTES / 2 ? 0 : -1;
}

int platform_make_folder(const char *path) { return mkdir(path, 0700); }

int platform_is_folder(const char *path) {
    struct stat status;
    return !stat(path, &status) && S_ISDIR(status.st_mode);
}

static uint64_t tree_bytes;

static int add_size(const char *path, const struct stat *status, int kind, struct FTW *place) {
    (void)path, (void)place;
    if (kind == FTW_F && S_ISREG(status->st_mode)) tree_bytes += (uint64_t)status->st_size;
    return 0;
}

uint64_t platform_tree_bytes(const char *path) {
    tree_bytes = 0;
    nftw(path, add_size, 16, FTW_PHYS);
    return tree_bytes;
}

int platform_make_folders(const char *path) {
    char part[MAX_PATH_BYTES];
    snprintf(part, sizeof part, "%s", path);
    for (char *slash = strchr(part + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        if (mkdir(part, 0700) && errno != EEXIST && !platform_is_folder(part)) return -1;
        *slash = '/';
    }
    if (mkdir(part, 0700) && errno != EEXIST) return platform_is_folder(part) ? 0 : -1;
    if (platform_is_folder(part)) return 0;
    errno = ENOTDIR;
    return -1;
}

int platform_is_private(const char *path) {
    struct stat status;
    if (lstat(path, &status)) return 0;
    int is_private = S_ISDIR(status.st_mode) && status.st_uid == geteuid() && !(status.st_mode & 022);
    if (!is_private) errno = EPERM;
    return is_private;
}

uint64_t platform_free_bytes(const char *folder) {
    struct statvfs status;
    return statvfs(folder, &status) ? UINT64_MAX : (uint64_t)status.f_bavail * status.f_frsize;
}

FILE *platform_create(const char *path, int is_executable) {
    int file = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, is_executable ? 0755 : 0644);
    return file < 0 ? NULL : fdopen(file, "wb");
}

FILE *platform_open(const char *path) { return fopen(path, "rbe"); }

int platform_link(const char *target, const char *path) { return symlink(target, path); }

void platform_sync(const char *folder) {
    int file = open(folder, O_RDONLY | O_CLOEXEC);
#ifdef __linux__
    if (file >= 0) syncfs(file);
#else
    sync();
#endif
    if (file >= 0) close(file);
}

int platform_rename(const char *from, const char *to) { return rename(from, to); }

static int remove_one(const char *path, const struct stat *status, int kind, struct FTW *place) {
    (void)status, (void)kind, (void)place;
    return remove(path);
}

void platform_remove_tree(const char *path) { nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS); }

long platform_lock(const char *path, enum lock_kind kind, int waits) {
    /* Not closed on exec: the appliance keeps the shared lock for as long as it runs. */
    int file = open(path, O_RDWR | O_CREAT, 0600);
    if (file < 0) return -2;
    int operation = (kind == LOCK_SHARED ? LOCK_SH : LOCK_EX) | (waits ? 0 : LOCK_NB);
    int result;
    do result = flock(file, operation);
    while (result && errno == EINTR);
    if (!result) {
        /* Whoever held it may have removed the file: then this lock guards nothing. */
        struct stat held, named;
        if (!fstat(file, &held) && !stat(path, &named) && held.st_ino == named.st_ino) return file;
        close(file);
        return waits ? platform_lock(path, kind, waits) : -1;
    }
    close(file);
    return -1;
}

int platform_relock(long handle, enum lock_kind kind) {
    return flock((int)handle, kind == LOCK_SHARED ? LOCK_SH : LOCK_EX);
}

void platform_unlock(long handle) { close((int)handle); }

void platform_list(const char *folder, void (*visit)(const char *, void *), void *context) {
    DIR *listing = opendir(folder);
    if (!listing) return;
    for (struct dirent *entry = readdir(listing); entry; entry = readdir(listing)) visit(entry->d_name, context);
    closedir(listing);
}

int platform_run(const char *program, char **arguments, const char *executable) {
    if (setenv("APPLIANCE_EXECUTABLE", executable, 1)) return -1;
    execv(program, arguments);
    return -1;
}

int platform_has_terminal(void) { return isatty(STDERR_FILENO); }

void platform_show_error(const char *text) {
    if (!getenv("DISPLAY") && !getenv("WAYLAND_DISPLAY")) return;
    const char *const programs[][5] = {
        {"zenity", "--error", "--no-markup", "--text", text},
        {"kdialog", "--error", text},
        {"xmessage", "-center", text},
        {"notify-send", "Inference Appliance", text},
    };
    for (size_t i = 0; i < sizeof programs / sizeof *programs; i++) {
        char *command[6] = {0};
        for (int j = 0; j < 5; j++) command[j] = (char *)programs[i][j];
        pid_t child = fork();
        if (!child) {
            execvp(command[0], command);
            _exit(127);
        }
        int status = 0;
        if (child > 0 && waitpid(child, &status, 0) == child && !(WIFEXITED(status) && WEXITSTATUS(status) == 127))
            return;
    }
}

const char *platform_last_error(void) { return strerror(errno); }
