// Runs a CUDA kernel on the CPU: one fiber a thread, one block after another, every access of memory watched.
//
// A kernel is compiled with -fsanitize=thread, which calls a function before each access, and linked with the functions
// below in the place of the sanitizer's own. An access races with one of another block, or with one of another thread
// since the last barrier, unless both only read or both are atomic. Of its reads, its writes and its atomics each
// granule of memory keeps three: the latest, the latest of another thread, and the latest of another warp. They are
// enough to miss no granule with a race: if any access races with one that was not kept, it races with one of the three.
//
// Two stores of one value leave the same memory in either order. So a store that leaves memory as it was before races
// with no other store: within a warp a GPU promises that one of the values is stored, and between warps it is told apart
// from races. It is judged when its thread goes on, as g++ calls before each access and the value is not known then.
#include "runtime.h"

#include <link.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <random>
#include <vector>

namespace gradprobe_runtime {
namespace {

// A GPU gives a thread at most 512 KiB of local memory.
constexpr size_t STACK = 640 << 10, GUARD = 4096;
constexpr uint32_t WARP = 32;
constexpr uint64_t NONE = ~0ull;

struct Event {
    uint32_t block_from_1, epoch;  // 0: none as yet, as fresh memory has it
    uint16_t thread, warp_epoch;
    uint32_t place;  // 28 bits of pc, 4 of which bytes
    bool is_set() const { return block_from_1 != 0; }
    uint32_t block() const { return block_from_1 - 1; }
    uint32_t bytes() const { return place >> 28; }
    uint64_t pc() const { return place & ((1u << 28) - 1); }
};

// What a thread read of a tensor.
struct Source {
    uint64_t address = 0, bits = 0;
    int64_t record = -1;
    int region = 0, bytes = 0;
};

// What an element of shared memory holds: something, a 0, or a copy of an element of a tensor.
struct Copy {
    enum { SOMETHING, ZERO, ELEMENT } kind;
    Source source;
};

// One kind of access to a granule.
struct Seen {
    // The latest; the latest of another thread; the latest of another warp, where one of another block stays.
    Event events[3];
};

struct Cell {
    Seen reads, writes;
};

enum State { READY, AT_BARRIER, AT_WARP, ENDED };

struct Fiber {
    char* stack = nullptr;
    void* pointer = nullptr;  // of the stack, while it does not run
    ucontext_t context;
    State state = READY;
    uint64_t pc = 0;
    int kind = 0, predicate = 0;
    uint32_t mask = 0, named = 0;  // the lanes that it waits for, and the mask as it was written
    int64_t asked = 0;             // the lane that a shuffle asks for, whether or not there is one
    uint64_t value = 0, result = 0;
    uint64_t undefined = 0;  // what it gets from a lane that gives nothing
    gp_index index{};
    Source read[16];  // the latest reads of tensors
    uint32_t n_read = 0;
};

struct Shadow {
    Cell* cells = nullptr;
    Seen* atomics = nullptr;  // apart, as few granules have any
    size_t count = 0;
    bool has_atomics = false;
    std::vector<Copy> copies;  // of shared memory, where accesses are recorded
};

// A store that races with an earlier one if it changes what is there.
struct Doubt {
    const char* address;
    int bytes;
    char before[16];  // what was there; no element is larger
    bool is_told;  // where it is equal
    gp_finding race;
};

// A store to shared memory, of a value that is not known yet.
struct Filled {
    int region;
    uint64_t granule;
    const char* address;
    int bytes;
};

struct Machine {
    gp_launch* launch = nullptr;
    std::vector<Fiber> fibers;
    std::vector<Shadow> shadows;
    std::vector<uint16_t> warp_epochs;
    char* arena = nullptr;
    size_t arena_bytes = 0;
    size_t threads = 0;
    uint32_t current = 0;
    uint32_t block = 0, epoch = 0;
    gp_index block_index{};
    int latest = 0, before_that = 0;  // the regions of the last accesses
    uint64_t accesses = 0;
    std::vector<Doubt> doubts;      // of the latest access
    std::vector<Filled> filled;     // by the latest access
    std::vector<uint64_t> counted;  // the access that each finding was last counted at
    pthread_t thread;
    size_t printed = 0;
    bool is_running = false, is_fenced = false, is_stopped = false;
    void* own = nullptr;
    ucontext_t own_context;
};

Machine m;

#if defined(__x86_64__)
extern "C" void gp_switch(void** from, void* to);
asm(R"(
.text
.globl gp_switch
.type gp_switch,@function
gp_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size gp_switch,.-gp_switch
)");
void to_fiber(Fiber& fiber) { gp_switch(&m.own, fiber.pointer); }
void to_scheduler(Fiber& fiber) { gp_switch(&fiber.pointer, m.own); }
#else
void to_fiber(Fiber& fiber) { swapcontext(&m.own_context, &fiber.context); }
void to_scheduler(Fiber& fiber) { swapcontext(&fiber.context, &m.own_context); }
#endif

void settle();

void body() {
    m.launch->kernel(m.launch->arguments);
    settle();
    Fiber& fiber = m.fibers[m.current];
    fiber.state = ENDED;
    to_scheduler(fiber);
    __builtin_trap();
}

void prepare(Fiber& fiber) {
    fiber.state = READY;
#if defined(__x86_64__)
    void** top = reinterpret_cast<void**>(fiber.stack + STACK);
    *--top = nullptr;  // where body would return to; and its stack is aligned as after a call
    *--top = reinterpret_cast<void*>(body);
    for (int i = 0; i < 6; ++i) *--top = nullptr;
    fiber.pointer = top;
#else
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack;
    fiber.context.uc_stack.ss_size = STACK;
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, body, 0);
#endif
}

bool make_stacks(size_t threads) {
    size_t bytes = threads * (STACK + GUARD);
    if (bytes > m.arena_bytes) {
        if (m.arena) munmap(m.arena, m.arena_bytes);
        void* got = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        m.arena = got == MAP_FAILED ? nullptr : static_cast<char*>(got);
        m.arena_bytes = m.arena ? bytes : 0;
        if (!m.arena) return false;
        for (size_t i = 0; i < threads; ++i) mprotect(m.arena + i * (STACK + GUARD), GUARD, PROT_NONE);
    }
    m.fibers.resize(threads);
    for (size_t i = 0; i < threads; ++i) m.fibers[i].stack = m.arena + i * (STACK + GUARD) + GUARD;
    return true;
}

void site(gp_site& out, uint64_t pc, uint32_t thread, uint32_t block, int access) {
    const gp_launch& l = *m.launch;
    out.pc = pc;
    out.access = access;
    out.thread[0] = thread % l.block[0];
    out.thread[1] = thread / l.block[0] % l.block[1];
    out.thread[2] = thread / l.block[0] / l.block[1];
    out.block[0] = block % l.grid[0];
    out.block[1] = block / l.grid[0] % l.grid[1];
    out.block[2] = block / l.grid[0] / l.grid[1];
}

// Where another finding goes: behind the last, or in the place of what is no fault; -1 where there is no room.
int room_for(int kind) {
    gp_launch& l = *m.launch;
    if (l.n_findings < l.max_findings) return l.n_findings++;
    for (int i = 0; i < l.n_findings && kind != GP_EQUAL; ++i)
        if (l.findings[i].kind == GP_EQUAL) return i;
    return -1;
}

// What is found again at the same two places of the source in the same array is counted, once an access, not told again.
void found(const gp_finding& one) {
    gp_launch& l = *m.launch;
    for (int i = 0; i < l.n_findings; ++i) {
        gp_finding& f = l.findings[i];
        bool is_same = f.kind == one.kind && f.region == one.region && f.array == one.array;
        if (is_same && f.now.pc == one.now.pc && f.before.pc == one.before.pc) {
            f.count += m.counted[i] != m.accesses;
            m.counted[i] = m.accesses;
            return;
        }
    }
    int at = room_for(one.kind);
    if (at < 0) return;
    m.counted[at] = m.accesses;
    l.findings[at] = one;
}

float widened(uint64_t bits, bool is_half) {
    uint32_t word = uint32_t(bits) << 16;
    float found;
    memcpy(&found, &word, sizeof found);
    if (!is_half) return found;
    uint32_t exponent = bits >> 10 & 31, fraction = bits & 1023;
    float value = exponent ? ldexpf(float(1024 + fraction), int(exponent) - 25) : ldexpf(float(fraction), -24);
    return exponent == 31 ? NAN : bits >> 15 & 1 ? -value : value;
}

// Whether a value is that of a source, or the same number in float32.
bool is_same(const Source& source, uint64_t bits, int bytes) {
    if (source.bytes == bytes) return source.bits == bits;
    if (source.bytes != 2 || bytes != 4) return false;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value == widened(source.bits, true) || value == widened(source.bits, false);
}

// What a store left in shared memory, by the thread that runs: a copy of what it read of a tensor, where that is the one
// element of this value among the latest. A 0 may stand for what lies behind the end.
Copy copy_of(const Filled& one) {
    Fiber& fiber = m.fibers[m.current];
    uint64_t bits = 0;
    memcpy(&bits, one.address, one.bytes);
    const Source* found = nullptr;
    for (uint32_t back = 1; back <= std::min(fiber.n_read, 16u); ++back) {
        const Source& source = fiber.read[(fiber.n_read - back) % 16];
        if (!is_same(source, bits, one.bytes)) continue;
        if (found ? found->address != source.address : !bits && back > 1) return {Copy::SOMETHING, {}};
        found = &source;
    }
    if (!found) return {bits ? Copy::SOMETHING : Copy::ZERO, {}};
    if (found->record >= 0 && found->record < m.launch->n_records) m.launch->records[found->record].is_copied = 1;
    return {Copy::ELEMENT, *found};
}

// Judges what the latest access left open, now that it is done.
void settle() {
    auto is_equal = [](const Doubt& one) { return !memcmp(one.before, one.address, one.bytes); };
    bool are_equal = std::all_of(m.doubts.begin(), m.doubts.end(), is_equal);
    for (Doubt& doubt : m.doubts) {
        if (are_equal) doubt.race.kind = GP_EQUAL;
        if (are_equal ? doubt.is_told : !is_equal(doubt)) found(doubt.race);
    }
    m.doubts.clear();
    for (const Filled& one : m.filled) m.shadows[one.region].copies[one.granule] = copy_of(one);
    m.filled.clear();
}

// What the kernel cannot go on after: the last of the findings.
void found_fatal(const gp_finding& finding) {
    gp_launch& l = *m.launch;
    if (l.n_findings == l.max_findings) --l.n_findings;
    l.findings[l.n_findings++] = finding;
    l.is_last_fatal = 1;
}

uint64_t offset_of(void* pc) { return reinterpret_cast<uint64_t>(pc) - m.launch->library; }

[[noreturn]] void leave() {
    m.is_stopped = true;
    Fiber& fiber = m.fibers[m.current];
    fiber.state = ENDED;
    to_scheduler(fiber);
    __builtin_trap();
}

bool is_in(const gp_region& region, uint64_t address, int bytes) {
    return address >= region.base && address + bytes <= region.base + region.bytes;
}

int region_of(uint64_t address, int bytes) {
    const gp_launch& l = *m.launch;
    if (is_in(l.regions[m.latest], address, bytes)) return m.latest;
    if (is_in(l.regions[m.before_that], address, bytes)) {
        std::swap(m.latest, m.before_that);
        return m.latest;
    }
    for (int i = 0; i < l.n_regions; ++i) {
        if (!is_in(l.regions[i], address, bytes)) continue;
        // The last regions hold others within them, so what lies there is sought anew.
        if (!l.regions[i].owners && l.regions[i].first <= 0) return i;
        m.before_that = m.latest;
        return m.latest = i;
    }
    return -1;
}

int nearest(uint64_t address) {
    const gp_launch& l = *m.launch;
    int best = -1;
    uint64_t least = NONE;
    for (int i = 0; i < l.n_regions; ++i) {
        const gp_region& r = l.regions[i];
        if (r.first <= 0 && !r.owners) continue;
        uint64_t away = address < r.base ? r.base - address : address - r.base;
        away = address >= r.base && address < r.base + r.bytes ? 0 : std::min(away, address - (r.base + r.bytes));
        if (away < least) least = away, best = i;
    }
    return best;
}

inline bool ordered(const Event& e, const Event& now, bool is_apart) {
    if (e.block_from_1 != now.block_from_1) return is_apart;
    if (e.epoch != now.epoch || e.thread == now.thread) return true;
    return e.thread / WARP == now.thread / WARP && e.warp_epoch != now.warp_epoch;
}

inline bool is_of_thread(const Event& e, const Event& now) {
    return e.block_from_1 == now.block_from_1 && e.thread == now.thread;
}

inline bool is_of_warp(const Event& e, const Event& now) {
    return e.block_from_1 == now.block_from_1 && e.thread / WARP == now.thread / WARP;
}

// is_apart: accesses of other blocks are no races here, so none of them has to stay.
inline void keep(Seen& seen, const Event& now, bool is_apart) {
    Event &latest = seen.events[0], &of_thread = seen.events[1], &of_warp = seen.events[2];
    if (!latest.is_set() || is_of_thread(latest, now)) {
        bool is_same = latest.is_set() && latest.epoch == now.epoch && latest.warp_epoch == now.warp_epoch;
        uint32_t bytes = is_same ? latest.place & 0xf0000000u : 0;
        latest = now;
        latest.place |= bytes;
        return;
    }
    bool stays = of_warp.is_set() && of_warp.block_from_1 != now.block_from_1 && !is_apart;
    if (!stays && !is_of_warp(latest, now)) of_warp = latest;
    of_thread = latest;
    latest = now;
}

// An access of some bytes of one granule.
struct Access {
    Event event;
    int how, region, array, bytes;
    int64_t offset;
    bool is_apart;
    const char* address;
    int touched;  // bytes of the granule from there
};

void doubt(const Access& a, bool is_told, const gp_finding& race) {
    Doubt made{a.address, a.touched, {}, is_told, race};
    memcpy(made.before, a.address, a.touched);
    m.doubts.push_back(made);
}

inline void judge(const Seen& seen, int how_before, const Access& a) {
    for (const Event& before : seen.events) {
        if (!before.is_set()) return;
        if (ordered(before, a.event, a.is_apart) || !(before.bytes() & a.event.bytes())) continue;
        gp_site one, other;
        site(one, a.event.pc(), a.event.thread, a.event.block(), a.how);
        site(other, before.pc(), before.thread, before.block(), how_before);
        gp_finding race{GP_RACE, a.region, a.array, a.bytes, a.offset, one, other, 1};
        // What memory holds is the value of the latest.
        bool is_told = &before == seen.events && !is_of_warp(before, a.event);
        if (how_before == GP_WRITE && a.how == GP_WRITE) doubt(a, is_told, race);
        else found(race);
    }
}

void outside(uint64_t address, int bytes, int how, void* pc, int region, bool stays) {
    gp_site now, none{};
    none.pc = NONE;
    site(now, offset_of(pc), m.current, m.block, how);
    uint64_t base = region < 0 ? 0 : m.launch->regions[region].base, end = base;
    if (region >= 0) end += m.launch->regions[region].bytes;
    // Of an access that begins inside, what is told is where it leaves.
    int64_t offset = int64_t((address >= base && address < end && address + bytes > end ? end : address) - base);
    gp_finding one{GP_OUTSIDE, region, 0, bytes, offset, now, none, 1};
    if (stays) return found(one);
    found_fatal(one);
    snprintf(m.launch->message, sizeof m.launch->message, "stopped before an access of memory that is nobody's");
    leave();
}

// A GPU ends here; and so would this process, in some instructions of its processor.
void misaligned(uint64_t address, int bytes, int how, void* pc) {
    settle();
    int at = region_of(address, bytes);
    if (at < 0) return;
    const gp_region& r = m.launch->regions[at];
    uint64_t offset = address - r.base;
    int array = r.owners ? r.owners[offset / r.granule] : r.first;
    if (array <= 0 || r.is_shared) return;  // where a GPU puts shared arrays is not known here
    gp_site now, none{};
    none.pc = NONE;
    site(now, offset_of(pc), m.current, m.block, how);
    found_fatal(gp_finding{GP_MISALIGNED, at, array, bytes, int64_t(offset), now, none, 1});
    snprintf(m.launch->message, sizeof m.launch->message, "stopped before a misaligned access");
    leave();
}

void unwritten(const Access& a) {
    gp_site now, none{};
    none.pc = NONE;
    site(now, a.event.pc(), a.event.thread, a.event.block(), a.how);
    found({GP_UNWRITTEN, a.region, a.array, a.bytes, a.offset, now, none, 1});
}

bool is_of_this_block(const Seen& seen) { return seen.events[0].block_from_1 == m.block + 1; }

bool has_value(const gp_region& r, const Shadow& shadow, uint64_t granule) {
    if (!r.is_shared) return !r.unwritten || !r.unwritten[granule];
    return is_of_this_block(shadow.cells[granule].writes) ||
           (shadow.has_atomics && is_of_this_block(shadow.atomics[granule]));
}

// Whether a thread does again what it did last of all, with no barrier since. What others did meanwhile was judged
// beside the first time.
inline bool is_repeated(const Seen& seen, const Event& now) {
    const Event& latest = seen.events[0];
    return latest.epoch == now.epoch && is_of_thread(latest, now) && latest.warp_epoch == now.warp_epoch &&
           (latest.bytes() & now.bytes()) == now.bytes();
}

// Whether no store of another thread may have to be compared with this one: the same thread may store another value now.
inline bool is_alone(const Seen& seen, const Access& a) {
    auto is_before = [&a](const Event& e) { return !e.is_set() || ordered(e, a.event, a.is_apart); };
    return is_before(seen.events[1]) && is_before(seen.events[2]);
}

void touch_granule(const Access& a, const gp_region& r, Shadow& shadow, uint64_t granule) {
    Cell& cell = shadow.cells[granule];
    if (a.how == GP_READ && is_repeated(cell.reads, a.event)) return;
    if (a.how == GP_WRITE && is_repeated(cell.writes, a.event) && is_alone(cell.writes, a)) return;
    if (a.how != GP_WRITE && !has_value(r, shadow, granule)) unwritten(a);
    judge(cell.writes, GP_WRITE, a);
    if (a.how != GP_ATOMIC && shadow.has_atomics) judge(shadow.atomics[granule], GP_ATOMIC, a);
    if (a.how == GP_READ) return keep(cell.reads, a.event, a.is_apart);
    judge(cell.reads, GP_READ, a);
    keep(a.how == GP_WRITE ? cell.writes : shadow.atomics[granule], a.event, a.is_apart);
    shadow.has_atomics |= a.how == GP_ATOMIC;
    if (r.unwritten) r.unwritten[granule] = 0;
}

constexpr size_t RECENT = 1 << 16;
uint64_t recent[RECENT];  // what was recorded last of each hash

// The calls that led to an access, from the frames of the fiber that makes it.
void calls(void* pc, uint32_t (&out)[4]) {
    void** frame = static_cast<void**>(__builtin_frame_address(0));
    uint64_t low = reinterpret_cast<uint64_t>(m.arena), high = low + m.arena_bytes;
    int depth = -1;
    for (int i = 0; i < 16 && depth < 4; ++i) {
        uint64_t at = reinterpret_cast<uint64_t>(frame);
        if (at < low || at + 16 > high) return;
        void* back = frame[1];
        if (depth >= 0 || back == pc) ++depth;
        if (depth > 0 && depth < 4) out[depth] = uint32_t(offset_of(back));
        frame = static_cast<void**>(frame[0]);
    }
}

bool is_recorded(uint32_t block, uint32_t thread) {
    return (uint64_t(block) * m.threads + thread) % uint64_t(m.launch->one_of) == 0;
}

// Of many threads that have nothing to do with each other every second one is enough.
void thin_out() {
    gp_launch& l = *m.launch;
    if (l.n_records < l.max_records / 8 || l.together != GP_THREAD) return;
    l.one_of *= 2;
    auto is_dropped = [](const gp_record& r) { return !is_recorded(r.block, r.thread); };
    l.n_records = std::remove_if(l.records, l.records + l.n_records, is_dropped) - l.records;
}

// Keeps an access of a tensor, or of a copy of its elements, once where a thread repeats it between two barriers.
void record(uint64_t address, int bytes, int how, void* pc, int region, gp_record* records, int64_t& count) {
    gp_launch& l = *m.launch;
    if (!is_recorded(m.block, m.current)) return;
    gp_record now{address, {uint32_t(offset_of(pc))}, m.block, m.epoch, uint16_t(m.current), uint16_t(region),
                  uint16_t(bytes), uint16_t(how), 0, {}};
    calls(pc, now.pc);
    uint64_t hash = address;
    for (uint32_t part : {now.pc[0], now.pc[1], now.pc[2], now.pc[3], now.block, now.epoch, m.current, uint32_t(how)})
        hash = (hash ^ part) * 0x9e3779b97f4a7c15ull, hash ^= hash >> 29;
    uint64_t& last = recent[hash % RECENT];
    if (last == hash) return;
    last = hash;
    if (count < l.max_records) records[count] = now;
    ++count;
}

// What a thread reads of a tensor, and what it reads and stores in shared memory: which element of which tensor that is.
void follow(const Access& a, const gp_region& r, Shadow& shadow, uint64_t granule, void* pc) {
    Fiber& fiber = m.fibers[m.current];
    bool is_whole = a.touched == r.granule && r.granule <= 8;
    if (!r.is_shared && a.how == GP_READ && is_whole) {
        Source source{reinterpret_cast<uint64_t>(a.address), 0, m.launch->n_records - 1, a.region, a.touched};
        memcpy(&source.bits, a.address, a.touched);
        fiber.read[fiber.n_read++ % 16] = source;
    }
    if (!r.is_shared) return;
    Copy& copy = shadow.copies[granule];
    if (a.how == GP_WRITE && is_whole) return m.filled.push_back({a.region, granule, a.address, a.touched});
    if (a.how != GP_READ || copy.kind == Copy::SOMETHING || !is_whole) m.launch->is_apart = 0;
    if (a.how != GP_READ) copy.kind = Copy::SOMETHING;
    if (copy.kind != Copy::ELEMENT) return;
    const Source& source = copy.source;
    record(source.address, source.bytes, GP_READ, pc, source.region, m.launch->copies, m.launch->n_copies);
}

void give_values(gp_together among) { m.launch->together = std::max<int32_t>(m.launch->together, among); }

void touch(const void* pointer, int bytes, int how, void* pc) {
    if (!m.is_running) return;
    settle();
    uint64_t address = reinterpret_cast<uint64_t>(pointer);
    if (address - reinterpret_cast<uint64_t>(m.arena) < m.arena_bytes) return;
    int at = region_of(address, bytes);
    if (at < 0) return outside(address, bytes, how, pc, nearest(address), false);
    const gp_region& r = m.launch->regions[at];
    if (!r.owners && !r.first) return;
    ++m.accesses;
    if (r.is_shared) give_values(GP_BLOCK);
    if (m.launch->records && !r.is_shared && (r.owners || r.first > 0)) {
        thin_out();
        record(address, bytes, how, pc, at, m.launch->records, m.launch->n_records);
    }
    if (!r.owners && r.first < 0) return outside(address, bytes, how, pc, at, true);
    uint64_t offset = address - r.base;
    uint32_t place = uint32_t(offset_of(pc)) & ((1u << 28) - 1);
    Access a{{m.block + 1, m.epoch, uint16_t(m.current), m.warp_epochs[m.current / WARP], 0}, how, at, 0, bytes, 0,
             r.is_shared || m.is_fenced,  // a block has shared memory of its own
             nullptr, 0};
    int shift = __builtin_ctz(r.granule);
    for (uint64_t first = offset; first < offset + bytes;) {
        uint64_t granule = first >> shift, start = granule << shift;
        uint64_t last = std::min(offset + bytes, start + r.granule);
        a.array = r.owners ? r.owners[granule] : r.first;
        if (!a.array) return outside(r.base + first, bytes, how, pc, at, true);
        uint32_t mask = 15;
        if (r.granule <= 4 && last - first < uint64_t(r.granule)) mask = ((1u << (last - first)) - 1) << (first - start);
        a.event.place = place | mask << 28;
        a.offset = int64_t(start);
        a.address = static_cast<const char*>(pointer) + (first - offset);
        a.touched = int(last - first);
        if (m.launch->records && m.shadows[at].atomics) follow(a, r, m.shadows[at], granule, pc);
        if (m.shadows[at].atomics) touch_granule(a, r, m.shadows[at], granule);
        first = last;
    }
}

template <class T> T* zeros(size_t count) {
    void* got = mmap(nullptr, count * sizeof(T), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                     -1, 0);
    return got == MAP_FAILED ? nullptr : static_cast<T*>(got);
}

// Where there is no room for a region, its races are not seen.
void make_shadows() {
    gp_launch& l = *m.launch;
    m.shadows.assign(l.n_regions, {});
    for (int i = 0; i < l.n_regions; ++i) {
        const gp_region& r = l.regions[i];
        if (!r.owners && r.first <= 0) continue;
        Shadow& shadow = m.shadows[i];
        shadow.count = r.bytes / r.granule + 1;
        shadow.cells = zeros<Cell>(shadow.count);
        shadow.atomics = shadow.cells ? zeros<Seen>(shadow.count) : nullptr;
        if (r.is_shared && l.records) shadow.copies.resize(shadow.count);
    }
}

void drop_shadows() {
    for (Shadow& shadow : m.shadows) {
        if (shadow.cells) munmap(shadow.cells, shadow.count * sizeof(Cell));
        if (shadow.atomics) munmap(shadow.atomics, shadow.count * sizeof(Seen));
    }
    m.shadows.clear();
}

int fail(const char* words) {
    snprintf(m.launch->message, sizeof m.launch->message, "%s", words);
    return GP_STOPPED;
}

// The lanes of a warp that wait with one of them: at a call of its kind, with its mask.
uint32_t waiting_with(const Fiber& one, size_t first, size_t end) {
    uint32_t lanes = 0;
    for (size_t i = first; i < end; ++i) {
        const Fiber& other = m.fibers[i];
        bool is_with = other.state == AT_WARP && other.mask == one.mask && other.kind == one.kind;
        lanes |= uint32_t(is_with) << (i - first);
    }
    return lanes;
}

uint32_t ended_in(size_t first, size_t end) {
    uint32_t lanes = 0;
    for (size_t i = first; i < end; ++i) lanes |= uint32_t(m.fibers[i].state == ENDED) << (i - first);
    return lanes;
}

// Which lanes did wrong, and of a shuffle what they asked for: a GP_SHUFFLE.
void found_of_warp(size_t first, uint32_t wrong, uint32_t asking, uint32_t sources, bool has_ended) {
    size_t thread = first + __builtin_ctz(wrong);
    const Fiber& fiber = m.fibers[thread];
    gp_site now, other{};
    site(now, fiber.pc, uint32_t(thread), m.block, sources ? GP_READ : GP_LEFT_OUT);
    other.pc = NONE;
    other.access = has_ended;
    int64_t lanes = int64_t(uint64_t(sources) << 32 | asking);
    ++m.accesses;
    found({GP_SHUFFLE, -1, int32_t(fiber.named), sources ? int32_t(wrong) : 0, lanes, now, other, 1});
}

// Of a shuffle whose lanes have met: those that get a value of a lane that gives none.
uint32_t without_value(size_t first, uint32_t met) {
    uint32_t giving = met & m.fibers[first + __builtin_ctz(met)].mask, wrong = 0, asking = 0, sources = 0;
    for (uint32_t lane = 0; lane < WARP; ++lane) {
        if (!(met >> lane & 1)) continue;
        const Fiber& fiber = m.fibers[first + lane];
        bool is_named = fiber.asked >= 0 && fiber.asked < WARP && (fiber.named >> fiber.asked & 1);
        asking |= uint32_t(!is_named) << lane;
        if (fiber.result == lane || giving >> fiber.result & 1) continue;
        wrong |= 1u << lane;
        sources |= 1u << fiber.result;
    }
    size_t end = std::min(first + WARP, m.threads);
    if (wrong) found_of_warp(first, wrong, asking, sources, sources & ended_in(first, end));
    return wrong;
}

// Lets lanes that have met go on, each with its result.
void let_go(size_t first, uint32_t met) {
    const Fiber& one = m.fibers[first + __builtin_ctz(met)];
    uint32_t votes = 0, left_out = met & ~one.mask;
    if (left_out) found_of_warp(first, left_out, left_out, 0, false);
    uint32_t undefined = one.kind > 2 && !left_out ? without_value(first, met) : 0;
    for (uint32_t lane = 0; lane < WARP; ++lane)
        if (met >> lane & 1) votes |= uint32_t(m.fibers[first + lane].predicate != 0) << lane;
    if (one.kind == 1) ++m.warp_epochs[first / WARP];
    for (uint32_t lane = 0; lane < WARP; ++lane) {
        if (!(met >> lane & 1)) continue;
        Fiber& fiber = m.fibers[first + lane];
        if (fiber.kind == 2) fiber.result = votes & fiber.mask;
        if (fiber.kind > 2)
            fiber.result = undefined >> lane & 1 ? fiber.undefined : m.fibers[first + fiber.result].value;
        fiber.state = READY;
    }
}

// The lanes of a warp that meet: all that their mask names and that have not ended, at one place.
bool release_warps() {
    bool any = false;
    for (size_t first = 0; first < m.threads; first += WARP) {
        size_t end = std::min(first + WARP, m.threads);
        for (size_t i = first; i < end; ++i) {
            const Fiber& one = m.fibers[i];
            if (one.state != AT_WARP) continue;
            uint32_t met = waiting_with(one, first, end);
            if (one.mask & ~(met | ended_in(first, end))) continue;
            let_go(first, met);
            any = true;
        }
    }
    return any;
}

// Threads wait at two barriers at once; where both are one line, the compiler made two of it.
void divergent(const Fiber& fiber) {
    ++m.accesses;
    gp_site one, other;
    site(one, m.fibers[0].pc, 0, m.block, GP_WAITS);
    site(other, fiber.pc, uint32_t(&fiber - m.fibers.data()), m.block, GP_WAITS);
    found({GP_BARRIER, -1, 0, int(m.threads), 0, one, other, 1});
}

// Whether the block goes on; false where some wait for what cannot come.
bool release() {
    bool any = release_warps();
    size_t waiting = 0, ended = 0, ready = 0;
    for (Fiber& fiber : m.fibers) {
        waiting += fiber.state == AT_BARRIER;
        ended += fiber.state == ENDED;
        ready += fiber.state == READY;
    }
    if (waiting < m.threads) return any || ready || ended == m.threads;
    for (Fiber& fiber : m.fibers)
        if (fiber.pc != m.fibers[0].pc) {
            divergent(fiber);
            break;
        }
    int count = 0;
    for (Fiber& fiber : m.fibers) count += fiber.predicate != 0;
    for (Fiber& fiber : m.fibers) {
        fiber.result = fiber.kind == 1 ? count : fiber.kind == 2 ? count == int(m.threads) : count > 0;
        fiber.state = READY;
    }
    ++m.epoch;
    return true;
}

// Where threads of a block stand that can never go on: the first, and the first that stands elsewhere.
void deadlock() {
    gp_site one{}, other{};
    one.pc = other.pc = NONE;
    other.access = GP_ENDED;
    int64_t waiting = 0;
    size_t first = m.threads;
    for (size_t i = 0; i < m.threads; ++i) {
        if (m.fibers[i].state == ENDED) continue;
        if (first == m.threads) first = i, site(one, m.fibers[i].pc, i, m.block, GP_WAITS);
        waiting += m.fibers[i].state == m.fibers[first].state && m.fibers[i].pc == m.fibers[first].pc;
    }
    for (size_t i = 0; i < m.threads && first < m.threads; ++i) {
        const Fiber& fiber = m.fibers[i];
        bool elsewhere = fiber.state != m.fibers[first].state || fiber.pc != m.fibers[first].pc;
        if (!elsewhere) continue;
        bool has_ended = fiber.state == ENDED;
        site(other, has_ended ? NONE : fiber.pc, i, m.block, has_ended ? GP_ENDED : GP_WAITS);
        break;
    }
    found_fatal(gp_finding{GP_BARRIER, -1, 0, int(m.threads), 0, one, other, waiting});
}

void run_block(const std::vector<uint32_t>& order) {
    for (Fiber& fiber : m.fibers) prepare(fiber);
    std::fill(m.warp_epochs.begin(), m.warp_epochs.end(), 0);
    m.epoch = 0;
    for (Shadow& shadow : m.shadows) std::fill(shadow.copies.begin(), shadow.copies.end(), Copy{});
    for (Fiber& fiber : m.fibers) fiber.n_read = 0;
    for (int i = 0; i < m.launch->n_regions; ++i)
        if (m.launch->regions[i].is_shared)
            memset(reinterpret_cast<void*>(m.launch->regions[i].base), 0xff, m.launch->regions[i].bytes);
    while (!m.is_stopped) {
        size_t ended = 0;
        for (uint32_t i : order) {
            Fiber& fiber = m.fibers[i];
            if (fiber.state == READY) {
                m.current = i;
                m.is_running = true;
                to_fiber(fiber);
                m.is_running = false;
                if (m.is_stopped) return;
            }
            ended += fiber.state == ENDED;
        }
        if (ended == m.threads) return;
        if (release()) continue;
        deadlock();
        m.is_stopped = true;
    }
}

// The lanes that this warp has at all: the last one of a block may have fewer than 32.
uint32_t whole_warp() {
    size_t lanes = std::min<size_t>(WARP, m.threads - m.current / WARP * WARP);
    return lanes == WARP ? ~0u : (1u << lanes) - 1;
}

void names(uint32_t mask) {
    m.fibers[m.current].named = mask;
    m.fibers[m.current].mask = mask & whole_warp();
}

uint64_t waits(State state, int kind, uint64_t pc) {
    settle();
    give_values(state == AT_BARRIER ? GP_BLOCK : GP_WARP);
    if (kind > 1 || state == AT_BARRIER && kind) m.launch->is_apart = 0;
    Fiber& fiber = m.fibers[m.current];
    fiber.state = state;
    fiber.kind = kind;
    fiber.pc = pc;
    to_scheduler(fiber);
    return m.fibers[m.current].result;
}

// ---- signals: what a kernel's code may get, and what asks where it is

constexpr int SIGNALS[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGUSR1};
constexpr int N_SIGNALS = sizeof SIGNALS / sizeof *SIGNALS;
struct sigaction before[N_SIGNALS];
alignas(16) char signal_stack[1 << 16];

// Where the code of a signal is, and what called it, by its frames.
void where(gp_launch& l, const ucontext_t& context) {
#if defined(__x86_64__)
    uint64_t pc = context.uc_mcontext.gregs[REG_RIP], frame = context.uc_mcontext.gregs[REG_RBP];
#elif defined(__aarch64__)
    uint64_t pc = context.uc_mcontext.pc, frame = context.uc_mcontext.regs[29];
#else
    uint64_t pc = 0, frame = 0;
#endif
    uint64_t low = reinterpret_cast<uint64_t>(m.arena), high = low + m.arena_bytes;
    l.calls[0] = pc + 1 - l.library;  // as if it were a return address
    l.calls[7] = m.fibers[m.current].pc;
    for (int i = 1; i < 7 && frame >= low && frame + 16 <= high; ++i) {
        const uint64_t* words = reinterpret_cast<const uint64_t*>(frame);
        l.calls[i] = words[1] - l.library;
        frame = words[0];
    }
}

// Ends the launch. Not this process, as a GPU ends no host either.
void on_signal(int number, siginfo_t* info, void* context) {
    int at = int(std::find(SIGNALS, SIGNALS + N_SIGNALS, number) - SIGNALS);
    if (!pthread_equal(pthread_self(), m.thread)) {
        if (number == SIGUSR1) pthread_kill(m.thread, number);
        else sigaction(number, &before[at], nullptr);  // it comes again, and is another's
        return;
    }
    // Who asked wants Python's stack too.
    const struct sigaction& other = before[at];
    bool is_taken = other.sa_handler != SIG_DFL && other.sa_handler != SIG_IGN;
    if (number == SIGUSR1 && is_taken && (other.sa_flags & SA_SIGINFO)) other.sa_sigaction(number, info, context);
    else if (number == SIGUSR1 && is_taken) other.sa_handler(number);
    gp_launch& l = *m.launch;
    l.signal = number;
    m.is_stopped = true;
    uint64_t address = reinterpret_cast<uint64_t>(info->si_addr), low = reinterpret_cast<uint64_t>(m.arena);
    bool is_in_stacks = number == SIGSEGV && address >= low && address < low + m.arena_bytes;
    site(l.stopped, NONE, m.current, m.block, is_in_stacks);
    if (!m.is_running) {
        l.calls[0] = m.fibers[m.current].pc;
        return;
    }
    where(l, *static_cast<const ucontext_t*>(context));
    m.fibers[m.current].state = ENDED;
    to_scheduler(m.fibers[m.current]);
}

void take_signals() {
    m.thread = pthread_self();
    stack_t own{};
    own.ss_sp = signal_stack;
    own.ss_size = sizeof signal_stack;
    sigaltstack(&own, nullptr);
    struct sigaction taken{};
    taken.sa_sigaction = on_signal;
    taken.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    for (int i = 0; i < N_SIGNALS; ++i) sigaction(SIGNALS[i], &taken, &before[i]);
}

void give_signals_back() {
    for (int i = 0; i < N_SIGNALS; ++i) sigaction(SIGNALS[i], &before[i], nullptr);
}

thread_local volatile char touched_to_be_there;

int look(dl_phdr_info* info, size_t, void* out) {
    uint64_t own = reinterpret_cast<uint64_t>(&m), end = 0, shared = 0;
    for (int i = 0; i < info->dlpi_phnum; ++i) {
        const auto& part = info->dlpi_phdr[i];
        if (part.p_type == PT_LOAD) end = std::max<uint64_t>(end, part.p_vaddr + part.p_memsz);
        if (part.p_type == PT_TLS) shared = part.p_memsz;
    }
    if (own < info->dlpi_addr || own >= info->dlpi_addr + end) return 0;
    *static_cast<gp_place*>(out) = {info->dlpi_addr, end, reinterpret_cast<uint64_t>(info->dlpi_tls_data), shared};
    return 1;
}

gp_place loaded() {
    touched_to_be_there = 1;
    gp_place found{};
    dl_iterate_phdr(look, &found);
    return found;
}

}  // namespace
}  // namespace gradprobe_runtime

