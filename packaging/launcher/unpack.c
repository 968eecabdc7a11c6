/* Reads the executable's trailer and unpacks its payload. Knows tar and zstd; knows no folders of users. */
#include "bundle.h"

#include <stdlib.h>
#include <string.h>

#include "platform.h"
#include "zstd.h"

#define TAR_BLOCK 512
#define MAX_MESSAGE (MAX_PATH_BYTES + 256)

struct tar_header {
    char name[100], mode[8], uid[8], gid[8], size[12], mtime[12], checksum[8], type, linkname[100], magic[6],
        version[2], owner[32], group[32], major[8], minor[8], prefix[155], padding[12];
};

struct reader {
    FILE *file;
    uint64_t left; /* compressed bytes not yet read */
    uint64_t done, total; /* unpacked bytes */
    ZSTD_DCtx *context;
    ZSTD_inBuffer input;
    char *buffer;
    size_t buffer_bytes;
    int is_finished; /* the frame ended and its checksum held */
    void (*progress)(uint64_t, uint64_t);
};

static char message[MAX_MESSAGE];

static const char *fail(const char *what, const char *path) {
    snprintf(message, sizeof message, "%s %s: %s", what, path, platform_last_error());
    return message;
}

int bundle_read(FILE *file, struct bundle *bundle) {
    if (fseek(file, 0, SEEK_END)) return -1;
    long long size;
#ifdef _WIN32
    size = _ftelli64(file);
    if (size < (long long)sizeof *bundle || _fseeki64(file, size - (long long)sizeof *bundle, SEEK_SET)) return -1;
#else
    size = ftello(file);
    if (size < (long long)sizeof *bundle || fseeko(file, size - (long long)sizeof *bundle, SEEK_SET)) return -1;
#endif
    if (fread(bundle, sizeof *bundle, 1, file) != 1) return -1;
    if (memcmp(bundle->magic, BUNDLE_MAGIC, sizeof bundle->magic)) return -1;
    uint64_t end = (uint64_t)size - sizeof *bundle;
    int fits = bundle->payload_offset <= end && bundle->payload_bytes <= end - bundle->payload_offset &&
               bundle->model_offset <= end && bundle->model_bytes <= end - bundle->model_offset;
    return fits && !bundle->version[sizeof bundle->version - 1] ? 0 : -1;
}

/* Unpacks exactly `num_bytes`. 0, or -1 where the payload is damaged. */
static int read_exactly(struct reader *r, void *out, size_t num_bytes) {
    ZSTD_outBuffer output = {out, num_bytes, 0};
    while (output.pos < num_bytes) {
        if (r->input.pos == r->input.size) {
            size_t wanted = r->left < r->buffer_bytes ? (size_t)r->left : r->buffer_bytes;
            size_t got = wanted ? fread(r->buffer, 1, wanted, r->file) : 0;
            if (!got && r->is_finished) return -1;
            if (!got && wanted) return -1;
            r->left -= got;
            r->input = (ZSTD_inBuffer){r->buffer, got, 0};
        }
        size_t before = output.pos;
        size_t status = ZSTD_decompressStream(r->context, &output, &r->input);
        if (ZSTD_isError(status)) return -1;
        r->is_finished = status == 0;
        if (output.pos == before && !r->left && r->input.pos == r->input.size) return -1;
    }
    r->done += num_bytes;
    return 0;
}

static uint64_t octal(const char *digits, size_t num_digits) {
    uint64_t value = 0;
    for (size_t i = 0; i < num_digits && digits[i] >= '0' && digits[i] <= '7'; i++)
        value = value * 8 + (uint64_t)(digits[i] - '0');
    return value;
}

/* A path inside the folder: relative, without "..". */
static int is_safe(const char *name) {
    if (!*name || *name == '/' || strchr(name, '\\') || strchr(name, ':')) return 0;
    for (const char *part = name; part; part = strchr(part, '/') ? strchr(part, '/') + 1 : NULL)
        if (!strncmp(part, "..", 2) && (part[2] == '/' || !part[2])) return 0;
    return 1;
}

