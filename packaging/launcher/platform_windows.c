/* The launcher's system calls on Windows. Paths are UTF-8 here and UTF-16 for the system. */
#define WIN32_LEAN_AND_MEAN
#define UNICODE
#include <windows.h>
#include <direct.h>
#include <errno.h>
#include <io.h>
#include <stdlib.h>
#include <string.h>
#include <wchar.h>

#include "platform.h"

#define APP "inference-appliance"
#define MAX_LOCKS 8

static int widen(const char *text, wchar_t *wide) {
    return MultiByteToWideChar(CP_UTF8, 0, text, -1, wide, MAX_PATH_BYTES) ? 0 : -1;
}

static int narrow(const wchar_t *wide, char *text) {
    return WideCharToMultiByte(CP_UTF8, 0, wide, -1, text, MAX_PATH_BYTES, NULL, NULL) ? 0 : -1;
}

static int environment(const wchar_t *name, char *text) {
    wchar_t wide[MAX_PATH_BYTES];
    DWORD length = GetEnvironmentVariableW(name, wide, MAX_PATH_BYTES);
    return length && length < MAX_PATH_BYTES ? narrow(wide, text) : -1;
}

int platform_self(char *path) {
    wchar_t wide[MAX_PATH_BYTES];
    DWORD length = GetModuleFileNameW(NULL, wide, MAX_PATH_BYTES);
    return length && length < MAX_PATH_BYTES ? narrow(wide, path) : -1;
}

int platform_cache_folder(int n, char *path) {
    static const wchar_t *const names[] = {L"LOCALAPPDATA", L"TEMP"};
    char base[MAX_PATH_BYTES];
    for (; n < 2; n++)
        if (!environment(names[n], base))
            return snprintf(path, MAX_PATH_BYTES / 2, "%s/" APP "/Cache/app", base) < MAX_PATH_BYTES / 2 ? 0 : -1;
    return -1;
}

int platform_make_folder(const char *path) {
    wchar_t wide[MAX_PATH_BYTES];
    return widen(path, wide) ? -1 : _wmkdir(wide);
}

int platform_is_folder(const char *path) {
    wchar_t wide[MAX_PATH_BYTES];
    if (widen(path, wide)) return 0;
    DWORD attributes = GetFileAttributesW(wide);
    return attributes != INVALID_FILE_ATTRIBUTES && (attributes & FILE_ATTRIBUTE_DIRECTORY);
}

int platform_make_folders(const char *path) {
    char part[MAX_PATH_BYTES];
    snprintf(part, sizeof part, "%s", path);
    for (char *at = part + 1; *at; at++) {
        if ((*at != '/' && *at != '\\') || at[-1] == ':') continue;
        *at = 0;
        platform_make_folder(part);
        *at = '/';
    }
    if (platform_make_folder(part) && !platform_is_folder(part)) return -1;
    return 0;
}

/* Folders below the user's own are closed to others by what they inherit. */
int platform_is_private(const char *path) { return platform_is_folder(path); }

uint64_t platform_free_bytes(const char *folder) {
    wchar_t wide[MAX_PATH_BYTES];
    ULARGE_INTEGER available;
    return widen(folder, wide) || !GetDiskFreeSpaceExW(wide, &available, NULL, NULL) ? UINT64_MAX
                                                                                     : available.QuadPart;
}

FILE *platform_create(const char *path, int is_executable) {
    wchar_t wide[MAX_PATH_BYTES];
    (void)is_executable;
    return widen(path, wide) ? NULL : _wfopen(wide, L"wbx");
}

FILE *platform_open(const char *path) {
    wchar_t wide[MAX_PATH_BYTES];
    return widen(path, wide) ? NULL : _wfopen(wide, L"rbN");
}

int platform_link(const char *target, const char *path) {
    (void)target, (void)path;
    errno = ENOSYS; /* the payload of this system holds no links */
    return -1;
}

void platform_sync(const char *folder) { (void)folder; }

int platform_rename(const char *from, const char *to) {
    wchar_t wide_from[MAX_PATH_BYTES], wide_to[MAX_PATH_BYTES];
    if (widen(from, wide_from) || widen(to, wide_to)) return -1;
    /* A virus scanner may still be reading what was just written. */
    for (int tries = 0; tries < 50; tries++, Sleep(100))
        if (MoveFileW(wide_from, wide_to)) return 0;
    return -1;
}

static uint64_t wide_tree_bytes(const wchar_t *path) {
    wchar_t pattern[MAX_PATH_BYTES], child[MAX_PATH_BYTES];
    WIN32_FIND_DATAW entry;
    uint64_t total = 0;
    swprintf(pattern, MAX_PATH_BYTES, L"%ls\\*", path);
    HANDLE search = FindFirstFileW(pattern, &entry);
    if (search == INVALID_HANDLE_VALUE) return 0;
    do {
        if (!wcscmp(entry.cFileName, L".") || !wcscmp(entry.cFileName, L"..")) continue;
        swprintf(child, MAX_PATH_BYTES, L"%ls\\%ls", path, entry.cFileName);
        total += entry.dwFileAttributes & FILE_ATTRIBUTE_DIRECTORY
                     ? wide_tree_bytes(child)
                     : (uint64_t)entry.nFileSizeHigh << 32 | entry.nFileSizeLow;
    } while (FindNextFileW(search, &entry));
    FindClose(search);
    return total;
}

uint64_t platform_tree_bytes(const char *path) {
    wchar_t wide[MAX_PATH_BYTES];
    return widen(path, wide) ? 0 : wide_tree_bytes(wide);
}