using namespace gradprobe_runtime;

extern "C" {

// The dynamic shared memory of a block.
alignas(1024) thread_local unsigned char gp_room[GP_MOST_SHARED];

gp_place gp_where() { return loaded(); }

int gp_run(gp_launch* launch) {
    m.launch = launch;
    m.threads = size_t(launch->block[0]) * launch->block[1] * launch->block[2];
    m.is_stopped = m.is_fenced = false;
    m.latest = m.before_that = 0;
    launch->n_findings = launch->is_last_fatal = launch->together = 0;
    launch->n_records = launch->n_copies = 0;
    launch->is_apart = 1;
    m.filled.clear();
    launch->one_of = 1;
    std::fill(recent, recent + RECENT, 0);
    m.counted.assign(launch->max_findings, 0);
    m.doubts.clear();
    m.accesses = 0;
    launch->message[0] = 0;
    launch->signal = 0;
    m.printed = 0;
    if (!make_stacks(m.threads)) return fail("there is no memory for the stacks of its threads");
    make_shadows();
    m.warp_epochs.assign((m.threads + WARP - 1) / WARP, 0);
    uint32_t blocks = launch->grid[0] * launch->grid[1] * launch->grid[2];
    std::vector<uint32_t> order(m.threads), turns(blocks);
    for (uint32_t i = 0; i < m.threads; ++i) {
        order[i] = i;
        m.fibers[i].index = {i % launch->block[0], i / launch->block[0] % launch->block[1],
                             i / launch->block[0] / launch->block[1]};
    }
    for (uint32_t i = 0; i < blocks; ++i) turns[i] = i;
    std::mt19937_64 random(launch->seed);
    if (launch->seed) std::shuffle(turns.begin(), turns.end(), random);
    take_signals();
    for (uint32_t i = 0; i < blocks && !m.is_stopped; ++i) {
        m.block = turns[i];
        m.block_index = {m.block % launch->grid[0], m.block / launch->grid[0] % launch->grid[1],
                         m.block / launch->grid[0] / launch->grid[1]};
        if (launch->seed) std::shuffle(order.begin(), order.end(), random);
        run_block(order);
    }
    give_signals_back();
    drop_shadows();
    return m.is_stopped ? GP_STOPPED : 0;
}

gp_index gp_thread_index() { return m.fibers[m.current].index; }
gp_index gp_block_index() { return m.block_index; }
gp_index gp_block_size() { return {m.launch->block[0], m.launch->block[1], m.launch->block[2]}; }
gp_index gp_grid_size() { return {m.launch->grid[0], m.launch->grid[1], m.launch->grid[2]}; }

int gp_barrier(int kind, int predicate) {
    m.fibers[m.current].predicate = predicate;
    return int(waits(AT_BARRIER, kind, offset_of(__builtin_return_address(0))));
}

void gp_warp_barrier(uint32_t mask) {
    names(mask);
    waits(AT_WARP, 1, offset_of(__builtin_return_address(0)));
}

uint32_t gp_vote(uint32_t mask, int predicate) {
    names(mask);
    m.fibers[m.current].predicate = predicate;
    return uint32_t(waits(AT_WARP, 2, offset_of(__builtin_return_address(0))));
}

// how: 0 from lane `source`, 1 from the lane xor it, 2 from that many above, 3 from that many below
uint64_t gp_exchange(uint32_t mask, uint64_t value, uint64_t undefined, int source, int width, int how) {
    Fiber& fiber = m.fibers[m.current];
    int64_t lane = m.current % WARP, first = lane & ~(width - 1), end = first + width;
    int64_t asked = how == 0 ? first + (source & (width - 1)) : how == 1 ? lane ^ source
                    : how == 2 ? lane + int64_t(uint32_t(source)) : lane - int64_t(uint32_t(source));
    // Xor may lead to a lane of an earlier part of the warp.
    bool is_there = asked < end && (how == 1 ? asked >= 0 : asked >= first);
    names(mask);
    fiber.value = value;
    fiber.undefined = undefined;
    fiber.asked = asked;
    fiber.result = uint64_t(is_there ? asked : lane);
    return waits(AT_WARP, 3 + how, offset_of(__builtin_return_address(0)));
}

uint32_t gp_active_mask() {
    uint32_t mask = 0, first = m.current / WARP * WARP;
    for (uint32_t lane = 0; lane < WARP && first + lane < m.threads; ++lane)
        mask |= uint32_t(m.fibers[first + lane].state != ENDED) << lane;
    return mask;
}

void gp_touch_atomic(const void* address, int bytes) {
    touch(address, bytes, GP_ATOMIC, __builtin_return_address(0));
}
void gp_copy(void* to, const void* from, uint64_t bytes) { memcpy(to, from, bytes); }
void* gp_memcpy(void* to, const void* from, size_t bytes) {
    if (bytes) touch(from, int(bytes), GP_READ, __builtin_return_address(0));
    if (bytes) touch(to, int(bytes), GP_WRITE, __builtin_return_address(0));
    return memcpy(to, from, bytes);
}
void* gp_memset(void* to, int value, size_t bytes) {
    if (bytes) touch(to, int(bytes), GP_WRITE, __builtin_return_address(0));
    return memset(to, value, bytes);
}
// A GPU too keeps no more than 1 MiB of what a launch prints.
int gp_printf(const char* format, ...) {
    constexpr size_t MOST = 1 << 20;
    if (m.printed > MOST) return -1;
    va_list given;
    va_start(given, format);
    int count = vprintf(format, given);
    va_end(given);
    m.printed += std::max(count, 0);
    if (m.printed > MOST) printf("\n... this launch printed more than 1 MiB; the rest is left out\n");
    return count;
}
void gp_fence() { m.is_fenced = true; }
void gp_yield() {
    settle();
    Fiber& fiber = m.fibers[m.current];
    to_scheduler(fiber);
}
void gp_fail(const char* words) {
    settle();
    snprintf(m.launch->message, sizeof m.launch->message, "%s", words);
    leave();
}

// What g++ calls before each access.
#define HOOKS(bytes)                                                                                             \
    void __tsan_read##bytes(void* a) { touch(a, bytes, GP_READ, __builtin_return_address(0)); }                  \
    void __tsan_write##bytes(void* a) { touch(a, bytes, GP_WRITE, __builtin_return_address(0)); }                \
    void __tsan_unaligned_read##bytes(void* a) { touch(a, bytes, GP_READ, __builtin_return_address(0)); }        \
    void __tsan_unaligned_write##bytes(void* a) { touch(a, bytes, GP_WRITE, __builtin_return_address(0)); }      \
    void __tsan_volatile_read##bytes(void* a) { touch(a, bytes, GP_READ, __builtin_return_address(0)); }         \
    void __tsan_volatile_write##bytes(void* a) { touch(a, bytes, GP_WRITE, __builtin_return_address(0)); }
HOOKS(1)
HOOKS(2)
HOOKS(4)
HOOKS(8)
HOOKS(16)
void __tsan_read_range(void* a, uint64_t n) { touch(a, int(n), GP_READ, __builtin_return_address(0)); }
void __tsan_write_range(void* a, uint64_t n) { touch(a, int(n), GP_WRITE, __builtin_return_address(0)); }

// What g++ calls before an access at an address that is no multiple of the type's alignment.
struct Misaligned {
    struct { const char* file; uint32_t line, column; } at;
    void* type;
    uint8_t log_alignment, how;  // 0: a load; 1: a store; more: no access
};
void __ubsan_handle_type_mismatch_v1(const Misaligned* about, uint64_t address) {
    if (!m.is_running || about->how > 1) return;
    misaligned(address, 1 << about->log_alignment, about->how ? GP_WRITE : GP_READ, __builtin_return_address(0));
}
// assert() of a kernel, which would end the process.
void __assert_fail(const char* words, const char* file, unsigned line, const char*) {
    const char* name = strrchr(file, '/');
    snprintf(m.launch->message, sizeof m.launch->message, "assert(%s) at %s:%u", words, name ? name + 1 : file, line);
    settle();
    if (m.is_running) leave();
    __builtin_trap();
}
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
}
