/* What lies behind the launcher in the executable file, and the record at its very end that says where.
 *
 *   launcher | payload: tar in zstd | model file, as it is | trailer
 *
 * The trailer is little-endian and written by packaging/executable.py from appliance/bundle.py's layout. */
#ifndef BUNDLE_H
#define BUNDLE_H

#include <stdint.h>
#include <stdio.h>

#define BUNDLE_MAGIC "APLBNDL1"

struct bundle {
    char magic[8];
    uint64_t payload_offset, payload_bytes;
    uint64_t unpacked_bytes;
    uint64_t model_offset, model_bytes;
    char id[64];       /* sha256 of the payload, hexadecimal, not terminated */
    char model_id[64]; /* padded with zeros, as are the two below */
    char version[32];
    char reserved[40];
};

/* Reads the trailer of the executable. Returns 0, or -1 where the file is not whole. */
int bundle_read(FILE *file, struct bundle *bundle);

/* Writes the payload's tree into `folder`, which must exist. Returns NULL, or what went wrong. */
const char *bundle_unpack(FILE *file, const struct bundle *bundle, const char *folder,
                          void (*progress)(uint64_t done_bytes, uint64_t total_bytes));

#endif