static const char *write_file(struct reader *r, const char *path, uint64_t size, int is_executable) {
    static char chunk[1 << 16];
    FILE *out = platform_create(path, is_executable);
    if (!out) return fail("cannot create", path);
    uint64_t left = size;
    while (left) {
        size_t now = left < sizeof chunk ? (size_t)left : sizeof chunk;
        if (read_exactly(r, chunk, now)) {
            fclose(out);
            return "this file is damaged: its payload cannot be unpacked; download it again";
        }
        if (fwrite(chunk, 1, now, out) != now) {
            const char *problem = fail("cannot write", path);
            fclose(out);
            return problem;
        }
        left -= now;
        r->progress(r->done, r->total);
    }
    return fclose(out) ? fail("cannot write", path) : NULL;
}

static const char *unpack_entry(struct reader *r, const struct tar_header *header, const char *folder) {
    static const char damaged[] = "this file is damaged: its payload names a file outside; download it again";
    char name[sizeof header->prefix + sizeof header->name + 2], link[sizeof header->linkname + 1];
    char path[MAX_PATH_BYTES];
    snprintf(name, sizeof name, "%.*s%s%.*s", (int)sizeof header->prefix, header->prefix,
             header->prefix[0] ? "/" : "", (int)sizeof header->name, header->name);
    snprintf(link, sizeof link, "%.*s", (int)sizeof header->linkname, header->linkname);
    size_t length = strlen(name);
    if (length && name[length - 1] == '/') name[length - 1] = 0;
    if (!is_safe(name)) return damaged;
    if (snprintf(path, sizeof path, "%s/%s", folder, name) >= (int)sizeof path) return "the folder's path is too long";
    uint64_t size = octal(header->size, sizeof header->size);
    if (header->type == '5') return platform_make_folder(path) ? fail("cannot create", path) : NULL;
    if (header->type == '2') return platform_link(link, path) ? fail("cannot create", path) : NULL;
    if (header->type != '0') return damaged;
    const char *problem = write_file(r, path, size, (octal(header->mode, sizeof header->mode) & 0100) != 0);
    if (problem) return problem;
    char padding[TAR_BLOCK];
    size_t rest = (size_t)((TAR_BLOCK - size % TAR_BLOCK) % TAR_BLOCK);
    return rest && read_exactly(r, padding, rest) ? damaged : NULL;
}

static const char *unpack_all(struct reader *r, const char *folder) {
    static const char cut[] = "this file is damaged: its payload ends early; download it again";
    struct tar_header header;
    for (;;) {
        if (read_exactly(r, &header, TAR_BLOCK)) return cut;
        if (!header.name[0]) break;
        const char *problem = unpack_entry(r, &header, folder);
        if (problem) return problem;
    }
    /* The rest of the frame: only zeros, and then the checksum over everything. */
    char rest[TAR_BLOCK];
    while (!r->is_finished)
        if (read_exactly(r, rest, 1) && !r->is_finished) return cut;
    return NULL;
}

const char *bundle_unpack(FILE *file, const struct bundle *bundle, const char *folder,
                          void (*progress)(uint64_t, uint64_t)) {
    struct reader r = {.file = file, .left = bundle->payload_bytes, .total = bundle->unpacked_bytes, .progress = progress};
#ifdef _WIN32
    if (_fseeki64(file, (long long)bundle->payload_offset, SEEK_SET)) return fail("cannot read", "this file");
#else
    if (fseeko(file, (off_t)bundle->payload_offset, SEEK_SET)) return fail("cannot read", "this file");
#endif
    r.buffer_bytes = ZSTD_DStreamInSize();
    r.buffer = malloc(r.buffer_bytes);
    r.context = ZSTD_createDCtx();
    if (!r.buffer || !r.context) return "not enough memory to unpack";
    ZSTD_DCtx_setParameter(r.context, ZSTD_d_windowLogMax, 27);
    const char *problem = unpack_all(&r, folder);
    ZSTD_freeDCtx(r.context);
    free(r.buffer);
    return problem;
}
