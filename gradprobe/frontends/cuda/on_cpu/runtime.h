// What the header, the runtime and Python, which reads this file, share: one launch, what it may touch, and what was found.
#pragma once
#include <stddef.h>
#include <stdint.h>

// What a thread does: then at a barrier, and with a shuffle whose mask leaves it out.
enum gp_access { GP_READ = 0, GP_WRITE = 1, GP_ATOMIC = 2, GP_WAITS = 3, GP_ENDED = 4, GP_LEFT_OUT = 5 };
enum gp_together { GP_THREAD = 0, GP_WARP = 1, GP_BLOCK = 2 };
enum gp_kind {
    GP_RACE = 0, GP_OUTSIDE = 1, GP_UNWRITTEN = 2, GP_BARRIER = 3, GP_MISALIGNED = 4,
    GP_EQUAL = 5,  // no fault: stores of one value, which no barrier orders
    // Lanes whose mask leaves them out (bytes 0: they are the lower half of the offset), or that a shuffle gives no value:
    // bytes are these lanes, array is the mask, the halves of the offset are the lanes that ask for one outside of it, and
    // the lanes that give none; before.access is whether the thread of one of those has ended.
    GP_SHUFFLE = 6,
    GP_STOPPED = 7,
};

// Memory that a kernel may touch. Of what lies between elements, and around them, `owners` says 0.
struct gp_region {
    uint64_t base, bytes;
    const uint8_t* owners;  // one a granule: the number of the array, from 1; null: all of it belongs to array `first`
    uint8_t* unwritten;     // one a granule: 1 until something is stored there; null: all of it has a value
    int32_t granule;        // in bytes
    int32_t first;          // the number of the array where owners is null; 0: nothing here is judged; -1: nobody's
    int32_t is_shared;
};

struct gp_site {
    uint64_t pc;  // a return address, from the library's base
    uint32_t thread[3], block[3];
    int32_t access;
};

struct gp_finding {
    int32_t kind, region, array, bytes;
    int64_t offset;  // in bytes from the region's base
    gp_site now, before;
    int64_t count;
};

// One access of a tensor's storage, or of what lies between its elements; or the read of a copy of it in shared memory.
struct gp_record {
    uint64_t address;
    uint32_t pc[4];  // return addresses from the library's base: of the access, then of the calls that led there; 0: none
    uint32_t block, epoch;
    uint16_t thread, region;
    uint16_t bytes, access;
    uint16_t is_copied, unused[3];  // whether the thread has stored the same in shared memory
};

// What the loader knows of this library, and where its shared arrays are in the thread that asks.
struct gp_place {
    uint64_t base, bytes, shared, shared_bytes;
};

// The type of a parameter.
struct gp_parameter {
    char type;   // as Python's ctypes has it: P a pointer, ? a bool, bhil and BHIL integers, f, d; 0 something else
    int32_t of;  // of a pointer: the bytes of the number that it points to, 0 where that is no number
};

typedef void (*gp_caller)(void**);

struct gp_launch {
    gp_caller kernel;
    void** arguments;
    uint32_t grid[3], block[3];
    uint64_t shared_bytes, seed;  // seed 0: threads and blocks in order
    gp_region* regions;
    int32_t n_regions;
    uint64_t library;  // its base
    gp_finding* findings;
    int32_t max_findings, n_findings;
    int32_t is_last_fatal;  // whether the last finding is what the kernel was stopped for
    gp_record* records;  // null: none are kept
    int64_t max_records, n_records;  // more than there is room for: what came later is lost
    gp_record* copies;  // the reads of shared memory that holds copies of elements of tensors, by the elements' addresses
    int64_t n_copies;   // there is room for max_records too
    int32_t is_apart;   // whether all that a thread read of others was such a copy, or 0
    int32_t together;                // gp_together: which threads gave each other values
    int32_t one_of;                  // of how many threads one is recorded
    int32_t signal;    // that its code got, or 0; then the next two say where
    gp_site stopped;   // whose access is whether it has no stack left
    uint64_t calls[8]; // of its code, the innermost first, from the library's base; 0: none
    char message[512];
};

extern "C" {
int gp_run(gp_launch* launch);
gp_place gp_where();
// Called by a thread of a kernel.
struct gp_index { uint32_t x, y, z; };
gp_index gp_thread_index() __attribute__((const));
gp_index gp_block_index() __attribute__((const));
gp_index gp_block_size() __attribute__((const));
gp_index gp_grid_size() __attribute__((const));
int gp_barrier(int kind, int predicate);
uint64_t gp_exchange(uint32_t mask, uint64_t value, uint64_t undefined, int source, int width, int how);
uint32_t gp_vote(uint32_t mask, int predicate);
void gp_warp_barrier(uint32_t mask);
uint32_t gp_active_mask();
void gp_touch_atomic(const void* address, int bytes);
void gp_copy(void* to, const void* from, uint64_t bytes);
void* gp_memcpy(void* to, const void* from, size_t bytes);
void* gp_memset(void* to, int value, size_t bytes);
int gp_printf(const char* format, ...) __attribute__((format(printf, 1, 2)));
void gp_fence();
void gp_yield();
void gp_fail(const char* words) __attribute__((noreturn));
}