static void remove_wide(const wchar_t *path) {
    wchar_t pattern[MAX_PATH_BYTES], child[MAX_PATH_BYTES];
    WIN32_FIND_DATAW entry;
    swprintf(pattern, MAX_PATH_BYTES, L"%ls\\*", path);
    HANDLE search = FindFirstFileW(pattern, &entry);
    if (search != INVALID_HANDLE_VALUE) {
        do {
            if (!wcscmp(entry.cFileName, L".") || !wcscmp(entry.cFileName, L"..")) continue;
            swprintf(child, MAX_PATH_BYTES, L"%ls\\%ls", path, entry.cFileName);
            int is_folder = (entry.dwFileAttributes & FILE_ATTRIBUTE_DIRECTORY) != 0;
            int is_link = (entry.dwFileAttributes & FILE_ATTRIBUTE_REPARSE_POINT) != 0;
            if (is_folder && !is_link)
                remove_wide(child);
            else if (is_folder)
                RemoveDirectoryW(child);
            else
                DeleteFileW(child);
        } while (FindNextFileW(search, &entry));
        FindClose(search);
    }
    RemoveDirectoryW(path);
}

void platform_remove_tree(const char *path) {
    wchar_t wide[MAX_PATH_BYTES];
    if (!widen(path, wide)) remove_wide(wide);
}

static HANDLE locks[MAX_LOCKS];
static int num_locks;

static int lock_handle(HANDLE file, enum lock_kind kind, int waits) {
    OVERLAPPED whole = {0};
    DWORD flags = (kind == LOCK_EXCLUSIVE ? LOCKFILE_EXCLUSIVE_LOCK : 0) | (waits ? 0 : LOCKFILE_FAIL_IMMEDIATELY);
    return LockFileEx(file, flags, 0, 1, 0, &whole) ? 0 : -1;
}

long platform_lock(const char *path, enum lock_kind kind, int waits) {
    wchar_t wide[MAX_PATH_BYTES];
    if (num_locks == MAX_LOCKS || widen(path, wide)) return -2;
    HANDLE file = CreateFileW(wide, GENERIC_READ | GENERIC_WRITE, FILE_SHARE_READ | FILE_SHARE_WRITE, NULL,
                              OPEN_ALWAYS, FILE_ATTRIBUTE_NORMAL, NULL);
    if (file == INVALID_HANDLE_VALUE) return -2;
    if (!lock_handle(file, kind, waits)) {
        locks[num_locks] = file;
        return num_locks++;
    }
    CloseHandle(file);
    return -1;
}

int platform_relock(long handle, enum lock_kind kind) {
    OVERLAPPED whole = {0};
    UnlockFileEx(locks[handle], 0, 1, 0, &whole);
    return lock_handle(locks[handle], kind, 1);
}

void platform_unlock(long handle) {
    CloseHandle(locks[handle]);
    if (handle == num_locks - 1) num_locks--;
}

void platform_list(const char *folder, void (*visit)(const char *, void *), void *context) {
    wchar_t wide[MAX_PATH_BYTES], pattern[MAX_PATH_BYTES];
    char name[MAX_PATH_BYTES];
    WIN32_FIND_DATAW entry;
    if (widen(folder, wide)) return;
    swprintf(pattern, MAX_PATH_BYTES, L"%ls\\*", wide);
    HANDLE search = FindFirstFileW(pattern, &entry);
    if (search == INVALID_HANDLE_VALUE) return;
    do
        if (!narrow(entry.cFileName, name)) visit(name, context);
    while (FindNextFileW(search, &entry));
    FindClose(search);
}

/* The console's own arguments go on unparsed, without --unpack-to, which both sides understand. */
int platform_run(const char *program, char **arguments, const char *executable) {
    wchar_t wide_program[MAX_PATH_BYTES], wide_executable[MAX_PATH_BYTES], *wide_arguments[256];
    int count = 0;
    if (widen(program, wide_program) || widen(executable, wide_executable)) return -1;
    SetEnvironmentVariableW(L"APPLIANCE_EXECUTABLE", wide_executable);
    for (; arguments[count] && count < 255; count++) {
        wchar_t wide[MAX_PATH_BYTES], *quoted = malloc(sizeof wide);
        if (!quoted || widen(arguments[count], wide)) return -1;
        swprintf(quoted, MAX_PATH_BYTES, wcspbrk(wide, L" \t") || !*wide ? L"\"%ls\"" : L"%ls", wide);
        wide_arguments[count] = quoted;
    }
    wide_arguments[count] = NULL;
    intptr_t exit_code = _wspawnv(_P_WAIT, wide_program, (const wchar_t *const *)wide_arguments);
    if (exit_code > 0 && exit_code != 130 && platform_has_terminal()) {
        /* A double-clicked console would close before anybody has read why. */
        DWORD processes[2];
        if (GetConsoleProcessList(processes, 2) == 1) {
            fputs("Press Enter to close this window.", stderr);
            getchar();
        }
    }
    return (int)exit_code;
}

int platform_has_terminal(void) { return _isatty(_fileno(stderr)); }

void platform_show_error(const char *text) {
    wchar_t wide[MAX_PATH_BYTES];
    if (!widen(text, wide)) MessageBoxW(NULL, wide, L"Inference Appliance", MB_ICONERROR | MB_OK);
}

const char *platform_last_error(void) {
    static char text[256];
    DWORD code = GetLastError();
    if (!FormatMessageA(FORMAT_MESSAGE_FROM_SYSTEM | FORMAT_MESSAGE_IGNORE_INSERTS, NULL, code, 0, text, sizeof text, NULL))
        snprintf(text, sizeof text, "error %lu", code);
    return text;
}
