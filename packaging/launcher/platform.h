/* What differs between systems. Paths are UTF-8 everywhere. */
#ifndef PLATFORM_H
#define PLATFORM_H

#include <stdint.h>
#include <stdio.h>

#define MAX_PATH_BYTES 4096

/* The absolute path of the running executable. 0 or -1. */
int platform_self(char *path);

/* The n-th place to unpack into, best first, created by nobody yet. -1 where there are no more. */
int platform_cache_folder(int n, char *path);

/* Makes a folder and its parents, for this user alone. `is_shared_parent`: also proves that nobody else
 * owns it. 0 or -1 with errno. */
int platform_make_folders(const char *path);
int platform_make_folder(const char *path);
int platform_is_folder(const char *path);
/* The sizes of all files below a folder, links left out; 0 where it is not there. */
uint64_t platform_tree_bytes(const char *path);
/* Whether a folder is ours alone: no link, our own, writable by nobody else. */
int platform_is_private(const char *path);
uint64_t platform_free_bytes(const char *folder);

/* Creates a file of the payload for writing; `is_executable` gives it the right to run. */
FILE *platform_create(const char *path, int is_executable);
FILE *platform_open(const char *path);
int platform_link(const char *target, const char *path);

/* Puts everything written below `folder` onto the disk. */
void platform_sync(const char *folder);
int platform_rename(const char *from, const char *to);
void platform_remove_tree(const char *path);

/* A lock that goes with the process, however that ends, and that the started program keeps.
 * Returns a handle, -1 where it is held by others (only without `waits`), -2 where it can't be made. */
enum lock_kind { LOCK_SHARED, LOCK_EXCLUSIVE };
long platform_lock(const char *path, enum lock_kind kind, int waits);
int platform_relock(long handle, enum lock_kind kind);
void platform_unlock(long handle);

/* Calls `visit` with each name in a folder. */
void platform_list(const char *folder, void (*visit)(const char *name, void *context), void *context);

/* Becomes the program, or starts it and returns its exit code. -1 with errno where it cannot start. */
int platform_run(const char *program, char **arguments, const char *executable);

int platform_has_terminal(void);
/* Shows an error where a person without a terminal sees it. */
void platform_show_error(const char *text);
const char *platform_last_error(void);

#endif
